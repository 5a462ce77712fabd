"""``bench speculation``: what it prints and saves, and what it rejects before it loads a model."""

import json

import pytest

from mini_vllm.benchmark.speculation import KINDS, format_cell, prompt_of
from mini_vllm.cli import main
from mini_vllm.models.loader import load


def test_a_quick_run_prints_a_row_and_saves_it(tmp_path, capsys, shallow):
    path, model = tmp_path / "found.json", str(shallow("llama3"))
    assert main(["bench", "speculation", model, "--quick", "--batch", "2", "--output", str(path)]) == 0
    printed, found = capsys.readouterr().out, json.loads(path.read_text())
    (cell,) = found["cells"]
    assert "quoting       4      2" in printed and "other tokens" not in printed
    assert (cell["kind"], cell["batch_size"], cell["num_tokens"], cell["has_equal_tokens"]) == ("quoting", 2, 14, True)
    assert len(cell["plain_s"]) == len(cell["drafted_s"]) == 1 and found["draft"] == "ngram"
    assert cell["ratio"] == cell["plain_s"][0] / cell["drafted_s"][0] and not cell["num_different"]
    assert cell["steps_per_token"] == cell["num_steps"] * 2 / 14 and 0 < cell["num_steps"] <= 7


def test_a_second_model_drafts(capsys, shallow):
    model = str(shallow("llama3"))
    assert main(["bench", "speculation", model, "--quick", "--draft", model]) == 0
    printed = capsys.readouterr().out
    assert "quoting " in printed and "other tokens" not in printed


@pytest.mark.parametrize("option", ["--rounds", "--batch", "--num-speculative-tokens", "--tokens"])
def test_numbers_that_are_too_small_are_rejected_before_a_model_is_loaded(option, capsys):
    assert main(["bench", "speculation", "no-such-model", option, "0"]) == 2
    assert f"{option} is 0, must be at least {2 if option == '--tokens' else 1}" in capsys.readouterr().err


def test_a_row_has_the_median_of_all_rounds_and_says_if_tokens_differ():
    cell = {"kind": "free", "num_speculative_tokens": 4, "batch_size": 2, "steps_per_token": 0.5, "num_drafted": 8,
            "num_accepted": 2, "plain_s": [1.0, 2.0, 9.0], "drafted_s": [1.0, 1.0, 3.0],
            "num_different": 0}
    assert format_cell(cell).split() == ["free", "4", "2", "0.50", "25%", "2.00x", "(1.00–3.00)"]
    cell |= {"num_drafted": 0, "num_different": 2}
    assert format_cell(cell).split()[4:6] == ["-", "2.00x"], "no draft, so no share of accepted tokens"
    assert format_cell(cell).endswith("2 outputs have other tokens")


def test_a_model_that_cannot_chat_continues_a_text():
    tokenizer = load("tiny-tales").tokenizer
    for kind, (_, text) in KINDS.items():
        assert tokenizer.decode(prompt_of(load("tiny-tales"), kind)) == text
