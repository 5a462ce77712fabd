"""The picture of a throughput benchmark: the speed of each arm, the machine, and the speed-up of our engine.

The arms differ in hatching and in marks as well as in colour, so that a grey print can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mini_vllm.benchmark.machine import describe_machine
from mini_vllm.benchmark.machine_noise import MARK, Noise
from mini_vllm.benchmark.results import ARMS, DRAFTED, LLAMA, VLLM_TYPES, BenchmarkResult
from mini_vllm.benchmark.tables import SpeedUps
from mini_vllm.checks import writable_file
from mini_vllm.extras import install_line
from mini_vllm.pictures.palette import PAINTS, request_paint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The metadata by which each file format records its date, and how to leave it out.
UNDATED: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}


class Look(NamedTuple):
    colour: str
    hatch: str
    mark: str


INK = PAINTS["ink"].light
LOOKS = dict(zip(ARMS, (Look(PAINTS["null"].light, "", "o"), Look(PAINTS[request_paint(0)].light, "", "s"),
                        Look(PAINTS[request_paint(1)].light, "////", "^"))))
LOOKS[DRAFTED] = Look(PAINTS[request_paint(2)].light, "....", "D")
LOOKS |= {arm: Look(PAINTS[request_paint(number)].light, hatch, mark) for number, (arm, hatch, mark) in enumerate(
    zip((*VLLM_TYPES, LLAMA), ("\\\\\\\\", "xxxx", "oo"), "vP*"), 3)}


class Panel(NamedTuple):
    title: str
    height: Callable[[BenchmarkResult], float]
    #: None: bars of ``height``. Else marks at ``height``, and a line up to this value.
    worst: Callable[[BenchmarkResult], float] | None


PANELS = (
    Panel("output tokens per second, and the speed-up of mini_vllm", lambda result: result.output_tokens_per_s,
          None),
    Panel("seconds to the first token: median (mark) to worst (bar)", lambda result: result.first_token_s[50],
          lambda result: result.first_token_s[100]),
    Panel("milliseconds between tokens: median (mark) to worst (bar)",
          lambda result: 1000 * result.between_tokens_s[50], lambda result: 1000 * result.between_tokens_s[100]),
)


def check_plot(path: Path) -> None:
    """Raise ValueError if no picture can be drawn there. Call this before anything is measured."""
    writable_file(path)
    if path.suffix.lower() not in UNDATED:
        raise ValueError(f"{path}: a plot is written as {', '.join(UNDATED)}, not as "
                         f"{path.suffix or 'a name without a suffix'}")
    _figure_class()


def plot_results(results: Sequence[BenchmarkResult], model: str, path: str | Path,
                 speed_ups: SpeedUps | None = None, noise: Mapping[str, Noise] | None = None) -> None:
    """Draw the results to a file. Raise ValueError, which says how to install it, if matplotlib is missing."""
    _figure_class()
    import matplotlib
    with matplotlib.rc_context({"svg.hashsalt": "mini_vllm", "hatch.linewidth": 0.7}):
        make_figure(results, model, speed_ups or {}, noise or {}).savefig(path, dpi=120, metadata=UNDATED.get(
            Path(path).suffix.lower(), {}))


def make_figure(results: Sequence[BenchmarkResult], model: str, speed_ups: SpeedUps,
                noise: Mapping[str, Noise]) -> Figure:
    """Draw output tokens per second, first tokens and gaps between tokens, workload by workload."""
    num_workloads = len({result.workload for result in results})
    figure = _figure_class()(figsize=(max(6.5, 2 + 1.6 * num_workloads), 9.5), layout="constrained")
    figure.suptitle(f"Serving with {model}", x=0.02, ha="left", fontweight="bold")
    for axes, panel in zip(figure.subplots(len(PANELS), 1), PANELS):
        _draw_panel(axes, panel, results)
    _write_ratios(figure.axes[0], results, speed_ups, noise)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", frameon=False, fontsize=9,
                  ncols=len(ARMS))
    figure.supxlabel(_footer(results, noise), x=0.02, ha="left", fontsize=8, color=PAINTS["faint"].light)
    return figure


def _footer(results: Sequence[BenchmarkResult], noise: Mapping[str, Noise]) -> str:
    """Return the machine, the number of measurements, and what disturbed them."""
    counts = sorted({result.num_rounds for result in results}) or [1]
    rounds = " or ".join("one" if count == 1 else str(count) for count in counts)
    what = f"medians of {rounds} rounds, with the arms in turns" if counts != [1] else "one round"
    device, *rest = describe_machine()
    found = [f"{MARK} {workload}: {each.cause}. Do not trust these numbers."
             for workload, each in noise.items() if each.is_loud]
    return "\n".join([device, f"{', '.join(rest)}; {what}", *found])


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(f"--plot needs matplotlib: {install_line('bench')}") from None
    return Figure


def _workloads(results: Sequence[BenchmarkResult]) -> list[str]:
    return list(dict.fromkeys(result.workload for result in results))


def _draw_panel(axes: Axes, panel: Panel, results: Sequence[BenchmarkResult]) -> None:
    """Draw workloads from left to right, with the arms side by side in each."""
    workloads = _workloads(results)
    arms = [arm for arm in LOOKS if any(result.arm == arm for result in results)]
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        of_arm, look = [result for result in results if result.arm == arm], LOOKS[arm]
        left = [workloads.index(result.workload) + (number - (len(arms) - 1) / 2) * width for result in of_arm]
        heights = [panel.height(result) for result in of_arm]
        if panel.worst is None:
            bars = axes.bar(left, heights, width * 0.92, color=look.colour, hatch=look.hatch, edgecolor=INK,
                            linewidth=0.7, label=arm)
            axes.bar_label(bars, fmt="%.0f", fontsize=8)
        else:
            tops = [panel.worst(result) for result in of_arm]
            axes.vlines(left, heights, tops, color=INK, linewidth=1)
            axes.scatter(left, tops, marker="_", color=INK, s=80)
            axes.scatter(left, heights, marker=look.mark, color=look.colour, edgecolor=INK, linewidth=0.7, s=42,
                         zorder=3)
    if panel.worst is not None:
        _use_log_scale(axes)
    axes.set_xlim(-0.5, max(len(workloads), 1) - 0.5)
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.set_xticks(range(len(workloads)), workloads)
    axes.spines[["top", "right"]].set_visible(False)


def _write_ratios(axes: Axes, results: Sequence[BenchmarkResult], speed_ups: SpeedUps,
                  noise: Mapping[str, Noise]) -> None:
    """Write the speed-up of our engine against each other arm over the bars, marked if the machine was not quiet."""
    workloads = _workloads(results)
    for place, workload in enumerate(workloads):
        mark = f" {MARK}" if workload in noise and noise[workload].is_loud else ""
        ratios = [f"{ratio:.2f}× {arm}{mark}" for arm, ratio in speed_ups.get(workload, {}).items()]
        highest = max(result.output_tokens_per_s for result in results if result.workload == workload)
        axes.annotate("\n".join(ratios), (place, highest), (0, 13), textcoords="offset points", ha="center",
                      fontsize=8, fontweight="bold")
    if any(result.arm == DRAFTED for result in results):
        axes.set_title(f"{axes.get_title(loc='left')} with drafts", loc="left", fontsize=10)
    axes.margins(y=0.3 if speed_ups else 0.1)


def _use_log_scale(axes: Axes) -> None:
    """Use a log scale with plain numbers at 1, 2, 5, 10, …"""
    from matplotlib.ticker import LogLocator
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
