"""Remarks on odd files that can be graded all the same. They are shown with the score."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.grading.grade_file import outline
from course.lab.bare_starter import bare_starter
from course.lab.lab import Lab
from course.lab.starters import declarations, shipped_starter
from mini_vllm.checks import nearest

WALL_LIMIT_S = 60.0
MAX_REMARKS = 3


def remark_on(lab: Lab, content: bytes) -> str:
    """Return a sentence or two about the text, or "": it is the starter, does not parse, or uses other names."""
    starter = shipped_starter(lab)
    text = content.decode("utf-8", errors="replace").replace("\r\n", "\n")
    if text.strip() in (starter.strip(), bare_starter(lab).strip()):
        return "The file is the unchanged starter."
    found = _outline(content)
    if "error" in found:
        return f"The file does not parse: {found['error']}."
    wanted = [name for name in declarations(starter) if not name.endswith(".__init__")]
    return " ".join(_renamed(wanted, found["defined"], found["bound"]))


def _outline(content: bytes) -> dict[str, Any]:
    try:
        run = subprocess.run([sys.executable, "-I", "-S", Path(outline.__file__)], input=content, capture_output=True,
                             timeout=WALL_LIMIT_S)
        found = json.loads(run.stdout) if run.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError):
        found = None
    return found or {"error": "Python's own parser gives up on it"}


def _renamed(wanted: Sequence[str], defined: Sequence[str], bound: Sequence[str]) -> list[str]:
    """Return sentences about public names of the starter that the file lacks, except methods of a missing class."""
    there = {*defined, *bound}
    missing = [name for name in wanted if name not in there and ("." not in name or _class_of(name) in defined)]
    if "*" in bound:
        return []
    unknown = [name for name in defined if name not in wanted]
    remarks = []
    for name in missing:
        near = nearest(name, unknown, cutoff=0.75)
        remarks.append(f"It defines {near} but no {name}: was it renamed?" if near else f"It defines no {name}.")
    more = [f"It lacks {len(remarks) - MAX_REMARKS} more names."] if len(remarks) > MAX_REMARKS else []
    return remarks[:MAX_REMARKS] + more


def _class_of(name: str) -> str:
    return name.rpartition(".")[0]
