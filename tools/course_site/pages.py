"""Which files are pages of the site, what each page is called, and the order of the pages.

    README.md                      every section a page: the-course, for-students, measured, …
    notebooks/00-tour.ipynb        notebooks/00-tour
    phase-02-…/README.md           phase-02-…/index
    notebooks/02-….ipynb             below it, before the labs
    phase-02-…/labs/lab-01-…/        phase-02-…/lab-01-…: README, hints and answers on one page
    docs/engine.md                 docs/engine, and the API, made from the modules that it names; docs/serving, …

Everything is derived from the folders: a new lab, notebook or README section gets its place without a change here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course_site import api
from course_site.markdown import sections, slug

#: The frame of the front page, the only text written for the site alone.
FRONT = "docs/site/index.md"
README = "README.md"
#: The place of each README section. A section that is not named here goes to the end of "Start".
ENGINE_SECTIONS = ("the-engine",)
ENGINE_DOCS = ("docs/engine", "docs/using", "docs/serving", "docs/gpu", "docs/scaling", "docs/benchmarks")
MAKING_SECTIONS = ("for-instructors", "layout")
START_SECTIONS = ("two-commands", "the-course", "for-students")
#: Folders without pages: built, or not part of the project.
_OUTSIDE = re.compile(r"(^|/)(\..*|build|dist|__pycache__|[^/]*\.egg-info)(/|$)")


@dataclass(frozen=True)
class Page:
    """A page of the site: its name, the files whose text it shows, and the pages below it."""

    name: str
    #: Relative to the repository.
    files: tuple[str, ...] = ()
    #: The section of the README, or the module of the engine, that the page shows.
    section: str = ""
    module: str = ""
    below: tuple[Page, ...] = ()

    def walk(self) -> Iterator[Page]:
        """Yield this page and all pages below it, in reading order."""
        yield self
        for page in self.below:
            yield from page.walk()


@dataclass(frozen=True)
class Site:
    root: Path
    #: Caption → pages, as the sidebar shows them.
    groups: dict[str, tuple[Page, ...]]

    def pages(self) -> list[Page]:
        """Return all pages in reading order, starting with the front page."""
        tops = [page for group in self.groups.values() for page in group]
        return [Page("index", (FRONT,)), *(page for top in tops for page in top.walk())]


def site_of(root: Path) -> Site:
    """Return the pages of the course at ``root``."""
    of_readme = {slug(title): title for title in sections((root / README).read_text(encoding="utf-8"))}
    placed = (*START_SECTIONS, *ENGINE_SECTIONS, *MAKING_SECTIONS)

    def from_readme(*names: str) -> list[Page]:
        return [Page(name, (README,), section=of_readme[name]) for name in names if name in of_readme]

    def from_files(*patterns: str) -> list[Page]:
        found = [path.relative_to(root).as_posix() for pattern in patterns for path in sorted(root.glob(pattern))]
        return [Page(name.rpartition(".")[0], (name,)) for name in found if not _OUTSIDE.search(name)]

    def from_docs(of_engine: bool) -> list[Page]:
        return [page for page in from_files("docs/*.md") if (page.name in ENGINE_DOCS) == of_engine]

    phases = [_phase(root, folder) for folder in sorted(root.glob("phase-*")) if (folder / "README.md").is_file()]
    shown = {name for phase in phases for page in phase.walk() for name in page.files}
    notebooks = [page for page in from_files("notebooks/*.ipynb") if not shown & set(page.files)]
    return Site(root, {
        "Start": (*notebooks, *from_readme(*START_SECTIONS, *(name for name in of_readme if name not in placed))),
        "The course": tuple(phases),
        "The engine": (*from_readme(*ENGINE_SECTIONS), *from_docs(True), *from_files("deploy/*.md"), _api(root),
                       *from_files("mini_vllm/assets/*/README.md")),
        "Teaching and authoring": (*from_readme("for-instructors"), *from_docs(False),
                                   *from_files("grading/*.md", "course/*.md", "CONTRIBUTING.md"), *_decisions(root),
                                   *from_readme("layout"), *from_files("SECURITY.md", "CHANGELOG.md")),
    })


def _phase(root: Path, folder: Path) -> Page:
    def named(*parts: str) -> str:
        return "/".join((folder.name, *parts))

    number = folder.name.split("-")[1]
    below = [Page(f"notebooks/{path.stem}", (f"notebooks/{path.name}",))
             for path in sorted(root.glob(f"notebooks/{number}-*.ipynb"))]
    below += [Page(named(path.stem), (named(path.name),)) for path in sorted(folder.glob("*.md"))
              if path.name != "README.md"]  # the primer
    for lab in sorted(folder.glob("labs/*/README.md")):
        files = [named("labs", lab.parent.name, name) for name in ("README.md", "hints.md", "answers.md")]
        below.append(Page(named(lab.parent.name), tuple(name for name in files if (root / name).is_file())))
    for page in sorted(folder.glob("*/README.md")):  # the capstone
        below.append(Page(named(page.parent.name), (named(page.parent.name, "README.md"),)))
    return Page(named("index"), (named("README.md"),), below=tuple(below))


def _decisions(root: Path) -> list[Page]:
    """Return the list of decision records, with the records below it."""
    folder = root / "docs/decisions"
    below = tuple(Page(f"docs/decisions/{path.stem}", (path.relative_to(root).as_posix(),))
                  for path in sorted(folder.glob("[0-9]*.md")))
    return [Page("docs/decisions/index", ("docs/decisions/README.md",), below=below)] if below else []


def _api(root: Path) -> Page:
    modules = api.modules_of_the_map((root / api.MAP).read_text(encoding="utf-8"))
    return Page("api/index", below=tuple(Page(f"api/{name}", module=name) for name in modules))


def texts_of(root: Path) -> list[str]:
    """Return every Markdown file and notebook of the repository, relative to it."""
    found: list[str] = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _OUTSIDE.search(name)]
        found += [Path(parent, name).relative_to(root).as_posix() for name in names if name.endswith((".md", ".ipynb"))]
    return sorted(found)
