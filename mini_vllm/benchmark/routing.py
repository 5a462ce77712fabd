"""Routers compared without a model: several replicas, each a scheduler over a real ``KVCacheManager``.

The workload is requests that share a few prefixes, in random order. A replica has room for a few requests at once, so
it cannot keep all prefixes. The replicas compute in simulated time, so a run gives the same numbers on every machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request, SamplingParams
from mini_vllm.router import CacheAwareRouter
from mini_vllm.routing.base import Router
from mini_vllm.routing.simple import FirstBlockRouter, RoundRobinRouter
from mini_vllm.scheduler import Scheduler
from mini_vllm.simulation import VOCAB_SIZE, Clock, Simulation

SEEDS = range(20)


@dataclass(frozen=True)
class Workload:
    """Requests that share prefixes, and the replicas that serve them."""

    num_replicas: int = 2
    num_prefixes: int = 8
    requests_per_prefix: int = 10
    block_size: int = 32
    #: Tokens: of a prefix, of the rest of each prompt, and of each output.
    num_shared: int = 256
    num_own: int = 32
    num_new: int = 16
    #: How many of these requests a replica has blocks for.
    num_seats: int = 6
    #: The mean time between two arrivals.
    gap_s: float = 0.1

    @property
    def blocks_per_request(self) -> int:
        return -(-(self.num_shared + self.num_own + self.num_new) // self.block_size)

    @property
    def blocks_per_replica(self) -> int:
        return self.num_seats * self.blocks_per_request

    @property
    def bound(self) -> float:
        """The share of cached tokens if each prefix is computed once in all, and nothing else is shared."""
        reused = 1 - 1 / self.requests_per_prefix
        return reused * (self.num_shared // self.block_size * self.block_size) / (self.num_shared + self.num_own)

    def requests(self, seed: int) -> Iterator[tuple[float, Request]]:
        """Yield the requests with the times of their arrival."""
        rng = np.random.default_rng(seed)
        prefixes = rng.integers(1, VOCAB_SIZE, (self.num_prefixes, self.num_shared)).tolist()
        order = rng.permutation(np.repeat(np.arange(self.num_prefixes), self.requests_per_prefix)).tolist()
        arrivals = np.cumsum(rng.exponential(self.gap_s, len(order))).tolist()
        for number, (prefix, at_s) in enumerate(zip(order, arrivals)):
            prompt = prefixes[prefix] + rng.integers(1, VOCAB_SIZE, self.num_own).tolist()
            yield at_s, Request(f"r{number}", prompt, SamplingParams(max_tokens=self.num_new))


SMOKE_TEST = Workload(num_prefixes=4, requests_per_prefix=4, num_shared=64, num_own=32, num_new=4, num_seats=3)


@dataclass(frozen=True)
class Score:
    """The result of one router on one order of the requests."""

    #: The share of prompt tokens that were found in a cache.
    cached: float
    #: The share of requests that the busiest replica served.
    busiest: float
    #: The mean time from the arrival of a request to its first token.
    first_token_s: float


class Fleet:
    """Replicas behind a router, in simulated time. Each replica has its own clock."""

    def __init__(self, router: Router, workload: Workload) -> None:
        self.router, self.workload = router, workload
        self.replicas = {replica: Simulation(Scheduler(
            KVCacheManager(workload.blocks_per_replica + 1, workload.block_size), max_num_seqs=64,
            watermark=0), clock=Clock()) for replica in router.loads}
        self.requests: list[Request] = []

    def serve(self, request: Request, at_s: float) -> str:
        """Let the replicas compute until ``at_s``, then route a request that arrives now; return its replica."""
        self.run_until(at_s)
        size, tokens = self.workload.block_size, request.prompt_token_ids
        blocks = [tuple(tokens[start:start + size]) for start in range(0, len(tokens) - size + 1, size)]
        replica = self.router.route(request.request_id, blocks)
        self.replicas[replica].add(request, at_s)
        self.requests.append(request)
        return replica

    def run_until(self, end_s: float = float("inf")) -> None:
        """Let every replica compute until ``end_s``, and tell the router in order of time which requests ended."""
        while True:
            behind = [each for each in self.replicas.values() if not each.is_done and each.clock.now_s < end_s]
            if not behind:
                return
            first = min(behind, key=lambda each: each.clock.now_s)
            for request_id in first.step().finished:
                self.router.finished(request_id)

    def score(self) -> Score:
        served = [len(each.timeline.request_ids) for each in self.replicas.values()]
        waits = [each.timeline.first_token_s(name) for each in self.replicas.values()
                 for name in each.timeline.request_ids]
        return Score(sum(request.num_cached_tokens for request in self.requests)
                     / sum(request.num_prompt_tokens for request in self.requests),
                     max(served) / sum(served), statistics.fmean(waits))


def run(make_router: Callable[[Iterable[str]], Router], workload: Workload, seed: int) -> Score:
    """Serve the whole workload with a new router, and return its score."""
    fleet = Fleet(make_router([f"replica-{number}" for number in range(workload.num_replicas)]), workload)
    for at_s, request in workload.requests(seed):
        fleet.serve(request, at_s)
    fleet.run_until()
    return fleet.score()


def routers(workload: Workload) -> dict[str, Callable[[Iterable[str]], Router]]:
    """Return the routers to compare. The cache-aware one remembers as many blocks as a replica has."""
    return {"round robin": RoundRobinRouter, "first block": FirstBlockRouter,
            "cache-aware": lambda names: CacheAwareRouter(names, max_blocks=workload.blocks_per_replica)}


def print_routing(seeds: Iterable[int] = SEEDS, workload: Workload | None = None) -> None:
    seeds, work = list(seeds), workload or Workload()
    print(f"{work.num_replicas} replicas with {work.blocks_per_replica} blocks each, room for {work.num_seats} "
          f"requests; {work.num_prefixes} prefixes of {work.num_shared} tokens, {work.requests_per_prefix} requests "
          f"each with {work.num_own} tokens of their own; {len(seeds)} orders; in simulated time, on average a request "
          f"every {work.gap_s:g} s; means, and in brackets the worst order")
    print(f"{'router':<14} {'cached tokens':>18} {'busiest replica':>18} {'first token s':>14}")
    results = {}
    for name, make_router in routers(work).items():
        scores = [run(make_router, work, seed) for seed in seeds]
        cached, busiest = [each.cached for each in scores], [each.busiest for each in scores]
        results[name] = statistics.fmean(cached), statistics.fmean(busiest)
        print(f"{name:<14} {f'{results[name][0]:.1%} ({min(cached):.1%})':>18} "
              f"{f'{results[name][1]:.1%} ({max(busiest):.1%})':>18} "
              f"{statistics.fmean(each.first_token_s for each in scores):>14.3f}")
    print(f"{'bound':<14} {f'{work.bound:.1%}':>18} {f'{1 / work.num_replicas:.1%}':>18}")
    cached_share, busiest_share = results["cache-aware"]
    print(f"In short: {cached_share:.1%} of prompt tokens are cached with the cache-aware router, "
          f"{results['round robin'][0]:.1%} with round robin; the bound is {work.bound:.1%}. The cache-aware router's "
          f"busiest replica serves {busiest_share:.1%} of the requests")
