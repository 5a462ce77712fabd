"""Tests of lab 1.0, the next token. Each test checks one rule, and its failure message states the rule."""

import pytest

INF = float("inf")
LOGITS = [-2.0, 1.3, 0.4, 9.1, -5.7]


@pytest.mark.points(2)
@pytest.mark.parametrize("logits, expected", [
    (LOGITS, 3), ([5.0, 1.0], 0), ([1.0, 5.0], 1), ([0.5], 0), ([0.25, 0.5, 0.125], 1)])
def test_task_1_the_largest_logit_wins(lab, logits, expected):
    got = lab.most_likely(list(logits))
    assert got == expected and type(got) is int, (
        f"most_likely({logits}) gave {got!r}, expected {expected}: the id of the largest logit, as an int")


@pytest.mark.points(1)
@pytest.mark.parametrize("logits, expected", [([-3.0, -1.0, -2.0], 1), ([-INF, -7.5, -INF], 1), ([-1e30, -1e31], 0)])
def test_task_1_logits_can_be_negative(lab, logits, expected):
    got = lab.most_likely(list(logits))
    assert got == expected, (
        f"most_likely({logits}) gave {got!r}, expected {expected}: the largest logit wins, even if all are negative")


@pytest.mark.points(2)
@pytest.mark.parametrize("logits, expected", [([1.0, 4.0, 4.0, 2.0], 1), ([4.0, 4.0], 0), ([-INF, 0.0, -0.0, 0.0], 1)])
def test_task_1_of_equals_the_smallest_id(lab, logits, expected):
    got = lab.most_likely(list(logits))
    assert got == expected, (
        f"most_likely({logits}) gave {got!r}, expected {expected}: if several tokens share the largest logit, return "
        "the smallest of their ids")


@pytest.mark.points(1)
def test_task_1_as_many_tokens_as_a_model_has(lab):
    logits = [float(-abs(token_id - 3000)) for token_id in range(4096)]
    got = lab.most_likely(list(logits))
    assert got == 3000, f"most_likely of 4096 logits gave {got!r}, expected 3000, the id of the largest"


@pytest.mark.points(2)
@pytest.mark.parametrize("k, expected", [(1, [3]), (2, [3, 1]), (5, [3, 1, 2, 0, 4]), (0, [])])
def test_task_2_the_largest_first(lab, k, expected):
    got = lab.most_likely_first(list(LOGITS), k)
    assert list(got) == expected, f"most_likely_first({LOGITS}, {k}) gave {got!r}, expected {expected}"


@pytest.mark.points(1)
@pytest.mark.parametrize("logits, k, expected", [
    ([2.0, 7.0, 7.0, 2.0, 7.0], 4, [1, 2, 4, 0]), ([0.0] * 6, 3, [0, 1, 2]), ([-INF, -INF, 1.0], 2, [2, 0])])
def test_task_2_of_equals_the_smaller_id_first(lab, logits, k, expected):
    got = lab.most_likely_first(list(logits), k)
    assert list(got) == expected, (
        f"most_likely_first({logits}, {k}) gave {got!r}, expected {expected}: if logits are equal, the smaller id "
        "comes first")


@pytest.mark.points(1)
def test_task_2_fewer_tokens_than_asked_for(lab):
    got = lab.most_likely_first([1.0, 3.0], 10)
    assert list(got) == [1, 0], f"most_likely_first([1.0, 3.0], 10) gave {got!r}, expected [1, 0]: all ids"


@pytest.mark.points(1)
def test_task_2_the_logits_stay_as_they_were(lab):
    logits = list(LOGITS)
    got = lab.most_likely_first(logits, 3)
    assert list(got) == [3, 1, 2], f"most_likely_first({LOGITS}, 3) gave {got!r}, expected [3, 1, 2]"
    assert logits == LOGITS, f"most_likely_first changed its argument: {LOGITS} became {logits}. Sort ids, or a copy"
