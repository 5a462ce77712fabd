"""The beams of one search as they stand in the KV cache: computed together, forked, and given back.

    prompt ──▶ beam 1 ──▶ "the"  ──▶ "the king"     a beam that goes on twice is forked: its tail is copied on the
                     └──▶ "the"  ──▶ "the queen"    first write, nothing else
               beam 2 ──▶ dropped                   its blocks come home

A beam is a request that only the cache manager and the model runner know. The scheduler must have none of its own: it
would give away the blocks that beams count on.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from mini_vllm.backend import mx
from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.engine import LLMEngine
from mini_vllm.model_runner import RequestStep
from mini_vllm.request import Request


@dataclass
class LiveBeam:
    request: Request
    log_probability: float


class Continuation(NamedTuple):
    """One more token for a live beam, and the log-probability of the two together."""

    parent: int
    token_id: int
    log_probability: float


class Beams:
    """``live`` beams are equally long, likeliest first. At the beginning there is one, the prompt."""

    def __init__(self, engine: LLMEngine, prompt_token_ids: list[int], beam_width: int) -> None:
        self._engine, self._kv_cache, self._beam_width = engine, engine.kv_cache, beam_width
        self._numbers = itertools.count()
        self._num_prompt_tokens = len(prompt_token_ids)
        self.live = [LiveBeam(self._new_request(prompt_token_ids), 0.0)]

    def _new_request(self, token_ids: list[int]) -> Request:
        return Request(f"beam-{next(self._numbers)}", token_ids)

    def output(self, index: int) -> list[int]:
        """The tokens of a live beam, without the prompt."""
        return self.live[index].request.all_token_ids[self._num_prompt_tokens:]

    # ---- the model

    def compute_prompt(self) -> mx.array:
        """Logits [1, vocab_size] after the prompt, computed in chunks if it is longer than a step may be."""
        request = self.live[0].request
        hits, num_cached = self._kv_cache.get_computed_blocks(request)
        while True:
            num_new = min(request.num_tokens - request.num_computed_tokens - num_cached,
                          self._engine.max_num_batched_tokens)
            logits = self._compute([(request, num_new)], hits, num_cached)
            if request.num_computed_tokens == request.num_tokens:
                return logits
            hits, num_cached = [], 0

    def compute_next(self) -> mx.array:
        """Logits [num_live, vocab_size] after the last token of every beam."""
        return self._compute([(beam.request, 1) for beam in self.live])

    def _compute(self, work: list[tuple[Request, int]], hits: list[KVCacheBlock] | None = None, num_hit_tokens: int = 0
                 ) -> mx.array:
        """One step: each request's next tokens, after ``hits`` that are adopted first. Logits of the last of each."""
        pool = self._kv_cache.block_pool
        for request, num_new in work:
            if self._kv_cache.allocate_slots(request, num_new, hits, num_hit_tokens) is None:
                raise RuntimeError(f"the pool is too small for this beam search: {pool.num_blocks - 1} blocks of "
                                   f"{self._kv_cache.block_size} tokens, {self._beam_width} beams")
            request.num_computed_tokens += num_hit_tokens + num_new
        self._engine.num_steps += 1
        self._engine.counts.note_peaks(len(work), self._kv_cache, [request for request, _ in work])
        steps = [RequestStep(request.all_token_ids[request.num_computed_tokens - num_new:request.num_computed_tokens],
                             self._kv_cache.get_block_ids(request.request_id), request.num_computed_tokens, True)
                 for request, num_new in work]
        logits = self._engine.runner.step(steps, [(source.block_id, copy.block_id)
                                                  for source, copy in pool.pending_copies])
        has_nan = mx.isnan(logits).any()
        mx.eval(logits, has_nan)
        self._kv_cache.finish_step()
        if has_nan.item():
            raise ValueError("the logits contain NaN")
        return logits

    # ---- who goes on

    def replace(self, chosen: list[Continuation]) -> None:
        """The first continuation of a beam takes it over, each further one forks it, and a beam without any goes."""
        taken: set[int] = set()
        new_live: list[LiveBeam] = []
        for parent_index, _, log_probability in chosen:
            request = self.live[parent_index].request
            new_live.append(LiveBeam(self._fork(request) if parent_index in taken else request, log_probability))
            taken.add(parent_index)
        for index, beam in enumerate(self.live):
            if index not in taken:
                self._kv_cache.free(beam.request)
        for beam, continuation in zip(new_live, chosen):  # not before all are forked: a fork has the tokens of before
            beam.request.append_output_token(continuation.token_id)
        self.live = new_live

    def _fork(self, parent: Request) -> Request:
        child = self._new_request(parent.all_token_ids[:parent.num_computed_tokens])
        child.num_computed_tokens = parent.num_computed_tokens
        self._kv_cache.fork(parent, child)
        return child

    def close(self, is_trusted: bool) -> None:
        """All blocks come home. If what they hold is not trusted, nobody finds it again."""
        block_ids = {block_id for beam in self.live for block_id in self._kv_cache.get_block_ids(
            beam.request.request_id)}
        for beam in self.live:
            self._kv_cache.free(beam.request)
        self._kv_cache.finish_step()  # copies that a step was to make and did not hold blocks, too
        if not is_trusted:
            self._engine.discard(block_ids)
