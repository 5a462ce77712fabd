"""``mini-vllm bench throughput``: a workload served one request at a time, in our batches and by other engines.

All engines (``peers``) serve the same requests with the same weights, in turns. Greedily, the tokens of mlx-lm and of
our two arms must agree; drawn with a temperature, those of our two arms must. A later request arrives when the engine
has produced a given number of tokens, so that no clock decides what is measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from mini_vllm.backend import blas
from mini_vllm.benchmark.machine_noise import Noise, NoiseWatch, read_clocks
from mini_vllm.benchmark.peers import MlxLm, Process, check_pythons, has_peer, load_peer, start, without_peer
from mini_vllm.benchmark.result_file import Results, announce
from mini_vllm.benchmark.results import (
    ARMS,
    BATCHED,
    DRAFTED,
    LLAMA,
    ONE_AT_A_TIME,
    PEER,
    ROUNDED,
    VLLM_TYPES,
    Arm,
    BenchmarkResult,
    OnToken,
    Served,
    Table,
    Watch,
    format_ratios,
    median_of,
)
from mini_vllm.benchmark.workloads import GREEDY, WORKLOADS, Drawing, Workload, chosen_arms, make_workload
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.engine_frame import load_for
from mini_vllm.llm import progress_bar
from mini_vllm.models.loader import LoadedModel
from mini_vllm.models.random_model import load_random
from mini_vllm.scheduler import Scheduler, SchedulerOutput
from mini_vllm.speculation import draft_settings

#: The values of ``--arm``, and the arms that each measures.
ARM_OPTIONS = {"one": (ONE_AT_A_TIME,), "ours": (BATCHED,), "mlx-lm": (PEER,), "vllm": tuple(VLLM_TYPES),
               "llama.cpp": (LLAMA,)}
DEFAULT_WORKLOADS, QUICK_WORKLOADS = ["decode-16", "nano-16", "mixed-64", "long-arrival"], ["decode-16"]
#: The default number of rounds if the first takes less than this time, and with drafts, whose gain may be small.
CHEAP_ROUNDS, CHEAP_ROUND_S, DRAFT_ROUNDS = 3, 20.0, 5
TABLE = Table((f"{'':<21}", "{}"), ("seconds", "{:.2f}"), (" tokens/s", "{:.1f}"), ("first, s", "{:.2f}"),
              ("  worst", "{:.2f}"), ("next, ms", "{:.1f}"), ("worst", "{:.0f}"))


# ---- our engine


class _WatchedScheduler(Scheduler):
    """The engine's scheduler, which also counts the slots that are held."""

    num_slots_held = num_slots_used = 0
    schedule_s = 0.0

    def schedule(self) -> SchedulerOutput:
        start_s = time.perf_counter()
        plan = super().schedule()
        self.schedule_s += time.perf_counter() - start_s
        pool, size = self.kv_cache.block_pool, self.kv_cache.block_size
        held = (self.num_blocks - pool.get_num_free_blocks()) * size
        empty = sum(len(self.kv_cache.get_block_ids(request.request_id)) * size - request.num_computed_tokens
                    for request in self.running)
        self.num_slots_held += held
        self.num_slots_used += held - empty
        return plan


def serve(loaded: LoadedModel, workload: Workload, arm: str, on_token: OnToken, drawing: Drawing = GREEDY,
          **settings: Any) -> Served:
    """Run a workload through our engine; ``settings`` are fields of its EngineConfig."""
    settings = {**workload.settings, **settings}
    if arm == ONE_AT_A_TIME:
        settings["max_num_seqs"] = 1
    engine = LLMEngine(EngineConfig(**settings), EngineParts(scheduler=_WatchedScheduler), loaded)
    watch = Watch(workload, on_token)
    while watch.num_to_come or engine.has_unfinished_requests():
        for index in watch.arrivals():
            item = workload.items[index]
            engine.add_request(item.prompt, drawing.params(item.num_tokens, seed=index), str(index))
        for output in engine.step():
            if output.error:
                raise RuntimeError(f"{workload.name}: request {output.request_id}: {output.error}")
            index = int(output.request_id)
            watch.tokens(index, output.token_ids[len(watch.token_ids[index]):])
    scheduler, metrics, result = engine.scheduler, engine.metrics(), watch.result(arm)
    assert isinstance(scheduler, _WatchedScheduler)
    return replace(result, kv_waste=1 - scheduler.num_slots_used / scheduler.num_slots_held,
                   profile_s={"planning": scheduler.schedule_s},
                   num_preemptions=metrics.num_preemptions, num_recomputed_tokens=metrics.num_recomputed_tokens,
                   num_drafted_tokens=metrics.num_drafted_tokens, num_accepted_tokens=metrics.num_accepted_tokens
                   ), watch.token_ids


