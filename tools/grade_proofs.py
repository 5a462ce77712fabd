"""Proofs that ``course grade`` survives being killed: the grades are those of an undisturbed run.

    python tools/grade_proofs.py many                          200 files of lab 1.2 and 10 whole courses, killed twice
    python tools/grade_proofs.py many --files 6 --courses 0    the same, small
    python tools/grade_proofs.py resume                        a class with every kind of name, killed ten times

**many** grades files of which something is known: solutions, starters, and wrong solutions for which the test that
catches them is known. No result may be missing or wrong, and nothing may be graded twice.

**resume** grades a class of what instructors meet: right and wrong files, an endless loop, misnamed and stray files,
names that cannot be ids, two names that differ only in their encoding, an empty folder, a notebook, archives, two
submissions of one student, and a student who is not on the roster. It grades once undisturbed and once killed: before
any result, while the first files are being graded, while a file is half written, while the pages are written, and at
random moments. In the end all files must be equal, except for times.

Each kill is a SIGKILL to the process group of ``course grade``; afterwards no process of the run may be left. The exit
status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unicodedata
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from course.core.atomic_files import partials_in
from course.lab.lab import Lab, discover, find_lab
from course.lab.starters import shipped_starter
from course.mutants import mutants_of

ROOT = Path(__file__).resolve().parent.parent
#: The lab of ``resume``.
NUMBER = "1.1"
NUM_IN_ORDER = 14
#: Set in the environment of a run, so that its processes can be recognised.
TAG = "GRADE_PROOF_RUN"
#: The time that the processes of a killed run have to end.
GONE_WITHIN_S = 20.0
#: What may differ between two runs: times.
_TIMES = re.compile(r'"(?:cpu_s|wall_s)": [\d.e-]+|"execution_time": \d+|time="[\d.]+"|\d+ files? ran: .*')

#: Whether it is time to kill a run, given its results folder and the seconds so far.
IsTime = Callable[[Path, float], bool]


def grade(submissions: Path, out: Path, options: Sequence[str], is_time: IsTime | None = None) -> tuple[int, list[str]]:
    """Run ``course grade``, and kill all of it when it is time, as a power cut would.

    Return the exit status and the problems: processes that are left.
    """
    command = [sys.executable, "-m", "course.cli", "grade", str(submissions), "--out", str(out), *options]
    tag, temporary = f"{os.getpid()}-{time.monotonic()}", out.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    with open(out.parent / f"{out.name}.log", "ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=log, stderr=log,
                                   env={**os.environ, TAG: tag, "TMPDIR": str(temporary)})
        begun_s = time.monotonic()
        while process.poll() is None and not (is_time is not None and is_time(out, time.monotonic() - begun_s)):
            time.sleep(0.002)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    # A sandbox has another environment, but uses the temporary folder.
    marks = (f"{TAG}={tag}".encode(), os.fsencode(temporary) + b"/")
    deadline_s = time.monotonic() + GONE_WITHIN_S
    while (left := _processes(marks)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return status, [f"left running: {one}" for one in left]


def _processes(marks: Sequence[bytes]) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            about = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            is_there = (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            continue
        if is_there and any(mark in about for mark in marks) and int(folder.name) != os.getpid():
            found.append(f"{folder.name} {(folder / 'cmdline').read_bytes()[:200]!r}")
    return found


def results_in(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the results by student and lab."""
    found = {(path.parent.name, path.stem): json.loads(path.read_text()) for path in out.glob("results/*/*.json")}
    return {key: result.get("result") or result for key, result in found.items()}


def after(wait_s: float) -> IsTime:
    return lambda _out, passed_s: passed_s >= wait_s


# ---- many


