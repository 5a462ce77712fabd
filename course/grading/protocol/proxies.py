"""Stand-ins for objects of the other side. Whatever is done to a stand-in is done to the object.

For each class of the other side there is a class here, made from its description: the same name, and exactly the
operators that it has. Two stand-ins are equal if and only if they stand for the same object, unless the other side is
trusted to compare (``forwards_equality``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course.grading.protocol.interface import Connection
from course.grading.protocol.message_bytes import NO_BYTES
from course.grading.protocol.tags import OPERATORS

#: The operators that a side forwards if it does not trust the other. Comparison and arithmetic are left out: an object
#: that is less than everything, or whose distance to everything is 0, would pass as any number.
ASKED_OF_STRANGERS = frozenset(
    """__len__ __iter__ __next__ __reversed__ __getitem__ __setitem__ __delitem__ __contains__ __bool__ __str__ __repr__
    __enter__ __exit__ __format__ __dir__""".split())
#: Only these special names are read from the other side, like its other attributes. If ``__array_interface__`` were
#: read, the other side could give NumPy any address as that of an array, and NumPy would read the grader's memory.
READ_LIKE_OTHERS = frozenset(("__name__", "__qualname__", "__module__", "__doc__", "__dict__", "__annotations__"))
#: The length of the name of a class that is made here. It is bounded because people see it.
MAX_NAME_CHARACTERS = 80
#: The number of calls that may wait to be sent with the next one.
MAX_DEFERRED = 1000


class Kept:
    """An attribute that never changes and is neither a number nor a text: it is sent only once."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Remote:
    """An object of the other side."""

    __slots__ = ("_far_peer", "_far_id", "_far_hash", "_far_turn", "_far_fields", "__weakref__")
    #: Its public methods. They can be called without being fetched first.
    _far_methods: frozenset[str] = frozenset()
    #: Plain attribute → its index in the values that are sent along with a handle.
    _far_places: dict[str, int] = {}
    #: How many of these attributes, counted from the first, never change.
    _far_num_fixed = 0
    _far_peer: Connection
    _far_id: int
    _far_hash: int | None
    #: The turn in which these values arrived. If the other side has run since, they may have changed.
    _far_turn: int
    _far_fields: list[Any]

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__" == name[-2:] and name not in READ_LIKE_OTHERS:
            raise AttributeError(f"{name} of an object in the other process cannot be read")
        kind = type(self)
        place = kind._far_places.get(name)
        if place is not None and place < len(self._far_fields):
            if self._far_turn == self._far_peer.turn or place < kind._far_num_fixed:
                value = self._far_fields[place]
                if type(value) is Kept:
                    return value.value
                if type(value) is not list:
                    return value
                if value:  # a member of an enum
                    return self._far_peer.reading.decode(value, NO_BYTES)
        if name in kind._far_methods:
            return RemoteMethod(self, name)
        value = self._far_peer.request("get", self, name)
        if place is not None and place < kind._far_num_fixed <= len(self._far_fields):
            self._far_fields[place] = Kept(value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, "_far_fields", self._far_fields[:type(self)._far_num_fixed])
        self._far_peer.request("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._far_peer.request("del", self, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the other side>"

    def __del__(self) -> None:
        self._far_peer.handles.let_go(self._far_id)

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__} lives in another process: it can be neither copied nor pickled")


class RemoteCallable(Remote):
    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._far_peer.request("call", self, args, tuple(kwargs.items()))


class RemoteClass(RemoteCallable):
    """A class of the other side. It can be called and used in ``isinstance``, but not extended."""

    __slots__ = ()

    def __instancecheck__(self, instance: Any) -> bool:
        return bool(self._far_peer.request("isinstance", instance, self))

    def __subclasscheck__(self, subclass: Any) -> bool:
        return bool(self._far_peer.request("issubclass", subclass, self))

    def __or__(self, other: Any) -> Any:
        """Allow ``Row | None`` in annotations and aliases. The result is never used."""
        return Any

    __ror__ = __or__

    def __mro_entries__(self, bases: Any) -> Any:
        raise TypeError(f"{type(self).__name__} cannot be extended here: it lives in another process")


