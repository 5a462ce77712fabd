"""A server from its start to its end.

SIGTERM, or Ctrl-C, drains: nobody new is let in, who is being answered gets the whole answer, for at most ``drain_s``
seconds. Who is not done by then is told so, and cut off. A second Ctrl-C does not wait.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from mini_vllm.fast.gc_freeze import leave_what_is_there_alone
from mini_vllm.models.resolve_name import find_model
from mini_vllm.server.access.connections import NUM_ACCEPTED_AT_ONCE, BoundedConnection, once_in_a_while
from mini_vllm.server.app import make_app
from mini_vllm.server.settings import ServerSettings

log = logging.getLogger("mini_vllm.server")

#: Calls that wait to be taken.
BACKLOG = 2048
#: How long whoever is cut off may take to read that.
FAREWELL_S = 1.0
#: How often it is looked who reads its answer, in ticks of uvicorn's: 5 s.
LOOK_EVERY = 50


class DrainingServer(uvicorn.Server):
    """uvicorn, and the application hears of the end before connections are waited for.

    Requests are cut off here, not by uvicorn: it would answer them with a 500 and fill the log with lines of its own.
    """

    def __init__(self, app: FastAPI, settings: ServerSettings) -> None:
        # No access log: a line for every request costs time, and paths are all that it could tell. By the time that
        # uvicorn is given, nobody is left to wait for.
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
            listener.listen(BACKLOG)  # asyncio has made it as short as the number that it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        limit = asyncio.create_task(self._limit_the_wait())
        await super().shutdown(sockets)
        limit.cancel()
        if self.force_exit:  # uvicorn has waited for nothing, and would tear down what still runs
            await self._cut_off("told to stop at once")
            await asyncio.wait({asyncio.create_task(self.lifespan.shutdown())}, timeout=FAREWELL_S)

    async def _limit_the_wait(self) -> None:
        await asyncio.sleep(self._drain_s)
        await self._cut_off(f"not answered within {self._drain_s:g} s (--drain)")
        await asyncio.sleep(FAREWELL_S)
        for connection in list(self.server_state.connections):  # its client does not even read
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
    """Until a signal comes. ``say_where`` is told the address, once it listens. Raises ValueError or OSError for what
    cannot be served, before that."""
    for model in settings.models:
        find_model(model)
    app = make_app(settings)
    listener = listen(settings)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    leave_what_is_there_alone()
    try:
        say_where(address_of(listener))
        DrainingServer(app, settings).run(sockets=[listener])
    except KeyboardInterrupt:  # before it serves, or after: uvicorn raises the signal again when all is done
        pass


def listen(settings: ServerSettings) -> socket.socket:
    """A socket on which clients may call from now on: who does, waits. Raises ValueError, which names the address, if
    somebody else has it."""
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
