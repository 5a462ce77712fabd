"""Lists, dictionaries, sets and arrays that both sides hold: after every message both copies are the same.

Python passes containers by reference. A call may change its caller's list, and a list that was kept changes with its
owner. Copies would hide both, and tests of exactly that would pass on wrong code. So each side remembers what a shared
container looked like when the other side was last told, and sends along what has changed since.

A container that one side no longer uses (only this table refers to it) is dropped on both sides.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from operator import is_
from typing import Any

from course.grading.protocol.tags import SCALARS, identity

#: At most this many containers that the other side has dropped are looked at after every message.
NUM_DROPPED = 100


class _Entry:
    """A shared container, and what it looked like when the other side was last told."""

    __slots__ = ("value", "snapshot", "is_guarded")

    def __init__(self, value: Any, is_guarded: bool = False) -> None:
        self.value = value
        self.snapshot = _copy(value)
        #: The other side may look at the container, but its changes are ignored.
        self.is_guarded = is_guarded

    def num_references(self) -> int:
        return sys.getrefcount(self.value)

    def contains_others(self) -> bool:
        if type(self.value) not in (list, dict, set):
            return False
        items = self.value.values() if type(self.value) is dict else self.value
        return not SCALARS.issuperset(map(type, items))

    def is_same(self) -> bool:
        """Return whether nothing was inserted, removed or moved. Items are compared by identity, because ``==``
        could run the student's code."""
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
    """Return a copy that is one level deep, since the items are shared separately. For an array, return its bytes."""
    if type(value) is set:
        return list(value)
    return value.copy() if type(value) in (list, dict) else value.tobytes()


#: The number of references to a container that only its entry holds. It differs between versions of Python.
_NUM_OWN_REFERENCES = _Entry([]).num_references()


def _is_view(value: Any) -> bool:
    """Return whether this is an array in another's memory: writes there are visible even if nothing refers to it."""
    return getattr(value, "base", None) is not None


class Mirrors:
    """The containers of one side of which the other side has a copy."""

    def __init__(self, first_id: int) -> None:
        #: Both sides assign ids: one side the even ones, the other the odd ones.
        self._next_id = first_id
        self.parity = first_id % 2
        self._entries: dict[int, _Entry] = {}
        self._id_of: dict[int, int] = {}
        #: Containers that contain others, were dropped by the other side, and are perhaps still used by this one.
        self._dropped: list[_Entry] = []
        self._max_dropped = NUM_DROPPED

    def __len__(self) -> int:
        return len(self._entries)

    def id_of(self, value: Any) -> int | None:
        return self._id_of.get(identity(value))

    def new(self, value: Any, is_guarded: bool = False) -> int:
        """Share a container of this side. It is guarded if the other side may not change it."""
        mirror_id = self._next_id
        self._next_id += 2
        self.adopt(mirror_id, value, is_guarded)
        return mirror_id

    def adopt(self, mirror_id: int, value: Any, is_guarded: bool = False) -> None:
        """Share a container that arrived from the other side, under its id."""
        self._entries[mirror_id] = _Entry(value, is_guarded)
        self._id_of[identity(value)] = mirror_id

    def get(self, mirror_id: int) -> Any:
        """Return a shared container. Raise KeyError if there is none with this id."""
        return self._entries[mirror_id].value

    def seen(self, mirror_id: int) -> None:
        """Record that both sides know what the container looks like now."""
        entry = self._entries[mirror_id]
        entry.snapshot = _copy(entry.value)

    def changed(self) -> Iterator[tuple[int, Any]]:
        """Yield the containers that have changed on this side since the last message."""
        for mirror_id, entry in list(self._entries.items()):
            if not entry.is_same():
                entry.snapshot = _copy(entry.value)
                yield mirror_id, entry.value

    def overwrite(self, mirror_id: int, value: Any) -> None:
        """Make the container look like ``value``, as the other side's copy does. Raise KeyError, TypeError or
        ValueError if that is impossible. A guarded container stays unchanged."""
        entry = self._entries[mirror_id]
        if entry.is_guarded:
            entry.snapshot = None  # so that its unchanged content is sent again
            return
        mine = entry.value
        if type(mine) is not type(value):
            raise TypeError("the type of a container has changed")
        if type(mine) is list:
            mine[:] = value
        elif type(mine) is dict or type(mine) is set:
            mine.clear()
            mine.update(value)
        else:
            if mine.shape != value.shape or mine.dtype != value.dtype:
                raise ValueError("the shape or type of an array has changed")
            mine[...] = value
        self.seen(mirror_id)

    def drop_unused(self) -> list[int]:
        """Forget the containers that this side no longer uses, and return their ids."""
        gone = [mirror_id for mirror_id, entry in self._entries.items()
                if entry.num_references() <= _NUM_OWN_REFERENCES and not _is_view(entry.value)]
        self.drop(gone)
        if 0 < len(self._dropped) <= NUM_DROPPED or len(self._dropped) > self._max_dropped:
            self._dropped = [entry for entry in self._dropped if entry.num_references() > _NUM_OWN_REFERENCES]
            self._max_dropped = 2 * len(self._dropped) + NUM_DROPPED
        return gone

    def drop(self, mirror_ids: list[int]) -> None:
        for mirror_id in mirror_ids:
            entry = self._entries.pop(mirror_id, None)
            if entry is not None:
                self._id_of.pop(identity(entry.value), None)
                if entry.contains_others() and entry.num_references() > _NUM_OWN_REFERENCES:
                    entry.snapshot = None
                    self._dropped.append(entry)

    def counted(self) -> Iterator[tuple[Any, int]]:
        """Yield each container through which the other side can still change something, and how many references to
        it there are: a tuple may contain it many times."""
        for entry in (*self._entries.values(), *self._dropped):
            yield entry.value, max(entry.num_references() - _NUM_OWN_REFERENCES, 1)

    def clear(self) -> None:
        self._entries.clear()
        self._dropped.clear()
        self._id_of.clear()
