"""How relative links are converted. They are written for readers of the repository, where they stay unchanged.

    ../../README.md#blocks          the page that shows that file, and the place on it
    ../mini_vllm/scheduler.py       a page with the source (``source:…``, see extension.py)
    ../mini_vllm/models             the API page of the package
    solution.py                     plain text: the site contains no solution
    https://…                       unchanged
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from urllib.parse import unquote

from course_site.pages import PACKAGE, Page, Site

#: The scheme of a link to a page with the source of a file.
SOURCE = "source:"
#: The files of a lab's folder that may be shown. Solutions and wrong solutions are only for those who ask (`course
#: solution`).
_SHOWN_OF_A_LAB = ("starter.py", "test_lab.py", "lab.json")
_IN_A_LAB = re.compile(r"phase-[^/]*/labs/[^/]*/(.*)")
_IMAGES = (".svg", ".png", ".jpg", ".gif", ".webp")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z+.-]*:")
#: A fenced block or a piece of code, which are left unchanged, or a link or an image.
_LINK = re.compile(
    r"(?P<code>^[ ]*(?P<fence>`{3,}|~{3,}).*?(?:^[ ]*(?P=fence)[`~]*[ ]*$|\Z)"
    r"|(?P<ticks>`+)(?:(?!\n\n).)+?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<before>!?\[)(?P<text>(?:[^\[\]\\]|\\.|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)(?P<title>\s+\"[^\"]*\")?\)",
    re.DOTALL | re.MULTILINE)


class LinkTurner:
    """Converts the links of pages; collects the pictures that they show, and the problems."""

    def __init__(self, site: Site) -> None:
        self.root = site.root
        self._pages = {name: page for page in site.pages() for name in page.files}
        self._modules = {page.module for page in site.pages() if page.module}
        self.pictures: set[str] = set()
        self.problems: list[str] = []

    def turned(self, text: str, file: str, page: Page) -> str:
        """Return the text of ``file`` with its links converted for ``page``."""
        return turn_links(text, lambda target: self._turned(target, file, page))

    def _turned(self, link: str, file: str, page: Page) -> str | None:
        path, _, anchor = link.partition("#")
        if _SCHEME.match(link) or not path:
            return link
        name = posixpath.normpath(posixpath.join(posixpath.dirname(file), unquote(path)))
        if name.startswith("..") or not (self.root / name).exists():
            self.problems.append(f"{file}: the link to {link} leads nowhere")
            return None
        return self._target(name, f"#{anchor}" if anchor else "", page)

    def _target(self, name: str, place: str, page: Page) -> str | None:
        """Return the target on ``page`` of a link to ``name``, or None if ``name`` is not on the site.

        ``name`` is relative to the repository.
        """
        path = self.root / name
        if path.is_dir() and (path / "README.md").is_file():
            name = posixpath.join(name, "README.md")
        if name in self._pages:
            there = self._pages[name]
            stem, suffix = posixpath.splitext(posixpath.basename(name))
            if name != there.files[0]:  # hints.md and answers.md are sections of their lab's page
                place = place or f"#{stem}"
            return page.path_to(there.name + suffix) + place
        if name.endswith(_IMAGES):
            self.pictures.add(name)
            return page.path_to(name)
        room = re.fullmatch(rf"{PACKAGE}/(\w+)(/__init__\.py)?", name)
        if room and room[1] in self._modules:
            return page.path_to(f"api/{room[1]}.md")
        lab_file = _IN_A_LAB.fullmatch(name)
        if path.is_dir() or lab_file and lab_file[1] not in _SHOWN_OF_A_LAB:
            return None
        return f"{SOURCE}{name}"


def turn_links(text: str, turned: Callable[[str], str | None]) -> str:
    """Replace the target of every link and image by the result of ``turned``; if that is None, keep only the text.

    Leave code unchanged.
    """
    def replacement(found: re.Match[str]) -> str:
        if found["code"]:
            return found["code"]
        inner, target = turn_links(found["text"], turned), turned(found["target"])  # an image may be inside a link
        return inner if target is None else f"{found['before']}{inner}]({target}{found['title'] or ''})"

    return _LINK.sub(replacement, text)
