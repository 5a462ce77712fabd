"""What a process that runs an engine of a student's pieces is told to do."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

#: Names of ``course.own_engine.workloads.WORKLOADS``, which would import MLX to say so.
WORKLOADS = ("greedy", "seeded", "samples", "turns", "shared", "cache off", "preempts")
CAPSTONE = "capstone"
#: Tokens of every output of every prompt; an error stands for tokens that never came.
Tokens = list[list[list[int]] | str]
#: To be told where the process is.
STACK_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True)
class Try:
    """Some pieces, and nothing else of a student's."""

    #: Lab number → file, of pieces and of their bases.
    files: dict[str, str]
    #: Numbers of the labs whose pieces are put in.
    labs: list[str]


@dataclass(frozen=True)
class Spec:
    """What the process is to do. Paths are texts: it travels as JSON."""

    root: str = ""
    #: All that follows is done with each of these, in turn; the first that fails is the last that is tried.
    tries: list[Try] = field(default_factory=list)
    model: str = "tiny-tales"
    #: None: no tale is told.
    prompt: str | None = None
    max_tokens: int = 80
    trace: str | None = None
    workloads: tuple[str, ...] = ()
    measures_speed: bool = False
    #: What the reference decodes in a workload, where that is known already.
    reference: dict[str, Tokens] = field(default_factory=dict)
    #: Instead of comparing, report the tokens of each workload.
    records_tokens: bool = False

    def lab_of_file(self) -> dict[str, str]:
        """Path of a file, as tracebacks name it → the number of its lab."""
        return {str(Path(path).resolve()): number for pieces in self.tries for number, path in pieces.files.items()}
