"""The scripts for Gradescope, Classroom and containers, run on a made-up machine. What they install is stubbed, and
so is ``course grade``; the shell, the files and the exit statuses are real."""

import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
GRADING = REPO / "grading"
SCRIPTS = sorted([*GRADING.rglob("*.sh"), GRADING / "gradescope/run_autograder"])
RESULTS = {"score": 12.5, "output": "Well done.", "stdout_visibility": "visible", "tests": [{"name": "a"}]}
METADATA = {"created_at": "2026-03-01T10:00:00+01:00", "assignment": {"due_date": "2026-03-02T10:00:00+01:00"},
            "users": [{"id": 1234, "name": "Anna, \"A.\" Example", "email": "a@example.org"}]}
#: Writes results.json as the exporter does, and records its arguments.
COURSE = """
import json, os, sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
made = out / "students" / os.listdir(sys.argv[2])[0] / "results.json"
made.parent.mkdir(parents=True)
seen = {"arguments": sys.argv[1:], "environment": dict(os.environ), "cwd": os.getcwd(),
        "links": sorted(p.name for p in Path(sys.argv[2]).rglob("*") if p.is_symlink()),
        "roster": Path(sys.argv[sys.argv.index("--roster") + 1]).read_text() if "--roster" in sys.argv else ""}
Path(%r).write_text(json.dumps(seen))
"""


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def python_script(path, text):
    """Write a script that this Python runs. Python's path may contain a space, so a ``#!`` line cannot name it."""
    path.with_name(f"{path.name}-stub.py").write_text(text)
    script(path, f'#!/bin/sh\nexec "{sys.executable}" -IS "$0-stub.py" "$@"\n')


class Machine:
    """A folder in place of /autograder, and commands in place of those that need root or a network."""

    def __init__(self, folder):
        self.root, self.bin = folder / "autograder", folder / "bin"
        self.log, self.seen = folder / "log", folder / "seen"
        for name in ("submission", "source"):
            (self.root / name).mkdir(parents=True)
        for name in ("apt-get", "useradd", "chown", "podman"):
            script(self.bin / name, f'#!/bin/sh\necho "{name} $*" >> {self.log}\n')
        script(self.bin / "id", "#!/bin/sh\necho 0\n")
        script(self.bin / "runuser", f'#!/bin/sh\necho "runuser $*" >> {self.log}\nshift 3\nexec "$@"\n')
        script(self.bin / "python3", f'#!/bin/sh\necho "python3 $*" >> {self.log}\nmkdir -p "$3/bin"\n'
                                     f'printf \'#!/bin/sh\\necho "$*" >> {self.log}\\n\' > "$3/bin/python"\n'
                                     'chmod +x "$3/bin/python"\n')
        for name in ("autograder.py", "run_autograder", "setup.sh"):
            shutil.copy(GRADING / "gradescope" / name, self.root / "source")
        (self.root / "source/labs").write_text("2.1\n2.2\n")
        (self.root / "submission/starter.py").write_text("x = 1\n")
        (self.root / "submission_metadata.json").write_text(json.dumps(METADATA))

    def install(self, course):
        script(self.root / "venv/bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python_script(self.root / "venv/bin/course", COURSE % str(self.seen) + course)

    def call(self, *command, **environment):
        environment = {"PATH": f"{self.bin}:{os.environ['PATH']}", "AUTOGRADER_ROOT": str(self.root),
                       "SECRET": "s3cret", "TMPDIR": str(self.root.parent), **environment}
        return subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=60)

    def grade(self, **environment):
        done = self.call("bash", self.root / "source/run_autograder", **environment)
        assert done.returncode == 0, done.stderr
        return json.loads((self.root / "results/results.json").read_text())


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(GRADING).as_posix())
def test_a_script_is_sound(path):
    subprocess.run(["bash", "-n", path], check=True)
    assert os.access(path, os.X_OK) and path.read_text().startswith("#!/usr/bin/env bash\n")
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", path], check=True)


def test_setup_installs_the_course_and_locks_it(machine):
    (machine.root / "source/course").mkdir(mode=0o777)
    done = machine.call("bash", machine.root / "source/setup.sh")
    assert done.returncode == 0, done.stderr
    log = machine.log.read_text()
    assert f"-e {machine.root}/source/course[course]" in log and f"chown -R -h root:root {machine.root}/source" in log
    assert "apt-get install" in log and "bubblewrap" in log
    assert stat.S_IMODE((machine.root / "results").stat().st_mode) == 0o700
    assert not (machine.root / "source/course").stat().st_mode & 0o022


