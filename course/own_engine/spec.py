"""Instructions for a process that runs an engine of a student's pieces."""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

#: The names in ``course.own_engine.workloads.WORKLOADS``, repeated here because that module imports MLX.
WORKLOADS = ("greedy", "seeded", "samples", "turns", "shared", "cache off", "preempts")
CAPSTONE = "capstone"
#: The workload with drafts, and the one whose outputs must be dates.
DRAFTS, DATES = "drafts", "dates"
#: Slot of phase 06 → the workload that runs only if the student fills it.
FURTHER_WORKLOADS = {"drafter": DRAFTS, "grammar": DATES}
#: The tokens of every output of every prompt, or an error message in place of the tokens.
Tokens = list[list[list[int]] | str]
#: Asks the process for its current stack.
STACK_SIGNAL = signal.SIGUSR1


def further_workloads(slots: Collection[str]) -> tuple[str, ...]:
    """Return the workloads of phase 06 that run with parts for these slots."""
    return tuple(name for slot, name in FURTHER_WORKLOADS.items() if slot in slots)


@dataclass(frozen=True)
class Try:
    """A set of a student's pieces; everything else is the reference's."""

    #: Lab number → file, for the pieces and their bases.
    files: dict[str, str]
    #: Numbers of the labs whose pieces are used.
    labs: list[str]


@dataclass(frozen=True)
class Spec:
    """The instructions. Paths are strings, because they are sent as JSON."""

    root: str = ""
    #: The rest of the spec is run with each of these in turn, up to and including the first that fails.
    tries: list[Try] = field(default_factory=list)
    model: str = "tiny-tales"
    #: None: no tale is told.
    prompt: str | None = None
    max_tokens: int = 80
    trace: str | None = None
    workloads: tuple[str, ...] = ()
    measures_speed: bool = False
    #: The reference's tokens in a workload, if they are already known.
    reference: dict[str, Tokens] = field(default_factory=dict)
    #: Report the tokens of each workload instead of comparing them.
    records_tokens: bool = False

    def lab_of_file(self) -> dict[str, str]:
        """Return file path, as written in tracebacks → the number of its lab."""
        return {str(Path(path).resolve()): number for pieces in self.tries for number, path in pieces.files.items()}
