"""Reads one submission. It runs as a process of its own, ``python -I -S reader.py SECONDS BYTES``, with these limits.

Standard input is a JSON list of ``[path, name]``: a folder, an archive or a file, and its name in the submission.
Standard output is a JSON list of ``[name, problem, content]``. The content of a lab's file is in base64; that of
another file is null. A tar is read as a stream, from front to back.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable
from typing import IO

CPU_S, MEMORY_BYTES = 10, 512 << 20
MAX_FILES, MAX_DEPTH, MAX_NAME = 5_000, 12, 1_000
#: Of an archive; of a lab's file, the longest solution having 30 kB; and of all labs' files of a submission.
MAX_ARCHIVE_BYTES, MAX_FILE_BYTES, MAX_BYTES = 64_000_000, 1_000_000, 16_000_000
TAR_MODES = {".tar": "r|", ".tar.gz": "r|gz", ".tgz": "r|gz"}
ARCHIVES = (".zip", *TAR_MODES)
#: What operating systems and programs leave behind. It is neither read nor reported.
IGNORED = {"__MACOSX", "__pycache__", ".DS_Store", "Thumbs.db", "desktop.ini", ".git", ".idea", ".vscode", ".venv",
           "venv", "node_modules", ".course", ".ipynb_checkpoints", ".pytest_cache", ".ruff_cache", ".mypy_cache"}
_KINDS = {stat.S_IFLNK: "is a symbolic link", stat.S_IFDIR: "is a folder", stat.S_IFREG: ""}
_ENCRYPTED = 0x1


class Refused(Exception):
    """A submission that cannot be accepted as a whole; the message is a sentence about it."""


class Reader:
    def __init__(self) -> None:
        self.found: list[tuple[str, str, str | None]] = []
        self._num_bytes = 0

    def read(self, path: str, name: str, depth: int = 0) -> None:
        """Read a folder, an archive or a file that is called ``name`` in the submission. Links are not followed."""
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            if depth > MAX_DEPTH:
                raise Refused(f"Its folders are more than {MAX_DEPTH} deep.")
            for entry in sorted(os.listdir(path)):
                if entry not in IGNORED and not entry.startswith("._"):
                    self.read(os.path.join(path, entry), f"{name}/{entry}" if name else entry, depth + 1)
        elif not stat.S_ISREG(mode):
            self._add(name, _KINDS.get(stat.S_IFMT(mode), "is not a regular file"))
        else:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if not path.lower().endswith(ARCHIVES):
                    self._add(name, "", size, lambda: file)
                elif size > MAX_ARCHIVE_BYTES:
                    self._add(name, f"has {size / 1e6:.0f} MB; the limit is {MAX_ARCHIVE_BYTES / 1e6:.0f} MB")
                else:
                    self._open(file, path.lower(), name)

    def _open(self, file: IO[bytes], path: str, name: str) -> None:
        num_before = len(self.found)
        try:
            if path.endswith(".zip"):
                self._read_zip(file, f"{name}/" if name else "")
            else:
                self._read_tar(file, path, f"{name}/" if name else "")
        except (Refused, MemoryError):
            raise
        except Exception as error:  # a damaged or made-up archive may raise anything
            problem = f"is a damaged archive, or not an archive ({type(error).__name__})"
            del self.found[num_before:]
            self._add(name, problem)

    def _read_zip(self, file: IO[bytes], prefix: str) -> None:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                inner = entry.filename.replace("\\", "/")  # some Windows programs write backslashes
                mode = entry.external_attr >> 16 if entry.create_system == 3 else 0
                problem = _KINDS.get(stat.S_IFMT(mode), "is not a regular file") if stat.S_IFMT(mode) else ""
                if entry.flag_bits & _ENCRYPTED:
                    problem = "is protected by a password"
                elif entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    problem = f"is compressed by method {entry.compress_type}; only deflate is read"
                if not entry.is_dir():
                    self._add_member(prefix, inner, problem, entry.file_size, lambda: archive.open(entry))  # noqa: B023

    def _read_tar(self, file: IO[bytes], path: str, prefix: str) -> None:
        mode = next(mode for end, mode in TAR_MODES.items() if path.endswith(end))
        with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]  # one of two literals
            for entry in archive:
                problem = "" if entry.isreg() and not entry.issparse() else "is a link, or not a regular file"
                if not entry.isdir():
                    self._add_member(prefix, entry.name, problem, entry.size,
                                     lambda: archive.extractfile(entry))  # noqa: B023

    def _add_member(self, prefix: str, inner: str, problem: str, size: int, opened: Callable[[], IO[bytes]]) -> None:
        inner = inner.removeprefix("./")
        parts = inner.split("/")
        if any(part in IGNORED or part.startswith("._") for part in parts):
            return
        if not inner.isprintable() or inner.startswith("/") or ".." in parts or parts[0][1:2] == ":":
            problem = "has a path that is not safe"
        elif len(parts) > MAX_DEPTH:
            raise Refused(f"Its folders are more than {MAX_DEPTH} deep.")
        elif inner.lower().endswith(ARCHIVES):
            problem = "is an archive in an archive"
        self._add(prefix + inner, problem, size, opened)

    def _add(self, name: str, problem: str, size: int = 0, opened: Callable[[], IO[bytes]] | None = None) -> None:
        if len(self.found) == MAX_FILES:
            raise Refused(f"It holds more than {MAX_FILES} files; hand in the labs' files only.")
        if len(name) > MAX_NAME or (problem and not name):
            raise Refused(f"It {problem}." if not name else f"A path in it has more than {MAX_NAME} characters.")
        content = None
        if opened is not None and not problem and name.endswith((".py", ".c")):
            with opened() as file:
                text = file.read(MAX_FILE_BYTES + 1) if size <= MAX_FILE_BYTES else b""
            self._num_bytes += len(text)
            if self._num_bytes > MAX_BYTES:
                raise Refused(f"Its texts have more than {MAX_BYTES / 1e6:.0f} MB; hand in the labs' files only.")
            if max(size, len(text)) > MAX_FILE_BYTES:
                problem = f"is larger than {MAX_FILE_BYTES / 1e6:.0f} MB"
            else:
                content = base64.b64encode(text).decode("ascii")
        self.found.append((name, problem, content))


def main() -> None:
    cpu_s, num_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "darwin":  # macOS does not support it
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    reader = Reader()
    try:
        for path, name in json.load(sys.stdin):
            reader.read(path, name)
        json.dump(reader.found, sys.stdout)
    except Refused as refused:
        json.dump(str(refused), sys.stdout)
    except MemoryError:
        json.dump("It takes too much memory to read.", sys.stdout)
    except OSError as error:
        json.dump(f"It cannot be read: {error.strerror}.", sys.stdout)


if __name__ == "__main__":
    main()
