"""Ctrl-C that stops an answer and nothing else."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class CtrlC:
    """Inside the block, Ctrl-C is noted instead of raised: ``with CtrlC() as ctrl_c: … if ctrl_c.came``.

    An exception would come in the middle of a step of the engine. This way the step is finished, then one looks.
    """

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> CtrlC:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, signal_number: int, frame: FrameType | None) -> None:
        self.came = True