def test_the_autograder_drops_to_another_user_and_takes_the_result_over(machine):
    machine.install(f"made.write_text({json.dumps(RESULTS)!r})")
    (machine.root / "submission/link.py").symlink_to("/etc/passwd")
    os.mkfifo(machine.root / "submission/pipe")
    (machine.root / "source/hidden").mkdir()
    assert machine.grade() == {**RESULTS, "stdout_visibility": "hidden"}
    assert re.search(r"^runuser -u grader -- env -i ", machine.log.read_text(), re.M)
    assert re.search(r"^chown -R -h grader ", machine.log.read_text(), re.M)
    seen = json.loads(machine.seen.read_text())
    assert "SECRET" not in seen["environment"] and seen["links"] == ["link.py"]
    assert seen["roster"] == 'id,name\n1234,"Anna, ""A."" Example"\n'
    arguments = " ".join(seen["arguments"])
    assert arguments.endswith(f"--lab 2.1 --lab 2.2 --hidden {machine.root}/source/hidden")
    assert "--sandbox auto" in arguments
    assert not list(machine.root.parent.glob("tmp.*")), "the working folder is left behind"


@pytest.fixture(scope="module")
def autograder():
    spec = importlib.util.spec_from_file_location("autograder", GRADING / "gradescope/autograder.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_says_grade_again(results, why):
    assert results["score"] == 0 and "does not mean zero" in results["output"]
    assert results["stdout_visibility"] == "hidden"
    (case,) = results["tests"]
    assert case["visibility"] == "hidden" and case["name"] == "Grade again" and why in case["output"]
    assert "LEAK" not in json.dumps(results) and "root:" not in json.dumps(results)


@pytest.mark.parametrize("course, why", [
    ("print('LEAK'); sys.exit(2)", "status 2"), ("made.write_text('LEAK')", "used"),
    ("import time; time.sleep(60)", "time was up"),
])
def test_whatever_fails_there_is_a_result_that_says_grade_again(machine, course, why):
    machine.install(course)
    check_says_grade_again(machine.grade(AUTOGRADER_LIMIT_S="1" if "sleep" in course else "30"), why)


def link_to_a_good_one(made):
    made.with_name("LEAK.json").write_text(json.dumps(RESULTS))
    made.symlink_to("LEAK.json")


@pytest.mark.parametrize("make", [
    lambda made: made.write_text('{"score": NaN, "tests": []}'), lambda made: made.write_text('{"score": 1}'),
    lambda made: made.write_text('{"score": true, "tests": []}'), lambda made: made.write_text("[" * 100_000),
    lambda made: made.write_text('{"score": -1, "tests": []}'), lambda made: made.write_bytes(b"\xff"),
    link_to_a_good_one, os.mkfifo, Path.mkdir, lambda made: None,
    lambda made: made.write_text('{"score": 1, "tests": ["LEAK"], "x": "' + "y" * 5_000_000 + '"}'),
])
def test_a_result_that_is_none_is_not_taken_over(autograder, tmp_path, make):
    make(tmp_path / "made.json")
    autograder.accept(tmp_path / "made.json", tmp_path / "results.json", "0", tmp_path / "metadata.json")
    check_says_grade_again(json.loads((tmp_path / "results.json").read_text()), "cannot be used")


def test_a_part_that_must_be_graded_again_is_still_a_result(autograder, tmp_path):
    (tmp_path / "made.json").write_text(json.dumps(RESULTS))
    autograder.accept(tmp_path / "made.json", tmp_path / "results.json", "1", tmp_path / "metadata.json")
    assert json.loads((tmp_path / "results.json").read_text())["score"] == 12.5


@pytest.mark.parametrize("metadata, student", [(None, "student"), ("[]", "student"), ("{", "student"),
                                               ('{"users": [{"id": "../../x", "name": 3}]}', "student"),
                                               ('{"users": [{"id": 7}]}', "7")])
def test_odd_metadata_stops_nobody(autograder, machine, tmp_path, metadata, student):
    path = machine.root / "submission_metadata.json"
    path.unlink() if metadata is None else path.write_text(metadata)
    assert autograder.lay(machine.root, tmp_path / "work") == student
    assert (tmp_path / "work/submissions" / student / "starter.py").is_file()
    assert (tmp_path / "work/roster.csv").read_text().splitlines()[1].startswith(f"{student},")


def test_lateness_is_said(autograder, tmp_path):
    late = {**METADATA, "created_at": "2026-03-02T10:00:01+01:00"}
    (tmp_path / "metadata.json").write_text(json.dumps(late))
    (tmp_path / "made.json").write_text(json.dumps(RESULTS))
    autograder.accept(tmp_path / "made.json", tmp_path / "results.json", "0", tmp_path / "metadata.json")
    output = json.loads((tmp_path / "results.json").read_text())["output"]
    assert output == "Handed in after the due date.\nWell done."


def test_a_missing_installation_is_a_result_too(machine):
    machine.install("")
    (machine.root / "venv/bin/course").unlink()
    assert "status 127" in machine.grade()["tests"][0]["output"]


@pytest.mark.skipif(not (REPO / ".git").exists(), reason="it packs what is committed, and here is no repository")
def test_the_package_has_everything_at_its_root(tmp_path):
    hidden = tmp_path / "my hidden tests" / "2.1"
    hidden.mkdir(parents=True)
    (hidden / "test_hidden.py").write_text("")
    done = subprocess.run([GRADING / "gradescope/make_zip.sh", tmp_path / "a.zip", "2.1", "4.3"], text=True,
                          capture_output=True, env={**os.environ, "HIDDEN": str(hidden.parent)})
    assert done.returncode == 0 and "labs 2.1 4.3, commit" in done.stdout, done.stderr
    with zipfile.ZipFile(tmp_path / "a.zip") as packed:
        names = set(packed.namelist())
        assert packed.read("labs") == b"2.1\n4.3\n"
        assert packed.getinfo("run_autograder").external_attr >> 16 & 0o111
    assert {"setup.sh", "run_autograder", "autograder.py", "hidden/2.1/test_hidden.py"} <= names
    assert "course/pyproject.toml" in names
    assert any(name.endswith("lab-01-block-allocator/test_lab.py") for name in names)
    assert not [name for name in names if ".git/" in name or ".venv" in name]


@pytest.mark.parametrize("arguments, why", [([], "usage"), (["a.zip"], "usage"), (["a.zip", "9.9"], "no lab 9.9"),
                                            (["a.zip", "$(id)"], "not a lab's number")])
def test_a_wrong_call_packs_nothing(tmp_path, arguments, why):
    done = subprocess.run([GRADING / "gradescope/make_zip.sh", *arguments], cwd=tmp_path, capture_output=True,
                          text=True)
    assert done.returncode == 2 and why in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("status, code", [(1, 0), (2, 2)])
def test_classroom_grades_and_shows_the_page(machine, tmp_path, status, code):
    python_script(machine.bin / "course", COURSE % str(machine.seen)
           + f"(made.parent / 'feedback.md').write_text('# Feedback'); sys.exit({status})")
    (machine.root / "submission/.git").mkdir()
    summary = tmp_path / "summary.md"
    done = machine.call("bash", GRADING / "classroom/grade.sh", machine.root / "submission", tmp_path / "out", "2.1",
                        GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == code and summary.read_text() == "# Feedback"
    assert json.loads(machine.seen.read_text())["arguments"][-2:] == ["--lab", "2.1"]


@pytest.mark.parametrize("row, percent, code, said", [
    ("anna,43,86", "50", 0, "43 of 86"), ("anna,42.5,86", "50", 1, "42.5 of 86"), ("anna,86,86", "100", 0, "86 of 86"),
    ("anna,,86", "50", 1, "graded again"), ("anna,0,0", "50", 1, "0 of 0"), ("", "50", 1, "was not graded"),
])
def test_points_become_an_exit_status(tmp_path, row, percent, code, said):
    (tmp_path / "grades.csv").write_text(f"student,2.1 points,2.1 max\n{row}\n")
    done = subprocess.run([sys.executable, "-IS", GRADING / "classroom/points.py", tmp_path, "2.1", percent],
                          capture_output=True, text=True)
    assert done.returncode == code and said in done.stdout and not done.stderr


def test_the_workflow_takes_tests_from_a_fixed_commit_and_may_only_read():
    text = (GRADING / "classroom/classroom.yml").read_text()
    grade, report = text.split("  run-autograding-tests:")
    assert re.search(r'COMMIT: "[0-9a-f]{40}"', grade) and "permissions: {}" in grade
    assert "write" not in re.search(r"permissions:\n((?: {6}.*\n)+)", grade)[1]
    assert "persist-credentials: true" not in text and grade.count("persist-credentials: false") == 2
    assert "checkout" not in report and "pull_request_target" not in text


def test_the_container_has_no_network_and_no_root(machine, tmp_path):
    (tmp_path / "in").mkdir()
    done = machine.call("bash", GRADING / "container/grade.sh", tmp_path / "in", tmp_path / "out", "--lab", "2.1",
                        ENGINE=str(machine.bin / "podman"))
    assert done.returncode == 0, done.stderr
    called = machine.log.read_text()
    for option in ("--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges",
                   f"{tmp_path}/in:/submissions:ro", "mini-vllm-grader --lab 2.1"):
        assert option in called, option
    text = (GRADING / "container/Containerfile").read_text()
    assert re.search(r"^USER (?!0|root)", text, re.M)
