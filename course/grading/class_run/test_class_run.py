"""``course grade`` from end to end, with a stand-in for the grader: a class, killed, resumed, corrected."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from course.cli import main
from course.core.result import LabResult, Outcome, StudentResult, TestResult
from course.grading.class_run import write_exports
from course.grading.class_run.check_folders import MARKER, check_places
from course.grading.class_run.command import ClassGrader, GradeOptions
from course.grading.class_run.comments import read_comments
from course.grading.class_run.last_call import NONE
from course.grading.class_run.overrides import read_overrides
from course.grading.class_run.plan import Shard, read_regrade, read_shard
from course.grading.class_run.result_key import check_hidden, key_of, unearned
from course.grading.class_run.store import Record, Store, workshop
from course.grading.class_run.worker_pool import Pool
from course.grading.class_run.worker_process import Job
from course.grading.grade_file.remarks import remark_on
from course.grading.limits import Settings
from course.lab.lab import PROJECT_ROOT, LabError, discover, find_lab
from course.pytest_run.provenance import SandboxInfo, commit_of, digest_of_tests, make_provenance

#: Grades according to the text; some texts make it do what a grader should never meet.
STAND_IN = """
    import os, sys, time
    sys.path.insert(0, {root!r})
    from course.grading.class_run import worker
    from course.core.result import LabResult, Outcome, TestResult

    def grade(lab, path, settings):
        text = path.read_text()
        while "dies later" in text and not os.path.exists({log!r} + ".go"):
            time.sleep(0.01)
        if "dies" in text:
            os.kill(os.getpid(), 9)
        if "fails" in text:
            raise RuntimeError("no")
        if "hangs" in text:
            time.sleep(600)
        if "busy" in text:
            return LabResult(lab.number, Outcome.GRADE_AGAIN, reason="busy")
        print("not an answer")
        with open({log!r}, "a") as log:
            log.write(text.strip() + "\\n")
        passed = "right" in text
        return LabResult(lab.number, Outcome.GRADED, (TestResult(passed, name="test_a", points=3),), sandbox="none",
                         wall_s=time.time())

    worker.remark_on = lambda lab, content: "Odd." if b"odd" in content else ""
    worker.serve(grade)
