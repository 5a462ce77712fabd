"""Build the site: stage the pages, run Sphinx on them, and follow every link of the result."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from course_site.built import problems_of
from course_site.pages import site_of
from course_site.stage import StageError, stage

ROOT = Path(__file__).resolve().parents[2]
PAGES, SITE, FRAME = ROOT / "build/pages", ROOT / "build/site", ROOT / "docs/site"


def main(arguments: list[str]) -> int:
    """Build the site and return the exit status. ``arguments`` are passed on to Sphinx."""
    try:
        site = site_of(ROOT)
        stage(site, PAGES)
    except StageError as error:
        print(error, file=sys.stderr)
        return 1
    # Every warning is an error, including names that cannot be resolved (-n); conf.py lists the exceptions.
    status: int = build_main(["-q", "-W", "--keep-going", "-n", "-c", str(FRAME), "-d", str(ROOT / "build/doctrees"),
                         *arguments, str(PAGES), str(SITE)])
    if status:
        return status
    problems = problems_of(SITE)
    print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
    if problems:
        return 1
    num_sources = len(list((SITE / "source").rglob("*.html")))
    print(f"{len(site.pages())} pages, and {num_sources} with sources; every link inside leads somewhere.\n"
          f"Open {SITE / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
