"""An exception from a file under test must end its own test; it must not end pytest or spoil the report.

KeyboardInterrupt and ``pytest.exit()`` end all of pytest, an exception can lie about its class, and its text can be
endless. Each becomes an ordinary failure here. Ctrl-C keeps its effect: it arrives as a signal.
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
    """Prevent exceptions raised in the block from ending pytest."""
    came: list[int] = []

    def on_ctrl_c(number: int, frame: types.FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    is_caught = before is signal.default_int_handler  # in the background Ctrl-C is ignored, and stays ignored
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
    """Raise a harmless substitute for ``error``, from the same place; return if ``error`` may propagate unchanged."""
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
        raise limit from None  # without the other exception, which pytest would also show
    if len(text) == MAX_TEXT_CHARACTERS:  # the text is too long: pytest would copy it a dozen times
        raise Untellable(f"{class_name(error)}: {shorten(text, 1_000)}").with_traceback(trace) from None


def is_a(error: BaseException, kind: type[BaseException]) -> bool:
    """Check ``isinstance`` by the real class of ``error``, not by the class it claims to have."""
    return issubclass(type(error), kind)


def is_odd(error: BaseException) -> bool:
    """Check whether ``error`` can lie about its class, or fail when asked for it."""
    kinds = type.__dict__["__mro__"].__get__(type(error))
    # The classes BaseException and object may define these two names: their definitions tell the truth.
    return any({"__class__", "__getattribute__"} & set(type.__dict__["__dict__"].__get__(kind))
               for kind in kinds if kind is not BaseException and kind is not object)
