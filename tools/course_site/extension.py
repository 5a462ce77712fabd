"""Extends Sphinx with pages that show source and line anchors, and with drawings in docstrings."""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from line_links import definitions
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

from course_site.api import PACKAGE, SOURCE
from course_site.docstrings import dedented, with_drawings

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = "source/"


def page_name(file: str) -> str:
    """Return the name of the page with the source of a file."""
    return f"{_SOURCES}{file}"


def lead_to_sources(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Replace each ``source:mini_vllm/scheduler.py#L40`` by a link to the page with that source."""
    for link in doctree.findall(nodes.reference):
        if link.get("refuri", "").startswith(SOURCE):
            file, _, line = link["refuri"].removeprefix(SOURCE).partition("#")
            there = posixpath.relpath(f"{page_name(file)}.html", posixpath.dirname(page) or ".")
            link["refuri"] = f"{there}#{line}" if line else there
            link["internal"] = True


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a source page for every file that some page links to."""
    uris = (link.get("refuri", "") for page in app.env.found_docs
            for link in app.env.get_doctree(page).findall(nodes.reference))
    for file in sorted({uri.removeprefix(SOURCE).partition("#")[0] for uri in uris if uri.startswith(SOURCE)}):
        name = page_name(file)
        yield name, {"title": file, "body": _source_body(app, file, name)}, "page.html"


def _source_body(app: Sphinx, file: str, name: str) -> str:
    text = (ROOT / file).read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(file, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    lines = highlight(text, lexer, HtmlFormatter(nowrap=True)).splitlines()
    numbered = "\n".join(f'<span class="line" id="L{n}"><a href="#L{n}" data-line="{n}"></a>{line}</span>'
                         for n, line in enumerate(lines, start=1))
    module = re.fullmatch(rf"{PACKAGE}/(\w+)(?:/\w+)?\.py", file)
    api = f"api/{module[1]}" if module else ""
    link = (f'; <a href="{app.builder.get_relative_uri(name, api)}">what its docstrings say</a>'
            if api in app.env.found_docs else "")
    return (f"<h1>{escape(posixpath.basename(file))}</h1><p><code>{escape(file)}</code>{link}</p>"
            f'<div class="highlight source"><pre>{numbered}</pre></div>')


def source_of(domain: str, info: dict[str, str]) -> str | None:
    """Return the source link of a documented object, for ``sphinx.ext.linkcode``; None if it is not found."""
    file = f"{info['module'].replace('.', '/')}.py"
    if not (ROOT / file).is_file():
        return None
    line = definitions((ROOT / file).read_text(encoding="utf-8")).get(info["fullname"])
    return f"{SOURCE}{file}#L{line}" if line else None


def keep_drawings(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep drawings in docstrings; see docstrings.py."""
    doc = getattr(obj, "__doc__", None) or ""
    if inspect.cleandoc(doc) == "\n".join(lines).strip():  # differs for an attribute, whose text is a comment
        lines[:] = dedented(doc)
    lines[:] = with_drawings(lines)


def share_navigation(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Render the sidebar of source pages once per folder depth.

    Source pages are in no toctree, so all pages at the same depth have the same sidebar.
    """
    if page.startswith(_SOURCES):
        toctree, depth = context["toctree"], page.count("/")
        navigation: dict[int, str] = app.env.__dict__.setdefault("_source_navigation", {})

        def shared(**options: object) -> str:
            if depth not in navigation:
                navigation[depth] = toctree(**options)
            return navigation[depth]

        context["toctree"] = shared


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", lead_to_sources)
    app.connect("html-collect-pages", source_pages)
    app.connect("html-page-context", share_navigation, priority=400)  # before furo's handler
    app.connect("autodoc-process-docstring", keep_drawings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