def prove_many(arguments: argparse.Namespace, folder: Path) -> list[str]:
    labs = discover(ROOT)
    submissions, out, chosen = folder / "submissions", folder / "grades", random.Random(17)
    files = files_of(find_lab(arguments.lab, labs))
    known = {(f"one{i:03}", arguments.lab): files[i % len(files)] for i in range(arguments.files)}
    for i in range(arguments.courses):
        for lab in labs:
            known[f"all{i:02}", lab.number] = chosen.choice(files_of(lab)) if i else files_of(lab)[0]
    for (student, number), (text, _) in known.items():
        path = submissions / student / find_lab(number, labs).starter.relative_to(ROOT)
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    options = [f"--lab={lab.number}" for lab in labs if arguments.courses or lab.number == arguments.lab]
    problems, begun_s = list[str](), time.monotonic()
    for _ in range(arguments.kills):
        problems += grade(submissions, out, options, after(arguments.after))[1]
        print(f"killed: {len(known.keys() & results_in(out).keys())} of {len(known)} files are graded now", flush=True)
    status, left = grade(submissions, out, options)
    elapsed_s, results = time.monotonic() - begun_s, results_in(out)
    problems += left + ([f"course grade ended with status {status}"] if status else [])
    problems += [f"{' '.join(key)} has no result" for key in sorted(known.keys() - results.keys())]
    problems += [f"{' '.join(key)} was never handed in, and is graded" for key in sorted(results.keys() - known.keys())
                 if results[key]["outcome"] == "graded"]
    problems += [f"{' '.join(key)} {problem}" for key, (_, says) in sorted(known.items())
                 if key in results and (problem := problem_of(results[key], says))]
    before = {path: path.stat().st_mtime_ns for path in out.glob("results/*/*.json")}
    problems += grade(submissions, out, options)[1]
    problems += [f"graded again: {path}" for path in out.glob("results/*/*.json")
                 if path.stat().st_mtime_ns != before.get(path)]
    print(f"{len(known)} files, {arguments.kills} times killed and resumed: {elapsed_s:.0f} s, "
          f"{60 * len(known) / elapsed_s:.1f} files per minute on {os.cpu_count()} cores")
    return problems + [f"graded twice: {path}" for path in out.glob("results/*/history/*")]


def files_of(lab: Lab) -> list[tuple[str, str]]:
    """Return the solution, the starter and all wrong solutions of a lab, with what each result must say.

    That is "full", "nothing", or the name of the test that must have failed.
    """
    solution = lab.solution.read_text(encoding="utf-8")
    return [(solution, "full"), (lab.starter.read_text(encoding="utf-8"), "nothing"),
            *((mutant.apply(solution), mutant.killed_by) for mutant in mutants_of(lab))]


def problem_of(result: dict[str, Any], says: str) -> str | None:
    passed = {test["name"]: test["passed"] for test in result["tests"]}
    if result["outcome"] != "graded":
        return f"is {result['outcome']}: {result['reason']} {result['flags']}"
    if says == "full":
        return None if all(passed.values()) else f"is right, but fails {[name for name in passed if not passed[name]]}"
    if says == "nothing":
        return f"is untouched, but passes {sum(passed.values())}" if any(passed.values()) else None
    return f"must fail {says}" if passed[says] else None


# ---- resume


def prove_resume(arguments: argparse.Namespace, folder: Path) -> list[str]:
    chosen, roster = random.Random(arguments.seed), folder / "roster.csv"
    make_class(folder / "in", roster, find_lab(NUMBER, discover(ROOT)))
    options = ["--lab", NUMBER, "--roster", str(roster), "--time-limit", "3"]
    calm, killed = folder / "calm", folder / "killed"
    begun_s = time.monotonic()
    status, problems = grade(folder / "in", calm, options)
    seconds = time.monotonic() - begun_s
    print(f"undisturbed: status {status}, {len(results_in(calm))} results, {seconds:.0f} s", flush=True)
    for number, (when, is_time) in enumerate(moments(arguments.kills, chosen, seconds)):
        problems += grade(folder / "in", killed, options, is_time)[1]
        num_results = len(results_in(killed))
        if number == 0 and num_results:
            problems.append("the first kill came too late: there were results")
        print(f"kill {when}: {num_results} results", flush=True)
    resumed, left = grade(folder / "in", killed, options)
    problems += left + ([f"the exit status is {resumed}, undisturbed it was {status}"] if resumed != status else [])
    before, now = handed_out(calm), handed_out(killed)
    problems += [f"{name} exists in one run only" for name in sorted(before.keys() ^ now.keys())]
    problems += [f"{name} differs:\n  {one[:300]}\n  {other[:300]}" for name in sorted(before.keys() & now.keys())
                 for one, other in list(zip(before[name].splitlines() + [""], now[name].splitlines() + [""]))
                 if one != other][:20]
    problems += [f"{path.relative_to(killed)} is left over" for path in partials_in(killed)]
    if problems:
        print((folder / "killed.log").read_text(encoding="utf-8", errors="replace")[-4000:])
    print(f"{len(now)} files compared: results, tables, pages, feedback")
    return problems + unexpected(killed)


