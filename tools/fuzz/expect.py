"""The check that fuzzers use to report what is wrong."""

from __future__ import annotations


def expect(is_so: bool, message: str) -> None:
    """Raise AssertionError with the message unless ``is_so``. Unlike ``assert``, it cannot be switched off."""
    if not is_so:
        raise AssertionError(message)
