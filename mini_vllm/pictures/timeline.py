"""A step trace as a picture: requests over steps, and under them the blocks of the pool on the same axis.

    svg = draw_trace(StepTrace.load("run.trace"))
    Path("run.svg").write_text(svg, encoding="utf-8")

    tokens     ▃ ▇ ▇ ▂ ▂ ▂          bars against the budget of a step
    step       0 1 2 3 4 5
    r0  12     █ █ ● ● ● ●▌         a row for each request
    r1  40     – █ █ ✕ – –
    block 1    ▒ ▒ ▒ ▒ ▒ ▒          a row for each block

The trace is replayed first (``History``), because it tells only what changes. Then it is drawn, panel by panel, on a
``Sheet``. Equal neighbours in a row become one shape, so that a long run stays a small file. Colours stand in
attributes, not in a style sheet: a picture inside a notebook must not restyle the page around it.
"""

from __future__ import annotations

from mini_vllm.pictures.block_panel import draw_blocks
from mini_vllm.pictures.legend import draw_legend, draw_title
from mini_vllm.pictures.request_panel import draw_requests
from mini_vllm.pictures.sheet import Sheet
from mini_vllm.pictures.token_panel import draw_axis, draw_tokens
from mini_vllm.trace.history import History
from mini_vllm.trace.recorder import StepTrace


def draw_trace(trace: StepTrace, *, first_step: int = 0, num_steps: int | None = None) -> str:
    """The picture of ``num_steps`` steps from ``first_step`` on, as the text of an SVG file. None: to the last step.

    The numbers in its title are those of the steps shown. Raises ValueError for a trace without steps, and for steps
    that it does not have.
    """
    if not trace.steps:
        raise ValueError("the trace has no steps")
    last = len(trace.steps) - 1
    if not 0 <= first_step <= last:
        raise ValueError(f"first_step is {first_step}, must be from 0 to {last}")
    if num_steps is None:
        num_steps = len(trace.steps) - first_step
    if not 1 <= num_steps <= len(trace.steps) - first_step:
        raise ValueError(f"num_steps is {num_steps}, must be from 1 to {len(trace.steps) - first_step}: the trace has "
                         f"{len(trace.steps)} steps, and the first one shown is {first_step}")
    sheet = Sheet(History(trace, range(first_step, first_step + num_steps)))
    draw_title(sheet)
    draw_legend(sheet)
    draw_tokens(sheet)
    draw_axis(sheet)
    draw_requests(sheet)
    draw_blocks(sheet)
    return sheet.to_svg()
