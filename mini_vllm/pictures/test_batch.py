"""The picture of a ragged batch shows every fact of its steps, and nothing else."""

import xml.etree.ElementTree as ElementTree

import pytest

from mini_vllm.model_runner import RequestStep
from mini_vllm.pictures import draw_batch

#: a decodes its ninth token, b computes a chunk of three in the middle of its prompt.
STEPS = {"a": RequestStep([7], [3, 5], 9, needs_logits=True),
         "b": RequestStep([1, 2, 3], [4, 2], 6, needs_logits=False)}


def shapes(picture, name):
    """Return the value of this attribute for every shape that has it, in the order of drawing."""
    return [element.get(name) for element in ElementTree.fromstring(picture.svg).iter() if element.get(name)]


def test_a_column_for_each_token_with_its_place():
    picture = draw_batch(STEPS, 8)
    assert shapes(picture, "data-token") == ["a", "b", "b", "b"]
    assert shapes(picture, "data-position") == ["8", "3", "4", "5"]
    assert shapes(picture, "data-slot") == ["40", "35", "36", "37"]


def test_logits_are_marked_where_they_are_wanted():
    assert shapes(draw_batch(STEPS, 8), "data-logits") == ["a"]
    assert "4 tokens of 2 requests in one step; 1 row of logits" in draw_batch(STEPS, 8).label
    ending = {"a": RequestStep([1, 2], [1], 2, needs_logits=True)}
    assert shapes(draw_batch(ending, 8), "data-logits") == ["a"], "only the last token of a chunk that ends a prompt"
    scored = {"c": RequestStep([1, 2, 3], [1], 3, needs_logits=False, needs_all_logits=True)}
    assert shapes(draw_batch(scored, 8), "data-logits") == ["c"] * 3
    assert "3 rows of logits" in draw_batch(scored, 8).label


def test_words_are_shown_and_cut_to_their_column():
    picture = draw_batch(STEPS, 8, text_of={7: " king", 1: " Rumpelstiltskin", 2: " ", 3: "</svg>"}.__getitem__)
    assert ">king<" in picture.svg and ">␣<" in picture.svg and "&lt;/sv" in picture.svg
    assert "Rump" in picture.svg and "Rumpelstiltskin" not in picture.svg
    ElementTree.fromstring(picture.svg)


def test_a_step_without_tokens_is_refused():
    with pytest.raises(ValueError, match="computes no token"):
        draw_batch({}, 8)


def test_how_many_tokens_are_side_by_side_can_be_chosen():
    steps = {"a": RequestStep(list(range(10)), [1, 2], 10, needs_logits=True)}
    narrow = draw_batch(steps, 8, per_row=4)
    assert narrow.width < draw_batch(steps, 8).width and shapes(narrow, "data-token") == ["a"] * 10
    tops = [shape.get("y") for shape in ElementTree.fromstring(narrow.svg).iter() if shape.get("data-token")]
    assert [tops.count(top) for top in dict.fromkeys(tops)] == [4, 4, 2]
    assert max(float(shape.get("x")) + float(shape.get("width")) for shape in ElementTree.fromstring(narrow.svg).iter()
               if shape.get("x") and shape.get("width")) <= narrow.width
