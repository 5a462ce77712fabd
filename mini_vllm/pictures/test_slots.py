"""The picture of a slot mapping: every token is at its slot, and inputs that do not fit are rejected."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from mini_vllm.pictures import Picture, draw_slots

SVG = "{http://www.w3.org/2000/svg}"
#: Ten positions in blocks 7, 2 and 5 of 4 slots; and nine positions that share the first of these blocks.
ADA = [28, 29, 30, 31, 8, 9, 10, 11, 20, 21]
BEN = [28, 29, 30, 31, 12, 13, 14, 15, 4]


def titles(picture: Picture) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture.svg).iter(f"{SVG}title")]


def bands(picture: Picture) -> list[str]:
    return re.findall(r'<path [^>]*data-block="(\d+)"', picture.svg)


def test_each_slot_tells_whose_position_lies_there():
    told = titles(draw_slots({"ada": ADA, "ben": BEN}, 8, 4))
    assert "slot 21, block 5, offset 1: position 9 of ada" in told
    assert "slot 4, block 1, offset 0: position 8 of ben" in told
    assert "slot 22, block 5, offset 2: in none of these tables" in told


def test_a_slot_of_both_is_drawn_once_and_hatched():
    picture = draw_slots({"ada": ADA, "ben": BEN}, 8, 4)
    told = titles(picture)
    assert "slot 28, block 7, offset 0: position 0 of ada, position 0 of ben" in told
    assert sum(line.startswith("slot ") for line in told) == 32
    assert picture.svg.count("url(#mv-hatch)") == 4


def test_a_band_leads_from_each_piece_of_a_text_to_its_block():
    assert bands(draw_slots({"ada": ADA}, 8, 4)) == ["7", "2", "5"]
    assert bands(draw_slots({"ada": ADA, "ben": BEN}, 8, 4)) == ["7", "2", "5", "7", "3", "1"]


def test_words_and_labels():
    picture = draw_slots({"ada": [5]}, 2, 4, texts={"ada": ["once"]}, look="One word.")
    assert "position 0: once" in titles(picture)
    assert (picture.label, picture.look) == ("ada: 1 token in block 1", "One word.")


@pytest.mark.parametrize(("slots", "num_blocks", "said"), [
    ({}, 8, "0 requests"),
    ({"a": [32]}, 8, "slot 32 is not between 0 and 31"),
    ({"a": [-1]}, 8, "slot -1 is not between 0 and 31"),
    ({"a": []}, 8, "0 positions"),
    ({"a": list(range(25))}, 8, "25 positions, must be 1 to 24"),
    ({"a": [4]}, 13, "52 slots, must be 1 to 48"),
])
def test_what_has_no_room_is_refused_with_its_number(slots, num_blocks, said):
    with pytest.raises(ValueError, match=said):
        draw_slots(slots, num_blocks, 4)
