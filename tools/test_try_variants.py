"""Check that the solutions written from the lab texts still fit the current starters. ``make variants`` runs them."""

import ast
import json
import re

import pytest
import try_variants

from course.lab.contract import plain
from course.lab.graded_tests import graded_tests
from course.lab.lab import discover
from course.lab.starters import shipped_starter

LABS = [lab for lab in discover(try_variants.VARIANTS.parents[1]) if (try_variants.VARIANTS / lab.number).is_dir()]


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_every_edit_fits_and_names_a_test(lab):
    folder, starter = try_variants.VARIANTS / lab.number, shipped_starter(lab)
    solutions = json.loads((folder / "solutions.json").read_text(encoding="utf-8"))
    texts = {name: try_variants.edited(starter, edits) for name, edits in solutions.items()}
    variants = json.loads((folder / "variants.json").read_text(encoding="utf-8"))
    assert list(texts) == ["base", "unusual_1", "unusual_2"] and len(set(texts.values())) == 3 and len(variants) >= 10
    for text in (*texts.values(), *(try_variants.edited(texts["base"], [variant]) for variant in variants)):
        ast.parse(text)
    assert {variant["caught_by"] for variant in variants} <= {test.name for test in graded_tests(lab)}, "one passes"
    assert len({variant["name"] for variant in variants}) == len(variants)


@pytest.mark.parametrize("lab", LABS, ids=str)
def test_a_variant_breaks_a_promise_that_is_written_down(lab):
    bullets = re.compile(r"^\s*(- |#: ?)", re.M)
    text = plain(bullets.sub("", shipped_starter(lab) + lab.readme.read_text(encoding="utf-8")))
    for variant in json.loads((try_variants.VARIANTS / lab.number / "variants.json").read_text(encoding="utf-8")):
        for part in re.split(" (?:\\.\\.\\.|…|/) ", variant["promise"]):
            assert plain(part).strip(" .;") in text, f"{variant['name']} breaks {part!r}, which is not said"


def test_an_edit_that_does_not_fit_is_refused_and_what_an_edit_brings_is_not_edited():
    with pytest.raises(ValueError, match="'b' occurs 2 times, must occur once"):
        try_variants.edited("abcb", [{"old": "a", "new": "A"}, {"old": "b", "new": "B"}])
    assert try_variants.edited("abc", [{"old": "c", "new": "d"}, {"old": "a", "new": "c"}]) == "cbd"