def make_class(folder: Path, roster: Path, lab: Lab) -> None:
    """Write a class of thirty with every case, including odd file and folder names."""
    solution = lab.solution.read_text(encoding="utf-8")
    texts = [solution, *(mutant.apply(solution) for mutant in mutants_of(lab)[:3])]

    def own(number: int) -> str:
        """Return a file that is unique to one student: right, or wrong in a known way."""
        return f"{texts[number % len(texts)]}\n# the work of student {number}\n"

    students = [f"s{i:02}" for i in range(1, NUM_IN_ORDER + 1)]
    files = {f"{student}/starter.py": own(i) for i, student in enumerate(students, 1)}
    files |= {"loop/starter.py": endless(solution), "notebook/lab.ipynb": json.dumps({"cells": [], "nbformat": 4}),
              "untouched/starter.py": shipped_starter(lab), "broken/starter.py": "def f(:\n",
              "twice/starter.py": own(13),
              # misnamed
              "final/block_pool_final(2).py": own(16), "second/starter (1).py": own(17), "digits/lab11.py": own(18),
              "elsewhere/2.1/starter.py": own(19), "textual/starter.py.txt": own(20),
              # stray
              "starter.py": own(40), "work of absent.txt": own(41), "notes.txt": "Dear all\n",
              "s01/helper.py": "x = 1\n", "s02/notes/old_version.py": own(42)}
    odd = ["#hash", "-rf", "..dots", "new\nline", "x" * 120, "\u202etxt", "stranger", "jos\u00e9",
           unicodedata.normalize("NFD", "jos\u00e9"), os.fsdecode(b"bad\xff")]
    files |= {f"{name}/starter.py": own(21 + i) for i, name in enumerate(odd)}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "empty").mkdir()
    for name, inner, text in (("twice.zip", "starter.py", own(14)), ("zipped.zip", "work/starter.py", own(15))):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(inner, text)
        (folder / name).write_bytes(buffer.getvalue())
    enrolled = [*students, "loop", "empty", "notebook", "untouched", "broken", "absent", "twice", "zipped", "final",
                "second", "digits", "elsewhere", "textual", "hash", "jos\u00e9"]
    roster.write_text("\n".join(["id,name", *(f"{student},Student {student}" for student in enrolled)]) + "\n",
                      encoding="utf-8")


def endless(solution: str) -> str:
    """Return the solution with an endless loop in the body of its second task."""
    lines = solution.splitlines(keepends=True)
    place = [i for i, line in enumerate(lines) if line.lstrip().startswith("# TASK ")][1]
    indent = lines[place][:len(lines[place]) - len(lines[place].lstrip())]
    return "".join([*lines[:place + 1], f"{indent}while True:\n{indent}    pass\n", *lines[place + 1:]])


