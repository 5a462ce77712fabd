"""``course run --lab`` for labs that are not part of the engine but have a program to show them."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from course.commands import Course
from course.lab.lab import LabError, discover, find_lab
from course.lab.load_module import load_file
from course.student import run_command
from course.student.progress import State
from course.student.run_command import RunCommand, RunOptions

LABS = discover()


def run(root, labs, state=State.PASSED, *names):
    console = Console(file=io.StringIO(), width=200, highlight=False)
    progress = SimpleNamespace(of=lambda lab: SimpleNamespace(state=state, is_outdated=False))
    progress.remembered = progress.of
    return RunCommand(root, labs, progress, console).run(RunOptions(lab_names=names)), console.file.getvalue()


@pytest.fixture
def shown(lab1):
    (lab1.folder / "see.py").write_text("import sys\nprint('It runs', sys.argv[1])\n")
    return lab1


def test_a_lab_with_something_to_show_shows_it(shown, capfd):
    status, _ = run(shown.root, [shown], State.PASSED, "1.1")
    assert (status, capfd.readouterr().out) == (0, f"It runs {shown.starter}\n")


def test_a_program_that_fails_names_the_tests(shown, capfd):
    shown.see.write_text("raise ValueError('no')")
    status, told = run(shown.root, [shown], State.PASSED, "1.1")
    assert status == 1 and "The lab's tests: course test 1.1" in told and "ValueError: no" in capfd.readouterr().err


def test_what_is_not_started_or_not_alone_is_refused(shown):
    with pytest.raises(LabError, match="is not started"):
        run(shown.root, [shown], State.NOT_STARTED, "1.1")
    with pytest.raises(LabError, match="not part of the engine: course run --lab 1.1 shows it alone"):
        run(shown.root, discover(shown.root), State.PASSED, "1.1", "1.2")


@pytest.mark.parametrize("options, named", [
    (RunOptions(trace=Path("overload")), "--trace"), (RunOptions(prompt="Once"), "the prompt"),
    (RunOptions(model="other", trace=Path("x")), "--model and --trace")])
def test_options_that_it_would_not_get_are_refused_by_name(shown, capfd, options, named):
    command = RunCommand(shown.root, [shown], None, Console(file=io.StringIO()))
    with pytest.raises(LabError, match=f"so it does not use {named}. Its own options: python phase-.*see.py --help"):
        command.run(replace(options, lab_names=("1.1",)))
    assert capfd.readouterr().out == ""


def test_a_lab_that_passes_says_how_to_see_it(shown, capsys):
    shown.starter.write_text(shown.solution.read_text())
    course = Course(shown.root)
    assert course.test(["1.1"]) == 0
    assert "See it: course run --lab 1.1" in capsys.readouterr().out


def see(number):
    lab = find_lab(number, LABS)
    return load_file(lab.see), str(lab.solution)


def test_the_tale_of_lab_1_1_is_the_engines(capsys):
    from mini_vllm.engine import LLMEngine
    from mini_vllm.engine_config import EngineConfig
    from mini_vllm.request import SamplingParams

    module, solution = see("1.1")
    assert module.main([solution, "--tokens", "6"]) == 0
    printed = capsys.readouterr().out
    engine = LLMEngine(EngineConfig(model=module.MODEL, num_blocks=9))
    engine.add_request(module.PROMPT, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
    while engine.has_unfinished_requests():
        (output,) = engine.step()
    assert printed.count(f"{module.PROMPT}{output.text} …\n") == 2
    assert "the same 6 tokens" in printed
    num_prompt = len(engine.tokenizer.encode(module.PROMPT))
    assert f"  {6 * num_prompt + 15} tokens went through" in printed and f"  {num_prompt + 5} tokens went" in printed


def test_the_numpy_model_of_lab_1_1_is_as_sure_as_the_engine():
    from mini_vllm.llm import LLM
    from mini_vllm.request import SamplingParams

    module, solution = see("1.1")
    llm = LLM(module.MODEL, num_blocks=9)
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=5)
    (position,) = llm.generate([module.PROMPT], params)[0].outputs[0].logprobs
    model = module.NumpyLlama(module.load(module.MODEL), load_file(Path(solution)))
    logits = model.forward(llm.get_tokenizer().encode(module.PROMPT))
    logprobs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    expected = {token_id: each.logprob for token_id, each in position.top.items()}
    assert {token_id: float(logprobs[token_id]) for token_id in expected} == pytest.approx(expected, abs=1e-4)


def test_a_cache_that_changes_the_tale_is_told(capsys, monkeypatch):
    module, solution = see("1.1")
    monkeypatch.setattr(module.Teller, "tell", lambda self, token_id: self.token_ids.append(id(self)))
    assert module.main([solution, "--tokens", "2"]) == 1
    assert "course test 1.1" in capsys.readouterr().out


def test_lab_1_2_shows_that_pages_never_wait_with_room(capsys):
    module, solution = see("1.2")
    assert module.main([solution]) == 0
    *_, reserved, one_piece, pages = capsys.readouterr().out.splitlines()
    moments = [int(line[44:].split()[0]) for line in (reserved, one_piece, pages)]
    assert moments == sorted(moments, reverse=True) and len(set(moments)) == 3
    assert int(pages.split()[-1]) == 0 < int(one_piece.split()[-1])


@pytest.mark.parametrize("number, option", [("1.1", "--tokens"), ("1.2", "--requests")])
def test_a_number_that_makes_no_sense_is_refused_by_name(number, option, capsys):
    module, solution = see(number)
    with pytest.raises(SystemExit):
        module.main([solution, option, "-3"])
    assert f"{option} is -3, must be between" in capsys.readouterr().err


def test_each_workload_is_told_when_it_is_done(monkeypatch):
    def run_pieces(root, pieces, spec, on_event, *rest):
        for event in ({"event": "text", "text": " there"}, {"event": "equal", "what": "the tale", "num_tokens": 80},
                      {"event": "begin", "what": "greedy"}, {"event": "equal", "what": "greedy", "num_tokens": 16}):
            on_event(event)
        return run_command.EngineRunResult({"the tale": 80, "greedy": 16})

    monkeypatch.setattr(run_command, "run_pieces", run_pieces)
    status, told = run(LABS[0].root, LABS, State.PASSED)
    assert status == 0 and "  ✓ the tale    80 tokens\n  ✓ greedy      16 tokens\n✓ 96 tokens" in told
