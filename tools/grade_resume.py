"""Grade a made-up class twice, once undisturbed and once killed repeatedly, and compare all results.

    python tools/grade_resume.py                     a class of 30, killed ten times
    python tools/grade_resume.py --kills 3           the same, shorter
    python tools/grade_resume.py --seed 7            other moments

The class contains what instructors meet: right and wrong files, an endless loop, misnamed and stray files, names that
cannot be ids, two names that differ only in their encoding, an empty folder, a notebook, archives, two submissions of
one student, and a student who is not on the roster.

Each kill is a SIGKILL to the process group of ``course grade``. The first kill happens before any result, the second
while the first files are being graded, the third while a file is half written, the last while the pages are written,
and the others at random moments. After a kill no process of the run may still be running. Then the same command is run
again. In the end all results, tables, pages, feedback and the list of unclear files must equal those of the undisturbed
run, except for times. The exit status is 1 if anything differs, was graded twice or was left running.
"""

from __future__ import annotations

import argparse
import difflib
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course.core.atomic_files import partials_in
from course.lab.lab import Lab, discover, find_lab
from course.lab.starters import shipped_starter
from course.mutants import mutants_of
from course.pytest_run.provenance import commit_of

ROOT = Path(__file__).resolve().parent.parent
NUMBER = "1.1"
NUM_IN_ORDER = 14
#: Set in the environment of a run, so that its processes can be recognised.
TAG = "GRADE_RESUME_RUN"
#: The time limit of a run that is not killed.
LIMIT_S = 1800.0
#: The time that the processes of a killed run have to end.
GONE_WITHIN_S = 20.0
#: Whether it is time to kill a run, given its results folder and the seconds so far.
IsTime = Callable[[Path, float], bool]
#: What may differ between the runs: times, and the path of the results.
_TIMES = re.compile(r'"(?:cpu_s|wall_s)": [\d.e-]+|"execution_time": \d+|time="[\d.]+"|\d+ files? ran: .*')
_SKIPPED = re.compile(r"\.(?!course-grade)")


# ---- the class


class Class:
    """Writes the submissions and the roster."""

    def __init__(self, folder: Path, lab: Lab) -> None:
        self.folder, self._roster = folder, ["id,name"]
        self.lab = lab
        self.solution = lab.solution.read_text(encoding="utf-8")
        self.wrong = [mutant.apply(self.solution) for mutant in mutants_of(lab)]

    def own(self, number: int) -> str:
        """Return a file that is unique to one student: right, or wrong in a known way."""
        texts = [self.solution, *self.wrong[:3]]
        return f"{texts[number % len(texts)]}\n# the work of student {number}\n"

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def put_zip(self, name: str, files: dict[str, str]) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for inner, text in files.items():
                archive.writestr(inner, text)
        (self.folder / name).write_bytes(buffer.getvalue())

    def enrol(self, student: str, name: str = "") -> None:
        self._roster.append(f"{student},{name}")

    @property
    def roster(self) -> str:
        return "\n".join(self._roster) + "\n"


def make_class(folder: Path, roster: Path, lab: Lab) -> int:
    """Write a class of thirty with every case, including odd file and folder names. Return the length of the roster."""
    klass = Class(folder, lab)
    for i in range(1, NUM_IN_ORDER + 1):
        klass.enrol(f"s{i:02}", f"Student Number{i}")
        klass.put(f"s{i:02}/starter.py", klass.own(i))
    _files_that_cannot_be_graded(klass)
    _misnamed_files(klass)
    _odd_names(klass)
    _stray_files(klass)
    roster.write_text(klass.roster, encoding="utf-8")
    return klass.roster.count("\n") - 1


def _files_that_cannot_be_graded(klass: Class) -> None:
    for student in ("loop", "empty", "notebook", "untouched", "broken", "absent", "twice", "zipped"):
        klass.enrol(student)
    klass.put("loop/starter.py", endless(klass.solution))
    (klass.folder / "empty").mkdir()
    klass.put("notebook/lab.ipynb", json.dumps({"cells": [], "nbformat": 4}))
    klass.put("untouched/starter.py", shipped_starter(klass.lab))
    klass.put("broken/starter.py", "def f(:\n")
    klass.put("twice/starter.py", klass.own(13))
    klass.put_zip("twice.zip", {"starter.py": klass.own(14)})
    klass.put_zip("zipped.zip", {"work/starter.py": klass.own(15)})


