"""Pictures to step through with a slider, which works without a kernel.

GitHub and nbviewer remove scripts from a page. There, the first frame and a strip of still frames tell the same story.
Where scripts run, the strip is folded.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mini_vllm.pictures.picture import Picture

#: The maximum number of still frames after the first frame, if ``stills`` is None.
MAX_STILLS = 3
#: Creates the slider, shows the chosen frame, and folds the stills. Frames have most of their lines in common, so each
#: line is stored once, and a frame is a list of line numbers.
_SCRIPT = """\
(() => {
  const figure = document.currentScript.closest("figure"), lines = LINES, frames = FRAMES, labels = LABELS;
  const image = figure.querySelector("img"), said = figure.querySelector("output");
  const slider = document.createElement("input");
  Object.assign(slider, {type: "range", min: 0, max: frames.length - 1, value: 0});
  const show = () => {
    const svg = frames[slider.value].map(number => lines[number]).join("\\n");
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg);
    said.textContent = image.alt = labels[slider.value];
  };
  const button = (text, name, by) => {
    const made = Object.assign(document.createElement("button"), {textContent: text, type: "button", title: name});
    made.setAttribute("aria-label", name);
    made.onclick = () => { slider.value = Number(slider.value) + by; show(); };
    return made;
  };
  const row = document.createElement("div");
  row.style = "display:flex;gap:0.5em;align-items:center;margin:0.3em 0";
  slider.style = "flex:1;max-width:30em";
  slider.setAttribute("aria-label", "step");
  slider.oninput = show;
  row.append(button("\\u25c0", "one step back", -1), slider, button("\\u25b6", "one step forward", 1));
  figure.insertBefore(row, figure.firstChild);
  figure.querySelectorAll("details").forEach(each => each.removeAttribute("open"));
})();"""


@dataclass
class Slides:
    """A sequence of frames, each with a sentence; ``look`` says what to look for in all of them.

        slides = Slides("Watch the shared blocks.")
        slides.add("ada arrives", draw_cache(manager, requests))
        slides                                                    # in a notebook: the slider

    A page without scripts shows the first frame, and below it the frames with the numbers ``stills``, counted from 1.
    None means the last frame, and up to two between it and the first.
    """

    look: str
    frames: list[Picture] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    stills: tuple[int, ...] | None = None

    def add(self, label: str, picture: Picture) -> None:
        self.frames.append(picture)
        self.labels.append(label)

    def to_html(self) -> str:
        """Return the slider as HTML. Raise ValueError if there is no frame, or if a still has no frame."""
        frames, labels = self._even_frames(), self._numbered()
        first = self.frames[0]
        image = Picture(frames[0], self._width, self._height, labels[0], first.look).image()
        numbers: dict[str, int] = {}
        numbered = [[numbers.setdefault(line, len(numbers)) for line in frame.split("\n")] for frame in frames]
        values = {"LINES": _literal(numbers), "FRAMES": _literal(numbered), "LABELS": _literal(labels)}
        script = re.sub("LINES|FRAMES|LABELS", lambda name: values[name[0]], _SCRIPT)
        steps = "".join(f"<li>{html.escape(label)}</li>" for label in self.labels)
        return (f'<figure style="margin:0.5em 0">{image}<output style="font-weight:bold">{html.escape(labels[0])}'
                f'</output><figcaption style="font-size:0.9em">{html.escape(self.look)}</figcaption>{self._strip()}'
                f'<details style="font-size:0.9em"><summary>All frames in words</summary><ol>{steps}</ol></details>'
                f"<script>{script}</script></figure>")

    def _strip(self) -> str:
        """Return some frames below each other, for pages without scripts."""
        numbers, labels = self.still_numbers(), self._numbered()
        stills = {number: _resized(self.frames[number - 1], self._width, self.frames[number - 1].height)
                  for number in numbers}
        shown = "".join(f'<div style="margin-top:0.8em"><strong>{html.escape(labels[number - 1])}</strong></div>'
                        f"{still.image()}" for number, still in stills.items())
        summary = "Still frames, for pages on which the slider does not run"
        return f'<details open data-part="stills"><summary>{summary}</summary>{shown}</details>' if shown else ""

    def still_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the frames in the strip, counted from 1. Raise ValueError if one does not exist."""
        num_frames = len(self.frames)
        if self.stills is None:
            num_stills = min(MAX_STILLS, num_frames - 1)
            return tuple(1 + round(number * (num_frames - 1) / num_stills) for number in range(1, num_stills + 1))
        for number in self.stills:
            if not 1 <= number <= num_frames:
                raise ValueError(f"stills contains the frame {number}, must be from 1 to {num_frames}")
        return self.stills

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.to_html(), "image/svg+xml": self._even_frames()[0],
                "text/plain": "\n".join([self.look, *self._numbered()])}

    @property
    def _width(self) -> float:
        return max(frame.width for frame in self.frames)

    @property
    def _height(self) -> float:
        return max(frame.height for frame in self.frames)

    def _numbered(self) -> list[str]:
        return [f"{number} of {len(self.labels)}: {label}" for number, label in enumerate(self.labels, 1)]

    def _even_frames(self) -> list[str]:
        """Return all frames in the size of the largest, so that the page does not jump."""
        if not self.frames:
            raise ValueError("there are no frames to show: add one first")
        return [_resized(frame, self._width, self._height).svg for frame in self.frames]


def _resized(frame: Picture, width: float, height: float) -> Picture:
    """Return the same frame on a larger canvas."""
    size = f'width="{width:g}" height="{height:g}"'
    svg = re.sub(r'width="[\d.]+" height="[\d.]+" viewBox="[^"]*"', f'{size} viewBox="0 0 {width:g} {height:g}"',
                 frame.svg, count=1).replace(f'width="{frame.width:g}" height="{frame.height:g}"', size, 1)
    return replace(frame, svg=svg, width=width, height=height)


def _literal(values: Iterable[object]) -> str:
    """Format the values as JavaScript. No text in them can end the script."""
    return json.dumps(list(values), ensure_ascii=False, separators=(",", ":")).replace("<", "\\x3c")
