"""Solutions of labs that were written from their texts alone: right ones must pass, wrong ones must be caught.

    python tools/try_variants.py              every lab
    python tools/try_variants.py 2.1 3.3      these labs
    python tools/try_variants.py --update     and write down which test catches what was not caught before

``tools/variants/2.1/`` has ``base.py``, a right solution; ``unusual_1.py`` and ``unusual_2.py``, right ones that are
written in another way; and ``variants.json``, wrong ones: in ``base.py``, ``old`` is replaced by ``new``. Each breaks a
``promise`` of the lab's page or starter; ``why`` says which calls show it. ``caught_by`` names a test that must fail on
it. It is null for one that no test catches yet: such a variant is listed, and it is an error if a test does catch it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.core.result import Verdict
from course.lab.lab import Lab, discover, find_lab
from course.pytest_run.run_lab import run_lab, run_lab_together

VARIANTS = Path(__file__).parent / "variants"
RIGHT = ("base", "unusual_1", "unusual_2")
TIME_LIMIT_S = 20.0
#: Each process tries this many.
VARIANTS_A_PROCESS = 30


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("labs", nargs="*", metavar="LAB")
    parser.add_argument("--update", action="store_true", help="write down what is caught now")
    arguments = parser.parse_args(argv)
    labs = discover(VARIANTS.parents[1])
    numbers = arguments.labs or [lab.number for lab in labs if (VARIANTS / lab.number).is_dir()]
    num_problems = 0
    for number in numbers:
        lab = find_lab(number, labs)
        problems, summary = try_lab(lab, VARIANTS / lab.number, arguments.update)
        print(f"lab {lab.number}: {summary}", flush=True)
        for problem in problems:
            print(f"    {problem}", flush=True)
        num_problems += len(problems)
    return 1 if num_problems else 0


def try_lab(lab: Lab, folder: Path, updates: bool = False) -> tuple[list[str], str]:
    """What is not as it should be, and a summary."""
    variants = json.loads((folder / "variants.json").read_text(encoding="utf-8"))
    problems = [f"{name}.py fails {test}" for name in RIGHT for test in _failed(lab, folder / f"{name}.py")]
    base = (folder / "base.py").read_text(encoding="utf-8")
    caught = [variant for variant in variants if variant["caught_by"] is not None]
    loose = [variant for variant in variants if variant["caught_by"] is None]
    with tempfile.TemporaryDirectory() as files:
        for variant in variants:
            if base.count(variant["old"]) != 1:
                problems.append(f"{variant['name']}: its old text is in base.py {base.count(variant['old'])} times")
            (Path(files) / f"{variant['name']}.py").write_text(base.replace(variant["old"], variant["new"]), "utf-8")
        for start in range(0, len(caught), VARIANTS_A_PROCESS):
            problems += _survivors(lab, Path(files), caught[start:start + VARIANTS_A_PROCESS])
        for variant in loose:
            failed = _failed(lab, Path(files) / f"{variant['name']}.py")
            if failed and updates:
                variant["caught_by"] = failed[0]
            elif failed:
                problems.append(f"{variant['name']} is caught by {failed[0]}: --update writes that down")
    if updates:
        (folder / "variants.json").write_text(json.dumps(variants, indent=1, ensure_ascii=False) + "\n", "utf-8")
    left = [variant["name"] for variant in variants if variant["caught_by"] is None]
    return problems, (f"{len(RIGHT)} right solutions, {len(variants)} wrong ones, of which {len(variants) - len(left)} "
                      "are caught" + (f"; not caught: {', '.join(left)}" if left else ""))


def _failed(lab: Lab, path: Path) -> list[str]:
    """The tests that fail on a file."""
    (verdicts,) = run_lab(lab, [path], TIME_LIMIT_S).values()
    return [name for name, verdict in verdicts.items() if not verdict.passed]


def _survivors(lab: Lab, files: Path, variants: Sequence[dict[str, Any]]) -> list[str]:
    """Those that pass the test that is named. What ends or blocks its process is tried alone."""
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
    sys.exit(main())
