"""Choices that depend on the machine, as on a CPU and as on a GPU; and that only ``tuning`` makes them."""

import re
from pathlib import Path

import pytest

import mini_vllm
from mini_vllm.backend import BlasInfo
from mini_vllm.fast import tuning


@pytest.mark.parametrize("device, blas, tokens, chunk, lookahead", [
    ("cpu", "nvpl", 256, 96, [4, 0]), ("cpu", "mkl", 256, 96, [16, 0]), ("gpu", "cuda", 2048, None, [64, 64])])
def test_the_size_of_a_step_depends_on_the_device(monkeypatch, device, blas, tokens, chunk, lookahead):
    monkeypatch.setattr(tuning, "is_cpu", lambda: device == "cpu")
    monkeypatch.setattr(tuning, "blas", BlasInfo(blas, None, "as if"))
    assert (tuning.max_num_batched_tokens(), tuning.max_num_chunk_tokens()) == (tokens, chunk)
    assert [tuning.max_lookahead(64, num_bytes) for num_bytes in (22_000_000, 109_000_000)] == lookahead


def test_nobody_else_asks_what_the_machine_is():
    """Check that choices by device or BLAS are made in ``tuning``; ``backend`` knows the facts, the loaders expand
    packed weights on a CPU, and benchmarks say what they measured."""
    asks = re.compile(r"default_device\(\)\.type|mx\.Device\(|\bmx\.[cg]pu\b|blas\.name\s*(==|in\b|!=)|\bis_cpu\(")
    root = Path(mini_vllm.__file__).parent
    found = {path.relative_to(root).as_posix() for path in sorted(root.rglob("*.py"))
             if not path.name.startswith("test_") and "benchmark" not in path.parts and asks.search(path.read_text())}
    assert found == {"backend.py", "fast/tuning.py", "models/gguf.py", "models/weights.py"}
