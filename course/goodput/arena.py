"""Lab 4.4: the arena, a simulated machine on which a scheduling policy serves a trace of requests.

    requests arrive ─▶ plan(now_us, requests) ─▶ the step is checked and run ─▶ the clock advances by its cost ─▶ again

A policy is called once per step. It sees the requests that have arrived and not ended, and nothing else: no future
request, and no output length. All times are whole microseconds of a simulated clock, so a run is exact, and the same on
every machine. Nothing is cached: a preempted request computes all its tokens again.
"""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

#: A run of more steps than this, per token of the trace, preempts requests over and over again.
MAX_STEPS_PER_TOKEN = 4
#: Writes the values of a wrong plan in error messages. ``repr`` of a list that contains others might never end.
_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = 20
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 100


class Limits(NamedTuple):
    """The machine. A step takes ``step_us``, plus ``token_us`` per token that it computes, plus one microsecond per
    ``attended_per_us`` tokens to which these attend, rounded up."""

    #: The number of blocks in the pool, and the number of tokens per block.
    num_blocks: int
    block_size: int
    #: The largest number of requests that hold blocks.
    max_num_seqs: int
    #: The largest number of tokens that a step computes.
    max_num_batched_tokens: int
    step_us: int
    token_us: int
    attended_per_us: int
    #: No request is admitted while another one waits that arrived more than this much earlier.
    max_overtaking_us: int


class RequestState(NamedTuple):
    """What a policy knows about a request that has arrived and not ended."""

    request_id: int
    arrival_us: int
    num_prompt_tokens: int
    #: Prompt and output so far.
    num_tokens: int
    num_computed_tokens: int
    #: The blocks that the request holds. It is running if it holds any; otherwise it waits.
    num_blocks: int
    #: The request ends after at most this number of output tokens, and usually after fewer.
    max_tokens: int
    #: The service level: the longest time from the arrival to the first output token, and the longest mean time
    #: between output tokens.
    max_first_token_us: int
    max_token_us: int
    #: When the first output token was ready; -1 if there is none yet.
    first_token_at_us: int


class Arrival(NamedTuple):
    """A request of a trace, including what its policy does not know: ``num_output_tokens``."""

    arrival_us: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    max_first_token_us: int
    max_token_us: int


class Outcome(NamedTuple):
    """When a request of a trace was served."""

    arrival: Arrival
    first_token_at_us: int
    last_token_at_us: int

    @property
    def first_token_us(self) -> int:
        """The time from the arrival to the first token."""
        return self.first_token_at_us - self.arrival.arrival_us

    @property
    def has_first_token_in_time(self) -> bool:
        return self.first_token_us <= self.arrival.max_first_token_us

    @property
    def has_tokens_in_time(self) -> bool:
        """Whether the tokens after the first came at the promised mean rate, or faster."""
        return (self.last_token_at_us - self.first_token_at_us
                <= (self.arrival.num_output_tokens - 1) * self.arrival.max_token_us)

    @property
    def is_good(self) -> bool:
        return self.has_first_token_in_time and self.has_tokens_in_time


#: Request id → number of tokens to compute, and the ids of the running requests to preempt first.
Plan = tuple[dict[int, int], list[int]]


class SchedulingPolicy(Protocol):
    """The method that the arena calls; the lab's ``SchedulingPolicy`` documents the contract."""

    def plan(self, now_us: int, requests: tuple[RequestState, ...]) -> Plan: ...


PolicyClass = Callable[[Limits], SchedulingPolicy]


class IllegalPlan(Exception):
    """A policy returned a plan that the machine cannot or may not run."""


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _short(value: Any, num_characters: int = 100) -> str:
    return _REPR.repr(value)[:num_characters]


