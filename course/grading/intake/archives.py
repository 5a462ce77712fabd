"""Archives, read into memory and never unpacked. Their members, bytes and compression ratio are bounded.

A tar is read as a stream, from front to back. An archive whose headers point backwards, which sends some versions of
``tarfile`` into an endless loop, ends in an error.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator
from typing import IO

from course.core.failure_messages import TimeLimitExceeded
from course.core.resource_limits import time_limit
from course.grading.intake.read_files import (
    Budget,
    Member,
    Refused,
    is_archive,
    is_skipped,
    kind_of,
    shown_name,
    too_large,
    unsafe_path,
)

#: How many times its own size an archive may contain, beyond the first megabyte.
MAX_RATIO = 100
FREE_BYTES = 1_000_000
#: Reading the largest archive takes one or two seconds.
MAX_CPU_S = 20.0
_ENCRYPTED = 0x1


def opened(member: Member, budget: Budget, depth: int = 2) -> list[Member]:
    """Return the member, or for an archive its members and those of archives in it. An archive counts as a folder."""
    if not is_archive(member.name) or member.problem:
        return [member]
    if depth == 0:
        return [Member(member.name, problem="is an archive in an archive in an archive")]
    folder = stem_of(member.name)
    return [found for inner in read_archive(member.name, member.content, budget)
            for found in opened(inner.below(folder), budget, depth - 1)]


def stem_of(name: str) -> str:
    """Return the name without the suffix that makes it an archive."""
    for end in (".tar.gz", ".tgz", ".tar", ".zip"):
        if name.lower().endswith(end):
            return name[:-len(end)]
    return name


def read_archive(name: str, content: bytes, budget: Budget) -> list[Member]:
    """Return all members of an archive. Raise Refused, with a description, if it is damaged or would fill a disk."""
    read = _read_zip if name.lower().endswith(".zip") else _read_tar
    name = shown_name(name)
    try:
        with time_limit(MAX_CPU_S):
            return list(read(name, content, budget))
    except Refused:
        raise
    except (TimeLimitExceeded, MemoryError):
        raise Refused(f"{name} is an archive that takes too long to read.") from None
    except Exception as error:  # a damaged or made-up archive may raise anything
        raise Refused(f"{name} is a damaged archive, or not an archive ({type(error).__name__}).") from None


def _read_zip(name: str, content: bytes, budget: Budget) -> Iterator[Member]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        _check_ratio(name, sum(entry.file_size for entry in entries), len(content))
        for entry in entries:
            inner = entry.filename.replace("\\", "/")  # some Windows programs write backslashes
            if _is_left_out(inner):
                continue
            problem = unsafe_path(inner) or _zip_kind(entry) or too_large(entry.file_size, inner)
            budget.count_member()
            budget.count_bytes(0 if problem else entry.file_size)
            wanted = 0 if problem else budget.wanted_of(inner, entry.file_size)
            yield Member(inner, _bounded(archive.open(entry), wanted) if wanted else b"", problem)


def _zip_kind(entry: zipfile.ZipInfo) -> str:
    if entry.flag_bits & _ENCRYPTED:
        return "is protected by a password"
    mode = entry.external_attr >> 16
    return kind_of(mode) if entry.create_system == 3 and mode >> 12 else ""


def _read_tar(name: str, content: bytes, budget: Budget) -> Iterator[Member]:
    plain: IO[bytes] = io.BytesIO(content)
    if content.startswith(b"\x1f\x8b"):
        limit = min(budget.max_bytes - budget.num_bytes, MAX_RATIO * len(content) + FREE_BYTES)
        plain = io.BytesIO(_unzipped(name, content, limit))
    with tarfile.open(fileobj=plain, mode="r|") as archive:
        for entry in archive:
            if entry.isdir() or _is_left_out(entry.name):
                continue
            problem = unsafe_path(entry.name) or _tar_kind(entry) or too_large(entry.size, entry.name)
            budget.count_member()
            budget.count_bytes(0 if problem else entry.size)
            wanted = 0 if problem else budget.wanted_of(entry.name, entry.size)
            file = archive.extractfile(entry) if wanted else None
            yield Member(entry.name.removeprefix("./"), _bounded(file, wanted) if file else b"", problem)


def _unzipped(name: str, content: bytes, limit: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        plain = file.read(limit + 1)
    _check_ratio(name, len(plain), len(content))
    if len(plain) > limit:
        raise Refused(f"{name} holds more than {limit / 1e6:.0f} MB; hand in the labs' files only.")
    return plain


def _tar_kind(entry: tarfile.TarInfo) -> str:
    if entry.issym():
        return "is a symbolic link"
    if entry.islnk():
        return "is a hard link"
    if entry.isfifo():
        return "is a named pipe"
    return "" if entry.isreg() and not entry.issparse() else "is not a regular file"


def _bounded(file: IO[bytes], num_bytes: int) -> bytes:
    with file:
        return file.read(num_bytes)


def _check_ratio(name: str, num_bytes: int, num_packed: int) -> None:
    if num_bytes > MAX_RATIO * num_packed + FREE_BYTES:
        raise Refused(f"{name} would grow to more than {MAX_RATIO} times its size; such an archive is not opened.")


def _is_left_out(name: str) -> bool:
    return any(is_skipped(part) for part in name.split("/") if part not in (".", "..", ""))
