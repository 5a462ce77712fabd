"""The selection of what to grade: students, labs, and those of their files that have no valid result yet."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from course.core.result import Outcome
from course.grading.class_run.store import Record
from course.grading.class_run.worker_process import Job
from course.lab.lab import Lab, LabError, find_lab
from mini_vllm.checks import nearest


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of the class's files, for one of several machines."""

    index: int = 1
    num_shards: int = 1

    def has(self, student: str, lab: str) -> bool:
        """Return whether a file is in this part. A digest decides, so that every machine gets the same answer."""
        digest = hashlib.sha256(f"{student}\0{lab}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.num_shards == self.index - 1

    @property
    def name(self) -> str:
        return "work" if self.num_shards == 1 else f"work-{self.index}-of-{self.num_shards}"


def read_shard(text: str) -> Shard:
    """Parse a shard: ``2/4`` is the second of four. Raise LabError for anything else."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise LabError(f"--shard {text!r} must be like 2/4, the second of four parts")
    return Shard(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Again:
    """One value of ``--regrade``: a student, or one lab of a student."""

    student: str
    lab: str | None

    def means(self, student: str, lab: str) -> bool:
        return self.student == student and self.lab in (None, lab)


def read_regrade(texts: Sequence[str], students: Collection[str], labs: list[Lab]) -> list[Again]:
    """Parse ``ann`` or ``ann:2.1``. Raise LabError for a student or a lab that is not graded here."""
    found = []
    for text in texts:
        student, colon, lab = text.rpartition(":")
        if text in students or not colon:
            student, lab = text, ""
        check_student(student, students, "--regrade")
        found.append(Again(student, find_lab(lab, labs).number if lab else None))
    return found


def check_student(student: str, students: Collection[str], option: str) -> None:
    """Raise LabError for an unknown student, with the nearest known id."""
    if student not in students:
        near = nearest(student, students)
        guess = f" Did you mean {near}?" if near else ""
        raise LabError(f"{option} {student}: there is no such student among the {len(students)} here.{guess}")


def is_to_do(job: Job, key: str, known: Record | None, again: Sequence[Again], is_earlier: bool = False) -> bool:
    """Return whether a file must be graded: it has no result, an outdated one or no score, or is named in ``again``.

    An earlier attempt without a score is not tried again in every call.
    """
    if known is None or known.key != key or (known.result.outcome is not Outcome.GRADED and not is_earlier):
        return True
    return any(one.means(job.student, job.lab) for one in again)


def why_outdated(known: Record | None, new: Record, sandbox: str) -> str:
    """Return why a file that has a score is graded again: what changed since. Return "" if it has no score, or if
    nothing changed. ``sandbox`` is the level of this call."""
    if known is None or known.key == new.key or known.result.outcome is not Outcome.GRADED:
        return ""
    changed = {"the tests changed": known.tests_sha256 != new.tests_sha256,
               "the commit of the course changed": known.commit != new.commit,
               f"the sandbox was {known.result.sandbox}, and is {sandbox}": known.result.sandbox != sandbox}
    return ", ".join(reason for reason, is_so in changed.items() if is_so) or \
        "the time limit or the version of Python or the engine changed"
