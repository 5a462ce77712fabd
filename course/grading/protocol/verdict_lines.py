"""Signed, numbered lines in which the tests' process reports the result of each test.

Only that process and its parent know the key. A submission may find a way to have something written to the pipe.
Without the key it can spoil lines, but cannot invent any:

    1 5f0c… {"event": "plan", "tests": ["test_task_1_…", …]}
    2 91ab… {"event": "start", "index": 0}
    3 77e2… {"event": "end", "index": 0, "passed": true, …}
    …
    9 0d4f… {"event": "finish"}

A line counts if its signature is right, its number is the next one, and its event is the next step: the plan, then the
start and the end of each test of the plan, then the finish.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Collection
from typing import Any

KEY_BYTES = 32
#: The remark for a file during whose tests something else wrote to the pipe.
FORGED = "the pipe for the tests' verdicts contained lines that the tests did not write"


def _signature(key: bytes, number: int, text: bytes) -> bytes:
    return hmac.digest(key, b"%d %s" % (number, text), "sha256").hex().encode()


class SignedLines:
    """The writing end."""

    def __init__(self, descriptor: int, key: bytes) -> None:
        self._descriptor, self._key, self._number = descriptor, key, 0

    def write(self, event: dict[str, Any]) -> None:
        self._number += 1
        text = json.dumps(event).encode()
        line = b"%d %s %s\n" % (self._number, _signature(self._key, self._number, text), text)
        while line:
            line = line[os.write(self._descriptor, line):]


class VerdictReader:
    """The reading end: takes lines, and returns the events that count."""

    def __init__(self, key: bytes, names: Collection[str]) -> None:
        self._key, self._names = key, frozenset(names)
        self._number = 1
        self._plan: list[str] | None = None
        self._index = 0
        self._has_started = self.is_finished = False
        #: Whether a test has started, so that the file under test was used.
        self.has_begun = False
        #: The number of lines that did not count.
        self.num_refused = 0

    def take(self, line: bytes) -> dict[str, Any] | None:
        """Return the event of a line, with the name of its test; None if the line does not count."""
        event = self._verified(line)
        if event is None or not self._is_next(event):
            self.num_refused += 1
            return None
        self._number += 1
        return event

    def _verified(self, line: bytes) -> dict[str, Any] | None:
        number, _, rest = line.partition(b" ")
        signature, _, text = rest.partition(b" ")
        expected = _signature(self._key, self._number, text)
        if number != b"%d" % self._number or not hmac.compare_digest(signature, expected):
            return None
        event: dict[str, Any] = json.loads(text)
        return event

    def _is_next(self, event: dict[str, Any]) -> bool:
        """Return whether the event is the next step. If it is, take that step."""
        if self.is_finished:
            return False
        kind = event["event"]
        if self._plan is None:
            if kind != "plan" or not self._names.issuperset(event["tests"]):
                return False
            self._plan = event["tests"]
            return True
        if kind == "finish":
            self.is_finished = not self._has_started and self._index == len(self._plan)
            return self.is_finished
        if self._index >= len(self._plan) or event.get("index") != self._index or kind != (
                "end" if self._has_started else "start"):
            return False
        self.has_begun = True
        event["test"] = self._plan[self._index]
        self._index += self._has_started
        self._has_started = not self._has_started
        return True
