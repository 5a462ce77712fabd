"""One side of the conversation. Both sides ask and answer in turns, and only one of them runs at a time.

    grader                                       sandbox
    lab.BlockPool(6)          ── ? call ──▶      runs the student's code …
    clock()                   ◀── ? call ──      … which calls something that was handed in
                              ── ! 3.0 ──▶
    <BlockPool>               ◀── ! h 7 ──       … and answers with a handle

A side may ask while it is being asked, to a depth. What it is asked to do, its policy allows or refuses.
"""

from __future__ import annotations

import enum
import operator
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from course.grading.describing import Described, describe, static
from course.grading.errors import Errors
from course.grading.mirrors import Mirrors
from course.grading.remote import EQUALITY, OPERATORS, FarMethod, Kept, Remote, make_class
from course.grading.values import SCALARS, Values
from course.grading.wire import Gone, ProtocolError, Wire

#: How many calls may lie in each other: the grader calls the sandbox, which calls the grader, …
MAX_NESTED_CALLS = 60
#: Live handles and shared containers; far more than any test needs.
MAX_LIVE = 200_000
#: How many objects of one kind tell their plain attributes when somebody reads one after another.
NUM_READ_AHEAD = 32
#: A question; its answer; the answer to one that only read or set something plain; what was raised.
_KINDS = ("?", "!", "=", "x")
_OPERATORS: dict[str, Callable[..., Any]] = {
    "__len__": len, "__iter__": iter, "__next__": next, "__reversed__": reversed, "__bool__": bool, "__str__": str,
    "__repr__": repr, "__int__": int, "__float__": float, "__round__": round, "__hash__": hash, "__dir__": dir,
    "__abs__": abs, "__format__": format}


class Policy:
    """What the other side may do with objects of this side. This one allows everything: it is the sandbox's."""

    def check_get(self, owner: Any, name: str) -> None:
        """Raises AttributeError."""

    def check_set(self, owner: Any, name: str) -> None:
        """Raises AttributeError."""

    def check_call(self, function: Any) -> None:
        """Raises TypeError."""

    def check_operator(self, owner: Any, name: str) -> None:
        """Raises TypeError."""

    def check_handle(self, value: Any) -> None:
        """Raises TypeError for what must never be handed out."""

    def guards(self, owner: Any, name: str) -> bool:
        """Whether a container that is this attribute stays as it is, whatever the other side does to its copy."""
        return False

    def fixed_fields(self, kind: type) -> list[str]:
        """Plain attributes of which the other side may rely on that they never change."""
        return []

    def computed_fields(self, kind: type) -> list[str]:
        """Properties that only read the object's own plain attributes: they travel with them."""
        return []

    def methods_of(self, kind: type) -> list[str]:
        """Methods that can be called without being fetched before."""
        return [name for name in dir(kind) if not name.startswith("__")
                and isinstance(static(kind, name), types.FunctionType)]


