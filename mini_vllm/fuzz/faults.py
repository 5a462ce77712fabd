"""What goes wrong on purpose: a request that breaks its step, Ctrl-C in the middle of one, a planner that gives up."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from mini_vllm.engine import LLMEngine


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, pressed by the fuzzer."""


class Poisoned(ArithmeticError):
    """The step of a poisoned request breaks."""


class PlanLost(OSError):
    """A step breaks, and no request is to blame."""


@dataclass(frozen=True)
class Poison:
    """One request that breaks every step in which it has ``num_tokens`` tokens or more, prompt included.

    "before" breaks it before anything is computed, "after" when K/V have been written, "sampler" when its next token
    is to be chosen. That depends on nothing but the request, so it fails at the same token when it is alone.
    """

    where: str
    num_tokens: int

    def put_into(self, engine: LLMEngine, request_id: str, n: int) -> None:
        names = [request_id] if n == 1 else [f"{request_id}#{index}" for index in range(n)]
        if self.where == "sampler":
            real_sample = engine.sampler.sample

            def sample(logits, rows):
                for row in rows:
                    if self._is_mine(engine, row, names) and self._is_due(
                            len(row.prompt_token_ids) + len(row.output_token_ids)):
                        raise Poisoned(f"{request_id} in the sampler")
                return real_sample(logits, rows)

            engine.sampler.sample = sample
            return
        real_forward = engine.runner._forward

        def forward(token_ids, spans, wanted):
            tables = [engine.kv_cache.get_block_ids(name) for name in names]
            is_due = any(self._is_due(span.context_len) and list(span.block_ids) in tables for span in spans)
            if is_due and self.where == "before":
                raise Poisoned(f"{request_id} before its step")
            hidden = real_forward(token_ids, spans, wanted)
            if is_due:
                raise Poisoned(f"{request_id} after its step")
            return hidden

        engine.runner._forward = forward

    @staticmethod
    def _is_mine(engine: LLMEngine, row: object, names: list[str]) -> bool:
        return any(name in engine.live and engine.live.sequence(name).row is row for name in names)

    def _is_due(self, num_tokens: int) -> bool:
        return num_tokens >= self.num_tokens


def interrupt_at_times(engine: LLMEngine, rng: random.Random, times: int) -> None:
    """Ctrl-C in a few of the next forward passes, before or after they are planned into MLX."""
    real, left = engine.runner._forward, times

    def forward(*arguments):
        nonlocal left
        is_now, is_before = left > 0 and rng.random() < 0.2, rng.random() < 0.5
        left -= is_now
        if is_now and is_before:
            raise Interrupted
        hidden = real(*arguments)
        if is_now:
            raise Interrupted
        return hidden

    engine.runner._forward = forward


def lose_plan_once(engine: LLMEngine, is_planned: bool) -> None:
    """The next step breaks while it is planned: at once, or when all is planned."""
    real: Callable = engine.scheduler.schedule

    def schedule():
        engine.scheduler.schedule = real
        if is_planned:
            real()
        raise PlanLost("the plan is lost")

    engine.scheduler.schedule = schedule
