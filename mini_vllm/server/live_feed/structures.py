"""What the page shows of an output that must match: the text that it must match, and its automaton if that is small."""

from __future__ import annotations

import json
from typing import TypedDict
from weakref import ref

from mini_vllm.pictures.automaton import draw_whole_automaton
from mini_vllm.pictures.elements import shorten
from mini_vllm.structured.compiler import CompiledGrammar
from mini_vllm.structured.grammar import RegexGrammar
from mini_vllm.structured.params import StructuredOutputsParams

#: The longest text that is sent, in characters.
MAX_TEXT = 400


class Structure(TypedDict):
    """What an output must match."""

    #: ``regex``, ``choice``, ``json``, ``json_object`` or ``grammar``.
    kind: str
    text: str
    #: The states of the automaton; None for a parser.
    num_states: int | None
    #: Its picture, in which each circle has the number of its state; None if there is no automaton, or a large one.
    #: It has no style sheet: the page has one with the same names.
    svg: str | None


class Structures:
    """Describes what outputs must match. A picture is drawn once for requests in a row that share a grammar."""

    def __init__(self) -> None:
        self._last: ref[CompiledGrammar] | None = None
        self._drawn: tuple[int | None, str | None] = (None, None)

    def describe(self, params: StructuredOutputsParams, compiled: CompiledGrammar) -> Structure:
        if self._last is None or self._last() is not compiled:
            self._last, self._drawn = ref(compiled), _draw(compiled)
        num_states, svg = self._drawn
        return {"kind": params.kind, "text": shorten(_text_of(params), MAX_TEXT), "num_states": num_states, "svg": svg}


def _draw(compiled: CompiledGrammar) -> tuple[int | None, str | None]:
    """Return the number of states and the picture. A student's grammar may have no automaton that can be drawn."""
    if type(compiled.grammar) is not RegexGrammar:
        return None, None
    picture = draw_whole_automaton(compiled.grammar)
    svg = None if picture is None else "\n".join(
        line for line in picture.svg.splitlines() if not line.startswith("<style>"))
    return compiled.grammar.automaton.num_states, svg


def _text_of(params: StructuredOutputsParams) -> str:
    if params.choice is not None:
        return " | ".join(json.dumps(text, ensure_ascii=False) for text in params.choice)
    return str(params.regex or params.json or params.grammar or "any JSON object")
