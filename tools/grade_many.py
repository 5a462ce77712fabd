"""Grade a large made-up class, kill the run in the middle, resume it, and check that every result is correct.

    python tools/grade_many.py                        200 files of lab 1.2, and 10 whole courses
    python tools/grade_many.py --files 6 --courses 0  the same, small

The class consists of files from the course: solutions, starters, and wrong solutions for which the test that catches
them is known. So something is known about the result of every file. No result may be missing, duplicated or wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.lab.lab import Lab, discover, find_lab
from course.mutants import mutants_of

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Known:
    """A submitted file, and what its result must say."""

    text: str
    #: "full", "nothing", or the name of the test that must have failed.
    says: str

    def problem(self, result: dict[str, Any]) -> str | None:
        passed = {test["name"]: test["passed"] for test in result["tests"]}
        if result["outcome"] != "graded":
            return f"is {result['outcome']}: {result['reason']} {result['flags']}"
        if self.says == "full":
            failed = [name for name, has_passed in passed.items() if not has_passed]
            return f"is right, but fails {failed}" if failed else None
        if self.says == "nothing":
            return f"is untouched, but passes {sum(passed.values())}" if any(passed.values()) else None
        return f"must fail {self.says}" if passed[self.says] else None


def files_of(lab: Lab) -> list[Known]:
    """Return the solution, the untouched starter, and all wrong solutions of a lab."""
    solution = lab.solution.read_text(encoding="utf-8")
    wrong = [Known(mutant.apply(solution), mutant.killed_by) for mutant in mutants_of(lab)]
    return [Known(solution, "full"), Known(lab.starter.read_text(encoding="utf-8"), "nothing"), *wrong]


def make_class(folder: Path, num_files: int, num_courses: int, lab: Lab, labs: list[Lab]
               ) -> dict[tuple[str, str], Known]:
    """Write the submissions of ``num_files`` students who did one lab and ``num_courses`` who did all.

    Return what is known of each file, by student and lab.
    """
    chosen = random.Random(17)
    known: dict[tuple[str, str], Known] = {}
    there = files_of(lab)
    for i in range(num_files):
        known[f"one{i:03}", lab.number] = there[i % len(there)]
    for i in range(num_courses):
        for each in labs:
            known[f"all{i:02}", each.number] = chosen.choice(files_of(each)) if i else files_of(each)[0]
    for (student, number), file in known.items():
        path = folder / student / find_lab(number, labs).starter.relative_to(ROOT)
        path.parent.mkdir(parents=True)
        path.write_text(file.text, encoding="utf-8")
    return known


def grade(submissions: Path, out: Path, labs: list[str], kill_after_s: float | None = None) -> int:
    """Run ``course grade`` and return its exit status. ``kill_after_s`` kills all of it, as a power cut would."""
    command = [sys.executable, "-m", "course.cli", "grade", str(submissions), "--out", str(out)]
    process = subprocess.Popen([*command, *(f"--lab={number}" for number in labs)], cwd=ROOT, start_new_session=True)
    try:
        return process.wait(kill_after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def num_results(out: Path, known: dict[tuple[str, str], Known]) -> int:
    """Return the number of results for submitted files. Missing files also have a row, which is not counted."""
    return sum((out / "results" / student / f"{lab}.json").is_file() for student, lab in known)


def run(num_files: int, num_courses: int, number: str, num_kills: int, kill_after_s: float) -> int:
    labs = discover(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        submissions, out = Path(folder) / "submissions", Path(folder) / "grades"
        submissions.mkdir()
        known = make_class(submissions, num_files, num_courses, find_lab(number, labs), labs)
        wanted = [lab.number for lab in labs] if num_courses else [number]
        started = time.monotonic()
        for _ in range(num_kills):
            before = num_results(out, known)
            grade(submissions, out, wanted, kill_after_s)
            print(f"killed: {num_results(out, known)} of {len(known)} files are graded now; before this run, "
                  f"{before} were", flush=True)
        status = grade(submissions, out, wanted)
        elapsed_s = time.monotonic() - started
        problems = check(out, known, status)
        num_again = count_again(submissions, out, wanted)
    print("\n".join(problems), end="\n" if problems else "")
    print(f"{len(known)} files, {num_kills} times killed and resumed: {elapsed_s:.0f} s, "
          f"{60 * len(known) / elapsed_s:.1f} files per minute on {os.cpu_count()} cores; {len(problems)} problems; "
          f"one more call grades {num_again}")
    return bool(problems or num_again)


def check(out: Path, known: dict[tuple[str, str], Known], status: int) -> list[str]:
    """Return a message for every result that is missing, duplicated or wrong."""
    problems = [f"course grade ended with status {status}"] if status else []
    results = {(path.parent.name, path.stem): json.loads(path.read_text()) for path in out.glob("results/*/*.json")}
    problems += [f"{student} {lab} has no result" for student, lab in sorted(known.keys() - results.keys())]
    problems += [f"{student} {lab} was never handed in, and has a result"
                 for student, lab in sorted(results.keys() - known.keys())
                 if (results[student, lab].get("result") or results[student, lab])["outcome"] == "graded"]
    for key, file in sorted(known.items()):
        found = results.get(key)
        if found is not None and (problem := file.problem(found.get("result", found))):
            problems.append(f"{' '.join(key)} {problem}")
    if list(out.glob("results/*/history/*")):
        problems.append("something was graded twice")
    return problems


def count_again(submissions: Path, out: Path, wanted: list[str]) -> int:
    """Grade again and return the number of files that were still graded, which must be 0."""
    before = {path: path.stat().st_mtime_ns for path in out.glob("results/*/*.json")}
    grade(submissions, out, wanted)
    return sum(path.stat().st_mtime_ns != before.get(path) for path in out.glob("results/*/*.json"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=200, help="students with one lab (default: %(default)s)")
    parser.add_argument("--courses", type=int, default=10, help="students with all labs (default: %(default)s)")
    parser.add_argument("--lab", default="1.2", help="the one lab (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=2, help="how often it is killed (default: %(default)s)")
    parser.add_argument("--after", type=float, default=60.0, metavar="SECONDS", help="when (default: %(default)s)")
    arguments = parser.parse_args()
    return run(arguments.files, arguments.courses, arguments.lab, arguments.kills, arguments.after)


if __name__ == "__main__":
    sys.exit(main())
