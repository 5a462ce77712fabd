"""``course board``: the score of an open lab next to those of known solutions, and the student's scores so far."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeGuard

from rich.console import Console
from rich.text import Text

from course.core.atomic_files import write_whole
from course.lab.bare_starter import is_as_shipped
from course.lab.lab import Lab, LabError
from course.lab.score import ScoreSettings
from course.lab.score_process import score_file

NUM_SHOWN = 10


class Entry(TypedDict):
    """One score from the past."""

    when: str
    total: float
    #: The first line of the class's docstring, to tell attempts apart.
    what: str
    #: A short digest of the scored file.
    key: str


def _is_entry(value: object) -> TypeGuard[Entry]:
    return (isinstance(value, dict) and value.keys() == Entry.__annotations__.keys()
            and isinstance(value["total"], (int, float)) and math.isfinite(value["total"]))


class Board:
    """The student's own scores, in ``.course/board.json``."""

    def __init__(self, root: Path, lab: Lab) -> None:
        self._file = root / ".course" / "board.json"
        self._lab = lab

    def entries(self) -> list[Entry]:
        """Return the scores, the latest last. Damaged entries are left out."""
        entries = self._read().get(self._lab.number)
        return [entry for entry in entries if _is_entry(entry)] if isinstance(entries, list) else []

    def add(self, total: float, what: str, source: bytes) -> bool:
        """Store a score, unless this very file has one already, and return whether it was stored.

        If it is the best so far, also store the file.
        """
        key = hashlib.sha256(source).hexdigest()[:16]
        entries = self.entries()
        if any(entry["key"] == key for entry in entries):
            return False
        self._file.parent.mkdir(exist_ok=True)
        if all(entry["total"] < total for entry in entries):
            self.best_file.write_bytes(source)
        entries.append(Entry(when=time.strftime("%Y-%m-%d %H:%M"), total=total, what=what, key=key))
        write_whole(self._file, json.dumps(self._read() | {self._lab.number: entries}).encode())
        return True

    @property
    def best_file(self) -> Path:
        return self._file.with_name(f"best-{self._lab.number}.py")

    def _read(self) -> dict[str, Any]:
        try:
            boards = json.loads(self._file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return boards if isinstance(boards, dict) else {}


def show_boards(labs: Sequence[Lab], root: Path, console: Console) -> int:
    """Print the best score so far in each of several open labs. Nothing is scored: that may take a minute per lab."""
    for lab in labs:
        best = max((entry["total"] for entry in Board(root, lab).entries()), default=None)
        console.print(Text(f"Lab {lab.number}  {lab.title:<28}  "
                           f"{'no score yet' if best is None else f'best: {_of(lab).text(best)}'}"))
    console.print(f"\nTo score your file: course board {labs[0].number}")
    return 0


def show_board(lab: Lab, root: Path, console: Console) -> int:
    """Score the student's file, if there is one, keep the score, and print the table and the scores so far."""
    is_begun = lab.starter.is_file() and not is_as_shipped(lab)
    problem = ""
    status = f"Scoring {lab.starter.name if is_begun else 'the known solutions'} (up to {_of(lab).limit_s:g} s) …"
    with console.status(status):  # shown only on a terminal
        try:
            found = score_file(lab, lab.starter if is_begun else None)
        except LabError as error:
            if not is_begun:
                raise
            found, problem = score_file(lab, None), str(error)
    console.print(f"[bold]Lab {lab.number}  {lab.title}[/]   {lab.relative(lab.starter)}\n")
    console.print(Text(found.table))
    board, settings = Board(root, lab), _of(lab)
    if not is_begun:
        console.print(f"\nNot started: begin with {lab.relative(lab.readme)}.")
        return 0
    total, refused = found.total, settings.problem_with(found.total)
    if problem or refused or total is None:
        console.print(Text(f"\n{problem or refused + ' It is not kept.'}"))
        _show_entries(board, settings, console)
        return 1
    is_new = board.add(total, found.what, lab.starter.read_bytes())
    console.print(f"\nYour score: [bold]{settings.text(total)}[/]  ({settings.meaning})"
                  + ("" if is_new else "  This file is already on the board."))
    _show_entries(board, settings, console)
    console.print(f"  The file with the best score is kept: {board.best_file.relative_to(root)}")
    return 0


def _of(lab: Lab) -> ScoreSettings:
    if lab.score is None:
        raise LabError(f"Lab {lab} has no score.")
    return lab.score


def _show_entries(board: Board, settings: ScoreSettings, console: Console) -> None:
    """Print the scores so far, the latest last."""
    entries = board.entries()
    if not entries:
        return
    best = max(entry["total"] for entry in entries)
    console.print()
    if len(entries) > NUM_SHOWN:
        console.print(f"  {len(entries) - NUM_SHOWN} earlier scores are not shown; the best of all is "
                      f"{settings.text(best)}")
    for entry in entries[-NUM_SHOWN:]:
        mark = "best" if entry["total"] == best else ""
        shown = f"  {entry['when']}  {settings.text(entry['total']):>6}  {mark:4}  {entry['what']}"
        console.print(Text(shown.rstrip()))
