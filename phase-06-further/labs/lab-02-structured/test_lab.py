"""Lab 6.2, output that must parse. Each test checks one rule, and its failure message names that rule.

Python's ``re`` decides which texts match. For a finite set of texts, the tests also know every way to go on: a byte or
a token is possible if one of the texts goes on like that. The vocabulary of the tests has a token for each byte, and
longer tokens that begin and end in awkward places.

Work is counted, not timed: the calls of ``next_state``, the reads of a vocabulary, and the lines of Python of a call.
"""

import math
import random
import re

import numpy as np
import pytest

from course.expecting import must_answer, must_raise
from course.gauges import cheapest
from mini_vllm.backend import mx
from mini_vllm.structured.automaton import DEAD, ByteAutomaton
from mini_vllm.structured.regex_tree import Either, literal, parse_regex
from mini_vllm.structured.vocabulary import Vocabulary

DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"


# ---- Task 1: the automaton


def says(got, expected):
    """Check that a result is this bool. A bool of numpy is one as well."""
    return isinstance(got, (bool, np.bool_)) and bool(got) == expected


def automaton_of(lab, pattern):
    return must_answer(f"ByteAutomaton(parse_regex({pattern!r}))", lab.ByteAutomaton, parse_regex(pattern),
                       rule="every tree that parse_regex returns has an automaton")


def check_texts(lab, pattern, texts, rule):
    """Check that the automaton accepts the texts that ``re`` accepts, and no others."""
    automaton = automaton_of(lab, pattern)
    for text in texts:
        got, expected = automaton.matches(text.encode()), bool(re.fullmatch(pattern, text, re.ASCII))
        assert says(got, expected), (f"the automaton of {pattern}: matches({text.encode()!r}), the bytes of {text!r}, "
                                 f"returned {got}, expected {expected}: {rule}")


def state_after(automaton, text):
    state = 0
    for byte in text:
        state = automaton.next_state(state, byte)
    return state


def all_texts(alphabet, longest):
    """Return all texts of these characters with at most ``longest`` of them."""
    texts = level = [""]
    for _ in range(longest):
        level = [text + character for text in level for character in alphabet]
        texts = texts + level
    return texts


@pytest.mark.points(1)
@pytest.mark.parametrize("pattern", ["abc", "", "a b", "x"])
def test_task_1_a_plain_text_matches_only_itself(lab, pattern):
    check_texts(lab, pattern, ["", pattern, pattern + "c", "ab", "a", "a b", "abcabc", " ", "xx", "ba"],
                "an expression without special characters matches exactly its own text")


@pytest.mark.points(1)
@pytest.mark.parametrize("pattern", ["ab|ac", "abc|abd|x", "a|aa|aaa", "cat|dog|cats"])
def test_task_1_one_of_several_texts(lab, pattern):
    check_texts(lab, pattern, [*all_texts("abcd", 3), "x", "xx", "ax", "aaaa", "cat", "cats", "dog", "dogs", "ca", "do",
                               "catdog"],
                "| separates texts of which one must match. After a beginning that several share, all of them are "
                "still possible")


@pytest.mark.points(2)
@pytest.mark.parametrize("pattern", ["a*", "a+", "a?", "a{2}", "a{2,}", "a{1,3}", "a{,2}", "a{0}", "a{0,1}b", "(ab)*",
                                     "(ab)+a", "(a|b){2}", "(a|bb){1,2}", "a{3}b?", "(ab?){2,3}"])
def test_task_1_repetitions(lab, pattern):
    check_texts(lab, pattern, [*all_texts("ab", 6), "c", "a" * 50, "ab" * 20],
                "Repeat(node, least, most) is the node, least to most times, and without an upper bound if most is "
                "None")


@pytest.mark.points(2)
@pytest.mark.parametrize("pattern", ["(a*)*", "(a?){3}", "(|a)b", "a|", "|", "(a|b)*abb", "((a|)b)*", "(a*b*)*a",
                                     "()", "(a|(b|))a", "((a?)*b?)*", "(a+|b)*?b", "(()*a)*"])
def test_task_1_loops_in_loops_and_empty_alternatives(lab, pattern):
    check_texts(lab, pattern, [*all_texts("ab", 6), "c", "ac"],
                "a part of an expression may match the empty text, also inside of a repetition")


@pytest.mark.points(1)
@pytest.mark.parametrize("pattern", ["[abc]", "[^abc]", r"\d", r"\D", r"\w+", r"\W", r"\s", "[a-c-]", r"[\d.]",
                                     "[^-a]", r"[+-]?\d+(\.\d+)?"])
def test_task_1_sets_of_characters(lab, pattern):
    characters = [chr(code) for code in range(128)] + ["é", "²", "٣", "\u2028", "😀"]
    check_texts(lab, pattern, ["", *characters, "-1", "+12.5", "1.", "ab", "a1"],
                "Characters(ranges) matches one character whose code point is in one of the ranges")


@pytest.mark.points(2)
@pytest.mark.parametrize("pattern", ["é", "é|è", "[é-ü]", "é+", "😀", "😀?a", "(é|😀)*", "[à-😀]", "naïve|naive",
                                     "[^é]"])
def test_task_1_characters_of_several_bytes(lab, pattern):
    check_texts(lab, pattern, [*all_texts("éèa", 3), "ü", "ÿ", "à", "ß", "😀", "😁", "😀a", "é😀", "naïve", "naive",
                               "na", "Ã", "©", "Ã©", "€", "\uffff"],
                "text is UTF-8: é is the two bytes C3 A9, and 😀 is four bytes. utf8_sequences gives the sequences of "
                "bytes of a range of characters")


EDGES = [0, 9, 10, 11, 0x60, 0x61, 0x62, 0x7F, 0x80, 0xE9, 0x7FF, 0x800, 0x1234, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF,
         0x10000, 0x1F600, 0xFFFFF, 0x100000, 0x10FFFF]


@pytest.mark.points(2)
@pytest.mark.parametrize("pattern", [".", "[^a]", "[^é]", r"[\x00-\U0010ffff]", r"[^\x00-\x7f]", r"\W"])
def test_task_1_most_of_unicode(lab, pattern):
    characters = [chr(code) for code in EDGES]
    check_texts(lab, pattern, ["", *characters, *[each + "b" for each in characters], "ab", "ba"],
                ". is every character but the end of a line, and [^a] is every character but a: of one to four bytes")


NOT_UTF8 = [b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xc3\x28", b"\xe0\x80\x80", b"\xe0\x9f\xbf",
            b"\xe2\x82", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf0\x9f\x98",
            b"\xf4\x90\x80\x80", b"\xf8", b"\xff", b"a\xc3", b"\xa9", b"\xc3\xa9\xa9"]


@pytest.mark.points(1)
def test_task_1_bytes_that_are_not_utf8_never_match(lab):
    automaton = automaton_of(lab, r"[\x00-\U0010ffff]*")
    for text in ("", "a", "aé", "😀\n"):
        assert says(automaton.matches(text.encode()), True), (f"[\\x00-\\U0010ffff]* matches every text, but "
                                                          f"matches({text.encode()!r}) was not True")
    for wrong in NOT_UTF8:
        got = automaton.matches(wrong)
        assert says(got, False), (f"[\\x00-\\U0010ffff]* matches every text: matches({wrong!r}) returned {got}, "
                              "expected False: these bytes are not the UTF-8 of any text")


