"""Beam search on top of fork: the prompt is computed and stored once, and beams share their common tokens.

Every live beam is extended by every token. The likeliest extensions stay live; those that end compete by score:

    live      "the"  -1.0     "a"  -1.3
    times all tokens, likeliest first:  "the king" -1.5   "a king" -1.9   "the ." -2.0 (ends)   "the queen" -2.2 …
    live      "the king" -1.5     "a king" -1.9              best     "the ." -2.0 / 2 ** length_penalty

This module decides which beams continue; ``beams.py`` computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from mini_vllm.backend import mx
from mini_vllm.beams import Beams, Continuation
from mini_vllm.checks import flag, real_number, whole_number
from mini_vllm.engine import LLMEngine
from mini_vllm.models.prompts import Prompt, PromptTokens, as_list
from mini_vllm.request import NO_END
from mini_vllm.sampling.logit_rules import keep_allowed
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
    beams = Beams(engine, token_ids, beam_width)
    is_done = False
    try:
        best = _Search(beams, beam_width, max_tokens, length_penalty, eos_ids, cursor).run()
        is_done = True
    finally:
        beams.close(is_trusted=is_done)
    return [Beam(ended.token_ids, engine.tokenizer.decode(ended.shown_token_ids), ended.log_probability, ended.score,
                 ended.finish_reason) for ended in best]


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


class _Ended(NamedTuple):
    token_ids: list[int]
    log_probability: float
    score: float
    finish_reason: str

    @property
    def shown_token_ids(self) -> list[int]:
        """The tokens to show. A token that ends the text is not shown."""
        return self.token_ids[:-1] if self.finish_reason == "stop" else self.token_ids


class _Search:
    """The state of one search. ``best`` holds the best ``beam_width`` of the beams that have ended so far."""

    def __init__(self, beams: Beams, beam_width: int, max_tokens: int, length_penalty: float,
                 eos_ids: frozenset[int], cursor: Cursor | None = None) -> None:
        #: The place of each live beam in the grammar.
        self.cursors = [cursor]
        self.beams, self.beam_width, self.max_tokens = beams, beam_width, max_tokens
        self.length_penalty, self.eos_ids = length_penalty, eos_ids
        self.best: list[_Ended] = []

    def run(self) -> list[_Ended]:
        logits = self.beams.compute_prompt()
        for num_tokens in range(1, self.max_tokens + 1):
            self._extend(logits)
            if num_tokens == self.max_tokens:
                for index, beam in enumerate(self.beams.live):
                    self._end(self.beams.output(index), beam.log_probability, "length")
            elif self._is_decided(num_tokens):
                break
            else:
                logits = self.beams.compute_next()
        return self.best

    def _extend(self, logits: mx.array) -> None:
        """Replace the live beams by their best extensions, and record those that end."""
        logits = logits.astype(mx.float32)
        log_probabilities = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        totals = log_probabilities + mx.array([beam.log_probability for beam in self.beams.live])[:, None]
        if self.cursors[0] is not None:
            totals = keep_allowed(totals, [None if cursor is None else cursor.allowed() for cursor in self.cursors])
        # Even if every live beam ends in every possible way, beam_width candidates that continue are left.
        num_candidates = min((1 + len(self.eos_ids)) * self.beam_width, totals.size)
        order = mx.argsort(-totals.reshape(-1))[:num_candidates]
        values = cast(list[float], totals.reshape(-1)[order].tolist())
        chosen: list[Continuation] = []
        for flat, value in zip(cast(list[int], order.tolist()), values):
            if value == -math.inf:
                break  # not allowed
            parent, token_id = divmod(flat, logits.shape[-1])
            if token_id in self.eos_ids:
                self._end([*self.beams.output(parent), token_id], value, "stop")
            elif len(chosen) < self.beam_width:
                chosen.append(Continuation(parent, token_id, value))
        self.cursors = [None if (cursor := self.cursors[each.parent]) is None else cursor.after([each.token_id])
                        for each in chosen]
        self.beams.replace(chosen)

    def _end(self, token_ids: list[int], log_probability: float, reason: str) -> None:
        """Record a beam that ended. Among equal scores the one that ended earlier ranks first."""
        self.best.append(_Ended(token_ids, log_probability, self._score(log_probability, len(token_ids)), reason))
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
        if not self.beams.live:
            return True
        if len(self.best) < self.beam_width:
            return False
        likeliest = self.beams.live[0].log_probability
        reachable = max(self._score(likeliest, num_tokens + 1), self._score(likeliest, self.max_tokens))
        return reachable <= self.best[-1].score
