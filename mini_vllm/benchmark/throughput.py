"""``mini-vllm bench throughput``: a workload served one request at a time, in our batches and by other engines.

All engines (``peers``) serve the same requests with the same weights, greedily and in turns. The tokens of mlx-lm and
of our two arms must agree. A later request arrives when the engine has produced a given number of tokens, so that no
clock decides what is measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from mini_vllm.backend import blas
from mini_vllm.benchmark.machine import Noise, NoiseWatch
from mini_vllm.benchmark.peer_script import Watch
from mini_vllm.benchmark.peers import check_pythons, has_peer, load_peer, serve_mlx_lm, start, without_peer
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
    Results,
    Served,
    Table,
    announce,
    format_ratios,
    median_of,
    result_of,
)
from mini_vllm.benchmark.workloads import WORKLOADS, Workload, chosen_arms, make_workload
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.engine_frame import load_for
from mini_vllm.metrics import EngineMetrics
from mini_vllm.models.loader import LoadedModel
from mini_vllm.request import SamplingParams
from mini_vllm.speculation import draft_settings

#: The values of ``--arm``, and the arms that each measures.
ARM_OPTIONS = {"one": (ONE_AT_A_TIME,), "ours": (BATCHED,), "mlx-lm": (PEER,), "vllm": tuple(VLLM_TYPES),
               "llama.cpp": (LLAMA,)}
DEFAULT_WORKLOADS, QUICK_WORKLOADS = ["decode-16", "nano-16", "mixed-64", "long-arrival"], ["decode-16"]
#: The default number of rounds if the first takes less than this time, and with drafts, whose gain may be small.
CHEAP_ROUNDS, CHEAP_ROUND_S, DRAFT_ROUNDS = 3, 20.0, 5
TABLE = Table((f"{'':<21}", "{}"), ("seconds", "{:.2f}"), (" tokens/s", "{:.1f}"), ("first, s", "{:.2f}"),
              ("  worst", "{:.2f}"), ("next, ms", "{:.1f}"), ("worst", "{:.0f}"))


def serve(loaded: LoadedModel, workload: Workload, arm: str, temperature: float = 0.0, **settings: Any) -> Served:
    """Run a workload through our engine; ``settings`` are fields of its EngineConfig."""
    if arm == ONE_AT_A_TIME:
        settings["max_num_seqs"] = 1
    watch, metrics = run_engine(loaded, workload, temperature, **settings)
    return replace(result_of(workload, arm, watch), num_preemptions=metrics.num_preemptions,
                   num_recomputed_tokens=metrics.num_recomputed_tokens, num_drafted_tokens=metrics.num_drafted_tokens,
                   num_accepted_tokens=metrics.num_accepted_tokens), watch.token_ids


def run_engine(loaded: LoadedModel, workload: Workload, temperature: float = 0.0, **settings: Any
               ) -> tuple[Watch, EngineMetrics]:
    """Run a workload through our engine. Raise RuntimeError if a request fails."""
    engine = LLMEngine(EngineConfig(**{**workload.settings, **settings}), loaded=loaded)
    watch = Watch(workload.items)
    while watch.num_to_come or engine.has_unfinished_requests():
        for index in watch.arrivals():
            prompt, num_tokens, _ = workload.items[index]
            params = SamplingParams(max_tokens=num_tokens, temperature=temperature, seed=index, ignore_eos=True)
            engine.add_request(prompt, params, str(index))
        for output in engine.step():
            if output.error:
                raise RuntimeError(f"{workload.name}: request {output.request_id}: {output.error}")
            index = int(output.request_id)
            watch.add(index, output.token_ids[len(watch.token_ids[index]):])
    return watch, engine.metrics()


class Comparison:
    """Serves a workload with each arm in turn, round after round, and holds the results."""

    def __init__(self, workload: Workload, arms: Mapping[str, Arm]) -> None:
        self.workload, self.arms = workload, arms
        #: The arm that is compared with the others.
        self.ours = DRAFTED if DRAFTED in arms else BATCHED
        self._watch = NoiseWatch()
        #: One dict per round, by arm.
        self._rounds: list[dict[str, BenchmarkResult]] = []
        #: The tokens of the first arm in the first round: the others are compared with them.
        self._token_ids: list[list[int]] | None = None

    def serve_rounds(self, num_rounds: int | None) -> None:
        """Serve this number of rounds; None: several if that costs little."""
        while len(self._rounds) < (num_rounds or (self._num_rounds_worth() if self._rounds else 1)):
            self.serve_round()

    def _num_rounds_worth(self) -> int:
        if DRAFTED in self.arms:
            return DRAFT_ROUNDS
        return CHEAP_ROUNDS if sum(result.seconds for result in self._rounds[0].values()) < CHEAP_ROUND_S else 1

    def serve_round(self) -> None:
        of_round: dict[str, BenchmarkResult] = {}
        for name, arm in self.arms.items():
            if sys.stderr.isatty():
                print(f"round {len(self._rounds) + 1}: {name}", file=sys.stderr, flush=True)
            with self._watch.over():
                of_round[name], token_ids = arm(self.workload)
            self._token_ids = self._token_ids or token_ids
            of_round[name].num_different = sum(mine != first for mine, first in zip(token_ids, self._token_ids))
        self._rounds.append(of_round)

    def results(self) -> list[BenchmarkResult]:
        """Return the median of all rounds for each arm."""
        return [median_of([of_round[arm] for of_round in self._rounds]) for arm in self.arms]

    def ratios(self) -> dict[str, list[float]]:
        """Return for every other arm how many times as fast ours was, round by round."""
        return {arm: [of_round[arm].seconds / of_round[self.ours].seconds for of_round in self._rounds]
                for arm in self.arms if arm != self.ours and self.ours in self.arms}

    def noise(self) -> Noise:
        return self._watch.noise()


def our_arms(loaded: LoadedModel, names: Sequence[str], draft: Mapping[str, Any] | None = None) -> dict[str, Arm]:
    """Return those of ARMS that are named. With the settings ``draft``, our batching is a second arm with drafts.

    Raise ValueError for a draft model that does not fit.
    """
    arms: dict[str, Arm] = {name: partial(serve, loaded, arm=name) for name in names
                            if name in (ONE_AT_A_TIME, BATCHED)}
    if draft:
        check_draft(loaded, draft)
        arms[DRAFTED] = partial(serve, loaded, arm=DRAFTED, **draft)
    if PEER in names:
        arms[PEER] = partial(serve_mlx_lm, load_peer(loaded))
    return arms


def check_draft(loaded: LoadedModel, draft: Mapping[str, Any]) -> None:
    """Raise ValueError, before anything is measured, if ``draft`` names no model with the vocabulary of ``loaded``."""
    LLMEngine(EngineConfig(num_blocks=2, **draft), loaded=loaded)


def run_comparison_benchmark(loaded: LoadedModel, workload: Workload, arms: Sequence[str] = ARMS, rounds: int = 1
                             ) -> tuple[list[BenchmarkResult], dict[str, float]]:
    """Serve a workload ``rounds`` times by each arm. Return the medians, and how many times as fast our batching was.

    Raise ValueError for an unknown arm, or if there is no arm or no round.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}, must be at least 1")
    unknown = [arm for arm in arms if arm not in ARMS]
    if unknown or not arms:
        raise ValueError(f"there is no arm {unknown[0]!r}, only {', '.join(ARMS)}" if unknown else "no arm is given")
    comparison = Comparison(workload, our_arms(loaded, arms))
    comparison.serve_rounds(rounds)
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
    draft = draft_settings(arguments)
    EngineConfig(**draft)
    if draft and BATCHED not in arms:
        raise ValueError("--draft needs --arm ours")
    pythons = {"vllm": arguments.vllm_python, "llama.cpp": arguments.llama_python}
    check_pythons(pythons, chosen)
    if arguments.plot:
        from mini_vllm.benchmark.plot import check_plot, plot_results
        check_plot(arguments.plot)
    with Results(arguments) as saved, ExitStack() as running:
        loaded = load_for(EngineConfig(model=arguments.model), EngineParts())
        workloads = [make_workload(name, loaded.config.vocab_size, loaded.config.max_position_embeddings)
                     for name in names]
        announce(arguments, f"{loaded.name}, BLAS: {blas.name}; precision: {arguments.precision}"
                 + (f"; drafts: {arguments.draft}" if draft else ""))
        processes = start(loaded, workloads, arms, pythons, running)
        all_arms = {**our_arms(loaded, arms, draft),
                    **{arm: process.serve for arm, process in processes.items()}}
        results: list[BenchmarkResult] = []
        ratios: dict[str, dict[str, list[float]]] = {}
        noise: dict[str, Noise] = {}
        for workload in workloads:
            print(f"\n{workload.name}: {workload.about}", flush=True)
            workload.settings["precision"] = arguments.precision
            comparison = Comparison(workload, all_arms)
            comparison.serve_rounds(arguments.rounds or (1 if arguments.quick else None))
            results += comparison.results()
            ratios[workload.name], noise[workload.name] = comparison.ratios(), comparison.noise()
            print(report(comparison), flush=True)
        saved.save({"model": loaded.name, "results": [result.to_dict() for result in results],
                    "speed_ups": {name: {arm: statistics.median(each) for arm, each in of_workload.items()}
                                  for name, of_workload in ratios.items()},
                    "ratios": ratios, "noise_of": {name: each.to_dict() for name, each in noise.items()}, **draft,
                    "precision": arguments.precision,
                    "peers": {arm: process.about for arm, process in processes.items()}})
    if arguments.plot:
        plot_results(arguments.plot, results, loaded.name, ratios, noise)
    return 0


