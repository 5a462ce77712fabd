"""``mini-vllm`` as a user types it."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm.cli import main
from mini_vllm.cli.generate import TextPrinter
from mini_vllm.engine import LLMEngine
from mini_vllm.fast import tuning
from mini_vllm.llm import LLM
from mini_vllm.request import CompletionOutput, RequestOutput, Usage


def output(request_id, *texts, prompt="p", finished=True):
    completions = [CompletionOutput(i, text, [1] * len(text), "stop" if finished else None)
                   for i, text in enumerate(texts)]
    return RequestOutput(request_id, prompt, [1], completions, finished, Usage(1, sum(map(len, texts))))


@pytest.fixture
def model(shallow):
    return str(shallow("llama2"))


def test_generate_streams_prompt_and_text_and_closes_with_usage(model, capsys):
    assert main(["generate", "--model", model, "--max-tokens", "5", "--seed", "1", "hello"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("hello") and captured.out.endswith("\n") and len(captured.out) > len("hello\n")
    number = r"[\d.]+"
    assert re.fullmatch(rf"first token {number} s \(0 of 5 tokens cached\), then {number} tokens/s; "
                        r"stopped at 5 tokens \(raise it with --max-tokens\)\n", captured.err)


def test_the_same_seed_gives_the_same_text(model, capsys):
    texts = []
    for seed in ("1", "1", "2"):
        main(["generate", "--model", model, "--max-tokens", "8", "--seed", seed, "hello"])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_json_is_one_object_a_prompt(model, capsys):
    assert main(["generate", "--model", model, "--max-tokens", "3", "--seed", "1", "--json", "--n", "2", "hello",
                 "again"]) == 0
    objects = {entry["prompt"]: entry for entry in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(objects) == {"hello", "again"}
    entry = objects["hello"]
    assert [o["index"] for o in entry["outputs"]] == [0, 1] and entry["error"] is None
    assert entry["usage"]["completion_tokens"] == 6 and entry["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_prompts_come_from_a_file_or_standard_input(model, capsys, tmp_path, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n \ntwo\n")
    assert main(["generate", "--model", model, "--max-tokens", "2", "--file", str(file)]) == 0
    assert capsys.readouterr().out.count("---") == 2
    assert main(["generate", "--model", model, "--max-tokens", "2", "--n", "2", "one"]) == 0
    assert capsys.readouterr().out.count("--- one #") == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    assert main(["generate", "--model", model, "--max-tokens", "2"]) == 0
    assert capsys.readouterr().out.startswith("from a pipe")


def test_a_terminal_without_a_prompt_is_told(model, capsys, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    assert main(["generate", "--model", model]) == 2
    assert "no prompt: give one" in capsys.readouterr().err


def test_one_bad_prompt_does_not_stop_the_others(model, capsys):
    assert main(["generate", "--model", model, "--max-tokens", "2", "hello", ""]) == 1
    captured = capsys.readouterr()
    assert "hello" in captured.out and "mini-vllm: prompt 2: the prompt is empty" in captured.err


@pytest.mark.parametrize("arguments, complaint", [
    (["--temperature", "nan"], "temperature is nan, must be a finite number, at least 0"),
    (["--top-p", "0"], "top_p is 0.0, must be a finite number, above 0, at most 1"),
    (["--kv-memory", "10"], "kv_memory of 10 bytes"),
    (["--model", "nonsense"], "there is no model 'nonsense'"),
    (["--file", "nowhere.txt"], "nowhere.txt"),
])
def test_bad_arguments_are_told_in_one_line(model, capsys, arguments, complaint):
    assert main(["generate", "hello", "--model", model, *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.startswith("mini-vllm: ") and "Traceback" not in error


def test_a_prompt_that_is_refused_has_its_object_too(model, capsys):
    for more in ([], ["--beams", "2"]):
        assert main(["generate", "--model", model, "--max-tokens", "2", "--json", *more, "", "hello", ""]) == 1
        captured = capsys.readouterr()
        entries = {entry["id"]: entry for entry in map(json.loads, captured.out.splitlines())}
        assert sorted(entries) == ["prompt-0", "prompt-1", "prompt-2"]
        assert len({tuple(entry) for entry in entries.values()}) == 1, "all have the same fields"
        assert entries["prompt-1"]["prompt"] == "hello" and entries["prompt-1"]["error"] is None
        for name in ("prompt-0", "prompt-2"):
            entry = entries[name]
            assert entry["prompt"] == "" and entry["outputs"] == [] and "the prompt is empty" in entry["error"]
            assert entry["usage"]["total_tokens"] == 0 and entry["usage"].keys() == entries["prompt-1"]["usage"].keys()
        assert "mini-vllm: prompt 1: the prompt is empty" in captured.err and "prompt 3: " in captured.err


@pytest.mark.parametrize("content, complaint", [
    (None, "{}: No such file or directory"),
    (b"one\ntw\xffo\n", "{}, line 2: not UTF-8: byte 0xff at 2"),
    (b"", "{} contains no prompt; write one prompt per line"),
    (b" \n\n", "{} contains no prompt; write one prompt per line"),
])
def test_a_file_without_prompts_is_named(tmp_path, capsys, content, complaint):
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    assert main(["generate", "--file", str(file)]) == 2
    assert capsys.readouterr().err == f"mini-vllm: {complaint.format(file)}\n"


def test_a_folder_is_no_file_of_prompts_and_no_trace(tmp_path, capsys):
    for arguments in (["generate", "--file"], ["generate", "x", "--parts"], ["trace", "-o", "x.svg"]):
        assert main([*arguments, str(tmp_path)]) == 2
        assert capsys.readouterr().err == f"mini-vllm: {tmp_path}: Is a directory\n"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_broken_file_of_a_model_is_named_in_one_line(shallow, tmp_path, capsys, name):
    folder = tmp_path / "model"
    shutil.copytree(shallow("llama2"), folder)
    (folder / name).write_bytes(b"{")
    assert main(["generate", "--model", str(folder), "x"]) == 2
    error = capsys.readouterr().err
    assert str(folder / name) in error and error.startswith("mini-vllm: ") and error.count("\n") == 1


# ---- the first minutes


def test_alone_the_command_shows_its_help_and_what_to_try_first(capsys):
    assert main([]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and captured.out.startswith("usage: mini-vllm")
    assert captured.out.count("\n  mini-vllm ") == 5
    assert max(map(len, captured.out.splitlines())) <= 60


def test_bench_alone_shows_what_can_be_measured(capsys):
    assert main(["bench"]) == 0
    assert "throughput" in capsys.readouterr().out


@pytest.mark.parametrize("typed, told", [
    ("generat", "did you mean `mini-vllm generate`?"), ("Chat", "did you mean `mini-vllm chat`?"),
    ("zzz", "the commands are demo, generate, chat, serve, bench, trace, pull, doctor"),
])
def test_a_misspelt_command_gets_the_nearest(capsys, typed, told):
    assert main([typed, "--model", "x"]) == 2
    assert capsys.readouterr().err == f"mini-vllm: there is no command {typed!r}; {told}\n"


@pytest.mark.parametrize("arguments, nearest", [
    (["generate", "x", "--model", "tiny-tale"], "tiny-tales"), (["chat", "SmolLM2"], "smollm2"),
    (["pull", "tiny-tale"], "tiny-tales"),
])
def test_a_misspelt_model_gets_the_nearest_in_a_short_line(capsys, arguments, nearest):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"; did you mean {nearest!r}?\n") and error.startswith("mini-vllm: there is no model '")
    assert len(error) <= 80


@pytest.mark.parametrize("name, told", [("./nowhere", "./nowhere: there is no such folder"),
                                        ("nowhere.gguf", "nowhere.gguf: there is no such file")])
def test_a_path_is_not_taken_for_a_misspelt_name(capsys, name, told):
    assert main(["generate", "x", "--model", name]) == 2
    assert capsys.readouterr().err == f"mini-vllm: {told}\n"


def test_pull_of_what_ships_says_so_and_prints_its_path(capsys):
    assert main(["pull", "tiny-tales"]) == 0
    captured = capsys.readouterr()
    assert (Path(captured.out.strip()) / "config.json").is_file()
    assert captured.err == "tiny-tales ships with mini_vllm: there is nothing to download\n"


def test_ctrl_c_ends_with_what_was_produced(model, capsys, monkeypatch):
    steps, real = iter(range(4)), LLMEngine.step

    def step(self):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(LLMEngine, "step", step)
    assert main(["generate", "--model", model, "--max-tokens", "50", "--seed", "1", "hello"]) == 130
    captured = capsys.readouterr()
    assert captured.out.startswith("hello") and captured.out.endswith("\n")
    assert captured.err.startswith("first token ") and captured.err.endswith(" tokens/s; stopped\n")


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["bench", "throughput", "--help"]],
                         ids=" ".join)
def test_help_is_quick_since_it_loads_neither_mlx_nor_numpy(arguments):
    code = ("import contextlib, sys; from mini_vllm.cli import main\n"
            f"with contextlib.suppress(SystemExit): main({arguments!r})\n"
            "print([name for name in ('mlx.core', 'numpy', 'rich', 'tokenizers') if name in sys.modules], "
            "file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.stdout.startswith("usage: mini-vllm") and done.stderr == "[]\n"


# ---- beams


def test_beams_are_printed_best_first_with_their_scores(model, capsys):
    assert main(["generate", "--model", model, "--max-tokens", "4", "--beams", "3", "hello"]) == 0
    captured = capsys.readouterr()
    beams = LLM(model).beam_search("hello", beam_width=3, max_tokens=4)[0]
    expected = "".join(f"--- hello #{i}, score {beam.score:.3f}\nhello{beam.text}\n" for i, beam in enumerate(beams, 1))
    assert captured.out == expected
    assert captured.err.startswith("5 prompt tokens (0 cached), 3 beams of 12 tokens in all, ")


def test_beams_as_json(model, capsys):
    arguments = ["--max-tokens", "4", "--beams", "2", "--length-penalty", "0.5", "--json"]
    assert main(["generate", "--model", model, *arguments, "hello", "again"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = LLM(model).beam_search(["hello", "again"], beam_width=2, max_tokens=4, length_penalty=0.5)
    assert [entry["prompt"] for entry in entries] == ["hello", "again"]
    assert [entry["id"] for entry in entries] == ["prompt-0", "prompt-1"]
    for entry, beams in zip(entries, expected):
        assert entry["error"] is None and entry["usage"]["prompt_tokens"] == 5
        assert entry["usage"]["completion_tokens"] == 8 and entry["usage"]["total_tokens"] == 13
        assert [o["index"] for o in entry["outputs"]] == [0, 1]
        for output, beam in zip(entry["outputs"], beams):
            assert output["text"] == beam.text and output["token_ids"] == beam.token_ids
            assert output["finish_reason"] == beam.finish_reason
            assert output["score"] == pytest.approx(beam.score, rel=1e-5)
            assert output["log_probability"] == pytest.approx(beam.log_probability, rel=1e-5)


@pytest.mark.parametrize("arguments, complaint", [
    (["--beams", "2", "--trace", "x"], "--trace cannot be combined with --beams"),
    (["--beams", "2", "--n", "2", "--seed", "3", "--stop", "x"],
     "--seed and --stop and --n cannot be combined with --beams"),
    (["--length-penalty", "1"], "--length-penalty needs --beams"),
    (["--beams", "0"], "beam_width is 0, must be"),
    (["--beams", "9999"],
     f"beam_width is 9999, must be at most max_num_batched_tokens ({tuning.max_num_batched_tokens()})"),
    (["--beams", "2", "--length-penalty", "nan"], "length_penalty is nan, must be"),
    (["--beams", "2", "--max-tokens", "0"], "max_tokens is 0, must be"),
])
def test_what_does_not_go_with_beams_is_told_in_one_line(model, capsys, arguments, complaint):
    assert main(["generate", "hello", "--model", model, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("mini-vllm: " + complaint) and captured.err.count("\n") == 1 and not captured.out


def test_beams_that_do_not_fit_are_told_without_a_traceback(model, capsys):
    arguments = ["--max-tokens", "300", "--beams", "64", "--kv-memory", "2MB"]
    assert main(["generate", "--model", model, *arguments, "hello"]) == 1
    assert capsys.readouterr().err.startswith("mini-vllm: prompt 1: the pool is too small for this beam search: ")


# ---- printing, pull, doctor


def test_texts_are_shown_in_the_order_of_the_prompts():
    stream = io.StringIO()
    printer = TextPrinter(stream, ["a", "b"], has_titles=True)
    printer.show(output("b", "late", prompt="B:"))
    assert stream.getvalue() == ""
    printer.show(output("a", "ear", prompt="A:", finished=False))
    assert stream.getvalue() == "--- A:\nA:ear"
    printer.show(output("a", "early", prompt="A:"))
    assert stream.getvalue() == "--- A:\nA:early\n--- B:\nB:late\n"


def test_several_continuations_are_numbered():
    stream = io.StringIO()
    printer = TextPrinter(stream, ["a"], has_titles=True)
    printer.show(output("a", "one", "two", prompt="A "))
    assert stream.getvalue() == "--- A #1\nA one\n--- A #2\nA two\n"


def test_drafts_change_no_text_and_their_options_are_checked(capsys):
    words = ["generate", "Once upon a time there was a king. Once upon a time", "--temperature", "0.7", "--seed", "4",
             "--max-tokens", "24"]
    texts = []
    for draft in ([], ["--draft", "ngram"], ["--draft", "tiny-tales", "--num-speculative-tokens", "2"]):
        assert main([*words, *draft]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]
    assert main([*words, "--num-speculative-tokens", "2"]) == 2
    assert "--num-speculative-tokens needs --draft" in capsys.readouterr().err
    assert main([*words, "--draft", "no-such-model"]) == 2
    assert "no-such-model" in capsys.readouterr().err
