"""Exceptions that cross: what was raised, in words, and where in the file under test.

A class is named by itself and those it is derived from, up to one that everybody knows. Where the first is not known
here, a class of its name is made, derived from the first that is; the same each time, so that what is caught by
``lab.MyError`` is what was raised.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable
from typing import Any

from course.grading.protocol.interface import Connection
from course.grading.protocol.message_bytes import Incoming, Outgoing
from course.grading.protocol.socket_messages import ProtocolError

MAX_MESSAGE_CHARACTERS = 20_000
MAX_NAME_CHARACTERS = 80
MAX_CHAIN = 12
#: Names by which the grader tells what ended a test. Nobody else may have them.
RESERVED = frozenset(("TimeLimitExceeded", "PrintFlood", "NotRun", "FileIsBroken", "LabRunFailed", "CanaryPassed",
                      "Gone", "ProtocolError", "TooMuch", "EndsPytest", "Untellable", "Skipped", "Failed", "Exit",
                      "XFailed"))
#: They would end the grader, or be taken for its own; here they are only names.
_NOT_OURS = (KeyboardInterrupt, GeneratorExit)
#: Python 3.10 has none.
_GROUPS: tuple[type, ...] = tuple(filter(None, [getattr(builtins, "BaseExceptionGroup", None)]))


class Errors:
    """Writes and reads exceptions for one peer."""

    def __init__(self, peer: Connection, find_class: Callable[[str], type | None],
                 file_name: str | None = None) -> None:
        self._peer = peer
        #: "module.Name" → the class of ours that is meant, if there is one.
        self._find_class = find_class
        #: The file whose lines are told.
        self._file_name = file_name
        self._made: dict[tuple[str, type], type[BaseException]] = {}

    # ---- writing

    def chain(self, kind: type[BaseException]) -> list[str]:
        """The names of a class and of those that it is derived from, as far as the first built-in one."""
        names = []
        for each in kind.__mro__[:MAX_CHAIN]:
            names.append(f"{each.__module__}.{each.__qualname__}"[:2 * MAX_NAME_CHARACTERS])
            if each.__module__ == "builtins":
                break
        return names

    def encode(self, error: BaseException, out: Outgoing) -> list[Any]:
        message = _text(error)
        args: Any = None
        num_buffers = len(out)
        try:
            args = self._peer.writing.encode(tuple(error.args), out)
        except Exception:
            del out[num_buffers:]
        return [self.chain(type(error)), args, message[:MAX_MESSAGE_CHARACTERS], self._place(error)]

    def _place(self, error: BaseException) -> list[Any] | None:
        """The last line of the file under test that the error went through."""
        if self._file_name is None:
            return None
        place = None
        step = error.__traceback__
        while step is not None:
            code = step.tb_frame.f_code
            if code.co_filename == self._file_name:
                place = [step.tb_lineno, code.co_name]
            step = step.tb_next
        return place

    # ---- reading

    def class_of(self, chain: Any) -> type[BaseException]:
        if type(chain) is not list or not chain or not all(type(name) is str for name in chain):
            raise ProtocolError("an exception without a class")
        base: type[BaseException] = Exception
        is_first = False
        for index, name in enumerate(chain[:MAX_CHAIN]):
            known = self._known(name)
            if known is not None:
                base, is_first = known, index == 0
                break
        if is_first and not issubclass(base, _NOT_OURS):
            return base
        if not issubclass(base, Exception):
            base = BaseException
        shown = "".join(c for c in chain[0].rpartition(".")[2] if c.isalnum() or c == "_")[:MAX_NAME_CHARACTERS]
        shown += "_" if shown in RESERVED else ""
        key = (chain[0], base)
        if key not in self._made:
            self._made[key] = type(shown or "Error", (base,), {"__module__": "far", "__str__": _told})
        return self._made[key]

    def _known(self, name: str) -> type[BaseException] | None:
        module, _, short = name.rpartition(".")
        found = getattr(builtins, short, None) if module == "builtins" else self._find_class(name)
        if not isinstance(found, type) or not issubclass(found, BaseException):
            return None
        # Groups in groups are told in exponentially many words.
        return None if issubclass(found, _GROUPS) else found

    def decode(self, incoming: Incoming, chain: Any, args: Any, message: Any, place: Any) -> BaseException:
        kind = self.class_of(chain)
        message = str(message)[:MAX_MESSAGE_CHARACTERS]
        error = None
        if args is not None and kind.__module__ in ("builtins", "far"):  # no code of the course's runs for it
            with contextlib.suppress(Exception):
                error = kind(*self._peer.reading.decode(args, incoming))
        if error is None or str(error) != message or isinstance(error, SyntaxError) and _is_odd(error):
            error = kind.__new__(kind)
            error.args = (message,)
        vars(error)["far_message"] = message
        if type(place) is list and len(place) == 2:
            vars(error)["far_place"] = (int(place[0]), str(place[1])[:MAX_NAME_CHARACTERS])
        return error


def _is_odd(error: SyntaxError) -> bool:
    """Whether it points at columns that no line has: whoever prints it draws as many carets."""
    columns = (error.lineno, error.offset, error.end_lineno, error.end_offset)
    return not all(each is None or type(each) is int and -1 <= each <= MAX_MESSAGE_CHARACTERS for each in columns)


def _told(self: BaseException) -> str:
    return str(vars(self).get("far_message", self.args[0] if self.args else ""))


def _text(error: BaseException) -> str:
    """What it says; its ``__str__`` may be anybody's."""
    try:
        return str(error)
    except BaseException as other:
        return f"(its text cannot be had: __str__ raised {type(other).__name__})"
