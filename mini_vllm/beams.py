"""The beams of one search in the KV cache: computed together, forked, and freed.

    prompt ──▶ beam 1 ──▶ "the"  ──▶ "the king"     a beam with two continuations is forked: only its last block is
                     └──▶ "the"  ──▶ "the queen"    copied, on the first write
               beam 2 ──▶ dropped                   its blocks are freed

A beam is a request that only the cache manager and the model runner know. The scheduler must hold no requests
meanwhile: it would hand out blocks that the beams rely on.
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
    """A live beam extended by one token, and the log-probability of the whole."""

    parent: int
    token_id: int
    log_probability: float


class Beams:
    """The live beams of a search.

    ``live`` beams are equally long, likeliest first. At the start there is one, the prompt.
    """

    def __init__(self, engine: LLMEngine, prompt_token_ids: list[int], beam_width: int) -> None:
        self._engine, self._kv_cache, self._beam_width = engine, engine.kv_cache, beam_width
        self._numbers = itertools.count()
        self._num_prompt_tokens = len(prompt_token_ids)
        self.live = [LiveBeam(self._new_request(prompt_token_ids), 0.0)]

    def _new_request(self, token_ids: list[int]) -> Request:
        return Request(f"beam-{next(self._numbers)}", token_ids)

    def output(self, index: int) -> list[int]:
        """Return the tokens of a live beam, without the prompt."""
        return self.live[index].request.all_token_ids[self._num_prompt_tokens:]

    # ---- the model

    def compute_prompt(self) -> mx.array:
        """Return the logits [1, vocab_size] after the prompt.

        A prompt longer than a step allows is computed in chunks.
        """
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
        """Return the logits [num_live, vocab_size] after the last token of every beam."""
        return self._compute([(beam.request, 1) for beam in self.live])

    def _compute(self, work: list[tuple[Request, int]], hits: list[KVCacheBlock] | None = None, num_hit_tokens: int = 0
                 ) -> mx.array:
        """Run one step that computes the next tokens of each request, after adopting ``hits``.

        Return the last logits of each request.
        """
        pool = self._kv_cache.block_pool
        for request, num_new in work:
            if self._kv_cache.allocate_slots(request, num_new, hits, num_hit_tokens) is None:
                raise RuntimeError(f"the pool is too small for this beam search: it has {pool.num_blocks - 1} blocks "
                                   f"of {self._kv_cache.block_size} tokens for {self._beam_width} beams")
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

    # ---- which beams continue

    def replace(self, chosen: list[Continuation]) -> None:
        """Replace the live beams by the ``chosen`` continuations.

        The first continuation of a beam reuses it, each further one forks it, and a beam without continuations is
        freed.
        """
        taken: set[int] = set()
        new_live: list[LiveBeam] = []
        for parent_index, _, log_probability in chosen:
            request = self.live[parent_index].request
            new_live.append(LiveBeam(self._fork(request) if parent_index in taken else request, log_probability))
            taken.add(parent_index)
        for index, beam in enumerate(self.live):
            if index not in taken:
                self._kv_cache.free(beam.request)
        for beam, continuation in zip(new_live, chosen):  # after all forks: a fork takes over the tokens from before
            beam.request.append_output_token(continuation.token_id)
        self.live = new_live

    def _fork(self, parent: Request) -> Request:
        child = self._new_request(parent.all_token_ids[:parent.num_computed_tokens])
        child.num_computed_tokens = parent.num_computed_tokens
        self._kv_cache.fork(parent, child)
        return child

    def close(self, is_trusted: bool) -> None:
        """Free all blocks. If their content is not trusted, it is also removed from the index."""
        block_ids = {block_id for beam in self.live for block_id in self._kv_cache.get_block_ids(
            beam.request.request_id)}
        for beam in self.live:
            self._kv_cache.free(beam.request)
        self._kv_cache.finish_step()  # ends the copies of a step that failed; they also hold blocks
        if not is_trusted:
            self._engine.discard(block_ids)
