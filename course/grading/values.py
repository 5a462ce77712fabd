"""What crosses as data, and how it is written down.

Numbers, strings, containers, arrays and members of enums cross as data. Everything else crosses as a handle: a number
that stands for an object of the side that sent it. In JSON a number or string stands for itself, and everything else is
a list that begins with a tag:

    ["t", 1, "a"]                     a tuple             ["l", 4, [1, 2, 3]]     a list, shared under the number 4
    ["m", 4]                          that list again     ["h", 7, 3]             the sender's object 7, of its class 3
    ["o", 7]                          the receiver's own object 7
"""

from __future__ import annotations

import enum
import keyword
import sys
from collections import namedtuple
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from course.grading.remote import FarMethod, Remote
from course.grading.wire import MAX_DEPTH, ProtocolError

if TYPE_CHECKING:
    from course.grading.peer import Peer

SCALARS = frozenset((type(None), bool, int, float, str))
BUILTIN_TYPES = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set,
                                                  frozenset, range, slice, object, type(None))}
#: The types of numbers that arrays may have. None of them holds references.
_ARRAY_KINDS = "biufc"
MAX_FIELDS = 64
#: Of more keys than this, half must have hashes of their own.
MANY_KEYS = 1000


class Values:
    """Writes and reads values for one peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._encoders: dict[type, Callable[[Any], Any]] = {
            tuple: self._tuple, list: self._list, dict: self._dict, set: self._set, frozenset: self._frozenset,
            bytes: self._bytes, bytearray: lambda value: self._bytes(bytes(value)), slice: self._slice,
            range: lambda value: ["r", value.start, value.stop, value.step], complex: self._complex,
            type(...): lambda value: ["."]}
        self._tuples: dict[tuple[str, tuple[str, ...]], type] = {}
        #: Of the message that is being written, or read.
        self.buffers: list[bytes] = []
        #: Whether what is being written is an attribute of one of our objects: the other side may look at it.
        self.guards = False
        self.rest = memoryview(b"")

    # ---- writing

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in SCALARS:
            return value
        encoder = self._encoders.get(kind)
        if encoder is not None:
            return encoder(value)
        return self._other(value, kind)

    def encode_items(self, value: Any) -> Any:
        """What lies in a shared container, or the data of an array."""
        if type(value) is list:
            return list(value) if SCALARS.issuperset(map(type, value)) else list(map(self.encode, value))
        if type(value) is dict:
            return [[self.encode(key), self.encode(item)] for key, item in value.items()]
        if type(value) is set:
            return list(map(self.encode, value))
        return self._array_data(value)

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        return ["t", *(value if SCALARS.issuperset(map(type, value)) else map(self.encode, value))]

    def _frozenset(self, value: frozenset[Any]) -> Any:
        return ["z", *map(self.encode, value)]

    def _shared(self, tag: str, value: Any) -> Any:
        mirrors = self._peer.mirrors
        mirror_id = mirrors.id_of(value)
        if mirror_id is not None:
            return ["m", mirror_id]
        return [tag, mirrors.new(value, self.guards), self.encode_items(value)]

    def _list(self, value: list[Any]) -> Any:
        return self._shared("l", value)

    def _dict(self, value: dict[Any, Any]) -> Any:
        return self._shared("d", value)

    def _set(self, value: set[Any]) -> Any:
        return self._shared("s", value)

    def _bytes(self, value: bytes) -> Any:
        self.buffers.append(value)
        return ["b", len(value)]

    def _slice(self, value: slice) -> Any:
        return ["S", self.encode(value.start), self.encode(value.stop), self.encode(value.step)]

    def _complex(self, value: complex) -> Any:
        return ["j", value.real, value.imag]

    def _array_data(self, value: Any) -> Any:
        data = value.tobytes()
        self.buffers.append(data)
        return [value.dtype.str, list(value.shape), len(data), bool(value.flags.writeable)]

    def _other(self, value: Any, kind: type) -> Any:
        if issubclass(kind, (Remote, FarMethod)):  # whatever it goes for
            return self._always_handle(value, kind)
        numpy, mlx = sys.modules.get("numpy"), sys.modules.get("mlx.core")
        if numpy is not None:
            if kind is numpy.ndarray and value.dtype.kind in _ARRAY_KINDS:
                return self._shared("a", value) if value.flags.writeable else ["A", *self._array_data(value)]
            if isinstance(value, numpy.generic) and value.dtype.kind in _ARRAY_KINDS:
                return ["G", *self._array_data(numpy.asarray(value))[:3]]
            if isinstance(value, numpy.dtype) and value.kind in _ARRAY_KINDS:
                return ["D", value.str]
            if isinstance(value, type) and issubclass(value, numpy.generic) and numpy.dtype(value).kind in _ARRAY_KINDS:
                return ["N", numpy.dtype(value).str]
        if mlx is not None:
            if kind is mlx.array:
                return self._mlx_array(value, mlx)
            if kind is mlx.Dtype:
                return ["K", str(value).rpartition(".")[2]]
        if isinstance(value, enum.Enum) and (key := self._peer.enum_key(kind)) is not None:
            return ["e", key, value.name]
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, BaseException):
            return ["i", *self._peer.errors.encode(value)]
        return self._as_base(value)

    def _class(self, value: type) -> Any:
        if BUILTIN_TYPES.get(value.__name__) is value:
            return ["B", value.__name__]
        if issubclass(value, BaseException):
            return ["X", self._peer.errors.chain(value)]
        if issubclass(value, enum.Enum) and (key := self._peer.enum_key(value)) is not None:
            return ["E", key]
        return self._peer.handles.handle(value)

    def _as_base(self, value: Any) -> Any:
        """What is a little more than data crosses as data, if it comes from where nobody relies on the little more."""
        kind = type(value)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            name, fields = f"{kind.__module__}.{kind.__qualname__}", list(kind._fields)
            self._encoders[kind] = lambda value: ["n", name, fields, *map(self.encode, value)]
            return self._encoders[kind](value)
        if self._peer.flattens and not isinstance(value, enum.Enum):
            bases: tuple[Any, ...] = (int, float, str, bytes, tuple, frozenset, list, dict, set)
            for base in bases:
                if isinstance(value, base):
                    return self.encode(base(value))
        return self._always_handle(value, kind)

    def _always_handle(self, value: Any, kind: type) -> Any:
        """Objects of this class are no data: of the next one that need not be found out again."""
        if kind.__module__.split(".")[0] not in ("numpy", "mlx", "enum") and not issubclass(kind, (type, enum.Enum)):
            self._encoders[kind] = self._peer.handles.handle
        return self._peer.handles.handle(value)

    def _mlx_array(self, value: Any, mlx: Any) -> Any:
        import numpy
        name = str(value.dtype).rpartition(".")[2]
        plain = value.view(mlx.uint16) if name == "bfloat16" else value
        return ["x", name, *self._array_data(numpy.array(plain))[:3]]

    # ---- reading

    def _take(self, num_bytes: Any) -> memoryview:
        if type(num_bytes) is not int or not 0 <= num_bytes <= len(self.rest):
            raise ProtocolError(f"{num_bytes!r} bytes of {len(self.rest)}")
        data, self.rest = self.rest[:num_bytes], self.rest[num_bytes:]
        return data

    def decode(self, message: Any, depth: int = 0) -> Any:
        """Raises ProtocolError, ValueError, TypeError, KeyError or IndexError for what no honest side sends."""
        if type(message) in SCALARS:
            return message
        if type(message) is not list or not message or depth > MAX_DEPTH:
            raise ProtocolError("neither a value nor a tag, or too deep")
        tag, *fields = message
        match tag:
            case "t":
                return tuple(self._many(fields, depth))
            case "z":
                return frozenset(_spread(self._many(fields, depth)))
            case "m":
                return self._peer.mirrors.get(fields[0])
            case "l" | "d" | "s" | "a":
                value: Any = {"l": list, "d": dict, "s": set}[tag]() if tag != "a" else self._array(*fields[1])
                self._peer.mirrors.adopt(self._new_id(fields[0]), value)
                if tag != "a":
                    self.fill(value, self.decode_items(tag, fields[1], depth))
                    self._peer.mirrors.seen(fields[0])
                return value
            case "h":
                return self._peer.handles.stand_in(*fields)
            case "o":
                return self._peer.handles.own(fields[0])
            case "M":
                return self._peer.doing.get(self.decode(fields[0], depth + 1), fields[1])
        return self._decode_rare(tag, fields, depth)

    def _decode_rare(self, tag: Any, fields: list[Any], depth: int) -> Any:
        match tag:
            case "b":
                return bytes(self._take(fields[0]))
            case "A":
                return self._array(*fields)
            case "G":
                return self._array(*fields)[()]
            case "D" | "N":
                import numpy
                dtype = _dtype(numpy, fields[0])
                return dtype if tag == "D" else dtype.type
            case "x":
                return self._read_mlx(*fields)
            case "K":
                return _mlx_dtype(sys.modules["mlx.core"], _identifier(fields[0]))
            case "S":
                return slice(*self._many(fields, depth))
            case "r":
                return range(*map(int, fields))
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
                return self._peer.errors.decode(*fields)
            case "n":
                return self._named_tuple(fields, depth)
        raise ProtocolError(f"an unknown tag {tag!r:.40}")

    def _many(self, messages: list[Any], depth: int) -> list[Any]:
        if SCALARS.issuperset(map(type, messages)):
            return messages
        return [self.decode(message, depth + 1) for message in messages]

    def _new_id(self, mirror_id: Any) -> int:
        return self._peer.check_new_mirror(mirror_id)

    def decode_items(self, tag: str, items: Any, depth: int = 0) -> Any:
        """What is to lie in a shared container."""
        if type(items) is not list:
            raise ProtocolError("no items")
        if tag == "d":
            keys = _spread([self.decode(key, depth + 1) for key, _ in items])
            return dict(zip(keys, [self.decode(item, depth + 1) for _, item in items]))
        many = self._many(items, depth)
        return _spread(many) if tag == "s" else many

    def decode_like(self, value: Any, items: Any) -> Any:
        """The new content of a container that looks like ``value`` so far."""
        if type(value) in (list, dict, set):
            made: Any = type(value)()
            self.fill(made, self.decode_items("d" if type(value) is dict else "l", items))
            return made
        return self._array(*items)

    def fill(self, value: Any, items: Any) -> None:
        if type(value) is list:
            value.extend(items)
        else:
            value.update(items)

    def _array(self, dtype: Any, shape: Any, num_bytes: Any, is_writeable: Any = False) -> Any:
        import numpy
        kind = _dtype(numpy, dtype)
        shape = [int(length) for length in shape]
        if min(shape, default=0) < 0:
            raise ProtocolError("an array of negative size")
        array = numpy.frombuffer(self._take(num_bytes), dtype=kind).reshape(shape).copy()
        if not is_writeable:
            array.flags.writeable = False
        return array

    def _read_mlx(self, name: Any, dtype: Any, shape: Any, num_bytes: Any) -> Any:
        mlx = sys.modules["mlx.core"]
        array = mlx.array(self._array(dtype, shape, num_bytes))
        return array.view(mlx.bfloat16) if name == "bfloat16" else array

    def _named_tuple(self, fields: list[Any], depth: int) -> Any:
        name, names, *items = fields
        kind = self._tuples.get((name, tuple(names)))
        return (kind or self._tuple_class(name, names))(*self._many(items, depth))

    def _tuple_class(self, name: Any, names: list[Any]) -> Any:
        if not 0 < len(names) <= MAX_FIELDS:
            raise ProtocolError(f"a tuple of {len(names)} named fields")
        key = (_text(name), tuple(map(_identifier, names)))
        module, _, short = key[0].rpartition(".")
        self._tuples[key] = self._peer.known_tuple(*key) or namedtuple(_identifier(short), key[1], module=module)
        return self._tuples[key]


def _spread(keys: list[Any]) -> list[Any]:
    """Keys for a set or dictionary. Raises ProtocolError if they were chosen to collide: to put n of them in would take
    n² steps, in which no time limit is heard."""
    if len(keys) > MANY_KEYS and len(set(map(hash, keys))) < len(keys) // 2:
        raise ProtocolError(f"{len(keys):,} keys that share their hashes")
    return keys


def _text(name: Any) -> str:
    if type(name) is str and len(name) < 200:
        return name
    raise ProtocolError(f"not a name: {name!r:.40}")


def _identifier(name: Any) -> str:
    if type(name) is str and name.isidentifier() and not keyword.iskeyword(name) and len(name) < 100:
        return name
    raise ProtocolError(f"not a name: {name!r:.40}")


def _mlx_dtype(mlx: Any, name: str) -> Any:
    """A type of numbers, and nothing else of the module: ``mlx.core.save`` writes files."""
    found = getattr(mlx, name, None)
    if not isinstance(found, mlx.Dtype):
        raise ProtocolError(f"not a type of numbers: {name!r:.40}")
    return found


def _dtype(numpy: Any, name: Any) -> Any:
    if type(name) is not str or len(name) > 8:
        raise ProtocolError(f"not a type of numbers: {name!r:.40}")
    dtype = numpy.dtype(name)
    if dtype.kind not in _ARRAY_KINDS:
        raise ProtocolError(f"not a type of numbers: {name!r:.40}")
    return dtype
