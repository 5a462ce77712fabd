"""Extends Sphinx with pages that show source, and with drawings in docstrings."""

from __future__ import annotations

import inspect
import posixpath
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

from course_site.docstrings import dedented, with_drawings
from course_site.links import SOURCE

ROOT = Path(__file__).resolve().parents[2]


def lead_to_sources(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Replace each ``source:mini_vllm/scheduler.py`` by a link to the page with that source."""
    for link in doctree.findall(nodes.reference):
        if link.get("refuri", "").startswith(SOURCE):
            file = link["refuri"].removeprefix(SOURCE)
            link["refuri"] = posixpath.relpath(f"source/{file}.html", posixpath.dirname(page) or ".")
            link["internal"] = True


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a source page for every file that some page links to."""
    uris = (link.get("refuri", "") for page in app.env.found_docs
            for link in app.env.get_doctree(page).findall(nodes.reference))
    for file in sorted({uri.removeprefix(SOURCE) for uri in uris if uri.startswith(SOURCE)}):
        try:
            lexer = get_lexer_for_filename(file, stripnl=False)
        except ClassNotFound:
            lexer = TextLexer(stripnl=False)
        text = highlight((ROOT / file).read_text(encoding="utf-8"), lexer, HtmlFormatter())
        body = f"<h1>{escape(posixpath.basename(file))}</h1><p><code>{escape(file)}</code></p>{text}"
        yield f"source/{file}", {"title": file, "body": body}, "page.html"


def keep_drawings(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep drawings in docstrings; see docstrings.py."""
    doc = getattr(obj, "__doc__", None) or ""
    if inspect.cleandoc(doc) == "\n".join(lines).strip():  # differs for an attribute, whose text is a comment
        lines[:] = dedented(doc)
    lines[:] = with_drawings(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", lead_to_sources)
    app.connect("html-collect-pages", source_pages)
    app.connect("autodoc-process-docstring", keep_drawings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
