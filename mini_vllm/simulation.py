"""A scheduler at work without a model: exact, instant and deterministic.

In the fake model the K/V of a token is the token itself, stored under (block, offset) as in the real arrays. Before it
returns the next token, it reads the whole context of a request back through its block table. So a block that was lost,
shared wrongly, freed too early or never written is found in the step in which it matters. Time is a number that a cost
model advances.

    simulation = Simulation(Scheduler(KVCacheManager(num_blocks=9, block_size=4), max_num_seqs=2,
                                      max_num_batched_tokens=8))
    simulation.add(Request("a", range(20), SamplingParams(max_tokens=4)))
    print(simulation.run())

    step    0   1   2   3   4   5          a number: tokens of the prompt computed in the step
    a       8   8   4   ●   ●   ●          ●: one token     ✕: preempted     –: waiting

The module is longer than most: the fake model, its clock and the picture make sense only together.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.metrics import IdleSteps, NoTrace
from mini_vllm.request import Request, RequestStatus
from mini_vllm.scheduler import Scheduler, SchedulerOutput

VOCAB_SIZE = 1000


@dataclass(frozen=True)
class CostModel:
    """The duration of a step: a fixed part, and a part per token that it computes."""

    step_s: float = 0.010
    token_s: float = 0.001

    def seconds(self, num_tokens: int) -> float:
        return self.step_s + self.token_s * num_tokens


def next_token(token_ids: Sequence[int]) -> int:
    """Return the fake model's token after ``token_ids``: arbitrary, but always the same."""
    return zlib.crc32(",".join(map(str, token_ids)).encode()) % VOCAB_SIZE


def decode_alone(prompt_token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """Return the output of a request that has the model to itself. Every schedule must produce this output."""
    token_ids = list(prompt_token_ids)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt_token_ids):]


