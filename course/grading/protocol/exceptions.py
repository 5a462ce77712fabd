"""Exceptions that cross: the class, the message, and the place in the file under test.

A class is described by its own name and the names of its bases, up to one that both sides know. If the class itself is
not known here, a class with its name is created, derived from the first known base. The same class is used every time,
so ``except lab.MyError`` catches what was raised.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable
from typing import Any

from course.grading.protocol.expanded_size import is_longer
from course.grading.protocol.interface import Connection
from course.grading.protocol.message_bytes import Incoming, Outgoing
from course.grading.protocol.socket_messages import ProtocolError

MAX_MESSAGE_CHARACTERS = 20_000
MAX_NAME_CHARACTERS = 80
MAX_CHAIN = 12
#: Names by which the grader recognises what ended a test. No exception of a submission may have them.
RESERVED = frozenset(("TimeLimitExceeded", "PrintFlood", "NotRun", "FileIsBroken", "LabRunFailed", "CanaryPassed",
                      "Gone", "ProtocolError", "TooMuch", "EndsPytest", "Untellable", "Skipped", "Failed", "Exit",
                      "XFailed"))
#: These would end the grader, or be mistaken for its own exceptions. Here only their names are used.
_NOT_OURS = (KeyboardInterrupt, GeneratorExit)
#: Python 3.10 has no exception groups.
_GROUPS: tuple[type, ...] = tuple(filter(None, [getattr(builtins, "BaseExceptionGroup", None)]))


class Errors:
    """Encodes and decodes exceptions for one peer."""

    def __init__(self, peer: Connection, find_class: Callable[[str], type | None],
                 file_name: str | None = None) -> None:
        self._peer = peer
        #: "module.Name" → the class with that name on this side, if there is one.
        self._find_class = find_class
        #: The file whose line numbers are reported.
        self._file_name = file_name
        self._made: dict[tuple[str, type], type[BaseException]] = {}

    # ---- writing

    def chain(self, kind: type[BaseException]) -> list[str]:
        """Return the names of a class and of its bases, up to and including the first built-in one."""
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
        """Return the last line of the file under test that the error passed through, and the name of its function."""
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
        # The message of nested groups grows exponentially.
        return None if issubclass(found, _GROUPS) else found

    def decode(self, incoming: Incoming, chain: Any, args: Any, message: Any, place: Any) -> BaseException:
        kind = self.class_of(chain)
        message = str(message)[:MAX_MESSAGE_CHARACTERS]
        error = None
        if args is not None and kind.__module__ in ("builtins", "far"):  # so that no code of the course runs
            with contextlib.suppress(Exception):
                arguments = self._peer.reading.decode(args, incoming)
                # Longer arguments cannot make this message, and str of them might never end.
                error = None if is_longer(arguments, MAX_MESSAGE_CHARACTERS) else kind(*arguments)
        if error is None or str(error) != message or isinstance(error, SyntaxError) and _is_odd(error):
            error = kind.__new__(kind)
            error.args = (message,)
        vars(error)["far_message"] = message
        if type(place) is list and len(place) == 2:
            vars(error)["far_place"] = (int(place[0]), str(place[1])[:MAX_NAME_CHARACTERS])
        return error


def _is_odd(error: SyntaxError) -> bool:
    """Return whether the error points at columns that no line has. Printing it would draw that many carets."""
    columns = (error.lineno, error.offset, error.end_lineno, error.end_offset)
    return not all(each is None or type(each) is int and -1 <= each <= MAX_MESSAGE_CHARACTERS for each in columns)


def _told(self: BaseException) -> str:
    return str(vars(self).get("far_message", self.args[0] if self.args else ""))


def _text(error: BaseException) -> str:
    """Return the message of an error. Its ``__str__`` may be the student's, and may raise anything."""
    try:
        return str(error)
    except BaseException as other:
        return f"(its text is not available: __str__ raised {type(other).__name__})"
