"""The console output for an instructor while a class is graded, and afterwards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from course.core.result import LabResult, Outcome, Provenance, StudentResult
from course.core.terminal_text import hanging
from course.grading.class_run.gradebook_rows import NOT_YET
from course.grading.class_run.worker_process import Job
from course.grading.intake.unclear import Kind, Unclear

MAX_LINES = 12
#: More lines are shown for what an instructor must decide: a class may have many odd names, and all should be listed.
MAX_UNCLEAR, MAX_ADVICE = 60, 1000
#: How often a line is written where there is no progress bar.
LINE_EVERY_S = 10.0
_COUNTED = {Outcome.GRADED.value: "graded", Outcome.MISSING.value: "missing", Outcome.UNREADABLE.value: "not readable",
            Outcome.GRADE_AGAIN.value: "to grade again", NOT_YET: "not graded yet"}


class Meter:
    """Counts files as they are graded."""

    def __init__(self, num_files: int, console: Console) -> None:
        self.num_files, self.num_done, self.num_again = num_files, 0, 0
        self._console = console
        self._since = self._told = time.monotonic()
        columns = (TextColumn("Grading"), BarColumn(bar_width=20), MofNCompleteColumn(),
                   TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=num_files, rate="")

    @property
    def files_per_minute(self) -> float:
        return 60 * self.num_done / max(time.monotonic() - self._since, 1e-3)

    @contextmanager
    def shown(self) -> Iterator[Meter]:
        if not self._console.is_terminal or not self.num_files:
            yield self
            return
        with self._bar:
            yield self

    def count(self, _job: Job, result: LabResult) -> None:
        self.num_done += 1
        self.num_again += result.outcome is Outcome.GRADE_AGAIN
        rate = f"{self.files_per_minute:.0f} a minute"
        self._bar.update(self._task, completed=self.num_done,
                         rate=f"{rate}, {self.num_again} to grade again" if self.num_again else rate)
        if not self._console.is_terminal and time.monotonic() - self._told > LINE_EVERY_S:
            self._told = time.monotonic()
            self._console.print(f"{self.num_done} of {self.num_files} files graded, {rate}")


def tell_begin(console: Console, provenance: Provenance, num_students: int, labs: Sequence[str]) -> None:
    what = f"lab {labs[0]}" if len(labs) == 1 else f"{len(labs)} labs"
    reach = "the network can be reached" if provenance.has_network else "no network"
    _say(console, f"{num_students} students, {what}; sandbox: {provenance.sandbox}, {reach}.")
    for sentence in provenance.not_defended:
        _say(console, f"  not defended: {sentence}", "dim")


def tell_unclear(console: Console, unclear: Sequence[Unclear]) -> None:
    """Print what an instructor must decide, each with advice; the rest by name."""
    still_open = [one for one in unclear if one.is_open]
    if still_open:
        _say(console, f"To decide, {len(still_open)} (they are not graded on a guess; all others are graded):")
    for one, after in zip(still_open[:MAX_UNCLEAR], [*still_open[1:], None]):
        of_student = f"{one.student} {one.lab}: " if one.lab and one.kind is not Kind.NOBODY else ""
        _say(console, f"  {_plain(of_student + one.why)}", indent=4)
        if one.advice and (after is None or after.advice != one.advice):  # print advice for several items only once
            _say(console, f"      {_plain(one.advice, MAX_ADVICE)}", "dim", indent=8)
    if len(still_open) > MAX_UNCLEAR:
        _say(console, f"  … and {len(still_open) - MAX_UNCLEAR} more; unclear.json has them all.")
    nobodys = [_plain(one.path) for one in unclear if not one.is_open and one.kind is Kind.NOBODY]
    if nobodys:
        more = f" and {len(nobodys) - MAX_LINES} more" if len(nobodys) > MAX_LINES else ""
        _say(console, f"Left out, because no student has such a name: {', '.join(nobodys[:MAX_LINES])}{more}.", "dim")


def tell_end(console: Console, students: Sequence[StudentResult], meter: Meter, out: Path,
             unclear: Sequence[Unclear] = ()) -> None:
    """Print the outcome of every file, and where the results are. Unclear files were listed at the beginning."""
    results = [result for student in students for result in student.labs.values()]
    counts = Counter(NOT_YET if result.reason == NOT_YET else result.outcome.value for result in results)
    parts = [f"{counts[what]} {name}" for what, name in _COUNTED.items() if counts[what]]
    now = f" ({meter.num_done} now, {meter.files_per_minute:.0f} a minute)" if meter.num_done else " (none new)"
    _say(console, f"{len(results)} files: {', '.join(parts)}{now}.")
    odd = [(student.student, result) for student in students for result in student.labs.values()
           if _is_odd(student, result)]
    told = {(one.student, one.lab) for one in unclear if one.is_open}
    twice = {one.student for one in unclear if one.is_open and one.kind is Kind.TWICE}
    _tell_each(console, [(student, result) for student, result in odd
                         if (student, result.lab) not in told and student not in twice])
    _tell_not_set(console, students)
    if counts[NOT_YET]:
        _say(console, "The same command, without --only and --shard, goes on with those that are not graded yet.")
    num_open = sum(one.is_open for one in unclear)
    if num_open:
        _say(console, f"To decide, {num_open}: see above, report.html or unclear.json. Then run the same command "
             "again.")
    _say(console, f"Results: {out}")


def _is_odd(student: StudentResult, result: LabResult) -> bool:
    """Return whether an instructor should look: there is no score though something was handed in, or there is a
    flag. If several labs are graded, a missing one is not odd."""
    if result.outcome is Outcome.MISSING:
        return student.is_submitted and len(student.labs) == 1
    return bool(result.flags) or (result.outcome is not Outcome.GRADED and result.reason != NOT_YET)


def _tell_each(console: Console, odd: Sequence[tuple[str, LabResult]]) -> None:
    for student, result in odd[:MAX_LINES]:
        flag = f" ({result.flags[0]})" if result.flags and result.flags[0] else ""
        words = f"flagged{flag}" if result.outcome is Outcome.GRADED else f"{result.reason}{flag}"
        _say(console, f"  {student} {result.lab}: {_plain(words)}", indent=4)
    if len(odd) > MAX_LINES:
        _say(console, f"  … and {len(odd) - MAX_LINES} more; grades.csv has them all.")


def _tell_not_set(console: Console, students: Sequence[StudentResult]) -> None:
    """Point out labs that no student handed in: perhaps they were not assigned."""
    handed_in = {number for student in students for number, result in student.labs.items()
                 if result.outcome is not Outcome.MISSING}
    nobody = [number for number in (students[0].labs if students else ()) if number not in handed_in]
    if nobody and handed_in:
        _say(console, f"Nobody handed in {', '.join(nobody)}. If they were not set, name those that were: "
             + " ".join(f"--lab {number}" for number in sorted(handed_in)[:3])
             + (" …" if len(handed_in) > 3 else "") + ", with a new --out.")


def _plain(text: str, max_characters: int = 300) -> str:
    """Reduce text, which may be a student's, to one line without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:max_characters]


def _say(console: Console, text: str, style: str = "", indent: int = 2) -> None:
    console.print(hanging(console, Text(text, style=style), indent))


def tell_problems(console: Console, problems: Iterable[str]) -> None:
    for problem in problems:
        _say(console, f"  {_plain(problem)}", "red", indent=4)