"""
LEVEL = SandboxInfo("none", True, ("Anything.",))
REQUEST = {"root": str(PROJECT_ROOT), "settings": {"sandbox": "none", "time_limit_s": 1, "hidden": None}}
LABS = discover()
LAB = find_lab("2.1", LABS)
PROVENANCE = make_provenance(PROJECT_ROOT, [LAB], {}, LEVEL)


class Class:
    """A folder of submissions, a folder of results, and what was graded."""

    def __init__(self, folder: Path) -> None:
        self.submissions, self.out, self.log = folder / "in", folder / "out", folder / "log.txt"
        self.stand_in = folder / "stand_in.py"
        self.stand_in.write_text(textwrap.dedent(STAND_IN).format(root=str(PROJECT_ROOT), log=str(self.log)))
        self.exported = []
        self.said = ""
        self.level = LEVEL

    def hand_in(self, **texts: str) -> None:
        for name, text in texts.items():
            path = self.submissions / name / "starter.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def grader(self, **wish) -> ClassGrader:
        self.console = Console(file=io.StringIO(), width=100)
        wish = GradeOptions(self.submissions, self.out, **{"labs": ["2.1"], "num_jobs": 1, **wish})
        return ClassGrader(wish, PROJECT_ROOT, self.console, [sys.executable, str(self.stand_in)],
                           lambda _: self.level, self.export)

    def export(self, out, students, provenance, labs, unclear, groups):
        self.exported, self.unclear, self.groups = students, unclear, groups
        return []

    def grade(self, **wish) -> int:
        status = self.grader(**wish).run()
        self.said = self.console.file.getvalue()
        return status

    def graded(self) -> list[str]:
        """Return the texts that went through the grader since the last call."""
        texts = self.log.read_text().split("\n")[:-1] if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return sorted(texts)

    def rows(self) -> dict[str, tuple[str, float, str]]:
        return {row.student: (row.labs["2.1"].outcome.value, row.points, row.labs["2.1"].reason)
                for row in self.exported}


@pytest.fixture
def klass(tmp_path):
    return Class(tmp_path)


def test_a_class_is_graded_and_the_second_call_has_nothing_to_do(klass):
    klass.hand_in(ann="right", bob="wrong odd", eve="")
    (klass.submissions / "notes.txt").write_text("")
    roster = klass.submissions.parent / "roster.csv"
    roster.write_text("id,name\nann,Ann Lee\nbob,\neve,\nzoe,Zoe\n")
    assert klass.grade(roster=roster) == 1
    assert klass.rows() == {"ann": ("graded", 3, ""), "bob": ("graded", 0, "Odd."),
                            "eve": ("unreadable", 0, "starter.py is empty."),
                            "zoe": ("missing", 0, "Nothing was handed in.")}
    assert klass.exported[0].name == "Ann Lee" and not klass.exported[3].is_submitted
    assert klass.exported[3].max_points == sum(test.points for test in unearned(LAB, None)) > 0
    assert klass.graded() == ["right", "wrong odd"]
    assert "4 files: 2 graded, 1 missing, 1 not readable" in klass.said
    assert "eve 2.1: starter.py is empty." in klass.said and "zoe" not in klass.said
    assert "Handed in, but not graded: 2 (nothing is guessed)." in klass.said
    assert "notes.txt: notes.txt is neither a folder nor an archive." in klass.said
    before = klass.rows()
    (klass.submissions / "notes.txt").unlink()
    klass.out.joinpath("overrides.csv").write_text("student,lab,points,reason\neve,2.1,0,an empty file\n")
    assert klass.grade(roster=roster) == 0
    assert (klass.rows(), klass.graded()) == (before, []) and "(none new)" in klass.said
    assert (klass.out / "submitted/ann/2.1.py").read_text() == "right"


def test_what_changed_is_graded_again_and_the_old_row_stays(klass):
    klass.hand_in(ann="wrong", bob="wrong")
    klass.grade()
    klass.hand_in(ann="right")
    klass.grade()
    assert klass.graded() == ["right", "wrong", "wrong"] and klass.rows()["ann"][1] == 3
    (old,) = Store(klass.out).history("ann", "2.1")
    assert old.result.points == 0 and Store(klass.out).history("bob", "2.1") == []


def test_another_word_for_the_same_sandbox_grades_nothing_again(klass):
    klass.hand_in(ann="right", bob="wrong")
    klass.grade(settings=Settings("require"))
    klass.graded()
    klass.grade(settings=Settings("auto"))
    assert klass.graded() == [] and "(none new)" in klass.said and "Graded again" not in klass.said
    klass.grade(settings=Settings("auto", 99.0))
    assert klass.graded() == ["right", "wrong"]
    assert "Graded again, because the time limit or the version of Python or the engine changed: 2 files" in klass.said
    klass.level = replace(LEVEL, name="landlock")
    klass.grade(settings=Settings("auto", 99.0))
    assert klass.graded() == ["right", "wrong"]
    assert "Graded again, because the sandbox was none, and is landlock: 2 files" in klass.said


def test_regrade_keeps_the_old_row(klass):
    klass.hand_in(ann="right", bob="right")
    klass.grade()
    klass.graded()
    klass.grade(regrade=["bob:2.1"])
    assert klass.graded() == ["right"] and klass.rows()["bob"][1] == 3
    assert [len(Store(klass.out).history(student, "2.1")) for student in ("ann", "bob")] == [0, 1]


def test_a_history_is_not_written_twice(tmp_path):
    store = Store(tmp_path)
    store.put(Record("ann", LabResult("2.1", Outcome.GRADED, cpu_s=1.0)))
    store._keep(tmp_path / "results/ann/2.1.json")  # killed here, between the copy and the new result
    store.put(Record("ann", LabResult("2.1", Outcome.GRADED, cpu_s=2.0)))
    store.put(Record("ann", LabResult("2.1", Outcome.GRADED, cpu_s=3.0)))
    assert [record.result.cpu_s for record in store.history("ann", "2.1")] == [1.0, 2.0]
    assert store.get("ann", "2.1").result.cpu_s == 3.0


def test_only_grades_one_and_shows_all(klass):
    klass.hand_in(ann="right", bob="right one")
    assert klass.grade(only=["bob"]) == 0
    assert klass.graded() == ["right one"]
    assert klass.rows()["ann"] == ("grade again", 0, "Not graded yet.")
    assert "2 files: 1 graded, 1 not graded yet (1 now" in klass.said and "grades the remaining files" in klass.said
    with pytest.raises(LabError, match="--only bop: there is no such student among the 2 here. Did you mean bob?"):
        klass.grade(only=["bop"])


def test_labs_may_come_one_call_after_the_other(klass):
    klass.hand_in(ann="right", bob="right")
    klass.grade()
    shutil.rmtree(klass.submissions / "bob")
    klass.grade(labs=["2.2"])
    assert {row.student: {lab: result.outcome.value for lab, result in row.labs.items()} for row in klass.exported} == {
        "ann": {"2.1": "graded", "2.2": "graded"}, "bob": {"2.1": "graded", "2.2": "missing"}}


def test_what_gives_no_score_is_done_twice_and_said(klass):
    klass.hand_in(ann="dies", bob="right", cy="fails", dan="busy")
    assert klass.grade(num_jobs=2) == 1
    rows = klass.rows()
    assert rows["ann"][:2] == ("grade again", 0) and "exit status -9" in rows["ann"][2]
    assert rows["cy"] == ("grade again", 0, "The grader failed.") and rows["dan"][2] == "busy"
    assert rows["bob"][1] == 3
    flags = {row.student: row.labs["2.1"].flags for row in klass.exported}
    assert flags["cy"] == ("the grader failed: RuntimeError: no",)
    assert all(row.max_points > 0 for row in klass.exported)
    klass.hand_in(ann="right now")
    klass.graded()
    assert klass.grade() == 1 and klass.graded() == ["right now"]


def test_a_worker_that_hangs_is_replaced(tmp_path):
    klass = Class(tmp_path)
    pool = Pool(1, tmp_path, REQUEST, [sys.executable, str(klass.stand_in)], backstop_s=0.3)
    results = {job.student: result for job, result in pool.run([Job("a", "2.1", b"hangs"), Job("b", "2.1", b"right")])}
    assert results["a"].outcome is Outcome.GRADE_AGAIN and "did not finish within 0.3 s" in results["a"].reason
    assert results["b"].points == 3
    assert not list(tmp_path.glob("worker-*"))


def test_a_file_whose_worker_died_is_given_to_one_that_is_idle(tmp_path):
    klass = Class(tmp_path)
    pool = Pool(2, tmp_path, REQUEST, [sys.executable, str(klass.stand_in)])
    results = pool.run([Job("a", "2.1", b"dies later"), Job("b", "2.1", b"right")])
    with interrupted_after(60):
        assert next(results)[0].student == "b"
        Path(f"{klass.log}.go").touch()  # the worker of b has nothing to do now
        ((job, result),) = results
    assert (job.student, job.is_second, result.outcome) == ("a", True, Outcome.GRADE_AGAIN)


@contextlib.contextmanager
def interrupted_after(seconds):
    """Raise TimeoutError in the block if it takes longer: it would wait forever."""
    def interrupt(number, frame):
        raise TimeoutError(f"nothing happened for {seconds} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_grader_that_does_not_start_is_an_error(klass):
    klass.hand_in(ann="right")
    klass.stand_in.write_text("raise SystemExit('no such thing')")
    with pytest.raises(LabError, match="The grader did not start: .*exit status 1(.|\n)*no such thing"):
        klass.grade()
    assert klass.rows()["ann"][0] == "grade again"  # and the tables were written all the same


def test_shards_together_are_the_whole(klass):
    texts = {f"s{number}": f"right {number}" for number in range(6)}
    klass.hand_in(**texts)
    for index in (1, 2):
        assert klass.grade(shard=f"{index}/2") == 0
    assert klass.graded() == sorted(texts.values())
    assert klass.grade() == 0 and klass.graded() == []
    assert {row[0] for row in klass.rows().values()} == {"graded"}


def test_a_score_of_another_text_is_not_shown(klass):
    klass.hand_in(ann="right")
    klass.grade()
    klass.hand_in(ann="wrong")
    others = next(f"{index}/2" for index in (1, 2) if not Shard(index, 2).has("ann", "2.1"))
    klass.grade(shard=others)
    assert klass.rows()["ann"] == ("grade again", 0, "Not graded yet.")


def test_two_at_a_time_in_one_folder_are_refused(klass, tmp_path):
    klass.hand_in(ann="right")
    with workshop(klass.out, "work"), pytest.raises(LabError, match="Another `course grade` is running"):
        klass.grade()
    with workshop(klass.out, "work-1-of-2"):
        assert klass.grade(shard="2/2") == 0


def test_an_interrupt_writes_the_tables_and_ends_the_workers(klass, monkeypatch):
    klass.hand_in(ann="right", bob="right too")
    monkeypatch.setattr("course.grading.class_run.console_output.Meter.count",
                        lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        klass.grade()
    assert [row[0] for row in klass.rows().values()].count("graded") == 1
    assert not (klass.out / ".work").exists()
    monkeypatch.undo()
    klass.graded()
    assert klass.grade() == 0 and len(klass.graded()) == 1


def test_a_worker_ends_with_its_parent(tmp_path):
    """Check this however the parent was ended, and whatever the worker does."""
    klass = Class(tmp_path)
    script = f"""
        import sys; sys.path.insert(0, {str(PROJECT_ROOT)!r})
        from pathlib import Path
        from course.grading.class_run.worker_pool import Pool
        from course.grading.class_run.worker_process import Job
        pool = Pool(1, Path({str(tmp_path)!r}), {REQUEST!r}, [sys.executable, {str(klass.stand_in)!r}])
        jobs = [Job("a", "2.1", b"right"), Job("b", "2.1", b"hangs")]
        for job, result in pool.run(jobs):
            print(pool._workers[0].process.pid, flush=True)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{worker}/stat").exists() and " Z " not in Path(f"/proc/{worker}/stat").read_text():
        assert time.monotonic() < deadline, "the worker is still there"
        time.sleep(0.01)


