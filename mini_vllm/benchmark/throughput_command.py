"""``mini-vllm bench throughput``: the arms served in turns, their numbers printed, saved and drawn."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, cast

from mini_vllm.arguments import QUICK, chosen_arms, draft_settings
from mini_vllm.backend import blas
from mini_vllm.benchmark import tables
from mini_vllm.benchmark.comparison import CHEAP_ROUND_S, CHEAP_ROUNDS, Comparison
from mini_vllm.benchmark.drawing import Drawing
from mini_vllm.benchmark.machine_noise import Noise, look_around, print_if_any
from mini_vllm.benchmark.mlx_lm_peer import has_peer, without_peer
from mini_vllm.benchmark.peers.process import check_pythons, started
from mini_vllm.benchmark.plot import check_plot, plot_results
from mini_vllm.benchmark.result_file import Results
from mini_vllm.benchmark.results import BATCHED, DRAFTED, LLAMA, ONE_AT_A_TIME, PEER, VLLM_TYPES, BenchmarkResult
from mini_vllm.benchmark.workloads import WORKLOADS, Settings, make_workload
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.engine_room.frame import load_for
from mini_vllm.llm import progress_bar
from mini_vllm.models.random_model import load_random
from mini_vllm.native.advice import tell_slow_blas
from mini_vllm.terminal import fold

#: The values of ``--arm``, and the arms that each measures.
ARM_OPTIONS = {"one": (ONE_AT_A_TIME,), "ours": (BATCHED,), "mlx-lm": (PEER,), "vllm": tuple(VLLM_TYPES),
               "llama.cpp": (LLAMA,)}
DEFAULT_WORKLOADS = ["decode-16", "nano-16", "mixed-64", "long-arrival"]
QUICK_WORKLOADS = ["decode-16"]


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
    drawing, draft = _check(arguments, arms)
    check_pythons(_pythons(arguments), chosen)
    with Results(arguments) as saved:
        results, ratios, noise, model, peers = _measure(arguments, names, arms, drawing, draft)
        saved.save({**tables.as_dict(model, results, ratios, noise), **draft, "precision": arguments.precision,
                    **({"peers": peers} if peers else {})})
    if arguments.plot:
        plot_results(results, model, arguments.plot, tables.medians(ratios), noise)
    return 0


def _measure(arguments: argparse.Namespace, names: list[str], arms: list[str], drawing: Drawing, draft: Settings
             ) -> tuple[list[BenchmarkResult], dict[str, dict[str, list[float]]], dict[str, Noise], str,
                        dict[str, dict[str, Any]]]:
    """Return results, ratios and noise of each workload, the model's name, and the other engines' versions by arm."""
    if arguments.quick:
        print(QUICK)
    loaded = (load_random(arguments.random) if arguments.random else
              load_for(EngineConfig(model=arguments.model), EngineParts()))
    workloads = [make_workload(name, loaded.config.vocab_size, loaded.config.max_position_embeddings)
                 for name in names]
    for workload in workloads:
        workload.settings["precision"] = arguments.precision
    print(f"{loaded.name}, BLAS: {blas.name}; {drawing}; precision: {arguments.precision}"
          f"{f'; drafts: {arguments.draft}' if draft else ''}", flush=True)
    tell_slow_blas()
    print_if_any(look_around().warning_before(), sys.stderr)
    results: list[BenchmarkResult] = []
    ratios: dict[str, dict[str, list[float]]] = {}
    noise: dict[str, Noise] = {}
    with started(loaded, workloads, arms, _pythons(arguments)) as peers:
        for workload in workloads:
            print(f"\n{fold(f'{workload.name}: {workload.about}')}", flush=True)
            comparison = Comparison(loaded, workload, arms, drawing, draft=draft, others=peers)
            _serve_rounds(comparison, arguments.rounds or (1 if arguments.quick else None))
            results += comparison.results()
            ratios[workload.name], noise[workload.name] = comparison.ratios(), comparison.noise()
            print(fold(_report(comparison, has_choice=arguments.rounds is None and not arguments.quick)), flush=True)
    return results, ratios, noise, loaded.name, {arm: peer.about for arm, peer in peers.items()}


def _pythons(arguments: argparse.Namespace) -> dict[str, Path | None]:
    return {"vllm": arguments.vllm_python, "llama.cpp": arguments.llama_python}


def _check(arguments: argparse.Namespace, arms: list[str]) -> tuple[Drawing, Settings]:
    """Return the sampling, and the settings of drafts. Raise ValueError for an invalid option."""
    if arguments.rounds is not None and arguments.rounds < 1:
        raise ValueError(f"--rounds is {arguments.rounds}, must be at least 1")
    if arguments.plot:
        check_plot(arguments.plot)
    draft = cast(Settings, draft_settings(arguments))
    EngineConfig(**draft)
    if draft and BATCHED not in arms:
        raise ValueError("--draft needs --arm ours")
    drawing = Drawing.from_arguments(arguments)
    if not drawing.is_greedy and {*VLLM_TYPES, LLAMA} & set(arms):
        raise ValueError(f"--temperature is {drawing.temperature:g}, but --arm vllm and --arm llama.cpp are greedy")
    return drawing, draft


def _serve_rounds(comparison: Comparison, num_asked: int | None) -> None:
    """Serve the requested number of rounds; by default as many as are worth their time."""
    while comparison.num_rounds < (num_asked or (comparison.num_rounds_worth() if comparison.num_rounds else 1)):
        num_outputs = len(comparison.workload.items) * len(comparison.arms)
        with progress_bar(num_outputs, sys.stderr.isatty()) as advance:
            comparison.serve_round(advance)


def _report(comparison: Comparison, has_choice: bool) -> str:
    """Format the results of a workload: ratios, tables, the worst gap during a later prompt, and where the time
    went."""
    results = comparison.results()
    paragraphs = [_rounds_line(comparison, has_choice), tables.format_table(results),
                  tables.format_speed_ups(comparison.ratios(), comparison.noise(), comparison.ours),
                  tables.format_agreement(results), "", tables.format_memory(results)]
    paragraphs += [tables.format_drafts(result) for result in results if result.arm == DRAFTED]
    paragraphs += [tables.format_gap(result) for result in results
                   if result.worst_gap_beside_prompt_s and result.arm != ONE_AT_A_TIME]
    paragraphs += [tables.format_profile(result) for result in results if result.profile_s]
    return "\n".join(paragraphs)


def _rounds_line(comparison: Comparison, has_choice: bool) -> str:
    if comparison.num_rounds > 1:
        return f"medians of {comparison.num_rounds} rounds"
    if not has_choice:
        return "one round"
    return (f"one round, since it took {comparison.first_round_s:.0f} s (more than {CHEAP_ROUND_S:.0f}); "
            f"--rounds {CHEAP_ROUNDS} gives medians")
