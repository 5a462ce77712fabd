"""Routers compared over HTTP: two ``mini-vllm serve`` processes with a small pool each, and a router in front.

The router is ours in a front, or sglang-router or vllm-router, alone or behind our front (``serve --router``).

By default clients keep as many requests in flight as both servers have room for, so the speed of the machine does not
matter, and the shares of cached tokens are counted. The prefixes of each order are new, so nothing is cached at its
start, and each order begins with a new router.

With ``--kill``, clients ask for streams and whole answers in turns, and a server is killed with SIGKILL when a third of
the requests are finished. A request has not started while its client has received nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import h11
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import DEFAULT_MODEL, load
from mini_vllm.router import FirstBlockRouter, RoundRobinRouter, Router
from mini_vllm.server.replicas.exchange import Address, Connections, ReplicaError
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.replicas.front import make_front
from mini_vllm.server.replicas.front_router import FrontRouter
from mini_vllm.server.replicas.processes import start_all
from mini_vllm.server.replicas.production import OPTIONS, RouterFleet, RouterProcess, find_router
from mini_vllm.server.replicas.serving import make_processes, make_router
from mini_vllm.server.serving import DrainingServer, address_of, listen
from mini_vllm.server.settings import ServerSettings

#: The router's settings were chosen on other orders: the seeds below 20.
FRESH_SEEDS = range(100, 120)
#: Smaller bounds on the imbalance than the default: half of the requests for which a replica has room, and all of them.
BOUNDS = (3, 6)
POLICIES = ("round_robin", "cache_aware")
NUM_REPLICAS, BLOCK_SIZE = 2, 32
NUM_CLIENTS, NUM_ROUNDS = 24, 3
#: A request without an end after this time hangs.
LIMIT_S = 60.0
JSON_TYPE, PATH = (b"content-type", b"application/json"), b"/v1/completions"


@dataclass(frozen=True)
class Workload:
    """Requests that share prefixes, in random order."""

    num_prefixes: int = 8
    requests_per_prefix: int = 10
    #: Tokens: of a prefix, of the rest of each prompt, and of each output.
    num_shared: int = 256
    num_own: int = 32
    num_new: int = 16
    #: How many of these requests a replica has blocks for.
    num_seats: int = 6

    def __str__(self) -> str:
        return (f"{self.num_prefixes} prefixes of {self.num_shared} tokens, {self.requests_per_prefix} requests each "
                f"with {self.num_own} tokens of their own")

    @property
    def blocks_per_replica(self) -> int:
        return self.num_seats * -(-(self.num_shared + self.num_own + self.num_new) // BLOCK_SIZE)

    def bodies(self, words: Sequence[str], seed: int, shift: int, is_stream: Callable[[int], bool]
               ) -> list[tuple[bool, bytes]]:
        """Return the requests in the order of ``seed``. ``shift`` keeps runs from finding each other's prefixes."""
        rng = np.random.default_rng(seed)
        prefixes = rng.integers(0, len(words), (self.num_prefixes, self.num_shared))
        made = []
        for number, prefix in enumerate(rng.permutation(np.repeat(np.arange(self.num_prefixes),
                                                                  self.requests_per_prefix))):
            ids = np.concatenate([prefixes[prefix], rng.integers(0, len(words), self.num_own)])
            prompt = "".join(words[(token + shift) % len(words)] for token in ids)
            body = {"model": DEFAULT_MODEL, "prompt": prompt, "temperature": 0, "ignore_eos": True,
                    "max_tokens": self.num_new, "stream": is_stream(number)}
            made.append((is_stream(number), json.dumps(body).encode()))
        return made


SMOKE_TEST = Workload(num_prefixes=4, requests_per_prefix=4, num_shared=64, num_new=4, num_seats=3)


@dataclass(frozen=True)
class Production:
    """A production router, alone or behind our front as with ``serve --router``."""

    kind: str
    path: Path
    policy: str = "cache_aware"
    is_behind_front: bool = False

    def process(self, addresses: Mapping[str, Address]) -> RouterProcess:
        return RouterProcess(find_router(self.kind, self.path), addresses.values(), (*OPTIONS, "--policy", self.policy))


