"""The picture of a throughput benchmark: the speed of each arm, the machine, and the speed-up of our engine.

The arms differ in hatching as well as in colour, so that a grey print can be read.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mini_vllm.benchmark.machine import describe_machine
from mini_vllm.benchmark.machine_noise import MARK, Noise
from mini_vllm.benchmark.results import BATCHED, DRAFTED, LLAMA, ONE_AT_A_TIME, PEER, VLLM_TYPES, BenchmarkResult
from mini_vllm.checks import install_line, writable_file
from mini_vllm.pictures.palette import PAINTS, request_paint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The metadata by which each file format records its date, and how to leave it out.
UNDATED: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
#: Arm → paint and hatching.
LOOKS = {ONE_AT_A_TIME: ("null", ""), **{arm: (request_paint(number), hatch) for number, (arm, hatch) in enumerate(
    zip((BATCHED, PEER, DRAFTED, *VLLM_TYPES, LLAMA), ("", "////", "....", "\\\\\\\\", "xxxx", "oo")))}}
INK = PAINTS["ink"].light
#: Title of a panel → the height of a bar, and the worst value if a line shows it.
PANELS: dict[str, tuple[Callable[[BenchmarkResult], float], Callable[[BenchmarkResult], float] | None]] = {
    "output tokens per second, and the speed-up of mini_vllm": (lambda result: result.output_tokens_per_s, None),
    "seconds to the first token: median (bar) to worst (line)": (
        lambda result: result.first_token_s[50], lambda result: result.first_token_s[100]),
    "milliseconds between tokens: median (bar) to worst (line)": (
        lambda result: 1000 * result.between_tokens_s[50], lambda result: 1000 * result.between_tokens_s[100]),
}


def check_plot(path: Path) -> None:
    """Raise ValueError if no picture can be drawn there. Call this before anything is measured."""
    writable_file(path)
    if path.suffix.lower() not in UNDATED:
        raise ValueError(f"{path}: a plot is written as {', '.join(UNDATED)}, not as "
                         f"{path.suffix or 'a name without a suffix'}")
    _figure_class()


def plot_results(path: Path, results: Sequence[BenchmarkResult], model: str,
                 ratios: Mapping[str, Mapping[str, Sequence[float]]], noise: Mapping[str, Noise]) -> None:
    """Draw the results to a file; ``ratios`` and ``noise`` are by workload."""
    figure = make_figure(results, model, ratios, noise)
    import matplotlib
    with matplotlib.rc_context({"svg.hashsalt": "mini_vllm", "hatch.linewidth": 0.7}):
        figure.savefig(path, dpi=120, metadata=UNDATED[path.suffix.lower()])


def make_figure(results: Sequence[BenchmarkResult], model: str, ratios: Mapping[str, Mapping[str, Sequence[float]]],
                noise: Mapping[str, Noise]) -> Figure:
    """Draw output tokens per second, first tokens and gaps between tokens, workload by workload."""
    workloads = list(dict.fromkeys(result.workload for result in results))
    figure = _figure_class()(figsize=(max(6.5, 2 + 1.6 * len(workloads)), 9.5), layout="constrained")
    figure.suptitle(f"Serving with {model}", x=0.02, ha="left", fontweight="bold")
    for axes, (title, (height, worst)) in zip(figure.subplots(len(PANELS), 1), PANELS.items()):
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xticks(range(len(workloads)), workloads)
        axes.spines[["top", "right"]].set_visible(False)
        _draw_bars(axes, results, workloads, height, worst)
    for place, workload in enumerate(workloads):
        lines = [f"{statistics.median(each):.2f}× {arm}{noise[workload].mark}"
                 for arm, each in ratios.get(workload, {}).items()]
        highest = max(result.output_tokens_per_s for result in results if result.workload == workload)
        figure.axes[0].annotate("\n".join(lines), (place, highest), (0, 13), textcoords="offset points", ha="center",
                                fontsize=8, fontweight="bold")
    figure.axes[0].margins(y=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", frameon=False, fontsize=9,
                  ncols=3)
    rounds = " or ".join(str(count) for count in sorted({result.num_rounds for result in results}))
    footer = [*describe_machine(), f"rounds: {rounds}, with the arms in turns; medians",
              *(f"{MARK} {workload}: {each.cause}. Do not trust these numbers." for workload, each in noise.items()
                if each.cause)]
    figure.supxlabel("\n".join(footer), x=0.02, ha="left", fontsize=8, color=PAINTS["faint"].light)
    return figure


def _draw_bars(axes: Axes, results: Sequence[BenchmarkResult], workloads: Sequence[str],
               height: Callable[[BenchmarkResult], float], worst: Callable[[BenchmarkResult], float] | None) -> None:
    """Draw workloads from left to right, with the arms side by side in each; a panel with lines has a log scale."""
    arms = [arm for arm in LOOKS if any(result.arm == arm for result in results)]
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        of_arm, (paint, hatch) = [result for result in results if result.arm == arm], LOOKS[arm]
        left = [workloads.index(result.workload) + (number - (len(arms) - 1) / 2) * width for result in of_arm]
        bars = axes.bar(left, list(map(height, of_arm)), width * 0.92, color=PAINTS[paint].light, hatch=hatch,
                        edgecolor=INK, linewidth=0.7, label=arm)
        if worst is None:
            axes.bar_label(bars, fmt="%.0f", fontsize=8)
        else:
            axes.vlines(left, list(map(height, of_arm)), list(map(worst, of_arm)), color=INK, linewidth=1)
    if worst is not None:
        axes.set_yscale("log")


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(f"--plot needs matplotlib: {install_line('bench')}") from None
    return Figure