@pytest.mark.points(2)
def test_task_1_a_text_may_end_inside_of_a_character(lab):
    automaton = automaton_of(lab, "é|😀")
    for text, what in ((b"\xc3", "the first byte of é"), (b"\xf0", "the first byte of 😀"),
                       (b"\xf0\x9f", "two bytes of 😀"), (b"\xf0\x9f\x98", "three bytes of 😀")):
        state = state_after(automaton, text)
        assert state != DEAD and says(automaton.is_accepting(state), False), (
            f"the automaton of é|😀: after {text!r}, {what}, the state is {state}, and is_accepting says "
            f"{automaton.is_accepting(state)}. Expected a state that is not DEAD, because the character can go on, and "
            "that does not accept, because it is not whole")
    assert says(automaton.is_accepting(state_after(automaton, "😀".encode())), True), (
        "the automaton of é|😀: after the four bytes of 😀, is_accepting was not True")


FINITE = [["ab", "ac"], ["cat", "cats", "dog"], ["", "a", "ab"], ["é", "è", "e"], ["😀", "😁", "ü"], ["2024", "2025-1"],
          ["naïve", "naive"], ["x"]]


def tree_of(texts):
    return Either(tuple(literal(text) for text in texts))


@pytest.mark.points(3)
@pytest.mark.parametrize("texts", FINITE, ids=lambda texts: "|".join(texts).encode("ascii", "replace").decode())
def test_task_1_every_byte_leads_on_or_to_dead(lab, texts):
    """Read every beginning of every text, and compare what is possible next with the texts themselves."""
    automaton = lab.ByteAutomaton(tree_of(texts))
    words = [text.encode() for text in texts]
    for before in {word[:end] for word in words for end in range(len(word) + 1)}:
        state = state_after(automaton, before)
        possible = {byte for byte in range(256) if automaton.next_state(state, byte) != DEAD}
        expected = {word[len(before)] for word in words if word.startswith(before) and len(word) > len(before)}
        assert possible == expected, (
            f"the texts are {texts}: after {before!r}, next_state leads on with the bytes "
            f"{bytes(sorted(possible))!r}, expected {bytes(sorted(expected))!r}: DEAD is the answer as soon as no text "
            "goes on like that, and never before")
        assert says(automaton.is_accepting(state), before in words), (
            f"the texts are {texts}: after {before!r}, is_accepting said {automaton.is_accepting(state)}, expected "
            f"{before in words}")


@pytest.mark.points(1)
@pytest.mark.parametrize("pattern", ["ab", "a*", "é", "", "(a|b)*abb"])
def test_task_1_dead_stays_dead(lab, pattern):
    automaton = automaton_of(lab, pattern)
    state = automaton.next_state(0, ord("x"))
    assert state == DEAD, f"the automaton of {pattern!r}: next_state(0, {ord('x')}) returned {state}, expected DEAD, -1"
    following = {automaton.next_state(DEAD, byte) for byte in range(256)}
    assert following == {DEAD}, (f"the automaton of {pattern!r}: next_state(DEAD, byte) returned {sorted(following)} "
                                 "for the 256 bytes, expected DEAD for all of them: nothing saves a text that cannot "
                                 "match")
    assert says(automaton.is_accepting(DEAD), False), (
        f"the automaton of {pattern!r}: is_accepting(DEAD) returned {automaton.is_accepting(DEAD)}, expected False. "
        "(Is DEAD, which is -1, used as an index of a list? Then it is the last element)")


@pytest.mark.points(1)
@pytest.mark.parametrize("pattern, expected", [("ab?", [False, True, True]), ("a*", [True, True]), ("", [True]),
                                               ("a{2,3}", [False, False, True, True]), ("(aa)*", [True, False, True])])
def test_task_1_accepting_means_that_the_text_may_end_here(lab, pattern, expected):
    automaton = automaton_of(lab, pattern)
    text = b"ab" if pattern == "ab?" else b"a" * (len(expected) - 1)
    got = [automaton.is_accepting(state_after(automaton, text[:end])) for end in range(len(expected))]
    assert got == expected, (f"the automaton of {pattern!r}, after 0, 1, … bytes of {text!r}: is_accepting returned "
                             f"{got}, expected {expected}: whether the text so far matches, even if it can go on")


@pytest.mark.points(2)
@pytest.mark.parametrize("pattern, text, most", [("a*", b"a", 2), ("(ab|cd)*", b"abcdcd", 6), (r"(\d\d)+", b"12", 6),
                                                 ("(a|b)*abb", b"abbaab", 8), ("[^x]*", "aé😀".encode(), 16)])
def test_task_1_a_loop_has_few_states(lab, pattern, text, most):
    automaton = automaton_of(lab, pattern)
    text, states = text * 200, [0]
    for byte in text:
        states.append(automaton.next_state(states[-1], byte))
    assert all(isinstance(state, (int, np.integer)) for state in states), (
        f"the automaton of {pattern}: next_state returned {states[1]!r}, expected a number")
    assert DEAD not in states and len(set(states)) <= most, (
        f"the automaton of {pattern}: reading {text[:12]!r}… ({len(text)} bytes) led through {len(set(states))} "
        f"different states{' and to DEAD' if DEAD in states else ''}, expected at most {most} and never DEAD: texts "
        "that lead to the same set of places lead to the same state")


@pytest.mark.points(1)
def test_task_1_equal_sets_are_one_state(lab):
    pattern = "[ab]*a[ab]*b[ab]*a|[ab]*b[ab]*a[ab]*b|[ab]*a"
    automaton = automaton_of(lab, pattern)
    check_texts(lab, pattern, ["", "a", "b", "ab", "aba", "bab", "bb", "abb"], "see re.fullmatch")
    found, todo = {0}, [0]
    while todo and len(found) <= 40:
        state = todo.pop()
        for byte in b"ab":
            following = automaton.next_state(state, byte)
            if following not in found:
                found.add(following)
                todo.append(following)
    assert len(found) <= 20, (
        f"the automaton of {pattern}: from state 0, the bytes a and b lead to {len(found)} states or more, expected at "
        "most 20: a set of places is one state, in whatever order the places were found")


@pytest.mark.points(1)
def test_task_1_states_are_numbers_and_nothing_is_remembered(lab):
    automaton, other = automaton_of(lab, "abcab|b"), automaton_of(lab, "bca")
    first, second = state_after(automaton, b"abc"), state_after(automaton, b"b")
    assert all(isinstance(state, (int, np.integer)) and state > 0 for state in (first, second)), (
        f"the automaton of abcab|b: the states after abc and after b are {first!r} and {second!r}, expected whole "
        "numbers above 0")
    assert says(other.matches(b"bca"), True) and says(other.matches(b"b"), False), (
        "the automaton of bca must match bca only")
    got = [automaton.is_accepting(automaton.next_state(automaton.next_state(first, ord("a")), ord("b"))),
           automaton.is_accepting(second), automaton.is_accepting(state_after(automaton, b"abcab"))]
    assert got == [True, True, True], (
        f"the automaton of abcab|b read abc, then b from the beginning, then another automaton read a text. Going on "
        f"from the state after abc with ab, asking the state after b, and reading abcab again: accepted {got}, "
        "expected True for all. A state is all that is remembered of a text")


