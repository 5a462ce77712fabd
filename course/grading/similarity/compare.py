"""Finds submissions that are similar where they could differ: in task bodies, apart from what the class has in common.

Starter and solution are nearly the same text, so whole files say nothing. These are left out: bodies of two statements,
which can hardly be written in two ways; bodies that most of the class wrote alike; and runs of tokens that most
students have. The rest is compared as sets of such runs. Nothing here changes a score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from course.grading.similarity.task_bodies import Body, Unreadable, bodies_of, task_names
from course.lab.lab import Lab
from course.lab.starters import clean_solution, declared_names, make_starter

REFERENCE = "the reference"
#: The number of tokens in a run; shorter runs occur in every program.
RUN = 8
MAX_TRIVIAL_STATEMENTS = 2
#: The class size from which "most of the class" is meaningful.
MIN_CLASS = 5
#: Pairs that are less similar than this are not shown; the second number is for bodies.
MIN_RATIO, MIN_BODY_RATIO = 0.6, 0.7
#: The number of runs that each file of a pair must have: three lines that agree are not a finding.
MIN_RUNS = 40
MAX_PAIRS, MAX_BODIES = 40, 4


@dataclass(frozen=True)
class SharedBody:
    name: str
    ratio: float
    first_text: str
    second_text: str


@dataclass(frozen=True)
class Pair:
    first: str
    #: Another student, or ``REFERENCE``.
    second: str
    #: From 0 to 1: how much of the shorter one is in the other, so that a copy of a half counts as a copy.
    ratio: float
    bodies: tuple[SharedBody, ...]


@dataclass(frozen=True)
class Similarity:
    """The findings for one lab, the most similar first."""

    lab: str
    num_compared: int
    pairs: tuple[Pair, ...]
    #: How many pairs were similar enough to be shown, including those beyond the maximum.
    num_alike: int
    #: Body → why it was not compared.
    left_out: dict[str, str]
    #: Student → why the file was not compared.
    not_compared: dict[str, str]
    #: How many pairs were left out because both students are in the same group.
    num_in_groups: int = 0


Runs = frozenset[tuple[str, ...]]


def compare(lab: Lab, texts: Mapping[str, str], groups: Mapping[str, str] | None = None) -> Similarity:
    """Compare the students' texts with each other and with the reference. The texts are read, never run.

    ``groups`` maps students to their groups. Students of one group hand in the same work, so they are not compared with
    each other.
    """
    solution = lab.solution.read_text(encoding="utf-8")
    starter = make_starter(solution, lab.relative(lab.solution))[0]
    known = frozenset(declared_names(starter))
    reference, shipped = bodies_of(clean_solution(solution), known), bodies_of(starter, known)
    left_out = {name: "so short that there is hardly another way to write it" for name in task_names(solution)
                if name in reference and reference[name].num_statements <= MAX_TRIVIAL_STATEMENTS}
    tasks = [name for name in task_names(solution) if name in reference and name not in left_out]
    written, not_compared = _written(texts, tasks, known, shipped)
    left_out |= _shared_by_most(written, tasks)
    tasks = [name for name in tasks if name not in left_out]
    everyone = {**written, REFERENCE: {name: reference[name] for name in tasks}}
    runs = _rare_runs(everyone, tasks, shipped, len(written))
    alike, num_in_groups = _alike(runs, groups or {})
    pairs = tuple(_pair(first, second, ratio, everyone, runs) for ratio, first, second in alike[:MAX_PAIRS])
    return Similarity(lab.number, len(written), pairs, len(alike), left_out, not_compared,
                      num_in_groups)


def _written(texts: Mapping[str, str], tasks: list[str], known: frozenset[str],
             shipped: Mapping[str, Body]) -> tuple[dict[str, dict[str, Body]], dict[str, str]]:
    """Return for each student the bodies that differ from the starter, and for each unreadable file the reason."""
    written, not_compared = {}, {}
    for student, text in texts.items():
        try:
            bodies = bodies_of(text, known)
        except Unreadable as error:
            not_compared[student] = str(error)
            continue
        written[student] = {name: bodies[name] for name in tasks if name in bodies
                            and (name not in shipped or bodies[name].tokens != shipped[name].tokens)}
    return written, not_compared


def _shared_by_most(written: Mapping[str, Mapping[str, Body]], tasks: Iterable[str]) -> dict[str, str]:
    left_out = {}
    for name in tasks:
        versions = Counter(bodies[name].tokens for bodies in written.values() if name in bodies)
        count = max(versions.values(), default=0)
        if versions.total() >= MIN_CLASS and count > versions.total() / 2:
            left_out[name] = f"{count} of {versions.total()} wrote the same"
    return left_out


def _rare_runs(everyone: Mapping[str, Mapping[str, Body]], tasks: list[str], shipped: Mapping[str, Body],
               class_size: int) -> dict[str, dict[str, Runs]]:
    """Return for each student and body its runs of tokens, without those in the starter or in most submissions."""
    runs = {who: {name: _runs(bodies[name]) for name in tasks if name in bodies} for who, bodies in everyone.items()}
    common = {(name, run) for name in tasks if name in shipped for run in _runs(shipped[name])}
    if class_size >= MIN_CLASS:
        holders = Counter((name, run) for who, by_name in runs.items() if who != REFERENCE
                          for name, of_body in by_name.items() for run in of_body)
        common |= {key for key, count in holders.items() if count > class_size / 2}
    return {who: {name: frozenset(run for run in of_body if (name, run) not in common)
                  for name, of_body in by_name.items()} for who, by_name in runs.items()}


def _runs(body: Body) -> Runs:
    return frozenset(body.tokens[i:i + RUN] for i in range(max(len(body.tokens) - RUN, 0) + 1))


def _alike(runs: Mapping[str, Mapping[str, Runs]], groups: Mapping[str, str]) -> tuple[
        list[tuple[float, str, str]], int]:
    """Return similar pairs, the most similar first, and the number of pairs that are within a group.

    The runs of each file are the bits of one number: a class of 200 has 20,000 pairs, and each costs one "and".
    """
    places: dict[tuple[str, tuple[str, ...]], int] = {}
    bits = {}
    for who, by_name in runs.items():
        keys = [(name, run) for name, of_body in by_name.items() for run in of_body]
        bits[who] = _as_bits([places.setdefault(key, len(places)) for key in keys])
    sizes = {who: number.bit_count() for who, number in bits.items()}
    large = [who for who, size in sizes.items() if size >= MIN_RUNS]
    found = []
    sizes_of_groups = Counter(groups[who] for who in runs if who in groups)
    for first, second in combinations(large, 2):
        if first in groups and groups[first] == groups.get(second):
            continue
        ratio = (bits[first] & bits[second]).bit_count() / min(sizes[first], sizes[second])
        if ratio >= MIN_RATIO:
            found.append((ratio, first, second))
    return (sorted(found, key=lambda pair: (-pair[0], pair[1], pair[2])),
            sum(size * (size - 1) // 2 for size in sizes_of_groups.values()))


def _as_bits(places: list[int]) -> int:
    octets = bytearray(max(places, default=0) // 8 + 1)
    for place in places:
        octets[place // 8] |= 1 << place % 8
    return int.from_bytes(octets, "little")


def _pair(first: str, second: str, ratio: float, everyone: Mapping[str, Mapping[str, Body]],
          runs: Mapping[str, Mapping[str, Runs]]) -> Pair:
    shared = []
    for name, mine in runs[first].items():
        theirs = runs[second].get(name, frozenset())
        body_ratio = 2 * len(mine & theirs) / (len(mine) + len(theirs)) if mine and theirs else 0.0
        if body_ratio >= MIN_BODY_RATIO:
            shared.append((len(mine & theirs), SharedBody(name, body_ratio, everyone[first][name].text,
                                                          everyone[second][name].text)))
    longest = sorted(shared, key=lambda found: -found[0])[:MAX_BODIES]
    return Pair(first, second, ratio, tuple(body for _, body in longest))
