"""The path of one request through the front: a replica, its answer, and what happens if the replica dies.

    nothing was sent to the client yet:  the request goes to another replica, with the client none the wiser
    a stream has begun:                  its last event is an error in OpenAI's format, then [DONE]

An answer that is not a stream is sent once it is whole, so it can always be computed again. A request that was sent to
``MAX_SENT`` replicas which then died is given up: perhaps it is what kills them.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mini_vllm.router import Block
from mini_vllm.server.api.answers import DONE, event
from mini_vllm.server.errors import ApiError, retry_later
from mini_vllm.server.replicas.exchange import Answer, Headers, ReplicaError
from mini_vllm.server.replicas.fleet import RETRY_AFTER_S, Fleet, Replica

MAX_SENT = 2
EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
#: The header of an answer that names the replica.
REPLICA_HEADER = b"x-mini-vllm-replica"
#: Headers that concern one connection only, or that the front writes itself. The front has checked Origin and Host.
NOT_PASSED = frozenset((b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
                        b"proxy-authenticate", b"proxy-authorization", b"host", b"origin", b"content-length",
                        b"date", b"server"))


def passed_on(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in NOT_PASSED]


class ProxyResponse(Response):
    """The answer of a replica. With ``blocks``, the router chooses the replica; without, it is the first one.

    ``text`` is shown for the prompt.
    """

    def __init__(self, fleet: Fleet, body: bytes, blocks: Sequence[Block] | None = None, text: str = "") -> None:
        super().__init__()
        self.fleet, self.request_body, self.blocks, self.text = fleet, body, blocks, text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client disconnects first."""
        answering = asyncio.ensure_future(self._answer(scope, send))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            leaving.cancel()
            answering.cancel()
            await asyncio.wait({answering})  # until its request is no longer counted

    async def _answer(self, scope: Scope, send: Send) -> None:
        try:
            await self._try_replicas(scope, send)
        except ApiError as error:
            await error.to_response()(scope, _nothing, send)

    async def _try_replicas(self, scope: Scope, send: Send) -> None:
        """Ask replicas until one answers. Raise ApiError if none does."""
        num_sent = 0
        for _ in range(len(self.fleet.replicas) + MAX_SENT):
            attempt = Attempt(scope, send, self.request_body)
            if self.blocks is None:
                replica = self.fleet.first()
                is_done = await self._ask(replica, attempt)
            else:
                async with self.fleet.routed(uuid.uuid4().hex, self.blocks, self.text) as (replica, decision):
                    try:
                        is_done = await self._ask(replica, attempt)
                    finally:
                        decision.status = attempt.outcome
            if is_done:
                return
            num_sent += attempt.was_sent
            if num_sent == MAX_SENT:
                raise retry_later(503, f"this request was computed {num_sent} times, and each time the replica failed",
                                  "replica_failed", RETRY_AFTER_S)
            self.fleet.num_moved += 1
        raise retry_later(503, "no replica could be reached; try again later", "no_replica", RETRY_AFTER_S)

    async def _ask(self, replica: Replica, attempt: Attempt) -> bool:
        """Return whether the client has its answer; False if the request must go to another replica."""
        try:
            async with replica.connections.ask(attempt.method, attempt.target, attempt.headers,
                                               self.request_body) as answer:
                if answer.is_stream:
                    await attempt.stream(answer, replica.name)
                    return True
                body = await answer.body()
            if answer.status == 503 and _code(body) == "stopping":
                self.fleet.leave(replica, "it is stopping")
                attempt.outcome = "replica stopping"
                return False
            await attempt.send_whole(answer, body, replica.name)
        except ReplicaError as error:
            self.fleet.failed(replica, error)
            attempt.was_sent = error.was_sent
            if not attempt.has_begun:
                attempt.outcome = "replica failed"
                return False
            await attempt.break_off(replica.name)
        return True


class Attempt:
    """One request to one replica, and how much of its answer the client has."""

    def __init__(self, scope: Scope, send: Send, body: bytes) -> None:
        self.method: str = scope["method"]
        query: bytes = scope["query_string"]
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.target = path.partition(b"?")[0] + (b"?" + query if query else b"")
        self.headers = passed_on(scope["headers"])
        self._send = send
        self.has_begun = self.was_sent = False
        #: The status of the answer, or a few words if the client did not get all of it from this replica.
        self.outcome = "client left"

    async def _start(self, answer: Answer, replica: str, headers: Headers = ()) -> None:
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": answer.status, "headers": [
            *passed_on(answer.headers), *headers, (REPLICA_HEADER, replica.encode())]})

    async def stream(self, answer: Answer, replica: str) -> None:
        """Pass a stream on, event by event: a client could not read half an event before the error.

        The head waits for the first event. Until then the request can still go to another replica.
        """
        half = b""
        async for part in answer.parts():
            half += part
            end = max((half.rfind(mark) + len(mark) for mark in EVENT_ENDS if mark in half), default=0)
            if end:
                if not self.has_begun:
                    await self._start(answer, replica)
                if half[:end].endswith(DONE):  # many clients leave now
                    self.outcome = str(answer.status)
                await self._send({"type": "http.response.body", "body": half[:end], "more_body": True})
                half = half[end:]
        if not self.has_begun:
            await self._start(answer, replica)
        self.outcome = str(answer.status)
        await self._send({"type": "http.response.body", "body": half})

    async def send_whole(self, answer: Answer, body: bytes, replica: str) -> None:
        self.outcome = str(answer.status)
        await self._start(answer, replica, [(b"content-length", str(len(body)).encode())])
        await self._send({"type": "http.response.body", "body": body})

    async def break_off(self, replica: str) -> None:
        """End a stream whose replica has died."""
        self.outcome = "broke off"
        error = ApiError(503, f"{replica} failed while it computed this answer; send the request again",
                         code="replica_failed")
        await self._send({"type": "http.response.body", "body": event(error.to_dict()) + DONE})


def _code(body: bytes) -> object:
    try:
        return json.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> dict[str, str]:
    return {"type": "http.disconnect"}
