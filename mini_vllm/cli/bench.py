"""``mini-vllm bench throughput``: the arms served in turns, their numbers printed, saved and drawn."""

from __future__ import annotations

import argparse
import sys

from mini_vllm.backend import blas
from mini_vllm.benchmark import tables
from mini_vllm.benchmark.drawing import Drawing
from mini_vllm.benchmark.plot import check_plot, plot_results
from mini_vllm.benchmark.results import BATCHED, ONE_AT_A_TIME, PEER, BenchmarkResult
from mini_vllm.benchmark.throughput import run_comparison_benchmark
from mini_vllm.benchmark.workloads import WORKLOADS, make_workload
from mini_vllm.checks import writable_file
from mini_vllm.llm import progress_bar
from mini_vllm.models.loader import load
from mini_vllm.models.random_model import load_random

ARM_OPTIONS = {"one": ONE_AT_A_TIME, "ours": BATCHED, "mlx-lm": PEER}
DEFAULT_WORKLOADS = ["decode-16", "nano-16", "mixed-64", "long-arrival"]


def run_throughput(arguments: argparse.Namespace) -> int:
    names = arguments.workload or DEFAULT_WORKLOADS
    names = list(WORKLOADS) if "all" in names else names
    arms = [ARM_OPTIONS[arm] for arm in dict.fromkeys(arguments.arm or ARM_OPTIONS)]
    rounds: int = arguments.rounds
    if rounds < 1:
        raise ValueError(f"--rounds is {rounds}, must be at least 1")
    if arguments.plot:
        check_plot(arguments.plot)
    if arguments.json:
        writable_file(arguments.json)
    drawing = Drawing.from_arguments(arguments)
    loaded = load_random(arguments.random) if arguments.random else load(arguments.model)
    workloads = [make_workload(name, loaded.config.vocab_size, loaded.config.max_position_embeddings)
                 for name in names]
    print(f"{loaded.name}, BLAS: {blas.name}; {drawing}; medians of {rounds} interleaved round"
          f"{'s' if rounds > 1 else ''}")
    everything: list[BenchmarkResult] = []
    speed_ups: dict[str, dict[str, float]] = {}
    for workload in workloads:
        with progress_bar(len(workload.items) * len(arms) * rounds, sys.stderr.isatty()) as advance:
            results, speed_ups[workload.name] = run_comparison_benchmark(loaded, workload, arms, rounds, advance,
                                                                         drawing)
        everything += results
        print(f"\n{workload.name}: {workload.about}\n{tables.format_table(results)}")
        _print_findings(results, speed_ups[workload.name])
    if arguments.json:
        tables.save_json(arguments.json, loaded.name, everything, speed_ups)
    if arguments.plot:
        plot_results(everything, loaded.name, arguments.plot, speed_ups)
    return 0


def _print_findings(results: list[BenchmarkResult], speed_ups: dict[str, float]) -> None:
    """What stands below a table: ratios, the worst gap beside a later prompt, and where the time went."""
    for arm, ratio in speed_ups.items():
        print(f"mini_vllm against {arm}: {ratio:.2f}x")
    for result in results:
        if result.worst_gap_beside_prompt_s and result.arm != ONE_AT_A_TIME:
            print(tables.format_gap(result))
    for result in results:
        if result.profile_s:
            print(tables.format_profile(result))
