"""The picture of a throughput benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mini_vllm.benchmark.throughput import ARMS, BenchmarkResult

COLOURS = dict(zip(ARMS, ("#9aa5b1", "#2f6fde", "#e08a3c")))


def plot_results(results: Sequence[BenchmarkResult], model: str, path: str | Path) -> None:
    """Output tokens a second, first tokens and gaps between tokens, workload by workload.

    Raises ValueError, which says how to get it, if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install 'mini-vllm[plot]'") from None
    workloads = list(dict.fromkeys(result.workload for result in results))
    arms = [arm for arm in ARMS if any(result.arm == arm for result in results)]
    by_place = {(result.workload, result.arm): result for result in results}
    figure = Figure(figsize=(max(6.5, 2 + 1.6 * len(workloads)), 9), layout="constrained")
    figure.suptitle(f"Serving with {model}")
    panels = (("output tokens a second", lambda result: result.output_tokens_per_s, None, False),
              ("first token: median, and worst (s)", lambda result: result.first_token_s[50],
               lambda result: result.first_token_s[100], True),
              ("between tokens: median, and worst (ms)", lambda result: 1000 * result.between_tokens_s[50],
               lambda result: 1000 * result.between_tokens_s[100], True))
    width = 0.8 / len(arms)
    for axes, (title, height, worst, is_log) in zip(figure.subplots(len(panels), 1), panels):
        for number, arm in enumerate(arms):
            places = [(x, by_place[workload, arm]) for x, workload in enumerate(workloads)
                      if (workload, arm) in by_place]
            left = [x + (number - (len(arms) - 1) / 2) * width for x, _ in places]
            heights = [height(result) for _, result in places]
            bars = axes.bar(left, heights, width * 0.95, color=COLOURS[arm], label=arm)
            if worst is None:
                axes.bar_label(bars, fmt="%.0f", fontsize=8)
            else:
                tops = [worst(result) for _, result in places]
                axes.vlines(left, heights, tops, color=COLOURS[arm], linewidth=1.5)
                axes.scatter(left, tops, marker="_", color=COLOURS[arm], s=60)
        if is_log:
            axes.set_yscale("log")
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xticks(range(len(workloads)), workloads)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)
