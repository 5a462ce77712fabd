"""Turn the error that ended a test into a sentence that a student can act on."""

from __future__ import annotations

import errno
import re
import resource
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the `course` command uses the kinds and sentences defined here, and does not need pytest for that
    import pytest
    from _pytest._code.code import TerminalRepr

_STUB = re.compile(r"Task (\d+): ")
#: Twenty numbers or more: group 1 is the first three, group 2 the last two.
LONG_LIST = re.compile(r"(?<!\d)((?:-?\d+, ){3})(?:-?\d+, ){15,}(-?\d+, -?\d+)")
#: How many characters of a text are searched for such lists.
MAX_SEARCHED_CHARACTERS = 1_000_000
#: How long one test of a lab may compute, in seconds of CPU time.
DEFAULT_TIME_LIMIT_S = 10.0
#: How many characters of an exception's text are read, and how many of a failure are shown.
MAX_TEXT_CHARACTERS, MAX_SHOWN_CHARACTERS = 1_000_000, 40_000
NUM_PRINTED_LINES = 5
MAX_PRINTED_LINE_CHARACTERS = 200

#: Kinds of failure, as the report names them. Any other kind is the name of the exception.
TIME_LIMIT, PRINT_FLOOD, NOT_RUN = "TimeLimitExceeded", "PrintFlood", "NotRun"
BROKEN_FILE, NO_PYTEST = "FileIsBroken", "LabRunFailed"
#: Each failure of these kinds took seconds. After a few of them the rest of a lab is not run.
STUCK = (TIME_LIMIT, PRINT_FLOOD)


class TimeLimitExceeded(BaseException):
    """Raised inside a test that runs too long. Not an Exception: ``except Exception`` must not swallow it."""

    def __init__(self, seconds: float, clock: str) -> None:
        super().__init__(f"{seconds:g} s {clock}")
        self.has_only_waited = clock != "of CPU time"


class FileIsBroken(Exception):
    """The file under test could not be loaded; the message says why."""


class NotRun(Exception):
    """The test was not started; the message says why."""


class EndsPytest(Exception):
    """The file under test raised an exception that would end all of pytest; the message names it."""


class Untellable(Exception):
    """The file under test raised an exception that cannot be shown; the message says why."""


def class_name(error: BaseException) -> str:
    """Return the name of the error's class, even if a metaclass hides it."""
    return str(type.__dict__["__name__"].__get__(type(error)))


def safe_str(value: object) -> str:
    """Return ``str(value)``, whatever its ``__str__`` does. Only TimeLimitExceeded is passed on."""
    try:
        return str.__getitem__(str(value), slice(MAX_TEXT_CHARACTERS))
    except TimeLimitExceeded:
        raise
    except BaseException as error:
        return f"<its __str__ raised {class_name(error)}>"


def kind_of(error: BaseException | None) -> str | None:
    """Return the report's name for this failure. A write past the limit on file sizes counts as a flood of prints."""
    if error is None:
        return None
    return PRINT_FLOOD if isinstance(error, OSError) and error.errno == errno.EFBIG else class_name(error)


def stub_task(kind: str | None, message: str) -> int | None:
    """Return the task number if an unwritten body (a stub) ended the test, else None."""
    found = _STUB.match(message) if kind == "NotImplementedError" else None
    return int(found[1]) if found else None


def is_stub(kind: str | None, message: str) -> bool:
    """Check whether the test was ended by a body that the starter leaves to the student."""
    return stub_task(kind, message) is not None


def why_broken(error: BaseException, path: Path, name: str, lab_number: str, is_own: bool = True) -> str:
    """Explain why the file at ``path``, shown as ``name``, could not be loaded.

    ``is_own``: it is a starter of this course.
    """
    if isinstance(error, FileNotFoundError) and error.filename and Path(error.filename) == path:
        return f"{name} is missing." + (f" `course reset {lab_number}` restores the shipped one." if is_own else "")
    if isinstance(error, SyntaxError) and error.filename == str(path):
        source = (error.text or "").rstrip("\n")
        caret = " " * (max(error.offset or 1, 1) - 1) + "^"
        return f"{name} does not parse, line {error.lineno}: {error.msg}\n    {source}\n    {caret}"
    if isinstance(error, TimeLimitExceeded):
        return f"importing {name} did not finish within {error}{where(path, error)}"
    return f"{name} cannot be imported: {why_failed(error, path)}"


