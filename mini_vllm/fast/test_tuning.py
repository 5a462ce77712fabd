"""Choices that depend on the machine, as on a CPU and as on a GPU; and that only ``tuning`` makes them."""

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
    monkeypatch.setattr(tuning, "blas", BlasInfo("nvpl", None, "as if"))
    large = mx.zeros(tuning.MIN_EXP_SIZE)
    choices = [tuning.has_two_streams(), tuning.halves_are_faster(), tuning.softmax_by_hand_is_faster(),
               tuning.writing_runs_is_faster(), tuning.writing_elements_is_faster(), tuning.dequantise_is_faster(),
               tuning.exp_by_hand_is_faster(large)]
    assert choices == [on_cpu] * 7
    assert not tuning.exp_by_hand_is_faster(large[1:]) and not tuning.exp_by_hand_is_faster(large.astype(mx.float16))
    assert tuning.max_num_batched_tokens() == (256 if on_cpu else 2048)
    assert tuning.max_num_chunk_tokens() == (96 if on_cpu else None)
    assert [tuning.max_lookahead(64, num_bytes) for num_bytes in (22_000_000, 109_000_000)] == (
        [4, 0] if on_cpu else [64, 64])


def test_beside_mkl_nothing_is_cut_in_two_and_more_is_begun_early(monkeypatch):
    monkeypatch.setattr(tuning, "is_cpu", lambda: True)
    monkeypatch.setattr(tuning, "blas", BlasInfo("mkl", None, "as if"))
    assert tuning.has_two_streams() and not tuning.halves_are_faster()
    assert [tuning.max_lookahead(64, num_bytes) for num_bytes in (22_000_000, 109_000_000)] == [16, 0]


def test_modules_ask_at_the_moment_of_the_choice(monkeypatch):
    x = mx.linspace(-20, 0, tuning.MIN_EXP_SIZE)
    monkeypatch.setattr(tuning, "is_cpu", lambda: False)
    assert mx.array_equal(exp_below_zero(x), mx.exp(x))
    monkeypatch.setattr(tuning, "is_cpu", lambda: True)
    assert not mx.array_equal(exp_below_zero(x), mx.exp(x))
    assert mx.allclose(exp2(x), 2 ** x, rtol=1e-5)


@pytest.mark.parametrize("name", ["nvpl", "metal", "mkl", "openblas", "reference", "custom"])
def test_which_comes_first_is_read_from_a_table(monkeypatch, name):
    monkeypatch.setattr(tuning, "blas", BlasInfo(name, None, "as if"))
    for part in tuning.WeightsFirst._fields:
        ranges = getattr(tuning.WEIGHTS_FIRST.get(name, tuning.TOKENS_FIRST), part)
        listed = {number for first, last in ranges for number in range(first, last + 1)}
        assert {n for n in range(300) if tuning.weights_first_is_faster(n, part)} == listed
        assert not listed & {0, 1}, "one row is the same either way"
    assert tuning.two_apart_are_faster(2) is (name == "nvpl") and not tuning.two_apart_are_faster(3)
    assert tuning.heads_apart_are_faster(1, 2) is (name in ("nvpl", "mkl", "metal"))
    assert tuning.heads_apart_are_faster(5, 2) is (name == "nvpl") and not tuning.heads_apart_are_faster(4, 2)


def test_the_table_is_well_formed():
    for ranges in (each for both in tuning.WEIGHTS_FIRST.values() for each in both):
        ends = [number for pair in ranges for number in pair]
        assert ends == sorted(ends) and all(last < first - 1 for (_, last), (first, _) in zip(ranges, ranges[1:]))


def test_nobody_else_asks_what_the_machine_is():
    """Check that choices by device or BLAS are made in ``tuning``; ``backend`` knows the facts, and some modules print
    them."""
    asks = re.compile(r"default_device\(\)\.type|mx\.Device\(|\bmx\.[cg]pu\b|blas\.name\s*(==|in\b|!=)|\bis_cpu\(")
    root = Path(mini_vllm.__file__).parent
    found = [f"{path.relative_to(root)}: {line.strip()}" for path in sorted(root.rglob("*.py"))
             if not path.name.startswith("test_") and path.relative_to(root).as_posix() not in
             ("backend.py", "fast/tuning.py")
             for line in path.read_text().splitlines() if asks.search(line)]
    assert found == []
