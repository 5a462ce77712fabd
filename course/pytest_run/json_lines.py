"""Lines of JSON that one process writes while another reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class JsonLines:
    """The writing end: one event per line."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8")

    def write(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()


class ReportLines:
    """A growing file of JSON lines. A line that is not a JSON object was not written by the runner and is skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._num_bytes_read = 0

    def new(self) -> Iterator[dict[str, Any] | None]:
        """Yield each line that was completed since the last call, and None for a line that the runner did not write."""
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
