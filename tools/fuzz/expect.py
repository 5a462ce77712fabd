"""How a fuzzer says what is wrong."""

from __future__ import annotations


def expect(is_so: bool, message: str) -> None:
    """As ``assert``, which Python can be told to leave out. Raises AssertionError with the message."""
    if not is_so:
        raise AssertionError(message)
