"""``unclear.json``: what was handed in and is not graded. The report shows it to people."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from course.core.result import Provenance, StudentResult
from course.grading.export import output_files
from course.grading.intake.platforms import Unclear


class UnclearFiles:
    """Written by every run, even if it is empty, so that no older list remains."""

    name = "unclear.json"

    def __init__(self, unclear: Sequence[Unclear]) -> None:
        self._unclear = unclear

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
        output_files.write(out / self.name, json.dumps(list(map(dataclasses.asdict, self._unclear)), indent=1) + "\n")
