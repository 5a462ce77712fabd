"""The layers of a ``Model``, with fewer and larger operations.

Its parameters are shared; only those of the norms are copied.

    add, norm ─▶ qkv ─▶ turn and write ─▶ attention ─▶ o ─▶ add, norm ─▶ gate, up, swiglu ─▶ down
    ╰ kernel ╯          ╰── kernel ──╯    ╰ kernel ╯        ╰ kernel ╯
"""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.backend import mx, nn
from mini_vllm.fast.tuning import compiled_on_gpu
from mini_vllm.gpu.kernels.add_norm import add_norm
from mini_vllm.gpu.kernels.paged import PoolShape, StepAttention
from mini_vllm.gpu.kernels.rope_and_write import turn_and_write
from mini_vllm.gpu.kernels.small_batch_matmul import multiply, multiply_gated, multiply_in_parts
from mini_vllm.models.network import MLP, Attention, Model, swiglu


@dataclass(frozen=True)
class StepArrays:
    """A step as the kernels take it. All arrays are int32."""

    #: [num_tokens] each.
    positions: mx.array
    slots: mx.array
    attention: StepAttention


_activate = compiled_on_gpu(swiglu)


class KernelNetwork:
    """Computes what ``Model`` computes, into the same pools."""

    def __init__(self, model: Model, block_size: int) -> None:
        config = model.config
        self.model = model
        self.shape = PoolShape(config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim,
                               block_size, config.head_dim ** -0.5, model.model.norm.weight.dtype)
        self.windows = [config.window(layer) for layer in range(config.num_layers)]
        #: Weights of the norms, two per layer and the last one, copied to the GPU's own memory. As read from a file,
        #: these small arrays may be in a page that the CPU writes to in every step.
        self._norms = list(mx.stack([norm.weight for norm in norms_of(model)]))
        mx.eval(self._norms)

    def hidden(self, token_ids: mx.array, step: StepArrays, pools: list[mx.array], wanted: mx.array | None = None,
               last: StepAttention | None = None) -> tuple[mx.array, mx.array]:
        """Return the hidden states of all tokens, or of the ``wanted`` ones, and the last layer's projected queries,
        keys and values.

        With ``wanted``, ``last`` gives the attention of these tokens.
        """
        self.model.take_back()
        body = self.model.model
        cosines, sines = self._angles(step.positions)
        x = body.embed_tokens(token_ids)
        normed = body.layers[0].input_layernorm(x)
        heads = x
        for index, layer in enumerate(body.layers):
            attention: Attention = layer.self_attn
            heads = multiply(attention.qkv_proj, normed, nn.Linear).astype(pools[index].dtype)
            queries = turn_and_write(heads, pools[index], step.slots, cosines, sines, _norm_of(attention), self.shape)
            is_last, seen_by = index == len(body.layers) - 1, step.attention
            if is_last and wanted is not None and last is not None:
                x, queries, seen_by = x[wanted], queries[wanted], last
            seen = seen_by.attend(queries, pools[index], self.shape, self.windows[index])
            out = multiply_in_parts(attention.o_proj, seen, nn.Linear)
            x, normed = self._add_norm(x, out, 2 * index + 1)
            out = self._mlp(layer.mlp, normed)
            x, normed = self._add_norm(x, out, 2 * index + 2)
        return normed, heads

    def _angles(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """Return the cosines and sines, [num_tokens, head_dim / 2] each."""
        rope = self.model._rope
        angles = positions[:, None].astype(mx.float32) * rope.frequencies
        return mx.cos(angles) * rope.scale, mx.sin(angles) * rope.scale

    def _mlp(self, mlp: MLP, x: mx.array) -> mx.array:
        """Return what the MLP adds, or several arrays that add up to it."""
        activated = multiply_gated(mlp.gate_up_proj, x, nn.Linear)
        if activated is None:
            activated = _activate(multiply(mlp.gate_up_proj, x, nn.Linear))
        return multiply_in_parts(mlp.down_proj, activated, nn.Linear)

    def _add_norm(self, x: mx.array, added: mx.array, norm: int) -> tuple[mx.array, mx.array]:
        return add_norm(x, added, self._norms[norm].astype(x.dtype), self.model.config.rms_norm_eps)


def norms_of(model: Model) -> list[nn.RMSNorm]:
    """Return the norms in the order in which a token passes them."""
    body = model.model
    return [norm for layer in body.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)] + [
        body.norm]


def _norm_of(attention: Attention) -> tuple[mx.array, float] | None:
    return (attention.qk_norm.weight, attention.qk_norm.eps) if "qk_norm" in attention else None
