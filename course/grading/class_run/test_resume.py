"""``course grade`` stopped at any moment: the same command resumes, and another program's folder is left alone."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from course.core import atomic_files
from course.core.atomic_files import PARTIAL, remove_partials, write_whole
from course.core.result import LabResult, Outcome
from course.grading.class_run import command
from course.grading.class_run.check_folders import MARKER, check_places, is_ours
from course.grading.class_run.last_call import claim
from course.grading.class_run.store import Record, Store, workshop
from course.grading.class_run.test_class_run import Class
from course.lab.lab import PROJECT_ROOT, LabError

HOST = atomic_files._HOST


class Killed(BaseException):
    """Takes the place of SIGKILL: no handler of the grader catches it, and nothing is cleaned up after it."""


@pytest.fixture
def klass(tmp_path):
    return Class(tmp_path)


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def state(klass):
    return {row.student: row.labs["2.1"].outcome.value for row in klass.exported}


# ---- killed, at each step that writes


STEPS = {
    "before the folder": ("course.grading.class_run.command.claim", "before"),
    "after the marker": ("course.grading.class_run.command.claim", "after"),
    "before the first text": ("course.grading.class_run.store.Store.put_text", "before"),
    "after the first text": ("course.grading.class_run.store.Store.put_text", "after"),
    "before a result": ("course.grading.class_run.store.Store.put", "before"),
    "after a result": ("course.grading.class_run.store.Store.put", "after"),
    "before a worker": ("course.grading.class_run.worker_pool.Pool._start", "before"),
    "after a worker": ("course.grading.class_run.worker_pool.Pool._start", "after"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_killed_at_any_step_is_resumed(klass, monkeypatch, step):
    klass.hand_in(ann="right 1", bob="wrong 2", eve="")
    name, when = STEPS[step]
    module, _, attribute = name.rpartition(".")
    owner = {"course.grading.class_run.command": command, "course.grading.class_run.store.Store": Store,
             "course.grading.class_run.worker_pool.Pool": command.Pool}[module]
    real = getattr(owner, attribute)

    def killed(*arguments):
        if when == "after":
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, killed)
        patch.setattr("course.grading.class_run.store.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            klass.grade()
    klass.grade()
    assert state(klass) == {"ann": "graded", "bob": "graded", "eve": "unreadable"}
    assert klass.graded() == ["right 1", "wrong 2"]
    assert not list(klass.out.rglob(f"*{PARTIAL}")) and not (klass.out / ".work").exists()


@pytest.mark.parametrize("name", [MARKER, "submitted/ann/2.1.py", "results/ann/2.1.json", "results/bob/2.1.json"])
def test_a_run_that_is_killed_between_writing_and_renaming_is_resumed(klass, monkeypatch, name):
    klass.hand_in(ann="right 1", bob="right 2")
    real = os.replace

    def killed(source, target):
        if str(target).endswith(name):
            raise Killed
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(atomic_files.Path, "replace", killed)
        patch.setattr(atomic_files.Path, "unlink", lambda *_, **__: None)  # SIGKILL would leave the file
        with pytest.raises(Killed):
            klass.grade()
    assert list(klass.out.rglob(f"*{PARTIAL}"))
    for path in klass.out.rglob(f"*{PARTIAL}"):  # as if the process that wrote it were gone
        path.rename(path.with_name(path.name.replace(f".{os.getpid()}.", f".{dead_pid()}.")))
    assert klass.grade() == 0
    assert state(klass) == {"ann": "graded", "bob": "graded"} and not list(klass.out.rglob(f"*{PARTIAL}"))
    assert not list(klass.out.rglob("history"))


def test_the_real_thing_killed_before_its_first_result(klass):
    """Send SIGKILL to its process group, as an impatient instructor would."""
    klass.hand_in(ann="dies later", bob="right")
    script = f"""
        import sys; sys.path.insert(0, {str(PROJECT_ROOT)!r})
        from pathlib import Path
        from rich.console import Console
        from course.grading.class_run.command import ClassGrader, GradeOptions
        from course.pytest_run.provenance import SandboxInfo
        wish = GradeOptions(Path({str(klass.submissions)!r}), Path({str(klass.out)!r}), labs=["2.1"], num_jobs=1)
        ClassGrader(wish, Path({str(PROJECT_ROOT)!r}), Console(), [sys.executable, {str(klass.stand_in)!r}],
                    lambda _: SandboxInfo("none", True, ()), lambda *_: []).run()
    """
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.DEVNULL,
                           start_new_session=True)
    deadline = time.monotonic() + 30
    while not any("job-" in folder for folder, _, _ in os.walk(klass.out / ".work")):
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert Store(klass.out).students() == [] and (klass.out / "submitted").is_dir()
    klass.hand_in(ann="right too")
    (klass.log.parent / f"{klass.log.name}.go").touch()
    assert klass.grade() == 0 and state(klass) == {"ann": "graded", "bob": "graded"}


# ---- whose folder it is


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path):
    klass = Class(tmp_path)
    klass.hand_in(ann="right")
    for name, text in {"letter.txt": "Dear", "results/run1/metrics.json": '{"loss": 1}', "results/a/b.json": "[",
                       "submitted/ann/2.1.py": "x", "overrides.csv.bak": ""}.items():
        out = tmp_path / name.replace("/", "-")
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text(text)
        klass.out = out
        with pytest.raises(LabError, match="is not empty, and no earlier `course grade` made it"):
            klass.grade()
        assert [path for path in out.rglob("*") if path.is_file()] == [out / name]


def test_what_an_earlier_run_left_is_known(tmp_path):
    (tmp_path / "subs").mkdir()
    root = tmp_path / "course-2026"
    for number, make in enumerate([
            claim,
            lambda out: (out / ".work.lock").touch(),  # versions without a marker left this before their first result
            lambda out: (out / ".work-1-of-3.lock").touch(),
            lambda out: Store(out).put(Record("ann", LabResult("2.1", Outcome.GRADED)))]):
        out = tmp_path / f"out{number}"
        (out / "submitted/ann").mkdir(parents=True)
        with pytest.raises(LabError, match="is not empty"):
            check_places(tmp_path / "subs", out, root)
        make(out)
        assert is_ours(out)
        check_places(tmp_path / "subs", out, root)


def test_the_marker_comes_first_and_stays(klass, monkeypatch):
    klass.hand_in(ann="right")
    seen = []

    def noting(out, name):
        seen.append(sorted(path.name for path in out.iterdir()))
        return workshop(out, name)

    monkeypatch.setattr(command, "workshop", noting)
    klass.grade()
    assert seen == [[MARKER]] and json.loads((klass.out / MARKER).read_text())["made by"] == "course grade"
    before = (klass.out / MARKER).stat().st_mtime_ns
    klass.grade()
    assert (klass.out / MARKER).stat().st_mtime_ns == before


def test_a_mistake_in_the_call_leaves_nothing(klass):
    klass.hand_in(ann="right")
    with pytest.raises(LabError):
        klass.grade(only=["bop"])
    assert not klass.out.exists()


# ---- half-written files


def test_half_written_files_of_the_dead_go_and_of_the_living_stay(tmp_path):
    dead, living = dead_pid(), os.getppid()
    names = {f".2.1.json.{HOST}.{dead}{PARTIAL}": False, f".2.1.json.{HOST}.{living}{PARTIAL}": True,
             f".2.1.json.{HOST}-elsewhere.{dead}{PARTIAL}": True, f".2.1.json.4711{PARTIAL}": True, "2.1.json": True,
             f"report{PARTIAL}": True}
    folder = tmp_path / "results/ann"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("{")
    remove_partials(tmp_path)
    assert {name: (folder / name).exists() for name in names} == names
    for name in names:  # a file of another machine, or of an older version, is removed by its age
        if (folder / name).exists():
            os.utime(folder / name, (1, 1))
    remove_partials(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["2.1.json", f"report{PARTIAL}"]


def test_folders_that_vanish_meanwhile_are_no_obstacle(tmp_path, monkeypatch):
    """Let the folders of another run's workers vanish during the search."""
    left = tmp_path / f"results/ann/.2.1.json.{HOST}.{dead_pid()}{PARTIAL}"
    (tmp_path / ".work-1-of-2/run-a/worker-1/job-b").mkdir(parents=True)
    left.parent.mkdir(parents=True)
    left.touch()
    real = os.scandir

    def vanishing(path):
        if ".work" in str(path):
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    remove_partials(tmp_path)
    assert not left.exists()


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a/b.json"
    write_whole(path, b"old")
    monkeypatch.setattr(atomic_files.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]
    assert HOST and "." not in HOST


