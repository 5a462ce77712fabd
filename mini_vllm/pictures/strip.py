"""The blocks of a pool side by side: each in the colour of its owner, hatched, pale or blank, with a legend below."""

from __future__ import annotations

from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.elements import shorten, text_width
from mini_vllm.pictures.palette import ON_COLOUR
from mini_vllm.pictures.pool_state import BlockState, PoolState
from mini_vllm.pictures.request_colours import Cast

MARGIN, WIDTH = 12, 720
#: (Maximum number of blocks, width and height of a cell). Cells that are at least 30 wide contain words; cells that are
#: at least 14 wide contain a letter.
CELLS = ((48, 43.5, 40.0), (512, 21.75, 20.0), (2048, 10.875, 10.0), (1 << 30, 5.4375, 5.0))


def draw_strip(canvas: Canvas, state: PoolState, cast: Cast, y: float) -> float:
    """Draw all blocks in the order of their numbers. Return the y coordinate of the end."""
    width, height = next((width, height) for most, width, height in CELLS if len(state.blocks) <= most)
    per_row = int((WIDTH - 2 * MARGIN) / width)
    canvas.open_group(data_panel="pool")
    for number, block in enumerate(state.blocks):
        row, column = divmod(number, per_row)
        draw_block(canvas, block, cast, MARGIN + column * width, y + row * height, width, height)
    middles = {block.block_id: (MARGIN + (number % per_row + 0.5) * width, y + (number // per_row + 1) * height)
               for number, block in enumerate(state.blocks)}
    for source, copy in state.copies:
        _draw_copy(canvas, middles[source], middles[copy], height)
    canvas.close_group()
    return y + -(-len(state.blocks) // per_row) * height


def _draw_copy(canvas: Canvas, source: tuple[float, float], copy: tuple[float, float], height: float) -> None:
    """Draw a line below both blocks, and an arrow into the copy."""
    (left, top), (right, bottom), size = source, copy, min(height / 8, 5.0)
    canvas.add("path", d=f"M{left:g} {top - size:g}V{top + size - 1:g}L{right:g} {bottom + size - 1:g}"
               f"V{bottom - size - 2:g}m{-size + 1:g} {size:g}l{size - 1:g} {-size:g}l{size - 1:g} {size:g}",
               stroke="alarm", stroke_width=size * 0.4, fill="none", stroke_linejoin="round", data_part="copy",
               pointer_events="none")


def draw_block(canvas: Canvas, block: BlockState, cast: Cast, x: float, y: float, width: float, height: float) -> None:
    gap = 2.0 if width > 11 else 1.0 if width > 6 else 0.4
    width, height = width - gap, height - gap
    fill_block(canvas, block, cast, x, y, width, height, title=tell(block))
    ink = ON_COLOUR if block.kind in ("used", "shared", "kept") else "faint"
    if width >= 30:
        canvas.text(x + 4, y + 11, str(block.block_id), 9, ink, pointer_events="none")
        if block.ref_cnt > 1:
            canvas.text(x + width - 4, y + 11, f"×{block.ref_cnt}", 10, ink, text_anchor="end",
                        font_weight="bold", pointer_events="none")
    if width >= 14:
        sign = _sign(block, cast, width)
        size = 14 if width >= 30 and len(sign) <= 4 else 10  # C0…C2 must be small
        canvas.text(x + width / 2, y + height / 2 + size * 0.36 + (5 if width >= 30 else 0), sign, size, ink,
                    text_anchor="middle", font_weight="bold", pointer_events="none")


def fill_block(canvas: Canvas, block: BlockState, cast: Cast, x: float, y: float, width: float, height: float,
               title: str = "") -> None:
    """Fill a block with its owner's colour, or the paint for a block without owner. Hatch it if it has several."""
    kind = block.kind
    fill = cast.paint(block.owners[0]) if kind in ("used", "shared") and block.owners else \
        "used" if kind == "shared" else kind
    dashes = "3 2" if kind == "cached" and width > 10 else None
    canvas.add("rect", x=x + 0.5, y=y + 0.5, width=width - 1, height=height - 1, rx=2 if width > 10 else None,
               fill=fill,
               stroke="line" if width > 10 or kind == "empty" else None, stroke_width=None if width > 10 else 0.5,
               stroke_dasharray=dashes, data_block=block.block_id, data_state=kind, title=title)
    if kind == "shared":
        canvas.hatch(x + 1, y + 1, width - 2, height - 2)


def tell(block: BlockState) -> str:
    """Return the tooltip of a block."""
    state = {"null": "the null block, never allocated", "cached": "free, its contents are still cached",
             "empty": "free"}.get(block.kind)
    if block.kind == "kept":
        state = f"in no block table, held for a copy; ref_cnt {block.ref_cnt}"
    if state is None:
        owners = ", ".join(block.owners) or ("a request" if block.ref_cnt == 1 else "several requests")
        state = f"held by {owners}; ref_cnt {block.ref_cnt}"
    return f"block {block.block_id}: {state}"


def _sign(block: BlockState, cast: Cast, width: float) -> str:
    if block.kind in ("null", "cached", "empty", "kept"):
        return {"null": "∅", "cached": "#", "empty": "", "kept": "–"}[block.kind]
    letters = [cast.letter(owner) for owner in block.owners]
    if width < 30:
        return letters[0] if len(letters) == 1 else "+" if letters else ""
    return "".join(letters) if len(letters) <= 2 else f"{letters[0]}…{letters[-1]}"


def draw_legend(canvas: Canvas, state: PoolState, cast: Cast, y: float) -> float:
    """Draw a sample of each kind that occurs, and each owner's letter. Return the y coordinate of the end."""
    entries = [(BlockState(0, 1, owners=(name,)), shorten(name, 20)) for name in state.tables]
    kinds = {block.kind for block in state.blocks}
    samples = {"shared": (BlockState(0, 2, owners=tuple(state.tables)[:1]), "shared"),
               "kept": (BlockState(0, 1, is_kept=True), "held for a copy"),
               "used": (BlockState(0, 1), "in use"), "cached": (BlockState(0, 0, True), "free, still cached"),
               "empty": (BlockState(0), "free"), "null": (BlockState(0, is_null=True), "null block")}
    entries += [sample for kind, sample in samples.items() if kind in kinds and not (kind == "used" and state.tables)]
    x = float(MARGIN)
    for block, text in entries:
        wide = 24 + text_width(text, 10)
        if x + wide > WIDTH - MARGIN and x > MARGIN:
            x, y = MARGIN, y + 19
        fill_block(canvas, block, cast, x, y, 15, 15)
        has_sign = block.owners and block.ref_cnt == 1 or block.kind in ("cached", "null", "kept")
        canvas.text(x + 7.5, y + 11.5, _sign(block, cast, 30) if has_sign else "", 10,
                    ON_COLOUR if block.ref_cnt else "faint", text_anchor="middle", font_weight="bold")
        canvas.text(x + 20, y + 11.5, text, 10)
        x += wide + 10
    return y + 18
