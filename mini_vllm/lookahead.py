"""Look-ahead: starting the next step before it is planned.

Between two steps the device would wait for Python to look at the tokens and plan the next step. But when all requests
decode, the next step is easy to guess: every request computes one more token, except those that get their last token
now, and no request joins. So the next step is built and started while its input tokens are still being computed:

    device   ── step 1 ──┬── step 2 ──┬── step 3 ──┬──
    Python      begin 2  │  tokens 1, │  tokens 2, │
                         │  begin 3   │  begin 4   │

If the step that is then planned is the one that was started, its tokens are used. If not, it is dropped: it has written
K/V only into slots whose tokens do not count as computed. These slots are overwritten when the tokens are computed, and
``drop`` zeroes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mini_vllm.attention import slot_mapping
from mini_vllm.backend import mx
from mini_vllm.logit_rules import SamplerRow
from mini_vllm.parts import ModelRunnerPart, SamplerPart, SchedulerPart
from mini_vllm.request import Request
from mini_vllm.sampler import ChosenTokens
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.speculation.speculation import Speculation


@dataclass(frozen=True)
class StepAhead:
    """A step that was started before it was planned."""

    requests: list[Request]
    #: The sampler's rows of these requests.
    rows: list[SamplerRow]
    #: It writes into the slot of the last token of each context (``block_tables`` and ``context_lens``).
    block_tables: list[list[int]]
    context_lens: list[int]
    #: The tokens that it computes.
    chosen: ChosenTokens

    def is_planned_by(self, plan: SchedulerOutput) -> bool:
        return (plan.requests == self.requests and not plan.copies and not plan.drafts
                and all(num_tokens == 1 for num_tokens in plan.num_scheduled_tokens.values()))


class LookAhead:
    """Holds at most one step that was started early, in ``pending``."""

    def __init__(self, max_requests: int, scheduler: SchedulerPart, runner: ModelRunnerPart, sampler: SamplerPart,
                 speculation: Speculation) -> None:
        """Create it without a pending step.

        Steps of more than ``max_requests`` are not started early; 0 starts none. Steps in which drafts are expected to
        gain more are not started early either.
        """
        self.max_requests, self.max_num_seqs = max_requests, scheduler.max_num_seqs
        self._scheduler, self._runner, self._sampler, self._speculation = scheduler, runner, sampler, speculation
        self.pending: StepAhead | None = None
        #: Started steps that were not used: another step was planned, or the device raised an error.
        self.num_dropped = 0

    def begin_next(self, requests: list[Request], rows: Sequence[SamplerRow], chosen: ChosenTokens) -> None:
        """Start the step after the one that computes ``chosen``, one token for each of ``requests``, if that is wise.

        It must not delay a request's first token, and it can use only tokens that depend on no rule.
        """
        if len(requests) > self.max_requests or not all(
                row.is_plain and request.output_token_ids for request, row in zip(requests, rows)):
            return
        indices = [index for index, request in enumerate(requests) if not _ends_now(request)]
        staying = [requests[index] for index in indices]
        if self._is_likely(staying):
            token_ids = chosen.token_ids if len(staying) == len(requests) else chosen.token_ids[mx.array(indices)]
            self._begin(staying, [rows[index] for index in indices], token_ids)

    def _is_likely(self, staying: list[Request]) -> bool:
        """Check whether at least one request continues and no waiting request could be admitted."""
        has_seat = sum(request.num_sequences for request in staying) < self.max_num_seqs
        return (bool(staying) and not (has_seat and self._scheduler.waiting)
                and not self._speculation.beats_lookahead(staying))

    def _begin(self, requests: list[Request], rows: list[SamplerRow], token_ids: mx.array) -> None:
        """Allocate a slot for each of ``requests``, and start the step if all have one and no block must be copied.

        Otherwise the slots allocated so far are kept: the next plan needs the same ones.
        """
        kv_cache = self._scheduler.kv_cache
        for request in requests:
            if kv_cache.allocate_slots(request, 1) is None or kv_cache.block_pool.pending_copies:
                return
        block_tables = [kv_cache.get_block_ids(request.request_id) for request in requests]
        context_lens = [request.num_computed_tokens + 1 for request in requests]
        try:
            logits = self._runner.step_ahead(token_ids, block_tables, context_lens)
            following = self._sampler.choose(logits, rows, num_ahead=1)
        except RuntimeError:  # for example, the device is out of memory; the step itself will show it
            self.num_dropped += 1
            return
        self.pending = StepAhead(requests, rows, block_tables, context_lens, following)

    def has_started(self, plan: SchedulerOutput) -> bool:
        """Check whether ``plan`` is the step that was started."""
        return self.pending is not None and self.pending.is_planned_by(plan)

    def take(self, plan: SchedulerOutput) -> StepAhead | None:
        """Return the step that was started if ``plan`` is that step. Otherwise drop it and return None."""
        if not self.has_started(plan):
            self.drop()
        ahead, self.pending = self.pending, None
        return ahead

    def drop(self) -> None:
        """Drop the step that was started, if there is one: the guess was wrong.

        It may have written NaN, which would spoil the next request that gets the block. Masking does not help, since 0
        times NaN is NaN, so its slots are zeroed.
        """
        ahead, self.pending = self.pending, None
        if ahead is not None:
            self.num_dropped += 1
            ahead.chosen.end()
            slots = slot_mapping(ahead.block_tables, np.array(ahead.context_lens) - 1, range(len(ahead.requests) + 1),
                                 self._scheduler.kv_cache.block_size)
            self._runner.cache.clear_slots(slots)

    def drop_step_of(self, request: Request) -> None:
        """Drop the step that was started if it computes a token of ``request``, which ends now."""
        if self.pending is not None and request in self.pending.requests:
            self.drop()


def _ends_now(request: Request) -> bool:
    """Check whether the token that is being computed is the request's last, whatever it is."""
    return len(request.output_token_ids) + 1 >= (request.sampling_params.max_tokens or math.inf)