@pytest.mark.points(2)
def test_task_1_too_many_states_are_refused(lab):
    pattern = "(a|b)*a(a|b){13}"
    with must_raise(lab.TooLargeError, f"ByteAutomaton(parse_regex({pattern!r}))",
                    f"it must remember which of the last 14 characters were an a, which takes 2**14 = 16,384 states, "
                    f"more than MAX_STATES = {lab.MAX_STATES}"):
        lab.ByteAutomaton(parse_regex(pattern))
    check_texts(lab, "(a|b)*a(a|b){3}", all_texts("ab", 6), "this one needs only 2**4 states")


@pytest.mark.points(1)
def test_task_1_max_states_states_are_enough(lab):
    most = lab.MAX_STATES
    automaton = must_answer(f"ByteAutomaton of x{{{most - 1}}}", lab.ByteAutomaton, parse_regex(f"x{{{most - 1}}}"),
                            rule=f"it has MAX_STATES = {most} states: one before each x and one after the last. DEAD "
                                 "does not count")
    assert says(automaton.matches(b"x" * (most - 1)), True) and says(automaton.matches(b"x" * (most - 2)), False), (
        f"the automaton of x{{{most - 1}}} must match {most - 1} times x, and not {most - 2} times")
    with must_raise(lab.TooLargeError, f"ByteAutomaton of x{{{most}}}", f"it has {most + 1} states"):
        lab.ByteAutomaton(parse_regex(f"x{{{most}}}"))


def random_pattern(rng, depth=3):
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(["a", "b", "é", ".", "[ab]", "[^a]", r"\w", "😀", r"\W", "[b-é]"])
    kind = rng.randrange(4)
    inner = random_pattern(rng, depth - 1)
    if kind == 0:
        return f"(?:{inner}){rng.choice(['*', '+', '?', '{2}', '{1,2}', '{,1}', '{2,}'])}"
    if kind == 1:
        return f"({inner}|{random_pattern(rng, depth - 1)})"
    return inner + random_pattern(rng, depth - 1)


@pytest.mark.points(3)
def test_task_1_random_expressions_match_what_re_matches(lab):
    rng = random.Random(62)
    num_matches = 0
    for _ in range(80):
        pattern = random_pattern(rng)
        texts = ["".join(rng.choice("abé😀1.\n") for _ in range(rng.randrange(6))) for _ in range(12)]
        check_texts(lab, pattern, texts, "an expression matches what re.fullmatch(pattern, text, re.ASCII) matches")
        num_matches += sum(bool(re.fullmatch(pattern, text, re.ASCII)) for text in texts)
    assert num_matches > 100, f"only {num_matches} of 960 texts matched, expected more than 100"


@pytest.mark.points(1)
def test_task_1_dates(lab):
    days = [f"2024-{month:02}-{day:02}" for month in range(14) for day in range(33)]
    check_texts(lab, DATE, [*days, "1999-1-01", "999-01-01", "2024-01-011", "2024/01/01", "٢٠٢٤-01-01", ""],
                "a month from 01 to 12, and a day from 01 to 31")


@pytest.mark.points(2)
@pytest.mark.inside("the lines of a call can be counted only in the process that runs them")
def test_task_1_next_state_only_looks_up(lab):
    pattern = "(.|a.|ab.|abc.)*x"
    automaton = automaton_of(lab, pattern)
    state = state_after(automaton, b"zzabc")
    assert says(automaton.is_accepting(automaton.next_state(state, ord("x"))), True), (
        f"the automaton of {pattern} must accept zzabcx")
    num_run, _ = cheapest(automaton.next_state, [(state, byte) for byte in b"axz"])
    assert num_run <= 12, (f"the automaton of {pattern}: the cheapest of three calls of next_state ran {num_run} lines "
                           "of Python, at most 12 are allowed: all states are found by __init__, and next_state looks "
                           "one up")


# ---- Task 2: the trie


EOS = 0
WORDS = [b"the", b"then", b"ab", b"abc", b"12", b"2024", b"-0", "ét".encode(), b"\xa9", b"\xf0\x9f", b"a\xc3", b"abab",
         b"bab", b"\x9f\x98\x80!", b"\x98", b"an", b"and", b"", b"ab", b"c)", "éé".encode()]
NUM_ROWS = 300


def make_vocabulary(words=WORDS, eos=(EOS,), num_rows=NUM_ROWS):
    """Return a vocabulary: an end of text, the 256 bytes, and ``words``. Byte b is token 1 + b."""
    return Vocabulary([b"", *(bytes([byte]) for byte in range(256)), *words], eos, num_rows)


class CountedAutomaton(ByteAutomaton):
    """Counts how often a byte is read."""

    def __init__(self, pattern):
        super().__init__(parse_regex(pattern))
        self.num_calls = 0

    def next_state(self, state, byte):
        self.num_calls += 1
        return super().next_state(state, byte)

    def after(self, state, text):
        """Return the state after ``text``, without counting."""
        for byte in text:
            state = super().next_state(state, byte)
        return state


class CountedVocabulary(Vocabulary):
    """Counts how often the bytes of the tokens are asked for."""

    def __init__(self, *arguments):
        self.num_reads = 0
        super().__init__(*arguments)
        self.num_reads = 0

    @property
    def token_bytes(self):
        self.num_reads += 1
        return self.words

    @token_bytes.setter
    def token_bytes(self, words):
        self.words = words


def check_walk(trie, vocabulary, automaton, state, what, rule):
    got = [int(each) for each in trie.walk(automaton, state)]
    assert len(got) == vocabulary.num_rows, (f"{what}: walk returned {len(got)} states, expected one for each of the "
                                             f"{vocabulary.num_rows} rows of the logits")
    for token_id, word in enumerate(vocabulary.token_bytes):
        expected = automaton.after(state, word) if word else DEAD
        assert got[token_id] == expected, (f"{what}: from state {state}, token {token_id}, {word!r}, led to state "
                                           f"{got[token_id]}, expected {expected}: {rule}")


PATTERNS = ["then|ab.", "a(nd)?|2024-0", "é*t", "(ab)*c?", ".*", "😀!|é", r"\d{4}-\d", "[^a]+", "x"]


@pytest.mark.points(2)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_task_2_a_walk_gives_the_state_after_each_token(lab, pattern):
    vocabulary, automaton = make_vocabulary(), CountedAutomaton(pattern)
    check_walk(lab.TokenTrie(vocabulary), vocabulary, automaton, 0, f"the expression is {pattern}",
               "the state after the bytes of the token, one after the other")


@pytest.mark.points(2)
def test_task_2_a_walk_begins_in_any_state(lab):
    vocabulary, automaton = make_vocabulary(), CountedAutomaton("(ab|and|é!|😀!)+c")
    trie = lab.TokenTrie(vocabulary)
    for text in ("a", "ab", "aba", "an", "ab😀!a"):
        check_walk(trie, vocabulary, automaton, automaton.after(0, text.encode()), f"after {text!r}",
                   "the walk begins in the state that is passed")
    for text in (b"\xc3", b"\xf0", b"\xf0\x9f", b"ab\xf0\x9f\x98"):
        check_walk(trie, vocabulary, automaton, automaton.after(0, text), f"after {text!r}",
                   "the text so far ends inside of a character, and a token may begin there")


@pytest.mark.points(1)
def test_task_2_a_token_may_be_the_beginning_of_another(lab):
    vocabulary = Vocabulary([b"and", b"a", b"an", b"andy", b"b"], [])
    automaton = CountedAutomaton("an*")
    got = [int(state) for state in lab.TokenTrie(vocabulary).walk(automaton, 0)]
    after_a, after_an = automaton.after(0, b"a"), automaton.after(0, b"an")
    assert got == [DEAD, after_a, after_an, DEAD, DEAD], (
        f"the tokens are and, a, an, andy and b, and the expression is an*: walk returned {got}, expected "
        f"{[DEAD, after_a, after_an, DEAD, DEAD]}: a node of the trie may be the end of a token and lead on as well")


