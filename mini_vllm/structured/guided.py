"""JSON schemas, grammars and a server's expressions, with ``llguidance``: a parser instead of a ``RegexGrammar``.

A parser's state is not a number. A state here is a node in a tree of the tokens that requests with this grammar got:
forked sequences, and requests with the same beginning, meet in the same nodes and share their masks. A node lives as
long as a sequence is there.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from time import thread_time
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from mini_vllm.checks import check_installed
from mini_vllm.structured.automaton import check_size
from mini_vllm.structured.grammar import Mask
from mini_vllm.structured.params import StructuredOutputsParams
from mini_vllm.structured.regex_tree import Characters, Either, InOrder, Node
from mini_vllm.structured.schemas import GrammarError, check_schema, place_of_error
from mini_vllm.structured.vocabulary import Vocabulary

#: One text for each value: models rarely end a text in which they may add any number of spaces.
#: And one spelling for each character: the library does not see that "\\u0061" is the name of the property "a".
JSON_OPTIONS = {"whitespace_flexible": False, "json_allowed_escapes": '"\\bfnrt'}
#: These bound memory. Ambiguous grammars have more items with every token.
MAX_LEXER_FUEL, MAX_STEP_FUEL, MAX_STEP_ITEMS, MAX_GRAMMAR_SIZE = 1_000_000, 200_000, 5_000, 100_000
MAX_LEXER_STATES = 20_000
#: The CPU time of a parser: this, and this much more for each of its steps. All other requests of a batch wait for it.
MAX_FIRST_S, MAX_STEP_S = 0.1, 0.001
MAX_FORCED_BYTES = 256


class _Meter:
    """Measures the CPU time of a parser's steps, those of all sequences together."""

    def __init__(self) -> None:
        self._spent_s, self._num_steps = 0.0, 0

    @contextmanager
    def step(self) -> Iterator[None]:
        start_s = thread_time()
        yield
        self._spent_s, self._num_steps = self._spent_s + thread_time() - start_s, self._num_steps + 1

    def check(self) -> None:
        """Raise GrammarError if the steps took too long."""
        if self._spent_s > MAX_FIRST_S + MAX_STEP_S * self._num_steps:
            raise GrammarError(f"structured_outputs: {self._num_steps} steps of the parser took {self._spent_s:.2f} s, "
                               f"must take at most {MAX_FIRST_S:g} s and {MAX_STEP_S:g} s per step; fewer alternatives "
                               "at each place are faster")


class ParserState:
    """The parser after some tokens."""

    def __init__(self, matcher: Any, words: _Words, meter: _Meter) -> None:
        self._matcher, self._words, self._meter = matcher, words, meter
        self.children: WeakValueDictionary[int, ParserState] = WeakValueDictionary()

    def after(self, token_id: int) -> ParserState | None:
        """Return the state after one more token; None if the token is not allowed."""
        known = self.children.get(token_id)
        if known is None:
            with self._meter.step():
                matcher = self._matcher.deep_copy()
                num_consumed = matcher.try_consume_tokens([token_id])
            if num_consumed != 1 and not matcher.is_error():
                return None
            # If the parser gave up, the next mask says so.
            known = self.children[token_id] = ParserState(matcher, self._words, self._meter)
        return known

    @cached_property
    def bits(self) -> bytes:
        """One bit per token: whether it may come next."""
        self._meter.check()
        found = self._words.found
        found.problem = None
        with self._meter.step():
            bits: bytes = self._matcher.compute_bitmask()
        if found.problem is not None:
            raise GrammarError(f"structured_outputs: {found.problem}")
        if self._matcher.is_error():
            raise GrammarError(f"structured_outputs: {_in_one_line(self._matcher.get_error())}")
        return bits

    @cached_property
    def is_accepting(self) -> bool:
        return bool(self._matcher.is_accepting())

    @cached_property
    def is_complete(self) -> bool:
        return self.is_accepting and bool(self._matcher.is_stopped())


class GuidedGrammar:
    """A JSON schema or a grammar over the tokens of a vocabulary."""

    def __init__(self, params: StructuredOutputsParams, vocabulary: Vocabulary) -> None:
        """Prepare the parser. Raise GrammarError if what ``params`` asks for is wrong or not supported."""
        check_installed("structured", f"structured_outputs.{params.kind}")
        self.vocabulary = vocabulary

        def problem_of(schema: object) -> str:
            try:
                parser = _parser_of(vocabulary, _source(StructuredOutputsParams(json=schema)))  # type: ignore[arg-type]
            except ValueError as error:
                return str(error)
            return _in_one_line(parser.get_error()) if parser.is_error() else ""

        matcher = _parser_of(vocabulary, _source(params))
        if matcher.is_error():
            problem = _in_one_line(matcher.get_error())
            place = "" if params.json is None else place_of_error(problem, json.loads(str(params.json)), problem_of)
            raise GrammarError(f"structured_outputs.{params.kind}: {problem}{place and f', at {place}'}")
        self.start = _start_of(matcher, vocabulary)

    def allowed(self, state: ParserState) -> Mask:
        """Return for every token whether it may come next. The end of the text may, exactly if the output matches."""
        bits = np.frombuffer(state.bits, dtype=np.uint8)
        mask = np.unpackbits(bits, bitorder="little")[:self.vocabulary.num_rows].view(np.bool_)
        mask[self.vocabulary.eos_token_ids] = state.is_accepting
        return mask

    def advance(self, state: ParserState | None, token_id: int) -> ParserState | None:
        """Return the state after a token; None if the token is not allowed."""
        if state is None or token_id in self.vocabulary.eos_token_ids:
            return state if state is not None and state.is_accepting else None
        return state.after(token_id)

    def is_accepting(self, state: ParserState | None) -> bool:
        """Check whether the output matches if it ends here."""
        return state is not None and state.is_accepting

    def is_complete(self, state: ParserState | None) -> bool:
        """Check whether the output matches and no token can continue it."""
        return state is not None and state.is_complete

    def num_tokens_needed(self) -> None:
        """Return None: the parser does not know the shortest output."""


