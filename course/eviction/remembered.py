"""The data that an eviction policy of lab 3.5 stores, and how much of it there is.

The data is counted in the process in which the policy runs: this one, or the grader's sandbox.
"""

from __future__ import annotations

import gc
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

from course.testing import measure

#: Objects of these types lead out of a policy, to other modules and to its callers.
_NOT_FOLLOWED = (types.ModuleType, types.CodeType, types.FrameType, types.TracebackType)


def remembered_keys(policy: object, keys: set[int]) -> set[int]:
    """Return those of ``keys`` that the policy stores, in any form: as blocks, numbers or text, in any container.

    The keys must be numbers that a policy does not use for anything else, such as numbers from a billion on. A stored
    block counts as its own key; the parent's key in it does not count.
    """
    return {int(key) for key in measure.where.measure("remembered_keys", policy, keys)}


@measure.beside_the_file
def _remembered_keys(policy: object, keys: set[int]) -> set[int]:
    found: set[int] = set()
    for thing in _kept(policy):
        if _is_block(thing):
            found.add(thing.key)  # type: ignore[attr-defined]
        elif isinstance(thing, (int, float)):
            found.update(keys & {thing})
        elif isinstance(thing, str):
            found.update(int(number) for number in re.findall(r"\d{1,18}", thing))
    return found & keys


def num_kept(policy: object) -> int:
    """Count the references that ``policy`` stores: one per item of a list. Text and arrays count by their size."""
    return int(measure.where.measure("num_kept", policy))


@measure.beside_the_file
def _num_kept(policy: object) -> int:
    return sum(len(_referents(thing)) or sys.getsizeof(thing) // 64 for thing in _kept(policy))


def _kept(policy: object) -> Iterator[object]:
    """Yield each object that can be reached from ``policy``, its class and the variables of its module once.

    Data that the policy stores in other modules, for example as an attribute of this module, is not included.
    """
    variables = getattr(getattr(type(policy), "evict", None), "__globals__", {})
    todo = [policy, *(value for name, value in variables.items() if not name.startswith("__"))]
    seen: dict[int, object] = {}
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        if isinstance(thing, type) and thing.__module__ != type(policy).__module__:
            continue
        if isinstance(thing, types.FunctionType) and thing.__globals__ is not variables:
            continue
        if isinstance(thing, _NOT_FOLLOWED) or type(thing).__module__.partition(".")[0] == "logging":
            continue
        if measure.is_stand_in(thing):  # an object of the grader; the policy does not own what it refers to
            continue
        seen[id(thing)] = thing
        yield thing
        todo += _referents(thing)


def _is_block(thing: Any) -> bool:
    """Check whether ``thing`` is a block of the arena, by its fields: in the sandbox, blocks have another class."""
    return type(thing).__name__ == "Block" and getattr(thing, "_fields", None) == ("key", "parent", "depth")


def _referents(thing: object) -> list[object]:
    """Return the objects that ``thing`` refers to.

    A block counts as one object, so the result is empty. A class refers to its metaclass, bases and attributes; a
    function refers to its defaults, attributes and closure.
    """
    if _is_block(thing):
        return []
    if isinstance(thing, type):
        return [type(thing), *thing.__mro__[1:], *vars(thing).values()]
    if isinstance(thing, types.FunctionType):
        return [thing.__defaults__, thing.__kwdefaults__, vars(thing), *(thing.__closure__ or ())]
    return gc.get_referents(thing)
