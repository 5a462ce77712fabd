"""All attacks."""

from __future__ import annotations

from course.grading.hostile import ending, forging, found, measuring, objects, reaching, serving, talking
from course.grading.hostile.attack import Attack

ATTACKS: tuple[Attack, ...] = (*forging.ATTACKS, *talking.ATTACKS, *ending.ATTACKS, *objects.ATTACKS,
                               *measuring.ATTACKS, *reaching.ATTACKS, *serving.ATTACKS,
                               *found.ATTACKS)
