"""How large a value is when it is written out, with each shared container again wherever it is referenced.

A list that contains another one twice, which contains a third one twice, and so on, is small in memory, and ``repr`` of
it never ends. No time limit can interrupt ``repr``, so such values are refused before a test can have them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from course.grading.protocol.bounds import MAX_AGAIN, MAX_EXPANDED, check
from course.grading.protocol.tags import SCALARS, identity

#: An array is abbreviated when it is written out.
_ARRAY_SIZE = 1000
_CONTAINERS = (list, tuple, set, frozenset, dict, slice, BaseException)
_WHAT = "containers that contain others again and again: {} items and characters when written out"


def check_expanded(values: Iterable[tuple[Any, int]]) -> None:
    """Raise TooMuch if the values are too large together. Each comes with the number of times that it counts."""
    sizes = _Sizes()
    total = 0
    for value, num_times in values:
        total += num_times * sizes.of(value)
        check(_WHAT, total, MAX_EXPANDED)


def is_longer(values: Any, num_characters: int) -> bool:
    """Return whether these values take more characters when written out. It takes no more steps than that."""
    waiting, size = [values], 0
    while waiting and size <= num_characters:
        items = _items(waiting.pop())
        size += 1 + _plain_size(items)
        waiting += filter(_is_container, items)
    return size > num_characters


class _Sizes:
    """Computes sizes; each container is looked at once, unless it is part of a cycle."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        #: The containers around the current one. ``repr`` writes "..." for one of these.
        self._around: set[int] = set()
        self._seen: set[int] = set()
        self._num_cut = self._num_again = 0

    def of(self, value: Any) -> int:
        if not _is_container(value):
            return _plain_size((value,))
        key = identity(value)
        if key in self._known:
            return self._known[key]
        if key in self._around:
            self._num_cut += 1
            return 1
        items = _items(value)
        num_cut, size = self._num_cut, 1 + _plain_size(items)
        if key in self._seen:
            self._num_again += size
            check("containers in cycles: {} items along all ways through them", self._num_again, MAX_AGAIN)
        self._seen.add(key)
        self._around.add(key)
        for each in filter(_is_container, items):
            size += self.of(each)
            check(_WHAT, size, MAX_EXPANDED)
        self._around.discard(key)
        if num_cut == self._num_cut:  # otherwise the size depends on where the cycle was entered
            self._known[key] = size
        return size


def _is_container(value: Any) -> bool:
    """Look at the type only, because an object of the other side may claim any class."""
    return type(value) not in SCALARS and issubclass(type(value), _CONTAINERS)


def _items(value: Any) -> Collection[Any]:
    """Return what ``repr`` of a decoded value writes out."""
    kind = type(value)
    if issubclass(kind, dict):
        return [*value, *value.values()]
    if issubclass(kind, BaseException):
        return value.args  # type: ignore[no-any-return]
    if kind is slice:
        return value.start, value.stop, value.step
    return value if _is_container(value) else ()


def _plain_size(items: Collection[Any]) -> int:
    """Return the size of these items without the content of containers: 1 per item, and 1 per character."""
    kinds = set(map(type, items))
    size = len(items)
    if str in kinds:
        size += sum(len(each) for each in items if type(each) is str)
    if int in kinds:
        size += sum(each.bit_length() // 4 for each in items if type(each) is int)
    if not kinds <= SCALARS:
        size += sum(len(each) if type(each) is bytes else min(_ARRAY_SIZE, getattr(each, "size", 0))
                    for each in items if type(each) is bytes or type(each).__module__ in ("numpy", "mlx.core"))
    return size
