"""The picture on the front page shows what the engine does: drawn again, it equals the committed one."""

import importlib.util
import sys
from pathlib import Path

import pytest

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


@pytest.mark.without_drafts("compares a picture of every step")
@pytest.mark.skipif(sys.platform != "linux", reason="what is drawn with a seed may differ by rounding elsewhere")
def test_the_committed_picture_is_what_the_command_draws(hero, picture):
    assert hero.HERO.read_text(encoding="utf-8") == picture.svg, "`make hero` draws it again"
