"""Stacked pictures: all of them are shown, none overlap, and slides can contain the result."""

import xml.etree.ElementTree as ElementTree

import pytest

from mini_vllm.block_pool import BlockPool
from mini_vllm.pictures import draw_pool, draw_queue, stack

SVG = "{http://www.w3.org/2000/svg}"


def test_each_picture_begins_where_the_one_above_it_ends():
    pool = BlockPool(8)
    strip, chain = draw_pool(pool), draw_queue(pool)
    both = stack(strip, chain)
    parts = ElementTree.fromstring(both.svg).findall(f"{SVG}svg")
    assert [float(part.get("y", "-1")) for part in parts] == [0.0, strip.height]
    assert (both.width, both.height) == (max(strip.width, chain.width), strip.height + chain.height)
    assert both.label == f"{strip.label}; {chain.label}"


def test_nothing_is_no_picture():
    with pytest.raises(ValueError, match="no pictures"):
        stack()