def _misnamed_files(klass: Class) -> None:
    for student in ("final", "second", "digits", "elsewhere", "textual"):
        klass.enrol(student)
    klass.put("final/block_pool_final(2).py", klass.own(16))
    klass.put("second/starter (1).py", klass.own(17))
    klass.put(f"digits/lab{klass.lab.number.replace('.', '')}.py", klass.own(18))
    klass.put("elsewhere/2.1/starter.py", klass.own(19))
    klass.put("textual/starter.py.txt", klass.own(20))


def _odd_names(klass: Class) -> None:
    klass.enrol("jos\u00e9", "Jos\u00e9 Ruiz")
    klass.enrol("hash", "Harriet Ash")
    names = ["#hash", "-rf", "..", "new\nline", "x" * 120, "\u202etxt", "stranger", "jos\u00e9",
             unicodedata.normalize("NFD", "jos\u00e9"), os.fsdecode(b"bad\xff")]
    for i, name in enumerate(names):
        klass.put(f"{name if name != '..' else '..dots'}/starter.py", klass.own(21 + i))


def _stray_files(klass: Class) -> None:
    klass.put("starter.py", klass.own(40))
    klass.put("work of absent.txt", klass.own(41))
    klass.put("notes.txt", "Dear all\n")
    klass.put("s01/helper.py", "x = 1\n")
    klass.put("s02/notes/old_version.py", klass.own(42))


def endless(solution: str) -> str:
    """Return the solution with an endless loop in the body of its second task."""
    lines = solution.splitlines(keepends=True)
    places = [i for i, line in enumerate(lines) if line.lstrip().startswith("# TASK ")]
    place = places[min(1, len(places) - 1)]
    indent = lines[place][:len(lines[place]) - len(lines[place].lstrip())]
    return "".join([*lines[:place + 1], f"{indent}while True:\n{indent}    pass\n", *lines[place + 1:]])


# ---- a run


@dataclass(frozen=True)
class Place:
    """The input and output folders of a run, and its command, which is the same each time."""

    submissions: Path
    roster: Path
    out: Path
    temporary: Path
    log: Path

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "course.cli", "grade", str(self.submissions), "--out", str(self.out), "--lab",
                NUMBER, "--roster", str(self.roster), "--time-limit", "3"]


