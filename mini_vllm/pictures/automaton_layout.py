"""Where the states, edges and labels of an automaton are drawn. The middle row has y = 0."""

from __future__ import annotations

import math

from mini_vllm.pictures.character_graph import CharacterGraph, Edge
from mini_vllm.pictures.elements import sans_width
from mini_vllm.pictures.strip import MARGIN

#: The radius of a state and of the ring around it, the height of a row, and the size of the letters.
RADIUS, OUTER, ROW, SIZE = 13.0, 16.5, 52.0, 11.0
#: The free part of an edge, the narrowest column, the height of a curve, and an arrow from or to nowhere.
GAP, NARROWEST, LIFT, STUB = 24.0, 58.0, 24.0, 16.0

Point = tuple[float, float]
#: Left, top, right and bottom.
Box = tuple[float, float, float, float]


class Layout:
    """The places of the drawn states, of the edges between them with their labels, and of the note at one state."""

    def __init__(self, graph: CharacterGraph, drawn: list[int], state: int | None, note: str) -> None:
        self._graph, self._drawn, self._state, self._note = graph, drawn, state, note
        all_edges = [edge for each in drawn for edge in graph.edges_from(each)]
        all_edges += [edge for each in drawn if graph.is_inside(each) for edge in graph.edges_to(each)]
        self.edges = [edge for edge in all_edges if edge.source in drawn and edge.target in drawn]
        self.edges.sort(key=lambda edge: edge.source != edge.target)
        #: States that lead to one that is not drawn.
        self.going_on = {edge.source for edge in all_edges if edge.source in drawn and edge.target not in drawn}
        self.columns = self._sorted_into_columns()
        self.places = self._places_of_states()
        #: What a label must not cover: states and other labels.
        self._taken = [_box(place, 2 * OUTER, 2 * OUTER) for place in self.places.values()]
        self.curves = [self._curve(edge) for edge in self.edges]
        #: In the order of the edges, loops first.
        self.label_places: list[Point] = []
        num_loops = sum(edge.source == edge.target for edge in self.edges)
        self._place_labels(0, num_loops)
        self.note_place = self._place_of_note() if note else (0.0, 0.0)
        self._place_labels(num_loops, len(self.edges))

    @property
    def extent(self) -> Box:
        """The box around everything."""
        points = [point_of(curve, step / 10) for curve in self.curves for step in range(11)]
        boxes = [*self._taken, *((x, y, x, y) for x, y in points)]
        left, top, right, bottom = zip(*boxes)
        return min(left), min(top), max(right), max(bottom)

    def _sorted_into_columns(self) -> list[list[int]]:
        """Sort the states by their distance from the first; a state inside of a character is half a step further.

        A state that nothing follows is right of all states that lead to it. Within a column, the states are in the
        order of those before them.
        """
        distance = {state: float(self._graph.distances[state]) for state in self._drawn}
        for state in filter(self._graph.is_inside, self._drawn):
            distance[state] = 0.5 + min(distance[edge.source] for edge in self.edges if edge.target == state)
        for state in self._drawn:
            before = [distance[edge.source] for edge in self.edges if edge.target == state]
            if before and not self._graph.edges_from(state):
                distance[state] = 1.0 + max(before)
        columns: list[list[int]] = []
        height: dict[int, float] = {}
        for each in sorted(set(distance.values())):
            column = [state for state in sorted(self._drawn) if distance[state] == each]
            for state in column:
                before = [height[edge.source] for edge in self.edges if edge.target == state and edge.source in height]
                height[state] = sum(before) / len(before) if before else 0.0
            column.sort(key=lambda state: (height[state], state))
            height.update((state, row - len(column) / 2) for row, state in enumerate(column))
            columns.append(column)
        return columns

    def _places_of_states(self) -> dict[int, Point]:
        column_of = {state: number for number, column in enumerate(self.columns) for state in column}
        heights = [len(column) for column in self.columns]
        widths = [NARROWEST + 10 * (max(pair) - 1) for pair in zip(heights, [*heights[1:], 1])]
        for edge in self.edges:
            width, (low, high) = sans_width(edge.label, SIZE), sorted((column_of[edge.source], column_of[edge.target]))
            if low == high:  # above its state, half of it on each side
                width = width / 2 + OUTER
                widths[low - 1] = max(widths[low - 1], width + OUTER) if low else widths[low - 1]
            if high - low <= 1:
                widths[low] = max(widths[low], width + 2 * OUTER + GAP)
        row = ROW + (LIFT if any(edge.source == edge.target for edge in self.edges) else 0)
        places: dict[int, Point] = {}
        x = MARGIN + STUB + 12 + OUTER
        for column, width in zip(self.columns, widths):
            places.update((state, (x, (number - (len(column) - 1) / 2) * row)) for number, state in enumerate(column))
            x += width
        return places

    def _curve(self, edge: Edge) -> list[Point]:
        """Return start, control point and end. An edge that leads back, or would cross a state, bends around it."""
        (x, y), (to_x, to_y) = self.places[edge.source], self.places[edge.target]
        if edge.source == edge.target:
            return [(x, y), (x, y - 2 * LIFT), (x, y)]
        length = math.dist((x, y), (to_x, to_y))
        to_left = (to_y - y) / length, (x - to_x) / length
        others = [place for state, place in self.places.items() if state not in (edge.source, edge.target)]
        has_reverse = any((other.source, other.target) == (edge.target, edge.source) for other in self.edges)
        bends = [LIFT * turns * side for turns in range(1, 20) for side in (1, -1)]
        for bend in (0.8 * LIFT if has_reverse else 0.0, *bends):
            curve = [(x, y), ((x + to_x) / 2 + to_left[0] * bend, (y + to_y) / 2 + to_left[1] * bend), (to_x, to_y)]
            along = [point_of(curve, step / 20) for step in range(21)]
            if all(math.dist(point, other) > OUTER + 5 for point in along for other in others):
                break
        return curve

    def _place_of_note(self) -> Point:
        """Return the middle of the note: just below or above the current state, or further below."""
        x, y = self.places[self._state or 0]
        x = max(x, MARGIN + width_of(self._note, 1.1) / 2)
        has_loop = any(edge.source == edge.target == self._state for edge in self.edges)
        above = [] if has_loop else [(x, y - OUTER - 11)]
        places = [(x, y + OUTER + 11), *above, *((x, y + OUTER + 11 + ROW / 4 * turn) for turn in range(1, 60))]
        place = next(each for each in places
                     if not any(_overlap(_box(each, width_of(self._note, 1.1), 14), box) for box in self._taken))
        self._taken.append(_box(place, width_of(self._note, 1.1), 14))
        return place

    def _place_labels(self, first: int, end: int) -> None:
        for edge, curve in zip(self.edges[first:end], self.curves[first:end]):
            self.label_places.append(self._label_place(edge, curve))

    def _label_place(self, edge: Edge, curve: list[Point]) -> Point:
        """Return the middle of the label: on the curve, where it covers no state and no other label if possible."""
        width = width_of(edge.label)
        if edge.source == edge.target:
            places = [(curve[0][0], curve[0][1] - OUTER - LIFT + shift) for shift in (0, -12, -24)]
        else:
            places = [point_of(curve, 0.5 + shift) for shift in (0, -0.06, 0.06, -0.12, 0.12, -0.18, 0.18, -0.24, 0.24)]
        place = next((each for each in places if not any(_overlap(_box(each, width, 13), box) for box in self._taken)),
                     places[0])
        self._taken.append(_box(place, width, 13))
        return place

def point_of(curve: list[Point], share: float) -> Point:
    """Return a point of a quadratic curve: its start for 0, its end for 1."""
    start, control, end = curve
    x, y = ((1 - share) ** 2 * a + 2 * share * (1 - share) * b + share ** 2 * c
            for a, b, c in zip(start, control, end))
    return x, y


def towards(start: Point, end: Point, length: float) -> Point:
    share = length / (math.dist(start, end) or 1.0)
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _box(middle: Point, width: float, height: float) -> Box:
    return middle[0] - width / 2, middle[1] - height / 2, middle[0] + width / 2, middle[1] + height / 2


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def width_of(text: str, growth: float = 1.0) -> float:
    """Return the width of a label; bold letters are wider."""
    return growth * sans_width(text, SIZE) + 8
