"""``course demo`` and ``course bench``: the engine's demonstrations of two of its pieces, run on the student's pieces.

As in ``course run``, a piece is the student's if a lab that provides it passes, else the reference's. The student's
pieces have passed their tests, so they run in this process.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from course.lab.lab import Lab, LabError
from course.lab.parts import Pieces, choose
from course.own_engine.requirements import check_machine
from course.student.run_command import show_whose

DEMOS = ("blocks",)
BENCHES = ("allocator",)


class Showpieces:
    """Demonstrations of pieces. ``passes`` says which labs have a piece of the student's, ``file_of`` where it is."""

    def __init__(self, labs: Sequence[Lab], console: Console, passes: Callable[[Lab], bool],
                 file_of: Callable[[Lab], Path] = lambda lab: lab.starter) -> None:
        self.labs, self.console, self.passes, self.file_of = labs, console, passes, file_of

    def demo_blocks(self) -> int:
        """Show three requests served by the manager on the pool. Raise LabError if a piece of the student's fails."""
        pieces = self._choose("kv_cache_manager", "block_pool")
        with self._failing_is_told(pieces):
            from course.own_engine.build_parts import build
            from mini_vllm.demo.blocks import show_blocks
            parts = build(pieces.files, pieces.labs)
            show_blocks(self.console, parts.kv_cache_manager, parts.block_pool)
        return 0

    def bench_allocator(self) -> int:
        """Time an operation of the pool at two sizes. Raise LabError if the student's pool fails."""
        pieces = self._choose("block_pool")
        with self._failing_is_told(pieces):
            from course.own_engine.build_parts import pieces_of
            from mini_vllm.benchmark.allocator import print_allocator
            from mini_vllm.block_pool import BlockPool
            print_allocator(pieces_of(pieces.files, pieces.labs).get("block_pool", BlockPool))
        return 0

    def _choose(self, *slots: str) -> Pieces:
        """Choose the pieces for these slots, regardless of the other slots, and print whose they are."""
        check_machine()

        def passes(lab: Lab) -> bool:
            return not lab.parts.keys().isdisjoint(slots) and self.passes(lab)

        chosen = choose(self.labs, passes, self.file_of)
        pieces = Pieces([seat for seat in chosen.seats if seat.slot in slots], chosen.files)
        show_whose(pieces, self.console, "Shown here")
        self.console.print()
        return pieces

    @contextmanager
    def _failing_is_told(self, pieces: Pieces) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not pieces.labs:
                raise
            files = {str(path.resolve()): number for number, path in pieces.files.items()}
            lines = [f" (line {frame.lineno} of your lab {files[frame.filename]}, in {frame.name})"
                     for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
            raise LabError(f"\nWith your parts this fails: {type(error).__name__}: {error}{(['', *lines])[-1]}. "
                           "To find the faulty part: course run") from error
