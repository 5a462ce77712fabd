"""Lab 6.3: the arena, a simulated fleet of replicas behind a router.

    a request arrives ─▶ route(request_id, blocks) ─▶ it joins the scheduler of that replica
    a request ends    ─▶ finished(request_id)
    a replica leaves  ─▶ remove_replica(replica) returns its requests, which are routed again
    it comes back     ─▶ add_replica(replica): its cache is empty

Each replica is the engine's own ``Scheduler`` over a real ``KVCacheManager``; only the model is missing. Time is
simulated: a step takes 10 ms and 1 ms per token that it computes. So a run is the same on every machine.
"""

from __future__ import annotations

import functools
import math
import reprlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request, SamplingParams
from mini_vllm.scheduler import Scheduler, SchedulerOutput
from mini_vllm.simulation import VOCAB_SIZE, Clock, CostModel, FakeModel, Simulation

BLOCK_SIZE = 32
#: The cost of a step, and the largest number of tokens that it computes.
COST, MAX_NUM_BATCHED_TOKENS = CostModel(), 1024


class Arrival(NamedTuple):
    """A request of a trace. It is answered after ``num_new`` output tokens."""

    at_s: float
    token_ids: tuple[int, ...]
    num_new: int


class Outage(NamedTuple):
    """A replica that leaves and comes back with an empty cache."""

    replica: str
    from_s: float
    to_s: float


@dataclass(frozen=True)
class Trace:
    """Requests, and the replicas that serve them."""

    name: str
    num_replicas: int
    #: The blocks of each replica, of ``BLOCK_SIZE`` tokens each.
    num_blocks: int
    arrivals: tuple[Arrival, ...]
    outages: tuple[Outage, ...] = ()

    @property
    def replicas(self) -> list[str]:
        return [f"replica-{number}" for number in range(self.num_replicas)]


class Served(NamedTuple):
    """How one request was served."""

    replica: str
    num_prompt_tokens: int
    #: The tokens of the prompt that were found in the replica's cache.
    num_cached_tokens: int
    #: The time from the arrival to the first token.
    first_token_s: float


class Result(NamedTuple):
    """How a router served a trace."""

    #: The share of prompt tokens that were found in a cache.
    cached: float
    #: The share of requests that the busiest replica served.
    busiest: float
    #: The mean time from the arrival of a request to its first token.
    first_token_s: float


class Router(Protocol):
    """What the arena calls; the lab's ``CacheAwareRouter`` documents the contract."""

    def route(self, request_id: str, blocks: Sequence[int]) -> str: ...
    def finished(self, request_id: str) -> None: ...
    def add_replica(self, replica: str) -> None: ...
    def remove_replica(self, replica: str) -> list[str]: ...


class MakeRouter(Protocol):
    """The class of a router, or a function that makes one."""

    def __call__(self, replicas: Iterable[str] = (), *, max_blocks: int) -> Router: ...


class BadRouter(Exception):
    """A router returned something that is not one of the replicas, or lost requests."""


class _Model(FakeModel):
    """Returns tokens that depend on little; the schedule is all that matters here."""

    def step(self, output: SchedulerOutput, kv_cache: KVCacheManager) -> dict[str, int]:
        return {request.request_id: next_token(request.all_token_ids[-1], request.num_tokens)
                for request in output.requests if request.num_computed_tokens == request.num_tokens}


def next_token(last: int, num_tokens: int) -> int:
    """Return the model's token after ``num_tokens`` tokens, of which ``last`` is the last one."""
    return (31 * last + 7 * num_tokens + 1) % VOCAB_SIZE


def answer(token_ids: Sequence[int], num_new: int) -> list[int]:
    """Return the output of a request: a later turn of a conversation repeats it."""
    tokens = list(token_ids)
    for _ in range(num_new):
        tokens.append(next_token(tokens[-1], len(tokens)))
    return tokens[len(token_ids):]


