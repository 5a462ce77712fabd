"""The output of ``make demo`` is true, fits the screen, and says what to try next."""

import io
import re
from functools import partial

import pytest
from rich.console import Console

from mini_vllm.cli import main
from mini_vllm.demo import TRY_NEXT, tale
from mini_vllm.demo.blocks import show_blocks
from mini_vllm.demo.tale import OPENING, tell_a_tale
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import load
from mini_vllm.request import SamplingParams


def console(width=80):
    return Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return the demo's output and its picture, with a small pool and short answers to save time."""
    screen, picture = console(), tmp_path_factory.mktemp("demo") / "run.svg"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tale, "LLMEngine", partial(LLMEngine, EngineConfig(num_blocks=64)))
        patch.setattr(tale, "SamplingParams", lambda max_tokens, **rest: SamplingParams(max_tokens=24, **rest))
        tell_a_tale(screen, 0.0, picture)
    return screen.file.getvalue(), picture


def test_what_is_said_to_be_found_is_what_the_prompts_share(told):
    found = re.findall(r"(\d+)\s+prompt\s+tokens,\s+(\d+)\s+found\s+in\s+the\s+cache:\s+(.+?)\.\s+Block\s+table:"
                       r"\s+([\d* ]+)", told[0], re.S)
    assert len(found) == 3 and "the tale above began" in found[0][2]
    assert "2 blocks of 32 tokens that" in " ".join(found[1][2].split())
    num_opening = len(load("tiny-tales").tokenizer.encode(OPENING))
    assert int(found[0][1]) == num_opening == 24 and [int(cached) for _, cached, *_ in found[1:]] == [64, 64]
    tables = [blocks.split() for *_, blocks in found]
    shared = [block for block in tables[0] if block.endswith("*")]
    assert len(shared) == 2 and all(table[:2] == shared for table in tables)
    num_computed = sum(int(prompt) - int(cached) for prompt, cached, *_ in found)
    num_prompt = sum(int(prompt) for prompt, *_ in found)
    assert f"{num_computed} of {num_prompt} prompt tokens were computed" in " ".join(told[0].split())


def test_the_tale_fits_the_screen_and_can_be_drawn(told):
    assert max(map(len, told[0].splitlines())) <= 80
    assert "tokens/s" in told[0] and told[1].read_text(encoding="utf-8").startswith("<svg")


def test_it_ends_with_what_to_try_next(capsys, monkeypatch):
    monkeypatch.setattr("mini_vllm.demo.tale.tell_a_tale", lambda *arguments: None)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert main(["demo"]) == 0
    said = capsys.readouterr().out
    assert all(command in said for command, _ in TRY_NEXT) and "source .venv/bin/activate" in said
    monkeypatch.setenv("VIRTUAL_ENV", "here")
    assert main(["demo"]) == 0 and "activate" not in capsys.readouterr().out


@pytest.mark.parametrize("arguments, complaint", [
    (["--trace", "no/such/folder/run.svg"], "no/such/folder"),
    (["blocks", "--trace", "run.svg"], "only the tale"),
])
def test_a_recording_that_cannot_be_is_refused_at_once(arguments, complaint, capsys):
    assert main(["demo", *arguments]) == 2
    said = capsys.readouterr()
    assert complaint in said.err and not said.out


@pytest.mark.parametrize("width", [80, 60])
def test_the_blocks_fit_a_narrow_screen_and_say_the_same(width):
    narrow, wide = console(width), console(200)
    show_blocks(narrow)
    show_blocks(wide)
    lines = narrow.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert narrow.file.getvalue().split() == wide.file.getvalue().split()