# ---- any order of kills


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 3)), max_size=4), st.randoms())
def test_any_order_of_kills_and_resumes_ends_in_the_same_results(tmp_path_factory, kills, random):
    """Kill runs after a given number of results, before or after the rename of a write, in a given number of shards."""
    folder = tmp_path_factory.mktemp("kills")
    store = Store(folder)
    texts = {f"s{number}": number for number in range(5)}
    graded = []

    def run(shard, num_until_kill=None, in_write=False):
        students = [student for student in texts if shard.has(student, "2.1")]
        random.shuffle(students)
        for student in students:
            if store.get(student, "2.1") is not None:
                continue
            if num_until_kill == 0:
                if in_write:  # killed between writing and renaming
                    (folder / "results" / student).mkdir(parents=True, exist_ok=True)
                    (folder / "results" / student / ".2.1.json.1.partial").write_text('{"student": "s')
                return
            num_until_kill = None if num_until_kill is None else num_until_kill - 1
            tests = (TestResult(True, name="test_a", points=texts[student]),)
            store.put(Record(student, LabResult("2.1", Outcome.GRADED, tests)))
            graded.append(student)

    for num_until_kill, in_write, num_shards in kills:
        run(Shard(1, num_shards), num_until_kill, in_write)
    run(Shard())
    assert {student: store.get(student, "2.1").result.points for student in texts} == texts
    assert sorted(graded) == sorted(texts) and store.students() == sorted(texts)
    assert all(store.labs_of(student) == ["2.1"] and not store.history(student, "2.1") for student in texts)
    shutil.rmtree(folder)


