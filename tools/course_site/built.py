"""Reads the built site and follows every internal link: both the page and the anchor must exist."""

from __future__ import annotations

import posixpath
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ATTRIBUTES = ("href", "src", "poster", "xlink:href")


class Html(HTMLParser):
    """The parts of a page that matter for links: its ids, and the targets of its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        #: Target → whether it is fetched with the page, as pictures, scripts and styles are.
        self.targets: dict[str, bool] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is not None and (name == "id" or name == "name" and tag == "a"):
                self.places.add(value)
            elif value is not None and name in _ATTRIBUTES:
                self.targets[value] = self.targets.get(value, False) or tag != "a"


def problems_of(site: Path) -> list[str]:
    """Return a line for every broken link. External links are not fetched; only their form is checked."""
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    pages = {name: Html((site / name).read_text(encoding="utf-8")) for name in sorted(files)
             if name.endswith(".html")}
    found = [(name, target, _problem(target, is_loaded, name, pages, files)) for name, page in pages.items()
             for target, is_loaded in page.targets.items()]
    return [f"{name}: {target[:100]}: {problem}" for name, target, problem in found if problem]


def _problem(target: str, is_loaded: bool, page: str, pages: dict[str, Html], files: set[str]) -> str | None:
    parts = urlsplit(target)
    if parts.scheme in ("data", "mailto"):
        return None
    if parts.scheme or parts.netloc:
        if is_loaded:
            return "the page would load this from another site, but it must work without a network"
        is_right = parts.scheme == "https" and "." in parts.netloc and not any(map(str.isspace, target))
        return None if is_right else "an external link must have the form https://host/…"
    path, place = unquote(parts.path), unquote(parts.fragment)
    there = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    there = there if there in files else posixpath.normpath(posixpath.join(there, "index.html"))
    if there not in files:
        return "there is no such file on the site"
    if place and there in pages and place not in pages[there].places:
        return f"that page has no place #{place}"
    return None
