"""High priority among low: the time to the first token when the server is idle, and when it is overloaded.

The promise: under overload, p90 of the time to the first token of high requests is at most what it is without load,
plus two steps under load. One is the step that runs when the request arrives; the other is the extra time of its own
step.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mini_vllm.benchmark.results import percentiles
from mini_vllm.benchmark.serving.answers import Answer
from mini_vllm.benchmark.serving.arms import Arms
from mini_vllm.benchmark.serving.servers import Server
from mini_vllm.benchmark.serving.traffic import TRAFFICS, Call, Traffic, Words
from mini_vllm.engine_config import EngineConfig

#: With fewer high requests, p90 says nothing.
MIN_TO_TELL = 10


@dataclass(frozen=True)
class Sizes:
    """The numbers of requests, and their arrival times."""

    num_high: int = 30
    high_rate: float = 2.0
    #: High requests arrive from then on: the low ones have taken their seats.
    high_after_s: float = 3.0
    #: Without load, the high requests arrive one after the other at this interval.
    alone_s: float = 1.0
    #: Low requests of this kind arrive faster than they can be served.
    traffic: str = "mixed"
    num_low: int = 200
    low_rate: float = 12.0
    #: Low requests with long outputs arrive all at once.
    num_long: int = 96
    long_tokens: int = 512


QUICK = Sizes(num_high=3, high_rate=10.0, high_after_s=0.2, alone_s=0.1, traffic="short", num_low=6, low_rate=50.0,
              num_long=6, long_tokens=24)


@dataclass(frozen=True)
class Overload:
    """The results of one kind of overload."""

    about: str
    unloaded_s: dict[int, float]
    loaded_s: dict[int, float]
    #: The median time between two tokens of a low request while high ones arrived; None if none was answered then.
    step_s: float | None
    num_high: int
    num_low: int
    num_low_finished: int
    num_low_tokens: int
    failures: tuple[str, ...]

    @property
    def bound_s(self) -> float | None:
        return None if self.step_s is None else self.unloaded_s[90] + 2 * self.step_s

    @property
    def holds(self) -> bool | None:
        """Whether the promise holds; None if there is no data to tell."""
        if self.bound_s is None or self.num_high < MIN_TO_TELL:
            return None
        return self.loaded_s[90] <= self.bound_s

    def to_dict(self) -> dict[str, object]:
        return {"about": self.about, "unloaded_first_token_s": self.unloaded_s, "loaded_first_token_s": self.loaded_s,
                "loaded_step_s": self.step_s, "bound_s": self.bound_s, "holds": self.holds, "num_low": self.num_low,
                "num_low_finished": self.num_low_finished, "failures": list(self.failures)}


HIGH = Traffic("high", "prompts of 32–128 tokens, outputs of 16",
               lambda words: (words.text(n := words.rng.randint(32, 128)), n, 16))


def measure_overload(arms: Arms, server: Server, sizes: Sizes) -> list[Overload]:
    """Measure two kinds: mixed requests faster than they can be served, and long ones that fill the running batch."""
    traffic = TRAFFICS[sizes.traffic]
    mixed = [replace(call, priority="low")
             for call in traffic.calls(arms.words("low"), sizes.num_low, sizes.low_rate)]
    words = arms.words("long")
    fills_batch = sizes.num_long >= EngineConfig.max_num_seqs
    long = [Call(0.0, words.text(24), 24, sizes.long_tokens, "low") for _ in range(sizes.num_long)]
    return [_measure(arms, server, f"{len(low)} low-priority requests {what}", low, sizes, seed)
            for seed, (low, what) in enumerate([
                (mixed, f"at {sizes.low_rate:g} per second, {traffic.about}"),
                (long, f"at once, outputs of {sizes.long_tokens}" + ": they fill the running batch" * fills_batch)])]


def _measure(arms: Arms, server: Server, about: str, low: list[Call], sizes: Sizes, seed: int) -> Overload:
    alone = [replace(call, at_s=i * sizes.alone_s)
             for i, call in enumerate(_high_calls(arms.words(f"unloaded {seed}"), sizes))]
    unloaded = [answer.first_token_s for answer in arms.run(server, alone, 1 / sizes.alone_s).whole]
    high = [replace(call, at_s=call.at_s + sizes.high_after_s) for call in _high_calls(arms.words(f"{seed}"), sizes)]
    calls = sorted([*low, *high], key=lambda call: call.at_s)
    return summarise(about, unloaded, arms.run(server, calls, 0.0).answers)


def _high_calls(words: Words, sizes: Sizes) -> list[Call]:
    return [replace(call, priority="high") for call in HIGH.calls(words, sizes.num_high, sizes.high_rate)]


def summarise(about: str, unloaded_s: Sequence[float], answers: Sequence[Answer]) -> Overload:
    """Compute the results from first-token times without load and all answers under load.

    Raise ValueError if no answer to a high request is complete.
    """
    high = [answer for answer in answers if answer.priority == "high" and not answer.failure]
    low = [answer for answer in answers if answer.priority == "low"]
    if not high or not unloaded_s:
        failures = [answer.failure for answer in answers][:3]
        raise ValueError(f"{about}: no high-priority request was answered: {failures}")
    first_s, last_s = min(answer.due_s for answer in high), max(answer.text_times_s[-1] for answer in high)
    gaps = [later - earlier for answer in low for earlier, later in zip(answer.text_times_s, answer.text_times_s[1:])
            if first_s <= later <= last_s]
    finished = [answer for answer in low if not answer.failure]
    return Overload(about, percentiles(unloaded_s), percentiles([answer.first_token_s for answer in high]),
                    statistics.median(gaps) if gaps else None, len(high), len(low), len(finished),
                    sum(answer.num_tokens for answer in finished),
                    tuple(sorted({answer.failure for answer in answers if answer.failure})))
