"""Watch your allocator at work: forty requests in 72 slots, with the maximum reserved, in one piece, and in pages.

    course run --lab 1.2
    python see.py --requests 80

Each row is a moment, each column a slot, and each letter a request. You wrote ``ContiguousAllocator`` and
``blocks_needed``.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from rich.console import Console
from rich.text import Text

from course.lab.load_module import load_file

NUM_SLOTS, BLOCK_SIZE, NUM_REQUESTS = 72, 2, 40
#: The length of the longest request. A reservation must assume it.
MAX_SLOTS = 36
NUM_ROWS_SHOWN = 16
COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan")


@dataclass(frozen=True)
class Visitor:
    """A request, with the number of slots that it needs and the number of moments that it runs."""

    number: int
    num_slots: int
    duration: int

    @property
    def letter(self) -> str:
        return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[self.number % 26]


class OnePiece:
    """Memory in which each request has one run from the student's allocator.

    The run has exactly the length that the request needs, or a fixed length (``reserved``).
    """

    def __init__(self, lab: ModuleType, reserved: int | None = None) -> None:
        self._allocator = lab.ContiguousAllocator(NUM_SLOTS)
        self._reserved = reserved
        self._starts: dict[Visitor, int] = {}

    def take(self, visitor: Visitor) -> bool:
        start = self._allocator.allocate(self._reserved or visitor.num_slots)
        if start is not None:
            self._starts[visitor] = start
        return start is not None

    def give_back(self, visitor: Visitor) -> None:
        self._allocator.free(self._starts.pop(visitor))

    def slots(self) -> dict[int, Visitor]:
        return {start + i: visitor for visitor, start in self._starts.items() for i in range(visitor.num_slots)}

    @property
    def num_free(self) -> int:
        return NUM_SLOTS - len(self.slots())

    def why_not(self) -> str:
        if self._reserved:
            return "all of them are reserved"
        return f"the largest hole has {self._allocator.largest_hole}"


class Pages:
    """Memory in which a request takes any free blocks. The student's ``blocks_needed`` says how many."""

    def __init__(self, lab: ModuleType) -> None:
        self._blocks_needed: Callable[[int, int], int] = lab.blocks_needed
        self._free = list(range(NUM_SLOTS // BLOCK_SIZE))
        self._tables: dict[Visitor, list[int]] = {}

    def take(self, visitor: Visitor) -> bool:
        num_blocks = self._blocks_needed(visitor.num_slots, BLOCK_SIZE)
        if num_blocks > len(self._free):
            return False
        self._tables[visitor] = [self._free.pop(0) for _ in range(num_blocks)]
        return True

    def give_back(self, visitor: Visitor) -> None:
        self._free += self._tables.pop(visitor)

    def slots(self) -> dict[int, Visitor]:
        return {table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE: visitor
                for visitor, table in self._tables.items() for i in range(visitor.num_slots)}

    @property
    def num_free(self) -> int:
        return len(self._free) * BLOCK_SIZE

    def why_not(self) -> str:
        return "blocks_needed asks for more"


@dataclass
class Film:
    """How all requests were served. Each row contains the moment, the slots, and a remark."""

    rows: list[tuple[int, dict[int, Visitor], str]]
    num_moments: int
    mean_running: float
    #: Moments in which the first request of the queue waited although enough slots were free.
    num_with_room: int


def make_visitors(num_requests: int, seed: int = 1) -> list[Visitor]:
    rng = np.random.default_rng(seed)
    sizes = np.clip(np.rint(rng.lognormal(np.log(12.0), 0.6, num_requests)), 3, MAX_SLOTS)
    return [Visitor(number, int(size), int(rng.integers(2, 9))) for number, size in enumerate(sizes)]


def serve(memory: OnePiece | Pages, visitors: Sequence[Visitor]) -> Film:
    """Serve the requests first come, first served: no request overtakes the first one in the queue."""
    queue, running = deque(visitors), dict[Visitor, int]()
    rows, num_running, num_with_room, moment = [], 0, 0, 0
    while queue or running:
        for visitor in [each for each, end in running.items() if end == moment]:
            memory.give_back(visitor)
            del running[visitor]
        while queue and memory.take(queue[0]):
            running[queue[0]] = moment + queue[0].duration
            queue.popleft()
        slots, remark = memory.slots(), ""
        if queue and memory.num_free >= queue[0].num_slots:
            remark = f"{queue[0].letter} waits: it needs {queue[0].num_slots} of {memory.num_free} free slots, but " \
                     f"{memory.why_not()}"
            num_with_room += 1
        if not running and queue:
            raise RuntimeError(f"request {queue[0].number} needs {queue[0].num_slots} of {NUM_SLOTS} slots; all other "
                               f"requests have ended, and it still gets none: {memory.why_not()}")
        rows.append((moment, slots, remark))
        num_running += len(running)
        moment += 1
    return Film(rows, moment, num_running / moment, num_with_room)


def show(film: Film, title: str, console: Console) -> None:
    console.print(f"[bold]{title}[/]")
    told = ""
    for moment, slots, remark in film.rows[:NUM_ROWS_SHOWN]:
        row = Text(f"{moment:>3} ")
        for slot in range(NUM_SLOTS):
            visitor = slots.get(slot)
            row.append(visitor.letter if visitor else "·",
                       f"black on {COLOURS[visitor.number % len(COLOURS)]}" if visitor else "dim")
        console.print(row, soft_wrap=True)
        if remark and remark != told:
            console.print(Text(f"    {remark}", "bold"), soft_wrap=True)
        told = remark
    console.print("    …\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("starter.py"))
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.requests <= 10_000:
        parser.error(f"--requests is {arguments.requests}, must be between 1 and 10000")
    lab, console, visitors = load_file(arguments.file), Console(highlight=False), make_visitors(arguments.requests)
    films = {f"the maximum reserved, {MAX_SLOTS} slots per request": serve(OnePiece(lab, MAX_SLOTS), visitors),
             "in one piece of the final length": serve(OnePiece(lab), visitors),
             f"in pages of {BLOCK_SIZE}": serve(Pages(lab), visitors)}
    for name, film in films.items():
        show(film, name, console)
    console.print(f"{f'{len(visitors)} requests':<44} moments  at once  waits with room")
    for name, film in films.items():
        console.print(f"  {name:<42} {film.num_moments:>7} {film.mean_running:>8.1f} {film.num_with_room:>16}",
                      soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
