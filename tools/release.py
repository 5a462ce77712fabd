"""Check a release: the tag, the source, CHANGELOG.md and CITATION.cff must name the same version.

    python tools/release.py v0.2.0        prints that version's section of the changelog, for the release notes

``mini_vllm.__version__`` is the source of the version; the package metadata is read from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.M)
_CITED = re.compile(r"^version: (\S+)$", re.M)


def notes_of(tag: str, root: Path = ROOT) -> str:
    """Return the changelog section of the version in ``tag``. Raise ValueError if a file names another version."""
    version = _only(_VERSION, root / "mini_vllm/__init__.py")
    cited = _only(_CITED, root / "CITATION.cff")
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, mini_vllm/__init__.py says {version}: the tag must be v{version}")
    if cited != version:
        raise ValueError(f"CITATION.cff says {cited}, mini_vllm/__init__.py says {version}")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if section is None:
        raise ValueError(f"CHANGELOG.md has no section '## [{version}] - DATE'")
    return section[1].strip() + "\n"


def _only(pattern: re.Pattern[str], path: Path) -> str:
    found = pattern.findall(path.read_text(encoding="utf-8"))
    if len(found) != 1:
        raise ValueError(f"{path.name} names a version {len(found)} times, must be once")
    return str(found[0])


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1:
        print("usage: python tools/release.py TAG", file=sys.stderr)
        return 2
    try:
        print(notes_of(argv[0]), end="")
    except ValueError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
