"""From parameters to a grammar that many requests share, and the place of one sequence in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol
from weakref import WeakValueDictionary

from mini_vllm.structured.automaton import DEAD
from mini_vllm.structured.grammar import Mask
from mini_vllm.structured.params import StructuredOutputsParams
from mini_vllm.structured.regex_tree import Either, Node, RegexError, literal, parse_regex
from mini_vllm.structured.vocabulary import Vocabulary


class Grammar(Protocol):
    """The questions that the engine asks. A state is whatever the grammar likes, but it never changes."""

    @property
    def start(self) -> Any:
        """The state of an output without tokens."""

    def allowed(self, state: Any) -> Mask:
        """Return for every token whether it may come next."""

    def advance(self, state: Any, token_id: int) -> Any:
        """Return the state after a token; DEAD or None if the token is not allowed."""

    def is_accepting(self, state: Any) -> bool:
        """Check whether the output matches if it ends here."""

    def is_complete(self, state: Any) -> bool:
        """Check whether the output matches and no token can continue it."""

    def num_tokens_needed(self) -> int | None:
        """Return the number of tokens of the shortest output, or fewer; None where that is not computed."""


@dataclass
class CompiledGrammar:
    """A grammar, and the number of tokens of its shortest output; None where that is not computed."""

    grammar: Grammar
    num_tokens_needed: int | None
    vocabulary: Vocabulary


#: The state of an output that a grammar cannot follow, although every token was allowed. A grammar has a bug then.
BROKEN = object()


@dataclass(frozen=True)
class Cursor:
    """The place of a sequence in its grammar. It does not change: a fork shares it, and a rejected draft leaves it."""

    compiled: CompiledGrammar
    state: Any
    is_first: bool = True

    def after(self, token_ids: Sequence[int]) -> Cursor:
        """Return the place after further tokens."""
        if self.state is BROKEN:
            return self
        state = self.state
        for token_id in token_ids:
            state = self.compiled.grammar.advance(state, token_id)
        return Cursor(self.compiled, state, self.is_first and not token_ids)

    @property
    def is_dead(self) -> bool:
        """Whether a token that is not allowed has led here, which happens only along a draft."""
        return self.state is None or self.state == DEAD

    def allowed(self) -> Mask | None:
        """Return for every token whether it may come next; None in a place that cannot be reached."""
        if self.is_dead:
            return None
        if self.state is BROKEN:
            raise ValueError("structured_outputs: the grammar does not go on after a token that it allowed")
        mask = self.compiled.grammar.allowed(self.state)
        if self.is_first and self.compiled.vocabulary.not_first:
            mask = mask.copy()
            mask[self.compiled.vocabulary.not_first] = False
        return mask

    def after_output(self, token_id: int) -> Cursor:
        """Return the place after a token of the output. If the grammar is lost there, the next mask is an error."""
        following = self.after([token_id])
        return Cursor(self.compiled, BROKEN, False) if following.is_dead else following

    @property
    def is_complete(self) -> bool:
        return not self.is_dead and self.state is not BROKEN and self.compiled.grammar.is_complete(self.state)


def tree_of(params: StructuredOutputsParams) -> Node:
    """Return the tree of an expression or of a choice. Raise RegexError if the expression is not supported."""
    if params.regex is not None:
        return parse_regex(params.regex)
    return Either(tuple(literal(text) for text in params.choice or ()))


class GrammarCompiler:
    """Compiles what requests ask for. Thread-safe: an async engine compiles outside of its event loop."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary],
                 make_regex_grammar: Callable[[Node, Vocabulary], Grammar]) -> None:
        """Compile for the tokens of ``make_vocabulary()``; ``make_regex_grammar`` is the engine's part."""
        self._make_vocabulary, self._make_regex_grammar = make_vocabulary, make_regex_grammar
        self._compiled: WeakValueDictionary[StructuredOutputsParams, CompiledGrammar] = WeakValueDictionary()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The bytes of every token. This takes a second for a large vocabulary, so it is made when it is needed."""
        return self._make_vocabulary()

    def compile(self, params: StructuredOutputsParams | None) -> CompiledGrammar | None:
        """Return the grammar of ``params``, the same one for equal parameters while a request holds it.

        Raise ValueError, which names the field, if the parameters are wrong or ask for too much.
        """
        if params is None:
            return None
        known = self._compiled.get(params)
        if known is None:
            known = self._compiled[params] = self._compile(params)
        return known

    def is_compiled(self, params: StructuredOutputsParams | None) -> bool:
        return params is None or params in self._compiled

    def _compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        if params.choice is None and params.regex is None:
            from mini_vllm.structured.guided import GuidedGrammar
            return CompiledGrammar(GuidedGrammar(params, self.vocabulary), None, self.vocabulary)
        try:
            grammar = self._make_regex_grammar(tree_of(params), self.vocabulary)
            return CompiledGrammar(grammar, grammar.num_tokens_needed(), self.vocabulary)
        except RegexError as error:
            raise ValueError(f"structured_outputs.regex: {error}") from None
        except ValueError as error:
            raise ValueError(f"structured_outputs.{params.kind}: {error}") from None

    def start(self, params: StructuredOutputsParams | None, max_tokens: int | None) -> Cursor | None:
        """Return the place of a new sequence; None if its output is free.

        Raise ValueError if ``max_tokens`` is too few for any output that matches.
        """
        compiled = self.compile(params)
        if compiled is None or params is None:
            return None
        needed = compiled.num_tokens_needed
        if max_tokens is not None and needed is not None and needed > max_tokens:
            raise ValueError(f"max_tokens is {max_tokens}, but the shortest output that matches "
                             f"structured_outputs.{params.kind} has {needed} tokens")
        return Cursor(compiled, compiled.grammar.start)