def run(arguments: argparse.Namespace) -> None:
    work = SMOKE_TEST if arguments.quick else Workload(num_new=64) if arguments.kill else Workload()
    settings = ServerSettings(models=(DEFAULT_MODEL,), port=0, engine=EngineConfig(
        num_blocks=work.blocks_per_replica + 1, block_size=BLOCK_SIZE))
    executables = {"sglang": arguments.sglang_router, "vllm": arguments.vllm_router}
    alone = [Production(kind, path) for kind, path in executables.items() if path is not None]
    # Texts of which each is one token in any order, a space and letters: sglang-router accepts no token ids.
    tokenizer = load(DEFAULT_MODEL).tokenizer
    texts = (tokenizer.decode([token_id]) for token_id in range(tokenizer.vocab_size))
    words = [text for text in texts if text[:1] == " " and text[1:].isalpha() and text.isascii()]
    if arguments.kill:
        asyncio.run(_print_kill(settings, words, work, alone, 1 if arguments.quick else NUM_ROUNDS))
    else:
        asyncio.run(_print_http(settings, words, work, alone, FRESH_SEEDS[:1] if arguments.quick else FRESH_SEEDS))


@asynccontextmanager
async def _routed(settings: ServerSettings, addresses: Mapping[str, Address], router: Router | Production
                  ) -> AsyncIterator[Connections]:
    """Start a router in front of the replicas, and yield its connections."""
    process = router.process(addresses) if isinstance(router, Production) else None
    try:
        started = {} if process is None else await start_all([process])
        if isinstance(router, Production) and not router.is_behind_front:
            yield Connections(*started.values())
            return
        fleet = Fleet(addresses, router) if isinstance(router, Router) else RouterFleet(started)
        listener = listen(settings)
        replicas = None if process is None else Fleet(addresses)
        front = DrainingServer(make_front(settings, fleet, nullcontext, replicas), settings)
        serving = asyncio.create_task(front.serve(sockets=[listener]))
        try:
            yield Connections(Address.parse(address_of(listener)))
        finally:
            front.should_exit = True
            await serving
    finally:
        if process is not None:
            await process.stop()


# ---- cached tokens


