"""Which replica has which block of some prompts: what the router believes, compared with what the caches contain.

The blocks of the prompts are drawn as one tree, as in the router. A node is a block after the blocks to its left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.elements import sans_width
from mini_vllm.pictures.palette import ON_COLOUR, request_paint
from mini_vllm.pictures.picture import Picture

LOOK_AT_REPLICAS = ("Read from the left: each box is a block of a prompt, and its letters are replicas. Filled: the "
                    "replica has the block, and the router knows it. An outline: the replica has it, and the router "
                    "does not know it. Dashed, with a question mark: the router believes so, but the replica does not "
                    "have it.")
KNOWN, UNKNOWN, WRONG = "known", "unknown", "wrong"
#: The legend.
MEANS = {KNOWN: "cached, and the router knows it", UNKNOWN: "cached, unknown to the router",
         WRONG: "not cached, but the router believes so"}
MARGIN, GAP, HEIGHT, ROW, TEXT = 12.0, 20.0, 44.0, 54.0, 12.0


class _Node:
    """A block after the blocks before it, and the prompts that contain it."""

    def __init__(self, text: str, depth: int) -> None:
        self.text, self.depth = text, depth
        self.prompts: list[int] = []
        self.children: dict[str, _Node] = {}
        self.row = 0.0

    def state_of(self, replica: str, believed: Sequence[Mapping[str, int]], held: Sequence[Mapping[str, int]]
                 ) -> str | None:
        """Return whether a replica has this block as the router believes. None if both say no."""
        is_believed, is_held = (any(counts[prompt].get(replica, 0) >= self.depth for prompt in self.prompts)
                                for counts in (believed, held))
        return (KNOWN if is_believed else UNKNOWN) if is_held else WRONG if is_believed else None


def draw_replicas(prompts: Sequence[Sequence[str]], believed: Sequence[Mapping[str, int]],
                  held: Sequence[Mapping[str, int]], *, look: str = LOOK_AT_REPLICAS) -> Picture:
    """Draw the tree of all prompts, given as texts of blocks, and in each node the replicas that have it.

    For each prompt, ``believed`` and ``held`` map a replica to the number of its first blocks: as the router believes
    (the answer of ``num_cached``), and as they are in the replica's cache. A missing replica has none. The tree is the
    same whatever is cached, so that frames can be compared. Raise ValueError unless all three are equally long.
    """
    if not len(prompts) == len(believed) == len(held):
        raise ValueError(f"{len(prompts)} prompts, {len(believed)} beliefs and {len(held)} caches: give one of each "
                         "for every prompt")
    replicas = sorted({replica for counts in (*believed, *held) for replica in counts})
    root, nodes = _grow(prompts)
    num_rows = _lay_out(root, 0.0)
    lefts, widths = _columns(nodes)
    canvas, counted = Canvas(), Counter[str]()
    for node in nodes:
        x, y, width = lefts[node.depth], MARGIN + node.row * ROW, widths[node.depth]
        for child in node.children.values():
            _draw_link(canvas, x + width, y + HEIGHT / 2, MARGIN + child.row * ROW + HEIGHT / 2)
        states = {replica: state for replica in replicas if (state := node.state_of(replica, believed, held))}
        counted.update(states.values())
        _draw_box(canvas, node, states, replicas, (x, y, width))
    bottom = MARGIN + max(num_rows, 1) * ROW + 6
    _draw_legend(canvas, bottom)
    label = ", ".join(f"{counted[state]} {means}" for state, means in MEANS.items())
    width, height = math.ceil(canvas.right + MARGIN), bottom + 30
    return Picture(canvas.to_svg(width, height, label), width, height, label, look)


def _grow(prompts: Sequence[Sequence[str]]) -> tuple[_Node, list[_Node]]:
    """Return the root, and all nodes below it in the order in which they appear."""
    root, nodes = _Node("", 0), []
    for number, blocks in enumerate(prompts):
        node = root
        for depth, text in enumerate(blocks, start=1):
            if text not in node.children:
                node.children[text] = _Node(text, depth)
                nodes.append(node.children[text])
            node = node.children[text]
            node.prompts.append(number)
    return root, nodes


def _lay_out(node: _Node, row: float) -> float:
    """Put each node into the row of its first child, and return the first free row."""
    node.row = row
    for child in node.children.values():
        row = _lay_out(child, row)
    return row if node.children else row + 1


def _columns(nodes: Sequence[_Node]) -> tuple[dict[int, float], dict[int, float]]:
    """Return the left end and the width of each column. A column is as wide as its longest text."""
    widths: dict[int, float] = {}
    for node in nodes:
        widths[node.depth] = max(widths.get(node.depth, 64.0), sans_width(node.text, TEXT) + 14)
    lefts, x = {}, MARGIN
    for depth in sorted(widths):
        lefts[depth], x = x, x + widths[depth] + GAP
    return lefts, widths


def _draw_link(canvas: Canvas, x: float, y: float, below: float) -> None:
    canvas.add("path", d=f"M{x:g} {y:g}h8V{below:g}H{x + GAP:g}", stroke="line", fill="none")


def _draw_box(canvas: Canvas, node: _Node, states: Mapping[str, str], replicas: Sequence[str],
              place: tuple[float, float, float]) -> None:
    x, y, width = place
    canvas.add("rect", x=x + 0.5, y=y + 0.5, width=width - 1, height=HEIGHT - 1, rx=4, fill="paper", stroke="line",
               stroke_dasharray=None if states else "3 3", data_block=node.text)
    canvas.text(x + 7, y + 16, node.text, TEXT, "ink" if states else "faint")
    left = x + 7
    for number, replica in enumerate(replicas):
        wide = _badge_width(replica)
        if replica in states:
            _draw_badge(canvas, replica, states[replica], request_paint(number), (left, y + 23, wide))
        left += wide + 4


def _badge_width(replica: str) -> float:
    return sans_width(f"{replica}?", 11) + 10


def _draw_badge(canvas: Canvas, replica: str, state: str, paint: str, place: tuple[float, float, float], *,
                is_sample: bool = False) -> None:
    x, y, width = place
    fill, stroke, ink = {KNOWN: (paint, "line", ON_COLOUR), UNKNOWN: ("paper", paint, "ink"),
                         WRONG: ("paper", "alarm", "alarm")}[state]
    canvas.add("rect", x=x + 1, y=y + 1, width=width - 2, height=15, rx=3, fill=fill, stroke=stroke,
               stroke_width=1 if state == KNOWN else 2, stroke_dasharray="3 2" if state == WRONG else None,
               data_state=None if is_sample else state, data_replica=None if is_sample else replica,
               title="" if is_sample else f"{replica}: {MEANS[state]}")
    canvas.text(x + width / 2, y + 12.5, f"{replica}?" if state == WRONG else replica, 11, ink, text_anchor="middle",
                font_weight="bold", pointer_events="none")


def _draw_legend(canvas: Canvas, y: float) -> None:
    x = MARGIN
    for state, means in MEANS.items():
        width = _badge_width("A")
        _draw_badge(canvas, "A", state, request_paint(0), (x, y, width), is_sample=True)
        canvas.text(x + width + 5, y + 12.5, means, 11)
        canvas.right = max(canvas.right, x + width + 5 + sans_width(means, 11))
        x += width + 5 + sans_width(means, 11) + 18
