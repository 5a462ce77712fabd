"""The output of a throughput benchmark, printed and saved. Its tables fit into 60 columns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from mini_vllm.benchmark.machine_noise import MARK, Noise
from mini_vllm.benchmark.results import BATCHED, ROUNDED, BenchmarkResult

#: Workload → arm → how many times as fast our batching was; and the same round by round.
SpeedUps = Mapping[str, Mapping[str, float]]
Ratios = Mapping[str, Mapping[str, Sequence[float]]]


def format_table(results: Sequence[BenchmarkResult]) -> str:
    """Format speed and latency of the arms of one workload, one line each. Times are the median and the worst."""
    lines = [f"{'':<13} {'tokens/s':>14}  {'first token, s':>14}  {'next token, ms':>14}",
             f"{'':<13} {'output':>7} {'all':>6}  {'median':>7} {'worst':>6}  {'median':>7} {'worst':>6}"]
    for result in results:
        first, between = result.first_token_s, result.between_tokens_s
        lines.append(f"{result.short_name:<13} {result.output_tokens_per_s:>7.1f} {result.total_tokens_per_s:>6.0f}  "
                     f"{first[50]:>7.2f} {first[100]:>6.2f}  {between[50] * 1000:>7.1f} {between[100] * 1000:>6.0f}")
    return "\n".join(lines)


def format_memory(results: Sequence[BenchmarkResult]) -> str:
    """Format the arms of one workload, one line each: the duration, and the memory and computation that were wasted."""
    lines = [f"{'':<13} {'':>8} {'KV memory':>11} {'rows that':>12}",
             f"{'':<13} {'seconds':>8} {'held empty':>11} {'are padding':>12} {'preemptions':>12}"]
    for result in results:
        cells = ["-"] * 3
        if result.kv_waste is not None and result.padding is not None:
            cells = [f"{result.kv_waste:.0%}", f"{result.padding:.0%}", str(result.num_preemptions)]
        lines.append(f"{result.short_name:<13} {result.seconds:>8.2f} {cells[0]:>11} {cells[1]:>12} {cells[2]:>12}")
    return "\n".join(lines)


def format_agreement(results: Sequence[BenchmarkResult]) -> str:
    """Say whether the arms produced the same tokens as the first one."""
    bug = "THIS IS A BUG, or a near-tie in half precision"
    lines = [f"{result.arm} produced different tokens for {result.num_different} of {result.num_requests} requests: "
             f"{'it computes in another precision' if result.arm in ROUNDED else bug}."
             for result in results if result.num_different]
    lines += [f"{result.arm} draws other random tokens, so its tokens are not compared." for result in results
              if result.num_different is None]
    same = [result.arm for result in results if result.num_different == 0]
    if len(same) > 1:
        lines.insert(0, f"{', '.join(same[:-1])} and {same[-1]} produced the same tokens.")
    return "\n".join(lines)


def format_speed_ups(ratios: Mapping[str, Sequence[float]], noise: Noise, ours: str = BATCHED) -> str:
    """Format the speed-ups of our engine. Each has a mark if it cannot be trusted, with the reason below."""
    mark = f" {MARK}" if noise.is_loud else ""
    lines = [f"{ours} against {arm}: {format_ratios(of_rounds)}{mark}" for arm, of_rounds in ratios.items()]
    return "\n".join(lines + [noise.warning()] * noise.is_loud)


def format_ratios(ratios: Sequence[float]) -> str:
    """Format the median, and the lowest and the highest ratio of all rounds."""
    spread = f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{statistics.median(ratios):.2f}x{spread}"


def format_drafts(result: BenchmarkResult) -> str:
    """Say how many guesses were right."""
    return f"{result.arm}: {result.num_accepted_tokens} of {result.num_drafted_tokens} drafted tokens accepted"


def format_gap(result: BenchmarkResult) -> str:
    """Say how a prompt that arrives late delays the decoding requests."""
    return (f"{result.arm}: worst gap between tokens while a later prompt was computed: "
            f"{result.worst_gap_beside_prompt_s * 1000:.0f} ms, "
            f"{result.worst_gap_beside_prompt_s / result.between_tokens_s[50]:.1f} times the median gap")


def format_profile(result: BenchmarkResult) -> str:
    """Say where the time of one of our arms went."""
    total = sum(result.profile_s.values()) or 1.0
    parts = ", ".join(f"{name} {seconds / total:.1%}" for name, seconds in result.profile_s.items())
    again = f"; {result.num_recomputed_tokens} tokens computed again" if result.num_recomputed_tokens else ""
    return f"{result.arm}: {parts}{again}"


def medians(ratios: Ratios) -> SpeedUps:
    return {workload: {arm: statistics.median(of_rounds) for arm, of_rounds in by_arm.items()}
            for workload, by_arm in ratios.items()}


def as_dict(model: str, results: Sequence[BenchmarkResult], ratios: Ratios, noise: Mapping[str, Noise]
            ) -> dict[str, object]:
    """Return all numbers."""
    return {"model": model, "results": [result.to_dict() for result in results], "speed_ups": medians(ratios),
            "ratios": ratios, "noise_of": {workload: found.to_dict() for workload, found in noise.items()}}