def test_a_folder_without_a_result_is_no_student(tmp_path):
    (tmp_path / "results/ann").mkdir(parents=True)
    assert Store(tmp_path).students() == []


def test_a_work_folder_that_does_not_go_is_no_obstacle(tmp_path, monkeypatch):
    """Keep the old folder: a worker of the killed run may still be using it."""
    (tmp_path / ".work/run-old/worker-1").mkdir(parents=True)
    monkeypatch.setattr("course.grading.class_run.store.shutil.rmtree", lambda *_, **__: None)
    with workshop(tmp_path, "work") as folder:
        assert list(folder.iterdir()) == []


# ---- what an instructor must decide


def test_what_is_not_graded_stops_nobody_and_the_status_tells(klass):
    klass.hand_in(ann="right", **{"#odd": "right odd", "Bob": "b", "bob": "b", "cy/2.2": "c", "twice": "right t"})
    (klass.submissions / "twice.zip").write_bytes(b"")
    assert klass.grade() == 1
    assert klass.graded() == ["right"]
    assert state(klass) == {"ann": "graded", "cy": "missing", "twice": "grade again"}
    assert sorted(one.path for one in klass.unclear if one.is_open) == [
        "#odd", "Bob", "bob", "cy/2.2/starter.py", "twice.zip"]
    said = " ".join(klass.said.split())
    for part in ("Handed in, but not graded: 5", "'#odd' cannot be a student's id",
                 "cy: 2.2/starter.py is not named like a lab's file.",
                 "twice: There are two submissions: 'twice' and 'twice.zip'. Keep one of them."):
        assert part in said, part
    notes = {row.student: row.notes for row in klass.exported}
    assert notes["cy"] == ("2.2/starter.py is not named like a lab's file. It is not graded.",)
    assert klass.grade(only=["ann"]) == 1 and len(klass.unclear) == 5  # the list covers the class, not only ann


def test_what_an_instructor_decided_is_open_no_more(klass):
    klass.hand_in(ann="right", cy="")
    (klass.submissions / "ann.zip").write_bytes(b"")
    assert klass.grade() == 1
    (klass.out / "overrides.csv").write_text("student,lab,points,reason\ncy,2.1,0,empty\nann,2.1,3,the first counts\n")
    assert klass.grade() == 0 and [one.is_open for one in klass.unclear] == [False, False]
    (klass.out / "overrides.csv").unlink()
    (klass.submissions / "ann.zip").unlink()
    klass.hand_in(cy="wrong")
    assert klass.grade() == 0 and klass.unclear == [] and state(klass)["cy"] == "graded"


def test_nothing_left_to_grade_is_a_mistake_with_all_of_the_list(klass):
    klass.hand_in(**{"#a": "1", "-b": "2"})
    with pytest.raises(LabError, match="nothing that can be graded(.|\n)*'#a' cannot(.|\n)*'-b' cannot"):
        klass.grade()
    assert not klass.out.exists()
