"""The pages of the site as Sphinx reads them: every text with its links converted and its toctree."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from course_site import api
from course_site.folding import answers_section, hints_section
from course_site.links import LinkTurner
from course_site.markdown import lines_of, sections, shifted
from course_site.pages import FRONT, README, Page, Site

#: ``{{README.md | decode-16 | ([\d.]+) times}}``: the first group of the pattern, in the row of that name.
_NUMBER = re.compile(r"\{\{(\S+) \| (\S+) \| (.+?)\}\}")
#: ``{{README.md}}``: the file's description of itself, the first paragraph under its title.
_PARAGRAPH = re.compile(r"\{\{(\S+)\}\}")


#: A link that shows a picture from another site. Our site must work without a network, so on its pages the link shows
#: the picture's alternative text instead.
_BADGE = re.compile(r"\[!\[([^\]]*)\]\(https?://[^)\s]+\)\]")


class StageError(Exception):
    """Some pages cannot be made. The message lists all problems, one per line."""


def stage(site: Site, folder: Path) -> None:
    """Write all pages into ``folder``, with the pictures that they show.

    Unchanged files are not touched, and files that are no longer a page are deleted. Raise StageError, and write
    nothing, if a link is broken.
    """
    links = LinkTurner(site)
    texts = {f"{page.name}{_suffix(page)}": text_of(site, page, links) for page in site.pages()}
    if links.problems:
        raise StageError("\n".join(links.problems))
    wanted = {folder / name for name in (*texts, *links.pictures)}
    for old in [path for path in folder.rglob("*") if path.is_file() and path not in wanted]:
        old.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in links.pictures:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(site.root / name, folder / name)


def text_of(site: Site, page: Page, links: LinkTurner) -> str:
    """Return the text of one page."""
    def read(name: str) -> str:
        return (site.root / name).read_text(encoding="utf-8")

    if page.module:
        return api.module_page(site.root, page.module)
    if page.name == "api/index":
        # Links in the map's own text are relative to the map; links to the modules are made here, relative to the API.
        return api.index_page(links.turned(read(api.MAP), api.MAP, page)) + _toctree(page, page.below)
    if page.section:
        return shifted(links.turned(sections(read(README))[page.section], README, page), -1)
    file = page.files[0]
    if file == FRONT:
        text = links.turned(filled(read(FRONT), site.root), FRONT, page)
        return text + "".join(_toctree(page, pages, caption) for caption, pages in site.groups.items())
    if file.endswith(".ipynb"):
        return _notebook(json.loads(read(file)), file, page, links)
    text = links.turned(read(file), file, page)
    for other in page.files[1:]:
        section = hints_section(read(other)) if other.endswith("hints.md") else answers_section(read(file), read(other))
        text = f"{text.rstrip()}\n\n{links.turned(section, other, page)}"
    return text + (_toctree(page, page.below) if page.below else "")


def filled(text: str, root: Path) -> str:
    """Put in the first paragraph of each file that the text names."""
    def paragraph(found: re.Match[str]) -> str:
        under_title = "".join(line for line, _ in lines_of((root / found[1]).read_text(encoding="utf-8"))).split("\n\n")
        return next(part for part in under_title if part[0].isalpha())

    return _PARAGRAPH.sub(paragraph, text)


def _notebook(notebook: dict[str, Any], file: str, page: Page, links: LinkTurner) -> str:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = links.turned(_BADGE.sub(r"[\1]", "".join(cell["source"])), file, page)
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def _suffix(page: Page) -> str:
    return ".ipynb" if page.files and page.files[0].endswith(".ipynb") else ".md"


def _toctree(page: Page, pages: tuple[Page, ...], caption: str = "") -> str:
    names = [posixpath.relpath(each.name, posixpath.dirname(page.name) or ".") for each in pages]
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *names, "```", ""])
