"""The canvas of a picture. It collects shapes, whose paints are given by name, and returns the text of an SVG."""

from __future__ import annotations

from collections.abc import Mapping

from mini_vllm.pictures.elements import quote, shape, text_width
from mini_vllm.pictures.palette import ON_COLOUR, PAINTS, PREFIX, style_sheet

FONT = "Helvetica, Arial, sans-serif"
HATCH = ('<defs><pattern id="mv-hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
          f'patternTransform="rotate(45)"><path d="M0 0V7" stroke="{PAINTS[ON_COLOUR].light}" stroke-width="4" '
          'stroke-opacity="0.32"/></pattern></defs>')
STRIPES = ('<defs><pattern id="mv-stripes" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(-45)"><path d="M0 0V6" stroke="#80868b" stroke-width="2"/></pattern></defs>')


class Canvas:
    """Shapes of one picture. ``fill`` and ``stroke`` are names of the palette, or colours in SVG's notation."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._uses: list[tuple[str, str]] = [("fill", "paper")]
        self._patterns: set[str] = set()
        #: The right end of the rightmost shape.
        self.right = 0.0

    def add(self, name: str, *, title: str = "", text: str = "", **attributes: object) -> None:
        """Add an element. A viewer shows ``title`` under the pointer."""
        x, width = attributes.get("x"), attributes.get("width")
        if isinstance(x, (int, float)) and isinstance(width, (int, float)):
            self.right = max(self.right, x + width)
        self._parts.append(shape(name, self._painted(attributes), title, text))

    def text(self, x: float, y: float, text: str, size: float = 11, fill: str = "faint", *, title: str = "",
             **attributes: object) -> None:
        if "text_anchor" not in attributes:
            share = 1.0 if attributes.get("font_weight") == "bold" else 0.87
            self.right = max(self.right, x + share * text_width(text, size))
        self.add("text", title=title, text=text, x=x, y=y, font_size=size, fill=fill, **attributes)

    def hatch(self, x: float, y: float, width: float, height: float) -> None:
        """Draw lines over a shape that has more than one owner."""
        self._patterns.add(HATCH)
        self.add("rect", x=x, y=y, width=width, height=height, fill="url(#mv-hatch)", pointer_events="none")

    def stripe(self, x: float, y: float, width: float, height: float) -> None:
        """Draw thin lines, which lean the other way: these slots are reserved and will never be used."""
        self._patterns.add(STRIPES)
        self.add("rect", x=x, y=y, width=width, height=height, fill="url(#mv-stripes)", pointer_events="none")

    def open_group(self, **attributes: object) -> None:
        self._parts.append(shape("g", self._painted(attributes)).removesuffix("/>") + ">")

    def close_group(self) -> None:
        self._parts.append("</g>")

    def _painted(self, attributes: Mapping[str, object]) -> dict[str, object]:
        """Return the attributes with the light colours, and the classes that the style sheet uses for dark ones."""
        painted, classes = dict(attributes), []
        for attribute in ("fill", "stroke"):
            paint = attributes.get(attribute)
            if isinstance(paint, str) and paint in PAINTS:
                painted[attribute] = PAINTS[paint].light
                if PAINTS[paint].light != PAINTS[paint].dark:
                    classes.append(f"{PREFIX}{attribute[0]}-{paint}")
                    self._uses.append((attribute, paint))
        return {"class": " ".join(classes), **painted} if classes else painted

    def to_svg(self, width: float, height: float, label: str) -> str:
        """Return the drawing as SVG. A screen reader reads ``label``."""
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
                f'viewBox="0 0 {width:g} {height:g}" font-family="{FONT}" role="img" aria-label={quote(label)}>')
        paper = shape("rect", self._painted({"width": width, "height": height, "fill": "paper"}))
        parts = (head, style_sheet(self._uses), *sorted(self._patterns), paper, *self._parts, "</svg>")
        return "\n".join(part for part in parts if part) + "\n"
