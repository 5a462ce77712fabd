"""The files of a submission, read into memory once. Their paths are not used again."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath

MAX_MEMBERS = 2000
#: The size of a lab's file; the longest solution has 30 kB.
MAX_FILE_BYTES = 1_000_000
#: All files of one submission together, including an archive.
MAX_TOTAL_BYTES = 64_000_000
#: The size of a file that may be Python though its name does not say so; and of all such files of one submission.
MAX_GUESSED_BYTES, MAX_ALL_GUESSED_BYTES = 200_000, 2_000_000
MAX_DEPTH = 12
#: The length of a name in a sentence.
MAX_SHOWN = 100
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
#: Gradescope's table of submitters.
METADATA = "submission_metadata.yml"
#: Folders that never contain a student's work.
SKIPPED = ("__MACOSX", "__pycache__", "node_modules", "site-packages", "venv")


#: Hidden folders that programs create.
_TOOLS = re.compile(r"\.(?:_.*|git|github|svn|hg|vscode|idea|ipynb_checkpoints|venv|env|tox|nox|cache|course|local|"
                    r"config|Trash.*|Spotlight.*|fseventsd|TemporaryItems|DocumentRevisions.*|AppleDouble|\w+_cache)")
#: Suffixes under which a Python text may have been saved by mistake.
_MISTAKEN = ("", ".txt", ".pyw", ".py3", ".text", ".bak", ".old", ".orig")


class Refused(Exception):
    """A submission that cannot be accepted as a whole; the message is a sentence about it, for its student."""


@dataclass(frozen=True)
class Member:
    """One file of a submission."""

    #: Its path in the submission, with slashes; an archive counts as a folder.
    name: str
    content: bytes = b""
    #: Why there is no content, phrased to follow the name: ``is a symbolic link``.
    problem: str = ""
    #: Its name in sentences, if that differs from ``name``.
    alias: str = ""

    @property
    def shown(self) -> str:
        return shown_name(self.alias or self.name)

    def below(self, folder: str) -> Member:
        return replace(self, name=f"{folder}/{self.name}")


@dataclass
class Budget:
    """The limits of one submission, and how much of them it has used."""

    max_members: int = MAX_MEMBERS
    max_bytes: int = MAX_TOTAL_BYTES
    num_members: int = 0
    num_bytes: int = 0
    #: The bytes of files that may be Python by mistake. They are read while there is room, and never cause a refusal.
    num_guessed_bytes: int = 0

    def count_member(self) -> None:
        """Count one more file. Raise Refused if there are too many."""
        self.num_members += 1
        if self.num_members > self.max_members:
            raise Refused(f"It holds more than {self.max_members} files; hand in the labs' files only.")

    def count_bytes(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        if self.num_bytes > self.max_bytes:
            raise Refused(f"It holds more than {self.max_bytes / 1e6:.0f} MB; hand in the labs' files only.")


    def wanted_of(self, name: str, num_bytes: int) -> int:
        """Return how many bytes to read of a file with ``num_bytes``."""
        if limit_of(name) or not may_be_python(name) or num_bytes > MAX_GUESSED_BYTES:
            return limit_of(name)
        self.num_guessed_bytes += num_bytes
        return MAX_GUESSED_BYTES if self.num_guessed_bytes <= MAX_ALL_GUESSED_BYTES else 0


def shown_name(name: str) -> str:
    """Return a name that someone else chose, safe for a sentence: no control characters, at most a line long."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) <= MAX_SHOWN else f"…{plain[-MAX_SHOWN:]}"


def is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVES)


def is_skipped(name: str) -> bool:
    """Return whether a part of a path is hidden, a cache, or a file that an operating system creates."""
    return name.startswith(".") or name in SKIPPED or name in ("Thumbs.db", "desktop.ini")


def is_tools(name: str) -> bool:
    """Return whether a hidden folder is one that a program creates, and so is not a submission."""
    return _TOOLS.fullmatch(name) is not None


def is_notebook(name: str) -> bool:
    return name.lower().endswith(".ipynb")


