"""``unclear.json``: what was handed in and is not graded as it is called. People find it in the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from course.core.result import Provenance, StudentResult
from course.grading.export import output_files
from course.grading.intake.unclear import Unclear


class UnclearFiles:
    """Written by every run, also if there is nothing in it: an older list must not stay."""

    name = "unclear.json"

    def __init__(self, unclear: Sequence[Unclear]) -> None:
        self._unclear = unclear

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
        output_files.write(out / self.name, json.dumps([one.to_json() for one in self._unclear], indent=1) + "\n")
