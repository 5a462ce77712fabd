"""Decodes values that the other side sent. Nothing is trusted before it is checked."""

from __future__ import annotations

import keyword
import sys
from collections import Counter, namedtuple
from typing import Any

from course.grading.protocol.bounds import MAX_ARRAY_BYTES, MAX_BYTES, check_range
from course.grading.protocol.interface import Connection
from course.grading.protocol.message_bytes import Incoming
from course.grading.protocol.socket_messages import MAX_DEPTH, ProtocolError
from course.grading.protocol.tags import ARRAY_KINDS, BUILTIN_TYPES, SCALARS, text_of

MAX_FIELDS = 64
#: If there are more keys than the first number, at most the second number of them may share a hash.
MANY_KEYS, MAX_SHARING = 1000, 100


class Reading:
    """Decodes the values of one peer's messages."""

    def __init__(self, peer: Connection) -> None:
        self._peer = peer
        self._tuples: dict[tuple[str, tuple[str, ...]], type] = {}
        #: Whether the other side has ever put a container into several places. If not, no value is larger than its
        #: message.
        self.has_repeated = False
        #: Whether a value that was known before may be larger since the last check.
        self.may_be_larger = False

    def decode(self, message: Any, incoming: Incoming, depth: int = 0) -> Any:
        """Decode a value. Raise ProtocolError, ValueError, TypeError, KeyError or IndexError for invalid data."""
        if type(message) in SCALARS:
            return message
        if type(message) is not list or not message or depth > MAX_DEPTH:
            raise ProtocolError("neither a value nor a tag, or too deep")
        tag, *fields = message
        match tag:
            case "t":
                return tuple(self._many(fields, incoming, depth))
            case "z":
                return frozenset(_spread(self._many(fields, incoming, depth)))
            case "m":
                if depth > 0:
                    self.has_repeated = self.may_be_larger = True
                return self._peer.mirrors.get(fields[0])
            case "l" | "d" | "s" | "a":
                value: Any = {"l": list, "d": dict, "s": set}[tag]() if tag != "a" else _array(incoming, *fields[1])
                self._peer.mirrors.adopt(self._new_id(fields[0]), value)
                if tag != "a":
                    self.fill(value, self.decode_items(tag, fields[1], incoming, depth))
                    self._peer.mirrors.seen(fields[0])
                return value
            case "h":
                return self._peer.handles.stand_in(incoming, *fields)
            case "o":
                return self._peer.handles.own(fields[0])
            case "M":
                return self._peer.doing.get(self.decode(fields[0], incoming, depth + 1), fields[1])
        return self._decode_rare(tag, fields, incoming, depth)

    def _decode_rare(self, tag: Any, fields: list[Any], incoming: Incoming, depth: int) -> Any:
        match tag:
            case "b":
                return bytes(incoming.take(fields[0], "{} bytes", MAX_BYTES))
            case "A":
                return _array(incoming, *fields)
            case "G":
                return _array(incoming, *fields)[()]
            case "D" | "N":
                import numpy
                dtype = _dtype(numpy, fields[0])
                return dtype if tag == "D" else dtype.type
            case "x":
                return self._read_mlx(incoming, *fields)
            case "K":
                return _mlx_dtype(self._mlx(), _identifier(fields[0]))
            case "S":
                return slice(*self._many(fields, incoming, depth))
            case "r":
                return check_range(range(*map(int, fields)))
            case "j":
                return complex(*fields)
            case ".":
                return ...
            case "e":
                return self._peer.enum_class(fields[0])[fields[1]]
            case "E":
                return self._peer.enum_class(fields[0])
            case "B":
                return BUILTIN_TYPES[fields[0]]
            case "X":
                return self._peer.errors.class_of(fields[0])
            case "i":
                return self._peer.errors.decode(incoming, *fields)
            case "n":
                return self._named_tuple(fields, incoming, depth)
        raise ProtocolError(f"an unknown tag {tag!r:.40}")

    def _many(self, messages: list[Any], incoming: Incoming, depth: int) -> list[Any]:
        if SCALARS.issuperset(map(type, messages)):
            return messages
        return [self.decode(message, incoming, depth + 1) for message in messages]

    def _new_id(self, mirror_id: Any) -> int:
        return self._peer.check_new_mirror(mirror_id)

    def decode_items(self, tag: str, items: Any, incoming: Incoming, depth: int = 0) -> Any:
        """Decode the items of a shared container."""
        if type(items) is not list:
            raise ProtocolError("no items")
        if tag == "d":
            pairs = [(self.decode(key, incoming, depth + 1), self.decode(item, incoming, depth + 1))
                     for key, item in items]
            _spread([key for key, _ in pairs])
            return dict(pairs)
        many = self._many(items, incoming, depth)
        return _spread(many) if tag == "s" else many

    def decode_like(self, value: Any, items: Any, incoming: Incoming) -> Any:
        """Decode the new content of a container that currently looks like ``value``."""
        self.may_be_larger = True
        if type(value) in (list, dict, set):
            made: Any = type(value)()
            self.fill(made, self.decode_items("d" if type(value) is dict else "l", items, incoming))
            return made
        return _array(incoming, *items)

    def fill(self, value: Any, items: Any) -> None:
        if type(value) is list:
            value.extend(items)
        else:
            value.update(items)

    def _read_mlx(self, incoming: Incoming, name: Any, dtype: Any, shape: Any, num_bytes: Any) -> Any:
        mlx = self._mlx()
        array = mlx.array(_array(incoming, dtype, shape, num_bytes))
        return array.view(mlx.bfloat16) if name == "bfloat16" else array

    def _mlx(self) -> Any:
        """Return MLX. The sandbox imports it on demand, because a file can receive an array without having imported
        MLX. The other side cannot make the grader import it."""
        if self._peer.flattens:
            import mlx.core
            return mlx.core
        return sys.modules["mlx.core"]

    def _named_tuple(self, fields: list[Any], incoming: Incoming, depth: int) -> Any:
        name, names, *items = fields
        kind = self._tuples.get((name, tuple(names)))
        return (kind or self._tuple_class(name, names))(*self._many(items, incoming, depth))

    def _tuple_class(self, name: Any, names: list[Any]) -> Any:
        if not 0 < len(names) <= MAX_FIELDS:
            raise ProtocolError(f"a tuple of {len(names)} named fields")
        key = (text_of(name), tuple(map(_identifier, names)))
        module, _, short = key[0].rpartition(".")
        self._tuples[key] = self._peer.known_tuple(*key) or namedtuple(_identifier(short), key[1], module=module)
        return self._tuples[key]