def may_be_python(name: str) -> bool:
    """Return whether a Python text may have this name by mistake: ``starter``, ``starter.py.txt``, ``starter.py~``."""
    last = PurePosixPath(name).name.lower()
    return ".py" in last and not last.endswith((".pyc", ".py", ".ipynb")) or PurePosixPath(last).suffix in _MISTAKEN


def limit_of(name: str) -> int:
    """Return how many bytes of a file with this name matter: 0 if it can be neither Python nor an archive."""
    if is_archive(name) or name.endswith(METADATA):
        return MAX_TOTAL_BYTES
    return MAX_FILE_BYTES if name.lower().endswith(".py") else 0


def too_large(num_bytes: int, name: str) -> str:
    """Return "" if a file may have that size; otherwise what to say about it."""
    limit = limit_of(name)
    if not limit or num_bytes <= limit:
        return ""
    what = "an archive" if is_archive(name) else "a lab's file"
    return f"has {num_bytes / 1e6:.1f} MB; the limit for {what} is {limit / 1e6:.0f} MB"


def unsafe_path(name: str) -> str:
    """Return "" for a path that stays within its folder; otherwise what is wrong with it."""
    if "\\" in name or "\0" in name or any(ord(letter) < 32 for letter in name):
        return "has invalid characters in its path"
    parts = PurePosixPath(name).parts
    if name.startswith("/") or (parts and parts[0][1:2] == ":"):
        return "has an absolute path"
    return "has a path that leaves its folder" if ".." in parts else ""


def read_folder(folder: Path, budget: Budget) -> list[Member]:
    """Return all files in ``folder`` and below it. Links are not followed. Raise Refused if there is too much."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return list(_walk(descriptor, "", budget, MAX_DEPTH))
    finally:
        os.close(descriptor)


def read_one(path: Path, name: str, budget: Budget) -> Member:
    """Read a single file, which is called ``name`` in the submission."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return replace(_read(descriptor, path.name, name, budget), alias=path.name if path.name != name else "")
    finally:
        os.close(descriptor)


def _walk(descriptor: int, prefix: str, budget: Budget, depth: int) -> Iterator[Member]:
    with os.scandir(descriptor) as entries:
        found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, 10 * MAX_MEMBERS)
                       if not is_skipped(entry.name))
    if any(name == "pyvenv.cfg" for name, _ in found):  # a virtual environment, whatever its name
        return
    for name, is_folder in found:
        if not is_folder:
            yield _read(descriptor, name, prefix + name, budget)
        elif depth == 0:
            raise Refused(f"Its folders are more than {MAX_DEPTH} deep.")
        else:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            try:
                yield from _walk(inner, f"{prefix}{name}/", budget, depth - 1)
            finally:
                os.close(inner)


def _read(folder: int, entry: str, name: str, budget: Budget) -> Member:
    """Read an entry of an open folder if it is a regular file. Neither a link nor a FIFO can do harm."""
    budget.count_member()
    found = os.stat(entry, dir_fd=folder, follow_symlinks=False)
    if kind := kind_of(found.st_mode):
        return Member(name, problem=kind)
    wanted = budget.wanted_of(name, found.st_size)
    if not wanted:
        return Member(name)
    try:
        descriptor = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        return Member(name, problem=f"cannot be read: {error.strerror}")
    with open(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        problem = kind_of(state.st_mode) or too_large(state.st_size, name)
        if not problem:
            content = file.read(wanted + 1)
            problem = too_large(len(content), name)
    if problem:
        return Member(name, problem=problem)
    budget.count_bytes(len(content) if limit_of(name) else 0)
    return Member(name, content)


def kind_of(mode: int) -> str:
    """Return "" for a regular file; otherwise what it is."""
    kinds = {stat.S_IFREG: "", stat.S_IFLNK: "is a symbolic link", stat.S_IFIFO: "is a named pipe",
             stat.S_IFSOCK: "is a socket", stat.S_IFCHR: "is a device", stat.S_IFBLK: "is a device",
             stat.S_IFDIR: "is a folder"}
    return kinds.get(stat.S_IFMT(mode), "is not a regular file")
