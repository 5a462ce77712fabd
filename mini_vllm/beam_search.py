"""Beam search on top of fork: the prompt is computed and stored once, and beams share what they have in common.

    prompt ──▶ beam 1 ──▶ "the"  ──▶ "the king"     a beam that goes on twice is forked: its tail is copied on the
                     └──▶ "the"  ──▶ "the queen"    first write, nothing else
               beam 2 ──▶ dropped                   its blocks come home
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mini_vllm.backend import mx
from mini_vllm.checks import flag, real_number, whole_number
from mini_vllm.engine import LLMEngine
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.prompts import Prompt, as_list
from mini_vllm.request import Request

#: Far beyond any use, and ``length ** length_penalty`` overflows for no length there is.
MAX_LENGTH_PENALTY = 20


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
    check_arguments(engine, beam_width, max_tokens, length_penalty, ignore_eos)
    token_ids = engine.prompts.read(prompt).token_ids
    max_tokens = min(max_tokens, engine.max_model_len - len(token_ids))
    eos_ids = frozenset() if ignore_eos else engine.tokenizer.eos_token_ids
    search = _Search(engine, token_ids, beam_width, max_tokens, length_penalty, eos_ids)
    doubtful: set[int] = set()
    try:
        search.run()
    except BaseException:
        for request, _ in search.live:
            doubtful.update(engine.kv_cache.get_block_ids(request.request_id))
        raise
    finally:
        for request, _ in search.live:
            engine.kv_cache.free(request)
        engine.kv_cache.finish_step()  # copies that a step was to make and did not hold blocks, too
        engine.recovery.discard(doubtful)
    return [Beam(ended.token_ids, engine.tokenizer.decode(ended.shown_token_ids), ended.log_probability, ended.score,
                 ended.finish_reason) for ended in search.best]


def beam_search_all(engine: LLMEngine, prompts: Prompt | Sequence[Prompt], beam_width: int = 4, max_tokens: int = 16,
                    length_penalty: float = 1.0, ignore_eos: bool = False) -> list[list[Beam]]:
    """``beam_search`` for one prompt after the other. All are checked before the first is computed."""
    check_arguments(engine, beam_width, max_tokens, length_penalty, ignore_eos)
    read = []
    for number, prompt in enumerate(as_list(prompts), 1):
        try:
            read.append(engine.prompts.read(prompt))
        except ValueError as error:
            raise ValueError(f"prompt {number}: {error}") from None
    return [beam_search(engine, prompt, beam_width, max_tokens, length_penalty, ignore_eos) for prompt in read]


def check_arguments(engine: LLMEngine, beam_width: int, max_tokens: int, length_penalty: float,
                    ignore_eos: bool) -> None:
    """All but the prompt. Raises ValueError for what is wrong, by name, and RuntimeError if the engine is not idle."""
    limit = engine.max_num_batched_tokens  # a step computes a token of every beam
    if whole_number("beam_width", beam_width, 1) > limit:
        raise ValueError(f"beam_width is {beam_width}, must be at most max_num_batched_tokens ({limit})")
    whole_number("max_tokens", max_tokens, 1)
    real_number("length_penalty", length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
    flag("ignore_eos", ignore_eos)
    if engine.scheduler.has_unfinished_requests():
        raise RuntimeError("beam_search needs an idle engine; it has unfinished requests")


# ---- the search


class _Ended(NamedTuple):
    token_ids: list[int]
    log_probability: float
    score: float
    finish_reason: str

    @property
    def shown_token_ids(self) -> list[int]:
        """A token that ends a text shows none of its own."""
        return self.token_ids[:-1] if self.finish_reason == "stop" else self.token_ids


class _Search:
    """``live`` beams are equally long, likeliest first; ``best`` are the best ``beam_width`` of those that ended."""

    def __init__(self, engine: LLMEngine, token_ids: list[int], beam_width: int, max_tokens: int,
                 length_penalty: float, eos_ids: frozenset[int]) -> None:
        self.engine, self.beam_width, self.max_tokens = engine, beam_width, max_tokens
        self.length_penalty, self.eos_ids = length_penalty, eos_ids
        self.ids = itertools.count()
        self.live: list[tuple[Request, float]] = [(self._new_request(token_ids), 0.0)]
        self.best: list[_Ended] = []
        self.num_prompt_tokens = len(token_ids)

    def _new_request(self, token_ids: list[int]) -> Request:
        return Request(f"beam-{next(self.ids)}", token_ids)

    def run(self) -> None:
        logits = self._compute_prompt(self.live[0][0])
        for num_tokens in range(1, self.max_tokens + 1):
            self._end(self._extend(logits), "stop")
            if num_tokens == self.max_tokens:
                self._end([(self._output(request), value) for request, value in self.live], "length")
            elif self._is_decided(num_tokens):
                return
            else:
                logits = self._compute([(request, 1) for request, _ in self.live])

    def _is_decided(self, num_tokens: int) -> bool:
        """No live beam, now ``num_tokens`` long, can end among the best.

        A log-probability only falls, so at best it stays as it is while the beam grows. Its score then rises with every
        token if the penalty is above 0 and falls if it is below: the best end is the last one or the next.
        """
        if not self.live:
            return True
        if len(self.best) < self.beam_width:
            return False
        likeliest = self.live[0][1]
        reachable = max(self._score(likeliest, num_tokens + 1), self._score(likeliest, self.max_tokens))
        return reachable <= self.best[-1].score

    def _score(self, log_probability: float, num_tokens: int) -> float:
        return log_probability / num_tokens ** self.length_penalty

    def _end(self, beams: list[tuple[list[int], float]], reason: str) -> None:
        """Of equal scores, the one that ended earlier stays first."""
        self.best += [_Ended(ids, value, self._score(value, len(ids)), reason) for ids, value in beams]
        self.best = sorted(self.best, key=lambda ended: -ended.score)[:self.beam_width]

    def _output(self, request: Request) -> list[int]:
        return request.all_token_ids[self.num_prompt_tokens:]

    def _extend(self, logits: mx.array) -> list[tuple[list[int], float]]:
        """Replace the live beams by their best continuations. Returns those that ended."""
        logits = logits.astype(mx.float32)
        log_probabilities = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        totals = log_probabilities + mx.array([value for _, value in self.live])[:, None]
        # Even if every live beam ends in every way it can, there are beam_width candidates left that go on.
        num_candidates = min((1 + len(self.eos_ids)) * self.beam_width, totals.size)
        order = mx.argsort(-totals.reshape(-1))[:num_candidates].tolist()
        values = totals.reshape(-1)[mx.array(order)].tolist()
        chosen: list[tuple[int, int, float]] = []
        ended = []
        for flat, value in zip(order, values):
            parent, token_id = divmod(flat, logits.shape[-1])
            if token_id in self.eos_ids:
                ended.append(([*self._output(self.live[parent][0]), token_id], value))
            elif len(chosen) < self.beam_width:
                chosen.append((parent, token_id, value))
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
        self.engine.num_steps += 1
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
