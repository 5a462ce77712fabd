"""For the tests of labs: calls that must be refused, and calls that must not be.

What goes wrong is told in a sentence: the call that the test made, what came of it, what was expected, and why. A body
that is not written yet is neither a refusal nor a failure of its own: it speaks for itself.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


@contextlib.contextmanager
def must_raise(error: type[Exception], call: str, why: str = "") -> Iterator[types.SimpleNamespace]:
    """What runs in the block, told as ``call``, must be refused by ``error``; that is ``error`` of what is yielded."""
    expected = f"expected a {error.__name__}{f': {why}' if why else ''}"
    caught = types.SimpleNamespace(error=None)
    try:
        yield caught
    except NotImplementedError:  # a RuntimeError too, but not the one meant
        raise
    except error as refusal:
        caught.error = refusal
        return
    except Exception as other:
        pytest.fail(f"{call} raised {other!r}, {expected}", pytrace=False)
    pytest.fail(f"{call} was accepted, {expected}", pytrace=False)


def must_answer(call: str, function: Callable[..., T], *arguments: Any, rule: str) -> T:
    """What ``function(*arguments)``, told as ``call``, returns; it must not raise."""
    try:
        return function(*arguments)
    except NotImplementedError:
        raise
    except Exception as error:
        raise AssertionError(f"{call} raised {type(error).__name__}({error}), expected an answer: {rule}") from error
