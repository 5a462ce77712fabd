"""Check that the solutions written from the lab texts still fit the current starters. ``make variants`` runs them."""

import ast
import re

import pytest
from try_variants import VARIANTS, edited, texts_of

from course.lab.contract import plain
from course.lab.graded_tests import graded_tests
from course.lab.lab import discover
from course.lab.starters import shipped_starter

LABS = [lab for lab in discover(VARIANTS.parents[1]) if (VARIANTS / lab.number).is_dir()]


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_every_edit_fits_names_a_test_and_breaks_a_promise_that_is_written_down(lab):
    right, variants = texts_of(lab, VARIANTS / lab.number)
    assert list(right) == ["base", "unusual_1", "unusual_2"] and len(set(right.values())) == 3 and len(variants) >= 10
    for text in (*right.values(), *(edited(right["base"], [variant]) for variant in variants)):
        ast.parse(text)
    assert {variant["caught_by"] for variant in variants} <= {test.name for test in graded_tests(lab)}
    assert len({variant["name"] for variant in variants}) == len(variants)
    bullets = re.compile(r"^\s*(- |#: ?)", re.M)
    page = plain(bullets.sub("", shipped_starter(lab) + lab.readme.read_text(encoding="utf-8")))
    for variant in variants:
        for part in re.split(" (?:\\.\\.\\.|…|/) ", variant["promise"]):
            assert plain(part).strip(" .;") in page, f"{variant['name']} breaks {part!r}, which is not said"


def test_an_edit_that_does_not_fit_is_refused_and_what_an_edit_brings_is_not_edited():
    with pytest.raises(ValueError, match="'b' occurs 2 times, must occur once"):
        edited("abcb", [{"old": "a", "new": "A"}, {"old": "b", "new": "B"}])
    assert edited("abc", [{"old": "c", "new": "d"}, {"old": "a", "new": "c"}]) == "cbd"