@pytest.mark.points(1)
def test_task_2_tokens_with_the_same_bytes_all_count(lab):
    vocabulary = Vocabulary([b"a", b"ab", b"a", b"b", b"ab", b"ab"], [])
    automaton = CountedAutomaton("ab")
    got = [int(state) for state in lab.TokenTrie(vocabulary).walk(automaton, 0)]
    first, both = automaton.after(0, b"a"), automaton.after(0, b"ab")
    assert got == [first, both, first, DEAD, both, both], (
        f"tokens 0 and 2 are both a, and tokens 1, 4 and 5 are all ab; the expression is ab: walk returned {got}, "
        f"expected {[first, both, first, DEAD, both, both]}: several tokens may have the same bytes")


@pytest.mark.points(2)
def test_task_2_rows_without_bytes_are_dead(lab):
    vocabulary = make_vocabulary(eos=(EOS, 258))
    got = [int(state) for state in lab.TokenTrie(vocabulary).walk(CountedAutomaton("(.|\n)*"), 0)]
    empty = [token_id for token_id in range(NUM_ROWS) if not vocabulary.token_bytes[token_id]]
    assert len(got) == NUM_ROWS and got[1 + ord("a")] != DEAD, (
        f"walk returned {len(got)} states, and {got[1 + ord('a')]} for the token a, expected {NUM_ROWS} states, one "
        "for each row of the logits, and a state other than DEAD for a: the expression matches every text")
    wrong = [token_id for token_id in empty if got[token_id] != DEAD]
    assert not wrong, (f"rows {wrong} have no bytes (ends of a text, special tokens, rows after the last token), and "
                       "walk did not return DEAD for them: a token without text leads nowhere")


@pytest.mark.points(3)
def test_task_2_a_shared_beginning_is_read_once(lab):
    words = [b"once upon a time there was a " + bytes([65 + i, 65 + j]) for i in range(16) for j in range(16)]
    vocabulary, automaton = Vocabulary(words, []), CountedAutomaton(".*")
    check_walk(lab.TokenTrie(vocabulary), vocabulary, automaton, 0, "256 tokens that begin alike",
               "the state after the bytes of the token")
    num_edges = len({word[:end] for word in words for end in range(1, len(word) + 1)})
    assert automaton.num_calls <= num_edges, (
        f"256 tokens of 31 bytes begin alike. A trie of them has {num_edges} edges. walk called next_state "
        f"{automaton.num_calls} times, at most {num_edges} are allowed: a beginning that several tokens share is read "
        "once")


@pytest.mark.points(2)
def test_task_2_nothing_is_read_after_dead(lab):
    words = [bytes([first]) + b"-long-tail-" + bytes([last]) for first in b"abcdefgh" for last in b"0123456789"]
    vocabulary, automaton = Vocabulary(words, []), CountedAutomaton("c-[a-z-]*7|h")
    trie = lab.TokenTrie(vocabulary)
    check_walk(trie, vocabulary, automaton, 0, "80 tokens with 8 first bytes", "the state after the bytes of the token")
    assert automaton.num_calls <= 32, (
        f"80 tokens begin with 8 different bytes. The expression goes on only after c and h, and after h it ends. walk "
        f"called next_state {automaton.num_calls} times, at most 32 are allowed: 8 for the first bytes, 1 after h, and "
        "21 along the tokens with c. After a byte that leads to DEAD, nothing more of a token is read")


@pytest.mark.points(1)
def test_task_2_a_walk_keeps_nothing(lab):
    vocabulary = make_vocabulary()
    trie, first, second = lab.TokenTrie(vocabulary), CountedAutomaton("ab.*"), CountedAutomaton("(then|12)x")
    for automaton, state in ((first, 0), (second, 0), (first, first.after(0, b"a")), (second, second.after(0, b"12")),
                             (first, 0)):
        check_walk(trie, vocabulary, automaton, state, "two automata walk the same trie in turns",
                   "a walk depends on the automaton and the state that are passed, and on no earlier walk")


@pytest.mark.points(2)
def test_task_2_random_vocabularies(lab):
    rng = random.Random(620)
    for case in range(12):
        words = [bytes(rng.choice(b"ab\xc3\xa9") for _ in range(rng.randrange(5))) for _ in range(40)]
        vocabulary = Vocabulary(words, [rng.randrange(40)], 45)
        automaton = CountedAutomaton(rng.choice(["(a|é)*b", "[^b]{1,3}", "a?b?é", ".+"]))
        trie = lab.TokenTrie(vocabulary)
        for text in (b"", b"a", b"\xc3"):
            state = automaton.after(0, text)
            if state != DEAD:
                check_walk(trie, vocabulary, automaton, state, f"case {case}, tokens {words}, after {text!r}",
                           "the state after the bytes of the token")


@pytest.mark.points(2)
def test_task_2_a_vocabulary_is_read_once(lab):
    vocabulary = CountedVocabulary([b"a", b"ab", b"b", b""], [3])
    first = lab.TokenTrie.of(vocabulary)
    num_reads = vocabulary.num_reads
    assert num_reads > 0, "TokenTrie.of(vocabulary) did not read vocabulary.token_bytes, the bytes of the tokens"
    second = lab.TokenTrie.of(vocabulary)
    got = vocabulary.num_reads
    automaton = CountedAutomaton("ab")
    walks = [[int(state) for state in trie.walk(automaton, 0)] for trie in (first, second)]
    expected = [automaton.after(0, b"a"), automaton.after(0, b"ab"), DEAD, DEAD]
    assert walks == [expected, expected], (
        f"the tokens are a, ab, b and an end; the expression is ab. Two calls of TokenTrie.of(vocabulary), and a walk "
        f"of each: {walks}, expected twice {expected}")
    assert got == num_reads, (
        f"vocabulary.token_bytes was read {num_reads} times by the first call of TokenTrie.of(vocabulary), and "
        f"{got - num_reads} times by the second, expected 0: keep the trie in vocabulary.shared")


@pytest.mark.points(1)
def test_task_2_each_vocabulary_has_its_own_trie(lab):
    first, second = Vocabulary([b"a", b"b"], []), Vocabulary([b"b", b"a", b"ba"], [])
    automaton = CountedAutomaton("ba?")
    after_b, after_ba = automaton.after(0, b"b"), automaton.after(0, b"ba")
    for vocabulary, expected in ((first, [DEAD, after_b]), (second, [after_b, DEAD, after_ba]),
                                 (first, [DEAD, after_b])):
        got = [int(state) for state in lab.TokenTrie.of(vocabulary).walk(automaton, 0)]
        assert got == expected, (f"the tokens are {vocabulary.token_bytes}, the expression is ba?: "
                                 f"TokenTrie.of(vocabulary).walk(automaton, 0) returned {got}, expected {expected}: "
                                 "another vocabulary has another trie")


# ---- Task 3: the grammar


def grammar_of(lab, pattern, vocabulary=None):
    return lab.RegexGrammar(parse_regex(pattern), vocabulary or make_vocabulary())


def ids(text):
    """Return a token for each byte of the text."""
    return [1 + byte for byte in (text if isinstance(text, bytes) else text.encode())]


def after_tokens(grammar, token_ids):
    state = grammar.start
    for token_id in token_ids:
        state = grammar.advance(state, token_id)
    return state


