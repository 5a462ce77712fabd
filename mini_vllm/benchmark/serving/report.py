"""The output of the benchmark, printed and saved. Tables fit into 60 columns."""

from __future__ import annotations

from collections.abc import Mapping

from mini_vllm.benchmark.machine_noise import MARK, Noise
from mini_vllm.benchmark.results import BATCHED
from mini_vllm.benchmark.serving.answers import GOOD_SHARE, MAX_FIRST_TOKEN_S, MAX_TOKEN_S, Load
from mini_vllm.benchmark.serving.goodput import Goodput
from mini_vllm.benchmark.serving.overload import Overload

SHOWN = (50, 90, 99)
GOODPUT = (f"Goodput: the highest rate at which {GOOD_SHARE:.0%} of the answers are good. A good answer has its first "
           f"token within {MAX_FIRST_TOKEN_S:g} s and, on average, another token every {MAX_TOKEN_S * 1000:.0f} ms.")


def format_loads(loads: Mapping[str, Load]) -> str:
    """Format the servers at one rate, one line each: times, and throughput."""
    lines = [f"{'':<10} {'first token, s':>15} {'per token, ms':>15} {'end to end, s':>15}",
             f"{'':<10} " + " ".join("".join(f"{f'p{p}':>5}" for p in SHOWN) for _ in range(3))]
    for name, load in loads.items():
        found = load.percentiles()
        if not found:
            lines.append(f"{name:<10} no answer")
            continue
        first, token, total = found["first_token_s"], found["token_s"], found["total_s"]
        lines.append(f"{name:<10} " + " ".join("".join(f"{_short(value):>5}" for value in values) for values in (
            [first[p] for p in SHOWN], [round(token[p] * 1000) for p in SHOWN], [total[p] for p in SHOWN])))
    lines += ["", f"{'':<10} {'good':>6} {'tokens/s':>9} {'cached':>8} {'cores':>6} {'client':>7} {'failed':>7}"]
    for name, load in loads.items():
        num_cached = sum(answer.num_cached_tokens for answer in load.whole)
        num_failed = sum(bool(answer.failure) for answer in load.answers)
        lines.append(f"{name:<10} {load.good_share:>6.0%} {load.tokens_per_s:>9.1f} {num_cached:>8} "
                     f"{load.server_cores:>6.2f} {load.client_cores:>7.2f} {num_failed:>7}")
    return "\n".join(lines)


def _short(number: float) -> str:
    """Format a number in at most four characters."""
    if isinstance(number, int) or number >= 100:
        return f"{number:.0f}"
    return f"{number:.2f}" if number < 10 else f"{number:.1f}"


def format_try(name: str, load: Load) -> str:
    """Format one run of a search."""
    told = "" if load.is_good else ", which is too few"
    if load.says_nothing:
        told = f"; not counted: the host took {load.stolen_share:.0%} of the CPU time"
    return f"  {name:<10} {load.rate:>6.2f} per second: {load.good_share:>4.0%} good{told}"


def format_goodputs(goodputs: Mapping[str, Goodput], noise: Noise) -> str:
    """Format the goodput of each server, and the ratios of ours to the others; with a mark if they cannot be
    trusted."""
    lines = [f"{name:<10} {goodput.requests_per_s:>6.2f} requests per second, {goodput.tokens_per_s:.0f} tokens/s"
             for name, goodput in goodputs.items()]
    mark = f" {MARK}" if noise.is_loud else ""
    lines += [f"{BATCHED} against {name}: {ratio:.2f}x{mark}" for name, ratio in ratios(goodputs).items()]
    return "\n".join(lines + [noise.warning()] * noise.is_loud)


def ratios(goodputs: Mapping[str, Goodput]) -> dict[str, float]:
    """Return the ratio of our goodput to that of each other server, except those that have none."""
    ours = goodputs.get(BATCHED, Goodput()).requests_per_s
    return {name: ours / goodput.requests_per_s for name, goodput in goodputs.items()
            if name != BATCHED and goodput.requests_per_s}


def format_overload(overload: Overload) -> str:
    """Say whether high-priority requests are served as if there were no low-priority requests."""
    told = {True: "met", False: "NOT MET", None: "too few requests to tell"}[overload.holds]
    lines = [overload.about,
             f"high, unloaded: first token p90 {_ms(overload.unloaded_s[90])}",
             f"loaded step:    {_ms(overload.step_s)}, the median between tokens",
             f"high, loaded:   first token p90 {_ms(overload.loaded_s[90])}",
             f"target:         {_ms(overload.bound_s)}, unloaded time plus two steps: {told}",
             f"low:            {overload.num_low_finished} of {overload.num_low} finished"]
    return "\n".join(lines + [f"failures: {', '.join(overload.failures)}"] * bool(overload.failures))


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.0f} ms"
