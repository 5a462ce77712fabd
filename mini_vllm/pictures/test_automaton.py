"""The picture of an automaton shows the states and edges that the automaton has, the current state and its share."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.pictures import draw_automaton
from mini_vllm.pictures.automaton import MAX_COLUMNS, MAX_DRAWN
from mini_vllm.pictures.automaton_layout import OUTER
from mini_vllm.pictures.character_graph import CharacterGraph
from mini_vllm.structured.automaton import ByteAutomaton
from mini_vllm.structured.grammar import RegexGrammar
from mini_vllm.structured.regex_tree import parse_regex
from mini_vllm.structured.vocabulary import Vocabulary

DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(256)), b"12", b"20", b"2-"], [0])


def grammar(pattern):
    return RegexGrammar(parse_regex(pattern), VOCABULARY)


def graph(pattern):
    return CharacterGraph(ByteAutomaton(parse_regex(pattern)))


def shapes(picture, name):
    return list(ElementTree.fromstring(picture.svg).iter(f"{{http://www.w3.org/2000/svg}}{name}"))


def states(picture):
    """Map each drawn state to its kind: accepting, current, both, or None."""
    return {int(shape.get("data-state")): shape.get("data-kind") for shape in shapes(picture, "circle")
            if shape.get("data-state")}


def edges(picture):
    return {(int(shape.get("data-from")), int(shape.get("data-to"))): shape.text for shape in shapes(picture, "text")
            if shape.get("data-from")}


def part(picture, name):
    return [shape.text for shape in shapes(picture, "text") if shape.get("data-part") == name]


def test_states_edges_and_the_current_state_are_drawn():
    picture = draw_automaton(grammar("ab|ac*"), 1)
    assert states(picture) == {0: None, 1: "accepting current", 2: "accepting", 3: "accepting"}
    assert edges(picture) == {(0, 1): "a", (1, 2): "b", (1, 3): "c", (3, 3): "c"}
    assert part(picture, "title") == ["4 states"]
    assert part(picture, "share") == ["3 of 260 tokens"]  # b, c and the end of the text
    assert picture.label == "An automaton with 4 states; 3 of 260 tokens may come next in state 1"


@pytest.mark.parametrize("pattern, labels", [
    ("[0-9]", {"0–9"}), ("é", {"é"}), (" ", {"␣"}), (".", {"any but ↵"}),
    ("(.|\n)", {"any character"}), ('[^"\\\\]', {'any but ", \\'}), ("[acegi]", {"a, c, e, …"}), ("[é-ü]", {"é–ü"}),
    ("[é-\U0010ffff]", {"é…"}), (r"\x00", {"U+0000"}), ("a|é|😀", {"a, é, 😀"}),
])
def test_labels_are_characters(pattern, labels):
    assert set(edges(draw_automaton(grammar(pattern))).values()) == labels


@given(st.sampled_from(["[^a]b", "é|a|😀|éx", "(.é)*", r"[\w-]+é?", "[à-ÿ]{2}|x", DATE]),
       st.text("aéxb😀ß1-", max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_graph_leads_where_the_automaton_does(pattern, text):
    made = graph(pattern)
    by_bytes = by_characters = 0
    for character in text:
        for byte in character.encode():
            by_bytes = made.automaton.next_state(by_bytes, byte)
        wanted = [edge for edge in made.edges_from(by_characters) if edge.target == by_bytes]
        assert len(wanted) == (by_bytes >= 0)
        if by_bytes < 0:
            break
        assert not made.is_inside(by_bytes) and wanted[0] in made.edges_to(by_bytes)
        by_characters = by_bytes


def test_a_state_inside_of_a_character_is_drawn_only_if_it_is_the_current_one():
    made = grammar("é|a")
    inside = made.automaton.next_state(0, 0xC3)
    assert inside not in states(draw_automaton(made, 0))
    picture = draw_automaton(made, inside)
    assert states(picture)[inside] == "current"
    assert edges(picture) == {(0, 1): "a, é", (0, inside): "byte C3", (inside, 1): "byte A9"}
    assert part(picture, "title") == ["2 states"] and part(picture, "share") == ["1 of 260 tokens"]


def test_of_a_large_automaton_the_states_near_the_current_one_are_drawn():
    made = grammar("[ab]{1000}")
    picture = draw_automaton(made, 500)
    drawn = states(picture)
    assert len(drawn) == MAX_COLUMNS and drawn[500] == "current" and 0 not in drawn
    assert max(drawn) - min(drawn) == MAX_COLUMNS - 1
    assert part(picture, "title") == [f"{MAX_COLUMNS} of 1001 states"]
    wide = draw_automaton(grammar("|".join(f"{first}{second}x" for first in "abcdefgh" for second in "0123")), 0)
    assert len(states(wide)) <= MAX_DRAWN and wide.height < 800


@pytest.mark.parametrize("pattern", [DATE, "(ab|cd|ef|gh|ij)*x?", "", "[ab]*a[ab]{5}"])
def test_everything_is_inside_of_the_picture_and_no_note_covers_a_state(pattern):
    made = grammar(pattern)
    for state in range(0, made.automaton.num_states, 7):
        picture = draw_automaton(made, state)
        shift = float(re.search(r"translate\(0 ([\d.]+)\)", picture.svg)[1])
        places = [(float(shape.get("cx")), float(shape.get("cy")) + shift) for shape in shapes(picture, "circle")]
        assert all(OUTER < x < picture.width - OUTER and OUTER < y < picture.height - OUTER for x, y in places)
        note = next(shape for shape in shapes(picture, "text") if shape.get("data-part") == "share")
        x, y = float(note.get("x")), float(note.get("y")) + shift
        assert all(abs(y - 4 - its_y) > OUTER or abs(x - its_x) > OUTER + 20 for its_x, its_y in places)


def test_an_unknown_state_is_refused():
    with pytest.raises(ValueError, match="state is 2, must be from 0 to 1"):
        draw_automaton(grammar("a"), 2)