def test_a_run_that_is_killed_outright_is_taken_up(klass):
    """Kill the whole command with SIGKILL while a file is in progress."""
    klass.hand_in(a="right 1", b="right 2", c="dies later")
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
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (klass.out / "results/b/2.1.json").exists():
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.01)
    run.kill()
    run.wait()
    assert klass.graded() == ["right 1", "right 2"]
    klass.hand_in(c="right 3")
    Path(f"{klass.log}.go").touch()
    assert klass.grade() == 0 and klass.graded() == ["right 3"]
    assert {student: row[1] for student, row in klass.rows().items()} == {"a": 3, "b": 3, "c": 3}


# ---- small parts


def test_a_damaged_result_counts_as_none(tmp_path):
    store = Store(tmp_path)
    store.put(Record("ann", LabResult("2.1", Outcome.GRADED)))
    for text in ("", "{", "[]", '{"student": "ann"}'):
        (tmp_path / "results/ann/2.1.json").write_text(text)
        assert store.get("ann", "2.1") is None
    store.put(Record("ann", LabResult("2.1", Outcome.GRADED)))
    assert store.get("ann", "2.1") is not None


def test_overrides_count_and_say_why(klass):
    klass.hand_in(ann="wrong")
    klass.out.mkdir()
    (klass.out / "overrides.csv").write_text("student,lab,points,reason\nann,2.1,2.5,talked to her\n")
    klass.grade()
    assert klass.rows()["ann"][1] == 2.5 and klass.exported[0].overrides["2.1"].reason == "talked to her"


