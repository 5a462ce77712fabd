"""A step trace as a picture: requests over steps, and below them the blocks of the pool on the same axis.

    picture = draw_trace(StepTrace.load("run.trace"))
    picture.save("run.svg")            # or run.png; in a notebook, ``picture`` shows itself

    tokens     ▃ ▇ ▇                 pieces of prompts, compared with the budget of a step
               ▔ ▔ ▀ ▀ ▀ ▔           decoded tokens
    time       █ ▇ ▇ ▂ ▂ ▂           how long each step took
    step       0 1 2 3 4 5
    A  once…   ▆ ▆ ● ● ● ●▌          a row for each request
    B  a fox   – █ █ ✕ – –
    block 1    ▒ ▒ ▒ ▒ ▒ ▒           a row for each block that was used

A step with drafts shows each token: ▪▪●▫▫ are two accepted ones, the token that the model added, and two rejected ones.
The trace is replayed first (``History``), because it records only changes. Then it is drawn, panel by panel, on a
``Sheet``. Equal neighbours in a row become one shape, so that a long run stays a small file. A trace without times is
drawn without the panel of times.
"""

from __future__ import annotations

from mini_vllm.pictures.block_panel import draw_blocks
from mini_vllm.pictures.legend import draw_legend, draw_title
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.request_panel import draw_requests
from mini_vllm.pictures.time_panel import draw_axis, draw_times
from mini_vllm.pictures.timeline_canvas import MAX_WIDTH, MIN_WIDTH, Sheet
from mini_vllm.pictures.token_panel import draw_tokens
from mini_vllm.trace.history import History
from mini_vllm.trace.recorder import StepTrace
from mini_vllm.trace.summary import headline

LOOK_AT_TIMELINE = ("Read it from left to right: a column is one step of the engine. A box is a piece of a prompt with "
                    "its number of tokens, a dot is one decoded token. Below, the same letters and colours show "
                    "which request holds which block; hatched blocks are shared.")
LOOK_AT_DRAFTS = " A square is a drafted token, hollow if it was rejected."


def draw_trace(trace: StepTrace, *, first_step: int = 0, num_steps: int | None = None, width: int | None = None,
               look: str = LOOK_AT_TIMELINE, is_brief: bool = False, has_blocks: bool = True) -> Picture:
    """Draw ``num_steps`` steps from ``first_step`` on (None: up to the last step).

    ``width`` is in pixels (None: as wide as the steps need). If ``is_brief``, draw only requests and blocks, in low
    rows and with a short legend, without the tokens and the time of each step. If ``has_blocks`` is False, leave out
    the blocks. The numbers in the title are those of the steps shown.
    Raise ValueError for a trace without steps, for steps that are not in the trace, and for a width out of bounds.
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
    check_width(width)
    if look == LOOK_AT_TIMELINE and any(step.get("drafts") for step in trace.steps[first_step:first_step + num_steps]):
        look += LOOK_AT_DRAFTS
    sheet = Sheet(History(trace, range(first_step, first_step + num_steps)), width, is_brief, has_blocks)
    draw_title(sheet)
    draw_legend(sheet)
    if not is_brief:
        draw_tokens(sheet)
        if sheet.has_times:
            draw_times(sheet)
        draw_axis(sheet)
    draw_requests(sheet)
    if has_blocks:
        draw_blocks(sheet)
    else:
        sheet.draw_step_numbers(sheet.y)
    return sheet.to_picture(headline(sheet.history), look)


def check_width(width: int | None) -> None:
    if width is not None and not MIN_WIDTH <= width <= MAX_WIDTH:
        raise ValueError(f"width is {width}, must be from {MIN_WIDTH} to {MAX_WIDTH} pixels")
