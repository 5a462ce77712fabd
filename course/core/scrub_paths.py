"""Remove the paths of this machine from text that other people will read."""

from __future__ import annotations

import re
from pathlib import Path

#: An absolute path of two parts or more. A match may not begin inside a word, a URL or another path.
_ABSOLUTE = re.compile(r"(?<![\w/.…~])/(?:[^\s/'\"<>:,;()\[\]]+/)+([^\s/'\"<>:,;()\[\]]*)")


def without_paths(text: str, root: Path | None = None) -> str:
    """Return ``text`` with paths relative to ``root``, if it is given; any other path is reduced to its last name.

    Readers should not learn where this machine keeps its files.
    """
    return _ABSOLUTE.sub(r"…/\1", text if root is None else text.replace(f"{root}/", ""))