class Run:
    """One call of the command, in its own process group."""

    def __init__(self, place: Place, number: int) -> None:
        self._place, self._tag = place, f"{os.getpid()}-{place.out.name}-{number}"
        self._log = open(place.log, "ab")
        self.process = subprocess.Popen(
            place.command, cwd=ROOT, start_new_session=True, stdout=self._log, stderr=self._log,
            env={**os.environ, TAG: self._tag, "TMPDIR": str(place.temporary)})

    def finish(self) -> int:
        try:
            return self.process.wait(LIMIT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self._log.close()

    def left_running(self) -> list[str]:
        """Return the processes of this run that still exist after they have had time to end.

        They are recognised by their environment or, in a sandbox with another environment, by the temporary folder that
        they use.
        """
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _processes(self) -> list[str]:
        marks = (f"{TAG}={self._tag}".encode(), os.fsencode(self._place.temporary) + b"/")
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


def results_in(out: Path) -> int:
    return len(list(out.glob("results/*/*.json")))


def is_before_results(out: Path, _passed_s: float) -> bool:
    return (out / "submitted").is_dir()


def is_at_first_files(out: Path, _passed_s: float) -> bool:
    """Check whether the first files are being graded.

    Job folders are created and removed all the time, and some versions of Python raise an error if one disappears
    before it is read.
    """
    try:
        return any(out.glob(".work/run-*/worker-*/job-*"))
    except FileNotFoundError:
        return False


def is_writing(out: Path, passed_s: float) -> bool:
    """Check whether a file is half written. Give up after 30 s: writing is so fast that the moment may be missed."""
    return passed_s > 30 or (passed_s > 2 and any(True for _ in partials_in(out)))


def is_handing_out(out: Path, _passed_s: float) -> bool:
    """Check whether everything is graded and the pages are being written."""
    return (out / "students").is_dir()


def is_after(wait_s: float) -> IsTime:
    return lambda _out, passed_s: passed_s >= wait_s


def moments(count: int, chosen: random.Random, seconds: float) -> list[tuple[str, IsTime]]:
    """Return when to kill each run, with a description of the moment.

    ``seconds`` is the time of the undisturbed run. The random moments divide that time, so that the last ones are near
    the end.
    """
    waits_s = [chosen.uniform(0.3, 2.5 * seconds / count) for _ in range(count - 4)]
    first: list[tuple[str, IsTime]] = [
        ("before any result", is_before_results), ("while the first files are graded", is_at_first_files),
        ("while a file is half written", is_writing)]
    after = [(f"after {wait_s:.1f} s", is_after(wait_s)) for wait_s in waits_s]
    return [*first, *after, ("while the pages are written", is_handing_out)][:count]


def grade_and_kill(place: Place, number: int, is_time: IsTime) -> tuple[bool, list[str]]:
    """Start a run and kill it when it is time. Return whether it was still running, and what is wrong afterwards."""
    run = Run(place, number)
    begun = time.monotonic()
    try:
        while run.process.poll() is None and not is_time(place.out, time.monotonic() - begun):
            if time.monotonic() - begun > LIMIT_S:
                break
            time.sleep(0.002)
        was_running = run.process.poll() is None
    finally:
        run.kill()
    return was_running, [f"left running: {one}" for one in run.left_running()]


# ---- the comparison


def handed_out(out: Path) -> dict[str, str]:
    """Return every result and every file that an instructor or a student sees, without times."""
    texts = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and not any(_SKIPPED.match(part) for part in name.split("/")):
            texts[name] = _TIMES.sub("…", path.read_text(encoding="utf-8", errors="surrogateescape")).replace(
                str(out), "OUT")
    return texts


def differences(calm: Path, killed: Path) -> list[str]:
    before, after = handed_out(calm), handed_out(killed)
    found = [f"{name} exists only {'undisturbed' if name in before else 'after the kills'}"
             for name in sorted(before.keys() ^ after.keys())]
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            lines = list(difflib.unified_diff(before[name].splitlines(), after[name].splitlines(), lineterm="", n=0))
            found.append("\n    ".join([f"{name} differs:", *(line[:300] for line in lines[2:12])]))
    return found + [f"{path.relative_to(killed)} is left over" for path in partials_in(killed)]


def run(num_kills: int, seed: int) -> int:
    chosen = random.Random(seed)
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="grade-resume-", ignore_cleanup_errors=True) as text:
        folder = Path(text).resolve()
        for name in ("in", "tmp"):
            (folder / name).mkdir()
        common = (folder / "in", folder / "roster.csv")
        calm, killed = (Place(*common, folder / name, folder / "tmp", folder / f"{name}.log")
                        for name in ("calm", "killed"))
        num_students = make_class(calm.submissions, calm.roster, find_lab(NUMBER, discover(ROOT)))
        commit = commit_of(ROOT)
        print(f"{len(os.listdir(calm.submissions))} names in the folder, {num_students} students on the roster",
              flush=True)
        begun = time.monotonic()
        first = Run(calm, 0)
        status = first.finish()
        seconds = time.monotonic() - begun
        problems += [f"undisturbed, left running: {one}" for one in first.left_running()]
        print(f"undisturbed: status {status}, {results_in(calm.out)} results, {seconds:.0f} s", flush=True)
        problems += kill_and_resume(killed, num_kills, chosen, seconds, status)
        problems += differences(calm.out, killed.out) + expectations(killed.out)
        if commit_of(ROOT) != commit:
            problems.append("The course was changed meanwhile, so files were graded a second time: run this again.")
        if problems:
            print(killed.log.read_text(encoding="utf-8", errors="replace")[-4000:])
        print_grades(killed.out)
        num_files = len(handed_out(killed.out))
    print("\n".join(problems) if problems else f"no difference in {num_files} files: results, tables, pages, feedback")
    return 1 if problems else 0


