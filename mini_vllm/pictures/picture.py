"""A picture for notebooks, pages and files: an SVG, and a caption that says what to look for."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mini_vllm.checks import install_line

#: A picture is as wide as its column. In a narrow column it shrinks while its letters remain readable, then it scrolls.
#: In a wide column, a small picture does not grow to fill the screen.
IMAGE_STYLE = "width:clamp({}px,100%,{}px);max-width:none;height:auto;display:block"
MIN_READABLE_WIDTH = 560
SMALLEST, LARGEST, LARGEST_IF_FLAT = 0.75, 1.6, 2.2
#: The maximum height to which a flat picture grows.
HIGH = 500
PNG_SCALE = 2
SUFFIXES = (".svg", ".png")


@dataclass(frozen=True)
class Picture:
    """A picture: ``svg`` is a whole document, ``label`` names it, and ``look`` says what to look for in it."""

    svg: str
    width: float
    height: float
    label: str
    look: str

    def to_html(self) -> str:
        """Return the picture with its caption.

        The picture is an image, so that it also appears where inline SVG is removed: on GitHub, and in a notebook that
        is not trusted.
        """
        return (f'<figure style="margin:0.5em 0">{self.image()}<figcaption style="font-size:0.9em">'
                f"{html.escape(self.look)}</figcaption></figure>")

    def image(self) -> str:
        growth = min(max(HIGH / self.height, LARGEST), LARGEST_IF_FLAT)
        style = IMAGE_STYLE.format(min(round(SMALLEST * self.width), MIN_READABLE_WIDTH), round(growth * self.width))
        return (f'<div style="overflow-x:auto"><img alt="{html.escape(self.label)}" style="{style}" '
                f'src="data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"></div>')

    def shown_at(self, width: int) -> Picture:
        """Return the same picture with a default width of ``width`` pixels, for pages that set no width."""
        height = round(self.height * width / self.width)
        old, new = f'width="{self.width:g}" height="{self.height:g}"', f'width="{width}" height="{height}"'
        return replace(self, svg=self.svg.replace(old, new, 1), width=width, height=height)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.to_html(), "image/svg+xml": self.svg, "text/plain": f"{self.label}. {self.look}"}

    def save(self, path: str | Path) -> None:
        """Save as ``.svg`` or ``.png``. Raise ValueError for another suffix, or if PNG is not supported here."""
        path = Path(path)
        check_suffix(path)
        if path.suffix.lower() == ".png":
            path.write_bytes(bytes(_png_maker()(svg_string=self.svg, zoom=PNG_SCALE)))
        else:
            path.write_text(self.svg, encoding="utf-8")


def check_suffix(path: Path) -> None:
    """Raise ValueError if no picture can be saved under that name."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: a picture is written as .svg or .png, not as {suffix or 'a name without a suffix'}")
    if suffix == ".png":
        _png_maker()


def _png_maker() -> Callable[..., bytes]:
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise ValueError(f"a PNG needs resvg-py: {install_line('png')}; an .svg needs no package") from None
    return svg_to_bytes
