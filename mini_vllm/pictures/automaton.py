"""The automaton of a regular expression: its states from left to right, and the one that an output has reached."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from mini_vllm.pictures.automaton_layout import LIFT, OUTER, RADIUS, SIZE, STUB, Layout, Point, towards, width_of
from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.character_graph import CharacterGraph, Edge
from mini_vllm.pictures.palette import ON_COLOUR, request_paint
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.strip import MARGIN
from mini_vllm.structured.automaton import ByteAutomaton
from mini_vllm.structured.grammar import RegexGrammar
from mini_vllm.trace.history import count

LOOK_AT_AUTOMATON = ("Read from the left: each character of the output leads to the next state. In a state with a "
                     "double ring the output matches and may end. A token is allowed if all of its characters lead "
                     "on.")
#: More states, or longer rows and columns of states, do not fit a page. Then those near the current state are drawn.
MAX_DRAWN, MAX_COLUMNS, MAX_ROWS = 24, 12, 10
MORE = "…"


def draw_automaton(grammar: RegexGrammar, state: int | None = None, *, num_allowed: int | None = None,
                   look: str = LOOK_AT_AUTOMATON) -> Picture:
    """Draw the states between characters, and the characters that lead from one to another. Fill the current state.

    ``num_allowed`` is the number of tokens allowed in ``state``; by default the grammar is asked. Of a large automaton
    only the states near the current one are drawn. Raise ValueError if there is no such state.
    """
    num_states = grammar.automaton.num_states
    if state is not None and not 0 <= state < num_states:
        raise ValueError(f"state is {state}, must be from 0 to {num_states - 1}")
    if state is not None and num_allowed is None:
        num_allowed = int(grammar.allowed(state).sum())
    note = "" if state is None else f"{num_allowed:,} of {grammar.vocabulary.num_rows:,} tokens"
    graph = CharacterGraph(grammar.automaton)
    return _Drawing(graph, state, _near(graph, state or 0), note).picture(look)


def draw_whole_automaton(automaton: ByteAutomaton, look: str = LOOK_AT_AUTOMATON) -> Picture | None:
    """Draw all states, and no current one; None if they do not fit."""
    graph = CharacterGraph(automaton)
    drawn = _near(graph, 0)
    return _Drawing(graph, None, drawn, "").picture(look) if len(drawn) == graph.num_states else None


def _near(graph: CharacterGraph, state: int) -> list[int]:
    """Return the states to draw: all of them, or those nearest to ``state``."""
    found, heights = [state], Counter([graph.distances[state]])
    for here in found:  # grows meanwhile
        for near in (*(edge.target for edge in graph.edges_from(here)), *graph.sources(here)):
            column = graph.distances[near]
            if near not in found and len(found) < MAX_DRAWN and heights[column] < MAX_ROWS and len(
                    {*heights, column}) <= MAX_COLUMNS:
                found.append(near)
                heights[column] += 1
    return found


class _Drawing:
    def __init__(self, graph: CharacterGraph, state: int | None, drawn: list[int], note: str) -> None:
        self._graph, self._state, self._drawn, self._note = graph, state, drawn, note
        self._layout = Layout(graph, drawn, state, note)
        self._inside = set(filter(graph.is_inside, drawn))

    def picture(self, look: str) -> Picture:
        label = count(self._graph.num_states, "state")
        if len(self._drawn) < self._graph.num_states:
            num_drawn = sum(not self._graph.is_inside(state) for state in self._drawn)
            label = f"{num_drawn} of {label}"
        _, top, right, bottom = self._layout.extent
        canvas, shift = Canvas(), MARGIN + 22 - top
        canvas.text(MARGIN, MARGIN + 10, label, 12, "ink", font_weight="bold", data_part="title")
        canvas.open_group(transform=f"translate(0 {shift:g})")
        self._draw(canvas)
        canvas.close_group()
        width = math.ceil(max(canvas.right, right)) + MARGIN
        height = math.ceil(bottom + shift) + MARGIN
        told = f"An automaton with {label}" + f"; {self._note} may come next in state {self._state}" * bool(self._note)
        return Picture(canvas.to_svg(width, height, told), width, height, told, look)

    def _draw(self, canvas: Canvas) -> None:
        layout = self._layout
        for edge, curve in zip(layout.edges, layout.curves):
            self._draw_edge(canvas, edge, curve)
        for edge, place in zip(layout.edges, layout.label_places):
            _write(canvas, edge.label, place, data_from=edge.source, data_to=edge.target)
        for state, (x, y) in layout.places.items():
            if state == 0 or not any(edge.target == state != edge.source for edge in layout.edges):
                _arrow(canvas, [(x - OUTER - STUB, y), (x - self._radius(state) - 1, y)])
                if state:
                    canvas.text(x - OUTER - STUB - 12, y + 3, MORE, SIZE, "faint", data_part="before")
            if state in layout.going_on:
                _arrow(canvas, [(x + 0.8 * OUTER, y - 0.8 * OUTER), (x + 1.5 * OUTER, y - 1.3 * OUTER)])
                canvas.text(x + 1.6 * OUTER, y - 1.3 * OUTER, MORE, SIZE, "faint", data_part="after")
            self._draw_state(canvas, state, x, y)
        if self._note:
            x, y = layout.places[self._state or 0]
            if layout.note_place[1] > y + OUTER + 12:
                canvas.add("path", d=f"M{x:g} {y + OUTER:g}V{layout.note_place[1] - 7:g}", stroke="line",
                           stroke_dasharray="2 2")
            _write(canvas, self._note, layout.note_place, font_weight="bold", data_part="share")

    def _draw_edge(self, canvas: Canvas, edge: Edge, curve: list[Point]) -> None:
        start, control, end = curve
        if edge.source == edge.target:
            x, y = start[0], start[1] - self._radius(edge.source)
            canvas.add("path", d=f"M{x - 6:g} {y + 1:g}C{x - 16:g} {y - LIFT:g} {x + 16:g} {y - LIFT:g} {x + 6:g} "
                       f"{y - 1:g}", stroke="line", fill="none")
            _head(canvas, (x + 10, y - 12), (x + 6, y - 1))
            return
        start, end = towards(start, control, self._radius(edge.source)), \
            towards(end, control, self._radius(edge.target) + 2)
        canvas.add("path", d=f"M{start[0]:.4g} {start[1]:.4g}Q{control[0]:.4g} {control[1]:.4g} {end[0]:.4g} "
                   f"{end[1]:.4g}", stroke="line", fill="none",
                   stroke_dasharray="3 3" if {edge.source, edge.target} & self._inside else None)
        _head(canvas, control, end)

    def _radius(self, state: int) -> float:
        return OUTER if self._graph.automaton.is_accepting(state) else RADIUS

    def _draw_state(self, canvas: Canvas, state: int, x: float, y: float) -> None:
        is_current, is_accepting = state == self._state, self._graph.automaton.is_accepting(state)
        told = f"state {state}" + ": the output matches" * is_accepting + ": inside of a character" * (
            state in self._inside)
        if is_accepting:
            canvas.add("circle", cx=x, cy=y, r=OUTER, fill="empty", stroke="ink")
        canvas.add("circle", title=told, cx=x, cy=y, r=RADIUS, fill=request_paint(0) if is_current else "empty",
                   stroke="ink", stroke_dasharray="3 2" if state in self._inside else None, data_state=state,
                   data_kind=" ".join(["accepting"] * is_accepting + ["current"] * is_current) or None)
        canvas.text(x, y + 3.5, str(state), 10, ON_COLOUR if is_current else "faint", text_anchor="middle",
                    pointer_events="none")


def _write(canvas: Canvas, text: str, place: Point, **attributes: Any) -> None:
    """Write a text on a piece of paper, so that lines do not cross it."""
    width = width_of(text)
    canvas.add("rect", x=place[0] - width / 2, y=place[1] - 7, width=width, height=14, fill="paper", rx=3)
    canvas.text(place[0], place[1] + 4, text, SIZE, "ink", text_anchor="middle", **attributes)


def _arrow(canvas: Canvas, line: list[Point]) -> None:
    (x, y), end = line
    canvas.add("path", d=f"M{x:g} {y:g}L{end[0]:g} {end[1]:g}", stroke="line", fill="none")
    _head(canvas, (x, y), end)


def _head(canvas: Canvas, before: Point, end: Point) -> None:
    angle = math.atan2(end[1] - before[1], end[0] - before[0])
    left, right = ((end[0] - 7 * math.cos(angle + turn), end[1] - 7 * math.sin(angle + turn)) for turn in (0.45, -0.45))
    canvas.add("path", d=f"M{end[0]:.4g} {end[1]:.4g}L{left[0]:.4g} {left[1]:.4g}L{right[0]:.4g} {right[1]:.4g}z",
               fill="line")
