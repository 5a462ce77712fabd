"""The picture of a throughput benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mini_vllm.benchmark.results import ARMS, BenchmarkResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = dict(zip(ARMS, ("#9aa5b1", "#2f6fde", "#e08a3c")))


class Panel(NamedTuple):
    title: str
    height: Callable[[BenchmarkResult], float]
    #: None: bars of ``height``. Else dots at ``height``, and a line up to this.
    worst: Callable[[BenchmarkResult], float] | None


PANELS = (
    Panel("output tokens a second", lambda result: result.output_tokens_per_s, None),
    Panel("seconds to the first token: median (dot) to worst (bar)", lambda result: result.first_token_s[50],
          lambda result: result.first_token_s[100]),
    Panel("milliseconds between tokens: median (dot) to worst (bar)", lambda result: 1000 * result.between_tokens_s[50],
          lambda result: 1000 * result.between_tokens_s[100]),
)


def plot_results(results: Sequence[BenchmarkResult], model: str, path: str | Path) -> None:
    """Output tokens a second, first tokens and gaps between tokens, workload by workload.

    Raises ValueError, which says how to get it, if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from None
    num_workloads = len({result.workload for result in results})
    figure = Figure(figsize=(max(6.5, 2 + 1.6 * num_workloads), 9), layout="constrained")
    figure.suptitle(f"Serving with {model}", x=0.02, ha="left")
    for axes, panel in zip(figure.subplots(len(PANELS), 1), PANELS):
        _draw_panel(axes, panel, results)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)


def _draw_panel(axes: Axes, panel: Panel, results: Sequence[BenchmarkResult]) -> None:
    """Workloads from left to right; the arms side by side in each."""
    workloads = list(dict.fromkeys(result.workload for result in results))
    arms = [arm for arm in ARMS if any(result.arm == arm for result in results)]
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        of_arm = [result for result in results if result.arm == arm]
        left = [workloads.index(result.workload) + (number - (len(arms) - 1) / 2) * width for result in of_arm]
        heights = [panel.height(result) for result in of_arm]
        if panel.worst is None:
            axes.bar_label(axes.bar(left, heights, width * 0.95, color=COLOURS[arm], label=arm), fmt="%.0f", fontsize=8)
        else:
            tops = [panel.worst(result) for result in of_arm]
            axes.vlines(left, heights, tops, color=COLOURS[arm], linewidth=1.5)
            axes.scatter(left, heights, marker="o", color=COLOURS[arm], s=36)
            axes.scatter(left, tops, marker="_", color=COLOURS[arm], s=80)
    if panel.worst is not None:
        _use_log_scale(axes)
        axes.set_xlim(-0.5, len(workloads) - 0.5)
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.set_xticks(range(len(workloads)), workloads)
    axes.spines[["top", "right"]].set_visible(False)


def _use_log_scale(axes: Axes) -> None:
    """With plain numbers at 1, 2, 5, 10, …"""
    from matplotlib.ticker import LogLocator
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
