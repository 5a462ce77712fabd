"""Test headings, sections, links and docstrings on short texts."""

import pytest

from course_site.docstrings import dedented, with_drawings
from course_site.markdown import headings, sections, shifted, slug, turn_links

TEXT = """# Title

## One
```
## no heading
[no](link.md)
```
### Deeper
## Two
~~~~
```
## no heading either
~~~~
end
"""


def test_what_stands_in_code_is_no_heading():
    assert [(heading.level, heading.title) for heading in headings(TEXT)] == [
        (1, "Title"), (2, "One"), (3, "Deeper"), (2, "Two")]


def test_a_section_goes_to_the_next_heading_of_its_level():
    found = sections(TEXT)
    assert list(found) == ["One", "Two"]
    assert found["One"].startswith("## One\n```") and found["One"].endswith("### Deeper\n")
    assert found["Two"].endswith("~~~~\nend\n")


def test_all_headings_are_shifted_and_code_is_not():
    assert shifted(sections(TEXT)["One"], -1) == "# One\n```\n## no heading\n[no](link.md)\n```\n## Deeper\n"


@pytest.mark.parametrize("title, expected", [
    ("The course", "the-course"),
    ("1. A decoder repeats itself", "1-a-decoder-repeats-itself"),
    ("When is a copy made?", "when-is-a-copy-made"),
    ("`touch()` and [the pool](pool.md)", "touch-and-the-pool"),
    ("A – B", "a--b"),
])
def test_an_anchor_is_githubs(title, expected):
    assert slug(title) == expected


@pytest.mark.parametrize("text, expected", [
    ("[a](b.md)", "<a|b.md>"),
    ("[`touch`](b.py#L4).", "<`touch`|b.py#L4>."),
    ("[a [b]](c.md)", "<a [b]|c.md>"),
    ("![a](b.svg)", "!<a|b.svg>"),
    ("[![a](b.svg)](c.md)", "<!<a|b.svg>|c.md>"),
    ("`[a](b.md)` and ``x ` [a](b.md)``", "`[a](b.md)` and ``x ` [a](b.md)``"),
    ("```\n[a](b.md)\n```\n[c](d.md)\n", "```\n[a](b.md)\n```\n<c|d.md>\n"),
    ("[two\nlines](b.md)", "<two\nlines|b.md>"),
    ("a[0](x) is a link, `a`[0] and f(x)[1] are none", "a<0|x> is a link, `a`[0] and f(x)[1] are none"),
])
def test_links_are_found_and_code_is_left_alone(text, expected):
    assert turn_links(text, lambda link: f"{'!' if link.is_image else ''}<{link.text}|{link.target}>") == expected


def a_function():
    """Draw. All but the first line is a drawing.

        a ⇄ b
          c
    """


def test_a_drawing_is_kept_as_it_stands():
    assert with_drawings(dedented(a_function.__doc__)) == [
        "Draw. All but the first line is a drawing.", "", "::", "", "    a ⇄ b", "      c", ""]


def test_a_list_is_no_drawing_and_no_quotation():
    lines = ["Rules:", "", " 1. One", "    goes on", " 2. Two", "", "Text", "", "    code", "", "    more", "", "End"]
    assert with_drawings(lines) == [
        "Rules:", "", "1. One", "   goes on", "2. Two", "", "Text", "", "::", "", *lines[8:]]
