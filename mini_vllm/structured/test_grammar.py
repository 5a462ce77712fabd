"""Masks: exactly the tokens that lead somewhere, and the end of the text exactly where the output matches."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.structured.automaton import DEAD
from mini_vllm.structured.grammar import RegexGrammar, UnreachableError
from mini_vllm.structured.regex_tree import Either, literal, parse_regex
from mini_vllm.structured.vocabulary import TokenTrie, Vocabulary

EOS = 0
BYTES = [bytes([byte]) for byte in range(256)]
WORDS = [b"the", b"then", b"ab", b"abc", b"12", b"2024", b"-0", b"\xc3\xa9t", b"\xa9", b"\xf0\x9f", b"a\xc3", b""]
VOCABULARY = Vocabulary([b"", *BYTES, *WORDS], [EOS], num_rows=300)


def grammar(pattern, vocabulary=VOCABULARY):
    return RegexGrammar(parse_regex(pattern), vocabulary)


def ids(text):
    return [1 + byte for byte in text.encode()]


def state_after(made, token_ids):
    state = made.start
    for token_id in token_ids:
        state = made.advance(state, token_id)
    return state


def test_the_mask_has_the_tokens_that_lead_somewhere():
    made = grammar("then|ab.")
    allowed = {VOCABULARY.token_bytes[index] for index in np.flatnonzero(made.allowed(made.start))}
    assert allowed == {b"t", b"the", b"then", b"a", b"ab", b"abc"}


def test_a_token_may_end_inside_a_character():
    made = grammar("é|😀")
    assert {VOCABULARY.token_bytes[index] for index in np.flatnonzero(made.allowed(made.start))} == {
        b"\xc3", b"\xf0", b"\xf0\x9f"}
    state = state_after(made, [1 + 0xC3])
    assert {VOCABULARY.token_bytes[index] for index in np.flatnonzero(made.allowed(state))} == {b"\xa9"}


def test_the_end_of_the_text_is_allowed_exactly_where_the_output_matches():
    made = grammar("ab?")
    assert not made.allowed(made.start)[EOS] and made.advance(made.start, EOS) == DEAD
    after_a = state_after(made, ids("a"))
    assert made.allowed(after_a)[EOS] and made.is_accepting(after_a) and not made.is_complete(after_a)
    after_ab = state_after(made, ids("ab"))
    assert made.is_complete(after_ab) and np.flatnonzero(made.allowed(after_ab)).tolist() == [EOS]


def test_tokens_without_a_text_are_never_allowed():
    mask = grammar("(.|\n)*").allowed(0)
    assert len(mask) == 300 and not mask[257 + len(WORDS) - 1:].any() and mask[EOS]


def test_a_token_that_is_not_allowed_leads_to_the_dead_state():
    made = grammar("ab")
    assert made.advance(made.start, ids("x")[0]) == DEAD
    assert made.advance(DEAD, ids("a")[0]) == DEAD and not made.is_accepting(DEAD) and not made.is_complete(DEAD)


def test_masks_are_computed_once_per_state(monkeypatch):
    made = grammar("[ab]*")
    first = made.allowed(made.start)
    monkeypatch.setattr(TokenTrie, "walk", None)
    assert made.allowed(made.start) is first
    with pytest.raises(ValueError, match="read-only"):  # all requests share it
        first[0] = True


def test_old_masks_are_dropped(monkeypatch):
    monkeypatch.setattr("mini_vllm.structured.grammar.MAX_KEPT_BYTES", 3 * 3 * VOCABULARY.num_rows)
    made = grammar("a{9}")
    for state in range(9):
        assert made.allowed(state).any()
    assert len(made._kept) == 3 and made.allowed(0).any()


@pytest.mark.parametrize("pattern, num_tokens", [("", 0), ("abc", 1), ("abcabc", 2), (r"\d{4}-0\d", 3), ("x{9}", 9),
                                                 ("abcab|the(n|x)", 1)])
def test_the_shortest_output_is_counted_in_tokens(pattern, num_tokens):
    assert grammar(pattern).num_tokens_needed() == num_tokens


def test_a_large_expression_is_counted_roughly_and_never_too_high():
    assert 2000 / 4 <= grammar("[ab]{2000}").num_tokens_needed() <= 2000


def test_tokens_that_cannot_be_completed_are_not_allowed():
    """Check a vocabulary without a token for every byte: after "ca" only "ts" goes on, and after "do" nothing."""
    vocabulary = Vocabulary([b"", b"ca", b"ts", b"c", b"do"], [EOS])
    made = RegexGrammar(Either((literal("cats"), literal("dog"))), vocabulary)
    assert np.flatnonzero(made.allowed(made.start)).tolist() == [1]
    with pytest.raises(UnreachableError, match="cannot spell"):
        RegexGrammar(literal("dog"), vocabulary)


def test_bytes_that_no_token_has_are_left_out():
    """Check a vocabulary of ASCII without "b": `.` leaves out every longer character, and "ab" is no way to go."""
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(128) if byte != ord("b"))], [EOS])
    made = RegexGrammar(parse_regex("(ab|ac|.)c"), vocabulary)
    state = made.advance(made.start, vocabulary.token_bytes.index(b"a"))
    assert vocabulary.token_bytes[np.flatnonzero(made.allowed(state))[0]] == b"c" and made.allowed(state).sum() == 1
    assert made.num_tokens_needed() == 2 and RegexGrammar(parse_regex(".{400}"), vocabulary).num_tokens_needed() <= 400
    assert made.is_complete(made.advance(state, vocabulary.token_bytes.index(b"c"))) is False
    with pytest.raises(UnreachableError, match="cannot spell"):
        RegexGrammar(parse_regex("é|b"), vocabulary)


@given(st.sampled_from([r"(a|bc)*d?", r"\w+", r"[^a]é?", r".{1,3}", r"(the|then)?n*", r"\d{2,4}(-\d\d)?"]),
       st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_a_random_walk_through_the_masks_matches(pattern, seed):
    made, random = grammar(pattern), np.random.default_rng(seed)
    state, output = made.start, b""
    for _ in range(8):
        choices = np.flatnonzero(made.allowed(state))
        token_id = int(random.choice(choices))
        if token_id == EOS:
            break
        output += VOCABULARY.token_bytes[token_id]
        state = made.advance(state, token_id)
        assert state != DEAD
    try:
        is_match = bool(re.fullmatch(pattern, output.decode(), re.ASCII))
    except UnicodeDecodeError:  # it ends inside of a character
        is_match = False
    assert made.is_accepting(state) == is_match