async def _print_http(settings: ServerSettings, words: Sequence[str], work: Workload, alone: Sequence[Production],
                      seeds: Sequence[int]) -> None:
    routers: dict[str, Callable[[], Router | Production]] = {
        "round robin": RoundRobinRouter, "first block": FirstBlockRouter,
        "cache-aware": partial(make_router, settings.engine),
        **{f"cache-aware, bound {bound}": partial(make_router, settings.engine, router_class=partial(
            FrontRouter, max_imbalance=bound)) for bound in BOUNDS},
        **{f"{one.kind}-router, {policy}": partial(replace, one, policy=policy)
           for one in alone for policy in POLICIES}}
    processes = make_processes(settings, NUM_REPLICAS, None, keeps_ports=True)
    try:
        addresses = await start_all(processes)
        print(f"{DEFAULT_MODEL}; {NUM_REPLICAS} servers with {work.blocks_per_replica} blocks each; {work}; "
              f"{NUM_REPLICAS * work.num_seats} in flight; {len(seeds)} orders, the seeds from {seeds[0]} to "
              f"{seeds[-1]}; means, and in brackets the worst order")
        print(f"{'router':<28} {'cached tokens':>18} {'busiest replica':>18}")
        means = {}
        for number, (name, new_router) in enumerate(routers.items()):
            cached, busiest = zip(*[await _serve_order(
                settings, addresses, new_router(), work,
                work.bodies(words, seed, number, lambda _: False)) for seed in seeds])
            means[name] = statistics.fmean(cached)
            print(f"{name:<28} {f'{means[name]:.1%} ({min(cached):.1%})':>18} "
                  f"{f'{statistics.fmean(busiest):.1%} ({max(busiest):.1%})':>18}", flush=True)
    finally:
        await asyncio.gather(*(process.stop() for process in processes))
    # each prefix is computed once in all, and nothing else is shared
    bound = ((1 - 1 / work.requests_per_prefix) * (work.num_shared // BLOCK_SIZE * BLOCK_SIZE)
             / (work.num_shared + work.num_own))
    print(f"{'bound':<28} {f'{bound:.1%}':>18} {f'{1 / NUM_REPLICAS:.1%}':>18}")
    print(f"In short: over HTTP, {means['cache-aware']:.1%} of prompt tokens are cached with the cache-aware router, "
          f"{means['round robin']:.1%} with round robin")


async def _serve_order(settings: ServerSettings, addresses: Mapping[str, Address], router: Router | Production,
                       work: Workload, bodies: Sequence[tuple[bool, bytes]]) -> tuple[float, float]:
    """Serve one order of the requests. Return the share of cached tokens, and the busiest replica's share."""
    todo, usages = iter(bodies), []

    async def keep_asking(client: Connections) -> None:
        for _, body in todo:
            async with client.ask("POST", PATH, [JSON_TYPE], body) as answer:
                content = await answer.body()
            if answer.status != 200:
                raise RuntimeError(f"the router answers with status {answer.status}: {content[:500]!r}")
            usages.append(json.loads(content)["usage"])

    before = [await _num_answered(address) for address in addresses.values()]
    async with _routed(settings, addresses, router) as client:
        await asyncio.gather(*(keep_asking(client) for _ in range(NUM_REPLICAS * work.num_seats)))
    served = [await _num_answered(address) - was for address, was in zip(addresses.values(), before)]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return cached / sum(usage["prompt_tokens"] for usage in usages), max(served) / sum(served)


async def _num_answered(address: Address) -> int:
    """Return the number of requests that a replica has answered, according to its metrics."""
    async with Connections(address).ask("GET", b"/metrics") as answer:
        page = (await answer.body()).decode()
    return sum(int(sample.value) for family in text_string_to_metric_families(page) for sample in family.samples
               if sample.name == "mini_vllm_requests_total" and sample.labels["outcome"] == "answered")


# ---- a kill


@dataclass
class Outcome:
    """How a request ended: answered, error, cut off (without an error that a client could read) or hung."""

    end: str = "hung"
    has_started: bool = False


async def _print_kill(settings: ServerSettings, words: Sequence[str], work: Workload, alone: Sequence[Production],
                      num_rounds: int) -> None:
    routers: dict[str, Callable[[], Router | Production]] = {"cache-aware": partial(make_router, settings.engine)}
    for one in alone:
        routers[f"{one.kind}-router"] = partial(replace, one)
        routers[f"serve --router {one.kind}"] = partial(replace, one, is_behind_front=True)
    print(f"{DEFAULT_MODEL}; 2 servers, of which one is killed after a third of "
          f"{work.num_prefixes * work.requests_per_prefix} requests, half of them streams; {NUM_CLIENTS} clients; "
          f"{num_rounds} rounds; hung: not ended within {LIMIT_S:.0f} s")
    print(f"{'router':<22}  {'answered':>8}  {'error':>5}  {'cut off':>7}  {'hung':>4}  {'lost before start':>17}")
    processes = make_processes(settings, NUM_REPLICAS, None, keeps_ports=True)
    try:
        addresses = await start_all(processes)
        for number, (name, new_router) in enumerate(routers.items()):
            outcomes: list[Outcome] = []
            for seed in range(num_rounds):
                bodies = work.bodies(words, seed, number, lambda index: index % 2 == 0)
                async with _routed(settings, addresses, new_router()) as client:
                    outcomes += await _serve_and_kill(client, bodies, processes[0].pid)
                await processes[0].ended()
                await processes[0].start()
            ends = Counter(outcome.end for outcome in outcomes)
            num_lost = sum(outcome.end != "answered" and not outcome.has_started for outcome in outcomes)
            print(f"{name:<22}  {ends['answered']:>8}  {ends['error']:>5}  {ends['cut off']:>7}  {ends['hung']:>4}  "
                  f"{num_lost:>17}", flush=True)
    finally:
        await asyncio.gather(*(process.stop() for process in processes))
    print(f"In short: a replica is killed {num_rounds} times behind {len(routers)} routers")


async def _serve_and_kill(client: Connections, bodies: Sequence[tuple[bool, bytes]], victim: int) -> list[Outcome]:
    """Send all requests, and kill the process ``victim`` when a third of them are finished."""
    todo, outcomes = iter(bodies), list[Outcome]()

    async def keep_asking() -> None:
        for is_stream, body in todo:
            outcome = Outcome()
            try:
                await asyncio.wait_for(_ask(client, body, is_stream, outcome), LIMIT_S)
            except asyncio.TimeoutError:
                pass
            outcomes.append(outcome)
            if len(outcomes) == len(bodies) // 3:
                os.kill(victim, signal.SIGKILL)

    await asyncio.gather(*(keep_asking() for _ in range(NUM_CLIENTS)))
    return outcomes


async def _ask(client: Connections, body: bytes, is_stream: bool, outcome: Outcome) -> None:
    """Send a request, and note in ``outcome`` how it goes on."""
    received = b""
    try:
        async with client.ask("POST", PATH, [JSON_TYPE], body) as answer:
            outcome.has_started = answer.status == 200  # an error is an answer, but not to this request
            async for part in answer.parts():
                received += part
    except (ReplicaError, h11.RemoteProtocolError):
        outcome.end = "cut off"
        return
    if answer.status != 200 or b'"error"' in received:
        outcome.end = "error"
    else:
        outcome.end = "answered" if not is_stream or received.endswith(b"data: [DONE]\n\n") else "cut off"