def test_a_gradebook_may_be_there_before_the_first_call(klass):
    """Check also that similarity gets the groups, whether or not they share submissions."""
    klass.hand_in(ann="right", bob="wrong")
    klass.out.mkdir()
    (klass.out / "gradebook.toml").write_text('[[groups]]\nmembers = ["ann", "bob"]\nlabs = ["2.1"]\nshared = false\n'
                                              '[students.zoe]\nexcused = ["2.1"]\n')
    pytest.importorskip("copydetect", reason="the comparison is an extra")
    assert klass.grade() == 0 and klass.groups is None
    assert klass.grade(has_similarity=True) == 0
    assert klass.groups == {"2.1": {"ann": "ann, bob", "bob": "ann, bob"}}
    assert [row.marks["2.1"].points for row in klass.exported] == [3, 0]
    assert 'students.zoe: no submission of "zoe" so far.' in klass.said  # there is no roster


def test_similar_files_are_in_a_table(tmp_path):
    pytest.importorskip("copydetect", reason="the comparison is an extra")
    texts = {"ann": LAB.solution.read_text(), "ben": "right", "cy": "x" * 100_001}
    for student, text in texts.items():
        Store(tmp_path).put_text(student, "2.1", text.encode())
    assert write_exports.hand_out(tmp_path, [], PROVENANCE, [LAB]) == [] and not (tmp_path / "similarity.csv").exists()
    rows = [StudentResult(student, "", {}) for student in texts]
    assert write_exports.hand_out(tmp_path, rows, PROVENANCE, [LAB], groups={}) == []
    assert (tmp_path / "similarity.csv").read_text().splitlines() == [
        "lab,percent,student,other,remark", "2.1,100,ann,the solution,",
        '2.1,,cy,,"not compared: it is longer than 100,000 characters, or takes too long to read"']


