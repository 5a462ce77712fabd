"""What a process that runs an engine of a student's pieces is told to do."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

#: Tokens of every output of every prompt; an error stands for tokens that never came.
Tokens = list[list[list[int]] | str]
#: To be told where the process is.
STACK_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True)
class Spec:
    """What the process is to do. Paths are texts: it travels as JSON."""

    root: str = ""
    #: Lab number → file, of pieces and of their bases.
    files: dict[str, str] = field(default_factory=dict)
    #: Numbers of the labs whose pieces are put in.
    labs: list[str] = field(default_factory=list)
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
