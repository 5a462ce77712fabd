"""For the tests of labs: calls that must raise, and calls that must not.

A failure is explained in a sentence: the call that the test made, its result, the expected result, and why. A body that
is not written yet counts as neither an expected error nor a failed check: its NotImplementedError is passed on.
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
    """Check that the block, described as ``call``, raises ``error``; the yielded object then has it as ``error``."""
    expected = f"expected a {error.__name__}{f': {why}' if why else ''}"
    caught = types.SimpleNamespace(error=None)
    try:
        yield caught
    except NotImplementedError:  # also a RuntimeError, but not the expected one
        raise
    except error as refusal:
        caught.error = refusal
        return
    except Exception as other:
        pytest.fail(f"{call} raised {other!r}, {expected}", pytrace=False)
    pytest.fail(f"{call} was accepted, {expected}", pytrace=False)


def must_answer(call: str, function: Callable[..., T], *arguments: Any, rule: str) -> T:
    """Return the result of ``function(*arguments)``, described as ``call``; fail the test if it raises."""
    try:
        return function(*arguments)
    except NotImplementedError:
        raise
    except Exception as error:
        raise AssertionError(f"{call} raised {type(error).__name__}({error}), expected no error: {rule}") from error