class Peer:
    """Asks the other side, and answers it."""

    def __init__(self, wire: Wire, policy: Policy, first_id: int, *, trusts_other: bool,
                 find_class: Callable[[str], type | None], find_enum: Callable[[str], type | None] | None = None,
                 file_name: str | None = None) -> None:
        self._wire = wire
        self._policy = policy
        #: Whether the other side may say what is equal, and what kind an object is.
        self._trusts_other = trusts_other
        self._find_class = find_class
        self._find_enum = find_enum or find_class
        #: Whether what is a little more than data leaves this side as data.
        self.flattens = trusts_other
        self.mirrors = Mirrors(first_id)
        self.values = Values(self)
        self.errors = Errors(self, find_class, file_name)
        self._next_id = 1
        self._own: dict[int, Any] = {}
        self._own_ids: dict[int, int] = {}
        self._far: weakref.WeakValueDictionary[int, Remote] = weakref.WeakValueDictionary()
        self._released: list[int] = []
        #: Classes of this side that the other has a description of, and the other way round.
        self._described: dict[Any, Described] = {}
        self._classes: dict[int, type[Remote]] = {}
        #: Counts whenever the other side has had its turn: what was known of its objects may have changed.
        self.turn = 0
        #: Whether what is being answered is a plain attribute, and of which object one was asked last.
        self._is_plain = self._is_attribute = False
        self._last_read = (-1, -1)
        self._ahead: list[list[Any]] = []
        self._depth = 0
        self._thread = threading.get_ident()
        self.num_requests = self.num_answered = 0
        #: A message was cut off, or could not be read: nothing more can be asked.
        self.is_broken = False
        #: What the other side may ask beside the usual: name → function.
        self.services: dict[str, Callable[..., Any]] = {}

    # ---- asking

    def request(self, what: str, *args: Any) -> Any:
        """Have the other side do something. Raises what it raises, and ProtocolError if it breaks the rules."""
        if threading.get_ident() != self._thread:
            raise RuntimeError("only the thread that was called may use what was handed in")
        if self._depth >= MAX_NESTED_CALLS:
            raise RecursionError(f"more than {MAX_NESTED_CALLS} calls in each other, to and fro")
        self.num_requests += 1
        self._depth += 1
        reading = self.values.rest
        try:
            if what not in ("get", "set"):
                self.turn += 1
            if self.is_broken:
                raise Gone("its process had to be ended earlier in this test")
            self._send("?", [what, *args])
            kind, answer = self._await_answer()
        finally:
            self.values.rest = reading
            self._depth -= 1
        if kind == "x":
            raise answer
        return answer

    def _await_answer(self) -> tuple[str, Any]:
        """The answer to what was asked; meanwhile what the other side asks is answered.

        Whatever is raised here, the two sides are no longer at the same place: nothing more can be asked.
        """
        try:
            while True:
                kind, body = self._receive()
                if kind == "?":
                    self._answer(body)
                    continue
                if kind != "=":  # more than a plain attribute was read or set: the other side may have changed
                    self.turn += 1
                answer = self._decoding(body)
                if kind == "x" and not isinstance(answer, BaseException):
                    raise ProtocolError("something was raised that is no exception")
                return kind, answer
        except BaseException:
            self.is_broken = True
            raise

    def serve(self) -> None:
        """Answer until the other side is gone."""
        while True:
            kind, body = self._receive()
            if kind != "?":
                raise ProtocolError("an answer that nobody waits for")
            self._answer(body)

    def _answer(self, body: Any) -> None:
        self.turn += 1
        self.num_answered += 1
        self._is_plain = False
        try:
            request = self._decoding_list(body)
            answer = self._do(*request)
            kind = "=" if self._is_plain else "!"
        except ProtocolError:
            raise
        except BaseException as error:
            kind, answer = "x", error
        self._is_plain = False
        self._is_attribute = kind != "x" and request[0] == "get" and self._policy.guards(*request[1:])
        self._reply(kind, answer)
        self.turn += 1

    def _reply(self, kind: str, value: Any) -> None:
        try:
            self._send(kind, value, is_guarded=self._is_attribute)
        except (TypeError, ProtocolError) as error:  # it cannot be handed out, or is too large
            if kind == "x" or type(error) is not TypeError and "allowed" not in str(error):
                raise
            self._send("x", TypeError(str(error)))

    # ---- messages

    def _send(self, kind: str, body: Any, is_guarded: bool = False) -> None:
        """With what has changed since the last message, so that both sides see the same."""
        self.values.buffers = []
        updates = [[mirror_id, self.values.encode_items(value)] for mirror_id, value in self.mirrors.changed()]
        drops = self.mirrors.drop_unused() if len(self.mirrors) else []
        if kind == "?":
            message = [kind, [body[0], *map(self.values.encode, body[1:])]]
        else:
            self.values.guards = is_guarded
            try:
                message = [kind, self.values.encode(body)]
            finally:
                self.values.guards = False
        ahead, self._ahead = self._ahead, []
        releases = [far_id for far_id in self._released if far_id not in self._far] if self._released else []
        self._released.clear()
        if drops or updates or releases or ahead:
            message += [updates, drops, releases, ahead]
        if len(self._own) + len(self.mirrors) > MAX_LIVE:
            raise ProtocolError(f"more than {MAX_LIVE:,} objects are held at once")
        self._wire.send(message, self.values.buffers)

    def _receive(self) -> tuple[str, Any]:
        message, rest = self._wire.receive()
        if type(message) is not list or len(message) not in (2, 6) or message[0] not in _KINDS:
            raise ProtocolError("not a message")
        self.values.rest = rest
        if len(message) == 6:
            try:
                self._take_in(*message[2:])
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
                raise ProtocolError(f"a change that cannot be: {error!r:.200}") from None
        return message[0], message[1]

    def _take_in(self, updates: list[Any], drops: list[int], releases: list[int], ahead: list[Any]) -> None:
        for far_id, fields in ahead:  # it was written first
            remote = self._far.get(far_id)
            if remote is not None:
                self._keep_fields(remote, fields)
        for mirror_id, items in updates:
            self.mirrors.overwrite(mirror_id, self.values.decode_like(self.mirrors.get(mirror_id), items))
        self.mirrors.drop(drops)
        for own_id in releases:
            released = self._own.pop(own_id, None)
            self._own_ids.pop(id(released), None)

    def _decoding(self, body: Any) -> Any:
        try:
            return self.values.decode(body)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            raise ProtocolError(f"a value that cannot be: {error!r:.200}") from None

    def _decoding_list(self, body: Any) -> list[Any]:
        if type(body) is not list or not body or type(body[0]) is not str:
            raise ProtocolError("not a request")
        return [body[0], *map(self._decoding, body[1:])]

    def check_new_mirror(self, mirror_id: Any) -> int:
        if type(mirror_id) is not int or mirror_id % 2 == self.mirrors.parity:
            raise ProtocolError(f"{mirror_id!r:.40} is not for the other side to give out")
        if len(self.mirrors) > MAX_LIVE:
            raise ProtocolError(f"more than {MAX_LIVE:,} containers are shared")
        return mirror_id

    # ---- doing what is asked

    def _do(self, what: str, *args: Any) -> Any:
        match what:
            case "get":
                return self._read(*args)
            case "method":
                owner, name, positional, named = args
                return self._call(self._get(owner, name), positional, named)
            case "call":
                return self._call(*args)
            case "operator":
                return self._operate(*args)
            case "set":
                return self._set(*args)
            case "del":
                self._policy.check_set(args[0], _text(args[1]))
                return delattr(*args)
            case "calls":
                return self._do_all(*args)
            case "isinstance":
                return isinstance(*args)
            case "issubclass":
                return issubclass(*args)
        if what in self.services:
            return self.services[what](*args)
        raise ProtocolError(f"nobody knows how to {what!r:.40}")

    def _get(self, owner: Any, name: str) -> Any:
        self._policy.check_get(owner, _text(name))
        return getattr(owner, name)

    def _read(self, owner: Any, name: str) -> Any:
        """As ``_get``, for one who only reads. What is plain is marked so, and some more of its kind goes along."""
        value = self._get(owner, name)
        described = self._described.get(type(owner))
        if described is not None and name in described.fields:
            self._is_plain = True
            self._read_ahead(owner, described)
        return value

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._policy.check_set(owner, _text(name))
        setattr(owner, name, value)
        described = self._described.get(type(owner))
        self._is_plain = described is not None and name in described.fields and static(type(owner), name) is None

    def _read_ahead(self, owner: Any, described: Described) -> None:
        """Whoever reads one attribute will want others; who does so of one object after another, those of the next."""
        own_id = self._own_ids.get(id(owner), -1)
        self._ahead.append([own_id, self._fields(owner, described)])
        class_id, last_id = self._last_read
        self._last_read = (described.class_id, own_id)
        if class_id != described.class_id or not 0 < own_id - last_id <= 4:
            return
        for next_id in range(own_id + 1, own_id + 1 + NUM_READ_AHEAD):
            other = self._own.get(next_id)
            if type(other) is type(owner):
                self._ahead.append([next_id, self._fields(other, described)])
        self._last_read = (described.class_id, own_id + NUM_READ_AHEAD)

    def _call(self, function: Any, positional: Any, named: Any) -> Any:
        self._policy.check_call(function)
        return function(*positional, **named)

    def _do_all(self, owner: Any, calls: list[Any], num_wanted: int) -> tuple[Any, ...]:
        """Many calls, of which only the results of the last ones are wanted."""
        results = [self._call(self._get(owner, name), *arguments) for name, *arguments in calls]
        return tuple(results[len(results) - num_wanted:])

    def _operate(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        if name not in OPERATORS and name not in EQUALITY:
            raise ProtocolError(f"not an operator: {name!r:.40}")
        self._policy.check_operator(owner, name)
        if name in _OPERATORS:
            return _OPERATORS[name](owner, *args)
        if name == "__contains__":
            return args[0] in owner
        if name in ("__getitem__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
            return getattr(operator, name)(owner, *args)
        return getattr(type(owner), name)(owner, *args)

    # ---- objects

    def handle(self, value: Any) -> Any:
        """How an object crosses that is not data."""
        kind = type(value)
        if issubclass(kind, Remote):
            if value._far_peer is not self:
                raise TypeError("it belongs to a process that has ended")
            return ["o", value._far_id]
        if kind is FarMethod:
            return ["M", self.handle(value.owner), value.name]
        self._policy.check_handle(value)
        own_id = self._own_ids.get(id(value))
        if own_id is None:
            own_id = self._next_id
            self._next_id += 1
            self._own[own_id] = value
            self._own_ids[id(value)] = own_id
        return self._describe(value, own_id)

    def _describe(self, value: Any, own_id: int) -> list[Any]:
        """Its number and that of its class; once what there is to know of the class; and its plain attributes."""
        kind = type(value)
        key: Any = (kind, value.__name__) if isinstance(value, type) else kind
        described = self._described.get(key)
        if described is not None:
            return ["h", own_id, described.class_id, None, *self._fields(value, described)]
        described = self._described[key] = describe(value, len(self._described), self._policy)
        return ["h", own_id, described.class_id, described.to_json(), *self._fields(value, described)]

    def _fields(self, value: Any, described: Described) -> list[Any]:
        return described.values(value, self.enum_key, self.values.encode)

    def stand_in(self, far_id: Any, class_id: Any, description: Any, *fields: Any) -> Remote:
        """What stands here for an object of the other side, the same each time."""
        if type(far_id) is not int or type(class_id) is not int:
            raise ProtocolError("not a handle")
        if description is not None and class_id not in self._classes:
            name, shape, operators, methods, plain, num_fixed, known = description
            self._classes[class_id] = make_class(str(name), str(shape), operators, methods, plain, num_fixed,
                                                 self._known_class(known), self._trusts_other)
        remote = self._far.get(far_id)
        if remote is None:
            remote = object.__new__(self._classes[class_id])
            object.__setattr__(remote, "_far_peer", self)
            object.__setattr__(remote, "_far_id", far_id)
            object.__setattr__(remote, "_far_hash", None)
            object.__setattr__(remote, "_far_fields", [])
            self._far[far_id] = remote
        self._keep_fields(remote, list(fields))
        return remote

    def _keep_fields(self, remote: Remote, fields: list[Any]) -> None:
        if type(fields) is not list or not all(type(value) in SCALARS or type(value) is list for value in fields):
            raise ProtocolError("attributes that cannot be")
        for place in range(remote._far_num_fixed):
            if type(fields[place]) is list:
                if fields[place]:  # at once: what is described in it for the first time, others will name
                    fields[place] = Kept(self.values.decode(fields[place]))
                elif place < len(remote._far_fields):  # it was fetched once
                    fields[place] = remote._far_fields[place]
        object.__setattr__(remote, "_far_turn", self.turn)
        object.__setattr__(remote, "_far_fields", fields)

    def _known_class(self, names: list[str]) -> type | None:
        """The first class of these that is ours, too."""
        for name in names[:12]:
            found = self._find_class(str(name))
            if found is not None:
                return found
        return None

    def let_go(self, far_id: int) -> None:
        """Nobody here holds the stand-in any more; the other side hears of it with the next message."""
        self._released.append(far_id)

    def own(self, own_id: Any) -> Any:
        """Raises KeyError if the other side was never given it, or has let go of it."""
        return self._own[own_id]

    def own_method(self, owner: Any, name: Any) -> Any:
        return self._get(owner, name)

    def enum_key(self, kind: type) -> str | None:
        """By what name an enum is known to both sides; None for one that only this side has."""
        name = f"{kind.__module__}.{kind.__qualname__}"
        return name if self._find_class(name) is kind else None

    def enum_class(self, key: Any) -> Any:
        found = self._find_enum(_text(key))
        if not (isinstance(found, type) and issubclass(found, enum.Enum)):
            raise ProtocolError(f"not an enum: {key!r:.80}")
        return found

    def known_tuple(self, name: str, fields: tuple[str, ...]) -> type | None:
        """The class of named tuples of ours that is meant, if there is one."""
        found = self._find_class(name)
        return found if found is not None and getattr(found, "_fields", None) == fields else None


def _text(name: Any) -> str:
    if type(name) is not str:
        raise ProtocolError("a name must be a text")
    return name
