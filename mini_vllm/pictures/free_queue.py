"""The free queue as a chain: the next block to be allocated is first; removed blocks are drawn above their gap."""

from __future__ import annotations

import math

from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.pool_state import AnyBlock, AnyPool, BlockState
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.strip import MARGIN, fill_block, tell
from mini_vllm.trace.history import count

LOOK_AT_QUEUE = ("The next block to be allocated is first, the block that was freed last is last. # marks a block "
                 "whose contents are still cached: they are evicted when the block is allocated.")
LINK, BOX, HEIGHT = 16.0, 36.0, 36.0
PER_ROW = 12  # boxes


def draw_queue(pool: AnyPool, *, before: list[int] | None = None, look: str = LOOK_AT_QUEUE) -> Picture:
    """Draw the free queue of ``pool``.

    ``before``: the ids in the queue some calls ago. Blocks that have left since are drawn above their former place.
    """
    chain: list[AnyBlock] = list(pool.free_block_queue.get_all_free_blocks())
    ids = [block.block_id for block in chain]
    gone = [block_id for block_id in before or [] if block_id not in ids]
    places = _places(ids, before or ids, gone)
    canvas = Canvas()
    label = f"The free queue holds {count(len(ids), 'block')}" + (f"; {_named(gone)} left it" if gone else "")
    canvas.text(MARGIN, MARGIN + 10, label, 12, "ink", font_weight="bold", data_part="title")
    top = MARGIN + 26 + (HEIGHT + 8 if gone else 0)
    by_id = {block.block_id: block for block in pool.blocks}
    stops: list[str | int] = ["head", *places, "tail"]
    rows = [stops[start:start + PER_ROW] for start in range(0, len(stops), PER_ROW)]
    drop = HEIGHT + (HEIGHT + 22 if gone else 18)
    for row, stop in enumerate(rows):
        left, y = MARGIN - 3.0, top + row * drop
        for column, each in enumerate(stop):
            x = MARGIN + column * (BOX + LINK + 6)
            _draw_stop(canvas, each, by_id, gone, x, y)
            if each not in gone:
                if column:
                    _draw_link(canvas, left, x - 3, y)
                left = x + BOX + 3
        if row < len(rows) - 1:
            _draw_link(canvas, left, MARGIN + len(stop) * (BOX + LINK + 6) - 3, y)
    height = top + (len(rows) - 1) * drop + HEIGHT + MARGIN
    width = math.ceil(canvas.right) + MARGIN + (LINK if len(rows) > 1 else 0)
    return Picture(canvas.to_svg(width, height, label), width, height, label, look)


def _places(ids: list[int], before: list[int], gone: list[int]) -> list[int]:
    """Return the ids in the queue, with removed blocks at their former places.

    A removed block follows the last earlier block of ``before`` that is still in the list.
    """
    places = list(ids)
    for block_id in reversed(gone):
        earlier = [other for other in before[:before.index(block_id)] if other in places]
        places.insert(places.index(earlier[-1]) + 1 if earlier else 0, block_id)
    return places


def _draw_stop(canvas: Canvas, stop: str | int, by_id: dict[int, AnyBlock], gone: list[int], x: float,
               y: float) -> None:
    if isinstance(stop, str):
        canvas.add("rect", x=x + 0.5, y=y + 8.5, width=BOX - 1, height=HEIGHT - 17, rx=9, fill="null", stroke="line")
        canvas.text(x + BOX / 2, y + HEIGHT / 2 + 4, stop, 11, "ink", text_anchor="middle")
        return
    live = by_id[stop]
    block = BlockState(live.block_id, live.ref_cnt, live.block_hash is not None, live.is_null)
    if stop in gone:
        canvas.add("path", d=f"M{x + BOX / 2:g} {y - 8:g}V{y + HEIGHT / 2:g}", stroke="line", stroke_dasharray="2 2")
        y -= HEIGHT + 8
    fill_block(canvas, block, Cast(), x, y, BOX, HEIGHT, title=tell(block))
    canvas.text(x + BOX / 2, y + HEIGHT / 2 + 5, f"{stop}{'#' if block.kind == 'cached' else ''}", 13,
                "ink" if block.ref_cnt == 0 else "on-colour", text_anchor="middle", font_weight="bold")


def _draw_link(canvas: Canvas, left: float, right: float, y: float) -> None:
    """Draw arrows in both directions, because the queue is doubly linked. They cross the gaps of removed blocks."""
    middle = y + HEIGHT / 2
    for height, start, end in ((middle - 3, left, right), (middle + 3, right, left)):
        tip = 3 if end > start else -3
        canvas.add("path", d=f"M{start:g} {height:g}H{end:g}m{-tip:g} -3l{tip:g} 3l{-tip:g} 3", stroke="line",
                   fill="none")


def _named(block_ids: list[int]) -> str:
    return f"block {block_ids[0]}" if len(block_ids) == 1 else "blocks " + ", ".join(map(str, block_ids))
