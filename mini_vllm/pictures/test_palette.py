"""The pictures are readable on light and dark paper, and with any kind of colour vision."""

import itertools

import numpy as np
import pytest

from mini_vllm.pictures.palette import NUM_REQUEST_COLOURS, ON_COLOUR, PAINTS, request_paint

#: Linear RGB as seen with the three kinds of colour blindness at their strongest (Machado, Oliveira, Fernandes: A
#: Physiologically-based Model for Simulation of Color Vision Deficiency, 2009).
EYES = {
    "all cones": np.eye(3),
    "no L cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no M cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no S cones": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
REQUESTS = [request_paint(number) for number in range(NUM_REQUEST_COLOURS)]


def linear(colour):
    values = np.array([int(colour[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """Compute the contrast by the formula of WCAG: 1 for equal colours, 21 for black on white."""
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def cielab(rgb):
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(rgb, 0, 1)
    parts = xyz / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(parts > 0.008856, np.cbrt(parts), 7.787 * parts + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", EYES)
def test_everybody_can_tell_the_colours_of_requests_apart(eyes):
    seen = {paint: cielab(np.array(EYES[eyes]) @ linear(PAINTS[paint].light)) for paint in REQUESTS}
    for one, other in itertools.combinations(seen, 2):
        distance = np.linalg.norm(seen[one] - seen[other])
        assert distance > 20, f"with {eyes}, {one} and {other} are only {distance:.1f} apart"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_stand_out_from_what_they_stand_on(theme):
    def colour(paint):
        return getattr(PAINTS[paint], theme)

    for paint in (*REQUESTS, "used"):
        assert contrast(colour(ON_COLOUR), colour(paint)) > 4.5, paint
    for ink, paper, least in (("ink", "paper", 7), ("faint", "paper", 4.5), ("ink", "cached", 4.5),
                              ("ink", "null", 4.5), ("faint", "cached", 4.5), ("line", "paper", 2.5),
                              ("alarm", "paper", 4.5)):
        ratio = contrast(colour(ink), colour(paper))
        assert ratio > least, f"{ink} on {paper}, {theme}: {ratio:.2f}"