# ---- the comparison


class Comparison:
    """Serves a workload with each arm in turn, round after round, and holds the results."""

    def __init__(self, workload: Workload, arms: Mapping[str, Arm], drawing: Drawing = GREEDY,
                 process_ids: Iterable[int] = ()) -> None:
        """Create a comparison of ``arms``. The time of the processes ``process_ids`` is not that of other programs."""
        self.workload, self.arms, self._drawing = workload, arms, drawing
        #: The arm that is compared with the others.
        self.ours = DRAFTED if DRAFTED in arms else BATCHED
        self._watch = NoiseWatch(partial(read_clocks, list(process_ids)))
        #: One dict per round, by arm.
        self._taken: list[dict[str, BenchmarkResult]] = []
        #: The tokens of the first arm in the first round: the others are compared with them.
        self._token_ids: list[list[int]] | None = None

    def serve_round(self, on_token: OnToken) -> None:
        of_round = {}
        for name, arm in self.arms.items():
            with self._watch.over():
                result, token_ids = arm(self.workload, on_token)
            if name == PEER and not self._drawing.is_greedy:
                result.num_different = None
            else:
                self._token_ids = self._token_ids or token_ids
                result.num_different = sum(mine != first for mine, first in zip(token_ids, self._token_ids))
            of_round[name] = result
        self._taken.append(of_round)

    @property
    def num_rounds(self) -> int:
        return len(self._taken)

    @property
    def first_round_s(self) -> float:
        return sum(result.seconds for result in self._taken[0].values())

    def num_rounds_worth(self) -> int:
        """Return how many rounds there should be, once the first has been served: several if that costs little."""
        if DRAFTED in self.arms:
            return DRAFT_ROUNDS
        return CHEAP_ROUNDS if self.first_round_s < CHEAP_ROUND_S else 1

    def results(self) -> list[BenchmarkResult]:
        """Return the median of all rounds for each arm."""
        return [median_of([of_round[arm] for of_round in self._taken]) for arm in self.arms]

    def ratios(self) -> dict[str, list[float]]:
        """Return for every other arm how many times as fast ours was, round by round."""
        if self.ours not in self.arms:
            return {}
        return {arm: [of_round[arm].seconds / of_round[self.ours].seconds for of_round in self._taken]
                for arm in self.arms if arm != self.ours}

    def noise(self) -> Noise:
        return self._watch.noise()


def our_arms(loaded: LoadedModel, names: Sequence[str], drawing: Drawing = GREEDY,
             draft: Mapping[str, Any] | None = None) -> dict[str, Arm]:
    """Return those of ARMS that are named. With the settings ``draft``, our batching is a second arm with drafts.

    Raise ValueError for a draft model that does not fit.
    """
    arms: dict[str, Arm] = {}
    for name in names:
        if name in (ONE_AT_A_TIME, BATCHED):
            arms[name] = partial(_serve, loaded, name, drawing, {})
        if name == BATCHED and draft:
            check_draft(loaded, draft)
            arms[DRAFTED] = partial(_serve, loaded, DRAFTED, drawing, draft)
        if name == PEER:
            arms[name] = MlxLm(loaded, load_peer(loaded)[0], drawing).serve
    return arms


def _serve(loaded: LoadedModel, arm: str, drawing: Drawing, settings: Mapping[str, Any], workload: Workload,
           on_token: OnToken) -> Served:
    return serve(loaded, workload, arm, on_token, drawing, **settings)


def check_draft(loaded: LoadedModel, draft: Mapping[str, Any]) -> None:
    """Raise ValueError, before anything is measured, if ``draft`` names no model with the vocabulary of ``loaded``."""
    LLMEngine(EngineConfig(num_blocks=2, **draft), loaded=loaded)


