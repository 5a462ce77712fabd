"""The life of a server, from start to end.

SIGTERM or Ctrl-C drains the server: new requests are rejected, and running ones may finish within ``drain_s`` seconds.
After that they are cut off with an error. A second Ctrl-C does not wait.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from mini_vllm.models.catalogue import find_model
from mini_vllm.server.access.connections import NUM_ACCEPTED_AT_ONCE, BoundedConnection, once_in_a_while
from mini_vllm.server.app import make_app
from mini_vllm.server.settings import ServerSettings

log = logging.getLogger("mini_vllm.server")

#: The number of connections that may wait to be accepted.
BACKLOG = 2048
#: How long a client that is cut off may take to read the error.
FAREWELL_S = 1.0
#: How often to check whether clients read their answers, in uvicorn's ticks: every 5 s.
LOOK_EVERY = 50


class DrainingServer(uvicorn.Server):
    """A uvicorn server that tells the application about the shutdown before it waits for connections.

    Requests are cut off here and not by uvicorn, which would answer them with a 500 and fill the log with its messages.
    """

    def __init__(self, app: FastAPI, settings: ServerSettings) -> None:
        # No access log: a line per request costs time, and would only show paths. uvicorn's own timeout is longer than
        # ours, so no request is left when it ends.
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", server_header=False,
                                        http=BoundedConnection, backlog=NUM_ACCEPTED_AT_ONCE,
                                        timeout_graceful_shutdown=round(settings.drain_s + 5 * FAREWELL_S)))
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addFilter(once_in_a_while)
        self._app, self._drain_s = app, settings.drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._app.state.draining.set()

    async def on_tick(self, counter: int) -> bool:
        if counter % LOOK_EVERY == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, BoundedConnection):
                    connection.look(connection.loop.time())
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # asyncio has reduced the backlog to the connections that it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        limit = asyncio.create_task(self._limit_the_wait())
        await super().shutdown(sockets)
        limit.cancel()
        if self.force_exit:  # uvicorn did not wait, and would tear down running requests
            await self._cut_off("the server was told to stop at once")
            await asyncio.wait({asyncio.create_task(self.lifespan.shutdown())}, timeout=FAREWELL_S)

    async def _limit_the_wait(self) -> None:
        await asyncio.sleep(self._drain_s)
        await self._cut_off(f"not answered within {self._drain_s:g} s (--drain)")
        await asyncio.sleep(FAREWELL_S)
        for connection in list(self.server_state.connections):  # the client does not read
            connection.transport.abort()

    async def _cut_off(self, why: str) -> None:
        tasks = list(self.server_state.tasks)
        if not tasks:
            return
        log.warning("%d %s cut off: %s", len(tasks), "request was" if len(tasks) == 1 else "requests were", why)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=FAREWELL_S)


def serve(settings: ServerSettings, say_where: Callable[[str], None]) -> None:
    """Serve until a signal arrives. Call ``say_where`` with the address once the server listens.

    Before that, raise ValueError or OSError if the settings cannot be served.
    """
    for model in settings.models:
        find_model(model)
    app = make_app(settings)
    listener = listen(settings)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    gc.collect()
    gc.freeze()  # a pass over the 70,000 objects of the libraries takes 40 ms, while every request waits
    try:
        say_where(address_of(listener))
        DrainingServer(app, settings).run(sockets=[listener])
    except KeyboardInterrupt:  # before it serves, or after: uvicorn raises the signal again at the end
        pass


def listen(settings: ServerSettings) -> socket.socket:
    """Open the socket. Clients may connect from now on, and wait until the server accepts them.

    Raise ValueError, which names the address, if another process uses it.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ValueError(f"cannot listen at {settings.host} port {settings.port}: {error.strerror}; another --port may "
                         "be free") from None
    listener.set_inheritable(True)
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
