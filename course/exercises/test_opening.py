"""Each notebook begins with a picture: it exists, fits a narrow screen, and is the one in the committed notebook."""

import json
import sys

import pytest

from course.exercises.opening import OPENINGS, opening
from course.lab.lab import PROJECT_ROOT

NOTEBOOKS = {path.name[:2]: path for path in sorted((PROJECT_ROOT / "notebooks").glob("[0-9]*.ipynb"))}


def test_every_notebook_has_one():
    assert list(OPENINGS) == list(NOTEBOOKS)
    with pytest.raises(ValueError, match="no notebook '77'; the notebooks are 00, 01"):
        opening("77")


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_it_can_be_read_on_a_narrow_screen_and_leaves_room_for_words(notebook):
    picture = opening(notebook)
    assert picture.width <= 600 and picture.height <= picture.width
    assert picture.look.endswith(".") and picture.label


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems, rounding may change what is drawn with a seed")
@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_it_is_shown_by_the_second_cell(notebook):
    title, first = json.loads(NOTEBOOKS[notebook].read_text(encoding="utf-8"))["cells"][:2]
    (output,) = first["outputs"]
    assert "".join(output["data"]["image/svg+xml"]) == opening(notebook).svg
    told = [line for line in "".join(title["source"]).splitlines() if not line.startswith("[![")]
    assert len("".join(told)) < 500, "the text before the picture must be short"
