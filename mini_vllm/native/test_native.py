"""The step in C against MLX's operations, on networks of many shapes."""

from functools import cache

import numpy as np
import pytest

from mini_vllm.attention import paged_attention
from mini_vllm.backend import mx, nn
from mini_vllm.conftest import ARCHITECTURES, SHAPE, examples
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.random_model import make_random
from mini_vllm.native.build import problem

pytestmark = pytest.mark.skipif(bool(problem()), reason=problem())
ODD = dict(hidden_size=72, intermediate_size=100, vocab_size=301, num_attention_heads=6, num_key_value_heads=2)
SHAPES = {**ARCHITECTURES,
          "qwen2-window": dict(model_type="qwen2", use_sliding_window=True, sliding_window=13, max_window_layers=1),
          "odd sizes": dict(model_type="llama", head_dim=20, attention_bias=True, mlp_bias=True, **ODD),
          "one KV head": dict(model_type="llama", num_attention_heads=8, num_key_value_heads=1, head_dim=6)}


@cache
def network(name, bits=32):
    model = make_random({**SHAPE, **SHAPES[name]}).model
    if bits < 32:
        nn.quantize(model, group_size=32, bits=bits, class_predicate=lambda _, module: hasattr(module, "to_quantized")
                    and module.weight.shape[-1] % 32 == 0)
    return model


def compare(model, block_size, seed, num_steps=6, tolerance=1e-4):
    """Compute random steps of four requests by both; slots that hold nothing are NaN in the native cache."""
    from mini_vllm.native.runner import NativeRunner
    random = np.random.default_rng(seed)
    num_blocks = 4 * -(-160 // block_size) + 1
    plain = ModelRunner(model, num_blocks, block_size, paged_attention)
    native = NativeRunner(model, num_blocks, block_size)
    for blocks in native.cache.blocks:
        blocks[:] = np.nan
    tables = random.permutation(np.arange(1, num_blocks)).reshape(4, -1).tolist()
    lengths = [0] * 4
    for _ in range(num_steps):
        chosen = sorted(random.choice(4, random.integers(1, 5), replace=False).tolist())
        counts = {request: int(random.choice([1, 1, 2, random.integers(3, 25)])) for request in chosen}
        steps = []
        for request in sorted(chosen, key=lambda request: counts[request] > 1):
            lengths[request] += counts[request]
            steps.append(RequestStep(random.integers(0, 256, counts[request]).tolist(), tables[request],
                                     lengths[request], bool(random.random() < 0.7), bool(random.random() < 0.2)))
        expected, got = plain.step(steps), native.step(steps)
        assert got.shape == expected.shape and got.dtype == mx.float32
        if got.size:
            assert np.abs(np.array(got) - np.array(expected)).max() < tolerance, f"seed {seed}, block size {block_size}"


@pytest.mark.parametrize("name", SHAPES)
def test_logits_agree(name):
    for seed in range(examples(4)):
        compare(network(name), [4, 5, 16, 32, 33, 64][seed % 6], seed)


@pytest.mark.parametrize("bits", [4, 8, 3, 2])
def test_packed_weights_give_the_same_logits(bits):
    for seed in range(examples(3)):
        compare(network("qwen3", bits), 16, seed)


def test_where_it_cannot_be_used_the_plain_step_is(monkeypatch):
    from mini_vllm.native import runner
    config = network("llama2").config
    monkeypatch.delenv("MINI_VLLM_NATIVE", raising=False)
    assert runner.why_not(config, 32, True) == ""
    assert all("not switched on" in runner.why_not(config, 32, asked_for) for asked_for in (None, False))
    assert runner.why_not(config, 129, True) == "block_size: 129, at most 128 are supported"
    monkeypatch.setenv("MINI_VLLM_NATIVE", "1")
    assert runner.why_not(config, 32, None) == "" and "not switched on" in runner.why_not(config, 32, False)
    monkeypatch.setenv("MINI_VLLM_NATIVE", "yes")
    with pytest.raises(ValueError, match="MINI_VLLM_NATIVE is 'yes', must be 0 or 1"):
        runner.why_not(config, 32, None)
