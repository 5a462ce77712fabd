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

import math
from collections.abc import Callable, Mapping
from typing import Any

from mini_vllm.backend import mx, nn
from mini_vllm.models.config import ModelConfig

#: attend(layer_index, queries [n, num_heads, head_dim], keys_values [n, 2 * num_kv_heads, head_dim]) → like queries
Attend = Callable[[int, mx.array, mx.array], mx.array]


class Rope:
    """Rotates queries and keys by their positions, and leaves values unchanged, all heads at once.

    The angles are computed once per step, not once per layer. Element i of a head rotates together with element i +
    head_dim / 2, so a head is treated as two halves, and each is mixed with the other.
    """

    def __init__(self, frequencies: mx.array, scale: float, num_rotated: int, num_values: int) -> None:
        """Store the frequencies for ``num_rotated`` heads of queries and keys, followed by ``num_values`` heads of
        values."""
        self.frequencies, self.scale = frequencies, scale
        self.num_rotated, self.num_values = num_rotated, num_values
        mx.eval(self.frequencies)

    def angles(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """Return two arrays of factors for tokens at ``positions`` [n], each [n, heads, 2, head_dim / 2].

        To rotate, each half of a head is multiplied by the first array, its other half by the second, and both products
        are added.
        """
        angles = positions[:, None, None, None].astype(mx.float32) * self.frequencies
        cos, sin = mx.cos(angles), mx.sin(angles)
        if self.scale != 1.0:
            cos, sin = cos * self.scale, sin * self.scale
        num_tokens, _, _, half = cos.shape
        rotated, values = (num_tokens, self.num_rotated, 2, half), (num_tokens, self.num_values, 2, half)
        mixed = mx.broadcast_to(mx.concatenate([-sin, sin], axis=2), rotated)
        return (mx.concatenate([mx.broadcast_to(cos, rotated), mx.ones(values)], axis=1),
                mx.concatenate([mixed, mx.zeros(values)], axis=1))

    @staticmethod
    def rotate(x: mx.array, angles: tuple[mx.array, mx.array]) -> mx.array:
        """Rotate ``x``, which is [n, heads, head_dim]."""
        halves = x.reshape(*x.shape[:2], 2, -1)
        return (halves * angles[0] + halves[:, :, ::-1] * angles[1]).astype(x.dtype).reshape(x.shape)


def rope_frequencies(config: ModelConfig) -> tuple[mx.array, float]:
    """Return the radians per position of each rotated pair, [head_dim / 2], and the factor of the rotated vectors.

    Models are trained on short texts and then extended to longer ones by making some pairs rotate more slowly.
    ``rope_scaling`` in their config says how: the Llama family uses "linear", "llama3" and "yarn".
    """
    inverse = config.rope_theta ** (-mx.arange(0, config.head_dim, 2, dtype=mx.float32) / config.head_dim)
    scaling, scale = config.rope_scaling, 1.0
    if scaling is not None:
        factor = scaling["factor"]
        # The share of each frequency that stays as trained; the rest is divided by the factor.
        if scaling["rope_type"] == "linear":
            kept = mx.zeros_like(inverse)
        elif scaling["rope_type"] == "llama3":  # slow pairs are scaled, fast ones are not
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            num_turns = scaling["original_max_position_embeddings"] * inverse / (2 * math.pi)
            kept = mx.clip((num_turns - low) / (high - low), 0.0, 1.0)
        else:
            kept, scale = _yarn(scaling, inverse.size, config.rope_theta)
        inverse = kept * inverse + (1 - kept) * inverse / factor
    if config.rope_factors is not None:
        inverse = inverse / mx.array(config.rope_factors)
    return inverse, scale


def _yarn(scaling: Mapping[str, Any], num_pairs: int, theta: float) -> tuple[mx.array, float]:
    """Return the shares of yarn, and its factor: like llama3, but blended by the index of the pair.

    The blend is between the pairs that make ``beta_fast`` and ``beta_slow`` turns within the trained length. Attention
    is made sharper, the more so the larger ``factor`` is.
    """
    trained_length, factor = scaling["original_max_position_embeddings"], scaling["factor"]

    def pair_that_makes(num_turns: float) -> float:
        return num_pairs * math.log(trained_length / (num_turns * 2 * math.pi)) / math.log(theta)

    first = max(math.floor(pair_that_makes(scaling.get("beta_fast", 32))), 0)
    last = min(math.ceil(pair_that_makes(scaling.get("beta_slow", 1))), 2 * num_pairs - 1)
    width = last - first or 0.001
    kept = 1 - mx.clip((mx.arange(num_pairs, dtype=mx.float32) - first) / width, 0.0, 1.0)

    def sharpness(share: float) -> float:
        return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0

    # As in transformers, one of the two alone, or 0, changes nothing; mlx-lm uses one alone.
    share, share_of_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    scale = sharpness(share) / sharpness(share_of_all) if share and share_of_all else sharpness(1)
    return kept, float(scaling.get("attention_factor", scale))


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
        self._rope = Rope(*rope_frequencies(config), config.num_heads + config.num_kv_heads, config.num_kv_heads)

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
