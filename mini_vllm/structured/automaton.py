"""From the tree of a regular expression to a deterministic automaton over bytes.

    tree ──▶ many places at once (nondeterministic) ──▶ one state at a time (deterministic)

    ab|ac      a    b                        a          b, c
            ┌─────▶○────▶◉               ○─────▶○ {1,3}─────▶◉ {2,4}
            ○
            └─────▶○────▶◉
               a    c

A state of the second is a set of places of the first: all places that the bytes so far can have led to. Text is UTF-8,
so a character may take several bytes, and a state may lie inside of a character.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mini_vllm.structured.regex_tree import Characters, Either, InOrder, Node, Range
from mini_vllm.structured.utf8 import utf8_sequences

#: Limits for one expression; a larger one would take many megabytes, or seconds. (A second is about two million
#: comparisons of edges and visits of places.)
MAX_PLACES, MAX_STATES, MAX_WORK = 2**13, 2**13, 2**21
#: There is no next state: the text cannot match any more.
DEAD = -1


class TooLargeError(ValueError):
    """The automaton of an expression would be too large."""


def check_size(tree: Node) -> None:
    """Raise TooLargeError if the expression, with its repetitions written out, has too many places between bytes."""
    if _num_places(tree) > MAX_PLACES:
        raise TooLargeError(f"the expression has more than {MAX_PLACES} places with its repetitions written out; "
                            "shorten it, or its repetitions")


def _num_places(tree: Node) -> int:
    if isinstance(tree, Characters):
        return _num_ways(tree.ranges)
    if isinstance(tree, InOrder):
        return sum(map(_num_places, tree.parts))
    if isinstance(tree, Either):
        return 1 + sum(map(_num_places, tree.options))
    return 1 + max(1, _num_places(tree.node)) * (tree.least + 1 if tree.most is None else tree.most)


@lru_cache(256)
def _num_ways(ranges: tuple[Range, ...]) -> int:
    """Return the number of places after the bytes of one of these characters; equal ends count once."""
    return len({tuple(each[start:]) for each in utf8_sequences(ranges) for start in range(1, len(each) + 1)})


class ByteAutomaton:
    """Reads a text byte by byte. A state is a number; 0 is the first."""

    def __init__(self, tree: Node, max_states: int = MAX_STATES) -> None:
        """Build the automaton. Raise TooLargeError if it exceeds the limits."""
        check_size(tree)
        places = _Places(tree)
        states = {places.closure([0]): 0}
        rows: list[NDArray[np.int16]] = []
        todo = deque(states)
        while todo:
            row = np.full(256, DEAD, dtype=np.int16)
            for first, end, reached in places.steps(todo.popleft()):
                if reached not in states:
                    states[reached] = len(states)
                    todo.append(reached)
                row[first:end] = states[reached]
            rows.append(row)
            if len(states) > max_states:
                raise TooLargeError(f"the expression needs more than {max_states} states")
        #: Row s holds the next state for each byte, or DEAD. The last row stands for the state DEAD: all DEAD.
        self.table = np.stack([*rows, np.full(256, DEAD, dtype=np.int16)])
        #: For each state, whether the text so far matches.
        self.accepting = np.array([places.end in state for state in states])

    @property
    def num_states(self) -> int:
        return len(self.accepting)

    def next_state(self, state: int, byte: int) -> int:
        """Return the state after ``byte``; DEAD if no text continues like that."""
        return int(self.table[state, byte])

    def is_accepting(self, state: int) -> bool:
        """Check whether the text that led to ``state`` matches. No text that led to DEAD does."""
        return state != DEAD and bool(self.accepting[state])

    def matches(self, text: bytes) -> bool:
        """Check whether the whole text matches."""
        state = 0
        for byte in text:
            state = self.next_state(state, byte)
        return self.is_accepting(state)


class _Places:
    """The nondeterministic automaton: edges with ranges of bytes, and edges that take no byte."""

    def __init__(self, tree: Node) -> None:
        self._edges: list[list[tuple[int, int, int]]] = [[]]
        self._free_edges: list[list[int]] = [[]]
        self._work = 0
        self.end = self._add(tree, 0)

    def _new(self) -> int:
        self._edges.append([])
        self._free_edges.append([])
        return len(self._edges) - 1

    def _add(self, node: Node, start: int) -> int:
        """Add edges that lead from ``start`` through ``node``, and return the place after it."""
        self._spend(1)
        if isinstance(node, Characters):
            end = self._new()
            ways: dict[tuple[Range, ...], int] = {(): end}
            for (first, last), *rest in utf8_sequences(node.ranges):
                self._edges[start].append((first, last, self._way(tuple(rest), ways)))
            return end
        if isinstance(node, InOrder):
            for part in node.parts:
                start = self._add(part, start)
            return start
        end = self._new()
        if isinstance(node, Either):
            for option in node.options:
                self._free_edges[self._add(option, start)].append(end)
            return end
        self._spend(node.least + (node.most or 0))  # also for a node that adds no place
        for _ in range(node.least):
            start = self._add(node.node, start)
        if node.most is None:
            self._free_edges[start].append(end)
            self._free_edges[self._add(node.node, end)].append(end)
            return end
        for _ in range(node.most - node.least):
            self._free_edges[start].append(end)
            start = self._add(node.node, start)
        self._free_edges[start].append(end)
        return end

    def _way(self, sequence: tuple[Range, ...], ways: dict[tuple[Range, ...], int]) -> int:
        """Return the place from which ``sequence`` leads to the end of a character; equal ends are shared."""
        if sequence not in ways:
            (first, last), *rest = sequence
            following = self._way(tuple(rest), ways)
            ways[sequence] = self._new()
            self._edges[ways[sequence]].append((first, last, following))
        return ways[sequence]

    def _spend(self, amount: int) -> None:
        self._work += amount
        if self._work > MAX_WORK:
            raise TooLargeError("the expression takes too long to prepare: its repetitions overlap too much")

    def closure(self, places: Iterable[int]) -> frozenset[int]:
        """Return ``places`` and all that free edges lead to, as far as bytes lead on from there or the text ends."""
        reached, todo = set(places), list(places)
        while todo:
            self._spend(1)
            for place in self._free_edges[todo.pop()]:
                if place not in reached:
                    reached.add(place)
                    todo.append(place)
        self._spend(2 * len(reached))
        return frozenset(place for place in reached if self._edges[place] or place == self.end)

    def steps(self, state: frozenset[int]) -> Iterator[tuple[int, int, frozenset[int]]]:
        """Yield ranges of bytes, without the last, and the state to which each leads."""
        edges = [edge for place in state for edge in self._edges[place]]
        cuts = sorted({cut for first, last, _ in edges for cut in (first, last + 1)})
        known: dict[frozenset[int], frozenset[int]] = {}
        self._spend(16 + len(edges) * (1 + len(cuts)))
        for first, end in zip(cuts, cuts[1:]):
            targets = frozenset(place for low, high, place in edges if low <= first <= high)
            if targets:
                if targets not in known:
                    known[targets] = self.closure(targets)
                yield first, end, known[targets]
