"""The Llama family as one network: Llama 2 and 3, Mistral, Qwen2 and 2.5, Qwen3, SmolLM.

The network computes a flat batch of tokens, with no padding. Which request a token belongs to, and what it attends to,
is left to the ``attend`` function that the caller passes in.

    token_ids [num_tokens] ──▶ embed ──▶ layers ──▶ norm ──▶ hidden [num_tokens, hidden_size]
                                           │  ▲
                                   q, kv   ▼  │  the attention output of each token
                                    attend(layer, q, kv)

Matrices that multiply the same input are kept as one: queries, keys and values; gate and up. On a CPU that decodes one
token, the number of operations matters as much as their size. The loader does the stacking; matrices that are packed in
different ways stay separate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mini_vllm.backend import mx, nn
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.json_fields import Fields
from mini_vllm.models.rope import Rope, rope_frequencies

#: attend(layer_index, queries [n, num_heads, head_dim], keys_values [n, 2 * num_kv_heads, head_dim]) → like queries
Attend = Callable[[int, mx.array, mx.array], mx.array]


class QKNorm(nn.Module):
    """Normalises every head of the queries and keys; one vector of weights per head, since both are processed at
    once."""

    def __init__(self, num_heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((num_heads, head_dim))
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, None, self.eps) * self.weight


class SideBySide(nn.Module):
    """Matrices that multiply the same input but are packed in different ways, so that they cannot be one."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = parts

    def __call__(self, x: mx.array) -> mx.array:
        return mx.concatenate([part(x) for part in self.parts], axis=-1)


class Attention(nn.Module):
    """Computes queries, keys and values in one product, rotates them, and projects the result of ``attend``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, q_size + 2 * kv_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=config.output_bias)
        if config.qk_norm:
            self.qk_norm = QKNorm(self.num_heads + self.num_kv_heads, self.head_dim, config.rms_norm_eps)

    def __call__(self, x: mx.array, angles: tuple[mx.array, mx.array], layer: int, attend: Attend,
                 wanted: mx.array | None = None) -> mx.array:
        num_tokens, num_rotated = x.shape[0], self.num_heads + self.num_kv_heads
        heads = self.qkv_proj(x).reshape(num_tokens, num_rotated + self.num_kv_heads, self.head_dim)
        heads = self._turned(heads, angles)
        queries = heads[:, :self.num_heads] if wanted is None else heads[wanted, :self.num_heads]
        out = attend(layer, queries, heads[:, self.num_heads:])
        return self.o_proj(out.reshape(queries.shape[0], self.num_heads * self.head_dim))

    def _turned(self, heads: mx.array, angles: tuple[mx.array, mx.array]) -> mx.array:
        """Return the queries and keys normalised, if the model does that, and rotated; the values unchanged."""
        if "qk_norm" in self:
            num_rotated = self.num_heads + self.num_kv_heads
            heads = mx.concatenate([self.qk_norm(heads[:, :num_rotated]), heads[:, num_rotated:]], axis=1)
        return Rope.rotate(heads, angles)


class MLP(nn.Module):
    """SwiGLU between two products."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_up_proj(x)))


def swiglu(gate_up: mx.array) -> mx.array:
    """Compute ``silu(gate) * up`` for the two halves of each row."""
    gate, up = mx.split(gate_up, 2, axis=-1)
    return gate * mx.sigmoid(gate) * up


class Layer(nn.Module):
    """Attention, then the MLP, each added to its input."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, x: mx.array, angles: tuple[mx.array, mx.array], layer: int, attend: Attend,
                 wanted: mx.array | None = None) -> mx.array:
        """Compute the layer.

        With ``wanted``, keys and values are computed for all tokens, and the rest for these tokens only.
        """
        out = self.self_attn(self.input_layernorm(x), angles, layer, attend, wanted)
        x = (x if wanted is None else x[wanted]) + out
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """Everything except the output matrix; in a checkpoint its parameters begin with ``model.``"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Layer(config) for _ in range(config.num_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Model(nn.Module):
    """The whole network. Parameters are named as in a Hugging Face checkpoint, except for the stacked ones."""

    #: Puts the matrices back, if something holds them in an order of its own; see ``native``.
    _put_back: Callable[[], None] | None = None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        frequencies, scale = rope_frequencies(config.rope_theta, config.head_dim, Fields(config.rope_scaling or {}))
        if config.rope_factors is not None:
            frequencies = frequencies / mx.array(config.rope_factors)
        self._rope = Rope(frequencies, scale, config.num_heads + config.num_kv_heads, config.num_kv_heads)

    @property
    def num_bytes(self) -> int:
        """The size of its parameters."""
        from mlx.utils import tree_flatten  # not at the top of the file: the backend must import MLX first
        parameters: dict[str, mx.array] = dict(tree_flatten(self.parameters()))
        return sum(array.nbytes for array in parameters.values())

    def take_back(self) -> None:
        """Make sure that the matrices are here."""
        if self._put_back is not None:
            self._put_back()

    def parameters(self) -> Any:  # as nn.Module declares it
        self.take_back()
        return super().parameters()

    def __call__(self, token_ids: mx.array, positions: mx.array, attend: Attend,
                 wanted: mx.array | None = None) -> mx.array:
        """Return the hidden states [num_tokens, hidden_size] of a flat batch of tokens at ``positions`` of their own
        requests.

        With ``wanted``, return those of these tokens only. Most tokens of a prompt are computed only for their keys and
        values: the last layer skips the rest for them, and calls ``attend`` for the wanted ones only.
        """
        self.take_back()
        x = self.model.embed_tokens(token_ids)
        angles = self._rope.angles(positions)
        last = len(self.model.layers) - 1
        for index, layer in enumerate(self.model.layers):
            x = layer(x, angles, index, attend, wanted if index == last else None)
        hidden: mx.array = self.model.norm(x)
        return hidden

    def logits(self, hidden: mx.array) -> mx.array:
        """Return scores over the vocabulary, one vector per hidden state."""
        self.take_back()
        scores: mx.array = self.lm_head(hidden) if "lm_head" in self else self.model.embed_tokens.as_linear(hidden)
        return scores
