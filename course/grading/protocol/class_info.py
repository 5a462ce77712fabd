"""The description of a class for the other side: its name, operators, methods, and attributes that are plain data.

Plain attributes travel with a handle. Otherwise, reading ``block.ref_cnt`` of each block in a list would take one
message per block.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course.grading.protocol.tags import EQUALITY, OPERATORS, SCALARS, static

if TYPE_CHECKING:
    from course.grading.protocol.access_rules import Permissions
    from course.grading.protocol.message_bytes import Outgoing

MAX_FIELDS = 16
MAX_TEXT = 100


@dataclass(frozen=True)
class Described:
    """A class of this side, as the other side knows it."""

    class_id: int
    name: str
    #: "object", "callable" or "class".
    shape: str
    operators: list[str]
    methods: list[str]
    #: Plain attributes, the fixed ones first.
    fields: tuple[str, ...]
    num_fixed: int
    known: list[str]

    def to_json(self) -> list[Any]:
        return [self.name, self.shape, self.operators, self.methods, list(self.fields), self.num_fixed, self.known]

    def values(self, value: Any, enum_key: Callable[[type], str | None], encode: Callable[[Any, Outgoing], Any],
               out: Outgoing) -> list[Any]:
        """Return the plain attributes of an object, with [] for each that currently holds something else."""
        found: list[Any] = []
        for place, name in enumerate(self.fields):
            field = getattr(value, name, _NOTHING)
            kind = type(field)
            if kind in SCALARS and (kind is not str or len(field) <= MAX_TEXT):
                found.append(field)
            elif isinstance(field, enum.Enum):
                found.append([] if (key := enum_key(kind)) is None else ["e", key, field.name])
            elif place < self.num_fixed and kind not in _SHARED and field is not _NOTHING:
                found.append(encode(field, out))
            else:
                found.append([])
        return found


_NOTHING: list[Any] = []
#: Sending a container would make it shared from then on, so the other side has to ask for it.
_SHARED = frozenset((list, dict, set))


def describe(value: Any, class_id: int, policy: Permissions) -> Described:
    kind = type(value)
    operators = [name for name in (*OPERATORS, *EQUALITY) if _offers(kind, name)]
    if isinstance(value, type):
        return Described(class_id, value.__name__, "class", operators, [], (), 0, [])
    fixed, computed = policy.fixed_fields(kind), policy.computed_fields(kind)
    plain = policy.readable_fields(kind, _plain_fields(value, kind))
    fields = tuple(dict.fromkeys((*fixed, *computed, *plain)))[:MAX_FIELDS]
    return Described(class_id, kind.__name__, "callable" if callable(value) else "object", operators,
                     policy.methods_of(kind), fields, len(fixed),
                     [f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__[:-1]])


def _plain_fields(value: Any, kind: type) -> list[str]:
    """Return the public attributes that can be read without running any code."""
    if static(kind, "__getattribute__") is not vars(object)["__getattribute__"] or isinstance(value, types.ModuleType):
        return []
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    else:
        names = [*getattr(kind, "__slots__", ()), *getattr(value, "__dict__", ())]
    return [name for name in names if not name.startswith("_") and _is_plain(static(kind, name))]


def _is_plain(found: Any) -> bool:
    """Return whether ``found``, looked up on the class, is nothing, a slot or the default of a field."""
    return found is None or type(found) is types.MemberDescriptorType or type(found) in SCALARS


def _offers(kind: type, name: str) -> bool:
    """Return whether a class defines this operator, rather than inheriting it from ``object``."""
    found = static(kind, name)
    return found is not None and found is not vars(object).get(name)
