"""What the last call used besides the submissions: the roster, the gradebook, and other decisions that an option named.

A call that forgets one of them would change every mark, or add rows for students whom no one knows. So the marker in
``--out`` names what was used, and a call without it stops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from course.core.atomic_files import write_whole
from course.grading.class_run.check_folders import MARKED, MARKER
from course.lab.lab import LabError

#: Given for an option, this leaves the file out on purpose.
NONE = Path("none")

#: Option, such as ``roster`` → the file that is used for it, or None.
Used = Mapping[str, Path | None]


def not_none(path: Path | None) -> Path | None:
    return None if path == NONE else path


def check_used(out: Path, given: Used, used: Used) -> None:
    """Raise LabError if the last call used a file for an option, this one uses none, and the command line does not say
    that this is on purpose. ``given`` is the command line; ``used`` also contains what was found in ``out``."""
    forgotten = [f"The last call used {path} as --{option}: give it again, or --{option} none."
                 for option, path in _last(out).items()
                 if option in used and used[option] is None and given.get(option) != NONE]
    if forgotten:
        raise LabError("\n".join([*forgotten, "Nothing was changed."]))


def claim(out: Path, used: Used = MappingProxyType({})) -> None:
    """Mark the folder as the grader's, before anything else is written into it, and note what this call uses."""
    kept = {option: str(path) for option, path in used.items() if path is not None}
    content = json.dumps({**MARKED, "used": kept}, indent=1).encode() + b"\n"
    marker = out / MARKER
    if not marker.is_file() or marker.read_bytes() != content:
        write_whole(marker, content)


def _last(out: Path) -> dict[str, str]:
    """Return what the last call used. Earlier versions did not note it."""
    try:
        fields = json.loads((out / MARKER).read_bytes())
        return {str(option): str(path) for option, path in fields.get("used", {}).items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
