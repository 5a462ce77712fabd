"""Decides how much of a guess a step computes, and gives back what was not needed. ``drafts`` says which tokens count.

The rules, all of them:

 1. A request may draft while it decodes: it has an output token, and the step computes exactly its last token. A draft
    never goes past ``max_tokens``.
 2. **Leftovers only.** Drafts use budget and blocks that the plan of the step has left. No request waits, and none is
    preempted, because of a draft: while requests wait, and in a step that preempted one, nothing is drafted.
 3. **A draft is as long as its tokens are worth.** If the tokens of a request's guesses are right at a rate r, token i
    of a draft is accepted with probability r ** i. It is computed if that is more than it costs (``StepCosts``), and
    if the draft is no longer than pays in a step of that many requests. A step drafts if the gains of all its requests
    are more than what drafts cost the step as a whole.
 4. The rate is estimated from the request's last guesses, whether a step computed them or not: the tokens that the
    request gets show which were right. Older guesses count less. The first guess is expected to be right half the time.
 5. **Backing off.** A drafter whose guesses cost something (``cost_per_token``) is not asked while rule 3 gives no
    draft. A request asks it for one token after 8 such steps, and if that is wrong after 16, 32, then every 64.
 6. **Drafts or look-ahead.** A step that is started early cannot have drafts. It is not started early if drafts are
    expected to gain more than look-ahead does.
 7. After the step, the accepted tokens count as computed, and the slots after them are given back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mini_vllm.fast.step_costs import StepCosts
from mini_vllm.parts import DrafterPart, GuessRecordPart, KVCacheManagerPart, SchedulerPart
from mini_vllm.request import Request, RequestStatus
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.speculation.drafts import GuessRecord


def expected_tokens(rate: float, length: int) -> float:
    """Return how many tokens of a draft are accepted on average, if each is right at ``rate``."""
    return sum(rate ** (index + 1) for index in range(length))


@dataclass
class _Guessing:
    """The guesses for one request: their record, and the one that is not judged yet."""

    record: GuessRecordPart
    #: The guess for the tokens after the first ``num_tokens``.
    guess: list[int] = field(default_factory=list)
    num_tokens: int = 0
    #: The newest tokens, if the drafter has not been told of them yet.
    untold: list[int] = field(default_factory=list)

    def judge(self, token_ids: list[int]) -> None:
        if self.guess and token_ids:
            self.record.judge(self.guess, token_ids)
            self.guess = []


class Speculation:
    """The drafts of an engine's requests."""

    def __init__(self, max_tokens: int, drafter: DrafterPart, scheduler: SchedulerPart, kv_cache: KVCacheManagerPart,
                 costs: StepCosts, record_class: Callable[[], GuessRecordPart] = GuessRecord) -> None:
        """Draft at most ``max_tokens`` per request and step; 0 drafts nothing."""
        self.max_tokens, self.drafter, self.costs = max_tokens, drafter, costs
        self._scheduler, self._kv_cache, self._record_class = scheduler, kv_cache, record_class
        self._guessing: dict[str, _Guessing] = {}
        self.num_drafted_tokens = 0
        self.num_accepted_tokens = 0
        #: Request id → (drafted tokens, accepted tokens) of the last step.
        self.last_drafts: dict[str, tuple[int, int]] = {}

    # ---- before a step

    def extend(self, plan: SchedulerOutput, is_started: bool = False) -> SchedulerOutput:
        """Return ``plan`` with drafts, if there are any worth computing.

        ``is_started`` says that the planned step was started early: guesses are then only judged.
        """
        if not self.max_tokens:
            return plan
        self._tell_drafter(plan.requests)
        drafting = [request for request in plan.requests if _decodes(request, plan)]
        may_draft = not (is_started or plan.preempted or len(self._scheduler.waiting))
        lengths = self._guess(drafting, len(plan.requests), may_draft)
        budget = self._scheduler.max_num_batched_tokens - sum(plan.num_scheduled_tokens.values())
        drafts: dict[str, list[int]] = {}
        for request, length in zip(drafting, lengths) if may_draft else ():
            length = self._allocate(request, min(length, budget))
            if length:
                drafts[request.request_id] = self._guessing[request.request_id].guess[:length]
                budget -= length
        if not drafts:
            return plan
        requests = sorted(plan.requests, key=lambda request: request.request_id in drafts
                          or plan.num_scheduled_tokens[request.request_id] > 1)
        numbers = {request.request_id: plan.num_scheduled_tokens[request.request_id] for request in requests}
        copies = [(source.block_id, copy.block_id) for source, copy in self._kv_cache.block_pool.pending_copies]
        return SchedulerOutput(numbers, requests, copies, plan.preempted, plan.finished, drafts)

    def _tell_drafter(self, requests: Sequence[Request]) -> None:
        """Tell the drafter what its requests got in the last step.

        This happens before the next step, not after the last one: if the drafter raises, no output is lost.
        """
        for request in requests:
            guessing = self._guessing.get(request.request_id)
            if guessing is not None and guessing.untold:
                tokens, guessing.untold = guessing.untold, []
                self.drafter.advance(request, tokens)

    def _guess(self, requests: Sequence[Request], num_requests: int, may_draft: bool) -> list[int]:
        """Ask the drafter, and return how many tokens of each guess are to be computed."""
        asked = [self._of(request) for request in requests]
        records = [each.record for each in asked]
        limits = [max(min(self.max_tokens, _num_tokens_left(request) - 1), 0) for request in requests]
        if not self.drafter.cost_per_token:
            wanted = limits
        elif may_draft:
            wanted = self._worth(records, limits, num_requests)
            if not any(wanted):
                wanted = [min(int(record.is_rested()), limit) for record, limit in zip(records, limits)]
        else:
            wanted = [0] * len(requests)
        for request, each, number, guess in zip(requests, asked, wanted, self.drafter.propose_all(requests, wanted)):
            each.num_tokens, each.guess = request.num_tokens, list(guess)[:number]
        lengths = [len(each.guess) for each in asked]
        return lengths if self.drafter.cost_per_token else self._worth(records, lengths, num_requests)

    def _of(self, request: Request) -> _Guessing:
        if request.request_id not in self._guessing:
            self._guessing[request.request_id] = _Guessing(self._record_class())
        return self._guessing[request.request_id]

    def _worth(self, records: Sequence[GuessRecordPart], limits: Sequence[int], num_requests: int,
               must_gain: float = 0.0) -> list[int]:
        """Return how many tokens to draft for each request, at most ``limits``; none at all if that is not worth it.

        This is rule 3. Gains and costs are counted in tokens. ``must_gain`` is what the drafts must gain per request.
        """
        cost = self.costs.of(num_requests)
        per_token = cost.per_token + self.drafter.cost_per_token
        limits = [min(limit, cost.longest) for limit in limits]
        lengths = [min(record.length(per_token, limit), limit) for record, limit in zip(records, limits)]
        gain = sum(expected_tokens(record.rate, length) - per_token * length
                   for record, length in zip(records, lengths))
        return lengths if gain > (cost.first + must_gain) * num_requests else [0] * len(lengths)

    def _allocate(self, request: Request, num_tokens: int) -> int:
        """Make slots for ``num_tokens`` drafted tokens, or for as many as fit in the last block. Return the number."""
        if num_tokens <= 0:
            return 0
        if self._kv_cache.allocate_slots(request, num_tokens) is not None:
            return num_tokens
        num_slots = len(self._kv_cache.get_block_ids(request.request_id)) * self._kv_cache.block_size
        num_fitting = min(num_slots - request.num_computed_tokens, num_tokens - 1)
        if num_fitting > 0 and self._kv_cache.allocate_slots(request, num_fitting) is not None:
            return num_fitting
        return 0

    def beats_lookahead(self, requests: Sequence[Request]) -> bool:
        """Check whether drafting in the next step is expected to gain more than starting that step early."""
        if not self.max_tokens:
            return False
        records = [self._guessing[request.request_id].record if request.request_id in self._guessing
                   else self._record_class() for request in requests]
        limits = [max(min(self.max_tokens, _num_tokens_left(request) - 2), 0) for request in requests]
        return any(self._worth(records, limits, len(requests), self.costs.no_lookahead))

    # ---- after a step

    def settle(self, plan: SchedulerOutput) -> None:
        """Judge the guesses by what the requests of ``plan`` got, and give back the slots of wrong ones."""
        if not self.max_tokens:
            return
        self.last_drafts = {}
        for request in plan.requests:
            guessing, draft = self._guessing.get(request.request_id), plan.drafts.get(request.request_id, [])
            if guessing is None:
                continue
            tokens = request.all_token_ids[guessing.num_tokens:]
            if draft:
                self._count(request, len(draft), max(len(tokens) - 1, 0))
            guessing.judge(tokens)
            guessing.num_tokens = request.num_tokens
            guessing.untold += tokens
            if draft and request.status is RequestStatus.RUNNING:
                self._kv_cache.give_back_slots(request)

    def _count(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        self.last_drafts[request.request_id] = num_drafted, num_accepted
        request.num_drafted_tokens += num_drafted
        request.num_accepted_tokens += num_accepted
        self.num_drafted_tokens += num_drafted
        self.num_accepted_tokens += num_accepted

    def forget(self, request: Request) -> None:
        """Drop everything about a request that has ended."""
        if self._guessing.pop(request.request_id, None) is not None:
            self.drafter.forget(request)


def _decodes(request: Request, plan: SchedulerOutput) -> bool:
    """Check rule 1. A request with several sequences left has not been forked yet."""
    return (plan.num_scheduled_tokens[request.request_id] == 1 and bool(request.output_token_ids)
            and request.num_computed_tokens == request.num_tokens and request.num_sequences == 1)


def _num_tokens_left(request: Request) -> int:
    """Return how many more tokens the request may get."""
    max_tokens = request.sampling_params.max_tokens
    return sys.maxsize if max_tokens is None else max_tokens - len(request.output_token_ids)
