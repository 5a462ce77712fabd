"""What a process that runs an engine of a student's pieces is told to do."""

from __future__ import annotations

import signal
from dataclasses import dataclass

#: To be told where the process is.
STACK_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True)
class Spec:
    """What the process is to do. Paths are texts: it travels as JSON."""

    root: str
    #: Lab number → file, of pieces and of their bases.
    files: dict[str, str]
    #: Numbers of the labs whose pieces are put in.
    labs: list[str]
    model: str = "tiny-tales"
    #: None: no tale is told.
    prompt: str | None = None
    max_tokens: int = 80
    trace: str | None = None
    workloads: tuple[str, ...] = ()
    measures_speed: bool = False
