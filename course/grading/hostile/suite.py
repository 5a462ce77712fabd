"""All attacks."""

from __future__ import annotations

from course.grading.hostile import (
                               attacks_escape,
                               attacks_exit,
                               attacks_forgery,
                               attacks_found,
                               attacks_measurement,
                               attacks_objects,
                               attacks_protocol,
                               attacks_score,
                               attacks_served,
)
from course.grading.hostile.attack import Attack

ATTACKS: tuple[Attack, ...] = (*attacks_forgery.ATTACKS, *attacks_protocol.ATTACKS, *attacks_exit.ATTACKS,
                               *attacks_objects.ATTACKS, *attacks_measurement.ATTACKS, *attacks_escape.ATTACKS,
                               *attacks_served.ATTACKS, *attacks_found.ATTACKS,
                               *attacks_score.ATTACKS)
