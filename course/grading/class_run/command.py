"""``course grade``: a class, from its submissions to the results that can be given back.

    places ─▶ whose is what ─▶ read, bounded ─▶ what is left to do ─▶ workers ─▶ store ─▶ tables and pages

Nothing is graded up to the third arrow. Everything that is unclear is listed there, and does not stop the rest. From
then on every result is on the disk as soon as it is known, and tables and pages are written however the run ends. If a
run is killed, at any moment, the same command resumes it.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from course.core.result import LabResult, Outcome, Override, Provenance, StudentResult
from course.grading.class_run.check_folders import check_places, claim
from course.grading.class_run.console_output import Meter, tell_begin, tell_end, tell_problems, tell_unclear
from course.grading.class_run.gradebook_rows import NOT_YET, Rows
from course.grading.class_run.overrides import read_overrides
from course.grading.class_run.plan import Shard, check_student, is_to_do, read_regrade, read_shard
from course.grading.class_run.result_key import check_hidden, key_of
from course.grading.class_run.store import Record, Store, workshop
from course.grading.class_run.worker_pool import COMMAND, Pool
from course.grading.class_run.worker_process import Job
from course.grading.class_run.write_exports import hand_out
from course.grading.intake.assign_owners import Settled, settle
from course.grading.intake.find_submissions import Found, find
from course.grading.intake.lms_names import read_pattern
from course.grading.intake.match_labs import TakenIn, take_in
from course.grading.intake.roster import Student, read_roster
from course.grading.intake.strays import Strays, with_notes
from course.grading.intake.unclear import Kind, Unclear
from course.grading.limits import Settings
from course.lab.lab import Lab, LabError, discover, find_lab
from course.pytest_run.provenance import SandboxInfo, make_provenance

Export = Callable[[Path, Sequence[StudentResult], Provenance, Sequence[Lab], Sequence[Unclear]], Sequence[str]]


@dataclass(frozen=True)
class GradeOptions:
    """The options of the command line."""

    submissions: Path
    out: Path
    settings: Settings = Settings()
    labs: Sequence[str] = ()
    only: Sequence[str] = ()
    regrade: Sequence[str] = ()
    roster: Path | None = None
    overrides: Path | None = None
    pattern: str | None = None
    allow_unknown: bool = False
    takes_latest: bool = False
    num_jobs: int | None = None
    shard: str | None = None


def find_level(wanted: str) -> SandboxInfo:
    """Return the sandbox of this machine. Raise LabError if it has none and one is required."""
    sandbox = importlib.import_module("course.grading.sandbox")
    try:
        level = sandbox.choose_level(wanted)
    except sandbox.SandboxError as error:
        raise LabError(str(error)) from None
    return SandboxInfo(level.value, *sandbox.describe(level))


class ClassGrader:
    """One call of the command."""

    def __init__(self, wish: GradeOptions, root: Path, console: Console, command: Sequence[str] = COMMAND,
                 level_of: Callable[[str], SandboxInfo] = find_level, export: Export = hand_out) -> None:
        check_places(wish.submissions, wish.out, root)
        self._wish, self._root, self._console = wish, root, console
        self._command, self._export = command, export
        self._labs = discover(root)
        self._asked = sorted({find_lab(name, self._labs) for name in wish.labs} or set(self._labs),
                             key=self._labs.index)
        if wish.settings.hidden is not None:
            check_hidden(wish.settings.hidden, self._labs)
        self._shard = read_shard(wish.shard) if wish.shard else Shard()
        self._store = Store(wish.out)
        self._settled, self._nobodys = self._find()
        self._students = {one.student.id: one.student for one in self._settled.submissions}
        for student in wish.only:
            check_student(student, self._students, "--only")
        self._again = read_regrade(wish.regrade, self._students, self._labs)
        self._rows = Rows(self._store, self._students, bool(wish.roster), self._labs, self._asked, wish.settings.hidden)
        self._rows.overrides = self._read_overrides()
        self._provenance = make_provenance(
            root, self._rows.labs, {"time_limit_s": wish.settings.time_limit_s}, level_of(wish.settings.sandbox),
            wish.settings.hidden)
        #: The number of files in this call that end up without a score.
        self._num_again = 0
        self._unclear: list[Unclear] = []

    def run(self) -> int:
        """Grade the class. Return 0 if all is graded, 1 if something must be graded again or decided by an
        instructor, or could not be written."""
        wish = self._wish
        tell_begin(self._console, self._provenance, len(self._students), [lab.number for lab in self._asked])
        claim(wish.out)
        with workshop(wish.out, self._shard.name) as folder:
            jobs = self._take_in()
            tell_unclear(self._console, self._unclear)
            request = {"root": str(self._root), "settings": _as_json(wish.settings)}
            pool = Pool(wish.num_jobs or os.cpu_count() or 1, folder, request, self._command)
            meter = Meter(len(jobs), self._console)
            problems: Sequence[str] = ()
            try:
                with meter.shown(), _ending_on_term():
                    for job, result in pool.run(list(jobs)):
                        self._store.put(replace(jobs[replace(job, is_second=False)], result=self._rows.whole(result)))
                        self._num_again += result.outcome is Outcome.GRADE_AGAIN
                        meter.count(job, result)
            finally:
                rows = self._rows.make()
                problems = self._export(wish.out, rows, self._provenance, self._rows.labs, self._unclear)
                tell_end(self._console, rows, meter, wish.out, self._unclear)
                tell_problems(self._console, problems)
        return 1 if self._num_again or problems or any(one.is_open for one in self._unclear) else 0

    # ---- before anything is graded

    def _find(self) -> tuple[Settled, list[Found]]:
        """Assign the submissions to students; also return what belongs to no student."""
        wish = self._wish
        roster = read_roster(wish.roster) if wish.roster else None
        found, left_out = find(wish.submissions, read_pattern(wish.pattern) if wish.pattern else None)
        settled = settle(found, roster, wish.allow_unknown, wish.takes_latest, self._labs)
        return settled, left_out + settled.nobodys

    def _read_overrides(self) -> dict[str, dict[str, Override]]:
        path = self._wish.overrides or self._wish.out / "overrides.csv"
        if self._wish.overrides is None and not path.is_file():
            return {}
        return read_overrides(path, self._rows.students, self._rows.max_points)

    def _take_in(self) -> dict[Job, Record]:
        """Read the submissions, and record what cannot be graded. Return the jobs, each with its future record."""
        jobs: dict[Job, Record] = {}
        strays = Strays(self._labs, self._asked, self._root)
        without = [one.student.id for one in self._settled.submissions if not one.parts and not one.problem]
        unclear = self._settled.unclear + strays.of_nobody(self._nobodys, self._students, without)
        for submission in self._settled.submissions:
            student = submission.student
            taken = take_in(submission, self._labs, self._asked)
            found = strays.of(submission, taken)
            unclear += found
            if not self._wish.only or student.id in self._wish.only:
                taken = with_notes(taken, found)
                for number in taken.files:
                    jobs.update(self._settle_file(student, number, taken))
        self._unclear = [replace(one, is_open=one.is_open and not self._is_decided(one)) for one in unclear]
        return jobs

    def _is_decided(self, unclear: Unclear) -> bool:
        """Return whether the instructor has given points for the labs in question: all labs, if handed in twice."""
        given = self._rows.overrides.get(unclear.student, {})
        labs = [lab.number for lab in self._asked] if unclear.kind is Kind.TWICE else [unclear.lab]
        return all(lab in given for lab in labs)

    def _settle_file(self, student: Student, lab: str, taken: TakenIn) -> dict[Job, Record]:
        """Return the job for a file, if it has to be graded."""
        file = taken.files[lab]
        self._store.put_text(student.id, lab, file.content)
        key = self._rows.keys[student.id, lab] = key_of(lab, file.sha256, self._provenance, self._wish.settings)
        outcome = (Outcome.GRADE_AGAIN if file.content or file.is_undecided else
                   Outcome.MISSING if file.is_missing else Outcome.UNREADABLE)
        record = Record(student.id, LabResult(lab, outcome, self._rows.unearned[lab], file.problem or NOT_YET),
                        key, student.name, taken.notes, taken.is_submitted)
        if not file.content:
            self._store.put(record)
            return {}
        job = Job(student.id, lab, file.content, file.lab.time_factor)
        known = self._store.get(student.id, lab)
        is_mine = self._shard.has(student.id, lab)
        return {job: record} if is_mine and is_to_do(job, key, known, self._again) else {}


def _as_json(settings: Settings) -> dict[str, Any]:
    return {**asdict(settings), "hidden": str(settings.hidden.resolve()) if settings.hidden else None}


@contextmanager
def _ending_on_term() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: the workers are ended, and the tables are written."""
    def end(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
