"""JSON schemas and grammars, with ``llguidance``: the same questions as to a ``RegexGrammar``, answered by a parser.

A parser's state is not a number. A state here is a node in a tree of the tokens that requests with this grammar got:
forked sequences, and requests with the same beginning, meet in the same nodes and share their masks. A node lives as
long as a sequence is there.
"""

from __future__ import annotations

import json
import threading
import weakref
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from mini_vllm.extras import check_installed
from mini_vllm.structured.grammar import Mask
from mini_vllm.structured.params import StructuredOutputsParams
from mini_vllm.structured.schemas import GrammarError, check_schema, place_of_error
from mini_vllm.structured.vocabulary import Vocabulary

#: One text for each value: models rarely end a text in which they may add any number of spaces.
#: And one spelling for each character: the library does not see that "\\u0061" is the name of the property "a".
JSON_OPTIONS = {"whitespace_flexible": False, "json_allowed_escapes": '"\\bfnrt'}
#: About 20 ms for the beginning and for each step. Ambiguous grammars have more items with every token.
MAX_LEXER_FUEL, MAX_STEP_FUEL, MAX_STEP_ITEMS, MAX_GRAMMAR_SIZE = 1_000_000, 200_000, 5_000, 100_000


class ParserState:
    """The parser after some tokens."""

    def __init__(self, matcher: Any, words: _Words) -> None:
        self._matcher, self._words = matcher, words
        self.children: WeakValueDictionary[int, ParserState] = WeakValueDictionary()

    def after(self, token_id: int) -> ParserState | None:
        """Return the state after one more token; None if the token is not allowed."""
        known = self.children.get(token_id)
        if known is None:
            matcher = self._matcher.deep_copy()
            if matcher.try_consume_tokens([token_id]) != 1 and not matcher.is_error():
                return None
            # If the parser gave up, the next mask says so.
            known = self.children[token_id] = ParserState(matcher, self._words)
        return known

    @cached_property
    def bits(self) -> bytes:
        """One bit per token: whether it may come next."""
        found = self._words.found
        found.problem = None
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
        import llguidance
        self.vocabulary = vocabulary
        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=MAX_LEXER_FUEL, step_lexer_fuel=MAX_STEP_FUEL, step_max_items=MAX_STEP_ITEMS,
            max_grammar_size=MAX_GRAMMAR_SIZE, verbose_errors=False)
        tokenizer, words = _tokenizer_of(vocabulary)

        def parser_of(params: StructuredOutputsParams) -> Any:
            return llguidance.LLMatcher(tokenizer, _source(llguidance.LLMatcher, params), log_level=0, limits=limits)

        def problem_of(schema: object) -> str:
            try:
                parser = parser_of(StructuredOutputsParams(json=schema))  # type: ignore[arg-type]
            except ValueError as error:
                return str(error)
            return _in_one_line(parser.get_error()) if parser.is_error() else ""

        matcher = parser_of(params)
        if matcher.is_error():
            problem = _in_one_line(matcher.get_error())
            place = "" if params.json is None else place_of_error(problem, json.loads(str(params.json)), problem_of)
            raise GrammarError(f"structured_outputs.{params.kind}: {problem}{place and f', at {place}'}")
        self.start = ParserState(matcher, words)

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


def _source(matcher: Any, params: StructuredOutputsParams) -> str:
    """Return what ``params`` asks for in the library's own format."""
    if params.grammar is not None:
        source: str = matcher.grammar_from_lark(params.grammar)
        return source
    if params.json is not None:
        check_schema(json.loads(str(params.json)))
    if params.json == "false":
        raise GrammarError("structured_outputs.json: no output matches the schema false")
    schema = '{"type":"object"}' if params.json_object else "{}" if params.json == "true" else params.json
    try:
        source = matcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
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
        """Return the tokens of a text that is the only possible one: the library allows exactly these."""
        try:
            vocabulary = self._vocabulary()
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