@pytest.mark.parametrize("name", ["gradebook.toml", "overrides.csv", "comments.csv"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_decision_that_cannot_be_read_is_not_ignored(klass, name, is_folder):
    klass.hand_in(ann="right")
    klass.out.mkdir()
    if is_folder:
        (klass.out / name).mkdir()
    else:
        (klass.out / name).symlink_to("nowhere")
    with pytest.raises(LabError, match=f"{name} cannot be read: "):
        klass.grade()
    assert sorted(path.name for path in klass.out.iterdir()) == [name]


def test_what_the_last_call_used_is_not_forgotten(klass, tmp_path):
    klass.hand_in(ann="right", bob="wrong")
    roster, book, more = tmp_path / "class.csv", tmp_path / "rules.toml", tmp_path / "points.csv"
    roster.write_text("id,name\nann,Ann Lee\nbob,\n")
    book.write_text('[labs."2.1"]\npoints = 30\n')
    more.write_text("student,lab,points,reason\nbob,2.1,2,x\n")
    assert klass.grade(roster=roster, gradebook=book, overrides=more) == 0
    before = (klass.out / MARKER).read_bytes()
    for is_preview in (False, True):
        with pytest.raises(LabError) as error:
            klass.grade(is_preview=is_preview)
        for option, path in (("roster", roster), ("gradebook", book), ("overrides", more)):
            assert f"The last call used {path} as --{option}: give it again, or --{option} none." in str(error.value)
        assert "--comments" not in str(error.value) and (klass.out / MARKER).read_bytes() == before
    with pytest.raises(LabError, match="--roster none"):
        klass.grade(gradebook=book, overrides=NONE)
    klass.grade(roster=roster, gradebook=NONE, overrides=more)
    assert klass.exported[0].marks == {} and klass.exported[1].overrides["2.1"].points == 2
    klass.grade(roster=roster, overrides=NONE)  # the gradebook is forgotten: it was left out on purpose
    assert klass.exported[1].overrides == {}
    klass.grade(roster=NONE)
    assert klass.grade() == 0


def test_a_gradebook_that_is_gone_is_missed(klass):
    klass.hand_in(ann="right")
    klass.out.mkdir()
    (klass.out / "gradebook.toml").write_text('attempts = "best"\n')
    klass.grade()
    klass.grade(gradebook=klass.out / "gradebook.toml")
    (klass.out / "gradebook.toml").unlink()
    with pytest.raises(LabError, match="gradebook.toml as --gradebook: give it again, or --gradebook none"):
        klass.grade()
    (klass.out / "gradebook.toml").write_text("")
    assert klass.grade() == 0 and klass.exported[0].marks
    assert klass.grade(gradebook=NONE) == 0 and not klass.exported[0].marks  # also with a file in the folder


def test_a_marker_of_an_earlier_version_remembers_nothing(klass):
    klass.hand_in(ann="right")
    for text in ('{"made by": "course grade"}', "[]", "{", '{"used": 1}'):
        klass.out.mkdir(exist_ok=True)
        (klass.out / MARKER).write_text(text)
        assert klass.grade() == 0


def test_an_excused_student_is_not_counted_as_missing(klass):
    klass.hand_in(ann="right")
    klass.out.mkdir()
    roster = klass.out.parent / "class.csv"
    roster.write_text("id\nann\nbob\ncy\n")
    (klass.out / "gradebook.toml").write_text('[students.bob]\nexcused = ["2.1"]\n')
    assert klass.grade(roster=roster) == 0
    assert "3 files: 1 graded, 1 missing, 1 excused" in klass.said


def test_with_the_best_attempt_every_attempt_must_have_a_score(klass):
    (klass.out).mkdir()
    (klass.out / "gradebook.toml").write_text('attempts = "best"\n')
    klass.hand_in(ann="busy")
    assert klass.grade() == 1
    klass.hand_in(ann="right")
    assert klass.grade() == 1 and klass.exported[0].marks["2.1"].points is None
    assert "an attempt must be graded again" in klass.exported[0].marks["2.1"].steps[1]
    assert "ann 2.1: Another attempt must be graded again." in klass.said
    (klass.out / "gradebook.toml").write_text('attempts = "last"\n')
    klass.graded()
    klass.grade()
    assert klass.exported[0].marks["2.1"].points == 3 and klass.graded() == []


@pytest.mark.parametrize("row, words", [
    ("eve,2.1,1,x", "no student 'eve' is graded here"),
    ("anne,2.1,1,x", "no student 'anne' is graded here. Did you mean ann?"),
    ("ann,9.9,1,x", "no lab '9.9' is graded here; there are 2.1"),
    ("ann,2.1,1,", "the reason is missing"), ("ann,2.1,many,x", "points are 'many', must be a number"),
    ("ann,2.1,61,x", "points are 61, must be between 0 and 60"), ("ann,2.1,-1,x", "must be between"),
    ("ann,2.1,nan,x", "must be between"),
    ("ann,2.1,1,x\nann,2.1,2,x", "line 3: an earlier line is for the same student and lab"),
])
def test_overrides_that_cannot_be_meant(tmp_path, row, words):
    path = tmp_path / "overrides.csv"
    path.write_text(f"student,lab,points,reason\n{row}\n")
    with pytest.raises(LabError) as error:
        read_overrides(path, ["ann"], {"2.1": 60})
    assert words in str(error.value) and "overrides.csv, line" in str(error.value)


def test_places_that_would_spoil_each_other(tmp_path):
    root, subs = tmp_path / "course-2026", tmp_path / "subs"
    for folder in (root / "phase-02-x", subs / "ann", tmp_path / "full"):
        folder.mkdir(parents=True)
    (tmp_path / "full/letter.txt").write_text("")
    check_places(subs, tmp_path / "out", root)
    check_places(subs, root / "grades", root)
    for submissions, out, where, words in [
            (subs, subs / "out", root, "must not contain each other"),
            (subs / "ann", subs, root, "must not contain each other"),
            (subs, root, root, "contains the course itself"),
            (subs, tmp_path / "out", subs / "ann", "a student's tests"),
            (subs, root / "phase-02-x/out", root, "among the files of the course"),
            (subs, tmp_path / "full", root, "is not empty"), (tmp_path / "none", subs, root, "does not exist"),
            (subs, tmp_path / "full/letter.txt", root, "is a file")]:
        with pytest.raises(LabError, match=words):
            check_places(submissions, out, where)


def test_shards_and_regrades_are_read():
    assert read_shard("2/4") == Shard(2, 4)
    for text in ("0/4", "5/4", "2", "a/b", "2/0"):
        with pytest.raises(LabError, match="must be like 2/4"):
            read_shard(text)
    assert [sum(Shard(index, 3).has(f"s{n}", "2.1") for index in (1, 2, 3)) for n in range(9)] == [1] * 9
    (again,) = read_regrade(["ann:2.1"], ["ann"], LABS)
    assert again.means("ann", "2.1") and not again.means("ann", "2.2") and not again.means("bob", "2.1")
    for text in ("eve", "ann:9.9"):
        with pytest.raises(LabError):
            read_regrade([text], ["ann"], LABS)


@pytest.mark.parametrize("lines", ["{row}", "{row}\n{row}", "student,lab,points\n{row}"])
def test_a_table_without_its_headings_shows_what_line_1_must_be(tmp_path, lines):
    path = tmp_path / "overrides.csv"
    path.write_text(lines.format(row="ann,2.1,50,medical certificate"))
    with pytest.raises(LabError) as error:
        read_overrides(path, ["ann"], {"2.1": 60})
    first = path.read_text().split("\n")[0]
    assert str(error.value) == f"{path}: line 1 must be `student,lab,points,reason`, but is `{first}`."
    path.write_text("x" * 10_000)
    with pytest.raises(LabError, match=r"but is `x{99}…`\.$"):
        read_comments(path, ["ann"], ["2.1"])


def test_the_commands_of_the_guide_use_the_same_options_and_write_overrides_that_can_be_read(tmp_path):
    text = (PROJECT_ROOT / "docs/grading.md").read_text().split("## In five commands")[1].split("```")[1]
    lines = text.strip().splitlines()
    calls = [line.partition("#")[0].replace("--regrade ann", "").strip() for line in lines if "course grade" in line]
    assert len(lines) == 5 and len(calls) == 3 and len({*calls}) == 1
    (tmp_path / "grades").mkdir()
    subprocess.run(["sh", "-c", lines[-1]], cwd=tmp_path, check=True)
    (one,) = read_overrides(tmp_path / "grades/overrides.csv", ["ann"], {"2.1": 60}).values()
    assert one["2.1"].points == 50


def test_a_key_is_of_all_that_a_score_depends_on(tmp_path):
    (tmp_path / "2.1").mkdir()
    (tmp_path / "2.1/test_hidden.py").write_text("import pytest\n\n\n@pytest.mark.points(4)\ndef test_x(lab): ...\n")
    provenance = make_provenance(PROJECT_ROOT, [LAB], {}, LEVEL)
    keys = {key_of("2.1", sha, provenance, one) for sha, one in (("a", Settings()), ("b", Settings()),
            ("a", Settings("none")), ("a", Settings("require")), ("a", Settings(time_limit_s=3)))}
    assert len(keys) == 3  # the level counts, not the word that asked for it
    keys.add(key_of("2.1", "a", replace(provenance, sandbox="landlock"), Settings()))
    with_hidden = make_provenance(PROJECT_ROOT, [LAB], {}, LEVEL, tmp_path)
    assert len(keys | {key_of("2.1", "a", with_hidden, Settings())}) == 5
    before = digest_of_tests(LAB, tmp_path)
    assert before != digest_of_tests(LAB, None)
    (tmp_path / "2.1/surface.json").write_text("{}")
    assert digest_of_tests(LAB, tmp_path) != before
    assert [(test.name, test.points, test.is_hidden) for test in unearned(LAB, tmp_path)][-1] == ("test_x", 4, True)
    check_hidden(tmp_path, LABS)
    for folder, words in ((tmp_path / "no", "is not a folder"), (tmp_path / "2.1", "contains no hidden tests")):
        with pytest.raises(LabError, match=words):
            check_hidden(folder, LABS)
    (tmp_path / "2.1").rename(tmp_path / "8.8")
    with pytest.raises(LabError, match="there is no lab 8.8"):
        check_hidden(tmp_path, LABS)


def test_a_commit_says_what_was_changed_since(tmp_path):
    assert commit_of(tmp_path).startswith("version ")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "course").mkdir()
    (tmp_path / "course/a.py").write_text("1")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    clean = commit_of(tmp_path)
    (tmp_path / "notes.txt").write_text("of no interest")
    assert commit_of(tmp_path) == clean and len(clean) == 12
    found = set()
    for text in ("2", "3"):
        (tmp_path / "course/a.py").write_text(text)
        found.add(commit_of(tmp_path))
    assert len(found) == 2 and all(name.startswith(f"{clean}-dirty-") for name in found)


@pytest.mark.parametrize("change, words", [
    (lambda text: text, "The file is the unchanged starter."),
    (lambda text: text.replace("\n", "\r\n"), "The file is the unchanged starter."),
    (lambda text: text.replace("BlockPool", "BlockPol"), "It defines BlockPol but no BlockPool: was it renamed?"),
    (lambda text: text.replace("def free_blocks", "def fre_blocks"), "no BlockPool.free_blocks: was it renamed?"),
    (lambda text: text + "\nx = (", "The file does not parse: line "),
    (lambda text: "-" * 400_000 + "1", "The file does not parse: "),
    (lambda text: "from other import *", ""), (lambda text: text + "\nx = 1\n", ""),
])
def test_what_is_odd_about_a_text_is_said(change, words):
    remark = remark_on(LAB, change(LAB.starter.read_text()).encode())
    assert remark == "" if not words else words in remark


def test_mistakes_in_the_call_end_it_with_2(tmp_path, capsys):
    assert main(["grade", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert "does not exist; give the folder" in capsys.readouterr().err
    for words in (["--jobs", "0"], ["--time-limit", "-1"], ["--sandbox", "maybe"]):
        with pytest.raises(SystemExit) as ended:
            main(["grade", str(tmp_path), "--out", "x", *words])
        assert ended.value.code == 2
    assert not (tmp_path / "out").exists()


def test_folders_may_be_named_from_where_one_stands(klass, monkeypatch):
    klass.hand_in(ann="right")
    monkeypatch.chdir(klass.submissions.parent)
    klass.submissions, klass.out = Path("in"), Path("out")
    assert klass.grade() == 0 and klass.rows()["ann"][1] == 3


def test_results_are_json_with_all_that_is_needed(klass):
    klass.hand_in(ann="right")
    klass.grade()
    record = json.loads((klass.out / "results/ann/2.1.json").read_text())
    assert record["student"] == "ann" and len(record["key"]) == 64 and record["result"]["outcome"] == "graded"


def test_a_packed_course_says_its_commit(tmp_path):
    (tmp_path / "COMMIT").write_text("0123456789abcdef0123456789abcdef01234567\n")
    assert commit_of(tmp_path) == "0123456789ab"
