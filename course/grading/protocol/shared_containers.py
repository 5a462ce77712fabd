"""Lists, dictionaries, sets and arrays that both sides hold: after every message both copies say the same.

Python hands containers over by reference. A call may change its caller's list, and a list that was kept changes with
its owner. Copies would hide both, and tests of exactly that would pass on wrong code. So each side remembers what a
shared container looked like when the other side last heard of it, and sends along what has changed since.

One that a side no longer uses (nobody holds it but this table) is dropped on both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from operator import is_
from typing import Any

from course.grading.protocol.tags import identity


class _Entry:
    """A shared container, and what it looked like when the other side last heard of it."""

    __slots__ = ("value", "snapshot", "is_guarded")

    def __init__(self, value: Any, is_guarded: bool = False) -> None:
        self.value = value
        self.snapshot = _copy(value)
        #: The other side may look at it, and what it changes does not count.
        self.is_guarded = is_guarded

    def num_references(self) -> int:
        return sys.getrefcount(self.value)

    def is_same(self) -> bool:
        """Whether nothing was put in, taken out or moved. By identity: to compare could run code of somebody else's."""
        value, snapshot = self.value, self.snapshot
        if snapshot is None:
            return False
        if type(value) is list:
            return len(value) == len(snapshot) and all(map(is_, value, snapshot))
        if type(value) is dict:
            return (len(value) == len(snapshot) and all(map(is_, value, snapshot))
                    and all(map(is_, value.values(), snapshot.values())))
        if type(value) is set:
            return len(value) == len(snapshot) and set(map(identity, value)) == set(map(identity, snapshot))
        return bool(value.tobytes() == snapshot)


def _copy(value: Any) -> Any:
    """One level deep: what lies inside is shared by itself. Of an array, its bytes."""
    if type(value) is set:
        return list(value)
    return value.copy() if type(value) in (list, dict) else value.tobytes()


#: Who refers to a container that only its entry holds; it differs between versions of Python.
_NUM_OWN_REFERENCES = _Entry([]).num_references()


def _is_view(value: Any) -> bool:
    """Whether it is an array in another's memory: nobody may hold it here, and yet what is written there is seen."""
    return getattr(value, "base", None) is not None


class Mirrors:
    """What of one side's containers the other side has a copy of."""

    def __init__(self, first_id: int) -> None:
        #: Both sides give out ids: one the even, the other the odd ones.
        self._next_id = first_id
        self.parity = first_id % 2
        self._entries: dict[int, _Entry] = {}
        self._id_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def id_of(self, value: Any) -> int | None:
        return self._id_of.get(identity(value))

    def new(self, value: Any, is_guarded: bool = False) -> int:
        """Share a container of this side; guarded, if the other side may not change it."""
        mirror_id = self._next_id
        self._next_id += 2
        self.adopt(mirror_id, value, is_guarded)
        return mirror_id

    def adopt(self, mirror_id: int, value: Any, is_guarded: bool = False) -> None:
        """Share a container that came from the other side, under its id."""
        self._entries[mirror_id] = _Entry(value, is_guarded)
        self._id_of[identity(value)] = mirror_id

    def get(self, mirror_id: int) -> Any:
        """Raises KeyError for one that is not shared."""
        return self._entries[mirror_id].value

    def seen(self, mirror_id: int) -> None:
        """Both sides know what it looks like now."""
        entry = self._entries[mirror_id]
        entry.snapshot = _copy(entry.value)

    def changed(self) -> Iterator[tuple[int, Any]]:
        """Those that have changed on this side since the last message."""
        for mirror_id, entry in list(self._entries.items()):
            if not entry.is_same():
                entry.snapshot = _copy(entry.value)
                yield mirror_id, entry.value

    def overwrite(self, mirror_id: int, value: Any) -> None:
        """The other side's copy looks like ``value`` now. Raises KeyError, TypeError or ValueError if it cannot."""
        entry = self._entries[mirror_id]
        if entry.is_guarded:
            entry.snapshot = None  # so that it is sent anew, as it is
            return
        mine = entry.value
        if type(mine) is not type(value):
            raise TypeError("a container has become one of another kind")
        if type(mine) is list:
            mine[:] = value
        elif type(mine) is dict or type(mine) is set:
            mine.clear()
            mine.update(value)
        else:
            if mine.shape != value.shape or mine.dtype != value.dtype:
                raise ValueError("an array has another shape or type than before")
            mine[...] = value
        self.seen(mirror_id)

    def drop_unused(self) -> list[int]:
        """Forget what this side no longer uses, and say what that was."""
        gone = [mirror_id for mirror_id, entry in self._entries.items()
                if entry.num_references() <= _NUM_OWN_REFERENCES and not _is_view(entry.value)]
        self.drop(gone)
        return gone

    def drop(self, mirror_ids: list[int]) -> None:
        for mirror_id in mirror_ids:
            entry = self._entries.pop(mirror_id, None)
            if entry is not None:
                self._id_of.pop(identity(entry.value), None)

    def clear(self) -> None:
        self._entries.clear()
        self._id_of.clear()
