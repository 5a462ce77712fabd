"""A sign of life while a model is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def loading(model: str) -> Iterator[None]:
    """Show ``Loading smollm2 …`` on standard error until the block ends. Show nothing if that is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text
    with Console(stderr=True).status(Text(f"Loading {short_name(model)} …")):
        yield


def short_name(model: str) -> str:
    """Return a model's name; for a folder or file, the last part of its path."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model
