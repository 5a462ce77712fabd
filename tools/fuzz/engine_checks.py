"""Checks at the end of a schedule: nothing is left behind, and each request generated what it generates alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fuzz.alone import LOGPROB_TOLERANCE, Alone
from fuzz.expect import expect
from fuzz.work import Work, is_unseeded, num_common
from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.request import CompletionOutput, RequestOutput, TokenLogprob


def check_is_empty(engine: LLMEngine) -> None:
    engine.kv_cache.check_integrity()
    usage = engine.kv_cache.block_pool.get_usage()
    expect(usage == 0.0, f"all requests have ended, but {usage:.0%} of the blocks are in use")
    expect(not engine.scheduler.has_unfinished_requests(), "the scheduler still has requests")


def check_holds_no_nan(engine: LLMEngine) -> None:
    broken = {int(block_id) for pool in engine.runner.cache.pools
              for block_id in np.flatnonzero(np.array(mx.isnan(pool).any(axis=(1, 2, 3))))}
    expect(not broken, f"the blocks {sorted(broken)} hold NaN for their next owner")


@dataclass
class WorkChecks:
    """Compares each request with the same request alone."""

    works: list[Work]
    alone: Alone
    #: The number of slots in the pool.
    capacity: int
    #: Whether a prefix can be found at all, and whether beam searches, whose beams are not recorded, may have cached
    #: some.
    enable_prefix_caching: bool
    has_searched_beams: bool
    tried: Counter[str]

    def check_all(self) -> None:
        for work in self.works:
            self._check_usage(work, work.last_output)
            self._check_outputs(work, work.last_output)

    def _check_usage(self, work: Work, output: RequestOutput) -> None:
        usage = output.usage
        num_cached = usage.prompt_tokens_details.cached_tokens
        expect(usage.prompt_tokens == len(work.prompt)
               and usage.completion_tokens == sum(len(each.token_ids) for each in output.outputs),
               f"{work}: usage is {usage}")
        bound = self._num_findable(work)
        expect(num_cached <= bound, f"{work} found {num_cached} tokens, but others with its keys have only {bound}")
        self.tried["prefix hits"] += num_cached > 0
        self.tried["tokens"] += usage.completion_tokens

    def _num_findable(self, work: Work) -> int:
        """Return an upper bound on the prompt tokens that other requests may have left in the cache."""
        if not self.enable_prefix_caching:
            return 0
        if self.has_searched_beams and not work.extra_keys:
            return len(work.prompt) - 1  # the tokens of dropped beams are not recorded
        others = [other.prompt + each.token_ids for other in self.works for each in other.last_output.outputs
                  if other is not work and (other.extra_keys or None) == (work.extra_keys or None)]
        longest = max((num_common(work.prompt, other) for other in others), default=0)
        return min(longest, len(work.prompt) - 1)

    def _check_outputs(self, work: Work, output: RequestOutput) -> None:
        is_lost = output.error is not None and "the plan is lost" in output.error
        has_failed = output.error is not None and not is_lost
        if has_failed:
            self.tried["failed requests"] += 1
        if is_unseeded(work.params):
            return
        expected = self.alone.output(work.prompt, work.params, work.poison)
        reasons = {each.finish_reason for each in output.outputs}
        is_cut = bool(reasons & {"abort", "kv_cache_full"}) or output.error is not None
        if not is_cut or has_failed:
            expect((output.error is None) == (expected.error is None),
                   f"{work}: error {output.error!r}, alone {expected.error!r}")
        for completion, wanted in zip(output.outputs, expected.outputs):
            if completion.finish_reason == "kv_cache_full":
                num_tokens = len(work.prompt) + len(completion.token_ids)
                expect(num_tokens == self.capacity + 1, f"{work}: sequence {completion.index} outgrew the pool of "
                                                        f"{self.capacity} slots with {num_tokens} tokens")
            self._check_completion(work, completion, wanted, is_cut)

    def _check_completion(self, work: Work, got: CompletionOutput, wanted: CompletionOutput, is_cut: bool) -> None:
        """Check that tokens, text, reason and log-probabilities are the same as alone, as far as the sequence got."""
        num_same = num_common(got.token_ids, wanted.token_ids)
        num_both = min(len(got.token_ids), len(wanted.token_ids))
        if num_same < num_both and self.alone.is_tie(work, got, wanted, num_same):
            self.tried["ties"] += 1
            return
        what = f"{work}\n  sequence {got.index} gave {got.token_ids}\n  alone it gives {wanted.token_ids}"
        expect(num_same == num_both, f"{what}\n  they differ at output token {num_same}")
        if not is_cut or got.finish_reason in ("stop", "length") and wanted.finish_reason in ("stop", "length"):
            expect((len(got.token_ids), got.text, got.finish_reason, got.stop_reason)
                   == (len(wanted.token_ids), wanted.text, wanted.finish_reason, wanted.stop_reason),
                   f"{what}\n  {got}\n  {wanted}")
        if got.logprobs is not None:
            expect(len(got.logprobs) == len(got.token_ids), f"{what}\n  {len(got.logprobs)} log-probabilities")
            for mine, theirs in zip(got.logprobs, wanted.logprobs or []):
                expect(_are_near(mine, theirs), f"{what}\n  {mine}\n  {theirs}")


def _are_near(mine: TokenLogprob, theirs: TokenLogprob) -> bool:
    pairs = [(mine.logprob, theirs.logprob),
             *((a.logprob, b.logprob) for a, b in zip(mine.top.values(), theirs.top.values()))]
    return all(abs(a - b) <= LOGPROB_TOLERANCE for a, b in pairs)
