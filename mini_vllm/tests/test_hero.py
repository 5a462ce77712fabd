"""The picture on the front page shows what the engine does: drawn again, it equals the committed one."""

import importlib.util
import itertools
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mini_vllm.pictures.elements import sans_width
from mini_vllm.pictures.legend import WIDER

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def hero():
    spec = importlib.util.spec_from_file_location("hero", ROOT / "tools/hero.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["hero"] = module  # where dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def picture(hero):
    return hero.draw()


def test_it_shows_sharing_forks_copies_and_preemption(picture):
    for part in ('data-state="shared"', 'data-state="cached"', 'data-part="fork"', 'data-part="copy"',
                 'data-kind="preempted"', 'data-kind="recomputed"', "Once upon a time"):
        assert part in picture.svg, part
    assert picture.width == 720 and picture.height <= 600, "it leaves room for words on the first screen"
    assert "first token of" not in picture.svg, "times would differ from run to run"


def boxes_of_texts(picture):
    """Return (text, left, top, right, bottom, size) of every text, in a font that is wider than Helvetica."""
    for each in ElementTree.fromstring(picture.svg).iter(f"{SVG}text"):
        text = (each[-1].tail if len(each) else each.text) or ""
        x, y, size = (float(each.get(name)) for name in ("x", "y", "font-size"))
        wide = sans_width(text, size) * WIDER
        left = {"end": x - wide, "middle": x - wide / 2}.get(each.get("text-anchor"), x)
        yield text, left, y - 0.72 * size, left + wide, y, size


def test_no_label_touches_another_or_the_line_of_a_copy(picture):
    boxes = list(boxes_of_texts(picture))
    overlaps = [(one[0], other[0]) for one, other in itertools.combinations(boxes, 2)
                if one[1] < other[3] and other[1] < one[3] and one[2] < other[4] and other[2] < one[4]]
    assert not overlaps
    lines = [each.get("d") for each in ElementTree.fromstring(picture.svg).iter(f"{SVG}path")
             if each.get("stroke-width") == "1.25"]
    assert len(lines) == picture.svg.count('data-part="copy"') == 3
    for line in lines:
        (x, top), bottom = map(float, line[1:].partition("V")[0].split()), float(line.partition("V")[2])
        assert not [text for text, left, above, right, below, _ in boxes
                    if left < x < right and above < bottom and top < below], line


def test_its_letters_can_be_read_on_a_screen_of_400_pixels(picture):
    _, _, width, _ = map(float, ElementTree.fromstring(picture.svg).get("viewBox").split())
    assert min(size for *_, size in boxes_of_texts(picture)) * 400 / width >= 7.4


@pytest.mark.without_drafts("compares a picture of every step")
@pytest.mark.skipif(sys.platform != "linux", reason="what is drawn with a seed may differ by rounding elsewhere")
def test_the_committed_picture_is_what_the_command_draws(hero, picture):
    assert hero.HERO.read_text(encoding="utf-8") == picture.svg, "`make hero` draws it again"
