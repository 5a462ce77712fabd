"""The life of a front and its replicas: the replicas start first and stop last."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.models.catalogue import find_model
from mini_vllm.router import Router
from mini_vllm.server.replicas.exchange import Address
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.replicas.front import make_front
from mini_vllm.server.replicas.front_router import FrontRouter
from mini_vllm.server.replicas.processes import ReplicaProcess, kept_alive, start_all
from mini_vllm.server.replicas.production import RouterFleet, RouterProcess, free_ports
from mini_vllm.server.replicas.prompt_blocks import BLOCK_TOKENS
from mini_vllm.server.serving import DrainingServer, address_of, listen
from mini_vllm.server.settings import ServerSettings

#: More processes than this do not gain anything on one machine.
MAX_REPLICAS = 64


def serve_replicas(settings: ServerSettings, num_replicas: int, workers: tuple[str, ...],
                   make_parts: Callable[[], EngineParts] | None, say_where: Callable[[str], None],
                   router: list[str] | None = None,
                   router_class: Callable[..., Router] = FrontRouter) -> None:
    """Serve through ``num_replicas`` processes and the servers at the URLs in ``workers``, until a signal arrives.

    A router of ``router_class`` chooses the replica for each request. With ``router``, the command of a production
    router, that one does. Call ``say_where`` with the address once all processes listen. Before that, raise ValueError
    or OSError if the settings cannot be served.
    """
    others = {f"worker-{number}": Address.parse(url) for number, url in enumerate(workers)}
    if num_replicas:
        for model in settings.models:
            find_model(model)
    listener = listen(settings)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        processes = make_processes(settings, num_replicas, make_parts, keeps_ports=router is not None)
        asyncio.run(_serve(settings, listener, processes, others, say_where, router,
                           make_router(settings.engine, router_class)))
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def make_processes(settings: ServerSettings, num_replicas: int, make_parts: Callable[[], EngineParts] | None,
                   keeps_ports: bool = False) -> list[ReplicaProcess]:
    """Make the processes, not yet started. They share the cores, and the limit on memory if there is one.

    If ``keeps_ports``, a process that is started again has the same port: a production router looks for it there.
    """
    limit = settings.max_memory_bytes
    own = replace(settings, host="127.0.0.1", port=0, allowed_hosts=(), parts=None, is_replica=True,
                  memory=None if limit is None else limit // max(num_replicas, 1))
    num_threads = max(1, (os.cpu_count() or 1) // max(num_replicas, 1))
    ports = free_ports(num_replicas) if keeps_ports else [0] * num_replicas
    return [ReplicaProcess(f"replica-{number}", replace(own, port=port), make_parts, num_threads)
            for number, port in enumerate(ports)]


def make_router(engine: EngineConfig, router_class: Callable[..., Router] = FrontRouter) -> Router:
    """Make a router that remembers as much of each replica as its cache holds, if the number of blocks is known."""
    if engine.num_blocks is None:
        return router_class()
    return router_class(max_blocks=max(1, engine.num_blocks * engine.block_size // BLOCK_TOKENS))


async def _serve(settings: ServerSettings, listener: socket.socket, processes: list[ReplicaProcess],
                 others: dict[str, Address], say_where: Callable[[str], None], router: list[str] | None,
                 own_router: Router) -> None:
    routers: list[RouterProcess] = []
    try:
        addresses = {**await start_all(processes), **others}
        fleet = replicas = Fleet(addresses, own_router)
        if router is not None:
            routers = [RouterProcess(router, addresses.values())]
            fleet = RouterFleet(await start_all(routers))

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            async with kept_alive(processes, replicas), kept_alive(routers, fleet):
                yield

        front = make_front(settings, fleet, running, None if fleet is replicas else replicas)
        say_where(address_of(listener))
        await DrainingServer(front, settings).serve(sockets=[listener])
    except BaseException:  # Ctrl-C while the processes start, or a router that does not start
        await asyncio.gather(*(process.stop() for process in (*routers, *processes)))
        raise
