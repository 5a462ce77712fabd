"""What batching is worth: one request at a time, our continuous batching, and mlx-lm's BatchGenerator.

All three serve the same requests with the same weights, float type and BLAS, in turns. Greedily, their tokens must
agree; drawn with a temperature, those of our two arms must. A request that arrives later does so when the server has
put out a given number of tokens, so that no clock decides what is measured.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mini_vllm.attention import PagedKVCache
from mini_vllm.benchmark.drawing import GREEDY, Drawing
from mini_vllm.benchmark.single import load_peer
from mini_vllm.benchmark.workloads import Item, Workload
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.models.loader import LoadedModel
from mini_vllm.scheduler import Scheduler, SchedulerOutput
from mini_vllm.trace.recorder import NoTrace

ONE_AT_A_TIME, BATCHED, PEER = "one at a time", "mini_vllm", "mlx-lm"
ARMS = (ONE_AT_A_TIME, BATCHED, PEER)
PERCENTILES = (50, 90, 99, 100)


@dataclass
class BenchmarkResult:
    """What one way of serving did with one workload. Of several rounds: the median of each number."""

    workload: str
    arm: str
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    seconds: float
    #: Percentile → seconds. The 100th is the worst.
    first_token_s: dict[int, float]
    between_tokens_s: dict[int, float]
    #: The worst time between two tokens of a request while a later one waited for its first token; 0 if none came.
    worst_gap_beside_prompt_s: float
    #: The part of the K/V memory held, on average, that has no token in it.
    kv_waste: float
    #: The part of all token rows computed that no request asked for.
    padding: float
    num_preemptions: int = 0
    #: Tokens computed a second time after a preemption.
    num_recomputed_tokens: int = 0
    #: Where the time of a run went, in seconds; only of our own arms.
    profile_s: dict[str, float] = field(default_factory=dict)
    #: How many requests put out other tokens than the first arm; None if the arm draws its own.
    num_different: int | None = 0
    num_rounds: int = 1

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.seconds

    @property
    def total_tokens_per_s(self) -> float:
        return (self.num_prompt_tokens + self.num_output_tokens) / self.seconds

    def to_dict(self) -> dict:
        return {**asdict(self), "output_tokens_per_s": self.output_tokens_per_s,
                "total_tokens_per_s": self.total_tokens_per_s}


class Watch:
    """What happens to each request of a run, and when."""

    def __init__(self, items: Sequence[Item], on_token: Callable[[int, int], None]) -> None:
        self.items = items
        self.arrived_s: dict[int, float] = {}
        self.token_times_s: list[list[float]] = [[] for _ in items]
        self.token_ids: list[list[int]] = [[] for _ in items]
        self.num_tokens = 0
        self._next = 0
        self._on_token = on_token
        self.kv_held = self.kv_used = 0.0
        self.start_s = time.perf_counter()

    def arrivals(self) -> list[int]:
        """Requests that arrive now. Items stand in the order of their arrival."""
        new = []
        while self._next < len(self.items) and self.items[self._next].after_tokens <= self.num_tokens:
            self.arrived_s[self._next] = time.perf_counter()
            new.append(self._next)
            self._next += 1
        return new

    @property
    def num_to_come(self) -> int:
        return len(self.items) - self._next

    def tokens(self, index: int, token_ids: Sequence[int]) -> None:
        now_s = time.perf_counter()
        for token_id in token_ids:
            self.token_ids[index].append(token_id)
            self.token_times_s[index].append(now_s)
        self.num_tokens += len(token_ids)
        self._on_token(int(len(self.token_ids[index]) == self.items[index].num_tokens), len(token_ids))

    def result(self, workload: Workload, arm: str, rows: int, num_asked: int, **more: object) -> BenchmarkResult:
        seconds = time.perf_counter() - self.start_s
        first = [times[0] - self.arrived_s[index] for index, times in enumerate(self.token_times_s)]
        between = [later - earlier for times in self.token_times_s for earlier, later in zip(times, times[1:])]
        return BenchmarkResult(
            workload.name, arm, len(self.items), workload.num_prompt_tokens, workload.num_output_tokens, seconds,
            percentiles(first), percentiles(between or [0.0]), self._worst_gap_beside_prompt_s(),
            1 - self.kv_used / self.kv_held if self.kv_held else 0.0,
            max(1 - num_asked / rows, 0.0) if rows else 0.0, **more)


    def _worst_gap_beside_prompt_s(self) -> float:
        worst_s = 0.0
        for late, item in enumerate(self.items):
            start_s, end_s = self.arrived_s[late], self.token_times_s[late][0]
            for other, times in zip(self.items, self.token_times_s):
                if other.after_tokens < item.after_tokens:
                    worst_s = max([worst_s, *(later - earlier for earlier, later in zip(times, times[1:])
                                              if start_s < later and earlier < end_s)])
        return worst_s


def percentiles(values: Sequence[float]) -> dict[int, float]:
    """The smallest value that so many per cent of all do not exceed."""
    ordered = sorted(values)
    return {p: ordered[max(-(-p * len(ordered) // 100) - 1, 0)] for p in PERCENTILES}


# ---- our two arms


class _CountingModel:
    """A model that counts the token rows it computes."""

    def __init__(self, model, count: Callable[..., int]) -> None:
        self._model, self._count, self.num_rows = model, count, 0

    def __call__(self, *args, **options):
        self.num_rows += self._count(*args)
        return self._model(*args, **options)

    def __getattr__(self, name: str):
        return getattr(self._model, name)


class _WatchedScheduler(Scheduler):
    """The engine's scheduler, which also counts tokens asked for and slots held."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.num_asked = self.num_slots_held = self.num_slots_used = 0
        self.schedule_s = 0.0

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
    """Hears when a step is planned and when it is computed, and adds up the time between."""

    def __init__(self) -> None:
        self.compute_s = self._planned_s = 0.0

    def record_plan(self, scheduler: Scheduler, plan: SchedulerOutput) -> None:
        self._planned_s = time.perf_counter()

    def record_computed(self) -> None:
        self.compute_s += time.perf_counter() - self._planned_s


