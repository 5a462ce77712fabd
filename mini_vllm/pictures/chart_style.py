"""Charts in the colours of the pictures: one style, set in one place.

    paint = use_chart_style()
    axes.plot(xs, ys)                                      # the first colour of the requests
    axes.plot(xs, others, "--", color=paint["faint"])      # a paint by its name
"""

from __future__ import annotations

from mini_vllm.pictures.palette import NUM_REQUEST_COLOURS, PAINTS, request_paint

#: Inches; as wide as a page, so that a chart is shown at the width of the pictures.
SIZE = (9.6, 3.8)


def use_chart_style() -> dict[str, str]:
    """Set matplotlib's defaults for all charts that follow. Returns the colour of each paint, for light paper."""
    import matplotlib
    from cycler import cycler
    paints = {name: paint.light for name, paint in PAINTS.items()}
    colours = [paints[request_paint(number)] for number in range(NUM_REQUEST_COLOURS)]
    matplotlib.rcParams.update({
        "axes.prop_cycle": cycler(color=colours), "axes.edgecolor": paints["line"], "axes.labelcolor": paints["ink"],
        "axes.facecolor": paints["paper"], "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "axes.axisbelow": True, "axes.titlecolor": paints["ink"], "axes.titlesize": 12, "figure.figsize": SIZE,
        "figure.facecolor": paints["paper"], "figure.constrained_layout.use": True, "font.size": 12,
        "grid.color": paints["grid"], "hatch.color": paints["line"], "lines.linewidth": 2.2, "lines.markersize": 6,
        "savefig.facecolor": paints["paper"], "text.color": paints["ink"], "xtick.color": paints["faint"],
        "ytick.color": paints["faint"]})
    return paints
