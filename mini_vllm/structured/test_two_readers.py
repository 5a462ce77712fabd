"""The engine's automaton and the server's parser read expressions alike: the same masks, or the same refusal."""

import numpy as np
import pytest

from mini_vllm.structured.automaton import DEAD, MAX_STATES
from mini_vllm.structured.compiler import GrammarCompiler
from mini_vllm.structured.grammar import RegexGrammar
from mini_vllm.structured.guided import MAX_FORCED_BYTES, GuidedExpression
from mini_vllm.structured.params import MAX_CHOICE_BYTES, StructuredOutputsParams
from mini_vllm.structured.regex_tree import MAX_DEPTH
from mini_vllm.structured.vocabulary import Vocabulary

VOCABULARY = Vocabulary.of_bytes()
READERS = [GrammarCompiler(lambda: VOCABULARY, part) for part in (RegexGrammar, GuidedExpression)]
#: With these tokens, a text that is the only possible one has several spellings; the parser allows only the model's.
WORDS = Vocabulary([*VOCABULARY.token_bytes[:256], b"the", b"ab", b"abc", b"12", b"-0", b"\xc3\xa9t", b"\xf0\x9f",
                    b"a\xc3", b"\r\n", b" a", b"aaaa", b""], [267])
WORDY_READERS = [GrammarCompiler(lambda: WORDS, part) for part in (RegexGrammar, GuidedExpression)]

PLAIN = r"""
abc|a|ab|a b|é|😀|日本|ß|x-y|a_b|"q"|<b>|a,b;c|#|a#b|~|`|'|&&|a&b|%|=|!|@|/|a/b|:|☃
""".strip().split("|")
DIALECT = [
    # anchors
    "^a", "a$", "^a$", "^$", "^", "$", "a^", "$a", "a^b", "a$b", "^^a", "a$$", "(^a)", "(a$)", "a|^b", "^a|b", r"\Aa",
    r"a\Z", r"a\z", r"\ba", r"a\b", r"\Ba", r"\b", r"[\b]", "^*", "$?",
    # the dot and newlines
    ".", "..", ".*", "a.b", r"(.|\n)*", r"[^\n]", r"\n", "\n", "a\nb", r"\r\n", r"\R", r"\N", r"[^a]", r"\x0a",
    "(?s).", "\r", "\u2028", r".\.", "[.]",
    # classes and Unicode
    r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\d{3}", r"\w+", r"\s+a", r"[\d]", r"[^\d]", r"[\w-]", r"[\d-z]",
    r"[^\s]a", r"[\D\S]", r"\h", r"\v", r"\pL", r"\p{L}", r"\P{Lu}", r"[\p{L}]", r"\X", r"\é", "[é-ü]", "[^é]",
    "[а-я]+", "[😀-😂]", "[α-ω]{1,2}", r"\u00e9", r"\u{e9}", r"\x{e9}", r"\xe9", r"\U0001F600", r"\ud800",
    r"[\ud800-\udfff]", r"\x7f", r"\0", r"\07", r"\e", r"\cA", r"\a", r"\f\v\t", r"[^\x00-\U0010FFFF]",
    r"[\x00-\U0010FFFF]", "K", "ſ", "İ",
    # POSIX classes and set operations
    "[[:alpha:]]", "[[:digit:]]+", "[:alpha:]", "[[a]]", "[a[b]]", "[a&&b]", "[a--b]", "[a~~b]", "[a||b]", "[[.a.]]",
    "[a-c&&b-d]", "[&&]", "[~~]", "[--a]",
    # brackets
    "[abc]", "[]a]", "[^]a]", "[]", "[^]", "[a-]", "[-a]", "[a-c-e]", "[b-a]", "[a-a]", r"[\]]", r"[\[]", "[[]", "[a",
    "]", "a]", "[^^]", "[a^]", r"[\-]", r"[a\-z]", "[ -~]", "[.-/]", "[#]", "[ ]", "{", "}", "a{", "a{}", "a{,}",
    "a{x}", "a{1", "a{1,x}", "{1}",
    # repetitions
    "a*", "a+", "a?", "a{2}", "a{2,}", "a{1,3}", "a{,2}", "a{0}", "a{0,0}", "a{3,2}", "a**", "a*+", "a++", "a?+",
    "a*?", "a+?", "a??", "a{1,2}?", "a{2}?", "a{2}+", "*", "*a", "a|*", "(a*)*", "(a?)*", "(a*)+", "(a{2}){2,3}",
    "a{1}{2}", "a{ 1}", "a{1, 2}", "(ab)*?c", "(a|b)*abb", "(a+)+b", "(a?){20}a{20}", "a{100}", "a{1000}", "a{9999}",
    "a{99999}", "a{999999}", "a{9999999}", ".{1000}", ".{1,9999}", "(a{100}){100}", "(a{0,99}){99}", "((){999}){999}",
    "((a|b){9}){9}", "a{0,8190}", "a{0,8192}", r"\W{1000}", r"\W{1100}",
    # groups, look-around, references, flags
    "(a)", "(?:a)", "(?P<n>a)", "(?<n>a)", "(?P<1>a)", "(?'n'a)", "(?P=n)", "()", "(?:)", "(a", "a)", "(?", "(?:",
    "(?>a)", "(?|a)", "(?#c)a", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "a(?=b)b", "a(?!b)", r"(a)\1",
    r"(?P<n>a)(?P=n)", r"\k<n>", r"\g1", r"\g<1>", "(?i)a", "(?i:a)", "(?x) a", "(?m)^a$", "(?u)a", "(?-u)a", "(?a)a",
    "(?U)a*", "a(?i)b", "(?(1)a)", "(?R)", "(*UTF8)a", "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH,
    "(a|b" * MAX_DEPTH + ")*" * MAX_DEPTH, "(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1),
    # empty alternatives
    "a|", "|a", "|", "||", "a||b", "(|a)", "(a|)b", "(|)", "(a|b|)*", "a(|b)c",
    # escapes
    r"\.", r"\*", r"\\", r"\/", r"\-", r"\ ", r"\"", r"\#", r"\&", r"\~", r"\<", r"\>", r"\@", r"\_", r"\z", r"\q",
    r"\Qa\E", "\\", r"\x4", r"\xg0", r"\u12", "a\\", r"\x00", "\x00", "\x1b", "\ufeff", "\u00a0",
]
EXPRESSIONS = [*PLAIN, *DIALECT]
#: Texts that dialects treat differently, besides those of a walk through the masks.
TEXTS = ["", "\n", "\r", "\u2028", "a\n", "\na", "é", "\u0663", "\u00aa", "\u00a0", "\u017f", "K", "k", "A", "aa",
         "aab", "ab", "1", "_", "\x0b", "\x1c", "\x85", "^", "$", "&", "-", "alpha", "~", "{", "a{", "]", "[a]", "a]",
         "x", "😁", "я"]