class FakeModel:
    """A model that stores "K/V" by block and offset, and relies only on what it reads back."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._slots: dict[tuple[int, int], int | None] = {}

    def step(self, output: SchedulerOutput, kv_cache: KVCacheManager) -> dict[str, int]:
        """Copy, write, then read: return a next token for every request whose tokens are all computed.

        Raise RuntimeError if a request would attend to anything but its own tokens.
        """
        for source, copy in output.copies:
            for offset in range(self.block_size):
                self._slots[copy, offset] = self._slots.get((source, offset))
        requests, num_new_tokens = output.requests, output.num_scheduled_tokens
        tables = {request.request_id: kv_cache.get_block_ids(request.request_id) for request in requests}
        for request in requests:
            self._write(request, tables[request.request_id], num_new_tokens[request.request_id])
        contexts = {request.request_id: self._read(request, tables[request.request_id]) for request in requests}
        return {request.request_id: next_token(contexts[request.request_id]) for request in requests
                if request.num_computed_tokens == request.num_tokens}

    def _write(self, request: Request, table: list[int], num_new_tokens: int) -> None:
        end = request.num_computed_tokens
        if end > len(table) * self.block_size:
            raise RuntimeError(f"request {request.request_id!r} needs slots for {end} tokens, but its block table "
                               f"{table} has {len(table) * self.block_size}")
        for position in range(end - num_new_tokens, end):
            self._slots[self._slot(table, position)] = request.all_token_ids[position]

    def _read(self, request: Request, table: list[int]) -> list[int]:
        """Return the tokens that the request attends to: all its computed tokens, read through its block table."""
        context = []
        for position in range(request.num_computed_tokens):
            token, own = self._slots.get(self._slot(table, position)), request.all_token_ids[position]
            if token != own:
                raise RuntimeError(f"request {request.request_id!r} attends to token {token} at position {position}, "
                                   f"in block {table[position // self.block_size]}; its own token there is {own}")
            context.append(own)
        return context

    def _slot(self, table: list[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size


@dataclass
class Step:
    """The record of one step."""

    start_s: float
    end_s: float
    #: Request id → number of tokens computed.
    num_scheduled_tokens: dict[str, int]
    #: Requests that got a new token.
    sampled: list[str]
    preempted: list[str]
    #: Requests that ended in this step, for any reason.
    finished: list[str]
    waiting: list[str]


@dataclass
class Timeline:
    """All steps of a simulation. ``print`` shows them as a picture."""

    steps: list[Step] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    arrival_s: dict[str, float] = field(default_factory=dict)

    def token_times_s(self, request_id: str) -> list[float]:
        """Return the time of each output token of a request."""
        return [step.end_s for step in self.steps if request_id in step.sampled]

    def first_token_s(self, request_id: str) -> float:
        """Return how long a request waited for its first token."""
        return self.token_times_s(request_id)[0] - self.arrival_s[request_id]

    def gaps_s(self, request_id: str) -> list[float]:
        """Return the times between the output tokens of a request."""
        times = self.token_times_s(request_id)
        return [later - earlier for earlier, later in zip(times, times[1:])]

    def __str__(self) -> str:
        return self.draw()

    def draw(self, first_step: int = 0, max_steps: int = 40) -> str:
        """Draw requests over steps; a long timeline is truncated."""
        shown = self.steps[first_step:first_step + max_steps]
        width = max([4, *(len(str(n)) + 1 for step in shown for n in step.num_scheduled_tokens.values())])
        label = max([4, *(len(name) for name in self.request_ids)]) + 1
        lines = ["step".ljust(label) + "".join(f"{first_step + i:>{width}}" for i in range(len(shown)))]
        for name in self.request_ids:
            lines.append(name.ljust(label) + "".join(f"{_cell(step, name):>{width}}" for step in shown).rstrip())
        totals = [sum(step.num_scheduled_tokens.values()) for step in shown]
        lines.append("sum".ljust(label) + "".join(f"{total:>{width}}" for total in totals))
        num_left_out = len(self.steps) - first_step - len(shown)
        return "\n".join(lines) + (f"\n… and {num_left_out} more steps" if num_left_out else "")


def _cell(step: Step, name: str) -> str:
    if name in step.preempted:
        return "✕"
    num_tokens = step.num_scheduled_tokens.get(name, 0)
    if num_tokens:
        return "●" if num_tokens == 1 else str(num_tokens)
    return "–" if name in step.waiting else ""


class Clock:
    """A clock that only the simulation advances. Pass it to the queue and to the simulation."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Simulation:
    """Requests that arrive at given times, a scheduler that serves them, and a timeline of the steps."""

    def __init__(self, scheduler: Scheduler, cost: CostModel | None = None, clock: Clock | None = None,
                 trace: NoTrace | None = None) -> None:
        """Create a simulation. ``trace`` records every step, like the engine's trace; give it the same clock."""
        self.scheduler = scheduler
        self.trace = NoTrace() if trace is None else trace
        self.cost = cost or CostModel()
        self.clock = clock or Clock()
        self.kv_cache = scheduler.kv_cache
        self.model = FakeModel(self.kv_cache.block_size)
        self.timeline = Timeline()
        self._to_come: list[tuple[float, int, Request]] = []
        self._live: dict[str, Request] = {}
        self._idle_steps = IdleSteps()

    def add(self, request: Request, at_s: float = 0.0) -> Request:
        """Schedule the arrival of a request. It ends when it has ``max_tokens`` output tokens."""
        self._to_come.append((at_s, len(self._to_come), request))
        self._to_come.sort(key=lambda arrival: arrival[:2])
        return request

    @property
    def is_done(self) -> bool:
        return not (self._to_come or self._live)

    def step(self) -> Step:
        """Run one step. If no request is present, advance the time to the next arrival first.

        Raise RuntimeError, with the picture so far, if the scheduler gives no request a token and never will.
        """
        self._let_arrive()
        self.trace.start_step(self.scheduler)
        plan = self.scheduler.schedule()
        self.trace.record_plan(self.scheduler, plan)
        start_s = self.clock.now_s
        tokens = self.model.step(plan, self.kv_cache)
        num_scheduled_tokens = dict(plan.num_scheduled_tokens)
        self.clock.now_s += self.cost.seconds(sum(num_scheduled_tokens.values()))
        self.trace.record_computed()
        self.scheduler.update_from_output(plan, tokens)
        finished = self._let_go(tokens)
        waiting = [request_id for request_id, request in self._live.items()
                   if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)]
        step = Step(start_s, self.clock.now_s, num_scheduled_tokens, list(tokens),
                    [request.request_id for request in plan.preempted], finished, waiting)
        self.timeline.steps.append(step)
        self.trace.end_step(plan, tokens)
        self._check_moves(step)
        return step

    def _let_arrive(self) -> None:
        if not self._live and self._to_come:
            self.clock.now_s = max(self.clock.now_s, self._to_come[0][0])
        while self._to_come and self._to_come[0][0] <= self.clock.now_s:
            at_s, _, request = self._to_come.pop(0)
            if request.arrival_time is None:
                request.arrival_time = at_s
            self.scheduler.add_request(request)
            self._live[request.request_id] = request
            self.timeline.request_ids.append(request.request_id)
            self.timeline.arrival_s[request.request_id] = at_s

    def _let_go(self, tokens: dict[str, int]) -> list[str]:
        """End the requests that have all their tokens.

        Return the ids of all that have ended, including those that outgrew the pool.
        """
        for request_id in tokens:
            request = self._live[request_id]
            if len(request.output_token_ids) >= (request.sampling_params.max_tokens or math.inf):
                self.scheduler.finish(request, RequestStatus.FINISHED_LENGTH)
        finished = [request_id for request_id, request in self._live.items() if request.status.is_finished]
        for request_id in finished:
            del self._live[request_id]
        return finished

    def _check_moves(self, step: Step) -> None:
        has_stalled = self._idle_steps.add(not (step.num_scheduled_tokens or step.finished))
        if has_stalled and self._live and not self._to_come:
            raise RuntimeError(f"{self._idle_steps.count} steps in a row computed nothing, but "
                               f"{', '.join(self._live)} did not finish:\n{self.timeline}")

    def abort(self, request_id: str) -> None:
        """Abort a request that has arrived."""
        self.scheduler.abort_request(request_id)
        self._live.pop(request_id, None)

    def run(self, max_steps: int = 10_000) -> Timeline:
        """Run steps until every request has ended.

        Raise RuntimeError, with the picture, if that takes too many steps.
        """
        for _ in range(max_steps):
            if self.is_done:
                return self.timeline
            self.step()
        raise RuntimeError(f"after {max_steps} steps {', '.join(self._live)} did not finish:\n{self.timeline}")