def serve(loaded: LoadedModel, workload: Workload, arm: str, on_token: Callable[[int, int], None],
          drawing: Drawing = GREEDY) -> tuple[BenchmarkResult, list[list[int]]]:
    """Run a workload through our engine."""
    settings = {**workload.settings, **({"max_num_seqs": 1} if arm == ONE_AT_A_TIME else {})}
    timer = _ComputeTimer()
    engine = LLMEngine(EngineConfig(**settings), EngineParts(scheduler=_WatchedScheduler), loaded, timer)
    model = engine.runner.model = _CountingModel(engine.runner.model, lambda token_ids, *_: token_ids.shape[0])
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
    watch.kv_held, watch.kv_used = scheduler.num_slots_held, scheduler.num_slots_used
    metrics = engine.metrics()
    num_needed = (workload.num_prompt_tokens + workload.num_output_tokens - len(workload.items)
                  - metrics.num_saved_tokens)
    seconds = time.perf_counter() - watch.start_s
    profile = {"planning": scheduler.schedule_s, "model and sampling": timer.compute_s,
               "text and the rest": seconds - scheduler.schedule_s - timer.compute_s}
    result = watch.result(workload, arm, model.num_rows, scheduler.num_asked, num_preemptions=scheduler.num_preemptions,
                          num_recomputed_tokens=scheduler.num_asked - num_needed, profile_s=profile)
    return result, watch.token_ids


# ---- mlx-lm


def serve_by_peer(model, loaded: LoadedModel, workload: Workload, on_token: Callable[[int, int], None],
                  drawing: Drawing = GREEDY) -> tuple[BenchmarkResult, list[list[int]]]:
    """Run a workload through mlx-lm's BatchGenerator, at its defaults."""
    from mlx_lm.generate import BatchGenerator
    config = loaded.config
    token_bytes = PagedKVCache.block_bytes(config.num_layers, config.num_kv_heads, 1, config.head_dim,
                                           loaded.model.model.norm.weight.dtype)
    counting = _CountingModel(model, lambda inputs, *_: inputs.size)
    watch = Watch(workload.items, on_token)
    generator = BatchGenerator(counting, sampler=drawing.peer_sampler())
    index_of: dict[int, int] = {}
    num_cached: dict[int, int] = {}  # of requests in the generator: tokens with K/V
    while watch.num_to_come or index_of:
        new = watch.arrivals()
        if new:
            ids = generator.insert([workload.items[index].prompt for index in new],
                                   [workload.items[index].num_tokens for index in new])
            index_of.update(zip(ids, new))
        of_prompts, generated = generator.next()
        for response in of_prompts:
            num_cached[response.uid] = response.progress[0]
        for response in generated:
            index = index_of[response.uid]
            num_cached[response.uid] = len(workload.items[index].prompt) + len(watch.token_ids[index])
            watch.tokens(index, [int(response.token)])
            if response.finish_reason is not None:
                del index_of[response.uid], num_cached[response.uid]
        watch.kv_held += generator.prompt_cache_nbytes / token_bytes
        watch.kv_used += sum(num_cached.values())
    generator.close()
    num_asked = workload.num_prompt_tokens + workload.num_output_tokens - len(workload.items)
    return watch.result(workload, PEER, counting.num_rows, num_asked), watch.token_ids


# ---- the comparison


