"""The Llama family as one network: Llama 2 and 3, Mistral, Qwen2 and 2.5, Qwen3, SmolLM.

It computes a flat row of tokens, with no batch and no padding: which request a token belongs to, and what it attends
to, is the business of the ``attend`` function that the caller passes in.

    token_ids [num_tokens] ──▶ embed ──▶ layers ──▶ norm ──▶ hidden [num_tokens, hidden_size]
                                           │  ▲
                                   q, kv   ▼  │  what each token saw
                                    attend(layer, q, kv)

Matrices that multiply the same input are kept as one: queries, keys and values; gate and up. On a CPU that decodes one
token, the number of operations matters as much as their size. The loader does the stacking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mini_vllm.backend import blas, mx, nn
from mini_vllm.fast_exp import one_plus_exp
from mini_vllm.streams import in_halves

#: attend(layer_index, queries [n, num_heads, head_dim], keys_values [n, 2 * num_kv_heads, head_dim]) → like queries
Attend = Callable[[int, mx.array, mx.array], mx.array]

#: model_type → what its attention has beside the common shape
ARCHITECTURES: dict[str, dict[str, bool]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
}


class UnsupportedModel(ValueError):
    """A model this network cannot be; the message names what and lists what it can be."""


#: Below so many elements of an activation a second stream costs more than it saves.
MIN_SIZE_TO_SPLIT = 131072


@dataclass(frozen=True)
class ModelConfig:
    """The numbers that make a network, read from a Hugging Face ``config.json``."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, object] | None = None
    #: The checkpoint rotates pairs (0, 1), (2, 3), … instead of (0, d/2), (1, d/2 + 1), …; the loader reorders it.
    rope_interleaved: bool = False
    #: None: tied if the checkpoint has no output matrix of its own.
    tie_word_embeddings: bool | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @classmethod
    def from_dict(cls, config: Mapping[str, object]) -> ModelConfig:
        """Raises UnsupportedModel for another architecture, ValueError naming a field that is missing or impossible."""
        model_type = config.get("model_type")
        if model_type not in ARCHITECTURES:
            named = config.get("architectures") or model_type
            raise UnsupportedModel(f"the architecture {named!r} (model_type {model_type!r}) is not supported; "
                                   f"supported: {', '.join(ARCHITECTURES)}")
        if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
            raise UnsupportedModel(f"{model_type} with sliding-window attention is not supported")
        extras = ARCHITECTURES[model_type]
        rope = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
        num_heads = _positive(config, "num_attention_heads")
        hidden_size = _positive(config, "hidden_size")
        has_bias = bool(config.get("attention_bias", False))
        max_positions = _positive(config, "max_position_embeddings", 2048)
        if model_type == "mistral" and config.get("sliding_window"):
            max_positions = min(max_positions, _positive(config, "sliding_window"))  # up to there it attends to all
        made = cls(
            model_type=model_type, vocab_size=_positive(config, "vocab_size"), hidden_size=hidden_size,
            intermediate_size=_positive(config, "intermediate_size"), num_layers=_positive(config, "num_hidden_layers"),
            num_heads=num_heads, num_kv_heads=_positive(config, "num_key_value_heads", num_heads),
            head_dim=_positive(config, "head_dim", hidden_size // num_heads),
            max_position_embeddings=max_positions,
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
            rope_scaling=rope or None, rope_interleaved=bool(config.get("rope_traditional", False)),
            tie_word_embeddings=config.get("tie_word_embeddings"), qkv_bias=has_bias or extras.get("qkv_bias", False),
            output_bias=has_bias, mlp_bias=bool(config.get("mlp_bias", False)), qk_norm=extras.get("qk_norm", False))
        if made.num_heads % made.num_kv_heads:
            raise ValueError(f"num_attention_heads is {made.num_heads}, must be a multiple of num_key_value_heads "
                             f"({made.num_kv_heads})")
        rope_frequencies(made)  # refuses a scaling it does not know
        return made


def _positive(config: Mapping[str, object], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config.json: {name} is {value!r}, must be a whole number, at least 1")
    return value


def rope_frequencies(config: ModelConfig) -> mx.array:
    """Radians a position for each rotated pair, [head_dim / 2], with the model's scaling for long contexts."""
    inverse = config.rope_theta ** (-mx.arange(0, config.head_dim, 2, dtype=mx.float32) / config.head_dim)
    scaling = config.rope_scaling or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind in ("default", "mrope"):
        return inverse
    if kind == "linear":
        return inverse / scaling["factor"]
    if kind == "llama3":
        # Slow pairs turn `factor` times slower, fast ones as trained, those between are blended.
        factor, old_length = scaling["factor"], scaling.get("original_max_position_embeddings", 8192)
        low, high = scaling.get("low_freq_factor", 1.0), scaling.get("high_freq_factor", 4.0)
        num_turns = old_length * inverse / (2 * math.pi)
        blend = mx.clip((num_turns - low) / (high - low), 0.0, 1.0)
        return blend * inverse + (1 - blend) * inverse / factor
    raise UnsupportedModel(f"rope scaling {kind!r} is not supported; supported: default, linear, llama3")


class Rope:
    """Rotates queries and keys by their positions, and leaves values alone, all heads at once.

    The angles are made once a step, not once a layer. Element i of a head turns together with element i + head_dim / 2,
    so a head is seen as two halves, and each is mixed with the other.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.frequencies = rope_frequencies(config)
        self.num_rotated, self.num_values = config.num_heads + config.num_kv_heads, config.num_kv_heads
        mx.eval(self.frequencies)

    def angles(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """For tokens at ``positions`` [n]: factors of each half and of its other half, [n, heads, 2, head_dim / 2]."""
        angles = positions[:, None, None, None].astype(mx.float32) * self.frequencies
        cos, sin = mx.cos(angles), mx.sin(angles)
        num_tokens, _, _, half = cos.shape
        rotated, values = (num_tokens, self.num_rotated, 2, half), (num_tokens, self.num_values, 2, half)
        mixed = mx.broadcast_to(mx.concatenate((-sin, sin), axis=2), rotated)
        return (mx.concatenate((mx.broadcast_to(cos, rotated), mx.ones(values)), axis=1),
                mx.concatenate((mixed, mx.zeros(values)), axis=1))

    @staticmethod
    def rotate(x: mx.array, angles: tuple[mx.array, mx.array]) -> mx.array:
        """``x`` is [n, heads, head_dim]."""
        halves = x.reshape(*x.shape[:2], 2, -1)
        return (halves * angles[0] + halves[:, :, ::-1] * angles[1]).astype(x.dtype).reshape(x.shape)


class QKNorm(nn.Module):
    """Normalises every head of the queries and keys; one row of weights a head, since both go through at once."""

    def __init__(self, num_heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((num_heads, head_dim))
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, None, self.eps) * self.weight


def is_faster_weights_first(num_tokens: int, max_tokens: int) -> bool:
    """Whether ``weight @ x.T`` takes less time than ``x @ weight.T``.

    NVPL multiplies eight columns or twelve rows at once: with the weights first, 16 tokens take 0.8 times as long, but
    9 to 12 take 1.1 times. ``benchmark blas`` measures it. Of many tokens, laying the result out anew costs more than
    that saves; how many are too many, only the caller knows.
    """
    return blas.name == "nvpl" and 3 <= num_tokens <= max_tokens and not 9 <= num_tokens <= 12


def project(x: mx.array, weight: mx.array) -> mx.array:
    """``x @ weight.T``, [num_tokens, in] and [out, in] → [num_tokens, out], in the way the BLAS is best at."""
    if blas.name == "nvpl" and x.shape[0] == 2:  # faster each by itself
        return mx.concatenate([x[:1] @ weight.T, x[1:] @ weight.T])
    return (weight @ x.T).T if is_faster_weights_first(x.shape[0], max_tokens=24) else x @ weight.T


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """``gate * sigmoid(gate) * up``, with one exp and nothing else that is slow."""
    return in_halves(lambda gate, up: gate / one_plus_exp(-gate) * up, gate, up, min_size=MIN_SIZE_TO_SPLIT)


class Linear(nn.Linear):
    def __call__(self, x: mx.array) -> mx.array:
        out = project(x, self.weight)
        return out + self.bias if "bias" in self else out


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.qkv_proj = Linear(config.hidden_size, q_size + 2 * kv_size, bias=config.qkv_bias)
        self.o_proj = Linear(q_size, config.hidden_size, bias=config.output_bias)
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
        """Queries and keys normalised, if the model does that, and rotated; values as they are."""
        if "qk_norm" in self:
            num_rotated = self.num_heads + self.num_kv_heads
            heads = mx.concatenate((self.qk_norm(heads[:, :num_rotated]), heads[:, num_rotated:]), axis=1)
        return Rope.rotate(heads, angles)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up_proj = Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def __call__(self, x: mx.array) -> mx.array:
        if is_faster_weights_first(x.shape[0], max_tokens=64) and "bias" not in self.down_proj:
            # One column a token throughout, so that only the result is laid out anew.
            gate, up = mx.split(self.gate_up_proj.weight @ x.T, 2)
            return (self.down_proj.weight @ swiglu(gate, up)).T
        gate, up = mx.split(self.gate_up_proj(x), 2, axis=-1)
        return self.down_proj(swiglu(gate, up))


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, x: mx.array, angles: tuple[mx.array, mx.array], layer: int, attend: Attend,
                 wanted: mx.array | None = None) -> mx.array:
        """With ``wanted``, keys and values are computed for all tokens, and the rest for these rows only."""
        out = self.self_attn(self.input_layernorm(x), angles, layer, attend, wanted)
        x = (x if wanted is None else x[wanted]) + out
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """Everything but the output matrix; the name of its parameters in a checkpoint begins with ``model.``"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Layer(config) for _ in range(config.num_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Model(nn.Module):
    """Parameters are named as in a Hugging Face checkpoint, but for the stacked ones."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self._rope = Rope(config)

    def __call__(self, token_ids: mx.array, positions: mx.array, attend: Attend,
                 wanted: mx.array | None = None) -> mx.array:
        """Hidden states [num_tokens, hidden_size] of a flat row of tokens at ``positions`` of their own requests.

        With ``wanted``, of these rows only. Most tokens of a prompt are computed for their keys and values alone: the
        last layer does little for them, and asks ``attend`` for the wanted rows only.
        """
        x = self.model.embed_tokens(token_ids)
        angles = self._rope.angles(positions)
        last = len(self.model.layers) - 1
        for index, layer in enumerate(self.model.layers):
            x = layer(x, angles, index, attend, wanted if index == last else None)
        return self.model.norm(x)

    def logits(self, hidden: mx.array) -> mx.array:
        """Scores over the vocabulary for rows of hidden states."""
        if "lm_head" in self:
            return self.lm_head(hidden)
        embedding = self.model.embed_tokens
        return project(hidden, embedding.weight) if type(embedding) is nn.Embedding else embedding.as_linear(hidden)
