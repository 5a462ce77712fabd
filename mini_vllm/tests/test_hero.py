"""The picture on the front page is what the engine does: drawn anew, it is the one that is committed."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
    assert picture.width == 830 and picture.height <= 600, "it leaves room for words on the first screen"
    assert "first token of" not in picture.svg, "times would differ from run to run"


@pytest.mark.skipif(sys.platform != "linux", reason="what is drawn with a seed may differ by rounding elsewhere")
def test_the_committed_picture_is_what_the_command_draws(hero, picture):
    assert hero.HERO.read_text(encoding="utf-8") == picture.svg, "`make hero` draws it anew"
