"""How an answer goes out: whole at the end, or in events as it comes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from starlette.types import Send

from mini_vllm.request import RequestOutput
from mini_vllm.server.answers import DONE, Answers, event
from mini_vllm.server.errors import ApiError, json_response
from mini_vllm.server.outputs import Batch

STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
                  (b"x-accel-buffering", b"no")]


class Writer(ABC):
    def __init__(self, answers: Answers, send: Send) -> None:
        self.answers, self._send = answers, send
        #: Whether the status was sent.
        self.has_started = False
        self._latest: dict[int, RequestOutput] = {}

    async def write(self, batch: Batch) -> None:
        """Take the next outputs."""
        self._latest.update(batch)

    @abstractmethod
    async def end(self) -> None:
        """There are no more."""

    @abstractmethod
    async def fail(self, error: ApiError) -> None:
        """It has started, and cannot be finished."""

    def last_outputs(self) -> list[RequestOutput]:
        return [self._latest[index] for index in sorted(self._latest)]


class WholeWriter(Writer):
    async def end(self) -> None:
        response = json_response(self.answers.whole(self.last_outputs()))
        self.has_started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
        await self._send({"type": "http.response.body", "body": response.body})

    async def fail(self, error: ApiError) -> None:
        raise error  # its only write was its last


class EventWriter(Writer):
    """One write for all that came of one step."""

    def __init__(self, answers: Answers, send: Send, num_prompts: int) -> None:
        super().__init__(answers, send)
        self._num_prompts = num_prompts

    async def write(self, batch: Batch) -> None:
        await super().write(batch)
        if not self.has_started:
            self.has_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await self._write(self.answers.opening(self._num_prompts) + self._events(batch), is_last=False)
        elif events := self._events(batch):
            await self._write(events, is_last=False)

    def _events(self, batch: Batch) -> bytes:
        if len(batch) == 1:
            return self.answers.events(*batch[0])
        return b"".join(self.answers.events(index, delta) for index, delta in batch)

    async def end(self) -> None:
        await self._write(self.answers.closing(output.usage for output in self.last_outputs()), is_last=True)

    async def fail(self, error: ApiError) -> None:
        await self._write(event(error.to_dict()) + DONE, is_last=True)

    async def _write(self, data: bytes, is_last: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
