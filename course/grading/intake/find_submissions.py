"""Finds what is in the folder of submissions, or in a single archive with all of them. Except in such an archive,
only names are examined here: each item must be assigned to a student before anything else is read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from course.grading.intake.archives import opened, read_archive
from course.grading.intake.gradescope import submitters_of, times_of
from course.grading.intake.lms_names import Label, label_of
from course.grading.intake.read_files import (
    METADATA,
    Budget,
    Member,
    Refused,
    is_archive,
    is_skipped,
    is_tools,
    read_folder,
    read_one,
    shown_name,
)
from course.lab.lab import LabError

#: An archive with a whole class in it may contain more than a single student's.
MAX_CLASS_MEMBERS, MAX_CLASS_BYTES = 200_000, 1_000_000_000


@dataclass(frozen=True)
class Found:
    """An item that was handed in."""

    #: Its name in the folder of submissions, safe to print.
    shown: str
    label: Label
    #: Reads its content; raises Refused.
    read: Callable[[Budget], list[Member]]
    #: A text or a table: it counts only if a student of that name is on the roster.
    is_doubtful: bool = False
    #: Its exact name.
    name: str = ""
    #: Its path; None in an archive.
    path: Path | None = None
    #: Whether it is neither a folder nor an archive.
    is_single: bool = False
    #: Whether it is a single file whose name has no platform's label that identifies the student.
    is_loose: bool = False


@dataclass(frozen=True)
class _Top:
    """One name in the folder, or in the archive."""

    name: str
    is_folder: bool
    #: Reads its content. A single file gets the second argument as its name.
    read: Callable[[Budget, str], list[Member]]
    path: Path | None = None

    @property
    def is_single(self) -> bool:
        return not self.is_folder and not is_archive(self.name)


def find(submissions: Path, pattern: re.Pattern[str] | None) -> tuple[list[Found], list[Found]]:
    """Return the items that were handed in, in the order of names, and those left out, whose names identify no student.

    Raise LabError if there is nothing, or if the folder is one student's course instead of a folder of submissions.
    """
    tops, metadata = _tops(submissions)
    if _is_one_course([top.name for top in tops]):
        raise LabError(f"{submissions} looks like one student's course. Give the folder that contains the submissions: "
                       "a folder or an archive per student.")
    found: list[Found] = []
    left_out: list[Found] = []
    submitters, times = submitters_of(metadata), times_of(metadata, METADATA)
    for top in tops:
        labels: Sequence[Label | None] = [_label(top, pattern)]
        if metadata:
            submitted, source = times.get(top.name, (None, ""))
            labels = [Label(submitter.keys, submitted=submitted, time_source=source)
                      for submitter in submitters.get(top.name, ()) if submitter.keys] or [None]
        for label in labels:
            (left_out if label is None else found).append(_found(top, label or Label(()), bool(pattern or metadata)))
    if not found:
        names = ", ".join(one.shown for one in left_out[:5])
        raise LabError(f"{submissions} contains no submissions."
                       + (f" These names do not name a student: {names}." if left_out else ""))
    return found, left_out


def _is_one_course(names: Sequence[str]) -> bool:
    """Return whether these names are those of one course. A single phase folder among many submissions is a stray;
    several phase folders, or one next to other parts of a course, are a course."""
    num_phases = sum(_is_phase(name) for name in names)
    return num_phases > 0 and (num_phases > 1 or len(names) == 1 or "mini_vllm" in names or "course" in names)


def _is_phase(name: str) -> bool:
    return re.fullmatch(r"phase-\d+-.*", name) is not None


def _label(top: _Top, pattern: re.Pattern[str] | None) -> Label | None:
    return None if _is_phase(top.name) else label_of(top.name, top.is_folder, pattern)


def _found(top: _Top, label: Label, is_told: bool) -> Found:
    """Create the item. ``is_told`` says that a pattern or a table identifies its student."""
    return Found(shown_name(top.name), label, partial(_read_as, top.read, label.file), _is_doubtful(top, label),
                 top.name, top.path, top.is_single, is_loose=top.is_single and not label.is_part and not is_told)


def _read_as(read: Callable[[Budget, str], list[Member]], file: str, budget: Budget) -> list[Member]:
    return read(budget, file)


def _is_doubtful(top: _Top, label: Label) -> bool:
    return not (top.is_folder or label.is_part or is_archive(top.name) or top.name.lower().endswith((".py", ".ipynb")))


def _tops(submissions: Path) -> tuple[list[_Top], str]:
    """Return the names that count, and the text of Gradescope's table if there is one."""
    if submissions.is_dir():
        return _tops_of_folder(submissions)
    if is_archive(submissions.name):
        return _tops_of_archive(submissions)
    if submissions.is_file():
        return [_file(submissions)], ""
    raise LabError(f"{submissions} does not exist; give the folder that contains the submissions.")


