"""Whether a lab reached some per cent of its points: points.py OUT LAB PERCENT. Exit status 0 if so, 1 if not.

This is what Classroom's command grader asks. The number comes from grades.csv, which `course grade` wrote.
"""

import csv
import sys
from pathlib import Path


def main(out: str, lab: str, percent: str) -> int:
    try:
        with open(Path(out) / "grades.csv", newline="", encoding="utf-8") as file:
            (row,) = csv.DictReader(file)
        points, most = row[f"{lab} points"], float(row[f"{lab} max"])
    except (OSError, KeyError, ValueError):
        print(f"Lab {lab} was not graded.")
        return 1
    if not points:
        print(f"Lab {lab} has no score yet: it must be graded again. Run this workflow once more.")
        return 1
    print(f"Lab {lab}: {points} of {most:g} points; {percent} % are asked for here.")
    return 0 if float(points) >= most * float(percent) / 100 and most > 0 else 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit("usage: points.py OUT LAB PERCENT")
    raise SystemExit(main(*sys.argv[1:]))
