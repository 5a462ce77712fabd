"""Beam search on top of fork: the prompt is computed and stored once, and beams share their common tokens.

Every live beam is extended by every token. The likeliest extensions stay live; those that end compete by score:

    live      "the"  -1.0     "a"  -1.3
    times all tokens, likeliest first:  "the king" -1.5   "a king" -1.9   "the ." -2.0 (ends)   "the queen" -2.2 …
    live      "the king" -1.5     "a king" -1.9              best     "the ." -2.0 / 2 ** length_penalty

A live beam is a request that only the cache manager and the model runner know. The scheduler must hold no requests
meanwhile: it would hand out blocks that the beams rely on.

    prompt ──▶ beam 1 ──▶ "the"  ──▶ "the king"     a beam with two continuations is forked: only its last block is
                     └──▶ "the"  ──▶ "the queen"    copied, on the first write
               beam 2 ──▶ dropped                   its blocks are freed
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from mini_vllm.backend import mx
from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.checks import flag, real_number, whole_number
from mini_vllm.engine import LLMEngine
from mini_vllm.logit_rules import keep_allowed
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.prompts import Prompt, PromptTokens, as_list
from mini_vllm.request import NO_END, Request
from mini_vllm.structured.compiler import Cursor
from mini_vllm.structured.params import StructuredOutputsParams

#: Far beyond any useful value, yet ``length ** length_penalty`` does not overflow for any possible length.
MAX_LENGTH_PENALTY = 20


@dataclass(frozen=True)
class Beam:
    """One finished continuation. ``score`` is its log-probability divided by ``length ** length_penalty``."""

    token_ids: list[int]
    text: str
    log_probability: float
    score: float
    finish_reason: str


def beam_search(engine: LLMEngine, prompt: Prompt | PromptTokens, beam_width: int = 4, max_tokens: int = 16,
                length_penalty: float = 1.0, ignore_eos: bool = False,
                structured_outputs: StructuredOutputsParams | None = None) -> list[Beam]:
    """Return the ``beam_width`` best continuations that the search finds, best first.

    With ``structured_outputs``, only beams that can still match go on; fewer may be found.
    The engine must be idle: beams take blocks as they need them. Raise ValueError for a prompt that can never be served
    and for invalid arguments. Raise RuntimeError if the pool runs out of blocks during the search; all blocks have been
    freed by then.
    """
    check_arguments(engine, beam_width, max_tokens, length_penalty, ignore_eos)
    token_ids = engine.prompts.read(prompt).token_ids
    max_tokens = min(max_tokens, engine.max_model_len - len(token_ids))
    if structured_outputs is not None and ignore_eos:
        raise ValueError(NO_END)
    cursor = engine.inputs.grammars.start(structured_outputs, max_tokens)
    eos_ids = frozenset() if ignore_eos else engine.tokenizer.eos_token_ids
    return _Search(engine, token_ids, beam_width, max_tokens, length_penalty, eos_ids, cursor).run()


def beam_search_all(engine: LLMEngine, prompts: Prompt | Sequence[Prompt], beam_width: int = 4, max_tokens: int = 16,
                    length_penalty: float = 1.0, ignore_eos: bool = False,
                    structured_outputs: StructuredOutputsParams | None = None) -> list[list[Beam]]:
    """Run ``beam_search`` on one prompt after the other. All prompts are checked before the first is computed."""
    check_arguments(engine, beam_width, max_tokens, length_penalty, ignore_eos)
    read = []
    for number, prompt in enumerate(as_list(prompts), 1):
        try:
            read.append(engine.prompts.read(prompt))
        except ValueError as error:
            raise ValueError(f"prompt {number}: {error}") from None
    return [beam_search(engine, prompt, beam_width, max_tokens, length_penalty, ignore_eos, structured_outputs)
            for prompt in read]


def check_arguments(engine: LLMEngine, beam_width: int, max_tokens: int, length_penalty: float,
                    ignore_eos: bool) -> None:
    """Check every argument except the prompt.

    Raise ValueError that names the invalid one, or RuntimeError if the engine is not idle.
    """
    limit = engine.max_num_batched_tokens  # a step computes one token per beam
    whole_number("beam_width", beam_width, 1)
    if beam_width > limit:
        raise ValueError(f"beam_width is {beam_width}, must be at most max_num_batched_tokens ({limit})")
    whole_number("max_tokens", max_tokens, 1)
    real_number("length_penalty", length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
    flag("ignore_eos", ignore_eos)
    if engine.scheduler.has_unfinished_requests():
        raise RuntimeError("beam_search needs an idle engine; it has unfinished requests")


@dataclass
class _LiveBeam:
    """A continuation that goes on."""

    request: Request
    log_probability: float
    #: Its place in the grammar; None if it is free.
    cursor: Cursor | None


class _Search:
    """The state of one search.

    ``live`` beams are equally long, likeliest first; at the start there is one, the prompt. ``best`` holds the best
    ``beam_width`` of the beams that have ended so far.
    """

    def __init__(self, engine: LLMEngine, prompt_token_ids: list[int], beam_width: int, max_tokens: int,
                 length_penalty: float, eos_ids: frozenset[int], cursor: Cursor | None = None) -> None:
        self.engine, self.kv_cache, self.num_prompt_tokens = engine, engine.kv_cache, len(prompt_token_ids)
        self.beam_width, self.max_tokens = beam_width, max_tokens
        self.length_penalty, self.eos_ids = length_penalty, eos_ids
        self._numbers = itertools.count()
        self.live = [_LiveBeam(self._new_request(prompt_token_ids), 0.0, cursor)]
        self.best: list[Beam] = []

    def run(self) -> list[Beam]:
        is_done = False
        try:
            logits = self._compute_prompt()
            for num_tokens in range(1, self.max_tokens + 1):
                self._extend(logits)
                if num_tokens == self.max_tokens:
                    for beam in self.live:
                        self._end(self._output(beam), beam.log_probability, "length")
                elif self._is_decided(num_tokens):
                    break
                else:
                    logits = self._compute([(beam.request, 1) for beam in self.live])
            is_done = True
        finally:
            self._free_all(is_trusted=is_done)
        return self.best

    # ---- which beams continue

    def _extend(self, logits: mx.array) -> None:
        """Replace the live beams by their best extensions, and record those that end."""
        logits = logits.astype(mx.float32)
        log_probabilities = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        totals = log_probabilities + mx.array([beam.log_probability for beam in self.live])[:, None]
        totals = keep_allowed(totals, [None if beam.cursor is None else beam.cursor.allowed() for beam in self.live])
        # Even if every live beam ends in every possible way, beam_width candidates that continue are left.
        num_candidates = min((1 + len(self.eos_ids)) * self.beam_width, totals.size)
        order = mx.argsort(-totals.reshape(-1))[:num_candidates]
        values = cast(list[float], totals.reshape(-1)[order].tolist())
        chosen: list[tuple[_LiveBeam, int, float]] = []
        for flat, value in zip(cast(list[int], order.tolist()), values):
            if value == -math.inf:
                break  # not allowed
            parent, token_id = divmod(flat, logits.shape[-1])
            if token_id in self.eos_ids:
                self._end([*self._output(self.live[parent]), token_id], value, "stop")
            elif len(chosen) < self.beam_width:
                chosen.append((self.live[parent], token_id, value))
        self._replace(chosen)

    def _end(self, token_ids: list[int], log_probability: float, reason: str) -> None:
        """Record a beam that ended. Among equal scores the one that ended earlier ranks first."""
        shown = token_ids[:-1] if reason == "stop" else token_ids  # a token that ends the text is not shown
        self.best.append(Beam(token_ids, self.engine.tokenizer.decode(shown), log_probability,
                              self._score(log_probability, len(token_ids)), reason))
        self.best = sorted(self.best, key=lambda ended: -ended.score)[:self.beam_width]

    def _score(self, log_probability: float, num_tokens: int) -> float:
        penalty: float = num_tokens ** self.length_penalty
        return log_probability / penalty

    def _is_decided(self, num_tokens: int) -> bool:
        """Check whether no live beam, now ``num_tokens`` long, can still end among the best.

        A log-probability never rises, so at best it stays the same while the beam grows. Its score then rises with
        every token if the penalty is above 0, and falls if it is below 0. So the best possible end is at the maximum
        length or at the next token.
        """
        if not self.live:
            return True
        if len(self.best) < self.beam_width:
            return False
        likeliest = self.live[0].log_probability
        reachable = max(self._score(likeliest, num_tokens + 1), self._score(likeliest, self.max_tokens))
        return reachable <= self.best[-1].score

    # ---- beams in the KV cache

    def _new_request(self, token_ids: list[int]) -> Request:
        return Request(f"beam-{next(self._numbers)}", token_ids)

    def _output(self, beam: _LiveBeam) -> list[int]:
        """Return the tokens of a live beam, without the prompt."""
        return beam.request.all_token_ids[self.num_prompt_tokens:]

    def _compute_prompt(self) -> mx.array:
        """Return the logits [1, vocab_size] after the prompt.

        A prompt longer than a step allows is computed in chunks.
        """
        request = self.live[0].request
        hits, num_cached = self.kv_cache.get_computed_blocks(request)
        while True:
            num_new = min(request.num_tokens - request.num_computed_tokens - num_cached,
                          self.engine.max_num_batched_tokens)
            logits = self._compute([(request, num_new)], hits, num_cached)
            if request.num_computed_tokens == request.num_tokens:
                return logits
            hits, num_cached = [], 0

    def _compute(self, work: list[tuple[Request, int]], hits: list[KVCacheBlock] | None = None, num_hit_tokens: int = 0
                 ) -> mx.array:
        """Run one step that computes the next tokens of each request, after adopting ``hits``.

        Return the last logits of each request.
        """
        pool = self.kv_cache.block_pool
        for request, num_new in work:
            if self.kv_cache.allocate_slots(request, num_new, hits, num_hit_tokens) is None:
                raise RuntimeError(f"the pool is too small for this beam search: it has {pool.num_blocks - 1} blocks "
                                   f"of {self.kv_cache.block_size} tokens for {self.beam_width} beams")
            request.num_computed_tokens += num_hit_tokens + num_new
        self.engine.num_steps += 1
        self.engine.counts.note_peaks(len(work), self.kv_cache, [request for request, _ in work])
        steps = [RequestStep(request.all_token_ids[request.num_computed_tokens - num_new:request.num_computed_tokens],
                             self.kv_cache.get_block_ids(request.request_id), request.num_computed_tokens, True)
                 for request, num_new in work]
        logits = self.engine.runner.step(steps, [(source.block_id, copy.block_id)
                                                 for source, copy in pool.pending_copies])
        has_nan = mx.isnan(logits).any()
        mx.eval(logits, has_nan)
        self.kv_cache.finish_step()
        if has_nan.item():
            raise ValueError("the logits contain NaN")
        return logits

    def _replace(self, chosen: list[tuple[_LiveBeam, int, float]]) -> None:
        """Replace the live beams by ``chosen`` continuations: a beam, its next token, and the log-probability of both.

        The first continuation of a beam reuses it, each further one forks it, and a beam without continuations is
        freed.
        """
        # First, because a grammar may raise.
        cursors = [None if parent.cursor is None else parent.cursor.after([token_id]) for parent, token_id, _ in chosen]
        requests: list[Request] = []
        for parent, _, _ in chosen:
            requests.append(self._fork(parent.request) if parent.request in requests else parent.request)
        for beam in self.live:
            if beam.request not in requests:
                self.kv_cache.free(beam.request)
        self.live = [_LiveBeam(request, value, cursor)
                     for request, (_, _, value), cursor in zip(requests, chosen, cursors)]
        for request, (_, token_id, _) in zip(requests, chosen):  # after all forks: those take over the old tokens
            request.append_output_token(token_id)

    def _fork(self, parent: Request) -> Request:
        child = self._new_request(parent.all_token_ids[:parent.num_computed_tokens])
        child.num_computed_tokens = parent.num_computed_tokens
        self.kv_cache.fork(parent, child)
        return child

    def _free_all(self, is_trusted: bool) -> None:
        """Free all blocks. If their content is not trusted, it is also removed from the index."""
        block_ids = {block_id for beam in self.live for block_id in self.kv_cache.get_block_ids(
            beam.request.request_id)}
        for beam in self.live:
            self.kv_cache.free(beam.request)
        self.kv_cache.finish_step()  # ends the copies of a step that failed; they also hold blocks
        if not is_trusted:
            self.engine.discard(block_ids)
