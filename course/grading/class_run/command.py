"""``course grade``: a class, from its submissions to the results that can be given back.

    places ─▶ whose is what ─▶ read, bounded ─▶ what is left to do ─▶ workers ─▶ store ─▶ tables and pages

Nothing is graded up to the third arrow. Everything that is unclear is listed there, and does not stop the rest. From
then on every result is on the disk as soon as it is known, and tables and pages are written however the run ends. If a
run is killed, at any moment, the same command resumes it.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from course.core.child_process import ending_on_signals
from course.core.result import LabResult, Outcome, Provenance, StudentResult
from course.grading.class_run.check_folders import check_places
from course.grading.class_run.console_output import (
    Meter,
    tell_begin,
    tell_end,
    tell_gradebook,
    tell_outdated,
    tell_problems,
    tell_unclear,
    tell_unused_times,
)
from course.grading.class_run.decisions import DecisionFiles
from course.grading.class_run.gradebook_rows import NOT_YET, Rows
from course.grading.class_run.handed_in import HandedIn, with_new
from course.grading.class_run.last_call import check_used, claim, not_none
from course.grading.class_run.plan import Shard, check_student, is_to_do, read_regrade, read_shard, why_outdated
from course.grading.class_run.preview import tell_changes
from course.grading.class_run.result_key import check_hidden, key_of
from course.grading.class_run.store import Record, Store, workshop
from course.grading.class_run.worker_pool import COMMAND, Pool
from course.grading.class_run.worker_process import Job
from course.grading.class_run.write_exports import hand_out
from course.grading.intake.layout import LabFile, TakenIn, take_in
from course.grading.intake.platforms import Unclear, find
from course.grading.intake.roster import Roster, Student, read_roster
from course.grading.intake.times import Times, read_times
from course.grading.limits import Settings
from course.grading.similarity import check_library
from course.lab.lab import Lab, LabError, discover, find_lab
from course.pytest_run.provenance import SandboxInfo, make_provenance

Export = Callable[[Path, Sequence[StudentResult], Provenance, Sequence[Lab], Sequence[Unclear],
                   Mapping[str, Mapping[str, str]] | None], Sequence[str]]


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
    platform: str = "folder"
    num_jobs: int | None = None
    shard: str | None = None
    times: Sequence[Path] = ()
    comments: Path | None = None
    gradebook: Path | None = None
    #: Show what the decisions would change, and write nothing.
    is_preview: bool = False
    #: Compare the submissions with each other.
    has_similarity: bool = False


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
        if wish.has_similarity:
            check_library()
        files = DecisionFiles(wish.out, wish.overrides, wish.comments, wish.gradebook)
        given = {"roster": wish.roster, "overrides": wish.overrides, "comments": wish.comments,
                 "gradebook": wish.gradebook}
        wish, used = replace(wish, roster=not_none(wish.roster)), files.used()
        check_used(wish.out, given, {"roster": wish.roster, **used})
        #: What the next call must use, too.
        self._used = {option: not_none(path) for option, path in given.items()} | {"gradebook": used["gradebook"]}
        self._wish, self._root, self._console = wish, root, console
        self._command, self._export = command, export
        self._labs = discover(root)
        self._asked = sorted({find_lab(name, self._labs) for name in wish.labs} or set(self._labs),
                             key=self._labs.index)
        if wish.settings.hidden is not None:
            check_hidden(wish.settings.hidden, self._labs)
        self._shard = read_shard(wish.shard) if wish.shard else Shard()
        self._store = Store(wish.out)
        roster = read_roster(wish.roster) if wish.roster else None
        self._found = find(wish.submissions, wish.platform, roster)
        self._students = {one.student.id: one.student for one in self._found.submissions}
        for student in wish.only:
            check_student(student, self._students, "--only")
        self._again = read_regrade(wish.regrade, self._students, self._labs)
        self._rows = Rows(self._store, self._students, bool(wish.roster), self._labs, self._asked, wish.settings.hidden)
        self._decisions = files.read(self._rows, self._labs, wish.settings.hidden, bool(wish.roster))
        self._rows.overrides = self._decisions.overrides
        known = roster or Roster([Student(student) for student in self._rows.students])
        self._times = read_times(wish.times, known, self._labs, bool(wish.roster)) if wish.times else Times()
        self._provenance = make_provenance(
            root, self._rows.labs, {"time_limit_s": wish.settings.time_limit_s}, level_of(wish.settings.sandbox),
            wish.settings.hidden)
        #: The number of files in this call that end up without a score.
        self._num_again = 0
        self._unclear: list[Unclear] = []
        #: The students and labs whose files of this call have got a time from a table.
        self._timed: set[tuple[str, str]] = set()
        #: The student, lab and hash of each attempt that is not the current one.
        self._earlier: set[tuple[str, str, str]] = set()
        #: Why files that have a score are graded again, each reason with the number of files.
        self._outdated: Counter[str] = Counter()

    def run(self) -> int:
        """Grade the class. Return 0 if all is graded, 1 if something must be graded again or decided by an
        instructor, or could not be written."""
        wish = self._wish
        if wish.is_preview:
            return self._preview()
        tell_begin(self._console, self._provenance, len(self._students), [lab.number for lab in self._asked])
        tell_gradebook(self._console, self._decisions)
        claim(wish.out, self._used)
        with workshop(wish.out, self._shard.name) as folder:
            jobs = self._take_in()
            tell_unclear(self._console, self._unclear)
            tell_unused_times(self._console, self._times.unused)
            tell_outdated(self._console, self._outdated)
            request = {"root": str(self._root), "settings": _as_json(wish.settings)}
            pool = Pool(wish.num_jobs or os.cpu_count() or 1, folder, request, self._command)
            meter = Meter(len(jobs), self._console)
            problems: Sequence[str] = ()
            try:
                with meter.shown(), ending_on_signals():
                    for job, result in pool.run(list(jobs)):
                        record = replace(jobs[replace(job, is_second=False)], result=self._rows.whole(result))
                        if self._is_earlier(record):
                            self._store.put_attempt(record)
                        else:
                            self._store.put(record)
                        does_count = not self._is_earlier(record) or self._decisions.takes_best(job.lab)
                        self._num_again += does_count and result.outcome is Outcome.GRADE_AGAIN
                        meter.count(job, result)
            finally:
                earned = self._rows.make()
                rows = self._decisions.apply(earned)
                problems = self._export(wish.out, rows, self._provenance, self._rows.labs, self._unclear,
                                        self._decisions.groups(self._rows.labs) if wish.has_similarity else None)
                tell_end(self._console, rows, meter, wish.out, self._unclear)
                tell_problems(self._console, problems)
        return 1 if self._num_again or problems or any(one.is_open for one in self._unclear) else 0

    def _preview(self) -> int:
        """Show what the decisions change in the marks that were written last. Nothing is graded or written."""
        tell_gradebook(self._console, self._decisions)
        given = "--times and " if self._wish.times else ""
        self._console.print(f"--preview uses the stored results and times: it ignores {given}new files of the "
                            "download.")
        tell_changes(self._console, self._wish.out, self._decisions.apply(self._rows.make()), self._provenance)
        return 0

    # ---- before anything is graded

    def _take_in(self) -> dict[Job, Record]:
        """Read the submissions, and record what cannot be graded. Return the jobs, each with its future record."""
        jobs: dict[Job, Record] = {}
        unclear = list(self._found.unclear)
        for submission in self._found.submissions:
            student = submission.student
            taken = take_in(submission, self._labs, self._asked, self._root)
            unclear += taken.unclear
            if not self._wish.only or student.id in self._wish.only:
                for number in taken.files:
                    jobs.update(self._settle_file(student, number, taken))
        self._note_times_of_others()
        self._unclear = [replace(one, is_open=one.is_open and not self._is_decided(one)) for one in unclear]
        return jobs

    def _is_decided(self, unclear: Unclear) -> bool:
        """Return whether the instructor has already set the points that this item may affect: those of its lab, or of
        every lab."""
        labs = [unclear.lab] if unclear.lab else [lab.number for lab in self._asked]
        return all(lab in self._rows.overrides.get(unclear.student, {}) for lab in labs)

    def _settle_file(self, student: Student, lab: str, taken: TakenIn) -> dict[Job, Record]:
        """Return the jobs for a file and for all other attempts, as far as they have to be graded."""
        file = taken.files[lab]
        self._note_attempt(student.id, file)
        file = self._current(student.id, file)
        self._store.put_text(student.id, lab, file.content)
        key = self._rows.keys[student.id, lab] = key_of(lab, file.sha256, self._provenance, self._wish.settings)
        if file.is_attempt:
            self._rows.attempt_keys[student.id, lab, file.sha256] = key
        outcome = (Outcome.GRADE_AGAIN if file.content or file.is_undecided else
                   Outcome.MISSING if file.is_missing else Outcome.UNREADABLE)
        record = Record(student.id, LabResult(lab, outcome, self._rows.unearned[lab], file.problem or NOT_YET),
                        key, student.name, taken.notes, taken.is_submitted or not file.is_missing, file.sha256,
                        self._provenance.tests_sha256[lab], self._provenance.commit)
        jobs = self._settle_text(record, file.content, file.lab)
        self._note_unreadable(record, taken.files[lab])
        for one in self._store.handed_in(student.id, lab):
            text = self._store.attempts_text(student.id, lab, one.file_sha256) if one.file_sha256 else b""
            if text and one.file_sha256 != file.sha256:
                key = key_of(lab, one.file_sha256, self._provenance, self._wish.settings)
                self._rows.attempt_keys[student.id, lab, one.file_sha256] = key
                self._earlier.add((student.id, lab, one.file_sha256))
                jobs |= self._settle_text(Record(student.id, self._rows.not_yet(lab), key, student.name,
                                                 file_sha256=one.file_sha256, tests_sha256=record.tests_sha256,
                                                 commit=record.commit), text, file.lab)
        return jobs

    def _note_unreadable(self, current: Record, file: LabFile) -> None:
        """Store the result of an attempt that cannot be read and is not the current one."""
        lab = current.result.lab
        problem = file.problem if file.is_attempt and not file.content else ""
        if problem and current.attempt and self._store.get_attempt(current.student, lab, "") is None:
            result = LabResult(lab, Outcome.UNREADABLE, self._rows.unearned[lab], problem)
            self._store.put_attempt(replace(current, result=result, key="", notes=(), file_sha256=""))

    def _note_attempt(self, student: str, file: LabFile) -> None:
        """Store what was handed in, and when; of an earlier attempt also the text."""
        lab = file.lab.number
        if not file.is_attempt:
            return
        new = HandedIn(file.sha256, file.submitted, file.time_source, in_download=file.submitted)
        given = self._times.of(student, lab)
        if given is not None:
            new = HandedIn(file.sha256, given.submitted, given.source, given.is_set, file.submitted)
            self._timed.add((student, lab))
        found = with_new(self._store.handed_in(student, lab), [new], self._decisions.zone)
        if file.content and found[-1].file_sha256 != file.sha256:
            self._store.put_attempts_text(student, lab, file.content)
        self._store.put_handed_in(student, lab, found)

    def _current(self, student: str, file: LabFile) -> LabFile:
        """Return the file that counts as the newest: of an attempt that earlier calls have read, if that is known to be
        later than the file of this call, or if this call has none. A student who is not in a download loses nothing."""
        lab = file.lab.number
        last = next(reversed(self._store.handed_in(student, lab)), None)
        if last is None or file.is_undecided or (file.is_attempt and last.file_sha256 == file.sha256):
            return file
        content = self._store.attempts_text(student, lab, last.file_sha256) if last.file_sha256 else b""
        known = self._store.get_attempt(student, lab, last.file_sha256)
        problem = known.result.reason if known is not None and not last.file_sha256 else ""
        return replace(file, content=content, problem=problem, is_missing=False) if content or problem else file

    def _note_times_of_others(self) -> None:
        """Store the times of attempts that earlier calls have read, if a table names their lab. A student whose file of
        this call is left out by ``--only`` is left out here, too."""
        asked = {lab.number for lab in self._asked}
        for (student, lab), given in self._times.given.items():
            is_unread = student in self._students and lab in asked and (student, lab) not in self._rows.keys
            known = self._store.handed_in(student, lab) if lab and (student, lab) not in self._timed else []
            if known and not is_unread:
                one = HandedIn(known[-1].file_sha256, given.submitted, given.source, given.is_set,
                               known[-1].in_download)
                self._store.put_handed_in(student, lab, with_new(known, [one], self._decisions.zone))

    def _settle_text(self, record: Record, text: bytes, lab: Lab) -> dict[Job, Record]:
        """Store the record of a text that needs no grading, or return the job for it."""
        job = Job(record.student, lab.number, text, lab.time_factor)
        known = self._store.get_attempt(record.student, lab.number, record.attempt or "") if text else None
        is_earlier = self._is_earlier(record)
        is_to_be_graded = bool(text) and is_to_do(job, record.key, known, self._again,
                                                     is_earlier and not self._decisions.takes_best(lab.number))
        if not is_to_be_graded and not is_earlier and (
                known is None or known != self._store.get(record.student, lab.number)):
            self._store.put(replace(record, result=known.result) if known is not None else record)
        if not is_to_be_graded or not self._shard.has(record.student, lab.number):
            return {}
        if reason := why_outdated(known, record, self._provenance.sandbox):
            self._outdated[reason] += 1
        return {job: record}

    def _is_earlier(self, record: Record) -> bool:
        """Return whether the record is of an attempt that is not the current one."""
        return (record.student, record.result.lab, record.attempt or "") in self._earlier


def _as_json(settings: Settings) -> dict[str, Any]:
    return {**asdict(settings), "hidden": str(settings.hidden.resolve()) if settings.hidden else None}
