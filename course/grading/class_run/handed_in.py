"""What a student handed in for one lab, over the term: one entry per attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Any

from course.core.result import in_order


@dataclass(frozen=True)
class HandedIn:
    """One attempt: which text, when, and what says so."""

    #: Empty for a submission that cannot be read.
    file_sha256: str
    #: Without a zone if the source names none; None if no source has the time.
    submitted: datetime | None = None
    source: str = ""
    #: Whether an instructor's own table has the time: it replaces whatever a platform says.
    is_set: bool = False
    #: The time that the download itself contains, if any. A table's time replaces it, but it still identifies the
    #: attempt when the download is read again.
    in_download: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        return {"file_sha256": self.file_sha256, "submitted": _written(self.submitted), "source": self.source,
                "is_set": self.is_set, "in_download": _written(self.in_download)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> HandedIn:
        return cls(str(fields["file_sha256"]), _read(fields["submitted"]), str(fields["source"]),
                   bool(fields["is_set"]), _read(fields.get("in_download")))


def _written(time: datetime | None) -> str | None:
    return time.isoformat() if time else None


def _read(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def with_new(known: Sequence[HandedIn], new: Sequence[HandedIn], zone: tzinfo = timezone.utc) -> list[HandedIn]:
    """Return the attempts, with those of a download added. ``new`` is in order. The last of the result is current.

    The attempts are in the order of their times if all times are known. ``zone`` is that of times without one.
    The same texts with the same times change nothing, so a command can be repeated. A text that was handed in at two
    times is two attempts. A known text without a time is a new attempt only if no time at all is known: otherwise an
    old download that is read again, without its table of times, would count as a late attempt.
    """
    found = list(known)
    for number, one in enumerate(new):
        is_current = number == len(new) - 1
        same = [place for place, other in enumerate(found) if other.file_sha256 == one.file_sha256]
        if one.submitted is not None and same:
            found = _with_time(found, one, same)
        elif not same and not is_current and found and found[-1].file_sha256 == new[-1].file_sha256:
            found.insert(len(found) - 1, one)  # an attempt that became known after the one that followed it
        elif not same or (is_current and found[-1].file_sha256 != one.file_sha256
                          and all(other.submitted is None for other in found)):
            found.append(one)
    return in_order(found, zone)


def _with_time(found: list[HandedIn], one: HandedIn, same: Sequence[int]) -> list[HandedIn]:
    """Return the attempts, with a time for a text that is among them at the places ``same``.

    Your own table counts more than a platform's table, and this counts more than the download.
    """
    def instead_of(place: int, others: Sequence[int]) -> list[HandedIn]:
        return [one if number == place else other for number, other in enumerate(found)
                if number == place or number not in others]

    if one.is_set:
        return instead_of(same[-1], same)
    equal = [place for place in same if found[place].submitted == one.submitted]
    read_before = [place for place in same if one.in_download is not None
                   and one.in_download in (found[place].submitted, found[place].in_download)]
    is_downloads = one.submitted == one.in_download
    if any(found[place].is_set for place in same) or (is_downloads and read_before):
        return found
    if read_before:
        return instead_of(read_before[-1], equal)
    if equal:
        return found
    unknown = [place for place in same if found[place].submitted is None]
    if unknown:
        return instead_of(unknown[-1], [])
    if is_downloads and any(found[place].in_download is None for place in same):
        return found  # a table has a time for this text
    of_downloads = [place for place in same if found[place].submitted == found[place].in_download]
    if one.in_download is None and of_downloads:
        return instead_of(of_downloads[-1], [])
    return [*found, one]
