"""The prefix tree: a node is a cached block with its tokens; its parent is the block before it.

The tree is read from the pool: the key of a cached block is a BlockHash, which names its tokens and its parent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from mini_vllm.block_pool import BlockHash
from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.elements import shorten, text_width
from mini_vllm.pictures.palette import ON_COLOUR
from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.pool_state import AnyBlock, AnyPool, BlockState, PoolState
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.strip import MARGIN, fill_block, tell
from mini_vllm.pictures.tables import TextOf
from mini_vllm.trace.history import count

LOOK_AT_TREE = ("Read from the left: each node is one physical block. Requests that begin alike share nodes, up to the "
                "point where their texts differ. Pale nodes are in no block table; they stay cached until their block "
                "is needed.")
GAP, MAX_TEXT = 22.0, 36
#: A longer text is written in two lines, so that a tree of a few turns fits a page.
MAX_LINE, LINE = 11, 12.0


class _Node:
    def __init__(self, key: BlockHash | None, block: BlockState | None, text: str) -> None:
        self.key, self.block, self.lines = key, block, _in_lines(text)
        self.children: list[_Node] = []
        self.row = 0.0

    @property
    def width(self) -> float:
        return max(52.0, max(text_width(line, 10) for line in self.lines) * 0.87 + 10)


def draw_tree(pool: AnyPool, tables: Mapping[str, Sequence[int | AnyBlock]] | None = None, *, cast: Cast | None = None,
              text_of: TextOf | None = None, matched: Iterable[AnyBlock] = (), num_matched_tokens: int | None = None,
              look: str = LOOK_AT_TREE) -> Picture:
    """Draw every cached block to the right of the block before it. Blocks with a bare number as key follow the root.

    ``tables`` gives the blocks in use the colours of their owners. ``matched`` marks the blocks that a lookup returned,
    and ``num_matched_tokens`` is the number of tokens that it matched; the last block may be matched only in part.
    """
    state = PoolState.of_pool(pool, tables)
    cast = cast if cast is not None else Cast(state.tables)
    root, num_nodes = _grow(pool, state, text_of)
    num_rows = _lay_out(root, 0.0)
    num_lines = _most_lines(root)
    canvas, label = Canvas(), f"{count(num_nodes, 'block')} can be found"
    canvas.text(MARGIN, MARGIN + 10, label, 12, "ink", font_weight="bold", data_part="title")
    marked = _marks(list(matched), num_matched_tokens)
    row = 32 + num_lines * LINE
    _draw_node(canvas, root, cast, MARGIN, (MARGIN + 22, row), marked)
    width, height = math.ceil(canvas.right) + MARGIN, MARGIN * 2 + 14 + max(num_rows, 1) * row
    return Picture(canvas.to_svg(width, height, label), width, height, label, look)


def _grow(pool: AnyPool, state: PoolState, text_of: TextOf | None) -> tuple[_Node, int]:
    states = {block.block_id: block for block in state.blocks}
    root, nodes = _Node(None, None, "root"), {}
    for block in pool.blocks:
        if block.block_hash is not None:
            key = block.block_hash if isinstance(block.block_hash, BlockHash) else None
            tokens = key.token_ids if key is not None else ()
            text = " ".join(text_of(token).strip() or "␣" for token in tokens) if text_of else \
                " ".join(map(str, tokens)) or str(block.block_hash)
            nodes[block.block_id] = _Node(key, states[block.block_id], shorten(text, MAX_TEXT))
    for node in nodes.values():
        parent = next((other for other in nodes.values() if node.key is not None and node.key.parent is not None
                       and other.key == node.key.parent), root)
        parent.children.append(node)
    return root, len(nodes)


def _marks(matched: list[AnyBlock], num_tokens: int | None) -> dict[int, str]:
    """Map each matched block to its mark: the number of tokens that a lookup matched, if not all."""
    marks: dict[int, str] = {}
    left = num_tokens
    for block in matched:
        num_named = len(block.block_hash.token_ids) if isinstance(block.block_hash, BlockHash) else 0
        marks[block.block_id] = f"{left} of {num_named}" if left is not None and left < num_named else ""
        left = None if left is None else left - num_named
    return marks


def _in_lines(text: str) -> list[str]:
    """Split a long text into two lines of similar length."""
    places = [place for place in range(1, len(text) - 1) if text[place] == " " and text[place + 1] not in ".,;:!?·"]
    if len(text) <= MAX_LINE or not places:
        return [text]
    middle = min(places, key=lambda place: abs(place - len(text) / 2))
    return [text[:middle], text[middle + 1:]]


def _most_lines(node: _Node) -> int:
    return max([len(node.lines), *map(_most_lines, node.children)])


def _lay_out(node: _Node, row: float) -> float:
    """Give each leaf a row, and put each node in the middle of its children. Return the first free row."""
    if not node.children:
        node.row = row
        return row + 1
    for child in node.children:
        row = _lay_out(child, row)
    node.row = (node.children[0].row + node.children[-1].row) / 2
    return row


def _draw_node(canvas: Canvas, node: _Node, cast: Cast, x: float, rows: tuple[float, float],
               marked: dict[int, str]) -> None:
    """Draw the node, and its children to its right. ``rows``: where the first row begins, and the height of each."""
    top, high = rows
    y = top + node.row * high
    to_middle, right = (high - 11) / 2, x + node.width
    middle = y + to_middle
    for child in node.children:
        below = top + child.row * high + to_middle
        canvas.add("path", d=f"M{right:g} {middle:g}C{right + 14:g} {middle:g} {right + 8:g} {below:g} "
                   f"{right + GAP:g} {below:g}", stroke="line", fill="none")
    if node.block is None:
        canvas.add("rect", x=x + 0.5, y=middle - 11.5, width=node.width - 1, height=23, rx=11, fill="null",
                   stroke="line")
        canvas.text(x + node.width / 2, middle + 4, "root", 11, "ink", text_anchor="middle")
    else:
        _draw_box(canvas, node, node.block, cast, (x, y, high - 11), marked.get(node.block.block_id))
    for child in node.children:
        _draw_node(canvas, child, cast, right + GAP, rows, marked)


def _draw_box(canvas: Canvas, node: _Node, block: BlockState, cast: Cast, place: tuple[float, float, float],
              mark: str | None) -> None:
    x, y, height = place
    fill_block(canvas, block, cast, x, y, node.width, height, title=tell(block))
    on_colour = ON_COLOUR if block.ref_cnt else "faint"
    owners = "".join(cast.letter(owner) for owner in block.owners[:4])
    canvas.text(x + 5, y + 11, "  ".join(part for part in (
        str(block.block_id), owners, f"×{block.ref_cnt}" if block.ref_cnt > 1 else "") if part), 9, on_colour,
        font_weight="bold", pointer_events="none")
    canvas.add("rect", x=x + 3, y=y + 15, width=node.width - 6, height=height - 18, fill="paper", rx=2)
    for number, line in enumerate(node.lines):
        canvas.text(x + 5, y + 26 + number * LINE, line, 10, "ink", pointer_events="none")
    if mark:
        canvas.text(x + node.width - 5, y + 11, mark, 9, on_colour, text_anchor="end", pointer_events="none")
    if mark is not None:
        canvas.add("rect", x=x - 1.5, y=y - 1.5, width=node.width + 3, height=height + 3, rx=4, fill="none",
                   stroke="alarm", stroke_width=2.5, stroke_dasharray="4 3" if mark else None, data_part="matched")
