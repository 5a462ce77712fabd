"""The current state and the counters of an engine, and their form for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mini_vllm.engine import LLMEngine
from mini_vllm.native.runner import NativeRunner

#: A block is in one of these states.
BLOCK_STATES = ("used", "shared", "cached", "free")


@dataclass(frozen=True)
class EngineState:
    num_waiting: int
    num_running: int
    num_blocks: Mapping[str, int]
    hit_rate: float
    num_preemptions: int
    num_steps: int
    num_drafted_tokens: int
    num_accepted_tokens: int
    #: Whether a step is one call of C.
    is_native: bool = False

    @classmethod
    def read(cls, engine: LLMEngine) -> EngineState:
        """Read the state. Call this in the engine's thread, between two steps."""
        states = Counter(_state_of(block.ref_cnt, block.block_hash is not None)
                         for block in engine.kv_cache.block_pool.blocks if not block.is_null)
        metrics = engine.metrics()
        return cls(len(engine.scheduler.waiting), len(engine.scheduler.running),
                   {state: states[state] for state in BLOCK_STATES}, metrics.recent_hit_rate, metrics.num_preemptions,
                   metrics.num_steps, metrics.num_drafted_tokens, metrics.num_accepted_tokens,
                   isinstance(engine.runner, NativeRunner))


def _state_of(ref_cnt: int, can_be_found: bool) -> str:
    if ref_cnt:
        return "shared" if ref_cnt > 1 else "used"
    return "cached" if can_be_found else "free"


class StateCollector(Collector):
    """The states of the loaded models, as last read."""

    def __init__(self) -> None:
        self.states: Mapping[str, EngineState] = {}

    def collect(self) -> Iterator[Metric]:
        states = self.states
        yield _gauge("requests_waiting", "Sequences that wait to be computed.",
                     {name: state.num_waiting for name, state in states.items()})
        yield _gauge("requests_running", "Sequences that are being computed.",
                     {name: state.num_running for name, state in states.items()})
        yield _gauge("prefix_hit_rate", "Fraction of the prompt tokens found in the cache, last 100 requests.",
                     {name: state.hit_rate for name, state in states.items()})
        blocks = GaugeMetricFamily("mini_vllm_blocks", "Blocks of the pool: used by one sequence, shared by several, "
                                   "free and still cached, or free.", labels=["model", "state"])
        for name, state in states.items():
            for kind, number in state.num_blocks.items():
                blocks.add_metric([name, kind], number)
        yield blocks
        yield _gauge("native_step", "1 if a step is one call of C, 0 if it is made of MLX's operations.",
                     {name: state.is_native for name, state in states.items()})
        yield _counter("preemptions", "How often a sequence was preempted.",
                       {name: state.num_preemptions for name, state in states.items()})
        yield _counter("steps", "Steps that computed something.",
                       {name: state.num_steps for name, state in states.items()})
        yield _counter("drafted_tokens", "Tokens that were guessed and checked.",
                       {name: state.num_drafted_tokens for name, state in states.items()})
        yield _counter("accepted_tokens", "Guessed tokens that were right.",
                       {name: state.num_accepted_tokens for name, state in states.items()})


def _gauge(name: str, about: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"mini_vllm_{name}", about, labels=["model"])
    for model, value in values.items():
        family.add_metric([model], value)
    return family


def _counter(name: str, about: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"mini_vllm_{name}", about, labels=["model"])
    for model, value in values.items():
        family.add_metric([model], value)
    return family
