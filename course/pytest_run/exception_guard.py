"""What a file under test raises must end its own test, and neither pytest nor what is told of it.

KeyboardInterrupt and ``pytest.exit()`` end all of pytest, an exception can lie about its class, and its text can be
endless. Each becomes an ordinary failure here. Ctrl-C stays what it is: it comes by a signal.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import types
from collections.abc import Iterator

import pytest

from course.core.failure_messages import (
    MAX_TEXT_CHARACTERS,
    EndsPytest,
    TimeLimitExceeded,
    Untellable,
    class_name,
    safe_str,
    shorten,
)


@contextlib.contextmanager
def tamed() -> Iterator[None]:
    """What runs in the block cannot end pytest by what it raises."""
    came: list[int] = []

    def on_ctrl_c(number: int, frame: types.FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    is_caught = before is signal.default_int_handler  # in the background Ctrl-C is ignored, and stays so
    if is_caught:
        signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        yield
    except BaseException as error:
        if came:
            raise
        _raise_tame(error, sys.exc_info()[2])
        raise
    finally:
        if is_caught:
            signal.signal(signal.SIGINT, before)


def _raise_tame(error: BaseException, trace: types.TracebackType | None) -> None:
    """Raise what stands for ``error``, from the same place; return if it may go on as it is."""
    if is_a(error, KeyboardInterrupt):
        raise EndsPytest("it raises KeyboardInterrupt").with_traceback(trace) from None
    if is_a(error, pytest.exit.Exception):
        raise EndsPytest("it calls pytest.exit()").with_traceback(trace) from None
    if is_odd(error):
        raise Untellable(f"it raises {class_name(error)}, an exception that hides its class").with_traceback(
            trace) from None
    try:
        text = safe_str(error)
    except TimeLimitExceeded as limit:
        raise limit from None  # or pytest would show both
    if len(text) == MAX_TEXT_CHARACTERS:  # pytest would copy it a dozen times
        raise Untellable(f"{class_name(error)}: {shorten(text, 1_000)}").with_traceback(trace) from None


def is_a(error: BaseException, kind: type[BaseException]) -> bool:
    """``isinstance``, but of what ``error`` is and not of what it says it is."""
    return issubclass(type(error), kind)


def is_odd(error: BaseException) -> bool:
    """Whether ``error`` can lie about its class, or fail when it is asked."""
    kinds = type.__dict__["__mro__"].__get__(type(error))
    return any({"__class__", "__getattribute__"} & set(type.__dict__["__dict__"].__get__(kind))
               for kind in kinds if kind is not BaseException and kind is not object)  # these two have them by right