def allowed_ids(grammar, state):
    return {int(token_id) for token_id in np.flatnonzero(np.asarray(grammar.allowed(state)))}


def words_of(token_ids, vocabulary):
    """Return tokens in a form that can be read: the bytes, or the number of a token without bytes."""
    return sorted((vocabulary.token_bytes[token_id] or f"token {token_id}" for token_id in token_ids), key=repr)


def check_allowed(grammar, state, expected, vocabulary, what, rule):
    got = allowed_ids(grammar, state)
    assert got == expected, (
        f"{what}: the mask lacks {words_of(expected - got, vocabulary)} and wrongly allows "
        f"{words_of(got - expected, vocabulary)}: {rule}")


@pytest.mark.points(1)
def test_task_3_the_mask_has_the_tokens_that_lead_somewhere(lab):
    vocabulary = make_vocabulary()
    grammar = grammar_of(lab, "then|ab.", vocabulary)
    expected = {token_id for token_id, word in enumerate(vocabulary.token_bytes)
                if word in (b"t", b"the", b"then", b"a", b"ab", b"abc")}
    check_allowed(grammar, grammar.start, expected, vocabulary, "then|ab., the first token",
                  "a token is allowed if its bytes lead to a state that is not DEAD")


@pytest.mark.points(1)
def test_task_3_a_mask_is_an_array_of_bools_with_a_row_for_each_logit(lab):
    for num_rows in (278, 300, 512):
        mask = grammar_of(lab, "a|b", make_vocabulary(num_rows=num_rows)).allowed(0)
        assert isinstance(mask, np.ndarray) and mask.shape == (num_rows,) and mask.dtype == np.bool_, (
            f"allowed(0) returned {type(mask).__name__} of shape {getattr(mask, 'shape', None)} and type "
            f"{getattr(mask, 'dtype', None)}, expected a numpy array of bools of shape ({num_rows},): one entry for "
            "each row of the logits")
        assert np.flatnonzero(mask).tolist() == ids("ab"), (
            f"a|b with {num_rows} rows: allowed(0) has the tokens {np.flatnonzero(mask).tolist()}, expected "
            f"{ids('ab')}: a and b")


@pytest.mark.points(3)
@pytest.mark.parametrize("texts", [*FINITE, ["then", "the", "ab2024"], ["éét", "été"], ["aéa", "and-02"]],
                         ids=lambda texts: "|".join(texts).encode("ascii", "replace").decode())
def test_task_3_every_mask_of_a_few_texts(lab, texts):
    """Read every beginning of every text, and compare the mask with the texts themselves."""
    vocabulary = make_vocabulary()
    grammar = lab.RegexGrammar(tree_of(texts), vocabulary)
    words = [text.encode() for text in texts]
    for before in sorted({word[:end] for word in words for end in range(len(word) + 1)}):
        expected = {token_id for token_id, token in enumerate(vocabulary.token_bytes)
                    if token and any(word.startswith(before + token) for word in words)}
        expected |= {EOS} if before in words else set()
        check_allowed(grammar, after_tokens(grammar, ids(before)), expected, vocabulary,
                      f"the texts are {texts}, and the output so far is {before!r}",
                      "a token is allowed exactly if one of the texts goes on with its bytes, and the end exactly if "
                      "the output is one of the texts")


@pytest.mark.points(2)
def test_task_3_a_token_may_span_parts_of_the_expression(lab):
    vocabulary = make_vocabulary()
    for pattern, before, wanted, unwanted in (
            ("(ab)*c", "", [b"ab", b"abab", b"abc", b"a", b"c"], [b"bab", b"b", b"an"]),
            ("(ab)*c", "a", [b"b", b"bab"], [b"ab", b"abc", b"a"]),
            (r"\((a|b|c)*\)", "(a", [b"c)", b"ab", b"bab"], [b"12"]),
            (r"\d\d-\d\d", "1", [b"1"], [b"12", b"2024"]),
            (r"\d{4}(-\d\d)?", "", [b"12", b"2024"], [b"-0"]), (r"\d{4}(-\d\d)?", "2024", [b"-", b"-0"], [b"12"]),
            ("t(h(e(n)?)?)?", "", [b"t", b"the", b"then"], [b"ab"])):
        grammar = grammar_of(lab, pattern, vocabulary)
        got = allowed_ids(grammar, after_tokens(grammar, ids(before)))
        for words, is_wanted in ((wanted, True), (unwanted, False)):
            for word in words:
                token_id = vocabulary.token_bytes.index(word)
                assert (token_id in got) is is_wanted, (
                    f"{pattern}, after {before!r}: the token {word!r} is{'' if token_id in got else ' not'} allowed, "
                    f"expected the opposite: a token may cover several characters, and the end of a group or of a "
                    "repetition, if all of its bytes lead on")


@pytest.mark.points(2)
def test_task_3_a_token_may_begin_and_end_inside_of_a_character(lab):
    vocabulary = make_vocabulary()
    grammar = grammar_of(lab, "(é|😀!)t?", vocabulary)
    token = vocabulary.token_bytes.index
    check_allowed(grammar, 0, {token(b"\xc3"), token(b"\xf0"), token(b"\xf0\x9f"), token("ét".encode())}, vocabulary,
                  "(é|😀!)t?, the first token", "a token may end inside of a character, if the character can go on")
    inside_e, inside_face = after_tokens(grammar, [token(b"\xc3")]), after_tokens(grammar, [token(b"\xf0")])
    check_allowed(grammar, inside_e, {1 + 0xA9, 257 + WORDS.index(b"\xa9")}, vocabulary, "(é|😀!)t?, after the byte C3",
                  "the output ends inside of é, so only tokens that go on with A9 are allowed: there are two. The text "
                  "cannot end here")
    check_allowed(grammar, inside_face, {token(b"\x9f"), token(b"\x9f\x98\x80!")}, vocabulary,
                  "(é|😀!)t?, after the byte F0", "a token may begin inside of a character and go on after it")
    state = grammar.advance(inside_face, token(b"\x9f\x98\x80!"))
    check_allowed(grammar, state, {EOS, token(b"t")}, vocabulary, "(é|😀!)t?, after F0 and 9F 98 80 21",
                  "the two tokens together are 😀!")


@pytest.mark.points(2)
@pytest.mark.parametrize("eos", [(0,), (0, 258), (258, 299), (0, 5, 40, 270)])
def test_task_3_the_end_is_allowed_exactly_where_the_output_matches(lab, eos):
    vocabulary = make_vocabulary(eos=eos)
    grammar = grammar_of(lab, "xyz?|w+", vocabulary)
    for text, matches in (("", False), ("x", False), ("xy", True), ("xyz", True), ("w", True), ("www", True)):
        mask = grammar.allowed(after_tokens(grammar, ids(text)))
        got = [token_id for token_id in eos if mask[token_id]]
        assert got == (list(eos) if matches else []), (
            f"xyz?|w+, after {text!r}, which {'matches' if matches else 'does not match'}: of the ends of a text, "
            f"tokens {list(eos)}, {got} are allowed, expected {'all' if matches else 'none'}: the text may end exactly "
            "if it matches, with any of its ends")


