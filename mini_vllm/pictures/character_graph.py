"""An automaton over bytes as a graph over characters, with readable labels.

    bytes         0 ── C3 ──▶ 1 ── A9 ──▶ 2          state 1 is inside of a character
    characters    0 ──────── é ────────▶ 2

All bytes of a text before a state end at the same place of a character, so a state is either inside of a character or
between two of them. The states between characters are the nodes of the graph.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field

import numpy as np

from mini_vllm.structured.automaton import DEAD, ByteAutomaton
from mini_vllm.structured.regex_tree import LAST_CHARACTER, SURROGATES, Range

#: By the number of bytes that follow: the first bytes of such characters.
LEADS = {1: (0xC2, 0xE0), 2: (0xE0, 0xF0), 3: (0xF0, 0xF5)}
#: The bytes after the first.
FOLLOWING = (0x80, 0xC0)
NAMES = {" ": "␣", "\n": "↵", "\t": "⇥"}
MAX_LABEL_PARTS = 4


@dataclass(frozen=True)
class Edge:
    """What leads from one state to another: characters, or bytes if one of the two is inside of a character."""

    source: int
    target: int
    label: str


@dataclass
class CharacterGraph:
    """The states between characters, and the edges between them."""

    automaton: ByteAutomaton
    #: For each state, the number of characters of the shortest text that leads there; -1 inside of a character.
    distances: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        table = self.automaton.table
        self.distances = np.full(self.automaton.num_states, -1)
        level, distance = np.array([0]), 0
        while level.size:
            self.distances[level] = distance
            reached = [table[level, :FOLLOWING[0]].ravel()]
            for num_following, (first, end) in LEADS.items():
                inside = np.unique(table[level, first:end])
                for _ in range(num_following):
                    inside = np.unique(table[inside, FOLLOWING[0]:FOLLOWING[1]])
                reached.append(inside)
            found = np.unique(np.concatenate(reached))
            found = found[found != DEAD]
            level, distance = found[self.distances[found] < 0], distance + 1
        self._known: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    @property
    def num_states(self) -> int:
        return int((self.distances >= 0).sum())

    def is_inside(self, state: int) -> bool:
        """Check whether the text so far ends inside of a character."""
        return bool(self.distances[state] < 0)

    def edges_from(self, state: int) -> list[Edge]:
        """Return an edge for each state between characters to which one character leads, or the rest of one."""
        row = self.automaton.table[state]
        if self.is_inside(state):
            num_left = self._num_left(state)
            return [Edge(state, target, _byte_label([(0x80 + low, 0x80 + high) for low, high in ranges])
                         if num_left == 1 else f"{num_left} more bytes")
                    for target, ranges in _by_target(self._runs(state, num_left)).items()]
        runs = [(byte, byte, target) for byte, target in enumerate(row[:FOLLOWING[0]].tolist()) if target != DEAD]
        for num_following, (first, end) in LEADS.items():
            size = 64 ** num_following
            for lead in range(first, end):
                base = (lead & (0x3F >> num_following)) * size
                runs += [(base + low, base + high, target) for low, high, target
                         in self._runs(int(row[lead]), num_following)]
        return [Edge(state, target, character_label(ranges)) for target, ranges in _by_target(_merged(runs)).items()]

    def edges_to(self, state: int) -> list[Edge]:
        """Return an edge for each state between characters from which one character leads here, or a part of one."""
        if not self.is_inside(state):
            return [edge for source in self.sources(state) for edge in self.edges_from(source)
                    if edge.target == state]
        return [Edge(source, state, _byte_label(self._first_bytes(source, state)) + " …"[:2 * self._is_later(state)])
                for source in self.sources(state)]

    def sources(self, state: int) -> list[int]:
        """Return the states between characters from which some bytes of one character lead to ``state``."""
        found, level = set(), np.array([state])
        for _ in range(4):
            is_wanted = np.zeros(self.automaton.num_states + 1, dtype=bool)
            is_wanted[level] = True
            level = np.flatnonzero(is_wanted[self.automaton.table[:-1]].any(axis=1))
            found.update(level[self.distances[level] >= 0].tolist())
            level = level[self.distances[level] < 0]
            if not level.size:
                break
        return sorted(found)

    def _runs(self, state: int, num_left: int) -> list[tuple[int, int, int]]:
        """Return where the rest of a character leads, as ranges of its last ``6 * num_left`` bits."""
        if state == DEAD or num_left == 0:
            return [] if state == DEAD else [(0, 0, state)]
        if (state, num_left) not in self._known:
            size, runs = 64 ** (num_left - 1), []
            for place, target in enumerate(self.automaton.table[state, slice(*FOLLOWING)].tolist()):
                runs += [(place * size + low, place * size + high, end)
                         for low, high, end in self._runs(target, num_left - 1)]
            self._known[state, num_left] = _merged(runs)
        return self._known[state, num_left]

    def _first_bytes(self, source: int, state: int) -> list[Range]:
        """Return the first bytes of characters that lead from ``source`` through ``state``."""
        row, found = self.automaton.table[source], []
        for byte in range(LEADS[1][0], LEADS[3][1]):
            level = {int(row[byte])} - {DEAD}
            while level and state not in level:
                level = {each for inside in level if self.is_inside(inside)
                         for each in np.unique(self.automaton.table[inside]).tolist()} - {DEAD}
            if state in level:
                found.append((byte, byte, state))
        return [(low, high) for low, high, _ in _merged(found)]

    def _num_left(self, state: int) -> int:
        """Return the number of bytes that the character still needs in a state inside of it."""
        num_left = 0
        while self.is_inside(state):
            state, num_left = int(self.automaton.table[state].max()), num_left + 1
        return num_left

    def _is_later(self, state: int) -> bool:
        """Check whether more than one byte of the character has led to a state inside of it."""
        before = np.flatnonzero((self.automaton.table[:-1] == state).any(axis=1))
        return bool((self.distances[before] < 0).any())


def _by_target(runs: list[tuple[int, int, int]]) -> dict[int, list[Range]]:
    ranges: dict[int, list[Range]] = {}
    for low, high, target in runs:
        ranges.setdefault(target, []).append((low, high))
    return ranges


def _merged(runs: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join runs that follow each other and lead to the same state. The surrogates, which are no text, are no gap."""
    merged: list[tuple[int, int, int]] = []
    for low, high, target in runs:
        if merged and merged[-1][2] == target and low in (merged[-1][1] + 1, _after(merged[-1][1])):
            merged[-1] = merged[-1][0], high, target
        else:
            merged.append((low, high, target))
    return merged


