"""Calls and content of a text, found while the text arrives.

    text ──marker──▶ marked ──{──▶ object ──}──▶ tail ──▶ text …
      │                 │             │
      └─────────────────┴─────────────┴─▶ content, if it cannot become a call any more

Everything that may still become a call is held back. A call is announced when the beginning of its object names a known
tool and opens its arguments; from there on its arguments are passed on as they arrive. An object with other keys first
is held until it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto

from mini_vllm.server.api.tools.findings import Call, Event, Findings
from mini_vllm.server.api.tools.formats import CallFormat
from mini_vllm.server.api.tools.scanner import ObjectScanner


class _State(Enum):
    TEXT, MARKED, OBJECT, TAIL = auto(), auto(), auto(), auto()


class CallParser:
    """Finds the calls in one output. Any split of the output into pieces gives the same calls and the same content."""

    def __init__(self, form: CallFormat, names: Collection[str], must_call: bool = False) -> None:
        """Look for calls of ``names``. With ``must_call``, the output is nothing but calls, though it may be cut."""
        self._form, self._names, self._must_call = form, names, must_call
        self.found = Findings()
        self._state = _State.TEXT
        #: Text that was not decided yet.
        self._held = ""
        #: Whether nothing but whitespace has been decided.
        self._is_beginning = True
        #: In an object: its text so far, with the marker; the scanner; the call, once it is announced.
        self._raw: list[str] = []
        self._object_start = 0
        self._scanner = ObjectScanner()
        self._call: Call | None = None
        self._was_tried = self._is_in_arguments = False

    def feed(self, text: str) -> list[Event]:
        """Read a piece of the output. Return what is certain now."""
        steps = {_State.TEXT: self._in_text, _State.MARKED: self._in_marked, _State.OBJECT: self._in_object,
                 _State.TAIL: self._in_tail}
        rest: str | None = self._held + text
        self._held = ""
        while rest:
            rest = steps[self._state](rest)
        return self.found.take_events()

    def finish(self) -> list[Event]:
        """End the output. Return what is left: it is content, because it did not become a call."""
        rest, self._held = "".join(self._raw) + self._held, ""
        state, self._state = self._state, _State.TEXT
        if self._call is not None or state is _State.TAIL:
            self._raw = []
            self._call = None
        elif not self._must_call and (rest.strip() or all(call.is_broken for call in self.found.calls)):
            self._content(rest)
        return self.found.take_events()

    def result(self, is_cut: bool) -> tuple[str | None, list[Call]]:
        """Return content and calls of a whole output. A call that is not complete counts if the output ``is_cut``."""
        return self.found.result(counts_cut_calls=is_cut or self._must_call)

    # ---- the states: each reads a text and returns its rest, or None if more is needed

    def _in_text(self, text: str) -> str | None:
        marker = self._form.marker
        if self.found.calls and not self._form.has_several:
            self._pass_on(text, len(text))
            return None
        if self._is_beginning and self._form.may_be_bare and text.lstrip().startswith("{"):
            start = len(text) - len(text.lstrip())
            return self._begin(text[:start], text[start:])
        place = text.find(marker)
        if place < 0:
            num_begun = next((size for size in range(min(len(marker) - 1, len(text)), 0, -1)
                              if text.endswith(marker[:size])), 0)
            self._pass_on(text, len(text) - num_begun)
            return None
        start = len(text[:place].rstrip())
        if start:
            self._content(text[:start])
        self._raw, self._state = [text[start:place + len(marker)]], _State.MARKED
        return text[place + len(marker):]

    def _pass_on(self, text: str, end: int) -> None:
        """Pass on the text before ``end`` as content, but hold whitespace at its end: a call may follow."""
        end = len(text[:end].rstrip())
        if end:
            self._content(text[:end])
        self._held = text[end:]

    def _in_marked(self, text: str) -> str | None:
        rest = text.lstrip()
        self._raw.append(text[:len(text) - len(rest)])
        if rest.startswith("{"):
            return self._begin("".join(self._raw), rest)
        return self._reject(rest) if rest else None

    def _begin(self, lead: str, rest: str) -> str:
        """Begin with an object."""
        self._raw, self._object_start, self._state = [lead], len(lead), _State.OBJECT
        self._scanner, self._call, self._was_tried, self._is_in_arguments = ObjectScanner(), None, False, False
        return rest

    def _in_object(self, text: str) -> str | None:
        scanner = self._scanner
        wanted = 1 if self._is_in_arguments else None if self._was_tried else 2
        end = scanner.read(text, 0, wanted)
        self._raw.append(text[:end])
        if self._call is not None:
            self._call.raw.append(text[:end])
        if self._is_in_arguments:
            self.found.add_arguments(text[:end])
            self._is_in_arguments = scanner.depth != 1 and not scanner.is_broken
        elif not self._was_tried and scanner.depth == 2 and not scanner.is_broken:
            self._was_tried = True
            if not self._try_head():
                return self._reject(text[end:])
        if scanner.is_broken:
            return self._break(text[end:])
        if scanner.is_done:
            return self._complete(text[end:])
        return text[end:]

    def _try_head(self) -> bool:
        """Announce the call if its object begins as expected. Return False if it names no known tool."""
        raw = "".join(self._raw)
        head = self._form.head.fullmatch(raw, self._object_start)
        if head is None:
            return True  # its keys may be in another order
        if head[1] not in self._names:
            return False
        self._open(head[1], raw)
        self._is_in_arguments = True
        self.found.add_arguments("{")
        return True

    def _open(self, name: str, raw: str) -> None:
        self._call, self._is_beginning = self.found.open_call(name, raw), False

    def _break(self, rest: str) -> str:
        """End an object that is not JSON."""
        if self._call is None:
            return self._reject(rest)
        self._call.is_broken = True
        self._raw, self._call, self._state = [], None, _State.TEXT
        return rest

    def _complete(self, rest: str) -> str:
        """End an object that is JSON."""
        if self._call is None and not self._open_late():
            return self._reject(rest)
        assert self._call is not None
        self._call.is_complete = True
        self._raw, self._call = [], None
        self._state = _State.TAIL if self._form.end else _State.TEXT
        return rest

    def _open_late(self) -> bool:
        """Announce the call of a complete object, if it is one."""
        raw = "".join(self._raw)
        try:
            value = json.loads(raw[self._object_start:])
            name, arguments = value.get("name"), value.get(self._form.key)
            if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
                return False
            text = json.dumps(arguments, ensure_ascii=False)
        except (ValueError, RecursionError):  # a number with thousands of digits, or thousands of brackets
            return False
        self._open(name, raw)
        self.found.add_arguments(text)
        return True

    def _in_tail(self, text: str) -> str | None:
        rest, end = text.lstrip(), self._form.end
        if not rest.startswith(end) and end.startswith(rest):
            self._held = text
            return None
        self._state = _State.TEXT
        return rest[len(end):] if rest.startswith(end) else text

    def _reject(self, rest: str) -> str:
        """Turn what was held back into content."""
        self._content("".join(self._raw))
        self._raw, self._state = [], _State.TEXT
        return rest

    def _content(self, text: str) -> None:
        self._is_beginning = self._is_beginning and not text
        self.found.add_content(text)
