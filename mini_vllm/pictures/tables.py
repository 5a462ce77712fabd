"""Block tables: a row for each request, with its blocks in the order of its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.elements import shorten, text_width
from mini_vllm.pictures.palette import ON_COLOUR
from mini_vllm.pictures.pool_state import BlockState, PoolState
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.strip import MARGIN, WIDTH, fill_block, tell
from mini_vllm.trace.history import count

#: Returns the text of a token.
TextOf = Callable[[int], str]


def draw_tables(canvas: Canvas, state: PoolState, cast: Cast, y: float, text_of: TextOf | None = None) -> float:
    """Draw a row for each request, with its blocks in the order of its text. Return the y coordinate of the end."""
    blocks = {block.block_id: block for block in state.blocks}
    sources = {copy: source for source, copy in state.copies}
    for request_id, table in state.tables.items():
        tokens = state.token_ids.get(request_id)
        canvas.open_group(data_table=request_id)
        fill_block(canvas, BlockState(0, 1, owners=(request_id,)), cast, MARGIN, y + 6, 18, 18)
        canvas.text(MARGIN + 9, y + 19, cast.letter(request_id), 11, ON_COLOUR, text_anchor="middle",
                    font_weight="bold")
        canvas.text(MARGIN + 24, y + 13, shorten(request_id, 14), 11, "ink", font_weight="bold")
        if tokens is not None:
            canvas.text(MARGIN + 24, y + 25, count(len(tokens), "token"), 9)
        x = left = MARGIN + 122.0
        for index, block_id in enumerate(table):
            words = _words(tokens, index, state.block_size, text_of)
            words = f"will be copied from {sources[block_id]}" if words and block_id in sources else words
            width = max(44.0, text_width(words, 10) * 0.9 + 12) if words else 44.0
            if x + width > WIDTH - MARGIN and x > left:
                x, y = left, y + 34
            _draw_entry(canvas, blocks[block_id], cast, (x, y, width), words, _part(tokens, index, state.block_size))
            x += width + 5
        canvas.close_group()
        y += 38
    return y


def _draw_entry(canvas: Canvas, block: BlockState, cast: Cast, place: tuple[float, float, float], words: str,
                part: float | None) -> None:
    """Draw one block of a table: its number, and its words or how full it is."""
    x, y, width = place
    fill_block(canvas, block, cast, x, y, width, 31, title=tell(block))
    canvas.text(x + 5, y + 11, str(block.block_id) + (f"  ×{block.ref_cnt}" if block.ref_cnt > 1 else ""), 9, ON_COLOUR,
                font_weight="bold", pointer_events="none")
    if words:
        canvas.add("rect", x=x + 3, y=y + 14, width=width - 6, height=14, fill="paper", rx=2)
        canvas.text(x + 5, y + 24.5, words, 10, "ink", pointer_events="none")
    elif part is not None:
        canvas.add("rect", x=x + 4, y=y + 18, width=width - 8, height=8, fill="paper", rx=1)
        canvas.add("rect", x=x + 4, y=y + 18, width=round((width - 8) * part, 2), height=8, fill="ink", rx=1)


def _words(tokens: Sequence[int] | None, index: int, block_size: int | None, text_of: TextOf | None) -> str:
    if tokens is None or block_size is None or text_of is None:
        return ""
    inside = tokens[index * block_size:(index + 1) * block_size]
    words = [text_of(token).strip() or "␣" for token in inside] + ["·"] * (block_size - len(inside))
    return shorten(" ".join(words), 44)


def _part(tokens: Sequence[int] | None, index: int, block_size: int | None) -> float | None:
    """Return the filled fraction of the ``index``-th block of a table."""
    if tokens is None or block_size is None:
        return None
    return min(max(len(tokens) - index * block_size, 0), block_size) / block_size
