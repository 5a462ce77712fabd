"""Routers compared over HTTP: two ``mini-vllm serve`` processes with a small pool each, behind the front.

The workload is that of the simulation. Clients keep as many requests in flight as both replicas have room for, so the
speed of the machine does not matter. The prefixes of each order are new, so nothing is cached at its start.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable

from mini_vllm.benchmark.routing import SEEDS, Workload
from mini_vllm.engine_config import EngineConfig
from mini_vllm.request import Request
from mini_vllm.routing.base import Router
from mini_vllm.routing.simple import FirstBlockRouter, RoundRobinRouter
from mini_vllm.server.replicas.exchange import Address, Connections
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.replicas.front import make_front
from mini_vllm.server.replicas.processes import start_all
from mini_vllm.server.replicas.proxy import REPLICA_HEADER
from mini_vllm.server.replicas.serving import make_processes, make_router
from mini_vllm.server.serving import DrainingServer, address_of, listen
from mini_vllm.server.settings import ServerSettings
from mini_vllm.simulation import VOCAB_SIZE

ROUTERS: dict[str, Callable[[EngineConfig], Router]] = {
    "round robin": lambda _: RoundRobinRouter(), "first block": lambda _: FirstBlockRouter(),
    "cache-aware": make_router}
JSON_TYPE = (b"content-type", b"application/json")


def print_router_http(model: str, seeds: Iterable[int] = SEEDS, workload: Workload | None = None) -> None:
    asyncio.run(_print(model, list(seeds), workload or Workload()))


async def _print(model: str, seeds: list[int], work: Workload) -> None:
    settings = ServerSettings(models=(model,), port=0, engine=EngineConfig(
        num_blocks=work.blocks_per_replica + 1, block_size=work.block_size))
    processes = make_processes(settings, work.num_replicas, None)
    try:
        addresses = await start_all(processes)
        print(f"{model}; {work.num_replicas} servers with {work.blocks_per_replica} blocks each; {work.num_prefixes} "
              f"prefixes of {work.num_shared} tokens, {work.requests_per_prefix} requests each with {work.num_own} "
              f"tokens of their own; {work.num_replicas * work.num_seats} in flight; {len(seeds)} orders; means, and "
              "in brackets the worst order")
        print(f"{'router':<14} {'cached tokens':>18} {'busiest replica':>18}")
        results = {}
        for number, (name, new_router) in enumerate(ROUTERS.items()):
            scores = [await _run(settings, addresses, new_router(settings.engine), work, seed, number)
                      for seed in seeds]
            cached, busiest = zip(*scores)
            results[name] = statistics.fmean(cached), statistics.fmean(busiest)
            print(f"{name:<14} {f'{results[name][0]:.1%} ({min(cached):.1%})':>18} "
                  f"{f'{results[name][1]:.1%} ({max(busiest):.1%})':>18}", flush=True)
    finally:
        await asyncio.gather(*(process.stop() for process in processes))
    print(f"{'bound':<14} {f'{work.bound:.1%}':>18} {f'{1 / work.num_replicas:.1%}':>18}")
    cached_share, busiest_share = results["cache-aware"]
    print(f"In short: over HTTP, {cached_share:.1%} of prompt tokens are cached with the cache-aware router, "
          f"{results['round robin'][0]:.1%} with round robin; the cache-aware router's busiest replica serves "
          f"{busiest_share:.1%} of the requests")


async def _run(settings: ServerSettings, addresses: dict[str, Address], router: Router, work: Workload,
               seed: int, shift: int) -> tuple[float, float]:
    """Serve one order of the requests through a new front. Return the cached share, and the busiest replica's share.

    All tokens are shifted, so that no prefix of an earlier run is cached.
    """
    listener = listen(settings)
    front = DrainingServer(make_front(settings, Fleet(addresses, router)), settings)
    serving = asyncio.create_task(front.serve(sockets=[listener]))
    client = Connections(Address.parse(address_of(listener)))
    requests = iter([request for _, request in work.requests(seed)])
    num_cached, num_served = 0, Counter[bytes]()

    async def ask(request: Request) -> None:
        nonlocal num_cached
        prompt = [(token_id + shift) % VOCAB_SIZE for token_id in request.prompt_token_ids]
        body = json.dumps({"model": settings.models[0], "prompt": prompt, "temperature": 0, "max_tokens": work.num_new,
                           "ignore_eos": True}).encode()
        async with client.ask("POST", b"/v1/completions", [JSON_TYPE], body) as answer:
            content = json.loads(await answer.body())
        if answer.status != 200:
            raise RuntimeError(f"the front answers with status {answer.status}: {content}")
        num_cached += content["usage"]["prompt_tokens_details"]["cached_tokens"]
        num_served[dict(answer.headers)[REPLICA_HEADER]] += 1

    async def keep_asking() -> None:
        for request in requests:
            await ask(request)

    try:
        await asyncio.gather(*(keep_asking() for _ in range(work.num_replicas * work.num_seats)))
    finally:
        front.should_exit = True
        await serving
    num_requests = work.num_prefixes * work.requests_per_prefix
    return (num_cached / (num_requests * (work.num_shared + work.num_own)), max(num_served.values()) / num_requests)
