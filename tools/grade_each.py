"""Measure how long one file of each lab takes to grade on one core. The file is the solution, so every test runs.

    make grade-each                    all labs
    make grade-each LABS="1.1 2.4"     these labs

A file that fails immediately takes less time; one that hangs takes as long as its limits allow.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence

from course.grading.grade_file.grade import grade_file
from course.grading.limits import Settings
from course.lab.lab import discover, find_lab


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("labs", nargs="*", metavar="LAB", help="numbers of labs (default: all)")
    labs = discover()
    numbers = parser.parse_args(argv).labs
    if hasattr(os, "sched_setaffinity"):  # macOS has no such call: there the run uses as many cores as it likes
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    walls_s = []
    for lab in [find_lab(number, labs) for number in numbers] or labs:
        result = grade_file(lab, lab.solution, Settings())
        walls_s.append(result.wall_s)
        print(f"{lab.number}  {result.wall_s:5.1f} s  {result.points} of {result.max_points} points, sandbox "
              f"{result.sandbox}", flush=True)
    print(f"median {statistics.median(walls_s):.1f} s, at most {max(walls_s):.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
