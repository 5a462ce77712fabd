"""Routers compared over HTTP: two ``mini-vllm serve`` processes with a small pool each.

The requests share prefixes. Clients keep as many requests in flight as both replicas have room
for, so the speed of the machine does not matter. The prefixes of each order are new, so nothing is cached at its start,
and each order begins with a new router.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from measure.router_servers import (
    JSON_TYPE,
    PATH,
    Production,
    Workload,
    body_of,
    num_answered,
    replicas_of,
    routed,
    settings_of,
    words_of,
)
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import load
from mini_vllm.request import Request
from mini_vllm.routing.base import Router
from mini_vllm.routing.simple import FirstBlockRouter, RoundRobinRouter
from mini_vllm.server.replicas.exchange import Address, Connections
from mini_vllm.server.replicas.front_router import FrontRouter
from mini_vllm.server.replicas.serving import make_router
from mini_vllm.server.settings import ServerSettings

#: The router's settings were chosen on other orders: the seeds below 20.
FRESH_SEEDS = range(100, 120)
#: Smaller bounds on the imbalance than the default: half of the requests for which a replica has room, and all of them.
BOUNDS = (3, 6)
OURS: dict[str, Callable[[EngineConfig], Router]] = {
    "round robin": lambda _: RoundRobinRouter(), "first block": lambda _: FirstBlockRouter(),
    "cache-aware": make_router,
    **{f"cache-aware, bound {bound}": partial(make_router, router_class=partial(FrontRouter, max_imbalance=bound))
       for bound in BOUNDS}}
POLICIES = ("round_robin", "cache_aware")


def print_router_http(model: str, executables: Mapping[str, Path | None], seeds: Iterable[int] = FRESH_SEEDS,
                      workload: Workload | None = None) -> None:
    """Compare our routers and, of the ``executables``, the production routers with a path."""
    routers: dict[str, Callable[[EngineConfig], Router | Production]] = dict(OURS)
    for kind, path in executables.items():
        if path is not None:
            for policy in POLICIES:
                production = Production(kind, path, policy)
                routers[f"{kind}-router, {policy}"] = lambda _, production=production: production  # type: ignore[misc]
    asyncio.run(_print(model, routers, list(seeds), workload or Workload()))


async def _print(model: str, routers: Mapping[str, Callable[[EngineConfig], Router | Production]], seeds: list[int],
                 work: Workload) -> None:
    settings, words = settings_of(model, work), words_of(load(model).tokenizer)
    results = {}
    async with replicas_of(settings, work) as (_, addresses):
        print(f"{model}; {work.num_replicas} servers with {work.blocks_per_replica} blocks each; {work.num_prefixes} "
              f"prefixes of {work.num_shared} tokens, {work.requests_per_prefix} requests each with {work.num_own} "
              f"tokens of their own; {work.num_replicas * work.num_seats} in flight; {len(seeds)} orders, the seeds "
              f"from {seeds[0]} to {seeds[-1]}; means, and in brackets the worst order")
        print(f"{'router':<28} {'cached tokens':>18} {'busiest replica':>18}")
        for number, (name, new_router) in enumerate(routers.items()):
            scores = [await _run(settings, addresses, new_router(settings.engine), work, seed, words, number)
                      for seed in seeds]
            cached, busiest = zip(*scores)
            results[name] = statistics.fmean(cached), statistics.fmean(busiest)
            print(f"{name:<28} {f'{results[name][0]:.1%} ({min(cached):.1%})':>18} "
                  f"{f'{results[name][1]:.1%} ({max(busiest):.1%})':>18}", flush=True)
    print(f"{'bound':<28} {f'{work.bound:.1%}':>18} {f'{1 / work.num_replicas:.1%}':>18}")
    cached_share, busiest_share = results["cache-aware"]
    print(f"In short: over HTTP, {cached_share:.1%} of prompt tokens are cached with the cache-aware router, "
          f"{results['round robin'][0]:.1%} with round robin; the cache-aware router's busiest replica serves "
          f"{busiest_share:.1%} of the requests")


async def _run(settings: ServerSettings, addresses: Mapping[str, Address], router: Router | Production, work: Workload,
               seed: int, words: Sequence[str], shift: int) -> tuple[float, float]:
    """Serve one order of the requests. Return the share of cached tokens, and the busiest replica's share."""
    requests = work.requests(seed)
    num_tokens = {"prompt_tokens": 0, "cached_tokens": 0}

    async def ask(client: Connections, request: Request) -> None:
        body = body_of(settings.models[0], request, words, shift, max_tokens=work.num_new)
        async with client.ask("POST", PATH, [JSON_TYPE], body) as answer:
            content = await answer.body()
        if answer.status != 200:
            raise RuntimeError(f"the router answers with status {answer.status}: {content[:500]!r}")
        usage = json.loads(content)["usage"]
        num_tokens["prompt_tokens"] += usage["prompt_tokens"]
        num_tokens["cached_tokens"] += usage["prompt_tokens_details"]["cached_tokens"]

    async def keep_asking(client: Connections) -> None:
        for request in requests:
            await ask(client, request)

    before = [await num_answered(address) for address in addresses.values()]
    async with routed(settings, addresses, router) as client:
        await asyncio.gather(*(keep_asking(client) for _ in range(work.num_replicas * work.num_seats)))
    after = [await num_answered(address) for address in addresses.values()]
    served = [now - was for now, was in zip(after, before)]
    return num_tokens["cached_tokens"] / num_tokens["prompt_tokens"], max(served) / sum(served)
