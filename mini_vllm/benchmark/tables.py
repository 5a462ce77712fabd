"""What a throughput benchmark prints and saves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mini_vllm.benchmark.results import PERCENTILES, BenchmarkResult


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
              speed_ups: Mapping[str, Mapping[str, float]]) -> None:
    """``speed_ups``: workload → arm → how many times as fast our batching was."""
    data = {"model": model, "results": [result.to_dict() for result in results], "speed_ups": speed_ups}
    Path(path).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
