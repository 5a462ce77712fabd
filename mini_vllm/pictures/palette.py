"""The colours of all pictures, on light and on dark paper.

A shape names its paint ("ink", "cached", "request-2"). Its attributes contain the light colour, which every program can
read. The dark colour is in a style sheet, whose class names have a prefix, so that a picture never restyles the page
around it.

Requests have eight colours, which people with any kind of colour blindness can distinguish, and a letter, which remains
readable in a grey print. Shared blocks are hatched, and free blocks that are still cached have a dashed border.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PREFIX = "mv-"


class Paint(NamedTuple):
    light: str
    dark: str


#: For the letter on a request's colour, and for hatching, on any paper.
ON_COLOUR = "on-colour"
_REQUESTS = ("#5989ea", "#ff9904", "#0cc176", "#b576a9", "#ebeb69", "#d9602c", "#e7acff", "#a8ccc0")
NUM_REQUEST_COLOURS = len(_REQUESTS)

PAINTS = {
    "paper": Paint("#ffffff", "#16191d"),
    "ink": Paint("#1c1c1c", "#eceff1"),
    "faint": Paint("#5f6368", "#a9b0b7"),
    "line": Paint("#9aa0a6", "#6f7780"),
    "grid": Paint("#e4e4e4", "#30363d"),
    "empty": Paint("#ffffff", "#16191d"),
    "null": Paint("#dadce0", "#3c4249"),
    "used": Paint("#a8bccd", "#7f97ab"),
    "cached": Paint("#f3ecd2", "#3d3823"),
    "kept": Paint("#c4c4c4", "#8a9097"),
    "alarm": Paint("#c5221f", "#ff8a80"),
    "good": Paint("#1e7d43", "#6fcf97"),
    ON_COLOUR: Paint("#14171a", "#14171a"),
    **{f"request-{number}": Paint(colour, colour) for number, colour in enumerate(_REQUESTS)},
}


def request_paint(number: int) -> str:
    """Return the paint of the ``number``-th request. After the last colour, the first one follows again."""
    return f"request-{number % NUM_REQUEST_COLOURS}"


def style_sheet(uses: Iterable[tuple[str, str]]) -> str:
    """Return the style sheet of a picture's dark version, for (attribute, paint) pairs such as ``("fill", "ink")``."""
    rules = "".join(f".{PREFIX}{attribute[0]}-{paint}{{{attribute}:{PAINTS[paint].dark}}}"
                    for attribute, paint in sorted(set(uses)) if PAINTS[paint].dark != PAINTS[paint].light)
    return f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>" if rules else ""
