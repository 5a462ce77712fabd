"""The life of a front and its replicas: the replicas start first and stop last."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.resolve_name import find_model
from mini_vllm.router import CacheAwareRouter
from mini_vllm.server.replicas.exchange import Address
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.replicas.front import make_front
from mini_vllm.server.replicas.processes import ReplicaProcess, kept_alive, start_all
from mini_vllm.server.replicas.prompt_blocks import BLOCK_TOKENS
from mini_vllm.server.serving import DrainingServer, address_of, listen
from mini_vllm.server.settings import ServerSettings

#: More processes than this do not gain anything on one machine.
MAX_REPLICAS = 64


def serve_replicas(settings: ServerSettings, num_replicas: int, workers: tuple[str, ...], parts_file: Path | None,
                   say_where: Callable[[str], None]) -> None:
    """Serve through ``num_replicas`` processes and the servers at the URLs in ``workers``, until a signal arrives.

    Call ``say_where`` with the address once all processes listen. Before that, raise ValueError or OSError if the
    settings cannot be served.
    """
    others = {f"worker-{number}": Address.parse(url) for number, url in enumerate(workers)}
    if num_replicas:
        for model in settings.models:
            find_model(model)
    listener = listen(settings)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        asyncio.run(_serve(settings, listener, make_processes(settings, num_replicas, parts_file), others, say_where))
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def make_processes(settings: ServerSettings, num_replicas: int, parts_file: Path | None) -> list[ReplicaProcess]:
    """Make the processes, not yet started. They share the cores, and the limit on memory if there is one."""
    limit = settings.max_memory_bytes
    own = replace(settings, host="127.0.0.1", port=0, allowed_hosts=(), parts=None, is_replica=True,
                  memory=None if limit is None else limit // max(num_replicas, 1))
    num_threads = max(1, (os.cpu_count() or 1) // max(num_replicas, 1))
    return [ReplicaProcess(f"replica-{number}", own, parts_file, num_threads) for number in range(num_replicas)]


def make_router(engine: EngineConfig) -> CacheAwareRouter:
    """Make a router that remembers as much of each replica as its cache holds, if the number of blocks is known."""
    if engine.num_blocks is None:
        return CacheAwareRouter()
    return CacheAwareRouter(max_blocks=max(1, engine.num_blocks * engine.block_size // BLOCK_TOKENS))


async def _serve(settings: ServerSettings, listener: socket.socket, processes: list[ReplicaProcess],
                 others: dict[str, Address], say_where: Callable[[str], None]) -> None:
    try:
        fleet = Fleet({**await start_all(processes), **others}, make_router(settings.engine))
        front = make_front(settings, fleet, lambda: kept_alive(processes, fleet))
        say_where(address_of(listener))
        await DrainingServer(front, settings).serve(sockets=[listener])
    except asyncio.CancelledError:  # Ctrl-C while the processes start
        await asyncio.gather(*(process.stop() for process in processes))
        raise
