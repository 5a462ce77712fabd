"""The ragged batch of one step: the tokens of all its requests, one after the other, and the padded rectangle.

    token       ▪king  ▪and   ▪In    ▪the   ▪forest       a column is a token, in the colour of its request
    position     4      7      0      1      2            its position in its request
    block        1      2      3      3      3            the block of its request's table that contains this position
    slot         12     23     24     25     26           where its keys and values are written: block · size + offset
    logits       ▲      ▲                    ▲            the model returns logits for these tokens

    A  ▪▫▫       padded to the longest: 3 × 3
    B  ▪▫▫
    C  ▪▪▪
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mini_vllm.attention import slot_mapping, token_positions
from mini_vllm.model_runner import Batch, RequestStep
from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.elements import shorten, text_width
from mini_vllm.pictures.palette import ON_COLOUR
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.strip import MARGIN, WIDTH
from mini_vllm.pictures.tables import TextOf
from mini_vllm.trace.history import count

#: The number of tokens per row of columns.
PER_ROW = 16
LEFT = MARGIN + 56.0
COLUMN = (WIDTH - MARGIN - LEFT) / PER_ROW
#: Distances from the top of a row of columns to its lines, and to the next row of columns.
TOKEN, POSITION, BLOCK, SLOT, LOGITS, NEXT = 20, 45, 60, 75, 90, 106
#: The maximum width of a token in the rectangle.
PADDED_CELL = 15.0
LOOK_AT_BATCH = ("Each column is a token: its request, its position in that request, and the block and slot that its "
                 "keys and values are written to. ▲ marks the tokens whose logits are needed. Below is the rectangle "
                 "that a padded batch would compute: dashed cells are padding.")


def draw_batch(steps: Mapping[str, RequestStep], block_size: int, *, cast: Cast | None = None,
               text_of: TextOf | None = None, per_row: int = PER_ROW, look: str = LOOK_AT_BATCH) -> Picture:
    """Draw the tokens that one step computes for each request, in the order of the batch, ``per_row`` in a row.

    Raise ValueError if the step computes nothing.
    """
    if not steps:
        raise ValueError("there is nothing to draw: the step computes no token")
    cast = cast if cast is not None else Cast(steps)
    canvas, label = Canvas(), describe(steps)
    canvas.text(MARGIN, MARGIN + 10, label, 12, "ink", font_weight="bold", data_part="title")
    width = round(LEFT + per_row * COLUMN + MARGIN)
    y = _draw_columns(canvas, steps, block_size, cast, text_of, MARGIN + 20, per_row)
    y = _draw_rectangle(canvas, steps, cast, y + 6, width)
    height = math.ceil(y + MARGIN)
    return Picture(canvas.to_svg(width, height, label), width, height, label, look)


def describe(steps: Mapping[str, RequestStep]) -> str:
    num_tokens = sum(len(step.token_ids) for step in steps.values())
    num_rows = sum(len(step.token_ids) if step.needs_all_logits else step.needs_logits for step in steps.values())
    return (f"{count(num_tokens, 'token')} of {count(len(steps), 'request')} in one step; "
            f"{count(num_rows, 'row')} of logits")


def _draw_columns(canvas: Canvas, steps: Mapping[str, RequestStep], block_size: int, cast: Cast,
                  text_of: TextOf | None, top: float, per_row: int) -> float:
    """Draw the batch as it is computed. Return the y coordinate of its end."""
    batch = Batch.of([step.block_ids for step in steps.values()], [step.context_len for step in steps.values()],
                     [len(step.token_ids) for step in steps.values()])
    positions = token_positions(batch.context_lens, batch.query_starts)
    slots = slot_mapping(batch.block_tables, positions, batch.query_starts, block_size)
    tokens = [(name, step, index) for name, step in steps.items() for index in range(len(step.token_ids))]
    canvas.open_group(data_panel="batch")
    for number, (name, step, index) in enumerate(tokens):
        row, column = divmod(number, per_row)
        x, y = LEFT + column * COLUMN, top + row * NEXT
        if column == 0:
            for text, below in (("token", TOKEN), ("position", POSITION), ("block", BLOCK), ("slot", SLOT),
                                ("logits", LOGITS)):
                canvas.text(MARGIN, y + below, text, 10)
        token_id, position, slot = step.token_ids[index], int(positions[number]), int(slots[number])
        _draw_token(canvas, cast, name, "" if text_of is None else text_of(token_id), x, y,
                    title=f"token {token_id} of {name}: position {position}, block {slot // block_size}, slot {slot}")
        middle = x + COLUMN / 2
        canvas.text(middle, y + POSITION, str(position), 10, "ink", text_anchor="middle", data_position=position)
        canvas.text(middle, y + BLOCK, str(slot // block_size), 10, text_anchor="middle")
        canvas.text(middle, y + SLOT, str(slot), 10, "ink", text_anchor="middle", data_slot=slot)
        if step.needs_all_logits or step.needs_logits and index == len(step.token_ids) - 1:
            canvas.text(middle, y + LOGITS, "▲", 10, "ink", text_anchor="middle", data_logits=name)
    canvas.close_group()
    return top + math.ceil(len(tokens) / per_row) * NEXT


def _draw_token(canvas: Canvas, cast: Cast, name: str, text: str, x: float, y: float, title: str) -> None:
    canvas.add("rect", x=x, y=y, width=COLUMN - 1.5, height=31, rx=2, fill=cast.paint(name), stroke="line",
               data_token=name, title=title)
    middle = x + (COLUMN - 1.5) / 2
    canvas.text(middle, y + 13, cast.letter(name), 12, ON_COLOUR, text_anchor="middle", font_weight="bold",
                pointer_events="none")
    words = _fitting(text.strip() or ("" if not text else "␣"))
    canvas.text(middle, y + 26, words, 9, ON_COLOUR, text_anchor="middle", pointer_events="none")


def _fitting(text: str, size: float = 9) -> str:
    """Shorten a word to the width of a column."""
    while text_width(text, size) * 0.85 > COLUMN - 3:
        text = text.rstrip("…")[:-1] + "…"
    return text


def _draw_rectangle(canvas: Canvas, steps: Mapping[str, RequestStep], cast: Cast, y: float, width: int) -> float:
    """Draw the same tokens with one row per request, padded to the longest. Return the y coordinate of the end."""
    longest = max(len(step.token_ids) for step in steps.values())
    num_tokens, num_padded = sum(len(step.token_ids) for step in steps.values()), longest * len(steps)
    cell, left = min(PADDED_CELL, (width - MARGIN - LEFT - 90) / longest), LEFT + 90
    canvas.text(MARGIN, y + 10, f"padded to the longest: {len(steps)} × {longest} = {num_padded} tokens, "
                                f"{num_padded - num_tokens or 'none'} of them padding", 11, "ink", data_part="padded")
    y += 18
    canvas.open_group(data_panel="padded")
    for name, step in steps.items():
        canvas.text(left - 8, y + 10, _lettered(name, cast), 10, text_anchor="end")
        for index in range(longest):
            is_token = index < len(step.token_ids)
            canvas.add("rect", x=left + index * cell, y=y, width=cell - min(1.5, cell / 6), height=12,
                       fill=cast.paint(name) if is_token else "empty", stroke="line",
                       stroke_width=None if cell > 8 else 0.5, stroke_dasharray=None if is_token else "2 2",
                       data_padding=None if is_token else name)
        y += 15
    canvas.close_group()
    return y


def _lettered(name: str, cast: Cast) -> str:
    letter = cast.letter(name)
    return name if letter == name else f"{letter} {shorten(name, 16)}"
