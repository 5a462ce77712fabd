"""The picture of a throughput benchmark: the speed of each arm, the machine, and the speed-up of our engine.

The arms differ in hatching as well as in colour, so that a grey print can be read.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mini_vllm.benchmark.machine import MARK, Noise, describe_machine
from mini_vllm.benchmark.results import BATCHED, DRAFTED, LLAMA, ONE_AT_A_TIME, PEER, VLLM_TYPES, BenchmarkResult
from mini_vllm.checks import install_line, writable_file
from mini_vllm.pictures.palette import PAINTS, request_paint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".pdf", ".png")
#: Arm → paint and hatching.
LOOKS = {ONE_AT_A_TIME: ("null", ""), **{arm: (request_paint(number), hatch) for number, (arm, hatch) in enumerate(
    zip((BATCHED, PEER, DRAFTED, *VLLM_TYPES, LLAMA), ("", "////", "....", "\\\\\\\\", "xxxx", "oo")))}}
INK = PAINTS["ink"].light


def check_plot(path: Path) -> None:
    """Raise ValueError if no picture can be drawn there. Call this before anything is measured."""
    writable_file(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: a plot is written as {', '.join(SUFFIXES)}, not as "
                         f"{path.suffix or 'a name without a suffix'}")
    _figure_class()


def plot_results(path: Path, results: Sequence[BenchmarkResult], model: str,
                 ratios: Mapping[str, Mapping[str, Sequence[float]]], noise: Mapping[str, Noise]) -> None:
    """Draw the results to a file; ``ratios`` and ``noise`` are by workload."""
    make_figure(results, model, ratios, noise).savefig(path, dpi=120)


def make_figure(results: Sequence[BenchmarkResult], model: str, ratios: Mapping[str, Mapping[str, Sequence[float]]],
                noise: Mapping[str, Noise]) -> Figure:
    """Draw output tokens per second, first tokens and times between tokens: a panel each, with a group of bars for
    each workload."""
    workloads = list(dict.fromkeys(result.workload for result in results))
    arms = [arm for arm in LOOKS if any(result.arm == arm for result in results)]
    figure = _figure_class()(figsize=(max(6.5, 2 + 1.6 * len(workloads)), 9.5), layout="constrained")
    figure.suptitle(f"Serving with {model}", x=0.02, ha="left", fontweight="bold")
    speeds, *waits = figure.subplots(3, 1)
    for axes, title in zip((speeds, *waits), ("output tokens per second, and the speed-up of mini_vllm",
                                              "seconds to the first token: median (bar) to worst (line)",
                                              "seconds between tokens: median (bar) to worst (line)")):
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xticks(range(len(workloads)), workloads)
        axes.spines[["top", "right"]].set_visible(False)
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        of_arm, (paint, hatch) = [result for result in results if result.arm == arm], LOOKS[arm]
        left = [workloads.index(result.workload) + (number - (len(arms) - 1) / 2) * width for result in of_arm]
        medians_s = ([result.first_token_s for result in of_arm], [result.between_tokens_s for result in of_arm])
        look = {"color": PAINTS[paint].light, "hatch": hatch, "edgecolor": INK, "linewidth": 0.7}
        bars = speeds.bar(left, [result.output_tokens_per_s for result in of_arm], width * 0.92, label=arm, **look)
        speeds.bar_label(bars, fmt="%.0f", fontsize=8)
        for axes, times_s in zip(waits, medians_s):
            axes.bar(left, [each[50] for each in times_s], width * 0.92, **look)
            axes.vlines(left, [each[50] for each in times_s], [each[100] for each in times_s], color=INK, linewidth=1)
            axes.set_yscale("log")
    for place, workload in enumerate(workloads):
        lines = [f"{statistics.median(each):.2f}× {arm}{noise[workload].mark}"
                 for arm, each in ratios.get(workload, {}).items()]
        highest = max(result.output_tokens_per_s for result in results if result.workload == workload)
        speeds.annotate("\n".join(lines), (place, highest), (0, 13), textcoords="offset points", ha="center",
                        fontsize=8, fontweight="bold")
    speeds.margins(y=0.3)
    figure.legend(*speeds.get_legend_handles_labels(), loc="outside upper right", frameon=False, fontsize=9, ncols=3)
    rounds = " or ".join(str(count) for count in sorted({result.num_rounds for result in results}))
    footer = [*describe_machine(), f"rounds: {rounds}, with the arms in turns; medians",
              *(f"{MARK} {workload}: {each.cause}. Do not trust these numbers." for workload, each in noise.items()
                if each.cause)]
    figure.supxlabel("\n".join(footer), x=0.02, ha="left", fontsize=8, color=PAINTS["faint"].light)
    return figure


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(f"--plot needs matplotlib: {install_line('bench')}") from None
    return Figure
