"""The picture of a throughput benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mini_vllm.benchmark.results import ARMS, BenchmarkResult

COLOURS = dict(zip(ARMS, ("#9aa5b1", "#2f6fde", "#e08a3c")))


def plot_results(results: Sequence[BenchmarkResult], model: str, path: str | Path) -> None:
    """Output tokens a second, first tokens and gaps between tokens, workload by workload.

    Raises ValueError, which says how to get it, if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from None
    workloads = list(dict.fromkeys(result.workload for result in results))
    arms = [arm for arm in ARMS if any(result.arm == arm for result in results)]
    by_place = {(result.workload, result.arm): result for result in results}
    figure = Figure(figsize=(max(6.5, 2 + 1.6 * len(workloads)), 9), layout="constrained")
    figure.suptitle(f"Serving with {model}", x=0.02, ha="left")
    panels = (("output tokens a second", lambda result: result.output_tokens_per_s, None),
              ("seconds to the first token: median (dot) to worst (bar)", lambda result: result.first_token_s[50],
               lambda result: result.first_token_s[100]),
              ("milliseconds between tokens: median (dot) to worst (bar)",
               lambda result: 1000 * result.between_tokens_s[50],
               lambda result: 1000 * result.between_tokens_s[100]))
    width = 0.8 / len(arms)
    for axes, (title, height, worst) in zip(figure.subplots(len(panels), 1), panels):
        for number, arm in enumerate(arms):
            places = [(x, by_place[workload, arm]) for x, workload in enumerate(workloads)
                      if (workload, arm) in by_place]
            left = [x + (number - (len(arms) - 1) / 2) * width for x, _ in places]
            heights = [height(result) for _, result in places]
            if worst is None:
                axes.bar_label(axes.bar(left, heights, width * 0.95, color=COLOURS[arm], label=arm), fmt="%.0f",
                               fontsize=8)
            else:
                tops = [worst(result) for _, result in places]
                axes.vlines(left, heights, tops, color=COLOURS[arm], linewidth=1.5)
                axes.scatter(left, heights, marker="o", color=COLOURS[arm], s=36)
                axes.scatter(left, tops, marker="_", color=COLOURS[arm], s=80)
        if worst is not None:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(lambda value, _: "")
            axes.set_xlim(-0.5, len(workloads) - 0.5)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xticks(range(len(workloads)), workloads)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)