class _BlockNumbers:
    """Gives every block of tokens a number: equal blocks have equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    def of(self, token_ids: Sequence[int]) -> list[int]:
        """Return the numbers of all full blocks."""
        return [self._numbers.setdefault(tuple(token_ids[start:start + BLOCK_SIZE]), len(self._numbers))
                for start in range(0, len(token_ids) - BLOCK_SIZE + 1, BLOCK_SIZE)]


class _StepEnd(NamedTuple):
    """What a step gave: known when the step ends, and lost if its replica leaves before."""

    at_s: float
    replica: str
    sampled: list[str]
    finished: list[str]


class _Fleet:
    """The replicas that are up now, the requests, and the router between them."""

    def __init__(self, trace: Trace, router: Router) -> None:
        self.trace, self.router = trace, router
        self.replicas: dict[str, Simulation] = {}
        self.blocks = _BlockNumbers()
        self.requests: dict[str, Request] = {}
        #: Request in flight → its replica, in the order of the calls of ``route``.
        self.running: dict[str, str] = {}
        self.first_token_at_s: dict[str, float] = {}
        self.served_by: dict[str, str] = {}
        self.step_ends: list[_StepEnd] = []
        for replica in trace.replicas:
            self.start(replica, 0.0)

    def start(self, replica: str, now_s: float) -> None:
        clock = Clock()
        clock.now_s = now_s
        scheduler = Scheduler(KVCacheManager(self.trace.num_blocks + 1, BLOCK_SIZE), max_num_seqs=64,
                              max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS, watermark=0)
        self.replicas[replica] = Simulation(scheduler, COST, clock)
        self.replicas[replica].model = _Model(BLOCK_SIZE)

    def route(self, name: str, now_s: float) -> None:
        arrival = self.trace.arrivals[int(name[1:])]
        replica = self.router.route(name, self.blocks.of(arrival.token_ids))
        if type(replica) is not str or replica not in self.replicas:
            raise BadRouter(f"trace {self.trace.name!r}: route({name!r}, …) returned {shown(replica)}, must be one of "
                            f"{', '.join(self.replicas)}")
        self.requests[name] = Request(name, arrival.token_ids, SamplingParams(max_tokens=arrival.num_new))
        self.replicas[replica].add(self.requests[name], now_s)
        self.running[name] = replica

    def leave(self, replica: str, now_s: float) -> None:
        del self.replicas[replica]
        self.step_ends = [each for each in self.step_ends if each.replica != replica]
        orphans = [name for name, where in self.running.items() if where == replica]
        returned = self.router.remove_replica(replica)
        if not isinstance(returned, list) or returned != orphans:
            raise BadRouter(f"trace {self.trace.name!r}: remove_replica({replica!r}) returned {shown(returned)}, must "
                            f"be {orphans}, the requests in flight there in the order in which they were routed")
        for name in orphans:
            del self.running[name]
        for name in orphans:
            self.route(name, now_s)

    def come_back(self, replica: str, now_s: float) -> None:
        self.start(replica, now_s)
        self.router.add_replica(replica)

    def run_until(self, end_s: float) -> None:
        """Let every replica begin all steps that it can before ``end_s``, and tell the router what ended by then."""
        while True:
            behind = {name: each for name, each in self.replicas.items()
                      if not each.is_done and each.clock.now_s < end_s}
            if not behind:
                break
            name = min(behind, key=lambda replica: behind[replica].clock.now_s)
            step = behind[name].step()
            self.step_ends.append(_StepEnd(step.end_s, name, step.sampled, step.finished))
        self.step_ends.sort(key=lambda each: each.at_s)
        while self.step_ends and self.step_ends[0].at_s <= end_s:
            self._tell(self.step_ends.pop(0))

    def _tell(self, step: _StepEnd) -> None:
        for name in step.sampled:
            self.first_token_at_s.setdefault(name, step.at_s)
        for name in step.finished:
            self.served_by[name] = step.replica
            del self.running[name]
            self.router.finished(name)

    def served(self) -> list[Served]:
        return [Served(self.served_by[name], request.num_prompt_tokens, request.num_cached_tokens,
                       self.first_token_at_s[name] - arrival.at_s)
                for (name, request), arrival in zip(sorted(self.requests.items(), key=lambda item: int(item[0][1:])),
                                                    self.trace.arrivals)]


def serve(trace: Trace, make_router: MakeRouter) -> Result:
    """Serve a trace with a new router. Raise BadRouter if it returns what it must not."""
    requests = play(trace, make_router)
    num_served = Counter(request.replica for request in requests)
    return Result(sum(request.num_cached_tokens for request in requests)
                  / sum(request.num_prompt_tokens for request in requests),
                  max(num_served.values()) / len(requests),
                  statistics.fmean(request.first_token_s for request in requests))


def play(trace: Trace, make_router: MakeRouter) -> list[Served]:
    """Serve a trace with a new router, and return how each request was served, in the order of their arrival.

    Raise BadRouter if the router returns what it must not.
    """
    fleet = _Fleet(trace, make_router(trace.replicas, max_blocks=trace.num_blocks))
    events: list[tuple[float, Callable[[float], None]]] = []
    for number, arrival in enumerate(trace.arrivals):
        events.append((arrival.at_s, functools.partial(fleet.route, f"r{number}")))
    for outage in trace.outages:
        events.append((outage.from_s, functools.partial(fleet.leave, outage.replica)))
        events.append((outage.to_s, functools.partial(fleet.come_back, outage.replica)))
    for at_s, happen in sorted(events, key=lambda event: event[0]):
        fleet.run_until(at_s)
        happen(at_s)
    fleet.run_until(math.inf)
    return fleet.served()


def shown(value: object) -> str:
    """Return a value for an error message, cut short."""
    return reprlib.repr(value)
