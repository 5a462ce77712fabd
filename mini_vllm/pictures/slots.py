"""The slot of each token: the positions of one or two requests, and the slots of the pool that they are mapped to.

    ada     0 1 2 3 │ 4 5 6 7 │ 8 9           positions, in the order of the text
             ╲           │         ╲
    pool   0 ┆····┆0123┆4567┆····┆89··┆       blocks of 4 slots, in the order of memory; a dot is in neither
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.elements import text_width
from mini_vllm.pictures.palette import ON_COLOUR
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.pool_state import BlockState
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.strip import MARGIN, WIDTH, fill_block
from mini_vllm.trace.history import count

LOOK_AT_SLOTS = ("Follow the bands: a text is divided into pieces of one block, and each piece is somewhere in the "
                 "pool. Each slot shows the position of its token; the small number below a block is its first slot.")
ROW, BAND, CELL, LEFT, GAP, BLOCK_GAP = 36.0, 46.0, 26.0, 74.0, 8.0, 5.0
MAX_POSITIONS, MAX_SLOTS, MAX_REQUESTS = 24, 48, 2


class _Pool(NamedTuple):
    """The strip of slots: its position, and the requests in each slot."""

    y: float
    num_blocks: int
    block_size: int
    #: Slot → the requests that have a token there, each with its position.
    owners: dict[int, list[tuple[str, int]]]

    @property
    def cell(self) -> float:
        return (WIDTH - 2 * MARGIN - (self.num_blocks - 1) * BLOCK_GAP) / (self.num_blocks * self.block_size)

    def left_of(self, slot: int) -> float:
        return MARGIN + slot * self.cell + slot // self.block_size * BLOCK_GAP


def draw_slots(slots: Mapping[str, Sequence[int]], num_blocks: int, block_size: int, *,
               texts: Mapping[str, Sequence[str]] | None = None, cast: Cast | None = None,
               look: str = LOOK_AT_SLOTS) -> Picture:
    """Draw the pool, with the first request above it and a second one below it.

    ``slots`` maps each request id to the slots of its positions, as a slot mapping returns them; ``texts`` maps it to
    the words of its tokens. Raise ValueError for more requests, positions or slots than fit into a picture, and for a
    slot that is not in the pool.
    """
    _check(slots, num_blocks, block_size)
    cast = cast if cast is not None else Cast(slots)
    owners: dict[int, list[tuple[str, int]]] = {}
    for request_id, own in slots.items():
        for position, slot in enumerate(own):
            owners.setdefault(int(slot), []).append((request_id, position))
    pool = _Pool(MARGIN + 22 + ROW + BAND, num_blocks, block_size, owners)
    canvas = Canvas()
    label = "; ".join(_tell(request_id, own, block_size) for request_id, own in slots.items())
    canvas.text(MARGIN, MARGIN + 10, label, 12, "ink", font_weight="bold", data_part="title")
    bottom = pool.y + CELL + 14
    rows = (MARGIN + 22, bottom + BAND)
    box = min(64.0, *((WIDTH - MARGIN - LEFT - (len(_pieces(own, block_size)) - 1) * GAP) / len(own)
                      for own in slots.values()))
    places = {request_id: _places(own, block_size, box) for request_id, own in slots.items()}
    for (request_id, own), y in zip(slots.items(), rows):
        _draw_bands(canvas, pool, own, places[request_id], cast.paint(request_id), y)
    _draw_pool(canvas, pool, cast)
    for request_id, y in zip(slots, rows):
        _draw_row(canvas, request_id, places[request_id], (texts or {}).get(request_id), cast, y)
    height = (rows[1] + ROW if len(slots) == MAX_REQUESTS else bottom) + MARGIN
    width = max(WIDTH, math.ceil(canvas.right) + MARGIN)
    return Picture(canvas.to_svg(width, height, label), width, height, label, look)


def _check(slots: Mapping[str, Sequence[int]], num_blocks: int, block_size: int) -> None:
    if not 1 <= len(slots) <= MAX_REQUESTS:
        raise ValueError(f"slots has {len(slots)} requests, must have 1 to {MAX_REQUESTS}")
    num_slots = num_blocks * block_size
    if not 1 <= num_slots <= MAX_SLOTS:
        raise ValueError(f"{num_blocks} blocks of {block_size} are {num_slots} slots, must be 1 to {MAX_SLOTS}")
    for request_id, own in slots.items():
        if not 1 <= len(own) <= MAX_POSITIONS:
            raise ValueError(f"request {request_id!r} has {len(own)} positions, must be 1 to {MAX_POSITIONS}")
        for slot in own:
            if not 0 <= slot < num_slots:
                raise ValueError(f"request {request_id!r}: slot {slot} is not between 0 and {num_slots - 1}")


def _tell(request_id: str, own: Sequence[int], block_size: int) -> str:
    ids = [piece[0] // block_size for piece in _pieces(own, block_size)]
    return (f"{request_id}: {count(len(own), 'token')} in {'block' if len(ids) == 1 else 'blocks'} "
            f"{', '.join(map(str, ids))}")


def _pieces(own: Sequence[int], block_size: int) -> list[list[int]]:
    """Split the slots where another block begins."""
    return [[int(slot) for slot in piece] for _, piece in groupby(own, key=lambda slot: int(slot) // block_size)]


def _places(own: Sequence[int], block_size: int, box: float) -> list[tuple[float, float]]:
    """Return the left edge and width of each token's box, with a gap where another block begins."""
    places, x = [], LEFT
    for piece in _pieces(own, block_size):
        places += [(x + index * box, box) for index in range(len(piece))]
        x += len(piece) * box + GAP
    return places


