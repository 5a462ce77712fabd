"""The colours of all pictures, on light and on dark paper.

A shape says what it is painted with by name ("ink", "cached", "request-2"). The light colour stands in its attributes,
where every program finds it; the dark one in a style sheet that only asks for the names, each with a prefix of our own,
so that a picture never restyles the page around it.

Requests are told apart by eight colours that people with any kind of colour blindness can tell apart, and by a letter,
which also survives a grey print. What is shared is hatched as well as coloured; what is free and still cached has a
dashed border.
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
    """The paint of the ``number``-th request; after the last colour the first comes again."""
    return f"request-{number % NUM_REQUEST_COLOURS}"


def style_sheet(uses: Iterable[tuple[str, str]]) -> str:
    """What a picture's dark version needs, for these (attribute, paint) pairs: ``("fill", "ink")``."""
    rules = "".join(f".{PREFIX}{attribute[0]}-{paint}{{{attribute}:{PAINTS[paint].dark}}}"
                    for attribute, paint in sorted(set(uses)) if PAINTS[paint].dark != PAINTS[paint].light)
    return f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>" if rules else ""