def num_attended(num_computed_tokens: int, num_new_tokens: int) -> int:
    """Return the number of tokens to which the next ``num_new_tokens`` attend: each to all before it and to itself."""
    return num_new_tokens * (2 * num_computed_tokens + num_new_tokens + 1) // 2


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival, and the machine. Raises ValueError if it could not serve a request."""

    name: str
    limits: Limits
    arrivals: tuple[Arrival, ...]

    def __post_init__(self) -> None:
        for name, value in self.limits._asdict().items():
            if value < (0 if name in ("step_us", "token_us", "max_overtaking_us") else 1):
                raise ValueError(f"trace {self.name!r}: {name} is {value}, which is too small")
        if self.limits.step_us + self.limits.token_us == 0:
            raise ValueError(f"trace {self.name!r}: step_us and token_us are 0, so the clock would hardly move")
        before_us = 0
        for number, each in enumerate(self.arrivals):
            where = f"trace {self.name!r}, request {number}:"
            if each.arrival_us < before_us:
                raise ValueError(f"{where} arrival_us is {each.arrival_us}, must be at least {before_us}: requests are "
                                 "in the order of their arrival")
            before_us = each.arrival_us
            if each.num_prompt_tokens < 1 or not 1 <= each.num_output_tokens <= each.max_tokens:
                raise ValueError(f"{where} it has {each.num_prompt_tokens} prompt tokens and {each.num_output_tokens} "
                                 f"output tokens, must have 1 or more of each, and at most {each.max_tokens} of output")
            num_blocks = blocks_for(each.num_prompt_tokens + each.max_tokens, self.limits.block_size)
            if num_blocks > self.limits.num_blocks:
                raise ValueError(f"{where} it may need {num_blocks} blocks, the pool has {self.limits.num_blocks}")

    @property
    def num_tokens(self) -> int:
        return sum(each.num_prompt_tokens + each.num_output_tokens for each in self.arrivals)


class Step(NamedTuple):
    """The record of one step."""

    start_us: int
    end_us: int
    num_scheduled_tokens: dict[int, int]
    preempted: list[int]
    #: The ids of the requests that ended.
    ended: list[int]


class _Live:
    """A request that has arrived and not ended."""

    __slots__ = ("arrival", "first_token_at_us", "num_blocks", "num_computed_tokens", "num_tokens", "request_id")

    def __init__(self, request_id: int, arrival: Arrival) -> None:
        self.request_id, self.arrival = request_id, arrival
        self.num_tokens, self.num_computed_tokens, self.num_blocks = arrival.num_prompt_tokens, 0, 0
        self.first_token_at_us = -1

    def state(self) -> RequestState:
        arrival = self.arrival
        return RequestState(self.request_id, arrival.arrival_us, arrival.num_prompt_tokens, self.num_tokens,
                            self.num_computed_tokens, self.num_blocks, arrival.max_tokens, arrival.max_first_token_us,
                            arrival.max_token_us, self.first_token_at_us)


class Machine:
    """A machine with a new policy, which plans every step. Requests are handed to it when they arrive."""

    # Future requests are kept out of plain sight: the machine gets a request only when it has arrived. This stops a
    # policy that inspects its caller's variables, but nothing can be hidden within one process: the machine must know
    # when a request ends, the iterator of future requests can be found, and a policy's file may import the traces. In
    # the grader the policy runs in a sandbox, which contains none of this. The lab's tests also compare traces that
    # differ only in what is still to come.

    def __init__(self, name: str, limits: Limits, policy_class: PolicyClass) -> None:
        """Create an idle machine. ``name`` says where the requests come from, for error messages."""
        self.now_us = 0
        self.num_steps = 0
        self._name, self._limits, self._policy = name, limits, policy_class(limits)
        self._live: dict[int, _Live] = {}
        self._outcomes: dict[int, Outcome] = {}

    @property
    def is_idle(self) -> bool:
        return not self._live

    def arrive(self, request_id: int, arrival: Arrival) -> None:
        """Hand over a request that has arrived by now. An idle machine waits for it."""
        if self.is_idle:
            self.now_us = max(self.now_us, arrival.arrival_us)
        self._live[request_id] = _Live(request_id, arrival)

    def step(self) -> Step:
        """Ask the policy for a plan, run it, and advance the clock. Raise IllegalPlan, and run nothing, if the plan
        breaks a rule."""
        self.num_steps += 1
        requests = tuple(live.state() for live in self._live.values())
        try:
            plan = self._policy.plan(self.now_us, requests)
        except Exception as error:
            # Like error.add_note, which Python 3.10 does not have.
            if type(notes := vars(error).setdefault("__notes__", [])) is list:
                notes.append(f"in {self._where}")
            raise
        num_scheduled_tokens, preempted = self._checked(plan)
        limits, start_us = self._limits, self.now_us
        for request_id in preempted:
            live = self._live[request_id]
            live.num_blocks = live.num_computed_tokens = 0
        self.now_us += limits.step_us + limits.token_us * sum(num_scheduled_tokens.values())
        attended = sum(num_attended(self._live[request_id].num_computed_tokens, n)
                       for request_id, n in num_scheduled_tokens.items())
        self.now_us += blocks_for(attended, limits.attended_per_us)
        ended = []
        for request_id, n in num_scheduled_tokens.items():
            live = self._live[request_id]
            live.num_computed_tokens += n
            live.num_blocks = blocks_for(live.num_computed_tokens, limits.block_size)
            if live.num_computed_tokens == live.num_tokens and self._has_ended_with_next_token(live):
                ended.append(request_id)
        for request_id in ended:
            del self._live[request_id]
        return Step(start_us, self.now_us, num_scheduled_tokens, preempted, ended)

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of the requests that have ended, in the order of their ids."""
        return [self._outcomes[request_id] for request_id in sorted(self._outcomes)]

    def _has_ended_with_next_token(self, live: _Live) -> bool:
        """Append the token that the step has made, and check whether it is the last one."""
        arrival = live.arrival
        live.num_tokens += 1
        if live.first_token_at_us < 0:
            live.first_token_at_us = self.now_us
        if live.num_tokens < arrival.num_prompt_tokens + arrival.num_output_tokens:
            return False
        self._outcomes[live.request_id] = Outcome(arrival, live.first_token_at_us, self.now_us)
        return True

    # ---- the rules

    def _refuse(self, problem: str) -> NoReturn:
        raise IllegalPlan(f"{self._where}: plan() {problem}")

    @property
    def _where(self) -> str:
        return f"step {self.num_steps} of {self._name!r}, at {self.now_us} us"

    def _checked(self, plan: Any) -> Plan:
        """Return a copy of a plan that follows all rules. Raise IllegalPlan if it does not."""
        if not (type(plan) in (tuple, list) and len(plan) == 2 and isinstance(plan[0], dict)
                and isinstance(plan[1], (list, tuple))):
            self._refuse(f"returned {_short(plan, 200)}, expected a pair: a dict of request ids and numbers of tokens, "
                         "and a list of the ids to preempt")
        tokens, preempted = dict(plan[0]), list(plan[1])
        for request_id in [*tokens, *preempted]:
            if type(request_id) is not int or request_id not in self._live:
                self._refuse(f"names request {_short(request_id)}, which has not arrived or has ended; "
                             "only the ids in requests may be named")
        for place, request_id in enumerate(preempted):
            if self._live[request_id].num_blocks == 0:
                self._refuse(f"preempts request {request_id}, which holds 0 blocks: only running requests can be "
                             "preempted")
            if request_id in preempted[:place]:
                self._refuse(f"preempts request {request_id} twice")
            if request_id in tokens:
                self._refuse(f"preempts request {request_id} and gives it {_short(tokens[request_id])} tokens "
                             "in the same step")
        for request_id, n in tokens.items():
            live = self._live[request_id]
            num_left = live.num_tokens - live.num_computed_tokens
            if type(n) is not int or not 1 <= n <= num_left:
                allowed = "1: it has 1 uncomputed token" if num_left == 1 else (
                    f"a whole number from 1 to {num_left}, the number of its uncomputed tokens")
                self._refuse(f"gives request {request_id} {_short(n)} tokens, must be {allowed}")
        self._check_limits(tokens, set(preempted))
        return tokens, preempted

    def _check_limits(self, tokens: dict[int, int], preempted: Collection[int]) -> None:
        limits, total = self._limits, sum(tokens.values())
        if not 1 <= total <= limits.max_num_batched_tokens:
            self._refuse(f"computes {total} tokens, must be 1 to {limits.max_num_batched_tokens} "
                         "(max_num_batched_tokens)")
        num_blocks, admitted, waiting = 0, [], []
        num_running = 0
        for request_id, live in self._live.items():
            before = 0 if request_id in preempted else live.num_blocks
            after = before
            if request_id in tokens:
                after = blocks_for(live.num_computed_tokens + tokens[request_id], limits.block_size)
            num_blocks += after
            num_running += after > 0
            if after == 0:
                waiting.append(live)
            elif before == 0:
                admitted.append(live)
        if num_blocks > limits.num_blocks:
            self._refuse(f"needs {num_blocks} blocks, the pool has {limits.num_blocks}")
        if num_running > limits.max_num_seqs:
            self._refuse(f"lets {num_running} requests run, at most {limits.max_num_seqs} may (max_num_seqs)")
        if admitted and waiting:
            oldest = min(waiting, key=lambda live: live.arrival.arrival_us)
            youngest = max(admitted, key=lambda live: live.arrival.arrival_us)
            gap_us = youngest.arrival.arrival_us - oldest.arrival.arrival_us
            if gap_us > limits.max_overtaking_us:
                self._refuse(f"admits request {youngest.request_id} while request {oldest.request_id} waits, which "
                             f"arrived {gap_us} us earlier; at most {limits.max_overtaking_us} us are allowed "
                             "(max_overtaking_us)")


