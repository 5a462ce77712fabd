"""The picture of a router's map shows for each block which replicas have it, and where the router is wrong."""

import xml.etree.ElementTree as ElementTree

import pytest

from mini_vllm.pictures import draw_replicas
from mini_vllm.pictures.replicas import LOOK_AT_REPLICAS

PROMPTS = (["helpful", "law", "tort"], ["helpful", "art"])


def shapes(picture):
    return [shape for shape in ElementTree.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}rect")]


def badges(picture):
    """Return the blocks from top to bottom and from left to right, each with the states of its replicas."""
    found, blocks = {}, []
    for shape in shapes(picture):
        if shape.get("data-block"):
            blocks.append(found.setdefault(shape.get("data-block"), {}))
        elif shape.get("data-state"):
            blocks[-1][shape.get("data-replica")] = shape.get("data-state")
    return found


def test_every_block_names_the_replicas_that_have_it_and_those_believed_to():
    picture = draw_replicas(PROMPTS, believed=[{"A": 3, "B": 1}, {"A": 1, "B": 1}], held=[{"A": 2}, {"A": 1, "B": 2}])
    assert badges(picture) == {
        "helpful": {"A": "known", "B": "known"}, "law": {"A": "known"}, "tort": {"A": "wrong"}, "art": {"B": "unknown"}}
    assert picture.label == ("3 cached, and the router knows it, 1 cached, unknown to the router, "
                             "1 not cached, but the router believes so")
    assert picture.look == LOOK_AT_REPLICAS


def test_boxes_do_not_overlap_and_stay_inside():
    picture = draw_replicas(PROMPTS, [{"replica-0": 2, "replica-1": 1}] * 2, [{}] * 2)
    boxes = [tuple(float(each.get(name)) for name in ("x", "y", "width", "height")) for each in shapes(picture)
             if each.get("data-block")]
    for number, (x, y, width, height) in enumerate(boxes):
        assert 0 < x and x + width < picture.width and y + height < picture.height
        for left, top, wide, high in boxes[number + 1:]:
            assert x + width <= left or left + wide <= x or y + height <= top or top + high <= y


def test_one_number_of_each_for_every_prompt():
    with pytest.raises(ValueError, match="2 prompts, 1 beliefs and 2 caches"):
        draw_replicas(PROMPTS, [{}], [{}, {}])