@pytest.mark.points(2)
def test_task_3_tokens_without_bytes_are_never_allowed(lab):
    vocabulary = make_vocabulary()
    empty = {token_id for token_id, word in enumerate(vocabulary.token_bytes) if not word} - {EOS}
    grammar = grammar_of(lab, "(.|\n)*", vocabulary)
    for text in ("", "a", "aé"):
        state = after_tokens(grammar, ids(text))
        got = allowed_ids(grammar, state)
        assert set(ids("abc")) | {EOS} <= got, (f"(.|\\n)* matches every text. After {text!r}, the mask has {len(got)} "
                                                "tokens, but not all of a, b, c and the end")
        assert not got & empty, (f"after {text!r}, rows {sorted(got & empty)} are allowed. They have no bytes: special "
                                 "tokens, and rows after the last token. The output would not become longer, and the "
                                 "request might never end")
        wrong = [token_id for token_id in sorted(empty) if grammar.advance(state, token_id) != DEAD]
        assert not wrong, f"after {text!r}, advance with token {wrong[:1]}, which has no bytes, must return DEAD"


@pytest.mark.points(2)
def test_task_3_a_token_leads_to_the_state_after_its_bytes(lab):
    vocabulary = make_vocabulary()
    for pattern, before in (("(ab|an|é|then)*", b""), ("(ab|an|é|then)*", b"a"), (".{1,8}", b"x"), (".{1,8}", b"\xf0"),
                            (r"\d{6}(-0\d)?", b"20"), (".*!", b"")):
        grammar = grammar_of(lab, pattern, vocabulary)
        state = after_tokens(grammar, ids(before))
        assert isinstance(state, (int, np.integer)) and state != DEAD, (
            f"{pattern}: advance with a token for each byte of {before!r} returned {state!r}, expected a state")
        for token_id, word in enumerate(vocabulary.token_bytes):
            if len(word) > 1:
                got, expected = grammar.advance(state, token_id), after_tokens(grammar, ids(before + word))
                assert got == expected, (
                    f"{pattern}, after {before!r}: advance with the token {word!r} returned {got}; with one token for "
                    f"each of its bytes, the state is {expected}. Both must be the same")


@pytest.mark.points(1)
def test_task_3_a_token_that_is_not_allowed_leads_to_dead(lab):
    grammar = grammar_of(lab, "ab?")
    after_a = after_tokens(grammar, ids("a"))
    assert after_a != DEAD, "ab?: advance from the first state with the token a returned DEAD"
    for state, token_id, what in ((0, ids("x")[0], "x at the beginning"), (0, ids("b")[0], "b at the beginning"),
                                  (after_a, ids("a")[0], "a after a"), (DEAD, ids("a")[0], "a in the state DEAD"),
                                  (DEAD, EOS, "the end in the state DEAD")):
        got = grammar.advance(state, token_id)
        assert got == DEAD, f"ab?: advance with {what} returned {got}, expected DEAD, -1"
    assert says(grammar.is_accepting(DEAD), False) and says(grammar.is_complete(DEAD), False), (
        f"is_accepting(DEAD) returned {grammar.is_accepting(DEAD)}, is_complete(DEAD) {grammar.is_complete(DEAD)}, "
        "expected False for both")


@pytest.mark.points(1)
def test_task_3_the_end_of_a_text_leads_nowhere_new(lab):
    grammar = grammar_of(lab, "ab?", make_vocabulary(eos=(EOS, 260)))
    after_a, after_ab = after_tokens(grammar, ids("a")), after_tokens(grammar, ids("ab"))
    for eos in (EOS, 260):
        got = [grammar.advance(state, eos) for state in (0, after_a, after_ab)]
        assert got == [DEAD, after_a, after_ab], (
            f"ab?: advance with the end of the text, token {eos}, from the states before a, after a ({after_a}) and "
            f"after ab ({after_ab}) returned {got}, expected {[DEAD, after_a, after_ab]}: where the end is allowed, "
            "the state stays, and elsewhere it is DEAD")


@pytest.mark.points(2)
@pytest.mark.parametrize("pattern, text, accepts, completes", [
    ("ab?", "", False, False), ("ab?", "a", True, False), ("ab?", "ab", True, True), ("a*", "", True, False),
    ("a*", "aaa", True, False), ("", "", True, True), ("a{2,3}", "aa", True, False), ("a{2,3}", "aaa", True, True),
    ("yes|no", "no", True, True), ("yes|no", "ye", False, False), (DATE, "2024-02-2", False, False),
    (DATE, "2024-02-29", True, True), ("é?", "", True, False), ("é", "é", True, True)])
def test_task_3_accepting_and_complete(lab, pattern, text, accepts, completes):
    grammar = grammar_of(lab, pattern, make_vocabulary(eos=(EOS, 260)))  # two tokens that end a text
    state = after_tokens(grammar, ids(text))
    got = grammar.is_accepting(state), grammar.is_complete(state)
    assert says(got[0], accepts) and says(got[1], completes), (
        f"{pattern!r}, after {text!r}: is_accepting and is_complete returned {got}, expected {(accepts, completes)}: "
        "an output is complete if it matches and nothing can follow")


@pytest.mark.points(1)
def test_task_3_inside_of_a_character_nothing_is_complete(lab):
    grammar = grammar_of(lab, "aé?")
    got = [(grammar.is_accepting(state), grammar.is_complete(state))
           for state in (after_tokens(grammar, ids(text)) for text in (b"a", b"a\xc3", b"a\xc3\xa9"))]
    assert got == [(True, False), (False, False), (True, True)], (
        f"aé?: (is_accepting, is_complete) after a, after a and the first byte of é, and after aé: {got}, expected "
        "[(True, False), (False, False), (True, True)]")


@pytest.mark.points(2)
def test_task_3_requests_share_a_grammar(lab):
    """Let four outputs grow in turns, and compare each with an output that grows alone."""
    rng, vocabulary = random.Random(63), make_vocabulary()
    pattern = "((the|then) ?(ab|é|12)*-)*"
    shared = grammar_of(lab, pattern, vocabulary)
    states, outputs = [shared.start] * 4, [[], [], [], []]
    for _ in range(80):
        which = rng.randrange(4)
        token_id = rng.choice(sorted(allowed_ids(shared, states[which]) - {EOS}))
        states[which] = shared.advance(states[which], token_id)
        outputs[which].append(token_id)
    for state, output in zip(states, outputs):
        text = b"".join(vocabulary.token_bytes[token_id] for token_id in output)
        alone = grammar_of(lab, pattern, vocabulary)
        expected = allowed_ids(alone, after_tokens(alone, output))
        check_allowed(shared, state, expected, vocabulary,
                      f"{pattern}: four requests share a grammar; the output of this one is {text!r}",
                      "a state is all that a grammar knows of a request. It must not remember which token came last")


@pytest.mark.points(1)
def test_task_3_states_can_be_asked_in_any_order(lab):
    vocabulary = make_vocabulary()
    pattern, text = "(and|ab) [0-9]{2,4}", "and 2024"
    forwards, backwards = grammar_of(lab, pattern, vocabulary), grammar_of(lab, pattern, vocabulary)
    states = [after_tokens(forwards, ids(text[:end])) for end in range(len(text) + 1)]
    masks = [allowed_ids(forwards, state) for state in states]
    assert masks[0] == {1 + ord("a"), *(257 + WORDS.index(word) for word in (b"an", b"and", b"ab")),
                        257 + len(WORDS) - 3}, f"{pattern}: the first mask allows {words_of(masks[0], vocabulary)}"
    later = [after_tokens(backwards, ids(text[:end])) for end in range(len(text), -1, -1)]
    got = [allowed_ids(backwards, state) for state in later][::-1]
    assert got == masks, (f"{pattern}: the masks along {text!r} differ if they are asked for from the last to the "
                          "first: the mask of a state does not depend on what was asked before")
    again = [allowed_ids(forwards, state) for state in states]
    assert again == masks, f"{pattern}: the masks along {text!r} differ when they are asked for again"


