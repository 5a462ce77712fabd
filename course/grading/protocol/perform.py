"""Does what the other side asks of this side's objects, as far as the policy allows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from course.grading.protocol.access_rules import Permissions
from course.grading.protocol.class_info import Described
from course.grading.protocol.handles import Handles
from course.grading.protocol.socket_messages import ProtocolError
from course.grading.protocol.tags import EQUALITY, OPERATORS, static, text_of

#: When the other side reads one object after another, the plain attributes of this many more are sent along.
NUM_READ_AHEAD = 32
_OPERATORS: dict[str, Callable[..., Any]] = {
    "__len__": len, "__iter__": iter, "__next__": next, "__reversed__": reversed, "__bool__": bool, "__str__": str,
    "__repr__": repr, "__int__": int, "__float__": float, "__round__": round, "__hash__": hash, "__dir__": dir,
    "__abs__": abs, "__format__": format}


#: The result of a request: the value; whether it only read or set a plain attribute; and the numbers of the objects
#: whose plain attributes are sent along with the answer.
Done = tuple[Any, bool, Sequence[int]]


class Doing:
    """Performs the requests of the other side."""

    def __init__(self, policy: Permissions, handles: Handles) -> None:
        self._policy, self._handles = policy, handles
        #: Additional requests that the other side may make: name → function.
        self.services: dict[str, Callable[..., Any]] = {}
        self._last_read = (-1, -1)

    def do(self, what: str, *args: Any) -> Done:
        match what:
            case "get":
                return self._read(*args)
            case "set":
                return self._set(*args)
        return self._other(what, *args), False, ()

    def _other(self, what: str, *args: Any) -> Any:
        match what:
            case "method":
                owner, name, positional, named = args
                return self._call(self.get(owner, name), positional, named)
            case "call":
                return self._call(*args)
            case "operator":
                return self._operate(*args)
            case "del":
                self._policy.check_set(args[0], text_of(args[1]))
                return delattr(*args)
            case "calls":
                return self._do_all(*args)
            case "isinstance":
                return isinstance(*args)
            case "issubclass":
                return issubclass(*args)
        if what in self.services:
            return self.services[what](*args)
        raise ProtocolError(f"there is no way to {what!r:.40}")

    def get(self, owner: Any, name: str) -> Any:
        self._policy.check_get(owner, text_of(name))
        return self._policy.found(owner, name, getattr(owner, name))

    def _read(self, owner: Any, name: str) -> Done:
        """Read an attribute as ``get`` does. If it is plain, mark the result so and select objects to send along."""
        value = self.get(owner, name)
        described = self._handles.described(type(owner))
        if described is None or name not in described.fields:
            return value, False, ()
        return value, True, self._read_ahead(owner, described)

    def _set(self, owner: Any, name: str, value: Any) -> Done:
        self._policy.check_set(owner, text_of(name))
        setattr(owner, name, value)
        described = self._handles.described(type(owner))
        is_plain = described is not None and name in described.fields and static(type(owner), name) is None
        return None, is_plain, ()

    def _read_ahead(self, owner: Any, described: Described) -> list[int]:
        """Return the numbers of the objects whose attributes are sent along. A caller that reads one attribute will
        want the object's others. A caller that reads one object after another will want those of the next objects."""
        own_id = self._handles.own_id(owner)
        ahead = [own_id]
        class_id, last_id = self._last_read
        self._last_read = (described.class_id, own_id)
        if class_id != described.class_id or not 0 < own_id - last_id <= 4:
            return ahead
        for next_id in range(own_id + 1, own_id + 1 + NUM_READ_AHEAD):
            other = self._handles.own_objects.get(next_id)
            if type(other) is type(owner):
                ahead.append(next_id)
        self._last_read = (described.class_id, own_id + NUM_READ_AHEAD)
        return ahead

    def _call(self, function: Any, positional: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> Any:
        keywords = dict(named)
        self._policy.check_call(function, (*positional, *keywords.values()) if keywords else positional)
        arguments, keywords = self._policy.arguments_for(function, positional, keywords)
        return function(*arguments, **keywords)

    def _do_all(self, owner: Any, calls: tuple[Any, ...], num_wanted: int) -> tuple[Any, ...]:
        """Make many calls, and return only the results of the last ``num_wanted``."""
        results = [self._call(self.get(owner, name), *arguments) for name, *arguments in calls]
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
