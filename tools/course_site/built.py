"""Reads the built site and follows every internal link: both the page and the anchor must exist."""

from __future__ import annotations

import posixpath
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ATTRIBUTES = ("href", "src", "poster", "xlink:href")


@dataclass
class Html:
    """The parts of a page that matter for links: its ids, the targets of its links, and the files that it loads."""

    places: set[str] = field(default_factory=set)
    targets: list[str] = field(default_factory=list)
    #: The targets that are fetched with the page: pictures, scripts, styles.
    loaded: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Html()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is not None and (name == "id" or name == "name" and tag == "a"):
                self.page.places.add(value)
            elif value is not None and name in _ATTRIBUTES:
                self.page.targets.append(value)
                if tag != "a":
                    self.page.loaded.add(value)


def read_html(text: str) -> Html:
    reader = _Reader()
    reader.feed(text)
    return reader.page


def problems_of(site: Path) -> list[str]:
    """Return a line for every broken link. External links are not fetched; only their form is checked."""
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    pages = {name: read_html((site / name).read_text(encoding="utf-8")) for name in sorted(files)
             if name.endswith(".html")}
    problems = []
    for name, page in pages.items():
        for target in dict.fromkeys(page.targets):
            problem = _problem(target, name, pages, files)
            if problem:
                problems.append(f"{name}: {target[:100]}: {problem}")
    return problems


def _problem(target: str, page: str, pages: dict[str, Html], files: set[str]) -> str | None:
    try:
        parts = urlsplit(target)
    except ValueError as error:
        return str(error)
    if parts.scheme in ("data", "mailto"):
        return None
    if parts.scheme or parts.netloc:
        if target in pages[page].loaded:
            return "the page would load this from another site, but it must work without a network"
        is_right = parts.scheme == "https" and "." in parts.netloc and not any(map(str.isspace, target))
        return None if is_right else "an external link must have the form https://host/…"
    path = unquote(parts.path)
    there = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    if there not in files:
        there = posixpath.normpath(posixpath.join(there, "index.html"))
    if there not in files:
        return "there is no such file on the site"
    place = unquote(parts.fragment)
    if place and there in pages and place not in pages[there].places:
        return f"that page has no place #{place}"
    return None


if __name__ == "__main__":
    found = problems_of(Path(sys.argv[1]))
    print(*found, sep="\n")
    sys.exit(bool(found))