def _tops_of_folder(folder: Path) -> tuple[list[_Top], str]:
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries
                       if not is_skipped(entry.name) or _is_hidden_by_name(entry))
    inner = folder / found[0][0] if len(found) == 1 and found[0][1] else None
    if inner is not None and _holds_a_class(os.listdir(inner)):
        return _tops_of_folder(inner)
    tops = []
    for name, is_folder, is_link in found:
        if is_folder:
            tops.append(_Top(name, True, partial(_read_folder, folder / name), folder / name))
        elif name != METADATA:
            top = _file(folder / name)
            tops.append(replace(top, is_folder=True) if is_link and "." not in name else top)
    metadata = folder / METADATA
    return tops, metadata.read_text(encoding="utf-8", errors="replace") if metadata.is_file() else ""


def _is_hidden_by_name(entry: os.DirEntry[str]) -> bool:
    """Return whether the entry is a hidden folder that no known program creates: ``..ann`` belongs to a student."""
    return entry.name.startswith(".") and entry.is_dir(follow_symlinks=False) and not is_tools(entry.name)


def _file(path: Path) -> _Top:
    return _Top(path.name, False, partial(_read_file, path), path)


def _read_file(path: Path, budget: Budget, name: str) -> list[Member]:
    return opened(read_one(path, name or path.name, budget), budget)


def _read_folder(path: Path, budget: Budget, _name: str) -> list[Member]:
    return [found for member in read_folder(path, budget) for found in opened(member, budget)]


def _tops_of_archive(path: Path) -> tuple[list[_Top], str]:
    """Return the folders and files at the root of an archive, which is read here."""
    if path.stat().st_size > MAX_CLASS_BYTES:
        raise LabError(f"{path} has {path.stat().st_size / 1e6:.0f} MB, the limit is {MAX_CLASS_BYTES / 1e6:.0f} MB: "
                       "unpack it, and give the folder.")
    try:
        members = read_archive(path.name, path.read_bytes(), Budget(MAX_CLASS_MEMBERS, MAX_CLASS_BYTES))
    except Refused as refused:
        raise LabError(f"{refused} If you trust it, unpack it, and give the folder.") from None
    roots = {member.name.partition("/")[0] for member in members}
    if len(roots) == 1 and _holds_a_class(member.name.split("/")[1] for member in members if "/" in member.name):
        members = [replace(member, name=member.name.partition("/")[2]) for member in members]
    groups: dict[str, list[Member]] = {}
    metadata = ""
    for member in members:
        if member.name == METADATA:
            metadata = member.content.decode("utf-8", errors="replace")
        else:
            groups.setdefault(member.name.partition("/")[0], []).append(member)
    tops = [_Top(name, "/" in group[0].name, partial(_read_group, group)) for name, group in sorted(groups.items())]
    return tops, metadata


def _read_group(group: list[Member], budget: Budget, name: str) -> list[Member]:
    found = []
    for member in group:
        budget.count_member()
        budget.count_bytes(len(member.content))
        inner = member.name.partition("/")[2]
        found += opened(replace(member, name=inner or name or member.name, alias=member.name), budget)
    return found


def _holds_a_class(names: Iterable[str]) -> bool:
    """Return whether the only folder contains several submissions, and is not itself a submission."""
    kept = {name for name in names if not is_skipped(name)}
    is_submission = any(re.match(r"(phase|lab)-|\d+\.\d+", name) or name.endswith(".py") and
                        not (label_of(name, False) or Label(())).is_part for name in kept)
    return len(kept) > 1 and not is_submission
