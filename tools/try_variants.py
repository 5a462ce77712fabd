"""Test lab solutions that were written from the lab texts alone: right ones must pass, wrong ones must be caught.

    python tools/try_variants.py              every lab
    python tools/try_variants.py 2.1 3.3      these labs

``tools/variants/2.1/solutions.json`` contains three right solutions, ``base`` and two unusual ones, as edits of the
starter: ``old`` is replaced by ``new``. ``variants.json`` contains the wrong solutions, each an edit of ``base``. A
wrong solution breaks a ``promise`` of the lab's page or starter, and ``why`` says which calls show it. ``caught_by``
names a test that must fail on it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.core.result import Verdict
from course.lab.lab import Lab, discover, find_lab
from course.lab.starters import shipped_starter
from course.pytest_run.run_lab import run_lab, run_lab_together

VARIANTS = Path(__file__).parent / "variants"
TIME_LIMIT_S = 20.0
#: The number of variants per process.
VARIANTS_A_PROCESS = 30


def main(numbers: Sequence[str]) -> int:
    labs, num_problems = discover(VARIANTS.parents[1]), 0
    for number in numbers or [lab.number for lab in labs if (VARIANTS / lab.number).is_dir()]:
        with tempfile.TemporaryDirectory() as folder:
            problems, summary = try_lab(find_lab(number, labs), VARIANTS / number, Path(folder))
        print(f"lab {number}: {summary}", *(f"    {problem}" for problem in problems), sep="\n", flush=True)
        num_problems += len(problems)
    return 1 if num_problems else 0


def try_lab(lab: Lab, folder: Path, files: Path) -> tuple[list[str], str]:
    """Return the problems that were found, and a summary. Write the solutions into ``files``."""
    right, variants = texts_of(lab, folder)
    wrong = {variant["name"]: edited(right["base"], [variant]) for variant in variants}
    for name, text in {**right, **wrong}.items():
        (files / f"{name}.py").write_text(text, encoding="utf-8")
    problems = []
    for name in right:
        (verdicts,) = run_lab(lab, [files / f"{name}.py"], TIME_LIMIT_S).values()
        problems += [f"{name} fails {test}" for test, verdict in verdicts.items() if not verdict.passed]
    for start in range(0, len(variants), VARIANTS_A_PROCESS):
        problems += _survivors(lab, files, variants[start:start + VARIANTS_A_PROCESS])
    return problems, f"{len(right)} right solutions, {len(wrong)} wrong ones"


def texts_of(lab: Lab, folder: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return a lab's right solutions by name, and its wrong variants."""
    solutions = json.loads((folder / "solutions.json").read_text(encoding="utf-8"))
    variants: list[dict[str, Any]] = json.loads((folder / "variants.json").read_text(encoding="utf-8"))
    return {name: edited(shipped_starter(lab), edits) for name, edits in solutions.items()}, variants


def edited(text: str, edits: Sequence[dict[str, Any]]) -> str:
    """Return ``text`` with each ``old`` replaced by its ``new``. Raise ValueError unless each occurs exactly once."""
    for edit in edits:
        if text.count(edit["old"]) != 1:
            raise ValueError(f"{edit['old']!r:.200} occurs {text.count(edit['old'])} times, must occur once")
    pieces, done = [], 0
    for start, edit in sorted(((text.index(edit["old"]), edit) for edit in edits), key=lambda each: each[0]):
        pieces += [text[done:start], edit["new"]]
        done = start + len(edit["old"])
    return "".join([*pieces, text[done:]])


def _survivors(lab: Lab, files: Path, variants: Sequence[dict[str, Any]]) -> list[str]:
    """Return a message for each variant that passes the test named in its ``caught_by``.

    A variant that passes, or that was not run because another one ended or blocked the process, is tried again alone.
    """
    paths = [files / f"{variant['name']}.py" for variant in variants]
    only = {path.stem: variant["caught_by"] for path, variant in zip(paths, variants)}
    together = run_lab_together(lab, paths, TIME_LIMIT_S, only)
    found = {path.stem: together.get(path.stem, {}).get(only[path.stem], Verdict(True)) for path in paths}
    for path in paths:
        if found[path.stem].passed or found[path.stem].error == "NotRun":
            (alone,) = run_lab(lab, [path], TIME_LIMIT_S, names=[only[path.stem]]).values()
            found[path.stem] = alone[only[path.stem]]
    return [f"{name} passes {only[name]}, which should have caught it" for name, verdict in found.items()
            if verdict.passed]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
