"""Lines of JSON that another process writes while this one reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class JsonLines:
    """The writing end: an event a line."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8")

    def write(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()


class ReportLines:
    """A file that grows. What is no JSON object was not written by us, and is passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._num_bytes_read = 0

    def new(self) -> Iterator[dict[str, Any] | None]:
        """Each line that was completed since the last look; None for one that is not ours."""
        with open(self.path, "rb") as file:
            file.seek(self._num_bytes_read)
            lines = file.read().split(b"\n")[:-1]
        for line in lines:
            self._num_bytes_read += len(line) + 1
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            yield event if isinstance(event, dict) else None
