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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from mini_vllm.attention import slot_mapping
from mini_vllm.backend import mx
from mini_vllm.fast.tuning import compiled_on_gpu
from mini_vllm.native.sampler import NativeSampler
from mini_vllm.native.weights import Array
from mini_vllm.parts import KVCacheManagerPart, ModelRunnerPart, SamplerPart, SchedulerPart
from mini_vllm.request import Request
from mini_vllm.sampling.row import SamplerRow
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.sequences import LiveRequests
from mini_vllm.speculation.speculation import Speculation


@dataclass(frozen=True)
class ChosenTokens:
    """One token for each of several rows of logits. They may not be computed yet."""

    #: [num_rows]
    token_ids: mx.array
    #: The largest logit of each row, or NaN if the row contains one; [num_rows, 1].
    largest: mx.array

    def begin(self) -> None:
        """Start computing the tokens on the device, without waiting."""
        mx.async_eval(self.token_ids, self.largest)

    def end(self) -> None:
        """Wait until nothing is written any more, if another thread computes the tokens."""

    def wait(self) -> list[int]:
        """Wait for the tokens and return them.

        Raise ValueError if the largest logit of a row is NaN or infinite: the model is broken, and any token would be
        meaningless. The check computes nothing new: a new computation would have to wait for the next step, which may
        already have been started.
        """
        for row, (score,) in enumerate(cast(list[list[float]], self.largest.tolist())):
            if math.isnan(score):
                raise ValueError(f"row {row}: the logits contain NaN")
            if math.isinf(score):
                raise ValueError(f"row {row}: " + ("a logit is +inf" if score > 0 else "all logits are -inf"))
        return cast(list[int], self.token_ids.tolist())


class StartedTokens(ChosenTokens):
    """Tokens that are chosen when another thread has computed their logits."""

    def __init__(self, logits: Future[Array], choose: Callable[[Array], Array]) -> None:
        self._logits, self._choose = logits, choose

    @cached_property
    def _choices(self) -> Array:
        return self._choose(self._logits.result())

    @property
    def token_ids(self) -> mx.array:
        return mx.array(self._choices["token"])

    @property
    def largest(self) -> mx.array:
        return mx.array(self._choices["largest"][:, None])

    def begin(self) -> None:
        """Do nothing: the thread has begun."""

    def end(self) -> None:
        self._logits.exception()


def choose_tokens(sampler: SamplerPart, logits: mx.array | Future[Array], rows: Sequence[SamplerRow], num_ahead: int = 0
                  ) -> ChosenTokens:
    """Choose a token for each row. The rows' parameters must be plain (``is_plain``). Nothing is computed yet,
    except by a NativeSampler."""
    if isinstance(logits, Future):
        if isinstance(sampler, NativeSampler):
            return StartedTokens(logits, sampler.choosing(rows, num_ahead))
        logits = mx.array(logits.result())
    if isinstance(sampler, NativeSampler):
        choices = sampler.choose(logits, rows, num_ahead)
        return ChosenTokens(mx.array(choices["token"]), mx.array(choices["largest"][:, None]))
    if all(row.params.temperature == 0 for row in rows):
        token_ids = sampler.greedy(logits)  # argmax chooses a NaN if there is one, so it is found below
        return ChosenTokens(token_ids, mx.take_along_axis(logits, token_ids[:, None], axis=-1))
    return ChosenTokens(sampler.draw(logits, rows, num_ahead), _largest(logits))


@compiled_on_gpu
def _largest(logits: mx.array) -> mx.array:
    return mx.where(mx.isnan(logits).any(axis=-1, keepdims=True), mx.nan, logits.max(axis=-1, keepdims=True))


@dataclass(frozen=True)
class StepAhead:
    """A step that was started before it was planned."""

    requests: list[Request]
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

    def __init__(self, max_requests: int, max_num_seqs: int, scheduler: SchedulerPart, kv_cache: KVCacheManagerPart,
                 runner: ModelRunnerPart, sampler: SamplerPart, live: LiveRequests, speculation: Speculation) -> None:
        """Create it without a pending step.

        Steps of more than ``max_requests`` are not started early; 0 starts none. Steps in which drafts are expected to
        gain more are not started early either.
        """
        self.max_requests, self.max_num_seqs = max_requests, max_num_seqs
        self._scheduler, self._kv_cache, self._live = scheduler, kv_cache, live
        self._runner, self._sampler, self._speculation = runner, sampler, speculation
        self.pending: StepAhead | None = None
        #: Started steps that were not used: another step was planned, or the device raised an error.
        self.num_dropped = 0

    def begin_next(self, requests: list[Request], chosen: ChosenTokens) -> None:
        """Start the step after the one that computes ``chosen``, one token for each of ``requests``."""
        chosen.begin()
        if len(requests) <= self.max_requests:
            indices = [index for index, request in enumerate(requests) if not _ends_now(request)]
            staying = [requests[index] for index in indices]
            if self._is_likely(staying):
                all_stay = len(staying) == len(requests)
                self._begin(staying, chosen.token_ids if all_stay else chosen.token_ids[mx.array(indices)])

    def _is_likely(self, staying: list[Request]) -> bool:
        """Check whether at least one request continues and no waiting request could be admitted."""
        has_seat = sum(request.num_sequences for request in staying) < self.max_num_seqs
        return (bool(staying) and not (has_seat and self._scheduler.waiting)
                and not self._speculation.beats_lookahead(staying))

    def _begin(self, requests: list[Request], token_ids: mx.array) -> None:
        """Allocate a slot for each of ``requests``, and start the step if all have one and no block must be copied.

        Otherwise the slots allocated so far are kept: the next plan needs the same ones.
        """
        for request in requests:
            if self._kv_cache.allocate_slots(request, 1) is None or self._kv_cache.block_pool.pending_copies:
                return
        block_tables = [self._kv_cache.get_block_ids(request.request_id) for request in requests]
        context_lens = [request.num_computed_tokens + 1 for request in requests]
        rows = [self._live.sequence(request.request_id).row for request in requests]
        try:
            logits = self._runner.step_ahead(token_ids, block_tables, context_lens)
            following = choose_tokens(self._sampler, logits, rows, num_ahead=1)
            following.begin()
        except RuntimeError:  # for example, the device is out of memory; the step itself will show it
            self.num_dropped += 1
            return
        self.pending = StepAhead(list(requests), block_tables, context_lens, following)

    def has_started(self, plan: SchedulerOutput) -> bool:
        """Check whether ``plan`` is the step that was started."""
        return self.pending is not None and self.pending.is_planned_by(plan)

    def take(self, plan: SchedulerOutput) -> ChosenTokens | None:
        """Return the tokens of ``plan`` if it is the step that was started.

        Otherwise drop that step and return None.
        """
        ahead = self.pending
        if ahead is None or not ahead.is_planned_by(plan):
            self.drop()
            return None
        self.pending = None
        return ahead.chosen

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
                                 self._kv_cache.block_size)
            self._runner.cache.clear_slots(slots)

    def drop_step_of(self, request: Request) -> None:
        """Drop the step that was started if it computes a token of ``request``, which ends now."""
        if self.pending is not None and request in self.pending.requests:
            self.drop()


def _ends_now(request: Request) -> bool:
    """Check whether the token that is being computed is the request's last, whatever it is."""
    return len(request.output_token_ids) + 1 >= (request.sampling_params.max_tokens or math.inf)
