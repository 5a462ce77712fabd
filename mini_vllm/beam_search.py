"""Beam search on top of fork: the prompt is computed and stored once, and beams share what they have in common.

    prompt ──▶ beam 1 ──▶ "the"  ──▶ "the king"     a beam that goes on twice is forked: its tail is copied on the
                     └──▶ "the"  ──▶ "the queen"    first write, nothing else
               beam 2 ──▶ dropped                   its blocks come home
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.model_runner import RequestStep
from mini_vllm.prompts import Prompt
from mini_vllm.request import Request, SamplingParams


@dataclass(frozen=True)
class Beam:
    """One finished continuation. ``score`` is its log-probability, over ``length ** length_penalty``."""

    token_ids: list[int]
    text: str
    log_probability: float
    score: float
    finish_reason: str


def beam_search(engine: LLMEngine, prompt: Prompt, beam_width: int = 4, max_tokens: int = 16,
                length_penalty: float = 1.0, ignore_eos: bool = False) -> list[Beam]:
    """The ``beam_width`` best continuations that the search finds, best first.

    The engine must be idle: beams take blocks as they need them. Raises ValueError for what can never be served or is
    not a number, and RuntimeError when the pool is too small on the way; all blocks have come home then.
    """
    if beam_width < 1:
        raise ValueError(f"beam_width is {beam_width}, must be at least 1")
    if engine.has_unfinished_requests():
        raise RuntimeError("beam_search needs an idle engine; it has unfinished requests")
    token_ids = engine.prompts.read(prompt).token_ids
    max_tokens = min(SamplingParams(max_tokens=max_tokens).max_tokens, engine.max_model_len - len(token_ids))
    search = _Search(engine, token_ids, beam_width, max_tokens, () if ignore_eos else engine.tokenizer.eos_token_ids)
    doubtful: set[int] = set()
    try:
        finished = search.run()
    except BaseException:
        for request, _ in search.live:
            doubtful.update(engine.kv_cache.get_block_ids(request.request_id))
        raise
    finally:
        for request, _ in search.live:
            engine.kv_cache.free(request)
        engine.kv_cache.finish_step()  # copies that a step was to make and did not hold blocks, too
        engine.recovery.discard(doubtful)
    beams = [Beam(ids, engine.tokenizer.decode(ids), log_probability,
                  log_probability / max(len(ids), 1) ** length_penalty, reason)
             for ids, log_probability, reason in finished]
    return sorted(beams, key=lambda beam: -beam.score)[:beam_width]


class _Search:
    def __init__(self, engine: LLMEngine, token_ids: list[int], beam_width: int, max_tokens: int, eos_ids) -> None:
        self.engine, self.beam_width, self.max_tokens, self.eos_ids = engine, beam_width, max_tokens, eos_ids
        self.ids = itertools.count()
        self.live: list[tuple[Request, float]] = [(self._new_request(token_ids), 0.0)]
        self.num_prompt_tokens = len(token_ids)

    def _new_request(self, token_ids: list[int]) -> Request:
        return Request(f"beam-{next(self.ids)}", token_ids)

    def run(self) -> list[tuple[list[int], float, str]]:
        finished: list[tuple[list[int], float, str]] = []
        logits = self._compute_prompt(self.live[0][0])
        for num_tokens in range(1, self.max_tokens + 1):
            ended = self._extend(logits)
            finished += [(ids, score, "stop") for ids, score in ended]
            if num_tokens == self.max_tokens or not self.live:
                break
            if len(finished) >= self.beam_width and self.live[0][1] < sorted(f[1] for f in finished)[-self.beam_width]:
                return finished  # a log-probability only falls: what is live cannot become one of the best
            logits = self._compute([(request, 1) for request, _ in self.live])
        return finished + [(request.all_token_ids[self.num_prompt_tokens:], score, "length")
                           for request, score in self.live]

    def _extend(self, logits: mx.array) -> list[tuple[list[int], float]]:
        """Replace the live beams by their best continuations. Returns those that ended."""
        log_probabilities = logits.astype(mx.float32) - mx.logsumexp(logits.astype(mx.float32), axis=-1, keepdims=True)
        totals = log_probabilities + mx.array([score for _, score in self.live])[:, None]
        num_candidates = min(2 * self.beam_width, totals.size)
        order = mx.argsort(-totals.reshape(-1))[:num_candidates].tolist()
        scores = totals.reshape(-1)[mx.array(order)].tolist()
        chosen: list[tuple[int, int, float]] = []
        ended = []
        for flat, score in zip(order, scores):
            parent, token_id = divmod(flat, logits.shape[-1])
            if token_id in self.eos_ids:
                ended.append(([*self.live[parent][0].all_token_ids[self.num_prompt_tokens:], token_id], score))
            elif len(chosen) < self.beam_width:
                chosen.append((parent, token_id, score))
        self._replace(chosen)
        return ended

    def _replace(self, chosen: list[tuple[int, int, float]]) -> None:
        """The first continuation of a beam takes it over, each further one forks it, and a beam without any goes."""
        kv_cache = self.engine.kv_cache
        taken: set[int] = set()
        new_live = []
        for parent_index, token_id, score in chosen:
            parent = self.live[parent_index][0]
            if parent_index in taken:
                request = self._new_request(parent.all_token_ids[:parent.num_computed_tokens])
                request.num_computed_tokens = parent.num_computed_tokens
                kv_cache.fork(parent, request)
            else:
                taken.add(parent_index)
                request = parent
            new_live.append((request, token_id, score))
        for index, (request, _) in enumerate(self.live):
            if index not in taken:
                kv_cache.free(request)
        for request, token_id, _ in new_live:
            request.append_output_token(token_id)
        self.live = [(request, score) for request, _, score in new_live]

    def _compute_prompt(self, request: Request) -> mx.array:
        hits, num_cached = self.engine.kv_cache.get_computed_blocks(request)
        request.num_computed_tokens = 0
        budget = self.engine.max_num_batched_tokens
        logits = None
        while logits is None:
            num_new = min(request.num_tokens - num_cached, budget)
            logits = self._compute([(request, num_new)], hits, num_cached - request.num_computed_tokens)
            hits, num_cached = [], request.num_computed_tokens
            if num_cached < request.num_tokens:
                logits = None
        return logits

    def _compute(self, work: list[tuple[Request, int]], hits: list | None = None, num_hit_tokens: int = 0) -> mx.array:
        kv_cache, runner = self.engine.kv_cache, self.engine.runner
        for request, num_new in work:
            if kv_cache.allocate_slots(request, num_new, hits, num_hit_tokens) is None:
                raise RuntimeError(f"the pool is too small for this beam search: {kv_cache.block_pool.num_blocks - 1} "
                                   f"blocks of {kv_cache.block_size} tokens, {self.beam_width} beams")
            request.num_computed_tokens += num_hit_tokens + num_new
        steps = [RequestStep(request.all_token_ids[request.num_computed_tokens - num_new:request.num_computed_tokens],
                             kv_cache.get_block_ids(request.request_id), request.num_computed_tokens, True)
                 for request, num_new in work]
        logits = runner.step(steps, [(a.block_id, b.block_id) for a, b in kv_cache.block_pool.pending_copies])
        has_nan = mx.isnan(logits).any()
        mx.eval(logits, has_nan)
        kv_cache.finish_step()
        if has_nan.item():
            raise ValueError("the logits contain NaN")
        return logits
