"""``course board``: the score of an open lab next to those of known policies, and the student's scores so far."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TypedDict, TypeGuard

from rich.console import Console
from rich.text import Text

from course.core.atomic_files import write_whole
from course.core.child_process import ChildProcess
from course.core.resource_limits import GRACE_S, wall_limit
from course.lab.bare_starter import is_as_shipped
from course.lab.lab import Lab, LabError

#: How long scoring may compute.
LIMIT_S = 60.0
NUM_SHOWN = 10
#: A score from here on is not believed.
OPTIMUM = 99.95


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
            and isinstance(value["total"], (int, float)))


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

        If it is the best so far, store the file as well.
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


def score(lab: Lab, path: Path | None, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Return the report of ``course.eviction.score_process`` on the file at ``path``.

    Without a file the report covers only the policies for comparison. Raise LabError with the reason if the file cannot
    be scored.
    """
    with tempfile.TemporaryDirectory() as folder:
        spec, report = Path(folder) / "spec.json", Path(folder) / "report.json"
        spec.write_text(json.dumps({**lab.score, "path": str(path) if path else None, "limit_s": limit_s}), "utf-8")
        child = ChildProcess([sys.executable, "-m", "course.eviction.score_process", str(spec), str(report)], lab.root,
                             os.environ, Path(folder) / "output.txt")
        give_up_s = time.monotonic() + wall_limit(limit_s) + GRACE_S
        child.watch(lambda: "it takes too long" if time.monotonic() > give_up_s else None)
        try:
            found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            last = child.printed().strip().splitlines()[-1:]
            raise LabError(f"{lab.relative(path or lab.folder)} could not be scored: the process ended with status "
                           f"{child.status}. {''.join(last)}".rstrip()) from None
    if "problem" in found:
        raise LabError(f"{lab.relative(path or lab.folder)} could not be scored: {found['problem']}")
    return found


def show_board(lab: Lab, root: Path, console: Console) -> int:
    """Score the student's file, if there is one, keep the score, and print the table and the scores so far."""
    is_begun = lab.starter.is_file() and not is_as_shipped(lab)
    problem = None
    try:
        found = score(lab, lab.starter if is_begun else None)
    except LabError as error:
        if not is_begun:
            raise
        found, problem = score(lab, None), str(error)
    console.print(f"[bold]Lab {lab.number}  {lab.title}[/]   {lab.relative(lab.starter)}\n")
    console.print(Text(found["table"]))
    board = Board(root, lab)
    if not is_begun:
        console.print(f"\nNot started: begin with {lab.relative(lab.readme)}.")
        return 0
    if problem is not None:
        console.print(Text(f"\n{problem}"))
        _show_entries(board, console)
        return 1
    if found["total"] >= OPTIMUM:
        console.print(f"\nYour score: {found['total']:.1f}. Only who knows the requests to come has as much: "
                      "it is not kept.")
        return 1
    is_new = board.add(found["total"], found["what"], lab.starter.read_bytes())
    console.print(f"\nYour score: [bold]{found['total']:.1f}[/]  (0 is the naive policy's, 100 the optimum's)"
                  + ("" if is_new else "  This file is on the board already."))
    _show_entries(board, console)
    console.print(f"  The best one's file is kept: {board.best_file.relative_to(root)}")
    return 0


def _show_entries(board: Board, console: Console) -> None:
    """Print the scores so far, the latest last."""
    entries = board.entries()
    if not entries:
        return
    best = max(entry["total"] for entry in entries)
    console.print()
    if len(entries) > NUM_SHOWN:
        console.print(f"  {len(entries) - NUM_SHOWN} before these; the best of all is {best:.1f}")
    for entry in entries[-NUM_SHOWN:]:
        mark = "best" if entry["total"] == best else ""
        console.print(Text(f"  {entry['when']}  {entry['total']:6.1f}  {mark:4}  {entry['what']}".rstrip()))
