"""Helpers for SVG: elements as text, widths of texts, and round numbers."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from xml.sax.saxutils import escape, quoteattr

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

#: The widths of unusually narrow or wide letters, as fractions of the font size.
_WIDTHS = {**dict.fromkeys("ijl'|", 0.23), **dict.fromkeys(" ftI.,:;!/[]()-`r·", 0.32), **dict.fromkeys("mM", 0.84),
           **dict.fromkeys("wW@%…", 0.9), **dict.fromkeys("ckszvxyJ", 0.5)}


def shape(name: str, attributes: Mapping[str, object], title: str = "", text: str = "") -> str:
    """Return one element. Attributes that are None are left out. A viewer shows ``title`` under the pointer."""
    head = f"<{name}" + "".join(f" {key.replace('_', '-')}={quote(value)}" for key, value in attributes.items()
                                if value is not None)
    inside = (f"<title>{escape(_clean(title))}</title>" if title else "") + escape(_clean(text))
    return f"{head}>{inside}</{name}>" if inside else f"{head}/>"


def quote(value: object) -> str:
    return quoteattr(f"{value:.7g}" if isinstance(value, float) else _clean(str(value)))


def _clean(text: str) -> str:
    """Replace control characters, which XML cannot contain."""
    return _NOT_XML.sub("\ufffd", text)


def cross(x: float, y: float, radius: float) -> str:
    return (f"M{x - radius:g} {y - radius:g}l{2 * radius:g} {2 * radius:g}"
            f"M{x - radius:g} {y + radius:g}l{2 * radius:g} {-2 * radius:g}")


def disc(x: float, y: float, radius: float) -> str:
    half = f"a{radius:g} {radius:g} 0 0 0"
    return f"M{x - radius:g} {y:g}{half} {2 * radius:g} 0{half} {-2 * radius:g} 0z"


def box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z"


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text. Fonts differ, so the estimate is rather too large."""
    return 0.61 * size * sum(1.7 if unicodedata.east_asian_width(letter) in "WF" else 1.0 for letter in text)


def sans_width(text: str, size: float) -> float:
    """Estimate the width of a text in Helvetica, letter by letter, to within a few per cent."""
    return size * sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else _WIDTHS.get(letter, 0.56 if
                      letter.islower() or letter.isdigit() else 0.7) for letter in text)


def cut(text: str, size: float, room: float) -> str:
    """Return the beginning of a text that fits into ``room``."""
    if sans_width(text, size) <= room:
        return text
    end = next((end for end in range(len(text), 0, -1) if sans_width(text[:end] + "…", size) <= room), 0)
    return text[:end].rstrip() + "…"


def wrapped(parts: Iterable[str], size: float, room: float, separator: str = " · ") -> list[str]:
    """Arrange the parts in as few lines of that width as possible. A wider part gets its own line."""
    lines: list[str] = []
    for part in parts:
        if lines and sans_width(lines[-1] + separator + part, size) <= room:
            lines[-1] += separator + part
        else:
            lines.append(part)
    return lines


def shorten(text: str, most: int = 24) -> str:
    """Return the beginning and the end of an id: ids of one batch often differ only at the end."""
    return text if len(text) <= most else f"{text[:most - 10]}…{text[-9:]}"


def round_up(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, … that is at least ``least``."""
    power: int = 10 ** max(math.floor(math.log10(max(least, 1))), 0)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
