"""The score of an open lab, as ``lab.json`` describes it."""

import json
import math

import pytest

from course.lab.lab import LabError, discover
from course.lab.score import ScoreSettings

ENTRY = {"module": "arena", "name": "add", "meaning": "more is better"}


def test_a_score_reads_as_its_lab_says():
    assert ScoreSettings.of(ENTRY).text(64.94) == "64.9"
    times = ScoreSettings.of({**ENTRY, "decimals": 2, "unit": "times"})
    assert times.text(1.234) == "1.23 times" and not times.problem_with(1e6) and math.isinf(times.below)
    whole = ScoreSettings.of({**ENTRY, "decimals": 0, "below": 10, "why_below": "Ten is all."})
    assert whole.problem_with(10) == "The score is 10, must be less than 10. Ten is all." and not whole.problem_with(9)


@pytest.mark.parametrize("change, complaint", [
    ({"meaning": None}, "meaning is None, must be of type str"), ({"decimals": 3}, "decimals is 3, must be 0, 1 or 2"),
    ({"decimals": 1.5}, "decimals is 1.5, must be of type int"), ({"decimals": True}, "decimals is True, must be of"),
    ({"limit_s": "long"}, "limit_s is 'long', must be of type float"), ({"below": True}, "below is True, must be of"),
    ({"limit_s": 0}, "limit_s is 0, must be more than 0"),
    ({"below": 100}, "below needs why_below"), ({"beneath": 3}, "must have module, name and meaning, and may"),
])
def test_a_wrong_entry_is_refused_with_what_is_wrong(lab1, change, complaint):
    with pytest.raises(ValueError, match=complaint):
        ScoreSettings.of({**ENTRY, **change})
    (lab1.folder / "lab.json").write_text(json.dumps({"title": "x", "engine": None, "score": {**ENTRY, **change}}))
    with pytest.raises(LabError, match="lab.json must be JSON"):
        _ = lab1.score


@pytest.mark.parametrize("key", ENTRY)
def test_a_missing_key_is_named(key):
    with pytest.raises(ValueError, match="must have module, name and meaning"):
        ScoreSettings.of({name: value for name, value in ENTRY.items() if name != key})


def test_every_open_lab_of_the_course_can_be_scored():
    """Find them; ``course check`` proves the rest: the functions of the module, and the test that keeps the score."""
    assert [lab.number for lab in discover() if lab.score][:1] == ["3.5"]
