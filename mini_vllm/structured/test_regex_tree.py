"""The supported expressions match what ``re.fullmatch`` matches; all others are refused by position."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.structured.automaton import DEAD, ByteAutomaton, TooLargeError
from mini_vllm.structured.regex_tree import MAX_DEPTH, MAX_PATTERN_CHARS, RegexError, parse_regex


def matches(pattern, text):
    return ByteAutomaton(parse_regex(pattern)).matches(text.encode())


@pytest.mark.parametrize("pattern", [
    "", "abc", "a|b|", "a*", "(ab)+", "a?b", "a{2}", "a{2,}", "a{1,3}", "a{,2}", "a{,}", "a{", "a{x}", "{", "x{1",
    "a{}",
    "[abc]", "[^abc]", "[a-c-]", "[]a]", "[^]a]", r"[\d.]", r"[^\s]", r"\d\w\s", r"\D\W\S", ".", r"\.", r"[\b]",
    r"\x41",
    r"\u00e9", r"\U0001F600", "é+", "😀|x", "(?:a|b)c", "(?P<name>a)b", "^abc$", "a*?b", "a+?", "a{1,2}?",
    r"\n\t\r\f\v",
    r"[+-]?\d+", r"(a|b)*abb", "(a*)*", "(a?){3}", r"\/\-\ ", "[^\x00-\x7f]", r"[\w-]", "[.-/]", "a b", "[é-ü]",
    "(|a)b",
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_an_expression_matches_what_re_matches(pattern, data):
    text = data.draw(st.one_of(st.text(alphabet="abcxé😀\n .-]{}1 \x08üA/", max_size=6), st.from_regex(
        pattern, fullmatch=True)))
    try:
        text.encode()
    except UnicodeEncodeError:
        return  # half of a pair: not a text
    assert matches(pattern, text) == bool(re.fullmatch(pattern, text, re.ASCII))


PIECES = st.recursive(
    st.sampled_from(["a", "b", "é", ".", "[ab]", "[^a]", r"\d", r"\w", r"\W", "[a-c]", "😀", r"\."]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{,1}", "{2,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(inner, inner).map("".join), st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})")),
    max_leaves=6)


@given(PIECES, st.lists(st.text(alphabet="abc1é😀.\n-", max_size=5), max_size=8))
@settings(max_examples=200, deadline=None)
def test_random_expressions_match_what_re_matches(pattern, texts):
    automaton = ByteAutomaton(parse_regex(pattern))
    for text in texts:
        assert automaton.matches(text.encode()) == bool(re.fullmatch(pattern, text, re.ASCII)), (pattern, text)


@pytest.mark.parametrize("pattern, position, problem", [
    ("a**", 2, "needs a group"), ("*a", 0, "nothing to repeat"), ("a|*", 2, "nothing to repeat"),
    ("(a", 0, "never closed"), ("a)", 1, "never opened"), ("[a", 0, "never closed"), ("[]", 0, "never closed"),
    ("ab\\", 2, "nothing follows"), (r"a\b", 1, r"\b is not supported"), (r"(a)\1", 3, r"\1 is not supported"),
    ("(?=a)", 0, "lookarounds"), ("(?i)a", 0, "flags"), ("a(?<!b)", 1, "lookarounds"), ("a*+", 2, "possessive"),
    ("a{3,2}", 1, "must not be larger"), ("[b-a]", 1, "b-a is not a range"), (r"[\d-z]", 1, "is not a range"),
    ("a^", 1, "only at the beginning"), ("$a", 0, "only at the end"), (r"\xg0", 0, "2 hexadecimal digits"),
    (r"\ud800", 0, "U+D800"), ("[^\\x00-\\U0010FFFF]", 0, "no character"), ("(?P<1>a)", 4, "not a name"),
    ("a{1}{2}", 4, "needs a group"), ("{1}", 0, "nothing to repeat"), (r"\pL", 0, r"\p is not supported"),
    ("x" * (MAX_PATTERN_CHARS + 1), MAX_PATTERN_CHARS, "characters, must have at most"),
    ("(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1), MAX_DEPTH, "at most 48 deep"),
    ("a{9999999}", 1, "too large"), (r"\U00110000", 0, "not a character"), ("^*", 1, "nothing to repeat"),
])
def test_what_is_not_supported_is_refused_by_position(pattern, position, problem):
    with pytest.raises(RegexError, match=re.escape(problem)) as caught:
        parse_regex(pattern)
    assert caught.value.position == position
    assert f"at position {position}" in str(caught.value)


@pytest.mark.parametrize("pattern", [
    "(a|b)*a(a|b){20}", "(((a{0,99}){0,99}){0,99}){0,99}", "[a-z]{999999}", ".{1,9999}", "(.*a){40}b.{40}",
    "(" * 40 + "a" + "{0,3})" * 40, "((){999999}){60000}", "((){0,999999}){100}"])
def test_a_costly_expression_is_refused(pattern):
    with pytest.raises(TooLargeError, match="expression"):
        ByteAutomaton(parse_regex(pattern))


def test_no_text_that_led_to_dead_matches():
    automaton = ByteAutomaton(parse_regex("ab"))  # its last state accepts
    assert automaton.next_state(DEAD, ord("a")) == DEAD and not automaton.is_accepting(DEAD)


def test_every_character_is_one_or_several_bytes():
    any_character = ByteAutomaton(parse_regex(r"[\x00-\U0010ffff]"))
    for code in (0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF):
        assert any_character.matches(chr(code).encode())
    for wrong in (b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xf8", b"\xc3"):
        assert not any_character.matches(wrong)
