"""The block pool as a strip, and the block tables of the requests that hold its blocks.

    ┌0───┬1───┬2───┬3───┬4───┐       a block: its number, the letters of its owners, its reference count
    │ ∅  │ A  │▨AB▨│ #  │    │       hatched: shared     #: free, still cached     blank: free
    └────┴────┴───2┴────┴────┘
    A ada   [1 once upon a time] [2 there lived a king]
    B ben   [5 the fox saw] [2 …]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.pool_state import AnyBlock, AnyManager, AnyPool, PoolState
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.strip import MARGIN, draw_legend, draw_strip
from mini_vllm.pictures.tables import TextOf, draw_tables
from mini_vllm.request import Request
from mini_vllm.trace.history import count

LOOK_AT_POOL = ("Each cell is a block, with its number. The letter names its owner; a hatched block has several owners "
                "(×2 means two). # marks a free block that is still cached; a blank block is free.")
LOOK_AT_TABLES = (LOOK_AT_POOL + " Below is each request's block table: its blocks in the order of its text, which may "
                  "be anywhere in the pool.")


def draw_pool(pool: AnyPool, tables: Mapping[str, Sequence[int | AnyBlock]] | None = None, *, cast: Cast | None = None,
              look: str = LOOK_AT_POOL) -> Picture:
    """Draw the pool as a strip. ``tables``, if given, maps each request to its blocks or block ids."""
    return draw_state(PoolState.of_pool(pool, tables), cast=cast, has_tables=False, look=look)


def draw_cache(manager: AnyManager, requests: Iterable[Request], *, cast: Cast | None = None,
               text_of: TextOf | None = None, look: str = LOOK_AT_TABLES) -> Picture:
    """Draw the manager's pool, and the tables of the ``requests`` that hold blocks.

    ``text_of`` returns the text of a token.
    """
    return draw_state(PoolState.of_manager(manager, requests), cast=cast, text_of=text_of, look=look)


def draw_state(state: PoolState, *, cast: Cast | None = None, text_of: TextOf | None = None, has_tables: bool = True,
               look: str = LOOK_AT_TABLES) -> Picture:
    cast = cast if cast is not None else Cast(state.tables)
    canvas, label = Canvas(), describe(state)
    canvas.text(MARGIN, MARGIN + 10, label, 12, "ink", font_weight="bold", data_part="title")
    y = draw_strip(canvas, state, cast, MARGIN + 20)
    y = draw_legend(canvas, state, cast, y + 8)
    if has_tables:
        y = draw_tables(canvas, state, cast, y + 6, text_of)
    height = y + MARGIN
    width = math.ceil(canvas.right) + MARGIN
    return Picture(canvas.to_svg(width, height, label), width, height, label, look)


def describe(state: PoolState) -> str:
    kinds = [block.kind for block in state.blocks]
    sizes = f" of {state.block_size} tokens" if state.block_size else ""
    parts = [f"{kinds.count('used') + kinds.count('shared')} in use"]
    parts += [f"{kinds.count('shared')} of them shared"] * ("shared" in kinds)
    parts += [f"{kinds.count('kept')} held for a copy"] * ("kept" in kinds)
    parts += [f"{kinds.count('cached')} free and still cached"] * ("cached" in kinds)
    parts += [f"{kinds.count('empty')} free"]
    copies = ", ".join(f"{source} → {copy}" for source, copy in state.copies)
    return (f"{count(len(kinds) - kinds.count('null'), 'block')}{sizes}: {', '.join(parts)}"
            f"{'; to be copied: ' + copies if copies else ''}")