def _array(incoming: Incoming, dtype: Any, shape: Any, num_bytes: Any, is_writeable: Any = False) -> Any:
    import numpy
    kind = _dtype(numpy, dtype)
    shape = [int(length) for length in shape]
    if min(shape, default=0) < 0:
        raise ProtocolError("an array of negative size")
    data = incoming.take(num_bytes, "an array of {} bytes", MAX_ARRAY_BYTES)
    array = numpy.frombuffer(data, dtype=kind).reshape(shape).copy()
    if not is_writeable:
        array.flags.writeable = False
    return array


def _spread(keys: list[Any]) -> list[Any]:
    """Return ``keys``, which are meant for a set or dictionary. Raise ProtocolError if they were chosen to collide:
    inserting n of them would take n² steps, and no time limit can interrupt that."""
    if len(keys) > MANY_KEYS and max(Counter(map(hash, keys)).values()) > MAX_SHARING:
        raise ProtocolError(f"{len(keys):,} keys that share their hashes")
    return keys


def _identifier(name: Any) -> str:
    if type(name) is str and name.isidentifier() and not keyword.iskeyword(name) and len(name) < 100:
        return name
    raise ProtocolError(f"not a name: {name!r:.40}")


def _mlx_dtype(mlx: Any, name: str) -> Any:
    """Return a dtype of MLX. Refuse everything else in the module: ``mlx.core.save`` writes files."""
    found = getattr(mlx, name, None)
    if not isinstance(found, mlx.Dtype):
        raise ProtocolError(f"not a type of numbers: {name!r:.40}")
    return found


def _dtype(numpy: Any, name: Any) -> Any:
    if type(name) is not str or len(name) > 8:
        raise ProtocolError(f"not a type of numbers: {name!r:.40}")
    dtype = numpy.dtype(name)
    if dtype.kind not in ARRAY_KINDS:
        raise ProtocolError(f"not a type of numbers: {name!r:.40}")
    return dtype
