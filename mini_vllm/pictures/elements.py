"""Small things of SVG: elements as text, sizes of texts, and round numbers."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from xml.sax.saxutils import escape, quoteattr

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

#: Of letters that are not as wide as most, in parts of the size of the font.
_WIDTHS = {**dict.fromkeys("ijl'|", 0.23), **dict.fromkeys(" ftI.,:;!/[]()-`r·", 0.32), **dict.fromkeys("mM", 0.84),
           **dict.fromkeys("wW@%…", 0.9), **dict.fromkeys("ckszvxyJ", 0.5)}


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


def cross(x: float, y: float, radius: float) -> str:
    return (f"M{x - radius:g} {y - radius:g}l{2 * radius:g} {2 * radius:g}"
            f"M{x - radius:g} {y + radius:g}l{2 * radius:g} {-2 * radius:g}")


def text_width(text: str, size: float) -> float:
    """About how wide a text will be; fonts differ, so rather more."""
    return 0.61 * size * sum(1.7 if unicodedata.east_asian_width(letter) in "WF" else 1.0 for letter in text)


def sans_width(text: str, size: float) -> float:
    """How wide a text is in Helvetica, within some per cent, letter by letter."""
    return size * sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else _WIDTHS.get(letter, 0.56 if
                      letter.islower() or letter.isdigit() else 0.7) for letter in text)


def cut(text: str, size: float, room: float) -> str:
    """As much of the beginning as fits into ``room``."""
    if sans_width(text, size) <= room:
        return text
    end = next((end for end in range(len(text), 0, -1) if sans_width(text[:end] + "…", size) <= room), 0)
    return text[:end].rstrip() + "…"


def wrapped(parts: Iterable[str], size: float, room: float, separator: str = " · ") -> list[str]:
    """The parts in as few lines of that width as they need; one that is wider has a line to itself."""
    lines: list[str] = []
    for part in parts:
        if lines and sans_width(lines[-1] + separator + part, size) <= room:
            lines[-1] += separator + part
        else:
            lines.append(part)
    return lines


def shorten(text: str, most: int = 24) -> str:
    """The beginning and the end of an id: those of one batch often differ only there."""
    return text if len(text) <= most else f"{text[:most - 10]}…{text[-9:]}"


def round_up(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, … that is at least ``least``."""
    power: int = 10 ** max(math.floor(math.log10(max(least, 1))), 0)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
