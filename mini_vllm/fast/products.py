"""Products with weights, and the activation between them, in the order that is fastest on this machine."""

from __future__ import annotations

from collections.abc import Callable

from mini_vllm.backend import mx
from mini_vllm.fast import tuning
from mini_vllm.fast.exp import one_plus_exp
from mini_vllm.fast.streams import in_halves

#: [num_tokens, in] and [out, in] → [num_tokens, out].
Multiply = Callable[[mx.array, mx.array], mx.array]


def project(x: mx.array, weight: mx.array, part: str = "one") -> mx.array:
    """Compute ``x @ weight.T``. ``part`` is a field of ``tuning.WeightsFirst``."""
    num_tokens = x.shape[0]
    if tuning.two_apart_are_faster(num_tokens):
        return mx.concatenate([x[:1] @ weight.T, x[1:] @ weight.T])
    return weights_first(x, weight) if tuning.weights_first_is_faster(num_tokens, part) else tokens_first(x, weight)


def tokens_first(x: mx.array, weight: mx.array) -> mx.array:
    return x @ weight.T


def weights_first(x: mx.array, weight: mx.array) -> mx.array:
    return (weight @ x.T).T


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """Compute ``gate * sigmoid(gate) * up``, with exp as the only slow operation."""
    return in_halves(lambda gate, up: gate / one_plus_exp(-gate) * up, gate, up,
                     min_size=tuning.MIN_ACTIVATION_TO_SPLIT)


def gated_mlp(x: mx.array, gate_up_weight: mx.array, down_weight: mx.array) -> mx.array:
    """Compute ``swiglu`` of both halves of ``x @ gate_up_weight.T``, then multiply by ``down_weight.T``."""
    if tuning.weights_first_is_faster(x.shape[0], "mlp"):
        return mlp_by_columns(x, gate_up_weight, down_weight)
    return mlp_by_rows(x, gate_up_weight, down_weight)


def mlp_by_rows(x: mx.array, gate_up_weight: mx.array, down_weight: mx.array, multiply: Multiply = project) -> mx.array:
    """Compute the MLP with one row per token throughout."""
    gate, up = mx.split(multiply(x, gate_up_weight), 2, axis=-1)
    return multiply(swiglu(gate, up), down_weight)


def mlp_by_columns(x: mx.array, gate_up_weight: mx.array, down_weight: mx.array) -> mx.array:
    """Compute the MLP with one column per token throughout, so that only the result is transposed."""
    gate, up = mx.split(gate_up_weight @ x.T, 2)
    return (down_weight @ swiglu(gate, up)).T
