"""Small things of SVG: elements as text, sizes of texts, round numbers, and the colours of a picture."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from xml.sax.saxutils import escape, quoteattr

from mini_vllm.trace import history

#: Pale for few tokens, dark for many.
SHADES = {history.PROMPT: ("#d3e5f8", "#0b4a94"), history.AGAIN: ("#e9d8f5", "#65189a")}
COLOURS = {history.DECODE: "#3f9d5a", history.FORKED: "#b7dfc1", history.WAITING: "#a3a3a3", history.IDLE: "#5d86b3",
           history.PREEMPTED: "#d0021b", history.USED: "#86a3bd", history.SHARED: "#22303c", history.CACHED: "#efe6c4",
           history.KEPT: "#c4c4c4"}
#: For the blocks of a request, if there are no more requests than colours.
REQUEST_COLOURS = ("#4e79a7", "#f28e2b", "#2fa39a", "#d37295", "#edc948", "#9c755f", "#8d7cc3", "#a3b83c", "#e8776b",
                   "#63b7dc", "#6b7a2f", "#d9a6c2")
INK, FAINT, GRID, PAPER, END, BAD_END = "#1c1c1c", "#666666", "#e4e4e4", "#ffffff", "#1c1c1c", "#e06c00"

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def shape(name: str, attributes: Mapping[str, object], title: str = "", text: str = "") -> str:
    """One element; an attribute that is None is left out. ``title`` is what a viewer shows under the pointer."""
    head = f"<{name}" + "".join(f" {key.replace('_', '-')}={quote(value)}" for key, value in attributes.items()
                                if value is not None)
    inside = (f"<title>{escape(_clean(title))}</title>" if title else "") + escape(_clean(text))
    return f"{head}>{inside}</{name}>" if inside else f"{head}/>"


def quote(value: object) -> str:
    return quoteattr(f"{value:.7g}" if isinstance(value, float) else _clean(str(value)))


def _clean(text: str) -> str:
    """XML has no way to write control characters."""
    return _NOT_XML.sub("\ufffd", text)


def shade(kind: str, part: float) -> str:
    """The colour between pale and dark for this part of the most tokens that one cell has."""
    pale, dark = ([int(colour[i:i + 2], 16) for i in (1, 3, 5)] for colour in SHADES[kind])
    return "#" + "".join(f"{round(p + (d - p) * min(part, 1.0)):02x}" for p, d in zip(pale, dark))


def cross(x: float, y: float, radius: float) -> str:
    return (f"M{x - radius:g} {y - radius:g}l{2 * radius:g} {2 * radius:g}"
            f"M{x - radius:g} {y + radius:g}l{2 * radius:g} {-2 * radius:g}")


def text_width(text: str, size: float) -> float:
    """About how wide a text will be; fonts differ, so rather more."""
    return 0.61 * size * sum(1.7 if unicodedata.east_asian_width(letter) in "WF" else 1.0 for letter in text)


def shorten(text: str, most: int = 24) -> str:
    """The beginning and the end of an id: those of one batch often differ only there."""
    return text if len(text) <= most else f"{text[:most - 10]}…{text[-9:]}"


def round_up(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, … that is at least ``least``."""
    power: int = 10 ** max(math.floor(math.log10(max(least, 1))), 0)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
