"""The results so far, one file for each lab of each student: ``results/ANN/2.1.json``.

Every file is first written under another name and then renamed. So a run that is killed leaves only whole files, and
the next one continues from there. A replaced score is kept: ``results/ANN/history/2.1.001.json``.

A student may hand in several attempts for a lab. ``results/ANN/attempts/2.1.json`` lists them. The current attempt has
the files of an only one. The names of the files of every other attempt contain the hash of its text:
``results/ANN/attempts/2.1.HASH.json`` and ``submitted/ANN/attempts/2.1.HASH.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from course.core.atomic_files import remove_partials, write_whole
from course.core.result import LabResult, Outcome
from course.grading.class_run.handed_in import HandedIn
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
    #: The hash of the text that was handed in; empty if there is none.
    file_sha256: str = ""
    #: A digest of the tests, hidden ones included, and the commit of the course.
    tests_sha256: str = ""
    commit: str = ""

    @property
    def attempt(self) -> str | None:
        """The hash of the text, "" if what was handed in cannot be read, or None if nothing was handed in.

        Earlier versions stored the hash only in the result.
        """
        sha256 = self.file_sha256 or self.result.file_sha256
        return sha256 if sha256 or self.result.outcome is Outcome.UNREADABLE else None

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
        """Return the record of the current attempt, or None if there is none that can be read."""
        return _read(self._path(student, lab))

    def put(self, record: Record) -> None:
        """Store the record in place of the existing one, which moves to the history if it had a score. The record of
        another text also becomes that of an earlier attempt."""
        path = self._path(record.student, record.result.lab)
        old = self.get(record.student, record.result.lab)
        if old == record:
            return
        if old is not None and old.result.outcome is Outcome.GRADED:
            self._keep(path)
        if old is not None and old.attempt not in (None, record.attempt):
            write_whole(self._path_of_attempt(old), path.read_bytes())
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
        """Keep the text of the current attempt. A different one becomes that of an earlier attempt."""
        path = self.texts / student / f"{lab}.py"
        old = path.read_bytes() if path.is_file() else b""
        if old and old != content:
            self.put_attempts_text(student, lab, old)
        if not content:
            path.unlink(missing_ok=True)
        elif old != content:
            write_whole(path, content)

    def get_texts(self, lab: str, students: Sequence[str]) -> dict[str, str]:
        """Return the text of the current attempt of each student who has one."""
        paths = {student: self.texts / student / f"{lab}.py" for student in students}
        return {student: path.read_text(encoding="utf-8") for student, path in paths.items() if path.is_file()}

    # ---- attempts

    def handed_in(self, student: str, lab: str) -> list[HandedIn]:
        """Return what the student handed in for a lab, in order as far as that is known."""
        try:
            found = json.loads((self._folder(student) / f"{lab}.json").read_text(encoding="utf-8"))
            return [HandedIn.from_json(fields) for fields in found]
        except FileNotFoundError:
            known = self.get(student, lab)  # of a version without attempts
            return [HandedIn(known.attempt)] if known is not None and known.attempt is not None else []
        except (ValueError, KeyError, TypeError):
            return []

    def put_handed_in(self, student: str, lab: str, handed_in: Sequence[HandedIn]) -> None:
        """Store the list of attempts."""
        path = self._folder(student) / f"{lab}.json"
        if handed_in != self.handed_in(student, lab) or not path.is_file():
            write_whole(path, json.dumps([one.to_json() for one in handed_in], indent=1).encode())

    def get_attempt(self, student: str, lab: str, sha256: str) -> Record | None:
        """Return the record of the attempt with this text, or None if there is none that can be read."""
        current = self.get(student, lab)
        return current if current is not None and current.attempt == sha256 \
            else _read(self._folder(student) / _name(lab, sha256, "json"))

    def put_attempt(self, record: Record) -> None:
        """Store the record of an attempt that is not the current one."""
        path = self._path_of_attempt(record)
        if _read(path) != record:
            write_whole(path, record.to_json().encode())

    def attempts_text(self, student: str, lab: str, sha256: str) -> bytes:
        """Return the text of an attempt; nothing if it is lost."""
        for path in (self.texts / student / f"{lab}.py", self._path_of_text(student, lab, sha256)):
            if path.is_file() and hashlib.sha256(content := path.read_bytes()).hexdigest() == sha256:
                return content
        return b""

    def put_attempts_text(self, student: str, lab: str, content: bytes) -> None:
        """Keep the text of an attempt that is not the current one."""
        path = self._path_of_text(student, lab, hashlib.sha256(content).hexdigest())
        if not path.is_file():
            write_whole(path, content)

    def students(self) -> list[str]:
        """Return the students who have a result. A run that was killed may have left a folder without one."""
        return sorted({path.parent.name for path in self.results.glob("*/*.json")})

    def labs_of(self, student: str) -> list[str]:
        return [path.stem for path in (self.results / student).glob("*.json")]

    def _path(self, student: str, lab: str) -> Path:
        return self.results / student / f"{lab}.json"

    def _folder(self, student: str) -> Path:
        return self.results / student / "attempts"

    def _path_of_attempt(self, record: Record) -> Path:
        return self._folder(record.student) / _name(record.result.lab, record.attempt or "", "json")

    def _path_of_text(self, student: str, lab: str, sha256: str) -> Path:
        return self.texts / student / "attempts" / _name(lab, sha256, "py")


def _name(lab: str, sha256: str, suffix: str) -> str:
    return f"{lab}.{sha256[:16] or 'unreadable'}.{suffix}"


def _read(path: Path) -> Record | None:
    try:
        return Record.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):  # someone damaged it: treat it as missing
        return None


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
            raise LabError(f"Another `course grade` is running in {out}. Wait for it, or give each run "
                           "its own --shard.") from None
        except OSError:
            pass  # some network file systems cannot lock a file
        folder = out.resolve() / f".{name}"  # absolute, because a worker runs in another current folder
        shutil.rmtree(folder, ignore_errors=True)
        # The old folder may still exist, because a worker of the killed run may still be using it.
        folder.mkdir(mode=0o700, exist_ok=True)
        remove_partials(out)
        try:
            yield Path(tempfile.mkdtemp(dir=folder, prefix="run-"))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