class GuidedExpression(GuidedGrammar):
    """An expression or a choice, in place of a ``RegexGrammar``. Both read the same tree, so they read one dialect."""

    def __init__(self, tree: Node, vocabulary: Vocabulary) -> None:
        """Prepare the parser. Raise ValueError if the expression is too large."""
        check_size(tree)
        check_installed("structured", "this reader of expressions")
        import llguidance
        self.vocabulary = vocabulary
        matcher = _parser_of(vocabulary, llguidance.LLMatcher.grammar_from_regex(_pattern(tree)))
        if matcher.is_error():
            raise GrammarError(_in_one_line(matcher.get_error()))
        self.start = _start_of(matcher, vocabulary)


def _start_of(matcher: Any, vocabulary: Vocabulary) -> ParserState:
    """Return the first state, with its mask: here it delays no other request. Raise GrammarError if it took too long.
    """
    meter = _Meter()
    start = ParserState(matcher, _tokenizer_of(vocabulary)[1], meter)
    _ = start.bits
    meter.check()
    return start


def _pattern(tree: Node) -> str:
    """Write a tree as an expression in which no character has a second meaning."""
    if isinstance(tree, Characters):
        ranges = "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in tree.ranges)
        return f"[{ranges}]"
    if isinstance(tree, InOrder):
        return "".join(map(_pattern, tree.parts))
    if isinstance(tree, Either):
        return f"(?:{'|'.join(map(_pattern, tree.options))})"
    return f"(?:{_pattern(tree.node)}){{{tree.least},{'' if tree.most is None else tree.most}}}"


def _parser_of(vocabulary: Vocabulary, source: str) -> Any:
    """Return the library's parser, which may hold an error."""
    import llguidance
    limits = llguidance.LLParserLimits(
        initial_lexer_fuel=MAX_LEXER_FUEL, step_lexer_fuel=MAX_STEP_FUEL, step_max_items=MAX_STEP_ITEMS,
        max_lexer_states=MAX_LEXER_STATES, max_grammar_size=MAX_GRAMMAR_SIZE, verbose_errors=False)
    return llguidance.LLMatcher(_tokenizer_of(vocabulary)[0], source, log_level=0, limits=limits)


def _source(params: StructuredOutputsParams) -> str:
    """Return what ``params`` asks for in the library's own format."""
    import llguidance
    library: Any = llguidance.LLMatcher
    if params.grammar is not None:
        source: str = library.grammar_from_lark(params.grammar)
        return source
    if params.json is not None:
        check_schema(json.loads(str(params.json)))
    if params.json == "false":
        raise GrammarError("structured_outputs.json: no output matches the schema false")
    schema = '{"type":"object"}' if params.json_object else "{}" if params.json == "true" else params.json
    try:
        source = library.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
    except ValueError as error:
        raise GrammarError(f"structured_outputs.json: {_in_one_line(str(error))}") from None
    return source


def _in_one_line(message: str) -> str:
    """Return the first line of a message, and the reason in its last line if the first only announces it."""
    lines = [line.strip() for line in message.strip().split(" Enable 'coerce_one_of'")[0].splitlines()]
    if lines[0].startswith("NoExtension"):
        return "no output can match"
    first, last = lines[0], lines[-1].removeprefix("error: ")
    return f"{first} {last}" if first.endswith(":") and len(lines) > 1 else first


class _Words:
    """The vocabulary in the form that the library reads."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        # Weak: the library's object, which the vocabulary keeps, refers to this one, and no collector sees that cycle.
        self._vocabulary = weakref.ref(vocabulary)
        #: Its ``problem``, in each thread, is why a text could not be split. A mask after that means nothing.
        self.found = threading.local()
        self.eos_token_id = vocabulary.eos_token_ids[0] if vocabulary.eos_token_ids else 0
        # A token without bytes gets a name, which the library treats as a special token.
        self.tokens = [each or f"\xff<{index}>".encode("latin-1") for index, each in enumerate(vocabulary.token_bytes)]
        self.special_token_ids = [index for index, each in enumerate(vocabulary.token_bytes) if not each]

    def __call__(self, text: bytes) -> list[int]:
        """Return the tokens of a text that is the only possible one: the library allows exactly these.

        It asks again with every token, so of a long text only the beginning is split.
        """
        try:
            vocabulary = self._vocabulary()
            if len(text) > MAX_FORCED_BYTES:
                text = text[:MAX_FORCED_BYTES].decode(errors="ignore").encode()
            return [] if vocabulary is None else vocabulary.tokens_of(text.decode())
        except ValueError as error:
            self.found.problem = str(error)
            return []


def _tokenizer_of(vocabulary: Vocabulary) -> tuple[Any, _Words]:
    """Return the library's view of a vocabulary, made once, and the words behind it."""
    import llguidance
    if "llguidance" not in vocabulary.shared:
        words = _Words(vocabulary)
        tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(words), n_vocab=vocabulary.num_rows,
                                           eos_token=vocabulary.eos_token_ids or None)
        vocabulary.shared["llguidance"] = tokenizer, words
    made: tuple[Any, _Words] = vocabulary.shared["llguidance"]  # type: ignore[assignment]
    return made
