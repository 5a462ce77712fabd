"""Growing texts are broken between words on a terminal, and left unchanged elsewhere."""

import io

from mini_vllm.typewriter import Typewriter


def typed(*pieces, width=20, indent=0):
    screen = io.StringIO()
    page = Typewriter(screen.write, width, indent)
    for piece in pieces:
        page.write(piece)
    page.end()
    return screen.getvalue()


def test_lines_are_broken_between_words_and_end_without_a_space():
    assert typed("a poor woodcutter lived in the forest") == "a poor woodcutter\nlived in the forest\n"
    assert typed("a line of the width") == "a line of the width\n"
    assert typed("one\n\ntwo three") == "one\n\ntwo three\n"
    assert typed("Donaudampfschifffahrtsgesellschaft is long") == "Donaudampfschifffahrtsgesellschaft\nis long\n"


def test_it_is_the_same_however_the_text_comes():
    text = "a poor woodcutter lived\nwith his wife and two children near a large forest "
    assert typed(*text) == typed(text) == typed(text[:7], text[7:30], text[30:])


def test_an_indented_text_is_indented_in_every_line():
    lines = typed("a poor woodcutter lived in the\nforest", indent=2).splitlines()
    assert lines == ["  a poor woodcutter", "  lived in the", "  forest"]
