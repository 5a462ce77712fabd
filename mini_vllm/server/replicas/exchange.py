"""One request to a replica and its answer, over a connection of its own.

Nothing is buffered here: each part of an answer is passed on as it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

CONNECT_S = 5.0
PIECE_BYTES = 2**16

Headers = Sequence[tuple[bytes, bytes]]


class ReplicaError(Exception):
    """A replica could not be reached, or did not finish its answer."""

    def __init__(self, message: str, was_sent: bool, was_refused: bool = False) -> None:
        super().__init__(message)
        #: Whether the replica may have received the request.
        self.was_sent = was_sent
        #: Whether its machine is there, and nothing listens at the port.
        self.was_refused = was_refused


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    is_tls: bool = False

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read the URL of a server. Raise ValueError, which names it, unless it is a scheme, a host and a port."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        is_whole = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username or parts.password)
        if parts.scheme not in ("http", "https") or not parts.hostname or port in (-1, 0) or not is_whole:
            raise ValueError(f"worker is {url!r}, must be a URL such as http://10.0.0.5:8000, without a path")
        return cls(parts.hostname, port or (443 if parts.scheme == "https" else 80), parts.scheme == "https")

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.netloc}"


class Answer:
    """The head of an answer, and its body while it arrives."""

    def __init__(self, connection: h11.Connection, reader: asyncio.StreamReader) -> None:
        self._connection, self._reader = connection, reader
        self.status, self.headers = 0, list[tuple[bytes, bytes]]()

    @property
    def is_stream(self) -> bool:
        return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in self.headers)

    async def read_head(self) -> None:
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next()
        assert isinstance(event, h11.Response)
        self.status, self.headers = event.status_code, list(event.headers)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body. Raise ReplicaError if it breaks off."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def body(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def _next(self) -> h11.Event:
        try:
            while (event := self._connection.next_event()) is h11.NEED_DATA:
                self._connection.receive_data(await self._reader.read(PIECE_BYTES))
        except (OSError, h11.RemoteProtocolError) as error:
            raise ReplicaError(f"the connection broke: {error}", was_sent=True) from None
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise ReplicaError("the connection was closed before the answer", was_sent=True)
        return event


class Connections:
    """The open connections to one replica."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._open: set[asyncio.StreamWriter] = set()

    def abort(self) -> None:
        """Break all connections off: whoever waits for an answer gets a ReplicaError."""
        for writer in self._open:
            writer.transport.abort()

    @asynccontextmanager
    async def ask(self, method: str, target: bytes, headers: Headers = (), body: bytes = b"") -> AsyncIterator[Answer]:
        """Send a request, and return its answer once the head has arrived. Raise ReplicaError if none arrives.

        Leaving the context closes the connection, and so tells the replica to stop computing.
        """
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(
                self.address.host, self.address.port, ssl=self.address.is_tls or None), CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:
            raise ReplicaError(f"{self.address} cannot be reached: {error or 'timeout'}", was_sent=False,
                               was_refused=isinstance(error, ConnectionRefusedError)) from None
        self._open.add(writer)
        connection = h11.Connection(h11.CLIENT)
        try:
            head = h11.Request(method=method, target=target, headers=[
                (b"Host", self.address.netloc.encode()), (b"Connection", b"close"), *headers,
                *([(b"Content-Length", str(len(body)).encode())] if body else [])])
            data = [connection.send(head), connection.send(h11.Data(body)) if body else b"",
                    connection.send(h11.EndOfMessage())]
            writer.write(b"".join(part or b"" for part in data))
            answer = Answer(connection, reader)
            try:
                await writer.drain()
            except OSError as error:
                raise ReplicaError(f"the connection broke: {error}", was_sent=True) from None
            await answer.read_head()
            yield answer
        finally:
            self._open.discard(writer)
            writer.transport.abort()
