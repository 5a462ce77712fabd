"""Whose each submission is: settled for all of them, with the roster, before anything is graded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course.grading.intake.finding import Found
from course.grading.intake.roster import Roster, Student, check_id
from course.labs import LabError

MAX_NAMED = 20


@dataclass(frozen=True)
class Submission:
    """A student, and what is theirs: nothing, one folder or archive, or several loose files."""

    student: Student
    parts: tuple[Found, ...] = ()


def settle(found: Sequence[Found], roster: Roster | None, allow_unknown: bool = False,
           takes_latest: bool = False) -> list[Submission]:
    """One submission for each student, in the order of the roster, then of ids.

    Raises LabError with all that is not clear: whom nobody knows, who handed in twice. With ``takes_latest``, of two
    tries that have a number in their names the later counts.
    """
    by_student: dict[str, list[Found]] = {}
    students = dict(roster.students) if roster else {}
    unknown = []
    for one in found:
        student = roster.find(one.label.keys) if roster else None
        if student is None:
            if one.is_doubtful:
                continue
            student = check_id(one.label.keys[0], one.shown)
            if roster and not allow_unknown:
                unknown.append(f"{student} ({one.shown})" if student != one.shown else student)
                continue
            students.setdefault(student, Student(student, _name(one)))
        by_student.setdefault(student, []).append(one)
    problems = [_unknown(unknown)] if unknown else []
    kept = {student: _parts(student, parts, takes_latest, problems) for student, parts in by_student.items()}
    problems += _twins(sorted(students))
    if problems:
        raise LabError("\n".join(problems))
    order = list(students) if roster else sorted(students)
    return [Submission(students[student], kept.get(student, ())) for student in order]


def _name(found: Found) -> str:
    """The name of a student who stands on no roster, if the platform wrote it down."""
    return found.label.keys[-1] if len(found.label.keys) > 1 and " " in found.label.keys[-1] else ""


def _unknown(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return (f"Not on the roster: {', '.join(names[:MAX_NAMED])}{more}. Add them to it, say with --pattern which part "
            "of a name is the id, or keep them as they are with --allow-unknown.")


def _parts(student: str, parts: list[Found], takes_latest: bool, problems: list[str]) -> tuple[Found, ...]:
    """What counts of all that is this student's: one whole submission, or one file of each name."""
    by_file: dict[str, list[Found]] = {}
    are_all_parts = all(one.label.is_part for one in parts)
    for one in parts:
        by_file.setdefault(one.label.file.casefold() if are_all_parts else "", []).append(one)
    kept = []
    for tries in by_file.values():
        tries.sort(key=lambda one: one.label.attempt)
        attempts = [one.label.attempt for one in tries]
        is_clear = len(tries) == 1 or (takes_latest and all(attempts) and attempts[-1] != attempts[-2])
        if not is_clear:
            both = " and ".join(one.shown for one in tries)
            can_choose = all(attempts) and not takes_latest
            problems.append(f"{student} handed in twice: {both}. "
                            + ("--latest takes the later one." if can_choose else "Keep one of them."))
        kept.append(tries[-1])
    return tuple(kept)


def _twins(students: Sequence[str]) -> list[str]:
    """On some disks ``Ann`` and ``ann`` are one folder."""
    first: dict[str, str] = {}
    return [f"{first[student.casefold()]} and {student} differ only in capital letters: their results would lie in one "
            "folder." for student in students if first.setdefault(student.casefold(), student) != student]
