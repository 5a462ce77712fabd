"""What follows from the machine, as on a CPU and as on a GPU; and that nobody else asks what the machine is."""

import re
from pathlib import Path

import pytest

import mini_vllm
from mini_vllm.backend import BlasInfo, mx
from mini_vllm.fast import tuning
from mini_vllm.fast.exp import exp2, exp_below_zero


@pytest.mark.parametrize("on_cpu", [True, False])
def test_one_question_decides_all(monkeypatch, on_cpu):
    monkeypatch.setattr(tuning, "is_cpu", lambda: on_cpu)
    large = mx.zeros(tuning.MIN_EXP_SIZE)
    choices = [tuning.has_two_streams(), tuning.softmax_by_hand_is_faster(), tuning.writing_runs_is_faster(),
               tuning.dequantise_is_faster(), tuning.exp_by_hand_is_faster(large)]
    assert choices == [on_cpu] * 5
    assert not tuning.exp_by_hand_is_faster(large[1:]) and not tuning.exp_by_hand_is_faster(large.astype(mx.float16))
    assert tuning.max_num_batched_tokens() == (256 if on_cpu else 2048)
    assert tuning.max_num_chunk_tokens() == (96 if on_cpu else None)
    assert [tuning.max_lookahead(64, num_bytes) for num_bytes in (22_000_000, 109_000_000)] == (
        [4, 0] if on_cpu else [64, 64])


def test_modules_ask_at_the_moment_of_the_choice(monkeypatch):
    x = mx.linspace(-20, 0, tuning.MIN_EXP_SIZE)
    monkeypatch.setattr(tuning, "is_cpu", lambda: False)
    assert mx.array_equal(exp_below_zero(x), mx.exp(x))
    monkeypatch.setattr(tuning, "is_cpu", lambda: True)
    assert not mx.array_equal(exp_below_zero(x), mx.exp(x))
    assert mx.allclose(exp2(x), 2 ** x, rtol=1e-5)


@pytest.mark.parametrize("name, expected", [("nvpl", True), ("metal", False), ("mkl", False), ("reference", False)])
def test_weights_come_first_on_one_blas_only(monkeypatch, name, expected):
    monkeypatch.setattr(tuning, "blas", BlasInfo(name, None, "as if"))
    assert [tuning.weights_first_is_faster(n, 24) for n in (1, 2, 3, 8, 9, 12, 13, 24, 25)] == [
        expected and n in (3, 8, 13, 24) for n in (1, 2, 3, 8, 9, 12, 13, 24, 25)]
    assert tuning.two_apart_are_faster(2) is expected and not tuning.two_apart_are_faster(3)
    assert tuning.one_vector_is_faster() is (name in ("nvpl", "metal"))


def test_nobody_else_asks_what_the_machine_is():
    """A choice by device or BLAS stands in ``tuning``; ``backend`` knows the facts, and some print them."""
    asks = re.compile(r"default_device\(\)\.type|mx\.Device\(|\bmx\.[cg]pu\b|blas\.name\s*(==|in\b|!=)|\bis_cpu\(")
    root = Path(mini_vllm.__file__).parent
    found = [f"{path.relative_to(root)}: {line.strip()}" for path in sorted(root.rglob("*.py"))
             if not path.name.startswith("test_") and path.relative_to(root).as_posix() not in
             ("backend.py", "fast/tuning.py")
             for line in path.read_text().splitlines() if asks.search(line)]
    assert found == []
