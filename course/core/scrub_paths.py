"""Text for others: no path of the machine that it was made on."""

from __future__ import annotations

import re
from pathlib import Path

#: An absolute path of two parts or more; what begins inside a word, a URL or another path is none.
_ABSOLUTE = re.compile(r"(?<![\w/.…~])/(?:[^\s/'\"<>:,;()\[\]]+/)+([^\s/'\"<>:,;()\[\]]*)")


def without_paths(text: str, root: Path | None = None) -> str:
    """``text`` with paths from ``root`` on, if it is given, and with only the name of what lies elsewhere: where a
    machine keeps things is nobody's business."""
    return _ABSOLUTE.sub(r"…/\1", text if root is None else text.replace(f"{root}/", ""))