@pytest.mark.points(1)
def test_task_3_grammars_do_not_share_masks(lab):
    vocabulary = make_vocabulary()
    first, second = grammar_of(lab, "a", vocabulary), grammar_of(lab, "12|b", vocabulary)
    token = vocabulary.token_bytes.index
    for grammar, expected, pattern in ((first, {token(b"a")}, "a"),
                                       (second, {token(b"1"), token(b"12"), token(b"b")}, "12|b"),
                                       (first, {token(b"a")}, "a")):
        check_allowed(grammar, 0, expected, vocabulary, f"{pattern}, one of two grammars with the same vocabulary",
                      "grammars share the trie, and not the masks: state 0 of another expression is another state")


@pytest.mark.points(2)
def test_task_3_grammars_share_the_trie(lab):
    vocabulary = CountedVocabulary([b"", *(bytes([byte]) for byte in range(256)), b"ab"], [EOS])
    first = grammar_of(lab, "ab|c", vocabulary)
    check_allowed(first, 0, {*ids("ac"), 257}, vocabulary, "ab|c", "a, ab and c lead on")
    vocabulary.num_reads = 0
    second = grammar_of(lab, "b|d", vocabulary)
    got, num_reads = allowed_ids(second, 0), vocabulary.num_reads
    assert got == set(ids("bd")), f"b|d, the second grammar: {sorted(got)} are allowed, expected {ids('bd')}"
    assert num_reads == 0, (f"a second grammar with the same vocabulary read vocabulary.token_bytes {num_reads} times, "
                            "expected 0: the trie of a vocabulary is built once, by TokenTrie.of")


@pytest.mark.points(2)
@pytest.mark.inside("the lines of a call can be counted only in the process that runs them")
def test_task_3_a_mask_is_computed_once(lab):
    grammar = grammar_of(lab, r"\w+")
    states = [grammar.start, after_tokens(grammar, ids("a"))]
    for state in states:
        assert len(allowed_ids(grammar, state)) > 60, f"\\w+: state {state} allows fewer than 60 tokens"
    num_run, _ = cheapest(grammar.allowed, [(state,) for state in states * 3])
    assert num_run <= 15, (f"\\w+: the masks of the states {states} were asked for before. The cheapest of six further "
                           f"calls of allowed, in turns, ran {num_run} lines of Python, at most 15 are allowed: keep "
                           "the mask of each state")


@pytest.mark.points(1)
def test_task_3_a_caller_cannot_spoil_a_mask(lab):
    grammar = grammar_of(lab, "ab|c")
    expected = allowed_ids(grammar, 0)
    assert set(ids("ac")) <= expected, "ab|c: a and c must be allowed"
    for value in (False, True):
        mask = grammar.allowed(0)
        try:
            mask[:] = value
        except ValueError:
            pass  # it cannot be written to: that is one way
        got = allowed_ids(grammar, 0)
        assert got == expected, (
            f"ab|c: a caller wrote {value} into the array that allowed(0) had returned. Now allowed(0) has {len(got)} "
            f"tokens, expected {len(expected)} as before: all requests share the mask. Return a copy, or make the "
            "array read-only with mask.flags.writeable = False")


WALKS = [r"(a|bc)*d?", r"\w+", "[^a]é?", ".{1,3}", "(the|then)?n*", r"\d{2,4}(-\d\d)?", "(é|😀!)*t", "(ab|abc)(c|d)?",
         DATE]


@pytest.mark.points(3)
@pytest.mark.parametrize("pattern", WALKS)
def test_task_3_a_random_walk_through_the_masks_matches(lab, pattern):
    rng, vocabulary = random.Random(64), make_vocabulary()
    grammar = grammar_of(lab, pattern, vocabulary)
    num_matches = 0
    for _ in range(25):
        state, output = grammar.start, b""
        for _ in range(12):
            choices = sorted(allowed_ids(grammar, state))
            assert choices, (f"{pattern}: after {output!r}, no token is allowed, not even the end: an output that was "
                             "allowed so far can always go on or end")
            token_id = rng.choice(choices)
            if token_id == EOS:
                break
            output += vocabulary.token_bytes[token_id]
            state = grammar.advance(state, token_id)
            assert state != DEAD, f"{pattern}: an allowed token led to DEAD; the output is {output!r}"
        expected = is_match(pattern, output)
        num_matches += expected
        assert says(grammar.is_accepting(state), expected), (
            f"{pattern}: random allowed tokens gave the output {output!r}; is_accepting says "
            f"{grammar.is_accepting(state)}, and re.fullmatch says {expected}")
    assert num_matches > 2, f"{pattern}: only {num_matches} of 25 outputs matched, expected more than 2"


def is_match(pattern, output):
    try:
        return bool(re.fullmatch(pattern, output.decode(), re.ASCII))
    except UnicodeDecodeError:  # it ends inside of a character
        return False


@pytest.mark.points(2)
def test_task_3_a_text_that_matches_can_be_spelled_in_every_way(lab):
    rng, vocabulary = random.Random(65), make_vocabulary()
    by_bytes = {word: token_id for token_id, word in enumerate(vocabulary.token_bytes) if word}
    for pattern, text in ((r"(a|an|and|b)*\)?", "andababand"), ("(é|t)*", "étététéé"), ("[^x]+", "then 12😀!-02024"),
                          (DATE, "2024-02-12"), (".*", "abcab aéa😀!c)")):
        grammar = grammar_of(lab, pattern, vocabulary)
        for _ in range(10):
            rest, state, spelled = text.encode(), grammar.start, []
            while rest:
                word = rng.choice([rest[:size] for size in range(1, 6) if rest[:size] in by_bytes])
                assert by_bytes[word] in allowed_ids(grammar, state), (
                    f"{pattern} matches {text!r}, but after {spelled} the token {word!r} is not allowed: every way to "
                    "split the text into tokens is possible")
                state, rest = grammar.advance(state, by_bytes[word]), rest[len(word):]
                spelled.append(word)
            assert says(grammar.is_accepting(state), True), f"{pattern}: {text!r}, spelled {spelled}, was not accepted"


# ---- Task 4: the mask in the sampler


def masks_of(*rows):
    return [None if row is None else np.array(row, dtype=np.bool_) for row in rows]


def kept(lab, logits, masks, dtype=None):
    """Call ``keep_allowed``, check the shape and the type, and return the result as a list of lists."""
    logits = mx.array(np.array(logits, dtype=np.float32)) if dtype is None else mx.array(logits).astype(dtype)
    got = lab.keep_allowed(logits, masks)
    assert isinstance(got, mx.array) and got.shape == logits.shape and got.dtype == logits.dtype, (
        f"keep_allowed(logits {logits.shape} of {logits.dtype}, …) returned {type(got).__name__} of shape "
        f"{getattr(got, 'shape', None)} and type {getattr(got, 'dtype', None)}, expected the shape and type of the "
        "logits")
    return got.tolist()


def check_kept(got, expected, rule):
    same = len(got) == len(expected) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for x, y in zip(got, expected) for a, b in zip(x, y))
    assert same, f"keep_allowed returned {got}, expected {expected}: {rule}"


