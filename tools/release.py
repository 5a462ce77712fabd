"""Check a release: the tag, the source, CHANGELOG.md and CITATION.cff must name the same version.

    python tools/release.py v0.2.0        prints that version's section of the changelog, for the release notes

``mini_vllm.__version__`` is the source of the version; the package metadata is read from it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes_of(tag: str, root: Path = ROOT) -> str:
    """Return the changelog section of the version in ``tag``. Raise ValueError if a file does not name that version."""
    version = re.escape(tag.removeprefix("v"))
    section = ""
    for name, pattern in (("mini_vllm/__init__.py", rf'^__version__ = "{version}"$()'),
                          ("CITATION.cff", rf"^version: {version}$()"),
                          ("CHANGELOG.md", rf"^## \[{version}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)")):
        found = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.M | re.S)
        if found is None:
            raise ValueError(f"{name} does not name the version of the tag {tag}: nothing matches {pattern}")
        section = found[1]
    return section.strip() + "\n"


if __name__ == "__main__":
    try:
        print(notes_of(sys.argv[1]), end="")
    except ValueError as error:
        sys.exit(f"release: {error}")