def why_failed(error: BaseException, path: Path, when: str = "call") -> str:
    """Explain why a test failed, and where in the file under test."""
    place = where(path, error)
    text = safe_str(error)
    if isinstance(error, (FileIsBroken, NotRun)) or is_stub(kind_of(error), text):
        return text
    if isinstance(error, (EndsPytest, Untellable)):
        return f"{text}{place}"
    if isinstance(error, TimeLimitExceeded):
        what = "the test" if when == "call" else when
        question = ("does it wait for something?" if error.has_only_waited
                    else "is there a loop that never ends, or is it too slow?")
        return f"{what} did not finish within {error}{place}: {question}"
    if kind_of(error) == PRINT_FLOOD:
        return f"it printed more than {_file_limit_mb()} MB{place}: is there a print in a loop?"
    if isinstance(error, SystemExit):
        return f"it calls exit(){place}"
    if isinstance(error, AssertionError) or class_name(error) == "Failed":  # pytest.fail() raises Failed
        # Drop the lines that pytest's assertion rewriting adds.
        return shorten(text.split("\nassert ")[0]) + place + _noted(error)
    return f"{class_name(error)}: {shorten(text)}{place}{_noted(error)}"


def _noted(error: BaseException) -> str:
    """Return the notes that were added to an error while it was passed on, such as the step of a simulation."""
    notes = vars(error).get("__notes__", ())
    return "".join(f", {shorten(note, 200)}" for note in notes if type(note) is str) if type(notes) is list else ""


def where(path: Path, error: BaseException) -> str:
    """Return where in the file at ``path`` an error was raised: `` (starter.py:88 in remove)``."""
    if (place := vars(error).get("far_place")) is not None:  # raised in a sandbox
        return f" ({path.name}:{place[0]} in {place[1]})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" ({path.name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""


def _file_limit_mb() -> int:
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] >> 20


def last_printed(report: pytest.TestReport) -> str:
    """Return the last lines that a test printed."""
    return last_lines("".join(content for title, content in report.sections if title.startswith("Captured stdout")))


def last_lines(text: str) -> str:
    """Return the last lines of ``text``, each shortened."""
    lines = text[-10_000:].rstrip().splitlines()[-NUM_PRINTED_LINES:]
    return "\n".join(line if len(line) <= MAX_PRINTED_LINE_CHARACTERS else f"{line[:MAX_PRINTED_LINE_CHARACTERS]}…"
                     for line in lines)


def tell(report: pytest.TestReport, call: pytest.CallInfo[None], path: Path) -> str:
    """Return why the test failed, or "" if it did not.

    Where the message says more than a traceback would, ``report`` is changed to show the message.
    """
    excinfo = call.excinfo
    error = excinfo.value if excinfo else None
    if report.skipped or hasattr(report, "wasxfail"):
        message = f"the file under test skipped this test ({shorten(safe_str(error))}); a skipped test does not count"
        report.outcome, report.longrepr = "failed", message
        vars(report).pop("wasxfail", None)
        return message
    if excinfo is None or error is None:
        return ""
    message = why_failed(error, path, call.when)
    if isinstance(error, (FileIsBroken, NotRun, EndsPytest, Untellable)):
        report.longrepr = one_sentence(excinfo, message)
    elif is_stub(kind_of(error), message):
        report.longrepr = one_sentence(excinfo, f"NotImplementedError: {message}")
    elif kind_of(error) in STUCK or len(report.longreprtext) > MAX_SHOWN_CHARACTERS:
        report.longrepr = message
    return message


def untold(item: pytest.Item, call: pytest.CallInfo[None], error: BaseException | None, trouble: BaseException
           ) -> tuple[pytest.TestReport, str]:
    """Make a report and its message for a test whose exception cannot be shown because ``trouble`` was raised."""
    import pytest  # already loaded by now; the `course` command imports this module without pytest
    why = "takes too long" if isinstance(trouble, TimeLimitExceeded) else f"raises {class_name(trouble)}"
    message = f"it raises {class_name(error) if error else 'an exception'}, and showing it {why}"
    report = pytest.TestReport.from_item_and_call(item, pytest.CallInfo.from_call(lambda: None, call.when))
    report.outcome, report.longrepr, report.duration = "failed", message, call.duration
    return report, message


def one_sentence(excinfo: pytest.ExceptionInfo[BaseException], sentence: str) -> TerminalRepr:
    """Show a failure without its traceback, which would lead through the tests although the error is elsewhere."""
    shown = excinfo.getrepr(style="value")
    shown.reprtraceback.reprentries[0].lines = sentence.splitlines()
    if shown.reprcrash is not None:  # shown in the summary at the end
        shown.reprcrash.message = sentence
    return shown


def shorten(text: str, limit: int = 1_500) -> str:
    """Cut the middle out of long lists of numbers, and then the end off a text that is still too long.

    Only the beginning of a very long text is searched for lists: searching all of it would take seconds.
    """
    searched, rest = text[:MAX_SEARCHED_CHARACTERS], text[MAX_SEARCHED_CHARACTERS:]
    text = LONG_LIST.sub(r"\1…, \2", searched) + rest
    return text if len(text) <= limit else f"{text[:limit]}\n… and {len(text) - limit:,} more characters"
