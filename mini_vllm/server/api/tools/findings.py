"""What a parser has found in an output: content and calls, as a whole and as events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Content(NamedTuple):
    """Text outside of calls."""

    text: str


class Opened(NamedTuple):
    """A call begins. Calls are numbered from 0."""

    number: int
    name: str


class Arguments(NamedTuple):
    """A piece of the arguments of a call."""

    number: int
    text: str


Event = Content | Opened | Arguments


@dataclass
class Call:
    """A call that was announced."""

    name: str
    #: Pieces of its arguments, and of all of its text.
    arguments: list[str] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    #: Whether its object is complete, and whether its text turned out not to be JSON.
    is_complete: bool = False
    is_broken: bool = False


class Findings:
    def __init__(self) -> None:
        #: Pieces of content, and calls, in their order.
        self.segments: list[str | Call] = []
        self.calls: list[Call] = []
        self._events: list[Event] = []

    def add_content(self, text: str) -> None:
        if not text:
            return
        self.segments.append(text)
        last = self._events[-1] if self._events else None
        if isinstance(last, Content):
            self._events[-1] = Content(last.text + text)
        else:
            self._events.append(Content(text))

    def open_call(self, name: str, raw: str) -> Call:
        """Announce a call, which has been ``raw`` so far."""
        call = Call(name, raw=[raw])
        self._events.append(Opened(len(self.calls), name))
        self.calls.append(call)
        self.segments.append(call)
        return call

    def add_arguments(self, text: str) -> None:
        """Add to the arguments of the last call."""
        if not text:
            return
        self.calls[-1].arguments.append(text)
        last = self._events[-1] if self._events else None
        if isinstance(last, Arguments):
            self._events[-1] = Arguments(last.number, last.text + text)
        else:
            self._events.append(Arguments(len(self.calls) - 1, text))

    def take_events(self) -> list[Event]:
        """Return the events since the last call of this method."""
        events, self._events = self._events, []
        return events

    def result(self, counts_cut_calls: bool) -> tuple[str | None, list[Call]]:
        """Return content and calls of a whole output. A call that is broken is content.

        So is a call that is not complete, unless ``counts_cut_calls``.
        """
        content, calls = [], []
        for segment in self.segments:
            if isinstance(segment, Call) and not segment.is_broken and (segment.is_complete or counts_cut_calls):
                calls.append(segment)
            else:
                content.append("".join(segment.raw) if isinstance(segment, Call) else segment)
        return "".join(content) or None, calls