def report(comparison: Comparison) -> str:
    """Format the results of a workload: a table with the median and the worst times, ratios, and sentences."""
    results, noise = comparison.results(), comparison.noise()
    num_rounds = results[0].num_rounds
    lines = [f"medians of {num_rounds} rounds" if num_rounds > 1 else
             f"one round; --rounds {CHEAP_ROUNDS} gives medians", TABLE.title]
    for each in results:
        first, between = each.first_token_s, each.between_tokens_s
        lines.append(TABLE.row(each.arm, each.seconds, each.output_tokens_per_s, first[50], first[100],
                               between[50] * 1000, between[100] * 1000))
    lines += [f"{comparison.ours} against {arm}: {format_ratios(of_rounds)}{noise.mark}"
              for arm, of_rounds in comparison.ratios().items()]
    return "\n".join([*lines, *noise.warning().splitlines(), *format_agreement(results),
                      *(line for result in results for line in _details(result))])


def format_agreement(results: Sequence[BenchmarkResult]) -> list[str]:
    """Say whether the arms produced the same tokens as the first one."""
    bug = "THIS IS A BUG, or a near-tie in half precision or with --fast"
    same = [result.arm for result in results if not result.num_different]
    lines = [f"{', '.join(same[:-1])} and {same[-1]} produced the same tokens."] if len(same) > 1 else []
    return lines + [f"{result.arm} produced different tokens for {result.num_different} of {result.num_requests} "
                    f"requests: {'it computes in another precision' if result.arm in ROUNDED else bug}."
                    for result in results if result.num_different]


def _details(result: BenchmarkResult) -> list[str]:
    """Say how one arm treats a prompt that arrives late, what its drafts were worth, and what it computed again."""
    lines = []
    if result.worst_gap_beside_prompt_s and result.arm != ONE_AT_A_TIME:
        lines.append(f"{result.arm}: worst gap between tokens while a later prompt was computed: "
                     f"{result.worst_gap_beside_prompt_s * 1000:.0f} ms, "
                     f"{result.worst_gap_beside_prompt_s / result.between_tokens_s[50]:.1f} times the median gap")
    if result.num_drafted_tokens:
        lines.append(f"{result.arm}: {result.num_accepted_tokens} of {result.num_drafted_tokens} drafted tokens "
                     "accepted")
    if result.num_preemptions:
        lines.append(f"{result.arm}: {result.num_preemptions} preemptions, {result.num_recomputed_tokens} tokens "
                     "computed again")
    return lines
