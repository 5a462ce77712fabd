"""Engines of a student's pieces: if one works, the run says so; if not, it names the piece to blame."""

import io
import re
import subprocess

import pytest
from rich.console import Console

from course.authoring.check_in_engine import Reference, check_alone
from course.lab.lab import PROJECT_ROOT, LabError, discover, find_lab
from course.lab.mutants import mutants_of
from course.lab.parts import just
from course.own_engine.run import EngineRunResult, Problem, find_blame, run_pieces
from course.own_engine.spec import Spec
from course.student.progress import State
from course.student.run_command import RunCommand, RunOptions
from course.test_forked import STAND_IN
from mini_vllm.cli import main as mini_vllm_command

LABS = discover()
DECODED = ("greedy", "seeded", "samples", "turns", "shared", "preempts", "dates")


def lab(number):
    return find_lab(number, LABS)


def broken(number, name):
    """Return the text of a lab's solution with one of its mutants applied."""
    (mutant,) = [mutant for mutant in mutants_of(lab(number)) if mutant.name == name]
    return mutant.apply(lab(number).solution.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reference():
    """Decode ``DECODED`` with the reference, once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("course.core.child_process.subprocess", STAND_IN)
        reference = Reference(PROJECT_ROOT, DECODED)
        assert reference.decode() == ([], f"what it decodes in {len(DECODED)} workloads, for comparison")
    return reference


@pytest.fixture
def trial(tmp_path, forked, reference):
    """Return a function that runs the pieces of ``files`` in one workload, and finds the piece to blame.

    ``files`` maps lab number → text; None is the solution's text.
    """
    def run(files, *workloads, silence_s=20.0, blames=True, problem=None, known=reference.tokens):
        for number, text in files.items():
            (tmp_path / f"lab-{number}.py").write_text(text or lab(number).solution.read_text(encoding="utf-8"))
        pieces = just(LABS, [lab(number) for number in files], lambda lab: lab.number in files,
                      lambda lab: tmp_path / f"lab-{lab.number}.py")
        spec = Spec(workloads=workloads, reference=known)
        outcome = (EngineRunResult(problem=problem) if problem else
                   run_pieces(PROJECT_ROOT, pieces, spec, silence_s=silence_s))
        if outcome.problem is None or not blames:
            return outcome, None
        return outcome, find_blame(PROJECT_ROOT, pieces, spec, outcome.problem, LABS, silence_s)

    return run


@pytest.mark.parametrize("number, mutant, workload, kind", [
    ("2.1", "remove-leaves-the-back-link", "greedy", "raised"),
    ("2.2", "floor-instead-of-ceil", "greedy", "invariant"),
    ("2.3", "everyone-decodes", "greedy", "differs"),
    ("3.1", "never-copies", "samples", "differs"),
    ("3.3", "the-half-matching-block-counts-as-whole", "turns", "raised"),
    ("3.4", "copies-what-is-not-written", "shared", "differs"),
    ("4.2", "keeps-the-blocks", "preempts", "invariant"),
    ("4.3", "a-ghost-is-served", "greedy", "raised"),
    ("5.1", "everybody-sees-the-whole-context", "greedy", "differs"),
    ("5.2", "times-the-temperature", "seeded", "differs"),
    ("5.3", "a-finished-request-keeps-its-blocks", "greedy", "invariant"),
    ("6.2", "only-tokens-that-finish", "dates", "raised"),
    ("6.2", "advance-by-one-byte", "dates", "differs"),
])
def test_the_broken_piece_is_named(trial, number, mutant, workload, kind):
    sound = "4.3" if number != "4.3" else "2.1"
    _, blame = trial({sound: None, number: broken(number, mutant)}, workload, problem=Problem("", "", workload))
    assert [lab.number for lab in blame.labs] == [number] and blame.is_alone, blame
    assert blame.problem.kind == kind and blame.problem.what == workload, blame.problem


def test_a_broken_base_is_named(trial):
    _, blame = trial({"2.1": broken("2.1", "remove-leaves-the-back-link"), "3.1": None}, "greedy")
    assert [lab.number for lab in blame.labs] == ["2.1"] and blame.is_alone


def test_pieces_that_fail_only_together_are_named_together(trial):
    """Test a queue that works alone but raises when combined with a student's pool."""
    queue = (lab("4.3").solution.read_text() + "\nfrom course.lab import base_labs as base\n"
             "if '2.1' in base._files:\n    raise ValueError('not with that pool')\n")
    outcome, blame = trial({"2.1": None, "4.3": queue}, "greedy")
    assert outcome.problem.kind == "raised" and not blame.is_alone
    assert [lab.number for lab in blame.labs] == ["2.1", "4.3"]


def test_a_piece_that_hangs_is_stopped_and_its_line_named(trial):
    check = "        for block in blocks:\n            self._check_mine(block, \"touch\")\n"
    text = lab("2.1").solution.read_text().replace(check, "        import signal\n        while True:\n"
                                                             "            signal.pause()\n")
    outcome, _ = trial({"2.1": text}, "turns", silence_s=3.0, blames=False)
    assert outcome.problem.kind == "hangs" and outcome.problem.step > 0
    assert outcome.problem.place.startswith("lab-2.1.py of lab 2.1, line ") and "in touch" in outcome.problem.place


@pytest.mark.parametrize("change, kind, message", [
    (("    def touch(", "    def touched("), "refused", "block_pool: BlockPool .* has no method touch"),
    (("from collections import Counter\n", "import os\nos._exit(3)\n"), "died", "ended with status 3"),
    (("from collections import Counter\n", "1 / 0\n"), "raised", "ZeroDivisionError"),
])
def test_a_piece_that_cannot_be_put_in_is_named(trial, change, kind, message):
    outcome, blame = trial({"4.3": None, "2.1": lab("2.1").solution.read_text().replace(*change)}, "greedy")
    assert outcome.problem.kind == kind
    assert re.search(message, outcome.problem.message), outcome.problem
    assert [lab.number for lab in blame.labs] == ["2.1"]


def test_pieces_that_work_decode_what_the_reference_does(trial, monkeypatch, reference):
    """Run a fresh process, in which the reference's tokens for “greedy” are not known."""
    monkeypatch.setattr("course.core.child_process.subprocess", subprocess)
    outcome, _ = trial({"2.1": None, "3.1": None, "4.3": None}, "greedy", "samples", "turns",
                       known={name: reference.tokens[name] for name in ("samples", "turns")})
    assert outcome.problem is None and list(outcome.equal) == ["greedy", "samples", "turns"]


def test_a_grammar_of_ones_own_writes_dates(trial):
    outcome, _ = trial({"6.2": None, "5.3": None}, "dates")
    assert outcome.problem is None and outcome.equal["dates"] > 100
    assert len(outcome.dates) == 10 and all(re.fullmatch(r"\d+ [A-Z][a-z]+ \d{4}", text) for text in outcome.dates)


def test_a_scheduler_that_waits_ends_with_the_engines_sentence(forked, monkeypatch, reference):
    """Check two workloads; ``course check`` covers all of them."""
    monkeypatch.setattr("course.authoring.check_in_engine.WORKLOADS", ("turns", "preempts"))
    problems, proved = check_alone(lab("4.1"), LABS, reference)
    assert problems == [] and "48 tokens in 1 workloads, all the reference's" in proved
    assert proved.endswith("with too small a pool, nothing could be planned")


# ---- the command


class FakeProgress:
    """A stand-in that returns the test results it was given."""

    def __init__(self, passing):
        self.passing = passing

    def of(self, lab):
        state = State.PASSED if lab.number in self.passing else State.NOT_STARTED
        return type("Row", (), {"state": state, "is_outdated": False})()

    remembered = of


@pytest.fixture
def command():
    output = io.StringIO()
    command = RunCommand(PROJECT_ROOT, LABS, FakeProgress(set()), Console(file=output, width=160))
    return command, output


def test_where_a_trace_cannot_go_is_told_before_anything_runs(command, tmp_path):
    run, output = command
    (tmp_path / "file").touch()
    for target, complaint in ((tmp_path / "no" / "x.svg", "there is no folder"), (tmp_path, "is a folder"),
                              (tmp_path / "file" / "x.svg", "is not a folder")):
        with pytest.raises(LabError, match=complaint):
            run.run(RunOptions(trace=target))
    assert output.getvalue() == ""


def test_advice_waits_until_the_tale_is_over(command, monkeypatch, capsys):
    run, output = command

    def run_pieces(root, pieces, spec, on_event, silence_s):
        on_event({"event": "advice", "text": "a fast BLAS would help"})
        on_event({"event": "text", "text": " lived"})
        assert capsys.readouterr().err == ""
        return EngineRunResult(equal={"the tale": 80})

    monkeypatch.setattr("course.student.run_command.run_pieces", run_pieces)
    assert run.run(RunOptions(prompt="The fox")) == 0
    assert capsys.readouterr().err == "a fast BLAS would help\n" and "The fox lived\n" in output.getvalue()


def test_with_nothing_of_ones_own_the_reference_tells_the_tale(command, forked, tmp_path):
    run, output = command
    path = tmp_path / "my steps.json"
    assert run.run(RunOptions(prompt="The fox", trace=path)) == 0
    text = output.getvalue()
    assert "No part is yours yet." in text and "\nThe fox" in text
    assert "80 tokens, equal to the reference's: the tale." in text
    assert "block_pool" in text and path.is_file()
    assert f"to see it: mini-vllm trace '{path}'\n" in text, "as a shell reads it"
    assert mini_vllm_command(["trace", str(path)]) == 0 and "The fox" in path.with_suffix(".svg").read_text("utf-8")