def run_comparison_benchmark(loaded: LoadedModel, workload: Workload, arms: Iterable[str] = ARMS, rounds: int = 1,
                             on_token: Callable[[int, int], None] = lambda num_finished, num_tokens: None,
                             drawing: Drawing = GREEDY) -> tuple[list[BenchmarkResult], dict[str, float]]:
    """Serve a workload by each arm in turn, ``rounds`` times over.

    Returns the results (of each arm the median of all rounds), and for every other arm how many times as fast our
    batching was: the median of the ratios taken within a round.
    """
    arms = list(arms)
    unknown = [arm for arm in arms if arm not in ARMS]
    if unknown or not arms:
        raise ValueError(f"there is no arm {unknown[0]!r}, only {', '.join(ARMS)}" if unknown else "no arm is given")
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}, must be at least 1")
    peer = load_peer(loaded)[0] if PEER in arms else None
    taken: list[dict[str, BenchmarkResult]] = []
    first_tokens: list[list[int]] | None = None
    for _ in range(rounds):
        of_round = {}
        for arm in arms:
            result, token_ids = (serve_by_peer(peer, loaded, workload, on_token, drawing) if arm == PEER
                                 else serve(loaded, workload, arm, on_token, drawing))
            if arm == PEER and not drawing.is_greedy:
                result.num_different = None
            else:
                first_tokens = first_tokens or token_ids
                result.num_different = sum(mine != first for mine, first in zip(token_ids, first_tokens))
            of_round[arm] = result
        taken.append(of_round)
    results = [_median([of_round[arm] for of_round in taken]) for arm in arms]
    speed_ups = {}
    if BATCHED in arms:
        for arm in arms:
            if arm != BATCHED:
                speed_ups[arm] = statistics.median(of_round[arm].seconds / of_round[BATCHED].seconds
                                                   for of_round in taken)
    return results, speed_ups


def _median(results: list[BenchmarkResult]) -> BenchmarkResult:
    """Of every number its median; counts are the same in each round, or nearly."""
    first = asdict(results[0])
    for name, value in first.items():
        values = [asdict(result)[name] for result in results]
        if isinstance(value, dict):
            first[name] = {key: statistics.median(each[key] for each in values) for key in value}
        elif isinstance(value, float):
            first[name] = statistics.median(values)
        elif isinstance(value, int):
            first[name] = int(statistics.median(values))
    counts = [result.num_different for result in results]
    return BenchmarkResult(**{**first, "num_different": None if None in counts else max(counts),
                              "num_rounds": len(results)})


def format_table(results: Sequence[BenchmarkResult]) -> str:
    """The arms of one workload, a line each; times in milliseconds."""
    lines = [f"{'':<14} {'seconds':>8} {'output':>8} {'total':>8}   {'first token ms':^31}   "
             f"{'between tokens ms':^27}   {'KV':>5} {'pad-':>5} {'pre-':>5}",
             f"{'':<14} {'':>8} {'tok/s':>8} {'tok/s':>8}   {'p50':>7} {'p90':>7} {'p99':>7} {'worst':>7}   "
             f"{'p50':>6} {'p90':>6} {'p99':>6} {'worst':>6}   {'waste':>5} {'ding':>5} {'empt':>5}   tokens"]
    for result in results:
        first, between = ([f"{times[p] * 1000:.0f}" for p in PERCENTILES]
                          for times in (result.first_token_s, result.between_tokens_s))
        same = ("its own" if result.num_different is None else "equal" if result.num_different == 0
                else f"{result.num_different} of {result.num_requests} differ")
        lines.append(f"{result.arm:<14} {result.seconds:>8.2f} {result.output_tokens_per_s:>8.1f} "
                     f"{result.total_tokens_per_s:>8.1f}   " + " ".join(f"{t:>7}" for t in first) + "   "
                     + " ".join(f"{t:>6}" for t in between) + f"   {result.kv_waste:>5.0%} {result.padding:>5.0%} "
                     f"{result.num_preemptions:>5}   {same}")
    return "\n".join(lines)


def format_gap(result: BenchmarkResult) -> str:
    """What a prompt that arrives late does to those that decode."""
    return (f"{result.arm}: worst gap between tokens while a later prompt was computed: "
            f"{result.worst_gap_beside_prompt_s * 1000:.0f} ms, "
            f"{result.worst_gap_beside_prompt_s / result.between_tokens_s[50]:.1f} times the median gap")


def format_profile(result: BenchmarkResult) -> str:
    """Where the time of one of our arms went."""
    total = sum(result.profile_s.values()) or 1.0
    parts = ", ".join(f"{name} {seconds / total:.1%}" for name, seconds in result.profile_s.items())
    again = f"; {result.num_recomputed_tokens} tokens computed again" if result.num_recomputed_tokens else ""
    return f"{result.arm}: {parts}{again}"


def save_json(path: str | Path, model: str, results: Sequence[BenchmarkResult],
              speed_ups: dict[str, dict[str, float]]) -> None:
    """``speed_ups``: workload → arm → how many times as fast our batching was."""
    data = {"model": model, "results": [result.to_dict() for result in results], "speed_ups": speed_ups}
    Path(path).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