class RemoteMethod:
    """A method of an object of the other side, fetched and called in one message."""

    __slots__ = ("owner", "name")

    def __init__(self, owner: Remote, name: str) -> None:
        self.owner, self.name = owner, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.owner._far_peer.request("method", self.owner, self.name, args, tuple(kwargs.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteMethod) and self.owner is other.owner and self.name == other.name

    def __hash__(self) -> int:
        return hash((id(self.owner), self.name))

    def __getattr__(self, name: str) -> Any:
        if name in ("owner", "name"):
            raise AttributeError(name)
        return getattr(self.owner._far_peer.request("get", self.owner, self.name), name)

    def __repr__(self) -> str:
        return f"<method {self.name} of {self.owner!r}>"


class Deferring:
    """An object of the other side whose methods ``names`` return nothing, so that their calls can wait.

    The waiting calls are sent together with the next call of any other method. That call raises their exceptions.
    """

    def __init__(self, owner: Remote, names: frozenset[str]) -> None:
        self._owner, self._names = owner, names
        self._calls: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.append((name, args, tuple(kwargs.items())))
            if name not in self._names:
                return self._send(1)[0]
            if len(self._calls) >= MAX_DEFERRED:
                self._send(0)
            return None

        return call

    def far_repeat(self, name: str, num_times: int) -> tuple[Any, ...]:
        """Call a method without arguments ``num_times`` times, in one message. Return the result of each call."""
        self._calls += [(name, (), ())] * num_times
        return self._send(num_times)

    def far_flush(self) -> None:
        """Send all waiting calls."""
        self._send(0)

    def _send(self, num_wanted: int) -> tuple[Any, ...]:
        """Send all waiting calls. Return the results of the last ``num_wanted``."""
        calls, self._calls = self._calls, []
        results = self._owner._far_peer.request("calls", self._owner, tuple(calls), num_wanted) if calls else ()
        if type(results) is not tuple or len(results) != num_wanted:
            raise TypeError(f"{num_wanted} calls must have {num_wanted} results")
        return results


def make_class(name: str, kind: str, operators: list[str], methods: list[str], fields: list[str], num_fixed: int,
               known: type | None, forwards_equality: bool) -> type[Remote]:
    """Create the class of stand-ins for one class of the other side. ``known`` is the class of this side that it
    reports as its ``__class__``."""
    base = {"class": RemoteClass, "callable": RemoteCallable}.get(kind, Remote)
    body: dict[str, Any] = {"__slots__": (), "_far_methods": frozenset(methods), "__module__": "far",
                            "_far_places": {field: place for place, field in enumerate(fields)},
                            "_far_num_fixed": num_fixed if forwards_equality else 0}
    for operator in (OPERATORS if forwards_equality else ASKED_OF_STRANGERS).intersection(operators):
        body[operator] = _operator(operator)
    if kind == "class":
        body.pop("__or__", None)
    if "__next__" in body and not forwards_equality:
        body["__next__"] = _counted_next
    if forwards_equality and "__eq__" in operators:
        body["__eq__"] = _operator("__eq__")
        body["__hash__"] = _hash if "__hash__" in operators else None
    if kind == "class" and forwards_equality:
        known = type
    if known is not None:
        body["__class__"] = property(lambda self: known)
    return type(_shown(name), (base,), body)


def _shown(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:MAX_NAME_CHARACTERS]) or "?"


def _operator(name: str) -> Callable[..., Any]:
    def forward(self: Remote, *args: Any) -> Any:
        return self._far_peer.request("operator", self, name, args)

    forward.__name__ = name
    return forward


def _counted_next(self: Remote) -> Any:
    """Count the items of an iterator, because an iterator of an untrusted side might never end."""
    self._far_peer.count_item(self._far_id)
    return self._far_peer.request("operator", self, "__next__", ())


def _hash(self: Remote) -> int:
    """Return the object's hash. It never changes, so the other side is asked only once."""
    known = self._far_hash
    if known is None:
        known = int(self._far_peer.request("operator", self, "__hash__", ()))
        object.__setattr__(self, "_far_hash", known)
    return known
