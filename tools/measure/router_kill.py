"""A replica is killed in the middle of a run: how each router's clients fare.

The clients ask for streams and whole answers in turns. A third of the requests are finished when replica-0 is killed
with SIGKILL; it is not started again in that round. A request has not started while its client has received nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import h11

from measure.router_servers import (
    JSON_TYPE,
    PATH,
    Production,
    Workload,
    body_of,
    replicas_of,
    routed,
    settings_of,
    words_of,
)
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import load
from mini_vllm.request import Request
from mini_vllm.routing.base import Router
from mini_vllm.server.replicas.exchange import Connections, ReplicaError
from mini_vllm.server.replicas.serving import make_router

WORKLOAD = Workload(num_new=64)
NUM_CLIENTS, NUM_ROUNDS = 24, 3
#: A request without an end after this time hangs.
LIMIT_S = 60.0


@dataclass
class Outcome:
    """How a request ended: answered, error, cut off (without an error that a client could read) or hung."""

    end: str = "hung"
    has_started: bool = False


def print_router_kill(model: str, executables: Mapping[str, Path | None], num_rounds: int = NUM_ROUNDS,
                      workload: Workload = WORKLOAD) -> None:
    """Kill a replica behind our router and, of the ``executables``, behind the production routers with a path."""
    routers: dict[str, Callable[[EngineConfig], Router | Production]] = {"cache-aware": make_router}
    for kind, path in executables.items():
        if path is not None:
            alone = Production(kind, path)
            for name, production in ((f"{kind}-router", alone),
                                     (f"serve --router {kind}", replace(alone, is_behind_front=True))):
                routers[name] = lambda _, production=production: production  # type: ignore[misc]
    asyncio.run(_print(model, routers, num_rounds, workload))


async def _print(model: str, routers: Mapping[str, Callable[[EngineConfig], Router | Production]], num_rounds: int,
                 work: Workload) -> None:
    settings, words = settings_of(model, work), words_of(load(model).tokenizer)
    results = {}
    async with replicas_of(settings, work) as (processes, addresses):
        print(f"{model}; 2 servers, of which one is killed after a third of {_num_requests(work)} requests, half of "
              f"them streams; {NUM_CLIENTS} clients; {num_rounds} rounds; hung: not ended within {LIMIT_S:.0f} s")
        print(f"{'router':<22}  {'answered':>8}  {'error':>5}  {'cut off':>7}  {'hung':>4}  {'lost before start':>17}")
        for number, (name, new_router) in enumerate(routers.items()):
            outcomes: list[Outcome] = []
            for seed in range(num_rounds):
                async with routed(settings, addresses, new_router(settings.engine)) as client:
                    bodies = [(is_stream, body_of(model, request, words, number, max_tokens=work.num_new,
                                                  stream=is_stream))
                              for request, is_stream in _streams_and_answers(work, seed)]
                    outcomes += await _run(client, bodies, processes[0].pid)
                await processes[0].ended()
                await processes[0].start()
            ends = Counter(outcome.end for outcome in outcomes)
            num_lost = sum(outcome.end != "answered" and not outcome.has_started for outcome in outcomes)
            results[name] = ends, num_lost
            print(f"{name:<22}  {ends['answered']:>8}  {ends['error']:>5}  {ends['cut off']:>7}  {ends['hung']:>4}  "
                  f"{num_lost:>17}", flush=True)
    ends, num_lost = results["cache-aware"]
    print(f"In short: a replica is killed {num_rounds} times; with the cache-aware router {ends['answered']} of "
          f"{ends.total()} requests are answered, {ends['error']} streams end with an error, {ends['cut off']} are cut "
          f"off, {ends['hung']} hang, and {num_lost} are lost before they start")


def _num_requests(work: Workload) -> int:
    return work.num_prefixes * work.requests_per_prefix


def _streams_and_answers(work: Workload, seed: int) -> list[tuple[Request, bool]]:
    return [(request, number % 2 == 0) for number, request in enumerate(work.requests(seed))]


async def _run(client: Connections, bodies: list[tuple[bool, bytes]], victim: int) -> list[Outcome]:
    """Send all requests, and kill the process ``victim`` when a third of them are finished."""
    todo, outcomes = iter(bodies), list[Outcome]()
    kill_at = len(bodies) // 3

    async def keep_asking() -> None:
        for is_stream, body in todo:
            outcome = Outcome()
            try:
                await asyncio.wait_for(_ask(client, body, is_stream, outcome), LIMIT_S)
            except asyncio.TimeoutError:
                pass
            outcomes.append(outcome)
            if len(outcomes) == kill_at:
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
