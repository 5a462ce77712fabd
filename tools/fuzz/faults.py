"""Deliberate faults: a request that breaks its step, Ctrl-C in the middle of a step, a scheduler that fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.logit_rules import SamplerRow
from mini_vllm.model_runner import Batch

Method = Callable[..., object]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, as simulated by the fuzzer."""


class Poisoned(ArithmeticError):
    """Raised in the step of a poisoned request."""


class PlanLost(OSError):
    """Raised in a step that breaks although no request is to blame."""


@dataclass(frozen=True)
class Poison:
    """A fault of one request: every step in which it has at least ``num_tokens`` tokens, prompt included, breaks.

    "before" breaks the step before anything is computed, "after" when K/V have been written, "sampler" when the next
    token is to be chosen. The fault depends only on the request, so it fails at the same token when it is alone.
    """

    where: str
    num_tokens: int

    def put_into(self, engine: LLMEngine, request_id: str, n: int) -> None:
        names = [request_id] if n == 1 else [f"{request_id}#{index}" for index in range(n)]
        if self.where == "sampler":
            self._put_into_sampler(engine, request_id, names)
        else:
            self._put_into_runner(engine, request_id, names)

    def _put_into_sampler(self, engine: LLMEngine, request_id: str, names: list[str]) -> None:
        def around(real: Method) -> Method:
            def choose(logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> object:
                for row in () if all(row.is_plain for row in rows) else rows:
                    if self._is_mine(engine, row, names) and self._is_due(
                            len(row.prompt_token_ids) + len(row.output_token_ids)):
                        raise Poisoned(f"{request_id} in the sampler")
                return real(logits, rows, num_ahead)

            return choose

        _wrap(engine.sampler, "choose", around)

    def _put_into_runner(self, engine: LLMEngine, request_id: str, names: list[str]) -> None:
        def around(real: Method) -> Method:
            def logits(token_ids: mx.array, batch: Batch, wanted: object) -> object:
                tables = [engine.kv_cache.get_block_ids(name) for name in names]
                is_due = any(self._is_due(context_len) and list(table) in tables
                             for table, context_len in zip(batch.block_tables, batch.context_lens))
                if is_due and self.where == "before":
                    raise Poisoned(f"{request_id} before its step")
                computed = real(token_ids, batch, wanted)
                if is_due:
                    raise Poisoned(f"{request_id} after its step")
                return computed

            return logits

        _wrap_step(engine, around)

    @staticmethod
    def _is_mine(engine: LLMEngine, row: SamplerRow, names: list[str]) -> bool:
        """Check whether ``row`` belongs to one of the sequences; along a draft it is a copy of their row."""
        own = [sequence.row for name in names if (sequence := engine.live.find(name)) is not None]
        return any(row.prompt_token_ids is each.prompt_token_ids and row.key == each.key for each in own)

    def _is_due(self, num_tokens: int) -> bool:
        return num_tokens >= self.num_tokens


def interrupt_at_times(engine: LLMEngine, rng: random.Random, times: int) -> None:
    """Raise Interrupted in a few of the next forward passes, before or after MLX receives them."""
    left = times

    def around(real: Method) -> Method:
        def logits(*arguments: object) -> object:
            nonlocal left
            is_now, is_before = left > 0 and rng.random() < 0.2, rng.random() < 0.5
            left -= is_now
            if is_now and is_before:
                raise Interrupted
            computed = real(*arguments)
            if is_now:
                raise Interrupted
            return computed

        return logits

    _wrap_step(engine, around)


def lose_plan_once(engine: LLMEngine, is_planned: bool) -> None:
    """Make the next step fail while it is planned: at the start, or when the plan is complete."""
    def around(real: Method) -> Method:
        def schedule() -> object:
            _wrap(engine.scheduler, "schedule", lambda _: real)
            if is_planned:
                real()
            raise PlanLost("the plan is lost")

        return schedule

    _wrap(engine.scheduler, "schedule", around)


def _wrap_step(engine: LLMEngine, around: Callable[[Method], Method]) -> None:
    """Replace what computes the network, whichever runner it is."""
    for name in ("_logits", "_logits_of_tokens"):
        _wrap(engine.runner, name, around)


def _wrap(owner: object, name: str, around: Callable[[Method], Method]) -> None:
    """Replace a method of this one object by ``around(method)``."""
    setattr(owner, name, around(getattr(owner, name)))
