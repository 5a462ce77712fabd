"""The Markdown that the site needs: headings, sections and links, ignoring code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*$")
#: A piece of code, which is left unchanged, or a link or an image.
_LINK = re.compile(
    r"(?P<code>(?P<ticks>`+)(?:(?!\n\n).)+?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<image>!?)\[(?P<text>(?:[^\[\]\\]|\\.|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)(?P<title>\s+\"[^\"]*\")?\)",
    re.DOTALL)


@dataclass(frozen=True)
class Link:
    """``[text](target "title")``, with an exclamation mark in front if it is an image."""

    text: str
    target: str
    title: str = ""
    is_image: bool = False

    def __str__(self) -> str:
        return f"{'!' if self.is_image else ''}[{self.text}]({self.target}{self.title})"


@dataclass(frozen=True)
class Heading:
    #: The line of the heading, counted from 0.
    line: int
    level: int
    title: str


def lines_of(text: str) -> Iterator[tuple[str, bool]]:
    """Yield every line with its line ending, and whether it belongs to a fenced code block."""
    fence = ""
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if fence:
            is_end = mark is not None and mark[1].startswith(fence) and not line.strip().strip(mark[1][0])
            yield line, True
            fence = "" if is_end else fence
        else:
            fence = mark[1] if mark else ""
            yield line, bool(fence)


def headings(text: str) -> list[Heading]:
    found = []
    for number, (line, is_code) in enumerate(lines_of(text)):
        mark = None if is_code else _HEADING.match(line)
        if mark:
            found.append(Heading(number, len(mark[1]), mark[2]))
    return found


def slug(title: str) -> str:
    """Return a heading's anchor, by the rule that GitHub and MyST share."""
    plain = re.sub(r"[^\w\- ]", "", _plain(title).lower())
    return plain.replace(" ", "-")


def _plain(title: str) -> str:
    return _LINK.sub(lambda found: found["code"] or found["text"], title)


def sections(text: str, level: int = 2) -> dict[str, str]:
    """Return the sections of ``level`` by title.

    A section includes its heading and ends before the next heading of that level or above.
    """
    lines = [line for line, _ in lines_of(text)]
    starts = [heading for heading in headings(text) if heading.level <= level]
    ends = [heading.line for heading in starts[1:]] + [len(lines)]
    return {heading.title: "".join(lines[heading.line:end]).rstrip() + "\n"
            for heading, end in zip(starts, ends) if heading.level == level}


def shifted(text: str, levels: int) -> str:
    """Return the text with all its headings ``levels`` deeper, or higher if negative."""
    lines = [line for line, _ in lines_of(text)]
    for heading in headings(text):
        lines[heading.line] = "#" * max(1, heading.level + levels) + lines[heading.line].lstrip("#")
    return "".join(lines)


def turn_links(text: str, turned: Callable[[Link], str]) -> str:
    """Replace every link and image by the result of ``turned``. Leave code unchanged."""

    def replacement(found: re.Match[str]) -> str:
        if found["code"]:
            return found["code"]
        inner = turn_links(found["text"], turned)  # an image may be inside a link
        return turned(Link(inner, found["target"], found["title"] or "", bool(found["image"])))

    pieces: list[tuple[str, bool]] = []
    for line, is_code in lines_of(text):
        if pieces and pieces[-1][1] == is_code:
            pieces[-1] = (pieces[-1][0] + line, is_code)
        else:
            pieces.append((line, is_code))
    return "".join(piece if is_code else _LINK.sub(replacement, piece) for piece, is_code in pieces)
