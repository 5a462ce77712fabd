"""A file that can stand in for any lab's file: it has every name, accepts every call, and does nothing.

``course check`` grades it in every lab, and it must earn nothing: a test that passes on it asserts nothing about the
student's code. It is only ever run as a lab's file and never imported.

Everything a test asks for exists and can be called, entered, awaited, iterated (it is empty) and computed with. Nothing
raises, and nothing runs forever. No two things are equal, and nothing equals itself (unless ``IS_ONE``).
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Generator, Iterator
from typing import Any

#: If this is True, the result of every call is also the number NaN, and every comparison and truth test gives False.
#: ``empty_files`` writes a file in which it is True, and another one for ``IS_ONE``.
IS_NAN = False
#: If this is True, all things are one object, which equals itself: what comes back is always what was expected.
IS_ONE = False
#: Every thousandth answer is the opposite one, so that a loop that waits for it ends at some point.
PATIENCE = 1000

_num_answers = 0
_one: list[Any] = []


def _answer() -> bool:
    global _num_answers
    _num_answers += 1
    return (_num_answers % PATIENCE == 0) == IS_NAN


def _attribute(name: str) -> Any:
    """Return an Anything, except for dunder names, by which other code finds out what an object supports.

    Raise AttributeError for those.
    """
    if name[:2] == "__" == name[-2:]:
        raise AttributeError(name)
    return Anything()


class _Kind(type):
    """The metaclass, which gives classes every attribute as well."""

    def __getattr__(cls, name: str) -> Any:
        return _attribute(name)

    def __eq__(cls, other: object) -> bool:
        return False

    def __hash__(cls) -> int:
        return id(cls)

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __getitem__(cls, key: object) -> Any:
        return Anything()


class Anything(metaclass=_Kind):
    """An object that has every attribute and supports every operation."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if not IS_ONE or cls is not Anything:
            return object.__new__(cls)
        if not _one:
            _one.append(object.__new__(cls))
        return _one[0]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return _attribute(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _result()

    # ---- as a value

    def __eq__(self, other: object) -> bool:
        return IS_ONE and self is other

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return _answer()

    def __int__(self) -> int:
        return 0

    __index__ = __int__

    def __float__(self) -> float:
        return float("nan")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        import numpy
        return numpy.array(float("nan"))

    def __repr__(self) -> str:
        return "anything"

    def __str__(self) -> str:
        return "anything"

    def __format__(self, format_spec: str) -> str:
        return "anything"

    # ---- as a container

    def __iter__(self) -> Iterator[Any]:
        """Iterate over nothing, except that ``a, b = thing`` gets its two values."""
        caller = sys._getframe(1)
        operation, number = caller.f_code.co_code[caller.f_lasti:][:2]
        return iter([Anything() for _ in range(number if dis.opname[operation] == "UNPACK_SEQUENCE" else 0)])

    def __reversed__(self) -> Iterator[Any]:
        return iter(())

    def __next__(self) -> Any:
        raise StopIteration

    def __len__(self) -> int:
        return 0

    def __contains__(self, item: object) -> bool:
        return _answer()

    def __getitem__(self, key: object) -> Any:
        return Anything()

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __delitem__(self, key: object) -> None:
        pass

    def __delattr__(self, name: str) -> None:
        pass

    # ---- with ``with`` and ``await``

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return _result()

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        raise StopAsyncIteration


class Number(Anything, float):
    """An Anything that is also a number, NaN; the number is all that the grader's proxy sees of it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return float.__new__(cls, "nan")


def _result(*args: Any, **kwargs: Any) -> Any:
    return Number() if IS_NAN else Anything()


def _operate(self: Anything, *others: object) -> Any:
    return Number() if isinstance(self, Number) else Anything()


def _compare(self: Anything, other: object) -> bool:
    return _answer()


for _name in "neg pos abs invert round floor ceil trunc".split():
    setattr(Anything, f"__{_name}__", _operate)
for _name in "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or".split():
    for _side in ("", "r", "i"):
        setattr(Anything, f"__{_side}{_name}__", _operate)
for _name in "lt le gt ge".split():
    setattr(Anything, f"__{_name}__", _compare)


def __getattr__(name: str) -> Any:
    """Return a class, to be called or derived from, for a capitalised name, and a function for any other."""
    if name[:2] == "__" == name[-2:]:
        raise AttributeError(name)
    return Anything if name[0].isupper() else _result
