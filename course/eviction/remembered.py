"""What an eviction policy of lab 3.5 keeps. It is counted where the policy runs: here, or in the grader's sandbox."""

from __future__ import annotations

import gc
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

from course.testing import measure

#: What leads out of a policy: into other modules, and to whoever called it.
_NOT_FOLLOWED = (types.ModuleType, types.CodeType, types.FrameType, types.TracebackType)


def remembered_keys(policy: object, keys: set[int]) -> set[int]:
    """Which of these keys ``policy`` keeps, in whatever form: as blocks, numbers or text, in lists or dictionaries.

    Keys must be numbers that mean nothing else to a policy, such as those from a billion on. A block counts as itself;
    that it names its parent does not count.
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
    """How much ``policy`` keeps, as a number of references: an item of a list is one. Text and arrays count by size."""
    return int(measure.where.measure("num_kept", policy))


@measure.beside_the_file
def _num_kept(policy: object) -> int:
    return sum(len(_referents(thing)) or sys.getsizeof(thing) // 64 for thing in _kept(policy))


def _kept(policy: object) -> Iterator[object]:
    """All that can be reached from ``policy``, its class and the variables of its module, each thing once.

    Not what it leaves in other modules, such as an attribute of this one.
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
        if measure.is_stand_in(thing):  # of the grader: what hangs on it is not the policy's
            continue
        seen[id(thing)] = thing
        yield thing
        todo += _referents(thing)


def _is_block(thing: Any) -> bool:
    """A block of the arena's; in the sandbox its class is made anew."""
    return type(thing).__name__ == "Block" and getattr(thing, "_fields", None) == ("key", "parent", "depth")


def _referents(thing: object) -> list[object]:
    """What ``thing`` refers to. A block is one thing; a class has its attributes, and a function what it holds."""
    if _is_block(thing):
        return []
    if isinstance(thing, type):
        return [type(thing), *thing.__mro__[1:], *vars(thing).values()]
    if isinstance(thing, types.FunctionType):
        return [thing.__defaults__, thing.__kwdefaults__, vars(thing), *(thing.__closure__ or ())]
    return gc.get_referents(thing)
