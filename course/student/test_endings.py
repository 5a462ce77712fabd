"""How ``course run`` ends: which workloads it tried, and what the student has now."""

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from course.commands import Course
from course.core.result import Verdict
from course.lab.lab import discover
from course.lab.parts import FURTHER_SLOTS
from course.own_engine.run import Blame, EngineRunResult, Problem
from course.own_engine.spec import WORKLOADS
from course.student import run_command
from course.student.progress import LabProgress, State
from course.student.run_command import RunCommand, RunOptions, choose_pieces

LABS = discover()
PASSED = Verdict(True, None, "")


def lines(monkeypatch, *passing, model="tiny-tales"):
    """Return the output of ``course run``, and the workloads it asks for, if all of them succeed."""
    asked = []

    def run_pieces(root, pieces, spec, *rest):
        asked.append(spec.workloads)
        speed = (300.0, 400.0) if spec.measures_speed else None
        return EngineRunResult({"the tale": 80, **dict.fromkeys(spec.workloads, 100)}, speed)

    monkeypatch.setattr(run_command, "run_pieces", run_pieces)
    def of(lab):
        return SimpleNamespace(state=State.PASSED if lab.number in passing else State.NOT_STARTED, is_outdated=False)

    progress = SimpleNamespace(of=of, remembered=of)
    console = Console(file=io.StringIO(), width=200, highlight=False, soft_wrap=True)
    assert RunCommand(LABS[0].root, LABS, progress, console).run(RunOptions(model=model)) == 0
    return console.file.getvalue().splitlines(), asked[0]


def now_of(number):
    return next(lab.now for lab in LABS if lab.number == number)


@pytest.mark.parametrize("passing, latest", [(("2.1",), "2.1"), (("2.1", "2.2", "2.3"), "2.3"), (("4.1", "2.1"), "4.1"),
                                             (("2.1", "3.1"), "3.1")])
def test_it_ends_with_what_one_has_now(monkeypatch, passing, latest):
    printed, _ = lines(monkeypatch, *passing)
    assert printed[-2:] == ["", now_of(latest)]


def test_with_nothing_of_ones_own_there_is_nothing_to_have(monkeypatch):
    printed, workloads = lines(monkeypatch)
    assert printed[-1].endswith("✓ 80 tokens, equal to the reference's: the tale.") and workloads == ()


def test_what_a_scheduler_that_waits_cannot_do_is_left_out_and_told(monkeypatch):
    printed, workloads = lines(monkeypatch, "4.1")
    assert workloads == tuple(name for name in WORKLOADS if name != "preempts")
    assert "  “preempts” was left out: when memory runs out, your scheduler of lab 4.1 only waits." in printed
    printed, workloads = lines(monkeypatch, "4.1", "4.2")
    assert workloads == WORKLOADS and not any("left out" in line for line in printed)


def test_of_another_model_nothing_was_left_out(monkeypatch):
    monkeypatch.setattr(run_command, "check_model", lambda name: None)  # the model need not be on this machine
    printed, workloads = lines(monkeypatch, "4.1", model="smollm2")
    assert workloads == () and not any("left out" in line for line in printed)


@pytest.mark.parametrize("passing", [(), ("2.1", "3.1"), ("2.2", "3.2", "3.3"), ("3.1", "4.2", "5.1", "5.3")])
def test_status_and_run_agree_on_what_is_whose(monkeypatch, capsys, passing):
    """Check this for several half-finished courses."""
    course = Course()
    monkeypatch.setattr(course.progress, "of", lambda lab, **_: LabProgress(lab, [], {"a test": PASSED})
                        if lab.number in passing else LabProgress(lab, [], {}))
    course.status(as_json=True)
    said = json.loads(capsys.readouterr().out)["engine"]
    chosen = choose_pieces(course.labs, course.progress)
    assert said == {seat.slot: seat.lab and seat.lab.number for seat in chosen.seats}
    printed, _ = lines(monkeypatch, *passing)
    for slot, number in said.items():
        found = [line for line in printed if line.split()[:1] == [slot]]
        if number is None and slot in FURTHER_SLOTS:
            assert not found, "most students are not there yet"
            continue
        (line,) = found
        assert ("the reference’s" in line) if number is None else (f"yours, lab {number}" in line), line


def test_the_one_piece_that_is_ones_own_is_named_without_a_search(monkeypatch):
    problem = Problem("raised", "ValueError: no", "greedy", 3)
    monkeypatch.setattr(run_command, "run_pieces", lambda *rest: EngineRunResult(problem=problem))
    monkeypatch.setattr(run_command, "find_blame", lambda *rest: pytest.fail("nobody else can be to blame"))
    progress = SimpleNamespace(of=lambda lab: SimpleNamespace(
        state=State.PASSED if lab.number == "2.1" else State.NOT_STARTED, is_outdated=False))
    progress.remembered = progress.of
    console = Console(file=io.StringIO(), width=200, highlight=False, soft_wrap=True)
    assert RunCommand(LABS[0].root, LABS, progress, console).run(RunOptions()) == 1
    assert console.file.getvalue().splitlines()[-3:] == [
        "✗ Something is wrong: it failed in step 3 of “greedy”: ValueError: no.",
        "  The fault is in your block_pool of lab 2.1, The block allocator.",
        "  Its tests: course test 2.1. Only this part: course run --lab 2.1"]


def test_what_fails_only_once_is_laid_at_nobodys_door(monkeypatch):
    problem = Problem("raised", "ValueError: no", "greedy", 3)
    monkeypatch.setattr(run_command, "run_pieces", lambda *rest: EngineRunResult(problem=problem))
    monkeypatch.setattr(run_command, "find_blame",
                        lambda *rest: Blame(LABS[2:4], problem, is_alone=False, has_failed_again=False))
    progress = SimpleNamespace(of=lambda lab: SimpleNamespace(
        state=State.PASSED if lab.number in ("2.1", "2.2") else State.NOT_STARTED, is_outdated=False))
    progress.remembered = progress.of
    console = Console(file=io.StringIO(), width=200, highlight=False, soft_wrap=True)
    assert RunCommand(LABS[0].root, LABS, progress, console).run(RunOptions()) == 1
    last = console.file.getvalue().splitlines()[-1]
    assert last.startswith("  It failed once: ") and "depend on time or chance" in last and "do not" not in last