@pytest.mark.points(1)
def test_task_4_tokens_that_are_not_allowed_get_minus_infinity(lab):
    got = kept(lab, [[1.0, -2.0, 3.0, 0.0]], masks_of([1, 0, 0, 1]))
    check_kept(got, [[1.0, -math.inf, -math.inf, 0.0]], "tokens 1 and 2 are not allowed; the others keep their logits")
    got = kept(lab, [[-5.0, -7.5, 1e9]], masks_of([1, 1, 0]))
    check_kept(got, [[-5.0, -7.5, -math.inf]], "the allowed tokens keep their logits, even if these are negative")


@pytest.mark.points(2)
def test_task_4_each_row_has_its_own_mask(lab):
    logits = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
    got = kept(lab, logits, masks_of([1, 0, 0], [0, 1, 1], [1, 1, 0]))
    check_kept(got, [[1.0, -math.inf, -math.inf], [-math.inf, 5.0, 6.0], [7.0, 8.0, -math.inf]], "row i has masks[i]")


@pytest.mark.points(2)
@pytest.mark.parametrize("masks", [(None, [1, 0, 1], None), ([0, 1, 0], None, [1, 1, 0]), (None, None, [0, 0, 1]),
                                   (None, None, None)])
def test_task_4_a_row_without_a_mask_is_free(lab, masks):
    logits = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, -math.inf, 9.0]]
    expected = [[value if mask is None or mask[i] else -math.inf for i, value in enumerate(row)]
                for row, mask in zip(logits, masks)]
    check_kept(kept(lab, logits, masks_of(*masks)), expected,
               f"the masks are {masks}. A row whose mask is None is as before, whatever the other rows have")
    check_kept(kept(lab, [[1.0, 2.0]], masks_of([0, 1])), [[-math.inf, 2.0]], "the mask allows only token 1")


@pytest.mark.points(1)
def test_task_4_minus_infinity_stays(lab):
    got = kept(lab, [[-math.inf, 1.0, -math.inf, 2.0]], masks_of([1, 1, 0, 0]))
    check_kept(got, [[-math.inf, 1.0, -math.inf, -math.inf]],
               "token 0 is allowed by the mask and was ruled out before, for example by min_tokens: it stays -inf")


@pytest.mark.points(2)
def test_task_4_a_mask_wins_over_every_logit(lab):
    huge = float(np.finfo(np.float32).max)
    got = kept(lab, [[math.inf, 1.0], [math.nan, 2.0], [huge, -huge], [-huge, 3.0]], masks_of(*[[0, 1]] * 4))
    check_kept(got, [[-math.inf, 1.0], [-math.inf, 2.0], [-math.inf, -huge], [-math.inf, 3.0]],
               "a token that is not allowed has -inf, whatever its logit was. (inf - inf is NaN, and so is NaN plus "
               "anything)")


@pytest.mark.points(1)
def test_task_4_the_arguments_are_unchanged(lab):
    values = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    logits, masks = mx.array(values), masks_of([1, 0, 1], None)
    check_kept(lab.keep_allowed(logits, masks).tolist(), [[1.0, -math.inf, 3.0], [4.0, 5.0, 6.0]],
               "token 1 of row 0 is not allowed")
    assert logits.tolist() == values, f"keep_allowed changed the logits from {values} to {logits.tolist()}"
    assert masks[0].tolist() == [True, False, True] and masks[1] is None, (
        f"keep_allowed changed the masks to {masks}: all requests with the same state share a mask")
    check_kept(lab.keep_allowed(logits, masks).tolist(), [[1.0, -math.inf, 3.0], [4.0, 5.0, 6.0]],
               "the same call again gives the same result")


@pytest.mark.points(1)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=["float32", "float16", "bfloat16"])
def test_task_4_the_type_stays(lab, dtype):
    check_kept(kept(lab, [[1.0, 2.0], [3.0, 4.0]], masks_of([0, 1], None), dtype), [[-math.inf, 2.0], [3.0, 4.0]],
               "the result has the type of the logits")


@pytest.mark.points(1)
def test_task_4_masks_that_cannot_be_written_to(lab):
    mask = np.array([False, True, True])
    mask.flags.writeable = False
    check_kept(kept(lab, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [mask, mask]),
               [[-math.inf, 2.0, 3.0], [-math.inf, 5.0, 6.0]],
               "two requests in the same state have the same mask, which may be read-only")


def decode(lab, grammars, vocabulary, seeds, max_tokens=24):
    """Decode one output per seed with made-up logits; a grammar of None leaves its output free."""
    states = [None if grammar is None else grammar.start for grammar in grammars]
    outputs, done = [[] for _ in seeds], [False] * len(seeds)
    for position in range(max_tokens):
        logits = np.stack([np.random.default_rng([seed, position]).normal(size=NUM_ROWS) for seed in seeds])
        masks = [None if grammar is None or done[i] else grammar.allowed(states[i])
                 for i, grammar in enumerate(grammars)]
        chosen = mx.argmax(lab.keep_allowed(mx.array(logits.astype(np.float32)), masks), axis=-1).tolist()
        for i, token_id in enumerate(chosen):
            if done[i]:
                continue
            if grammars[i] is None:
                outputs[i].append(token_id)
            elif token_id == EOS:
                done[i] = True
            else:
                outputs[i].append(token_id)
                states[i] = grammars[i].advance(states[i], token_id)
                done[i] = grammars[i].is_complete(states[i])
    return outputs, done


@pytest.mark.points(3)
@pytest.mark.parametrize("pattern", [DATE, "(yes|no|not sure)( 😀)?", "[1-9][0-9]{0,3}", "(é|ab|then){2,4}",
                                     r"\{(12|ab|2024)(,(12|ab)){0,3}\}"])
def test_task_4_every_output_matches(lab, pattern):
    vocabulary = make_vocabulary()
    grammar = grammar_of(lab, pattern, vocabulary)
    outputs, done = decode(lab, [grammar] * 12, vocabulary, range(12))
    texts = [b"".join(vocabulary.token_bytes[token_id] for token_id in output) for output in outputs]
    for text, has_ended in zip(texts, done):
        assert has_ended and is_match(pattern, text), (
            f"twelve outputs with made-up logits, and the masks of {pattern}: {text!r} has"
            f"{'' if has_ended else ' not'} ended, and re.fullmatch says {is_match(pattern, text)}. Every output must "
            "end and match")
    assert len(set(texts)) > 2, f"{pattern}: all outputs are among {set(texts)}, expected more than 2 different ones"


@pytest.mark.points(2)
def test_task_4_free_requests_of_the_batch_are_unaffected(lab):
    vocabulary = make_vocabulary()
    date, number = grammar_of(lab, DATE, vocabulary), grammar_of(lab, "[1-9][0-9]{2}", vocabulary)
    alone = [np.argmax(np.random.default_rng([7, position]).normal(size=NUM_ROWS).astype(np.float32)).item()
             for position in range(24)]
    (first, free, second), _ = decode(lab, [date, None, number], vocabulary, [3, 7, 5])
    texts = [b"".join(vocabulary.token_bytes[token_id] for token_id in output) for output in (first, second)]
    assert is_match(DATE, texts[0]) and is_match("[1-9][0-9]{2}", texts[1]), (
        f"a date, a free output and a number in one batch: the first and the last are {texts}")
    assert free == alone, (f"between a date and a number, the free output has the tokens {free}. Without a mask they "
                           f"are {alone}: a request without a mask gets the tokens that it would get alone")
