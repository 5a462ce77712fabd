"""Assigns each submission to its student, with the roster, before anything is graded.

A submission that cannot be assigned does not stop the others. It is left out, and listed with advice.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from course.grading.intake.archives import stem_of
from course.grading.intake.find_submissions import Found
from course.grading.intake.lab_names import is_labs_file
from course.grading.intake.likely import likely_student
from course.grading.intake.read_files import is_archive
from course.grading.intake.roster import MAX_ID_CHARACTERS, Roster, Student, check_id, wrong_with
from course.grading.intake.unclear import Kind, Unclear, move
from course.lab.lab import Lab, LabError

ADD_TO_ROSTER = ("Add the id to the roster, say with --pattern which part of a name is the id, or keep all such names "
                 "as ids with --allow-unknown.")
#: The number of submissions that are compared with the roster; any further ones are listed without a guess.
MAX_GUESSED = 200


@dataclass(frozen=True)
class Submission:
    """A student and their submission: nothing, one folder or archive, or several loose files.

    Of several attempts this is the last one; ``earlier`` contains the others.
    """

    student: Student
    parts: tuple[Found, ...] = ()
    #: Why none of it is graded: it is not clear which of two submissions counts. Empty otherwise.
    problem: str = ""
    #: The parts of earlier attempts, the oldest first.
    earlier: tuple[Found, ...] = ()


@dataclass(frozen=True)
class Settled:
    #: One per student, in the order of the roster; without a roster, in the order of ids.
    submissions: list[Submission]
    unclear: list[Unclear]
    #: Items whose names do not belong to any student.
    nobodys: list[Found]


def settle(found: Sequence[Found], roster: Roster | None, allow_unknown: bool = False, takes_latest: bool = False,
           labs: Sequence[Lab] = ()) -> Settled:
    """Assign each item to a student. With ``takes_latest``, only the last of several attempts with numbers or times is
    used.

    Raise LabError, with everything that is unclear, if nothing is left to grade.
    """
    by_student: dict[str, list[Found]] = {}
    students = dict(roster.students) if roster else {}
    left: list[tuple[Found, Kind]] = []
    nobodys: list[Found] = []
    for one in found:
        student = roster.find(one.label.keys) if roster else None
        if student is None and (one.is_doubtful or _is_labs(one, found, labs)):
            nobodys.append(one)
            continue
        if student is None:
            if wrong_with(one.label.keys[0]):
                left.append((one, Kind.NAME))
                continue
            student = check_id(one.label.keys[0], one.shown)
            if roster and not allow_unknown:
                left.append((one, Kind.UNKNOWN))
                continue
            students.setdefault(student, Student(student, _name(one)))
        by_student.setdefault(student, []).append(one)
    all_ids = list(students)
    twins = _twins(all_ids)
    left += [(one, Kind.TWINS) for student in twins for one in by_student.pop(student, [])]
    students = {student: known for student, known in students.items() if student not in twins}
    unclear = _Advice(students, by_student, all_ids, bool(roster)).on_all(left)
    submissions = []
    for student in students if roster else sorted(students):
        parts = by_student.get(student, [])
        kept, earlier, problem = _parts(student, parts, takes_latest)
        submissions.append(Submission(students[student], kept, problem, earlier))
        if problem:
            unclear.append(_twice(student, parts, problem))
    if not by_student and unclear:
        raise LabError("\n".join(["Nothing can be graded: no submission could be matched to a student.",
                                  *(f"  {one.why} {one.advice}" for one in unclear)]))
    return Settled(submissions, unclear + _loose(submissions, found, bool(roster)), nobodys)


def _name(found: Found) -> str:
    """Return the name of a student who is not on the roster, if the platform included it."""
    return found.label.keys[-1] if len(found.label.keys) > 1 and " " in found.label.keys[-1] else ""


def _is_labs(one: Found, found: Sequence[Found], labs: Sequence[Lab]) -> bool:
    """Return whether a single file among other submissions is named like a lab's file, and not after a student."""
    return one.is_loose and len(found) > 1 and is_labs_file(one.name, labs)


def _parts(student: str, parts: list[Found], takes_latest: bool) -> tuple[tuple[Found, ...], tuple[Found, ...], str]:
    """Return what counts among this student's parts: one whole submission, or one file of each name; and the parts of
    earlier attempts, the oldest first. Otherwise return the reason why nothing counts."""
    by_file: dict[str, list[Found]] = {}
    are_all_parts = all(one.label.is_part for one in parts)
    for one in parts:
        by_file.setdefault(one.label.file.casefold() if are_all_parts else "", []).append(one)
    kept: list[Found] = []
    earlier: list[Found] = []
    for tries in by_file.values():
        ordered, is_last_clear = _in_order(tries)
        if len(tries) > 1 and not (is_last_clear if takes_latest else ordered):
            can_choose = is_last_clear and not takes_latest
            return (), (), (f"{student} handed in twice: {_both(tries)}. "
                            + ("--latest takes the later one." if can_choose else "Keep one of them."))
        kept.append(tries[-1])
        earlier += [] if takes_latest else tries[:-1]
    return tuple(kept), tuple(earlier), ""


