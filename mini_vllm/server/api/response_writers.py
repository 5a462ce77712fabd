"""Sending an answer: whole at the end, or in events as it grows."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable

from starlette.types import Send

from mini_vllm.engine_thread import since
from mini_vllm.request import RequestOutput
from mini_vllm.server.api.answers import DONE, Answers, event
from mini_vllm.server.api.prompt_outputs import Batch
from mini_vllm.server.errors import ApiError

STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
                  (b"x-accel-buffering", b"no")]
#: After writing this many bytes, let the event loop serve other requests.
TURN_BYTES = 2**16


class Writer(ABC):
    def __init__(self, answers: Answers, send: Send) -> None:
        self.answers, self._send = answers, send
        #: Whether the status was sent.
        self.has_started = False
        self._latest: dict[int, RequestOutput] = {}

    async def write(self, batch: Batch) -> None:
        """Accept the next outputs."""
        self._latest.update(batch)

    @abstractmethod
    async def end(self) -> None:
        """Finish the answer; there are no more outputs."""

    @abstractmethod
    async def fail(self, error: ApiError) -> None:
        """End an answer that has started and cannot be finished."""

    def last_outputs(self) -> list[RequestOutput]:
        return [self._latest[index] for index in sorted(self._latest)]

    async def _start(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.has_started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _write(self, data: bytes, is_last: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})


class WholeWriter(Writer):
    async def end(self) -> None:
        parts = [part async for part in in_turns(self.answers.whole(self.last_outputs()))]
        self._latest.clear()  # the client may take long to read the answer
        await self._start([(b"content-type", b"application/json"),
                           (b"content-length", str(sum(map(len, parts))).encode())])
        for number, part in enumerate(parts, 1):
            await self._write(part, is_last=number == len(parts))

    async def fail(self, error: ApiError) -> None:
        raise error  # nothing can follow: the whole answer is one write


class EventWriter(Writer):
    """Writes events, with one write for all outputs of a step."""

    def __init__(self, answers: Answers, send: Send, num_prompts: int) -> None:
        super().__init__(answers, send)
        self._num_prompts = num_prompts

    async def write(self, batch: Batch) -> None:
        events = itertools.chain.from_iterable(
            self.answers.events(index, since(self._latest.get(index), output)) for index, output in batch)
        if not self.has_started:
            await self._start(STREAM_HEADERS)
            events = itertools.chain(self.answers.opening(self._num_prompts), events)
        async for data in in_turns(events):
            await self._write(data, is_last=False)
        await super().write(batch)

    async def end(self) -> None:
        await self._write(self.answers.closing(output.usage for output in self.last_outputs()), is_last=True)

    async def fail(self, error: ApiError) -> None:
        await self._write(event(error.to_dict()) + DONE, is_last=True)


async def in_turns(pieces: Iterable[str]) -> AsyncIterator[bytes]:
    """Join ``pieces`` into a few parts of bytes. Other requests are served after each part except the last."""
    part: list[str] = []
    num_chars = 0
    for piece in pieces:
        part.append(piece)
        num_chars += len(piece)
        if num_chars >= TURN_BYTES:
            yield "".join(part).encode()
            part, num_chars = [], 0
            await asyncio.sleep(0)
    if part:
        yield "".join(part).encode()
