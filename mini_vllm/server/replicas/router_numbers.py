"""What a router says about itself, checked: a student's router may fail, lack a method, or return nonsense."""

from __future__ import annotations

import inspect
import operator
import reprlib
from collections.abc import Iterable
from typing import Any

MAX_MESSAGE = 200
#: JavaScript cannot represent all whole numbers above this one.
MAX_NUMBER = 2**53


class RouterError(Exception):
    """A router failed. The message is short."""


def has(router: object, name: str) -> bool:
    """Check whether a router has this method or property, without calling it."""
    return inspect.getattr_static(router, name, None) is not None


def numbers_of(router: object, name: str, replicas: Iterable[str], *args: Any) -> dict[str, int] | None:
    """Return what the method or property ``name`` of a router says about each replica; None if the router lacks it.

    Raise RouterError if it raises an error or does not return a whole number, at least 0, for each replica.
    """
    if not has(router, name):
        return None
    try:
        answer = getattr(router, name)
        if callable(answer):
            answer = answer(*args)
    except Exception as error:
        raise failure(name, error) from None
    try:
        numbers = {replica: operator.index(answer[replica]) for replica in replicas}
        if all(0 <= number <= MAX_NUMBER for number in numbers.values()):
            return numbers
    except Exception:
        pass  # the message is the same
    text = f"{name} returned {reprlib.repr(answer)}, must be a number of at least 0 for each replica that is up"
    raise RouterError(text[:MAX_MESSAGE])


def failure(name: str, error: Exception) -> RouterError:
    """Describe an error that the method ``name`` of a router raised."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # its __str__ fails too
        text = type(error).__name__
    return RouterError(f"{name} raised {text}"[:MAX_MESSAGE])
