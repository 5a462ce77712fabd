"""The last events, and the state before the first of them: all that a newly opened page needs."""

from __future__ import annotations

from collections import deque
from typing import Any

from mini_vllm.server.live_feed.steps import Event
from mini_vllm.trace.files import draft_of

#: The number of events that are kept. A page shows about as many steps.
NUM_EVENTS = 96


class Window:
    """A bounded list of events. An event that drops out is folded into ``base``, which only has what is still true."""

    def __init__(self, num_events: int = NUM_EVENTS) -> None:
        self._num_events = num_events
        self._events: deque[Event] = deque()
        self._tables: dict[str, list[int]] = {}
        self._blocks: dict[int, list[int]] = {}
        self._keys: dict[int, list[int | str | None]] = {}
        #: For live requests: the fields of their arrival, and [the most tokens computed, tokens found in the cache].
        self._told: dict[str, dict[str, Any]] = {"prompts": {}, "names": {}, "arrived": {}, "structures": {}}
        self._computed: dict[str, list[int]] = {}
        self._now_s = 0.0

    def add(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) > self._num_events:
            self._fold(self._events.popleft())

    def _fold(self, event: Event) -> None:
        self._now_s = event["now_s"]
        self._tables = {name: table for name, table in {**self._tables, **event["tables"]}.items() if table}
        self._blocks.update({block[0]: block for block in event["blocks"]})
        self._keys.update({key[0]: key for key in event["keys"]})
        for field, known in self._told.items():
            known.update(event.get(field, {}))
        for request_id, (num_before, num_tokens) in event["tokens"].items():
            most, num_found = self._computed.get(request_id, (0, num_before))
            num_after = num_before + num_tokens + draft_of(event, request_id)[1]
            self._computed[request_id] = [max(most, num_after), num_found]
        for request_id in event["finished"]:
            for known in (*self._told.values(), self._computed):
                known.pop(request_id, None)

    def to_json(self) -> dict[str, Any]:
        base = {"now_s": self._now_s, "tables": self._tables, "blocks": [*self._blocks.values()],
                "keys": [*self._keys.values()], "computed": self._computed, **self._told}
        return {"base": {name: value.copy() if isinstance(value, dict) else value for name, value in base.items()},
                "events": [*self._events]}