def play(trace: Trace, policy_class: PolicyClass) -> Iterator[Step]:
    """Serve the requests of ``trace`` until all have ended; yield each step. See ``Machine``."""
    return _steps(*_machine(trace, policy_class))


def serve(trace: Trace, policy_class: PolicyClass) -> list[Outcome]:
    """Serve the requests of ``trace`` with a new policy of this class; return their outcomes in order of arrival.

    Raise IllegalPlan if a plan of the policy breaks a rule.
    """
    machine, arrivals, max_steps = _machine(trace, policy_class)
    del trace
    return _outcomes(machine, arrivals, max_steps)


def num_good(trace: Trace, policy_class: PolicyClass) -> int:
    """Count the requests of ``trace`` that meet both of their times with a new policy of this class."""
    machine, arrivals, max_steps = _machine(trace, policy_class)
    del trace
    return sum(outcome.is_good for outcome in _outcomes(machine, arrivals, max_steps))


def _outcomes(machine: Machine, arrivals: Iterable[Arrival], max_steps: int) -> list[Outcome]:
    deque(_steps(machine, arrivals, max_steps), maxlen=0)
    return machine.outcomes()


def _machine(trace: Trace, policy_class: PolicyClass) -> tuple[Machine, Iterable[Arrival], int]:
    machine = Machine(trace.name, trace.limits, policy_class)
    return machine, iter(trace.arrivals), MAX_STEPS_PER_TOKEN * trace.num_tokens


def _steps(machine: Machine, arrivals: Iterable[Arrival], max_steps: int) -> Iterator[Step]:
    numbered = enumerate(arrivals)
    upcoming = next(numbered, None)
    while upcoming is not None or not machine.is_idle:
        while upcoming is not None and (machine.is_idle or upcoming[1].arrival_us <= machine.now_us):
            machine.arrive(*upcoming)
            upcoming = next(numbered, None)
        if machine.num_steps >= max_steps:
            raise IllegalPlan(f"after {max_steps} steps not all requests have ended: {MAX_STEPS_PER_TOKEN} steps per "
                              "token of the trace are allowed, so some requests were preempted over and over again")
        yield machine.step()