def run_comparison_benchmark(loaded: LoadedModel, workload: Workload, arms: Sequence[str] = ARMS, rounds: int = 1,
                             on_token: OnToken = lambda num_finished, num_tokens: None,
                             drawing: Drawing = GREEDY) -> tuple[list[BenchmarkResult], dict[str, float]]:
    """Serve a workload ``rounds`` times by each arm. Return the medians, and how many times as fast our batching was.

    Raise ValueError for an unknown arm, or if there is no arm or no round.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}, must be at least 1")
    unknown = [arm for arm in arms if arm not in ARMS]
    if unknown or not arms:
        raise ValueError(f"there is no arm {unknown[0]!r}, only {', '.join(ARMS)}" if unknown else "no arm is given")
    comparison = Comparison(workload, our_arms(loaded, arms, drawing), drawing)
    for _ in range(rounds):
        comparison.serve_round(on_token)
    return comparison.results(), {arm: statistics.median(each) for arm, each in comparison.ratios().items()}


# ---- the command


def run_throughput(arguments: argparse.Namespace) -> int:
    """Run the command.

    Invalid options are reported before a model is loaded, a busy machine before anything is measured.
    """
    names = arguments.workload or (QUICK_WORKLOADS if arguments.quick else DEFAULT_WORKLOADS)
    names = list(WORKLOADS) if "all" in names else names
    chosen = chosen_arms(arguments, "one", "ours", "mlx-lm")
    arms = [arm for option, measured in ARM_OPTIONS.items() if option in chosen for arm in measured]
    if PEER in arms and not arguments.arm and not has_peer():  # if it was requested by name, its absence is an error
        arms.remove(PEER)
        print(without_peer(), file=sys.stderr)
    if arguments.rounds is not None and arguments.rounds < 1:
        raise ValueError(f"--rounds is {arguments.rounds}, must be at least 1")
    drawing, draft = Drawing.from_arguments(arguments), draft_settings(arguments)
    EngineConfig(**draft)
    if draft and BATCHED not in arms:
        raise ValueError("--draft needs --arm ours")
    if not drawing.is_greedy and {*VLLM_TYPES, LLAMA} & set(arms):
        raise ValueError(f"--temperature is {drawing.temperature:g}, but --arm vllm and --arm llama.cpp are greedy")
    pythons = {"vllm": arguments.vllm_python, "llama.cpp": arguments.llama_python}
    check_pythons(pythons, chosen)
    plot = _plotter(arguments)
    with Results(arguments) as saved, ExitStack() as running:
        loaded = (load_random(arguments.random) if arguments.random else
                  load_for(EngineConfig(model=arguments.model), EngineParts()))
        workloads = [make_workload(name, loaded.config.vocab_size, loaded.config.max_position_embeddings)
                     for name in names]
        for workload in workloads:
            workload.settings["precision"] = arguments.precision
        announce(arguments, f"{loaded.name}, BLAS: {blas.name}; {drawing}; precision: {arguments.precision}"
                 + (f"; drafts: {arguments.draft}" if draft else ""))
        processes = start(loaded, workloads, arms, pythons, running)
        all_arms = {**our_arms(loaded, arms, drawing, draft),
                    **{arm: process.serve for arm, process in processes.items()}}
        results, ratios, noise = _measure(arguments, workloads, all_arms, drawing, processes.values())
        saved.save({"model": loaded.name, "results": [result.to_dict() for result in results],
                    "speed_ups": {name: {arm: statistics.median(each) for arm, each in of_workload.items()}
                                  for name, of_workload in ratios.items()},
                    "ratios": ratios, "noise_of": {name: each.to_dict() for name, each in noise.items()}, **draft,
                    "precision": arguments.precision,
                    **({"peers": {arm: process.about for arm, process in processes.items()}} if processes else {})})
    plot(results, loaded.name, ratios, noise)
    return 0


def _plotter(arguments: argparse.Namespace) -> Callable[..., None]:
    """Return a function that draws the results if a plot is wanted. Raise ValueError if it cannot be drawn."""
    if not arguments.plot:
        return lambda *results: None
    from mini_vllm.benchmark.plot import check_plot, plot_results
    check_plot(arguments.plot)
    return partial(plot_results, arguments.plot)


def _measure(arguments: argparse.Namespace, workloads: Sequence[Workload], arms: Mapping[str, Arm], drawing: Drawing,
             processes: Iterable[Process]
             ) -> tuple[list[BenchmarkResult], dict[str, dict[str, list[float]]], dict[str, Noise]]:
    """Serve the workloads and print their results. Return results, ratios and noise, the latter two by workload."""
    results: list[BenchmarkResult] = []
    ratios, noise = {}, {}
    for workload in workloads:
        print(f"\n{workload.name}: {workload.about}", flush=True)
        comparison = Comparison(workload, arms, drawing, [process.process_id for process in processes])
        serve_rounds(comparison, arguments.rounds or (1 if arguments.quick else None))
        results += comparison.results()
        ratios[workload.name], noise[workload.name] = comparison.ratios(), comparison.noise()
        print(report(comparison, has_choice=arguments.rounds is None and not arguments.quick), flush=True)
    return results, ratios, noise


def serve_rounds(comparison: Comparison, num_asked: int | None) -> None:
    """Serve the requested number of rounds; by default as many as are worth their time."""
    while comparison.num_rounds < (num_asked or (comparison.num_rounds_worth() if comparison.num_rounds else 1)):
        num_outputs = len(comparison.workload.items) * len(comparison.arms)
        with progress_bar(num_outputs, sys.stderr.isatty()) as advance:
            comparison.serve_round(advance)


def report(comparison: Comparison, has_choice: bool) -> str:
    """Format the results of a workload: a table with the median and the worst times, ratios, and sentences."""
    results, noise = comparison.results(), comparison.noise()
    rounds = f"medians of {comparison.num_rounds} rounds" if comparison.num_rounds > 1 else "one round"
    if comparison.num_rounds == 1 and has_choice:
        rounds += (f", since it took {comparison.first_round_s:.0f} s (more than {CHEAP_ROUND_S:.0f}); "
                   f"--rounds {CHEAP_ROUNDS} gives medians")
    lines = [rounds, TABLE.title]
    for each in results:
        first, between = each.first_token_s, each.between_tokens_s
        lines.append(TABLE.row(each.arm, each.seconds, each.output_tokens_per_s, first[50], first[100],
                               between[50] * 1000, between[100] * 1000))
    lines += [f"{comparison.ours} against {arm}: {format_ratios(of_rounds)}{noise.mark}"
              for arm, of_rounds in comparison.ratios().items()]
    return "\n".join([*lines, *[noise.warning().rstrip()] * bool(noise.cause), *format_agreement(results),
                      *(line for result in results for line in _details(result))])


def format_agreement(results: Sequence[BenchmarkResult]) -> list[str]:
    """Say whether the arms produced the same tokens as the first one."""
    bug = "THIS IS A BUG, or a near-tie in half precision"
    same = [result.arm for result in results if result.num_different == 0]
    lines = [f"{', '.join(same[:-1])} and {same[-1]} produced the same tokens."] if len(same) > 1 else []
    lines += [f"{result.arm} produced different tokens for {result.num_different} of {result.num_requests} requests: "
              f"{'it computes in another precision' if result.arm in ROUNDED else bug}."
              for result in results if result.num_different]
    return lines + [f"{result.arm} draws other random tokens, so its tokens are not compared." for result in results
                    if result.num_different is None]


def _details(result: BenchmarkResult) -> list[str]:
    """Say what one arm wasted, and where its time went."""
    lines = []
    if result.worst_gap_beside_prompt_s and result.arm != ONE_AT_A_TIME:
        lines.append(f"{result.arm}: worst gap between tokens while a later prompt was computed: "
                     f"{result.worst_gap_beside_prompt_s * 1000:.0f} ms, "
                     f"{result.worst_gap_beside_prompt_s / result.between_tokens_s[50]:.1f} times the median gap")
    if result.num_drafted_tokens:
        lines.append(f"{result.arm}: {result.num_accepted_tokens} of {result.num_drafted_tokens} drafted tokens "
                     "accepted")
    told = [f"{name} {seconds / result.seconds:.1%} of the time" for name, seconds in result.profile_s.items()]
    if result.kv_waste is not None:
        told.append(f"{result.kv_waste:.0%} of the held KV memory empty")
    if result.padding is not None:
        told.append(f"{result.padding:.0%} of the computed rows are padding")
    if result.num_preemptions:
        told.append(f"{result.num_preemptions} preemptions, {result.num_recomputed_tokens} tokens computed again")
    return lines + [f"{result.arm}: {', '.join(told)}"] * bool(told)