def _draw_bands(canvas: Canvas, pool: _Pool, own: Sequence[int], places: list[tuple[float, float]], paint: str,
                y: float) -> None:
    """Draw a band from each piece of a text to its slots."""
    start = 0
    near, far = (y + ROW, pool.y) if y < pool.y else (y, pool.y + CELL)
    for piece in _pieces(own, pool.block_size):
        last = start + len(piece) - 1
        left, right = places[start][0], sum(places[last])
        to_left, to_right = pool.left_of(min(piece)), pool.left_of(max(piece)) + pool.cell
        middle = (near + far) / 2
        canvas.add("path", d=f"M{left:g} {near:g}C{left:g} {middle:g} {to_left:g} {middle:g} {to_left:g} {far:g}"
                   f"H{to_right:g}C{to_right:g} {middle:g} {right:g} {middle:g} {right:g} {near:g}Z",
                   fill=paint, fill_opacity=0.3, stroke=paint, data_block=piece[0] // pool.block_size)
        start = last + 1


def _draw_row(canvas: Canvas, request_id: str, places: list[tuple[float, float]], texts: Sequence[str] | None,
              cast: Cast, y: float) -> None:
    """Draw a request's tokens in the order of its text, each with its position and its word."""
    canvas.open_group(data_request=request_id)
    canvas.text(MARGIN, y + 15, request_id, 12, "ink", font_weight="bold")
    canvas.text(MARGIN, y + 29, "positions", 10)
    for position, (x, width) in enumerate(places):
        word = texts[position] if texts is not None and position < len(texts) else ""
        canvas.add("rect", x=x + 0.5, y=y + 0.5, width=width - 1, height=ROW - 1, fill=cast.paint(request_id), rx=2,
                   stroke="paper", title=f"position {position}: {word}")
        canvas.text(x + width / 2, y + 15, str(position), 12, ON_COLOUR, text_anchor="middle", font_weight="bold")
        size = min(11.0, width / max(text_width(word, 1) * 0.9, 1))
        canvas.text(x + width / 2, y + 30, word, round(size, 1), ON_COLOUR, text_anchor="middle")
    canvas.close_group()


def _draw_pool(canvas: Canvas, pool: _Pool, cast: Cast) -> None:
    """Draw all slots in the order of memory."""
    canvas.open_group(data_panel="slots")
    for slot in range(pool.num_blocks * pool.block_size):
        block_id, offset = divmod(slot, pool.block_size)
        x, owners = pool.left_of(slot), pool.owners.get(slot, [])
        names = tuple(name for name, _ in owners)
        told = ", ".join(f"position {position} of {name}" for name, position in owners) or "in none of these tables"
        state = BlockState(block_id, len(owners), is_null=block_id == 0 and not owners, owners=names)
        fill_block(canvas, state, cast, x, pool.y, pool.cell, CELL,
                   title=f"slot {slot}, block {block_id}, offset {offset}: {told}")
        positions = "/".join(dict.fromkeys(str(position) for _, position in owners))
        canvas.text(x + pool.cell / 2, pool.y + CELL / 2 + 4, positions, 11, ON_COLOUR, text_anchor="middle",
                    font_weight="bold", pointer_events="none")
        if offset == 0:
            right = pool.left_of(slot + pool.block_size - 1) + pool.cell
            canvas.add("rect", x=x - 1, y=pool.y - 1, width=right - x + 2, height=CELL + 2, rx=3, fill="none",
                       stroke="ink", stroke_width=1.5)
            canvas.text(x + 1, pool.y + CELL + 12, str(slot), 9)
            canvas.text((x + right) / 2, pool.y + CELL + 12, f"block {block_id}", 9, "ink", text_anchor="middle",
                        font_weight="bold")
    canvas.close_group()
