"""Draws docs/hero.svg, the picture on the front page: six requests in a pool too small for all of them.

It is the picture that the tour opens with, enlarged. It is the same every time: no text ends before its last token,
draws have seeds, and the trace has no clock.
"""

from __future__ import annotations

from pathlib import Path

from course.exercises.opening import opening
from mini_vllm.pictures import Picture

HERO = Path(__file__).parents[1] / "docs/hero.svg"
#: Drawn for a narrow screen, so that its letters can be read there, and enlarged for a wide one.
SHOWN_WIDTH = 720


def draw() -> Picture:
    return opening("00").shown_at(SHOWN_WIDTH)


if __name__ == "__main__":
    draw().save(HERO)
