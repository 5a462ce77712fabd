"""Stacked pictures: all of them are shown, none overlap, and slides can contain the result."""

import xml.etree.ElementTree as ElementTree

import pytest

from mini_vllm.block_pool import BlockPool
from mini_vllm.pictures import Slides, draw_pool, draw_queue, stack

SVG = "{http://www.w3.org/2000/svg}"


def test_each_picture_begins_where_the_one_above_it_ends():
    pool = BlockPool(8)
    strip, chain = draw_pool(pool), draw_queue(pool)
    both = stack(strip, chain)
    parts = ElementTree.fromstring(both.svg).findall(f"{SVG}svg")
    assert [float(part.get("y", "-1")) for part in parts] == [0.0, strip.height]
    assert (both.width, both.height) == (max(strip.width, chain.width), strip.height + chain.height)
    assert both.label == f"{strip.label}; {chain.label}"


def test_a_sentence_is_said_once():
    pool = BlockPool(8)
    chain = draw_queue(pool, look="The first is next.")
    assert stack(chain, chain).look == "The first is next."
    assert stack(draw_pool(pool, look="Look here."), chain).look == "Look here. The first is next."
    assert stack(chain, look="Look there.").look == "Look there."


def test_frames_of_a_slider_get_one_size():
    small, large = BlockPool(4), BlockPool(8)
    slides = Slides("Watch.")
    for pool in (small, large):
        slides.add("a pool", stack(draw_pool(pool), draw_queue(pool)))
    first = ElementTree.fromstring(slides._repr_mimebundle_()["image/svg+xml"])
    wanted = slides.frames[1]
    paper = first.find(f"{SVG}rect")
    assert paper is not None
    for element in (first, paper):
        assert (element.get("width"), element.get("height")) == (f"{wanted.width:g}", f"{wanted.height:g}")


def test_nothing_is_no_picture():
    with pytest.raises(ValueError, match="no pictures"):
        stack()