def kill_and_resume(place: Place, num_kills: int, chosen: random.Random, seconds: float, status: int) -> list[str]:
    problems = []
    num_done = 0
    for number, (when, is_time) in enumerate(moments(num_kills, chosen, seconds), start=1):
        before = results_in(place.out)
        was_running, wrong = grade_and_kill(place, number, is_time)
        problems += wrong
        num_done += was_running
        now = results_in(place.out)
        if number == 1 and (not was_running or now):
            problems.append("the first kill came too late: there were results")
        print(f"kill {number:2} {when}: {now} results, {before} before"
              + ("" if was_running else "; the run had ended"), flush=True)
        if partials := len(list(partials_in(place.out))):
            print(f"        half-written files: {partials}", flush=True)
    last = Run(place, num_kills + 1)
    resumed = last.finish()
    problems += [f"left running at the end: {one}" for one in last.left_running()]
    print(f"resumed: status {resumed}, {results_in(place.out)} results; {num_done} of {num_kills} kills hit a running "
          "command", flush=True)
    if resumed != status:
        problems.append(f"the exit status is {resumed}, undisturbed it was {status}")
    if "is not empty" in place.log.read_text(encoding="utf-8", errors="replace"):
        problems.append("a run refused to resume")
    return problems


def expectations(out: Path) -> list[str]:
    """Return how the results differ from those that the class must get: two equal runs may both be wrong."""
    outcome, points = {}, {}
    for path in out.glob(f"results/*/{NUMBER}.json"):
        result = json.loads(path.read_text())["result"]
        outcome[path.parent.name] = result["outcome"]
        points[path.parent.name] = sum(test["points"] for test in result["tests"] if test["passed"])
    wanted = {**{f"s{i:02}": "graded" for i in range(1, NUM_IN_ORDER + 1)}, "loop": "graded", "empty": "missing",
              "notebook": "missing", "untouched": "graded", "broken": "graded", "absent": "missing",
              "twice": "grade again", "zipped": "graded", "final": "missing", "second": "missing",
              "digits": "missing", "elsewhere": "missing", "textual": "missing", "jos\u00e9": "grade again",
              "hash": "missing"}
    problems = [f"{student} is {outcome.get(student)}, not {what}" for student, what in wanted.items()
                if outcome.get(student) != what]
    problems += [f"{student} has {points.get(student)} points" for student, is_right in (
        ("s04", points.get("s04") == max(points.values(), default=0)), ("untouched", points.get("untouched") == 0),
        ("loop", 0 < points.get("loop", 0) < points.get("s04", 0))) if not is_right]
    listed = out / "unclear.json"
    unclear = {one["path"]: one["student"] for one in json.loads(listed.read_text()) if one["is_open"]} \
        if listed.is_file() else {}
    for name, student in {"final/block_pool_final(2).py": "final", "elsewhere/2.1/starter.py": "elsewhere",
                          "textual/starter.py.txt": "textual", "notebook/lab.ipynb": "notebook", "twice.zip": "twice",
                          "#hash": "", "starter.py": "", "work of absent.txt": "", "stranger": "", "-rf": ""}.items():
        if unclear.get(name) != student:
            problems.append(f"{name} is listed for {unclear.get(name)}, not for {student!r}")
    return problems + [f"graded twice: {path.relative_to(out)}" for path in out.glob("results/*/history/*")]


def print_grades(out: Path) -> None:
    table = out / "grades.csv"
    lines = table.read_text(encoding="utf-8").splitlines() if table.is_file() else []
    print("\n".join(line[:100] for line in lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="how often the run is killed (default: 10)")
    parser.add_argument("--seed", type=int, default=17, help="seed of the random moments (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.kills < 1:
        parser.error("--kills must be 1 or more")
    return run(arguments.kills, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
