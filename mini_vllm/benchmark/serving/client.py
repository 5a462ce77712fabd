"""A client for many answers at once, as cheap as possible: it shares the machine with the server that it measures.

It speaks HTTP/1.1 over plain sockets of an event loop. While answers arrive it only records the time of each piece; the
content is parsed afterwards.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mini_vllm.benchmark.serving.traffic import Call

#: An answer that takes longer counts as missing.
MAX_ANSWER_S = 300.0


@dataclass
class Received:
    """The data received for one call, unparsed."""

    call: Call
    #: When it was due to be sent, and when it was sent.
    due_s: float
    sent_s: float
    #: (time, bytes)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    #: The server closed the connection, as it does after an answer.
    is_closed: bool = False


class _Exchange(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, request: bytes, received: Received, done: asyncio.Future[None]) -> None:
        self._request, self._received, self._done = request, received, done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received.pieces.append((time.perf_counter(), data))

    def connection_lost(self, error: Exception | None) -> None:
        self._received.is_closed = error is None
        if not self._done.done():
            self._done.set_result(None)


class Client:
    """Sends calls to one server; ``model`` is its name there."""

    def __init__(self, port: int, model: str) -> None:
        self.port, self.model = port, model

    def request_of(self, call: Call) -> bytes:
        body = json.dumps({
            "model": self.model, "prompt": call.prompt, "max_tokens": call.max_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "ignore_eos": True, "priority": call.priority}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
                f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n")
        return head.encode() + body

    async def send(self, call: Call, due_s: float | None = None, into: list[Received] | None = None) -> Received:
        """Send one call and wait for the end of its answer, which is added to ``into`` as soon as the call is sent.

        If it is cancelled, it closes the connection.
        """
        loop = asyncio.get_running_loop()
        now_s = time.perf_counter()
        received = Received(call, now_s if due_s is None else due_s, now_s)
        if into is not None:
            into.append(received)
        done: asyncio.Future[None] = loop.create_future()
        request = self.request_of(call)
        transport = None
        try:
            transport, _ = await loop.create_connection(lambda: _Exchange(request, received, done), "127.0.0.1",
                                                        self.port)
            await asyncio.wait_for(done, MAX_ANSWER_S)
        except (OSError, asyncio.TimeoutError):
            pass  # the answer is incomplete; that is noticed when it is parsed
        finally:
            if transport is not None:
                transport.abort()
        return received

    async def send_all(self, calls: Sequence[Call], is_lost: Callable[[Sequence[Received]], bool] | None = None
                       ) -> list[Received]:
        """Send each call when it is due, whether or not the others are answered, and wait for all answers.

        ``is_lost`` is called a few times per second; if it returns True, the remaining calls are cancelled.
        """
        start_s = time.perf_counter()
        received: list[Received] = []
        tasks: set[asyncio.Task[Received]] = set()
        sender = asyncio.create_task(self._send_when_due(calls, start_s, received, tasks))
        try:
            while not (sender.done() and all(task.done() for task in tasks)):
                waiting = {task for task in (sender, *tasks) if not task.done()}
                await asyncio.wait(waiting, timeout=0.25)
                if is_lost is not None and is_lost(received):
                    break
        finally:
            for task in (sender, *tasks):
                task.cancel()
            await asyncio.gather(sender, *tasks, return_exceptions=True)
        return received

    async def _send_when_due(self, calls: Sequence[Call], start_s: float, received: list[Received],
                             tasks: set[asyncio.Task[Received]]) -> None:
        for call in calls:
            due_s = start_s + call.at_s
            await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
            tasks.add(asyncio.create_task(self.send(call, due_s, received)))
