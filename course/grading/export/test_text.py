"""Whatever a student's text contains, it remains text in every format."""

import csv
import io
import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from course.core.scrub_paths import without_paths
from course.grading.export import html, markdown
from course.grading.export.escape import (
    MAX_CHARACTERS,
    MAX_LINE_CHARACTERS,
    MAX_LINES,
    clean,
    csv_table,
    csv_text,
    markdown_block,
    one_line,
)
from course.grading.export.page import (
    Heading,
    Items,
    Page,
    Paragraph,
    Table,
    Verbatim,
    bad,
    code,
    good,
    strong,
)

NASTY = ("<script>alert(1)</script>", "]]>", "<!--", "&amp;", "`", "```", "~~~", "|", "[x](http://evil)",
         "![x](http://e)", "http://evil", "www.evil.com", "\x1b[31m", "\x1b]8;;http://evil\x07", "\x9b2J", "\r\n",
         "\u2028", "\u202e", "\ud800", "\x00", "=1+1", "+", "-", "@SUM(1)", "\t", ";", '"', "'", ",", "# ", "1. ", "- ",
         "> ", "    ", "***", "___", "</pre>", "\n```\n", "\\", "$x$", "\ufffe", "\n\n", "==", "---", "a")
texts = st.one_of(st.lists(st.sampled_from(NASTY), max_size=8).map("".join),
                  st.text(st.characters(exclude_categories=()), max_size=40))
quick = settings(max_examples=40)


@quick
@given(texts)
def test_cleaned_text_has_no_control_characters(text):
    for cleaned in (clean(text), one_line(text)):
        assert not [letter for letter in cleaned if ord(letter) < 32 and letter not in "\t\n"]
        assert not set(cleaned) & set("\x7f\x1b\x9b\u202e\u2066\u200f\ufeff\ufffe")
        json.dumps(cleaned, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded as UTF-8
    assert "\n" not in one_line(text)


@pytest.mark.parametrize("text, cleaned", [
    ("\x1b[1;31mred\x1b[0m", "red"), ("\x1b]0;title\x07after", "after"), ("\x1b]8;;http://evil\x1b\\link", "link"),
    ("\x9b31mred", "red"), ("a\x1bcb", "ab"),
    ("\x1b]0;never ended\nnext line", "\nnext line"), ("a\r\nb\rc", "a\nb\nc"),
    ("\u202egnp.exe", "gnp.exe"), ("\ud800", "\ufffd"), ("\x1b", ""), ("naïve – ✓ 漢字 \t.", "naïve – ✓ 漢字 \t."),
])
def test_terminal_sequences_go_as_a_whole(text, cleaned):
    assert clean(text) == cleaned


def test_what_is_cut_is_counted():
    assert clean("x" * (MAX_CHARACTERS + 1_234)) == "x" * MAX_CHARACTERS + "\n… and 1,234 more characters"
    assert clean("\n".join("abc" for _ in range(MAX_LINES + 7))).endswith("abc\n… and 7 more lines")
    assert one_line("y" * (MAX_LINE_CHARACTERS + 5)) == "y" * MAX_LINE_CHARACTERS + "… and 5 more characters"
    assert clean("z" * 1_000_000).endswith(f"… and {1_000_000 - MAX_CHARACTERS:,} more characters")
    assert clean("x" * MAX_CHARACTERS) == "x" * MAX_CHARACTERS


@pytest.mark.parametrize("text, seen", [
    ("FileNotFoundError: '/home/anna/course/solution.py'", "FileNotFoundError: '…/solution.py'"),
    ("in /tmp/x/y", "in …/y"), ("3/4 of a/b/c", "3/4 of a/b/c"), ("https://example.org/a/b", "https://example.org/a/b"),
    ("/etc", "/etc"), ("starter.py:88", "starter.py:88"), ("File \"/opt/a b/c.py\"", "File \"…/a b/c.py\""),
])
def test_absolute_paths_lose_their_folders(text, seen):
    assert without_paths(text) == seen


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", '"=1',
                                  "x;=cmd()", 'x; "=1'])
def test_a_cell_is_no_formula(cell):
    for part in csv_text(cell).split(";"):
        assert part.lstrip(' "')[:1] not in tuple("=+-@＝")


@quick
@given(st.lists(st.lists(texts, min_size=3, max_size=3), min_size=1, max_size=4))
def test_a_table_reads_back_with_the_same_rows_and_columns(rows):
    read = list(csv.reader(io.StringIO(csv_table([["a", "b", "c"], *rows])), strict=True))
    assert [len(row) for row in read] == [3] * (1 + len(rows))
    assert all(cell.lstrip(' "')[:1] not in tuple("=+-@") or not cell for row in read for cell in row)


def page_with(text):
    """Build a page with the text in every possible place."""
    page = Page(text)
    page.add(Heading(2, (text, " ", strong(text), " ", code(text))), Paragraph((text, " ", good(text), bad(text))),
             Paragraph((text,), "note"), Items(((text,), ("x ", code(text)))), Verbatim(text, text),
             Table(("a", "b"), (((text,), (code(text),)),)))
    return page


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, tuple(attrs)))

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}", ()))

    def handle_comment(self, data):
        self.tags.append(("comment", ()))


@quick
@given(texts)
@example("".join(NASTY))
def test_html_has_the_same_tags_whatever_the_text(text):
    assert Tags(html.render(page_with(clean(text) + "x"))).tags == Tags(html.render(page_with("x"))).tags


def shape(text):
    """Return the elements that a Markdown parser finds in the text, without the words."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    inside = [child for token in tokens for child in token.children or []]
    return ([token.type for token in tokens],
            [child.type for child in inside if child.type not in ("text", "code_inline", "text_special")])


@quick
@given(texts)
@example("".join(NASTY))
@example("1) a")
@example("[a]: http://evil")
def test_markdown_has_the_same_elements_whatever_the_text(text):
    assert shape(markdown.render(page_with(clean(text) + "x"))) == shape(markdown.render(page_with("x")))


@given(st.text("`~a\n", max_size=30))
@example("```\nafter")
@example("a\n`````\n~~~")
def test_a_fence_is_longer_than_what_it_holds(text):
    (token,) = MarkdownIt().parse(markdown_block(text))
    assert token.type == "fence" and token.content == text + "\n"


@quick
@given(texts)
def test_xml_holds_cleaned_text(text):
    element = ElementTree.Element("a", b=one_line(text))
    element.text = clean(text)
    read = ElementTree.fromstring(ElementTree.tostring(element, encoding="utf-8"))
    assert (read.text or "") == clean(text) and read.get("b") == one_line(text)
