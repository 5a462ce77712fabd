"""A server from its start to its end.

SIGTERM, or Ctrl-C, drains: nobody new is let in, who is being answered gets the whole answer, for at most ``drain_s``
seconds. A second Ctrl-C does not wait.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from mini_vllm.models.find import find_model
from mini_vllm.server.app import make_app
from mini_vllm.server.settings import ServerSettings

#: Calls that wait to be taken.
BACKLOG = 2048


class DrainingServer(uvicorn.Server):
    """uvicorn, and the application hears of the end before connections are waited for."""

    def __init__(self, app: FastAPI, settings: ServerSettings) -> None:
        # No access log: a line for every request costs time, and paths are all that it could tell.
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", server_header=False,
                                        timeout_graceful_shutdown=max(1, round(settings.drain_s))))
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._app.state.draining.set()


def serve(settings: ServerSettings, say_where: Callable[[str], None]) -> None:
    """Until a signal comes. ``say_where`` is told the address, once it listens. Raises ValueError or OSError for what
    cannot be served, before that."""
    for model in settings.models:
        find_model(model)
    app = make_app(settings)
    listener = listen(settings)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    say_where(address_of(listener))
    try:
        DrainingServer(app, settings).run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises the signal again when all is done
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