def moments(count: int, chosen: random.Random, seconds: float) -> list[tuple[str, IsTime]]:
    """Return when to kill each run. ``seconds`` is the time of the undisturbed run."""
    def is_at_first_files(out: Path, _passed_s: float) -> bool:
        try:
            return any(out.glob(".work/run-*/worker-*/job-*"))
        except FileNotFoundError:  # a folder disappeared before it was read, in some versions of Python
            return False

    def is_writing(out: Path, passed_s: float) -> bool:
        """Give up after 30 s: writing is so fast that the moment may be missed."""
        return passed_s > 30 or passed_s > 2 and any(True for _ in partials_in(out))

    waits_s = [chosen.uniform(0.3, 2.5 * seconds / count) for _ in range(count - 4)]
    return [("before any result", lambda out, _: (out / "submitted").is_dir()),
            ("while the first files are graded", is_at_first_files), ("while a file is half written", is_writing),
            *((f"after {wait_s:.1f} s", after(wait_s)) for wait_s in waits_s),
            ("while the pages are written", lambda out, _: (out / "students").is_dir())][:count]


def handed_out(out: Path) -> dict[str, str]:
    """Return every result and every file that an instructor or a student sees, without times."""
    return {path.relative_to(out).as_posix(): _TIMES.sub("…", path.read_text(encoding="utf-8", errors="surrogateescape")
                                                         ).replace(str(out), "OUT")
            for path in sorted(out.rglob("*")) if path.is_file() and not any(
                part.startswith(".") and not part.startswith(".course-grade") for part in path.relative_to(out).parts)}


def unexpected(out: Path) -> list[str]:
    """Return how the results differ from those that the class must get: two equal runs may both be wrong."""
    results = {student: result for (student, lab), result in results_in(out).items() if lab == NUMBER}
    wanted = {**dict.fromkeys([f"s{i:02}" for i in range(1, NUM_IN_ORDER + 1)], "graded"),
              **dict.fromkeys(["loop", "untouched", "broken", "zipped"], "graded"),
              **dict.fromkeys(["twice", "jos\u00e9"], "grade again"),
              **dict.fromkeys(["empty", "notebook", "absent", "final", "second", "digits", "elsewhere", "textual",
                               "hash"], "missing")}
    outcomes = {student: result["outcome"] for student, result in results.items()}
    problems = [f"{student} is {outcomes.get(student)}, not {what}" for student, what in wanted.items()
                if outcomes.get(student) != what]
    points = {student: sum(test["points"] for test in result["tests"] if test["passed"])
              for student, result in results.items()}
    if not points.get("untouched", 1) == 0 < points.get("loop", 0) < points.get("s04", 0) == max(points.values()):
        problems.append(f"the points are {points}")
    listed = json.loads((out / "unclear.json").read_text())
    unclear = {one["path"]: one["student"] for one in listed if one["is_open"]}
    problems += [f"{name} is listed for {unclear.get(name)}, not for {student!r}" for name, student in {
        "final/block_pool_final(2).py": "final", "elsewhere/2.1/starter.py": "elsewhere", "twice.zip": "twice",
        "textual/starter.py.txt": "textual", "notebook/lab.ipynb": "notebook", "#hash": "", "starter.py": "",
        "work of absent.txt": "", "stranger": "", "-rf": ""}.items() if unclear.get(name) != student]
    return problems + [f"graded twice: {path.relative_to(out)}" for path in out.glob("results/*/history/*")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    proofs = parser.add_subparsers(dest="proof", required=True)
    many = proofs.add_parser("many")
    many.add_argument("--files", type=int, default=200, help="students with one lab (default: %(default)s)")
    many.add_argument("--courses", type=int, default=10, help="students with all labs (default: %(default)s)")
    many.add_argument("--lab", default="1.2", help="the one lab (default: %(default)s)")
    many.add_argument("--kills", type=int, default=2, help="how often it is killed (default: %(default)s)")
    many.add_argument("--after", type=float, default=60.0, metavar="SECONDS", help="when (default: %(default)s)")
    resume = proofs.add_parser("resume")
    resume.add_argument("--kills", type=int, default=10, metavar="N", help="how often it is killed (default: 10)")
    resume.add_argument("--seed", type=int, default=17, help="seed of the random moments (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grade-proof-", ignore_cleanup_errors=True) as folder:
        prove = prove_many if arguments.proof == "many" else prove_resume
        problems = prove(arguments, Path(folder).resolve())
    print("\n".join(problems) if problems else "no problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
