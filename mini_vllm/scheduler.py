"""Who computes how many tokens in the next step.

The rules, all of them:

1. A step has a budget of tokens and a limit of requests.
2. Requests that run come first, in the order they were admitted; then waiting ones, first come, first served.
3. There are no phases. A request is given ``num_tokens - num_computed_tokens`` tokens, or what the budget leaves: a
   long prompt is computed in chunks, beside others that decode.
4. A request is admitted only if all it may ever need fits beside all that the running ones may ever need. So a running
   request never waits for a block. What can never fit is refused when it arrives.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request, RequestStatus


@dataclass(frozen=True)
class SchedulerOutput:
    """The plan of one step."""

    #: Request id → tokens to compute, in the order of the batch.
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    #: Blocks to copy before anything is written: (source, destination).
    copies: list[tuple[int, int]] = field(default_factory=list)


class Scheduler:
    def __init__(self, kv_cache: KVCacheManager, max_num_seqs: int = 64, max_num_batched_tokens: int = 1024) -> None:
        for name, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if value < 1:
                raise ValueError(f"{name} is {value}, must be at least 1")
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(f"max_num_batched_tokens is {max_num_batched_tokens}, must be at least max_num_seqs "
                             f"({max_num_seqs}): each running request computes a token a step")
        self.kv_cache = kv_cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add_request(self, request: Request) -> None:
        """Raises ValueError if the request can never fit, or its id is in use."""
        needed, there = self._max_blocks(request), self.kv_cache.block_pool.num_blocks - 1
        if needed > there:
            times = f" times {request.num_sequences}" if request.num_sequences > 1 else ""
            raise ValueError(f"request {request.request_id!r} may need {needed} blocks of {self.kv_cache.block_size} "
                             f"tokens ({request.num_prompt_tokens} prompt + {request.sampling_params.max_tokens} new "
                             f"tokens{times}), the pool has {there}")
        if request.num_sequences > self.max_num_seqs:
            raise ValueError(f"n is {request.num_sequences}, must be at most max_num_seqs ({self.max_num_seqs})")
        if any(request.request_id == other.request_id for other in (*self.waiting, *self.running)):
            raise ValueError(f"request id {request.request_id!r} is in use")
        self.waiting.append(request)

    def abort_request(self, request_id: str) -> Request | None:
        """Take a request out wherever it is; None if it is nowhere."""
        for queue in (self.waiting, self.running):
            for request in queue:
                if request.request_id == request_id:
                    queue.remove(request)
                    self.finish(request, RequestStatus.FINISHED_ABORTED)
                    return request
        return None

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        """Plan a step: slots are made, prefix hits adopted, and ``num_computed_tokens`` is what it will be after it."""
        budget = self.max_num_batched_tokens
        plan: list[tuple[Request, int]] = []
        for request in self.running:
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if num_new_tokens:
                self.kv_cache.allocate_slots(request, num_new_tokens)
                plan.append((request, num_new_tokens))
                budget -= num_new_tokens
        while self.waiting and budget and self._fits(self.waiting[0]):
            request = self.waiting[0]
            num_new_tokens = self._admit(request, budget)
            if num_new_tokens == 0:
                break
            self.waiting.popleft()
            request.status = RequestStatus.RUNNING
            self.running.append(request)
            plan.append((request, num_new_tokens))
            budget -= num_new_tokens
        plan.sort(key=lambda entry: entry[1] > 1)  # the runner wants single tokens first
        for request, num_new_tokens in plan:
            request.num_computed_tokens += num_new_tokens
        pool = self.kv_cache.block_pool
        return SchedulerOutput({request.request_id: n for request, n in plan}, [request for request, _ in plan],
                               [(source.block_id, copy.block_id) for source, copy in pool.pending_copies])

    def _admit(self, request: Request, budget: int) -> int:
        """Adopt what is cached and make room for as many further tokens as the budget allows; 0 if there is no room."""
        hits, num_cached = self.kv_cache.get_computed_blocks(request)
        size = self.kv_cache.block_size
        while True:
            num_new_tokens = min(request.num_tokens - num_cached, budget)
            if self.kv_cache.allocate_slots(request, num_new_tokens, hits, num_cached) is not None:
                request.num_cached_tokens = request.num_computed_tokens = num_cached
                return num_new_tokens
            if num_cached % size == 0:
                return 0
            # A hit that ends inside a block takes one block more, to copy it into; do without it.
            hits, num_cached = hits[:-1], num_cached // size * size

    def fork(self, parent: Request, child: Request) -> None:
        """The prompt has been computed: ``child`` shares all of it and runs on from there."""
        self.kv_cache.fork(parent, child)
        child.num_computed_tokens, child.num_cached_tokens = parent.num_computed_tokens, parent.num_cached_tokens
        child.status = RequestStatus.RUNNING
        parent.num_sequences -= 1
        self.running.append(child)

    def update_from_output(self, output: SchedulerOutput, token_ids: dict[str, int]) -> None:
        """The step has run: append the tokens that were sampled."""
        self.kv_cache.finish_step()
        for request in output.requests:
            if request.request_id in token_ids:
                request.append_output_token(token_ids[request.request_id])

    def finish(self, request: Request, status: RequestStatus) -> None:
        """Take a request out of the running ones and give its blocks back; what they hold stays findable."""
        request.status = status
        if request in self.running:
            self.running.remove(request)
        self.kv_cache.free(request)

    def _max_blocks(self, request: Request) -> int:
        num_tokens = request.num_prompt_tokens + request.sampling_params.max_tokens
        return -(-num_tokens // self.kv_cache.block_size) * request.num_sequences

    def _fits(self, request: Request) -> bool:
        needed = sum(self._max_blocks(other) for other in (*self.running, request))
        num_sequences = sum(other.num_sequences for other in (*self.running, request))
        return needed <= self.kv_cache.block_pool.num_blocks - 1 and num_sequences <= self.max_num_seqs
