"""How relative links are converted. They are written for readers of the repository, where they stay unchanged.

    ../../README.md#blocks          the page that shows that file, and the place on it
    ../mini_vllm/scheduler.py#L40   a page with the source, at that line (``source:…``, see extension.py)
    ../mini_vllm/models             the API page of the package
    solution.py                     plain text: the site contains no solution
    https://…                       unchanged
"""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

from course_site.api import PACKAGE, SOURCE
from course_site.markdown import Link, headings, sections, slug, turn_links
from course_site.pages import README, Page, Site

#: The files of a lab's folder that may be shown. Solutions and wrong solutions are only for those who ask (`course
#: solution`).
_SHOWN_OF_A_LAB = ("starter.py", "test_lab.py", "lab.json")
_IN_A_LAB = re.compile(r"phase-[^/]*/labs/[^/]*/(.*)")
_IMAGES = (".svg", ".png", ".jpg", ".gif", ".webp")
#: Used in place of a target: the file does not exist; or it exists but is not on the site, and the link becomes plain
#: text.
_NOWHERE, _NOT_SHOWN = "nowhere", "not shown"
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z+.-]*:")


class LinkTurner:
    """Converts the links of pages; collects the pictures that they show, and the problems."""

    def __init__(self, site: Site) -> None:
        self.root = site.root
        self._pages = {name: page for page in site.pages() for name in page.files if not page.section}
        self._modules = {page.module: page for page in site.pages() if page.module}
        #: Anchor of the README → the page that contains the section.
        self._readme_pages: dict[str, Page] = {}
        for page in site.pages():
            if page.section:
                text = sections((site.root / README).read_text(encoding="utf-8"))[page.section]
                self._readme_pages.update({slug(heading.title): page for heading in headings(text)})
        self.pictures: set[str] = set()
        self.problems: list[str] = []

    def turned(self, text: str, file: str, page: Page) -> str:
        """Return the text of ``file`` with its links converted for ``page``."""
        return turn_links(text, lambda link: self._turned(link, file, page))

    def _turned(self, link: Link, file: str, page: Page) -> str:
        if _SCHEME.match(link.target) or link.target.startswith("#") and file != README:
            return str(link)
        path, _, anchor = link.target.partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(file), unquote(path))) if path else file
        target = self._target(name, anchor, page)
        if target == _NOWHERE:
            self.problems.append(f"{file}: the link to {link.target} leads nowhere")
        if target in (_NOWHERE, _NOT_SHOWN):
            return link.text
        return str(Link(link.text, target, link.title, link.is_image))

    def _target(self, name: str, anchor: str, page: Page) -> str:
        """Return the target on ``page`` of a link to ``name``, which is relative to the repository."""
        path = self.root / name
        if name.startswith("..") or not path.exists():
            return _NOWHERE
        if path.is_dir() and (path / "README.md").is_file():
            name = posixpath.join(name, "README.md")
        place = f"#{anchor}" if anchor else ""
        if name == README:
            return self._readme_target(anchor, page)
        if name in self._pages:
            there = self._pages[name]
            stem, suffix = posixpath.splitext(posixpath.basename(name))
            if name != there.files[0]:  # hints.md and answers.md are sections of their lab's page
                place = place or f"#{stem}"
            return _from(page, there.name + suffix) + place
        if name.endswith(_IMAGES):
            self.pictures.add(name)
            return _from(page, name)
        room = re.fullmatch(rf"{PACKAGE}/(\w+)(/__init__\.py)?", name)
        if room and room[1] in self._modules:
            return _from(page, f"api/{room[1]}.md")
        lab_file = _IN_A_LAB.fullmatch(name)
        if path.is_dir() or lab_file and lab_file[1] not in _SHOWN_OF_A_LAB:
            return _NOT_SHOWN
        return f"{SOURCE}{name}{place}"

    def _readme_target(self, anchor: str, page: Page) -> str:
        if not anchor:
            return _from(page, "index.md")
        if anchor not in self._readme_pages:
            return _NOWHERE
        there = self._readme_pages[anchor]
        return _from(page, f"{there.name}.md") + ("" if anchor == slug(there.section) else f"#{anchor}")


def _from(page: Page, name: str) -> str:
    return posixpath.relpath(name, posixpath.dirname(page.name) or ".")
