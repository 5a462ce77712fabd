"""Products and activations: the same numbers in every layout, for every number of tokens."""

import pytest

from mini_vllm.backend import BlasInfo, mx
from mini_vllm.fast import tuning
from mini_vllm.fast.products import gated_mlp, project, swiglu


def test_the_activation_does_not_overflow_in_half_precision():
    gate, up = mx.array([-300.0, 300.0, 0.5], mx.float16), mx.array([300.0, 100.0, 2.0], mx.float16)
    assert swiglu(gate, up).tolist() == pytest.approx([0.0, 30000.0, 0.6225], rel=1e-3)


@pytest.mark.parametrize("min_size", [10**9, 1], ids=["small", "large"])  # large work is done differently
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 4, 9, 12, 13, 16, 24, 25, 64, 65])
def test_products_and_activations_are_the_same_whatever_the_number_of_tokens(num_tokens, min_size, monkeypatch):
    monkeypatch.setattr(tuning, "MIN_ACTIVATION_TO_SPLIT", min_size)
    monkeypatch.setattr(tuning, "MIN_EXP_SIZE", min_size)
    monkeypatch.setattr(tuning, "blas", BlasInfo("nvpl", None, "the layout that is fast on it is right on all"))
    mx.random.seed(0)
    x, weight, down = mx.random.normal((num_tokens, 48)), mx.random.normal((600, 48)), mx.random.normal((48, 300))
    assert mx.allclose(project(x, weight), x @ weight.T, atol=1e-4)
    gate, up = mx.split(x @ weight.T, 2, axis=-1)
    activated = gate * mx.sigmoid(gate) * up
    assert mx.allclose(swiglu(gate, up), activated, rtol=1e-4, atol=1e-4)
    assert mx.allclose(gated_mlp(x, weight, down), activated @ down.T, rtol=1e-3, atol=1e-2)