def read(compiler, params):
    """Return the grammar, or the message of the refusal."""
    try:
        return compiler.compile(params).grammar
    except ValueError as error:
        return str(error)


def check_masks(grammars, states, may_differ=False):
    """Compare the masks in these states of both, and return the parser's."""
    ours, theirs = (grammar.allowed(state) for grammar, state in zip(grammars, states))
    assert theirs.any() and not (theirs & ~ours).any() and (may_differ or (ours == theirs).all())
    return theirs


def follow(grammars, text):
    """Follow a text in both as far as it matches, and compare all masks on the way."""
    states = [grammar.start for grammar in grammars]
    check_masks(grammars, states)
    for byte in text.encode():
        states = [grammar.advance(state, byte) for grammar, state in zip(grammars, states)]
        assert (states[0] == DEAD) == (states[1] is None)
        if states[1] is None:
            return
        check_masks(grammars, states)
        for question in ("is_accepting", "is_complete"):
            assert getattr(grammars[0], question)(states[0]) == getattr(grammars[1], question)(states[1]), question


def walk(grammars, seed, may_differ):
    """Follow a text that is drawn from the masks."""
    random, states = np.random.default_rng(seed), [grammar.start for grammar in grammars]
    for _ in range(12):
        choices = np.flatnonzero(check_masks(grammars, states, may_differ)[:-1])
        if not len(choices):
            break
        token_id = int(random.choice(choices))
        states = [grammar.advance(state, token_id) for grammar, state in zip(grammars, states)]


def test_there_are_enough_expressions():
    assert len(set(EXPRESSIONS)) == len(EXPRESSIONS) >= 200


@pytest.mark.parametrize("pattern", EXPRESSIONS, ids=lambda pattern: ascii(pattern)[:40])
def test_both_readers_give_the_same_masks_or_the_same_refusal(pattern):
    params = StructuredOutputsParams(regex=pattern)
    ours, theirs = (read(compiler, params) for compiler in READERS)
    if isinstance(ours, str) or isinstance(theirs, str):
        assert ours == theirs
        return
    for text in TEXTS:
        follow([ours, theirs], text)
    wordy = [read(compiler, params) for compiler in WORDY_READERS]
    for seed in range(4):
        walk([ours, theirs], seed, may_differ=False)
        walk(wordy, seed, may_differ=True)


def test_only_an_automaton_that_would_have_too_many_states_is_refused_by_the_engine_alone():
    params = StructuredOutputsParams(regex="(a|b)*a(a|b){20}")
    ours, theirs = (read(compiler, params) for compiler in READERS)
    assert ours == f"structured_outputs.regex: the expression needs more than {MAX_STATES} states"
    assert np.flatnonzero(theirs.allowed(theirs.start)).tolist() == [*b"ab"]


@pytest.mark.parametrize("texts", [
    ["yes", "no"], ["a.b", "a|b", "(", "[x]", "\\d", "{2}"], ["é", "è", "日本"], ["a", "ab", "abc"],
    ["\n", " ", "\x00"],
    [f"{number:07}" for number in range(1024)], ["x" * MAX_CHOICE_BYTES], ["é" * (MAX_CHOICE_BYTES // 2)],
    [chr(0x4E00 + number) * 2 + "a" for number in range(1024)]], ids=len)
def test_both_readers_give_the_same_masks_for_choices(texts):
    params = StructuredOutputsParams(choice=texts)
    grammars = [read(compiler, params) for compiler in READERS]
    for text in [*texts[:3], texts[-1][:50], "x"]:
        follow(grammars, text[:200])


def test_a_choice_of_too_many_bytes_is_refused_before_anything_is_prepared():
    with pytest.raises(ValueError, match="1 texts of 8002 bytes .* at most 8000 bytes together"):
        StructuredOutputsParams(choice=["é" * (MAX_CHOICE_BYTES // 2 + 1)])


def test_a_long_text_that_is_the_only_possible_one_is_not_split_again_for_every_token(monkeypatch):
    monkeypatch.setattr(Vocabulary, "tokens_of", lambda self, text: split.append(text) or [*text.encode()])
    split = []
    grammar = read(GrammarCompiler(Vocabulary.of_bytes, GuidedExpression), StructuredOutputsParams(choice=["é" * 3000]))
    grammar.allowed(grammar.advance(grammar.start, "é".encode()[0]))
    assert split and max(map(len, split)) <= MAX_FORCED_BYTES
