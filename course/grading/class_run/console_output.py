"""The console output for an instructor while a class is graded, and afterwards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from course.core.result import LabResult, Outcome, Provenance, StudentResult
from course.core.terminal_text import hanging
from course.grading.class_run.decisions import Decisions
from course.grading.class_run.gradebook_rows import NOT_YET
from course.grading.class_run.worker_process import Job
from course.grading.gradebook.marks import NO_TIME
from course.grading.intake.platforms import Unclear

MAX_LINES = 12
#: More lines are shown for what is not graded: a class may have many odd names, and all should be listed.
MAX_UNCLEAR = 60
#: How often a line is written where there is no progress bar.
LINE_EVERY_S = 10.0
#: A student who is excused and handed in nothing is not counted as missing.
EXCUSED = "excused"
_COUNTED = {Outcome.GRADED.value: "graded", Outcome.MISSING.value: "missing", Outcome.UNREADABLE.value: "not readable",
            EXCUSED: "excused", Outcome.GRADE_AGAIN.value: "to grade again", NOT_YET: "not graded yet"}


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
        _say(console, f"  gap in the sandbox: {sentence}", "dim")


def tell_gradebook(console: Console, decisions: Decisions) -> None:
    """Print which gradebook is used, and what in it has no effect yet."""
    if decisions.gradebook_path is not None:
        _say(console, f"Gradebook: {decisions.gradebook_path}")
    for note in decisions.notes[:MAX_LINES]:
        _say(console, f"  {_plain(note)}", "dim", indent=4)
    if len(decisions.notes) > MAX_LINES:
        _say(console, f"  … and {len(decisions.notes) - MAX_LINES} more", "dim")


def tell_unclear(console: Console, unclear: Sequence[Unclear]) -> None:
    """Print what was handed in and is not graded."""
    still_open = [one for one in unclear if one.is_open]
    if still_open:
        _say(console, f"Handed in, but not graded: {len(still_open)} (nothing is guessed). Rename or remove each, or "
             "set the points in overrides.csv.")
    for one in still_open[:MAX_UNCLEAR]:
        _say(console, f"  {_plain(' '.join(filter(None, (one.student, one.lab))) or one.path)}: {_plain(one.why)}",
             indent=4)
    if len(still_open) > MAX_UNCLEAR:
        _say(console, f"  … and {len(still_open) - MAX_UNCLEAR} more; unclear.json lists all.")


def tell_unused_times(console: Console, unused: Sequence[str]) -> None:
    """Print the rows of tables of times that fit no student or lab."""
    if unused:
        _say(console, f"Times that were not used, because they fit no student or lab: {len(unused)}", "dim")
    for sentence in unused[:MAX_LINES]:
        _say(console, f"  {_plain(sentence)}", "dim", indent=4)
    if len(unused) > MAX_LINES:
        _say(console, f"  … and {len(unused) - MAX_LINES} more", "dim")


def tell_outdated(console: Console, reasons: Mapping[str, int]) -> None:
    """Print why files that have a score are graded again."""
    for reason, num_files in reasons.items():
        _say(console, f"Graded again, because {reason}: {num_files} {'file' if num_files == 1 else 'files'}", "dim")


def tell_end(console: Console, students: Sequence[StudentResult], meter: Meter, out: Path,
             unclear: Sequence[Unclear] = ()) -> None:
    """Print the outcome of every file, and where the results are. Unclear files were listed at the beginning."""
    results = [result for student in students for result in student.labs.values()]
    counts = Counter(NOT_YET if result.reason == NOT_YET else EXCUSED if student.is_left_out(lab) else
                     result.outcome.value for student in students for lab, result in student.labs.items())
    parts = [f"{counts[what]} {name}" for what, name in _COUNTED.items() if counts[what]]
    now = f" ({meter.num_done} now, {meter.files_per_minute:.0f} per minute)" if meter.num_done else " (none new)"
    _say(console, f"{len(results)} files: {', '.join(parts)}{now}.")
    odd = [(student.student, result if not _waits_for_attempt(student, result) else replace(
               result, outcome=Outcome.GRADE_AGAIN, reason="Another attempt must be graded again."))
           for student in students for result in student.labs.values()
           if _is_odd(student, result)]
    told = {(one.student, one.lab) for one in unclear if one.is_open}
    _tell_each(console, [(student, result) for student, result in odd if (student, result.lab) not in told])
    _tell_not_set(console, students)
    _tell_no_times(console, students)
    if counts[NOT_YET]:
        _say(console, "The same command, without --only and --shard, grades the remaining files.")
    num_open = sum(one.is_open for one in unclear)
    if num_open:
        _say(console, f"Handed in, but not graded: {num_open}; see above, report.html or unclear.json.")
    _say(console, f"Results: {out}")


def _waits_for_attempt(student: StudentResult, result: LabResult) -> bool:
    """Return whether the lab has no points, because an attempt that may be better has no score."""
    mark = student.marks.get(result.lab)
    return mark is not None and mark.points is None and result.outcome is Outcome.GRADED


def _is_odd(student: StudentResult, result: LabResult) -> bool:
    """Return whether an instructor should look: there is no score though something was handed in, or there is a
    flag. If several labs are graded, a missing one is not odd."""
    if result.outcome is Outcome.MISSING:
        return student.is_submitted and len(student.labs) == 1 and not student.is_left_out(result.lab)
    if _waits_for_attempt(student, result):
        return True
    has_flag = any(flag != NO_TIME for flag in result.flags)
    return has_flag or (result.outcome is not Outcome.GRADED and result.reason != NOT_YET)


def _tell_each(console: Console, odd: Sequence[tuple[str, LabResult]]) -> None:
    for student, result in odd[:MAX_LINES]:
        flag = f" ({result.flags[0]})" if result.flags and result.flags[0] else ""
        words = f"flagged{flag}" if result.outcome is Outcome.GRADED else f"{result.reason}{flag}"
        _say(console, f"  {student} {result.lab}: {_plain(words)}", indent=4)
    if len(odd) > MAX_LINES:
        _say(console, f"  … and {len(odd) - MAX_LINES} more; grades.csv lists all.")


def _tell_not_set(console: Console, students: Sequence[StudentResult]) -> None:
    """Point out labs that no student handed in: perhaps they were not assigned."""
    handed_in = {number for student in students for number, result in student.labs.items()
                 if result.outcome is not Outcome.MISSING}
    nobody = [number for number in (students[0].labs if students else ()) if number not in handed_in]
    if nobody and handed_in:
        _say(console, f"No student handed in {', '.join(nobody)}. If that was not assigned, name the assigned labs: "
             + " ".join(f"--lab {number}" for number in sorted(handed_in)[:3])
             + (" …" if len(handed_in) > 3 else "") + ", and use a new --out.")


def _tell_no_times(console: Console, students: Sequence[StudentResult]) -> None:
    """Point out labs with a deadline where the time of a submission is not known."""
    untimed = Counter(number for student in students for number, result in student.labs.items()
                      if NO_TIME in result.flags)
    for number, count in untimed.items():
        _say(console, f"  Lab {number} has a deadline. Submissions without a known time: {count}. Lateness costs them "
             "nothing; --times adds times.", indent=4)


def _plain(text: str, max_characters: int = 300) -> str:
    """Reduce text, which may be a student's, to one line without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:max_characters]


def _say(console: Console, text: str, style: str = "", indent: int = 2) -> None:
    console.print(hanging(console, Text(text, style=style), indent))


def tell_problems(console: Console, problems: Iterable[str]) -> None:
    for problem in problems:
        _say(console, f"  {_plain(problem)}", "red", indent=4)