def _after(character: int) -> int:
    return SURROGATES[1] + 1 if character + 1 == SURROGATES[0] else character + 1


def character_label(ranges: list[Range]) -> str:
    """Return a short text for a set of characters: "0–9", "a, b", "any character", "any but ↵"."""
    if ranges == [(0, LAST_CHARACTER)]:
        return "any character"
    if ranges[-1][1] == LAST_CHARACTER and ranges[0][0] == 0:
        missing = [(last + 1, first - 1) for (_, last), (first, _) in zip(ranges, ranges[1:])]
        return "any but " + _listed(missing)
    return _listed(ranges)


def _listed(ranges: list[Range]) -> str:
    parts: list[str] = []
    for first, last in ranges:
        if last == LAST_CHARACTER:
            parts.append(f"{_named(first)}…")
        else:
            parts += [_named(first)] if first == last else [_named(first), _named(last)] if last == first + 1 else \
                [f"{_named(first)}–{_named(last)}"]
    return ", ".join(parts if len(parts) <= MAX_LABEL_PARTS else [*parts[:MAX_LABEL_PARTS - 1], "…"])


def _named(character: int) -> str:
    text = chr(character)
    return NAMES.get(text) or (text if unicodedata.category(text)[0] in "LNPS" else f"U+{character:04X}")


def _byte_label(ranges: list[Range]) -> str:
    parts = [f"{first:02X}" if first == last else f"{first:02X}–{last:02X}" for first, last in ranges]
    shown = parts if len(parts) <= MAX_LABEL_PARTS else [*parts[:MAX_LABEL_PARTS - 1], "…"]
    return f"byte{'s' if shown != parts or len(parts) > 1 or '–' in parts[0] else ''} {', '.join(shown)}"
