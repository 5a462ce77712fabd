"""Every command that computes mentions a slow BLAS once, unless the user chose that BLAS."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mini_vllm import backend
from mini_vllm.backend import BlasInfo
from mini_vllm.cli import main
from mini_vllm.conftest import make_talker
from mini_vllm.demo import tale
from mini_vllm.native import advice
from mini_vllm.native.build import problem

REFERENCE = BlasInfo("reference", None, backend.NOT_FOUND)


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(backend, "blas", REFERENCE)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("MINI_VLLM_NATIVE", "0")


def told(text):
    return [line for line in text.splitlines() if "slow reference BLAS" in line]


@pytest.mark.parametrize("machine, command", [("x86_64", "pip install mkl"), ("aarch64", "pip install nvpl-blas"),
                                              ("riscv64", "apt install libopenblas0-pthread")])
def test_it_is_one_line_with_what_to_do_on_this_machine(machine, command, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    line = advice.slow_blas_line(REFERENCE)
    assert line.startswith("mini-vllm: ") and f"`{command}`" in line and "mini-vllm doctor" in line and "\n" not in line


@pytest.mark.parametrize("blas", [
    BlasInfo("reference", None, backend.SWITCHED_OFF),
    BlasInfo("mkl", "/a/b.so", "package mkl"), BlasInfo("metal", None, "none needed")], ids=lambda blas: blas.note)
def test_who_chose_it_or_has_a_fast_one_is_told_nothing(blas, monkeypatch, capsys):
    monkeypatch.setattr(backend, "blas", blas)
    advice.tell_slow_blas()
    assert capsys.readouterr() == ("", "") and advice.slow_blas_line(blas) == ""


@pytest.mark.skipif(bool(problem()), reason=problem())
def test_who_does_not_multiply_with_it_is_told_nothing(slow, monkeypatch, capsys):
    advice.tell_slow_blas()
    assert told(capsys.readouterr().err)
    monkeypatch.delenv("MINI_VLLM_NATIVE")
    advice.tell_slow_blas()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["hello", "again"], ["hello", "--beams", "2"], ["hello", "--json"]],
                         ids=" ".join)
def test_generate_tells_it_once(arguments, slow, shallow, capsys):
    assert main(["generate", "--model", str(shallow("llama2")), "--max-tokens", "2", *arguments]) == 0
    captured = capsys.readouterr()
    assert len(told(captured.err)) == 1 and not told(captured.out)


def test_chat_tells_it_once_for_all_questions(slow, shallow, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nsecond\n"))
    assert main(["chat", str(make_talker(shallow, tmp_path)), "--max-tokens", "2"]) == 0
    captured = capsys.readouterr()
    assert len(told(captured.err)) == 1 and not told(captured.out)


def test_bench_tells_it_once(slow, shallow, few_products, capsys, monkeypatch):
    from mini_vllm.benchmark.workloads import WORKLOADS, Item
    monkeypatch.setitem(WORKLOADS, "decode-16", ("few", lambda vocab: [Item([1, 2, 3], 2), Item([1, 2], 2)]))
    assert main(["bench", "throughput", "--model", str(shallow("llama2")), "--arm", "ours", "--workload",
                 "decode-16", "--rounds", "1"]) == 0
    captured = capsys.readouterr()
    assert len(told(captured.err)) == 1 and not told(captured.out)


def test_the_demo_tells_it_once(slow, capsys, monkeypatch):
    monkeypatch.setattr(tale, "LLMEngine", lambda trace: None)
    monkeypatch.setattr(tale, "stream_one", lambda *_: None)
    monkeypatch.setattr(tale, "serve_three", lambda *_: None)
    tale.tell_a_tale(Console(file=io.StringIO()), 0.0)
    assert len(told(capsys.readouterr().err)) == 1


def test_a_library_prints_nothing():
    code = ("from mini_vllm import backend\nfrom mini_vllm.backend import BlasInfo\n"
            "backend.blas = BlasInfo('reference', None, backend.NOT_FOUND)\n"
            "from mini_vllm import LLM, SamplingParams\n"
            "LLM('tiny-tales', num_blocks=8).generate(['A fox'], SamplingParams(max_tokens=1))")
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
