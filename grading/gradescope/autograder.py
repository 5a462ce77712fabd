"""What run_autograder needs beside the shell: the submission laid out, and a results.json in every case.

    fail RESULTS WHY                       write a results.json that says: grade again
    lay ROOT WORK                          copy the submission to WORK/submissions/ID, write WORK/roster.csv, print ID
    accept MADE RESULTS STATUS METADATA    take over what `course grade` made, if it is what it should be

It runs as root, with Python alone, and believes nothing that it reads.
"""

import csv
import json
import math
import os
import re
import shutil
import stat
import sys
from datetime import datetime
from pathlib import Path

MAX_BYTES = 5_000_000
NOT_YET = "There is no score yet: this lab must be graded again. That is not your fault, and it does not mean zero."


def fail(results: Path, why: str) -> None:
    """Write a result without a score. A test case that students cannot see tells instructors why."""
    _write(results, {
        "score": 0, "output": NOT_YET, "output_format": "text", "visibility": "visible", "stdout_visibility": "hidden",
        "tests": [{"name": "Grade again", "status": "failed", "visibility": "hidden",
                   "output": f"No result: {why}. What the grader printed is below, for instructors only. After the "
                             "fix: Manage Submissions → Regrade."}]})


def lay(root: Path, work: Path) -> str:
    """Copy the submission and write a roster for it. Links stay links: they are never followed."""
    student, name = _student(_metadata(root / "submission_metadata.json"))
    work.mkdir(exist_ok=True)
    shutil.copytree(root / "submission", work / "submissions" / student, symlinks=True, ignore=_special_files)
    with open(work / "roster.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "name"], [student, name]])
    return student


def accept(made: Path, results: Path, status: str, metadata: Path) -> None:
    if status == "124" or status == "137":
        return fail(results, "the time was up")
    if status not in ("0", "1"):  # 1: some of it must be graded again, and results.json says what
        return fail(results, f"course grade ended with status {status}")
    try:
        found = _checked(json.loads(_read(made)))
    except (OSError, ValueError, RecursionError) as error:
        return fail(results, f"the grader's results.json cannot be used ({type(error).__name__})")
    if _is_late(_metadata(metadata)):
        found["output"] = f"Handed in after the due date.\n{found.get('output', '')}"
    _write(results, found)


def _checked(found: object) -> dict:
    if not isinstance(found, dict) or not isinstance(found.get("tests"), list):
        raise ValueError("no object with tests")
    score = found.get("score")
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score) or score < 0:
        raise ValueError("no score")
    return {**found, "stdout_visibility": "hidden"}


def _read(path: Path) -> str:
    """Read a regular file of limited size. Symbolic links are rejected, so a file cannot redirect the reader."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError("too large")
    return content.decode("utf-8")


def _metadata(path: Path) -> dict:
    try:
        found = json.loads(_read(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _student(metadata: dict) -> tuple[str, str]:
    """Return the id and name of the first student of a submission. A group has one submission."""
    users = metadata.get("users")
    user = users[0] if isinstance(users, list) and users and isinstance(users[0], dict) else {}
    student = str(user.get("id", ""))
    name = " ".join(str(user.get("name", "")).split())[:200]
    return student if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", student) else "student", name


def _is_late(metadata: dict) -> bool:
    try:
        due = datetime.fromisoformat(metadata["assignment"]["due_date"])
        return datetime.fromisoformat(metadata["created_at"]) > due
    except (KeyError, TypeError, ValueError):
        return False


def _special_files(folder: str, names: list) -> list:
    """List pipes and devices: copying them would hang."""
    def is_special(name: str) -> bool:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))

    return [name for name in names if is_special(name)]


def _write(path: Path, content: dict) -> None:
    partial = path.with_name(".results.json.partial")
    partial.write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")
    os.replace(partial, path)


def main(command: str, *arguments: str) -> None:
    if command == "fail":
        fail(Path(arguments[0]), arguments[1])
    elif command == "lay":
        print(lay(Path(arguments[0]), Path(arguments[1])))
    elif command == "accept":
        accept(Path(arguments[0]), Path(arguments[1]), arguments[2], Path(arguments[3]))
    else:
        raise SystemExit(f"autograder.py: {command!r} is not fail, lay or accept")


if __name__ == "__main__":
    main(*sys.argv[1:])
