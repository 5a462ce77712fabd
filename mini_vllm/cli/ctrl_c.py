"""A Ctrl-C that stops only the answer."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class CtrlC:
    """Inside the block, Ctrl-C sets a flag instead of raising: ``with CtrlC() as ctrl_c: … if ctrl_c.came``.

    An exception would interrupt the engine in the middle of a step. This way the step is finished before the flag is
    checked.
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
