"""What the page shows of an output that must match: the text that it must match, and its automaton if that is small."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TypedDict

from mini_vllm.pictures.automaton import draw_whole_automaton
from mini_vllm.pictures.elements import shorten
from mini_vllm.structured.automaton import ByteAutomaton
from mini_vllm.structured.compiler import tree_of
from mini_vllm.structured.params import StructuredOutputsParams

#: The longest text that is sent, in characters.
MAX_TEXT = 400
#: An automaton with more states, also counting those inside of characters, is not looked at to be drawn.
MAX_STATES = 512


class Structure(TypedDict):
    """What an output must match."""

    #: ``regex``, ``choice``, ``json``, ``json_object`` or ``grammar``.
    kind: str
    text: str
    #: The states of the automaton; None for a parser, or a large automaton.
    num_states: int | None
    #: Its picture, in which each circle has the number of its state; None if there is no automaton, or a large one.
    #: It has no style sheet: the page has one with the same names.
    svg: str | None


def describe(params: StructuredOutputsParams) -> Structure:
    automaton, svg = _drawn(params)
    return {"kind": params.kind, "text": shorten(_text_of(params), MAX_TEXT),
            "num_states": None if automaton is None else automaton.num_states, "svg": svg}


def state_after(params: StructuredOutputsParams, state: int | None, token: bytes) -> int | None:
    """Return the state of the automaton after a token; None if it, or the state before, is not known."""
    automaton, _ = _drawn(params)
    if automaton is None or state is None:
        return None
    for byte in token:
        state = automaton.next_state(state, byte)
    return state


@lru_cache(8)
def _drawn(params: StructuredOutputsParams) -> tuple[ByteAutomaton | None, str | None]:
    """Return the automaton and its picture, whatever the server reads the expression with."""
    if params.kind not in ("regex", "choice"):
        return None, None
    try:
        automaton = ByteAutomaton(tree_of(params), MAX_STATES)
    except ValueError:  # it is large; a student's part may also read more than the project's parser does
        return None, None
    picture = draw_whole_automaton(automaton)
    svg = None if picture is None else "\n".join(
        line for line in picture.svg.splitlines() if not line.startswith("<style>"))
    return automaton, svg


def _text_of(params: StructuredOutputsParams) -> str:
    if params.choice is not None:
        return " | ".join(json.dumps(text, ensure_ascii=False) for text in params.choice)
    return str(params.regex or params.json or params.grammar or "any JSON object")