def _in_order(tries: list[Found]) -> tuple[bool, bool]:
    """Sort attempts by their numbers, or by their times. Return whether all have different ones, and whether it is
    clear which is the last."""
    by_number = [one.label.attempt for one in tries if one.label.attempt]
    times = [one.label.submitted for one in tries if one.label.submitted is not None]
    if len(by_number) == len(tries):
        tries.sort(key=lambda one: one.label.attempt)
        values: Sequence[object] = sorted(by_number)
    elif len(times) == len(tries) and len({time.tzinfo is None for time in times}) == 1:
        tries.sort(key=lambda one: one.label.submitted or times[0])
        values = sorted(times)
    else:
        return False, False
    return len(set(values)) == len(values), values[-1:] != values[-2:-1]


def _both(tries: Sequence[Found]) -> str:
    """Join the names of the attempts; write them in ASCII if they would look the same."""
    shown = [one.shown for one in tries]
    return " and ".join(shown if len({*map(_plain, shown)}) == len(shown) else [ascii(one.name) for one in tries])


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def _twice(student: str, parts: Sequence[Found], problem: str) -> Unclear:
    last = parts[-1]
    aside = move(last.path, last.path.parent.with_name(f"{last.path.parent.name}-left-out") / last.name) \
        if last.path is not None and "--latest" not in problem else ""
    return Unclear(last.name, Kind.TWICE, problem,
                   f"To leave out {last.shown}: {aside}" if aside else "", student)


def _twins(students: Sequence[str]) -> list[str]:
    """Return the students whose ids differ only in capitals: on some disks ``Ann`` and ``ann`` are one folder."""
    num_folded = Counter(student.casefold() for student in students)
    return [student for student in students if num_folded[student.casefold()] > 1]


def _loose(submissions: Sequence[Submission], found: Sequence[Found], has_roster: bool) -> list[Unclear]:
    """List single files that were assigned to a student by name while most submissions are folders or archives."""
    num_loose = sum(one.is_loose for one in found)
    if has_roster or num_loose > len(found) // 3:
        return []
    students = [submission.student for submission in submissions if not all(one.is_loose for one in submission.parts)]
    unclear = []
    for submission in submissions:
        for one in submission.parts:
            if one.is_loose:
                likely = likely_student(stem_of_name(one), students, ())
                perhaps = f" It may belong to {likely}." if likely else ""
                unclear.append(Unclear(one.name, Kind.LOOSE, f"{one.shown} was graded as the file of a student called "
                                       f"{submission.student.id}.{perhaps}", student=likely, is_open=False))
    return unclear


def stem_of_name(one: Found) -> str:
    """Return the part of a name that could be a student's, without the suffix that gives the kind of file."""
    stem = stem_of(one.name)
    return stem.rpartition(".")[0] if one.is_single and "." in stem else stem


class _Advice:
    """Advice on submissions whose names do not identify their student."""

    def __init__(self, students: Mapping[str, Student], by_student: Mapping[str, Sequence[Found]],
                 all_ids: Sequence[str], has_roster: bool) -> None:
        self._students, self._has_roster = students, has_roster
        self._without = [student for student in students if student not in by_student]
        #: Ids that already belong to a student.
        self._taken = {student.casefold() for student in all_ids}

    def on_all(self, left: Sequence[tuple[Found, Kind]]) -> list[Unclear]:
        return [self._on(one, kind, i < MAX_GUESSED) for i, (one, kind) in enumerate(left)]

    def _on(self, one: Found, kind: Kind, has_guess: bool) -> Unclear:
        likely = ""
        if has_guess and self._has_roster:
            keys = [stem_of_name(one), *one.label.keys]
            known = list(self._students.values())
            likely = next(filter(None, (likely_student(key, known, self._without) for key in keys)), "")
        is_free = likely in self._without
        perhaps = f" It probably belongs to {likely}" + ("." if is_free else ", who has handed in something else.") \
            if likely else ""
        why = {Kind.NAME: f"{one.shown} cannot be a student's id: it {wrong_with(one.label.keys[0])}.",
               Kind.UNKNOWN: f"{one.shown} is not on the roster.",
               Kind.TWINS: f"{one.shown} differs from another name only in capital letters: on some disks "
                           "both would have the same results folder."}[kind]
        return Unclear(one.name, kind, why + perhaps, self._advice(one, kind, likely if is_free else ""), likely)

    def _advice(self, one: Found, kind: Kind, likely: str) -> str:
        if kind is Kind.UNKNOWN and not likely:
            return ADD_TO_ROSTER
        new = (likely or self._new_id(one.label.keys[0])) + _end(one)
        if one.path is None:
            return f"Unpack the archive, and rename {one.shown} to {new}."
        if one.label.is_part:
            return f"Rename it so that its name contains {likely or new}."
        return move(one.path, one.path.with_name(new))

    def _new_id(self, text: str) -> str:
        """Return an unused id that is similar to the name."""
        plain = re.sub(r"[^\w .@+',()&-]+", "-", unicodedata.normalize("NFC", text))
        plain = re.sub(r"^\W+", "", plain)[:MAX_ID_CHARACTERS // 2].rstrip(" .,-") or "student"
        new = next(name for name in _numbered(plain) if name.casefold() not in self._taken)
        self._taken.add(new.casefold())
        return new


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in count(2))


def _end(one: Found) -> str:
    """Return what follows the id in the name of a file."""
    if is_archive(one.name):
        return one.name[len(stem_of(one.name)):]
    return f".{one.name.rpartition('.')[2]}" if one.is_single and "." in one.name else ""
