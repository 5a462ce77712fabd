"""The value of batching: a workload served by our engine, one request at a time or many at once, and measured.

``mlx_lm_peer`` serves the same with mlx-lm's BatchGenerator, ``peers`` with vLLM and llama.cpp, and ``comparison`` lets
the arms take turns: the same requests with the same weights; for mlx-lm also the same float type and BLAS. Greedily,
its tokens and those of our two arms must agree; drawn with a temperature, those of our two arms must. A later request
arrives when the server has produced a given number of tokens, so that no clock decides what is measured.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import cast

from mini_vllm.benchmark.drawing import GREEDY, Drawing
from mini_vllm.benchmark.request_times import CountingModel, OnToken, Watch
from mini_vllm.benchmark.results import ONE_AT_A_TIME, BenchmarkResult
from mini_vllm.benchmark.workloads import Workload
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.model_runner import ModelRunner
from mini_vllm.models.loader import LoadedModel
from mini_vllm.models.network import Model
from mini_vllm.parts import SchedulerPart
from mini_vllm.scheduler import Scheduler, SchedulerOutput
from mini_vllm.trace.recorder import NoTrace


class _WatchedScheduler(Scheduler):
    """The engine's scheduler, which also counts tokens asked for and slots held."""

    num_asked = num_slots_held = num_slots_used = 0
    schedule_s = 0.0

    def schedule(self) -> SchedulerOutput:
        start_s = time.perf_counter()
        plan = super().schedule()
        self.schedule_s += time.perf_counter() - start_s
        self.num_asked += sum(plan.num_scheduled_tokens.values())
        pool, size = self.kv_cache.block_pool, self.kv_cache.block_size
        held = (self.num_blocks - pool.get_num_free_blocks()) * size
        empty = sum(len(self.kv_cache.get_block_ids(request.request_id)) * size - request.num_computed_tokens
                    for request in self.running)
        self.num_slots_held += held
        self.num_slots_used += held - empty
        return plan


class _ComputeTimer(NoTrace):
    """Adds up the time between the planning of a step and the end of its computation."""

    def __init__(self) -> None:
        self.compute_s = self._planned_s = 0.0

    def record_plan(self, scheduler: SchedulerPart, plan: SchedulerOutput) -> None:
        self._planned_s = time.perf_counter()

    def record_computed(self) -> None:
        self.compute_s += time.perf_counter() - self._planned_s


def serve(loaded: LoadedModel, workload: Workload, arm: str, on_token: OnToken,
          drawing: Drawing = GREEDY) -> tuple[BenchmarkResult, list[list[int]]]:
    """Run a workload through our engine. Return its numbers, and the token ids of each request."""
    settings = workload.settings.copy()
    if arm == ONE_AT_A_TIME:
        settings["max_num_seqs"] = 1
    timer = _ComputeTimer()
    engine = LLMEngine(EngineConfig(**settings), EngineParts(scheduler=_WatchedScheduler), loaded, timer)
    runner = cast(ModelRunner, engine.runner)
    model = CountingModel(runner.model)
    runner.model = cast(Model, model)
    watch = Watch(workload.items, on_token)
    num_seen: dict[str, int] = {}
    while watch.num_to_come or engine.has_unfinished_requests():
        for index in watch.arrivals():
            item = workload.items[index]
            engine.add_request(item.prompt, drawing.params(item.num_tokens, seed=index), str(index))
        for output in engine.step():
            if output.error:
                raise RuntimeError(f"{workload.name}: request {output.request_id}: {output.error}")
            new = output.token_ids[num_seen.get(output.request_id, 0):]
            num_seen[output.request_id] = len(output.token_ids)
            watch.tokens(int(output.request_id), new)
    scheduler = engine.scheduler
    assert isinstance(scheduler, _WatchedScheduler)
    watch.kv_held, watch.kv_used = scheduler.num_slots_held, scheduler.num_slots_used
    metrics = engine.metrics()
    num_drafted, num_accepted = metrics.num_drafted_tokens, metrics.num_accepted_tokens
    num_needed = (workload.num_prompt_tokens + workload.num_output_tokens - len(workload.items)
                  - metrics.num_saved_tokens)
    seconds = time.perf_counter() - watch.start_s
    profile = {"planning": scheduler.schedule_s, "model and sampling": timer.compute_s,
               "text and the rest": seconds - scheduler.schedule_s - timer.compute_s}
    result = watch.result(workload, arm, model.num_rows, scheduler.num_asked + num_drafted)
    return replace(result, num_preemptions=scheduler.num_preemptions,
                   num_recomputed_tokens=scheduler.num_asked + num_accepted - num_needed, profile_s=profile,
                   num_drafted_tokens=num_drafted, num_accepted_tokens=num_accepted), watch.token_ids
