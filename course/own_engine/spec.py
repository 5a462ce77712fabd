"""Instructions for a process that runs an engine of a student's pieces."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

#: The names in ``course.own_engine.workloads.WORKLOADS``, repeated here because that module imports MLX.
WORKLOADS = ("greedy", "seeded", "samples", "turns", "shared", "cache off", "preempts")
CAPSTONE = "capstone"
#: The tokens of every output of every prompt, or an error message in place of the tokens.
Tokens = list[list[list[int]] | str]
#: Asks the process for its current stack.
STACK_SIGNAL = signal.SIGUSR1


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
