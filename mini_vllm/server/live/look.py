"""The page's colours, letters and sizes. They are taken from the pictures, so that both always look the same."""

from __future__ import annotations

import json

from mini_vllm.pictures import canvas, marks, request_colours, strip, tree
from mini_vllm.pictures.palette import NUM_REQUEST_COLOURS, ON_COLOUR, PAINTS, PREFIX
from mini_vllm.trace.summary import GOOD_ENDS


def script() -> str:
    """Write a JavaScript module of constants."""
    constants: dict[str, object] = {
        "PAINTS": {name: paint._asdict() for name, paint in PAINTS.items()}, "PREFIX": PREFIX, "ON_COLOUR": ON_COLOUR,
        "NUM_REQUEST_COLOURS": NUM_REQUEST_COLOURS, "LETTERS": request_colours.LETTERS, "MARGIN": strip.MARGIN,
        "WIDTH": strip.WIDTH, "CELLS": strip.CELLS, "TREE_GAP": tree.GAP, "TREE_MAX_LINE": tree.MAX_LINE,
        "TREE_LINE": tree.LINE, "HATCH": canvas.HATCH, "MIN_DRAFT": marks.MIN_DRAFT,
        "MAX_DRAFT": marks.MAX_DRAFT, "GOOD_ENDS": GOOD_ENDS}
    return "".join(f"export const {name} = {json.dumps(value, ensure_ascii=False)};\n"
                   for name, value in constants.items())


def style_sheet() -> str:
    """Write every colour as a CSS variable, and the classes that change the colours of shapes in dark mode."""
    def variables(mode: str) -> str:
        return "".join(f"--{PREFIX}{name}:{getattr(paint, mode)};" for name, paint in PAINTS.items())

    rules = "".join(f".{PREFIX}{attribute[0]}-{name}{{{attribute}:{paint.dark}}}\n" for name, paint in PAINTS.items()
                    if paint.light != paint.dark for attribute in ("fill", "stroke"))
    return (f":root{{{variables('light')}}}\n@media (prefers-color-scheme:dark){{\n:root{{{variables('dark')}}}\n"
            f"{rules}}}\n")
