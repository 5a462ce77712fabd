"""Several pictures below each other, as one: the pool and its free queue in one frame, or before and after."""

from __future__ import annotations

from mini_vllm.pictures.canvas import Canvas
from mini_vllm.pictures.picture import Picture


def stack(*pictures: Picture, look: str | None = None) -> Picture:
    """Stack pictures from the top down, unchanged. By default, ``look`` joins the captions, each of them once.

    Raise ValueError if there is no picture.
    """
    if not pictures:
        raise ValueError("there are no pictures to stack: give at least one")
    width, height = max(picture.width for picture in pictures), sum(picture.height for picture in pictures)
    label = "; ".join(dict.fromkeys(picture.label for picture in pictures))
    parts, y = [], 0.0
    for picture in pictures:
        parts.append(picture.svg.replace("<svg ", f'<svg y="{y:g}" ', 1))
        y += picture.height
    svg = Canvas().to_svg(width, height, label).removesuffix("</svg>\n") + "".join(parts) + "</svg>\n"
    if look is None:
        look = " ".join(dict.fromkeys(picture.look for picture in pictures))
    return Picture(svg, width, height, label, look)
