"""Which files are pages of the site, what each page is called, and the order of the pages.

    README.md                      about
    notebooks/00-tour.ipynb        notebooks/00-tour
    phase-02-…/README.md           phase-02-…/index
    notebooks/02-….ipynb             below it, before the labs
    phase-02-…/labs/lab-01-…/        phase-02-…/lab-01-…: README, hints and answers on one page
    docs/engine.md                 docs/engine, and the API: a page for every module and package that its tables name

Everything is derived from the folders: a new lab or notebook gets its place without a change here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: The frame of the front page, the only text written for the site alone.
FRONT = "docs/site/index.md"
README = "README.md"
ENGINE_DOCS = ("docs/engine", "docs/using", "docs/serving", "docs/gpu", "docs/scaling", "docs/benchmarks")
#: The engine's map. Each of its tables names modules and packages in the first column.
MAP = "docs/engine.md"
PACKAGE = "mini_vllm"
#: Packages that contain commands and test suites, but nothing to import.
NOT_CALLED = ("cli", "demo", "benchmark", "tests")
MODULE_NAME = re.compile(r"`(\w+)(\.py|/)`")


@dataclass(frozen=True)
class Page:
    """A page of the site: its name, the files whose text it shows, and the pages below it."""

    name: str
    #: Relative to the repository.
    files: tuple[str, ...] = ()
    #: The module of the engine that the page shows.
    module: str = ""
    below: tuple[Page, ...] = ()

    def walk(self) -> Iterator[Page]:
        """Yield this page and all pages below it, in reading order."""
        yield self
        for page in self.below:
            yield from page.walk()

    def path_to(self, name: str) -> str:
        """Return the relative path from this page to another page or file of the site."""
        return posixpath.relpath(name, posixpath.dirname(self.name) or ".")


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
    def from_files(*patterns: str) -> list[Page]:
        found = [path.relative_to(root).as_posix() for pattern in patterns for path in sorted(root.glob(pattern))]
        return [Page(name.rpartition(".")[0], (name,)) for name in found]

    docs = from_files("docs/*.md")
    phases = [_phase(root, folder) for folder in sorted(root.glob("phase-*")) if (folder / "README.md").is_file()]
    shown = {name for phase in phases for page in phase.walk() for name in page.files}
    decisions = Page("docs/decisions/index", ("docs/decisions/README.md",),
                     below=tuple(from_files("docs/decisions/[0-9]*.md")))
    api = Page("api/index", below=tuple(Page(f"api/{name}", module=name)
                                        for name in modules_of_the_map((root / MAP).read_text(encoding="utf-8"))))
    return Site(root, {
        "Start": (Page("about", (README,)),
                  *(page for page in from_files("notebooks/*.ipynb") if not shown & set(page.files))),
        "The course": tuple(phases),
        "The engine": (*(page for page in docs if page.name in ENGINE_DOCS), *from_files("deploy/*.md"), api,
                       *from_files("mini_vllm/assets/*/README.md")),
        "Teaching and authoring": (*(page for page in docs if page.name not in ENGINE_DOCS),
                                   *from_files("grading/*.md", "course/*.md", "CONTRIBUTING.md"),
                                   *([decisions] if (root / decisions.files[0]).is_file() else []),
                                   *from_files("SECURITY.md", "CHANGELOG.md")),
    })


def _phase(root: Path, folder: Path) -> Page:
    def page_of(name: str, *files: str) -> Page:
        return Page(f"{folder.name}/{name}", tuple(f"{folder.name}/{file}" for file in files
                                                   if (folder / file).is_file()))

    number = folder.name.split("-")[1]
    below = [Page(f"notebooks/{path.stem}", (f"notebooks/{path.name}",))
             for path in sorted(root.glob(f"notebooks/{number}-*.ipynb"))]
    below += [page_of(path.stem, path.name) for path in sorted(folder.glob("*.md")) if path.name != "README.md"]
    for lab in (path.parent.name for path in sorted(folder.glob("labs/*/README.md"))):
        below.append(page_of(lab, *(f"labs/{lab}/{name}" for name in ("README.md", "hints.md", "answers.md"))))
    below += [page_of(path.parent.name, f"{path.parent.name}/README.md")
              for path in sorted(folder.glob("*/README.md"))]  # the capstone
    return Page(f"{folder.name}/index", (f"{folder.name}/README.md",), below=tuple(below))


def table_of_modules(text: str) -> str:
    """Return the map's section with the tables of modules."""
    found = re.search(r"^## The modules\n.*?(?=^## |\Z)", text, re.M | re.S)
    if found is None:
        raise ValueError(f"{MAP} has no section 'The modules'")
    return found[0]


def modules_of_the_map(text: str) -> list[str]:
    """Return the modules and packages in the order of the map's tables: ``request``, ``block_pool``, …"""
    rows = [line for line in table_of_modules(text).splitlines() if line.startswith("| `")]
    names = [name for row in rows for name, _ in MODULE_NAME.findall(row.split("|")[1])]
    return [name for name in names if name not in NOT_CALLED]
