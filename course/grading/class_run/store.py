"""The results so far, one file for each lab of each student: ``results/ANN/2.1.json``.

Every file is first written under another name and then renamed. So a run that is killed leaves only whole files, and
the next one continues from there. A replaced score is kept: ``results/ANN/history/2.1.001.json``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from course.core.atomic_files import remove_partials, write_whole
from course.core.result import LabResult, Outcome
from course.lab.lab import LabError


@dataclass(frozen=True)
class Record:
    """A result, its student, and what it depends on."""

    student: str
    result: LabResult
    #: A digest of everything that the score depends on; see ``result_key``.
    key: str = ""
    name: str = ""
    notes: tuple[str, ...] = ()
    is_submitted: bool = True

    def to_json(self) -> str:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps({**fields, "result": self.result.to_json()}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Record:
        fields = json.loads(text)
        return cls(**{**fields, "result": LabResult.from_json(fields["result"]), "notes": tuple(fields["notes"])})


class Store:
    """All results of one ``--out`` folder."""

    def __init__(self, out: Path) -> None:
        self.results = out / "results"
        #: The texts that were graded, as ``submitted/ANN/2.1.py``.
        self.texts = out / "submitted"

    def get(self, student: str, lab: str) -> Record | None:
        """Return the record, or None if there is none that can be read."""
        try:
            return Record.from_json(self._path(student, lab).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):  # someone damaged it: treat it as missing
            return None

    def put(self, record: Record) -> None:
        """Store the record in place of the existing one, which moves to the history if it had a score."""
        path = self._path(record.student, record.result.lab)
        old = self.get(record.student, record.result.lab)
        if old == record:
            return
        if old is not None and old.result.outcome is Outcome.GRADED:
            self._keep(path)
        write_whole(path, record.to_json().encode())

    def _keep(self, path: Path) -> None:
        """Copy a result into the history, but only once: after a run that was killed here, it is there already."""
        kept = sorted((path.parent / "history").glob(f"{path.stem}.[0-9]*.json"))
        content = path.read_bytes()
        if not kept or kept[-1].read_bytes() != content:
            write_whole(path.parent / "history" / f"{path.stem}.{len(kept) + 1:03}.json", content)

    def history(self, student: str, lab: str) -> list[Record]:
        """Return the earlier records, the oldest first."""
        kept = sorted((self.results / student / "history").glob(f"{lab}.[0-9]*.json"))
        return [Record.from_json(path.read_text(encoding="utf-8")) for path in kept]

    def put_text(self, student: str, lab: str, content: bytes) -> None:
        """Keep the text that is graded. If there is none, remove an earlier one."""
        path = self.texts / student / f"{lab}.py"
        if not content:
            path.unlink(missing_ok=True)
        elif not path.is_file() or path.read_bytes() != content:
            write_whole(path, content)

    def get_texts(self, lab: str, students: Sequence[str]) -> dict[str, str]:
        """Return the graded text of each student who has one."""
        paths = {student: self.texts / student / f"{lab}.py" for student in students}
        return {student: path.read_text(encoding="utf-8") for student, path in paths.items() if path.is_file()}

    def students(self) -> list[str]:
        """Return the students who have a result. A run that was killed may have left a folder without one."""
        return sorted({path.parent.name for path in self.results.glob("*/*.json")})

    def labs_of(self, student: str) -> list[str]:
        return [path.stem for path in (self.results / student).glob("*.json")]

    def _path(self, student: str, lab: str) -> Path:
        return self.results / student / f"{lab}.json"


@contextlib.contextmanager
def workshop(out: Path, name: str) -> Iterator[Path]:
    """Create a private folder for files in progress. Remove what an earlier, killed run left there or in ``out``.

    Raise LabError while another run works in it.
    """
    out.mkdir(parents=True, exist_ok=True)
    lock = os.open(out / f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"Another `course grade` is at work in {out}. Wait for it, or give each a --shard of its "
                           "own.") from None
        except OSError:
            pass  # some network file systems cannot lock
        folder = out.resolve() / f".{name}"  # a worker has another current folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, exist_ok=True)  # a worker of the killed run may still be ending in it
        remove_partials(out)
        try:
            yield Path(tempfile.mkdtemp(dir=folder, prefix="run-"))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
