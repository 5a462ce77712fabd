"""Charts take their colours from the palette."""

import pytest

from mini_vllm.pictures.chart_style import use_chart_style
from mini_vllm.pictures.palette import PAINTS

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture
def paints():
    with matplotlib.rc_context():
        yield use_chart_style()


def test_a_line_has_the_colour_of_the_first_request_on_the_palettes_paper(paints):
    assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"][0] == PAINTS["request-0"].light
    assert matplotlib.rcParams["figure.facecolor"] == PAINTS["paper"].light
    assert paints["faint"] == PAINTS["faint"].light and set(paints) == set(PAINTS)
