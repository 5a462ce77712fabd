"""Build the site: stage the pages, and run Sphinx on them. Every warning is an error, such as a link into nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from course_site.pages import site_of
from course_site.stage import StageError, stage

ROOT = Path(__file__).resolve().parents[2]
PAGES, SITE, FRAME = ROOT / "build/pages", ROOT / "build/site", ROOT / "docs/site"


def main(arguments: list[str]) -> int:
    """Build the site and return the exit status. ``arguments`` are passed on to Sphinx."""
    site = site_of(ROOT)
    try:
        stage(site, PAGES)
    except StageError as error:
        print(error, file=sys.stderr)
        return 1
    # Names that cannot be resolved are warnings, too (-n); conf.py lists the exceptions.
    status: int = build_main(["-q", "-W", "--keep-going", "-n", "-c", str(FRAME), "-d", str(ROOT / "build/doctrees"),
                              *arguments, str(PAGES), str(SITE)])
    if not status:
        print(f"{len(site.pages())} pages. Open {SITE / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
