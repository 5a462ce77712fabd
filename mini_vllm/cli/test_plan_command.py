"""``mini-vllm plan`` as a user types it."""

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from mini_vllm.benchmark import machine_noise
from mini_vllm.cli import main
from mini_vllm.models.random_model import RANDOM_MODELS
from mini_vllm.plan import this_machine
from mini_vllm.plan.machines import PRESETS

PAGE = Path(__file__).parents[2] / "docs/scaling.md"
QWEN = RANDOM_MODELS["qwen3-0.6b"]
SHAPE = ["--layers", "28", "--width", "1024", "--mlp-width", "3072", "--heads", "16", "--kv-heads", "8", "--head-size",
         "128", "--vocabulary", "151936"]


@pytest.fixture
def results(capsys):
    def run(*arguments):
        assert main(["plan", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)
    return run


def examples():
    """Return the commands of the page, each with the output that follows it there."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```\nmini-vllm plan ([^\n]*)\n```\n\n```text\n(.*?)```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("command, shown", [pytest.param(*each, id=each[0]) for each in examples()])
def test_the_page_shows_what_the_commands_print(capsys, command, shown):
    """Compare pieces: a line with only dots stands for lines that the page leaves out."""
    main(["plan", *command.split()])
    captured = capsys.readouterr()
    at, printed = 0, captured.out + captured.err
    for piece in re.split(r"^ *…\n", shown, flags=re.MULTILINE):
        found = printed.find(piece, at)
        assert found >= 0, f"the command does not print:\n{piece}\nbut:\n{printed}"
        at = found + len(piece)


def test_every_command_of_the_page_has_its_output():
    assert len(examples()) == PAGE.read_text(encoding="utf-8").count("\nmini-vllm plan ") >= 10


def test_every_line_shows_its_formula_within_80_columns(capsys):
    assert main(["plan", "qwen3-0.6b", "--machine", "h200", "--requests-per-day", "1e6"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("qwen3-0.6b on h200: 141 GB, 4.8 TB/s") and "published for an H200" in out
    lines = out.splitlines()
    titles = [index for index, line in enumerate(lines) if line.startswith("  ") and line[2] != " "]
    assert len(titles) > 20 and all(lines[index + 1].startswith("    = ") for index in titles)
    assert max(map(len, lines)) <= 80
    assert "demand at the peak 23.15 requests/s = 1,000,000 per day / 86,400 s × 2 peak" in " ".join(out.split())


def test_json_has_what_the_lines_have(results):
    found = results("qwen3-0.6b", "--machine", "h200", "--requests-per-second", "10", "--peak", "1", "--cached", "0.5")
    assert found["results"]["kv_bytes_per_token"]["value"] == 114_688
    assert found["results"]["peak_requests_per_s"]["value"] == 10 and found["demand"]["cached"] == 0.5
    assert found["machine"]["name"] == "h200" and found["model"]["layers"] == 28
    assert set(found["results"]["round_s"]) == {"value", "unit", "formula", "note"}


def test_more_requests_take_more_replicas(results):
    numbers = [results("qwen3-8b", "--machine", "h200", "--requests-per-day", rate)["results"]["replicas"]["value"]
               for rate in ("1e6", "1e7", "2e7")]
    assert numbers[0] < numbers[1] < numbers[2] and abs(numbers[2] - 2 * numbers[1]) <= 1


def test_a_shape_is_the_same_as_its_name(results, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    by_name, *others = (results(*model, "--machine", "h200")["results"] for model in (
        ["qwen3-0.6b"], SHAPE, [str(tmp_path)], ["--model", "qwen3-0.6b"]))
    assert others == [by_name] * 3
    assert results(*SHAPE, "--untied", "--machine", "h200")["results"]["num_weights"]["value"] == by_name[
        "num_weights"]["value"] + 151_936 * 1024


def test_numbers_of_the_machine_may_be_given(results):
    found = results("qwen3-0.6b", "--machine", "h200", "--memory", "80", "--bandwidth", "3350", "--tflops", "1",
                    "--kv-bandwidth", "2000", "--layer-ms", "0.2", "--request-ms", "0")
    machine = found["machine"]
    assert (machine["memory"], machine["bandwidth"], machine["flops"], machine["kv_bandwidth"]) == pytest.approx(
        (80e9, 3.35e12, 1e12, 2e12))
    assert machine["layer_s"] == pytest.approx(2e-4) and machine["request_s"] == 0
    assert machine["source"].endswith("given: --memory, --bandwidth, --kv-bandwidth, --tflops, --layer-ms, "
                                      "--request-ms")


def test_the_default_is_this_machine(results, monkeypatch):
    watched = []

    @contextmanager
    def watch(stream):
        watched.append(stream)
        yield

    monkeypatch.setattr(machine_noise, "told_if_loud", watch)
    monkeypatch.setattr(this_machine, "measure_here", lambda: PRESETS["m1-max"])
    found = results()
    assert len(watched) == 1, "a busy machine is reported"
    assert found["machine"]["name"] == "m1-max" and found["model"]["name"] == "tiny-tales"


@pytest.mark.parametrize("arguments, complaint", [
    (["--layers", "0", *SHAPE[2:]], "layers is 0, must be a whole number from 1"),
    (SHAPE[:-2], "the shape is not complete: --vocabulary missing"),
    (["qwen3-8b", *SHAPE], "both a model, qwen3-8b, and a shape are given"),
    (["--untied"], "--untied needs a shape: --layers, "),
    (["nonsense"], "there is no model 'nonsense'"),
    (["--machine", "h20"], "there is no machine 'h20'; did you mean h200?"),
    (["--machine", "zzz"], "there is no machine 'zzz'; it may be here, arm-2"),
    (["--requests-per-day", "-1"], "requests per day is -1.0, must be a finite number, above 0"),
    (["--requests-per-day", "nan"], "requests per day is nan"),
    (["--requests-per-second", "0"], "requests per second is 0.0"),
    (["--requests-per-second", "inf"], "requests per second is inf"),
    (["--prompt", "0"], "prompt is 0"), (["--cached", "1"], "cached is 1.0"), (["--peak", "nan"], "peak is nan"),
    (["--max-num-seqs", "0"], "max_num_seqs is 0"), (["--utilisation", "0"], "utilisation is 0.0"),
    (["--bandwidth", "0"], "--bandwidth is 0.0, must be a finite number, above 0"),
    (["--layer-ms", "-1"], "--layer-ms is -1.0, must be a finite number from 0"),
    (["--prompt", "4000"], "prompt + output is 4128, must be at most 2048, the context of tiny-tales"),
    (["llama-3.1-70b", "--machine", "h200"], "the weights of llama-3.1-70b take 1.411e+11 bytes, must be less than"),
    (["qwen3-0.6b", "--machine", "h200", "--memory", "1.4"], "one request of 640 tokens takes 7.34e+07 bytes"),
])
def test_bad_values_are_told_before_anything_is_measured(monkeypatch, capsys, arguments, complaint):
    monkeypatch.setattr(this_machine, "measure_here", lambda: pytest.fail("measured"))
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err and captured.err.startswith("mini-vllm: ") and captured.err.count("\n") == 1
    assert not captured.out


def test_two_rates_are_one_too_many(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--requests-per-day", "1", "--requests-per-second", "1"])
    assert "not allowed with" in capsys.readouterr().err


def test_the_help_needs_no_mlx():
    code = ("import sys; from mini_vllm.cli import make_parser; make_parser(); "
            "sys.exit(any(name.startswith('mlx') for name in sys.modules))")
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
