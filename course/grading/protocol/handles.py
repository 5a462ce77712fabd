"""Objects that cross as numbers: this side's objects that the other side holds, and stand-ins for the other side's."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from course.grading.protocol.access_rules import Permissions
from course.grading.protocol.class_info import Described, describe
from course.grading.protocol.interface import Connection
from course.grading.protocol.message_bytes import Incoming, Outgoing
from course.grading.protocol.proxies import Kept, Remote, RemoteMethod, make_class
from course.grading.protocol.socket_messages import ProtocolError
from course.grading.protocol.tags import SCALARS, identity

_SCALARS_AND_LISTS = SCALARS | {list}


class Handles:
    """The handles of one peer, in both directions."""

    def __init__(self, peer: Connection, policy: Permissions, trusts_other: bool,
                 find_class: Callable[[str], type | None]) -> None:
        self._peer, self._policy, self._trusts_other, self._find_class = peer, policy, trusts_other, find_class
        self._next_id = 1
        #: Objects of this side that the other side holds, by their numbers.
        self.own_objects: dict[int, Any] = {}
        self._ids: dict[int, int] = {}
        self._far: weakref.WeakValueDictionary[int, Remote] = weakref.WeakValueDictionary()
        self._released: list[int] = []
        #: Classes of this side that were described to the other; below, the other side's classes described to this one.
        self._by_class: dict[Any, Described] = {}
        self._classes: dict[int, type[Remote]] = {}

    def described(self, kind: type) -> Described | None:
        return self._by_class.get(kind)

    def own_id(self, value: Any) -> int:
        """Return the number under which the other side holds an object; -1 if it does not hold it."""
        return self._ids.get(identity(value), -1)

    def handle(self, value: Any, out: Outgoing) -> Any:
        """Encode an object that is not data."""
        kind = type(value)
        if issubclass(kind, Remote):
            if value._far_peer is not self._peer:
                raise TypeError("it belongs to a process that has ended")
            return ["o", value._far_id]
        if kind is RemoteMethod:
            return ["M", self.handle(value.owner, out), value.name]
        self._policy.check_handle(value)
        own_id = self._ids.get(identity(value))
        if own_id is None:
            own_id = self._next_id
            self._next_id += 1
            self.own_objects[own_id] = value
            self._ids[identity(value)] = own_id
        return self._describe(value, own_id, out)

    def _describe(self, value: Any, own_id: int, out: Outgoing) -> list[Any]:
        """Return the object's number, the number of its class, the description of the class (only the first time),
        and the object's plain attributes."""
        kind = type(value)
        key: Any = (kind, value.__name__) if isinstance(value, type) else kind
        described = self._by_class.get(key)
        if described is not None:
            return ["h", own_id, described.class_id, None, *self._fields(value, described, out)]
        described = self._by_class[key] = describe(value, len(self._by_class), self._policy)
        return ["h", own_id, described.class_id, described.to_json(), *self._fields(value, described, out)]

    def fields(self, own_id: int, out: Outgoing) -> list[Any]:
        """Return the number of one of this side's objects and its plain attributes."""
        value = self.own_objects[own_id]
        return [own_id, self._fields(value, self._by_class[type(value)], out)]

    def _fields(self, value: Any, described: Described, out: Outgoing) -> list[Any]:
        return described.values(value, self._peer.enum_key, self._peer.writing.encode, out)

    def stand_in(self, incoming: Incoming, far_id: Any, class_id: Any, description: Any, *fields: Any) -> Remote:
        """Return the stand-in for an object of the other side, the same one every time."""
        if type(far_id) is not int or type(class_id) is not int:
            raise ProtocolError("not a handle")
        if description is not None and class_id not in self._classes:
            name, shape, operators, methods, plain, num_fixed, known = description
            self._classes[class_id] = make_class(str(name), str(shape), operators, methods, plain, num_fixed,
                                                 self._known_class(known), self._trusts_other)
        remote = self._far.get(far_id)
        if remote is None:
            remote = object.__new__(self._classes[class_id])
            object.__setattr__(remote, "_far_peer", self._peer)
            object.__setattr__(remote, "_far_id", far_id)
            object.__setattr__(remote, "_far_hash", None)
            object.__setattr__(remote, "_far_fields", [])
            self._far[far_id] = remote
        self._keep_fields(remote, list(fields), incoming)
        return remote

    def _keep_fields(self, remote: Remote, fields: list[Any], incoming: Incoming) -> None:
        if type(fields) is not list or not _SCALARS_AND_LISTS.issuperset(map(type, fields)):
            raise ProtocolError("impossible attributes")
        for place in range(remote._far_num_fixed):
            if type(fields[place]) is list:
                if fields[place]:  # decode now: it may describe a class that later messages only name
                    fields[place] = Kept(self._peer.reading.decode(fields[place], incoming))
                elif place < len(remote._far_fields):  # it was fetched before
                    fields[place] = remote._far_fields[place]
        object.__setattr__(remote, "_far_turn", self._peer.turn)
        object.__setattr__(remote, "_far_fields", fields)

    def _known_class(self, names: list[str]) -> type | None:
        """Return the first of these classes that this side also knows."""
        for name in names[:12]:
            found = self._find_class(str(name))
            if found is not None:
                return found
        return None

    def let_go(self, far_id: int) -> None:
        """Note that this side no longer holds the stand-in. The next message tells the other side."""
        self._released.append(far_id)

    def own(self, own_id: Any) -> Any:
        """Return the object with this number. Raise KeyError if the other side never received it or has released it."""
        return self.own_objects[own_id]

    def releases(self) -> list[int]:
        """Return the numbers of the objects that this side has released since the last message."""
        if not self._released:
            return []
        gone = [far_id for far_id in self._released if far_id not in self._far]
        self._released.clear()
        return gone

    def release(self, own_ids: list[int]) -> None:
        """Forget the objects that the other side has released."""
        for own_id in own_ids:
            self._ids.pop(identity(self.own_objects.pop(own_id, None)), None)

    def take_ahead(self, ahead: list[Any], incoming: Incoming) -> None:
        """Store the attributes of stand-ins that were sent along."""
        for far_id, fields in ahead:
            remote = self._far.get(far_id)
            if remote is not None:
                self._keep_fields(remote, fields, incoming)
