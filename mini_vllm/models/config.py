"""The numbers that define a network of the Llama family, read from a ``config.json`` and checked."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mini_vllm.models.json_fields import FieldError, Fields
from mini_vllm.models.rope import UnsupportedModel, rope_frequencies

#: model_type → the values of missing fields, as in transformers 5
DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "max_position_embeddings": 32_768, "sliding_window": 4096,
              "max_window_layers": 28},
    "qwen3": {"num_key_value_heads": 32, "max_position_embeddings": 32_768, "sliding_window": 4096,
              "max_window_layers": 28, "head_dim": 128},
}
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class ModelConfig:
    """The numbers that define a network, read from a Hugging Face ``config.json``."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    #: The longest text.
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, object] | None = None
    #: The frequency of each pair is divided by these, as a GGUF file may say.
    rope_factors: tuple[float, ...] | None = None
    #: The checkpoint rotates pairs (0, 1), (2, 3), … instead of (0, d/2), (1, d/2 + 1), …; the loader reorders it.
    rope_interleaved: bool = False
    #: None: tied if the checkpoint has no output matrix of its own.
    tie_word_embeddings: bool | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    #: In these layers a token attends only to the last ``sliding_window`` tokens, including itself.
    sliding_window: int | None = None
    sliding_layers: Collection[int] = ()

    @classmethod
    def from_dict(cls, config: Mapping[str, object]) -> ModelConfig:
        """Read a config.

        Raise UnsupportedModel for another architecture, and FieldError for a missing or invalid field.
        """
        model_type = config.get("model_type")
        if not isinstance(model_type, str) or model_type not in DEFAULTS:
            named = config.get("architectures") or model_type
            raise UnsupportedModel(f"the architecture {reprlib.repr(named)} (model_type {reprlib.repr(model_type)}) is "
                                   f"not supported; supported: {', '.join(DEFAULTS)}")
        # Only a missing field has a default: a null says that there is no such thing.
        fields = Fields({"rms_norm_eps": 1e-6, **DEFAULTS[model_type], **config})
        fields.only("hidden_act", "silu")
        num_heads, hidden_size = fields.whole("num_attention_heads"), fields.whole("hidden_size")
        num_kv_heads, num_layers = fields.whole("num_key_value_heads", num_heads), fields.whole("num_hidden_layers")
        if num_heads % num_kv_heads:
            raise FieldError("num_attention_heads", f"is {num_heads}, must be a multiple of num_key_value_heads "
                                                    f"({num_kv_heads})")
        head_dim = fields.whole("head_dim", max(hidden_size // num_heads, 1))
        if head_dim % 2:
            raise FieldError("head_dim", f"is {head_dim}, must be even: its halves are rotated against each other")
        max_positions = fields.whole("max_position_embeddings")
        rope_theta, rope = _read_rope(fields, head_dim, max_positions)
        if rope["rope_type"] == "yarn":  # extended to longer texts than it was trained on
            scaling = Fields(rope)
            trained_length = scaling.whole("original_max_position_embeddings")
            max_positions = max(max_positions, int(scaling.number("factor") * trained_length))
        sliding_window, sliding_layers = _read_windows(fields, model_type, num_layers)
        attention_bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
        has_bias = attention_bias and model_type in ("llama", "qwen3")
        return cls(
            model_type=model_type, vocab_size=fields.whole("vocab_size"), hidden_size=hidden_size,
            intermediate_size=fields.whole("intermediate_size"), num_layers=num_layers, num_heads=num_heads,
            num_kv_heads=num_kv_heads, head_dim=head_dim, max_position_embeddings=max_positions,
            rms_norm_eps=fields.number("rms_norm_eps"), rope_theta=rope_theta,
            rope_scaling=None if rope["rope_type"] == "default" else rope,
            rope_interleaved=fields.flag("rope_traditional"),
            tie_word_embeddings=fields.flag("tie_word_embeddings") if "tie_word_embeddings" in fields else None,
            qkv_bias=has_bias or model_type == "qwen2", output_bias=has_bias,
            mlp_bias=mlp_bias and model_type == "llama", qk_norm=model_type == "qwen3",
            sliding_window=sliding_window, sliding_layers=sliding_layers)

    def window(self, layer: int) -> int | None:
        """Return how many tokens a token of this layer attends to, including itself; None: all up to itself."""
        return self.sliding_window if layer in self.sliding_layers else None


def _read_rope(fields: Fields, head_dim: int, max_positions: int) -> tuple[float, dict[str, object]]:
    """Return the base of the rotary frequencies and their scaling.

    As in transformers 5, they may be in the config itself, in ``rope_scaling`` and in ``rope_parameters``. Raise
    FieldError with both values where two of these disagree.
    """
    outside = {key: fields.get(key) for key in ("rope_theta", "original_max_position_embeddings") if key in fields}
    found: dict[str, dict[str, object]] = {}
    fields.only("partial_rotary_factor", 1.0)
    for name in ("rope_parameters", "rope_scaling"):
        part = fields.part(name)
        part.only("partial_rotary_factor", 1.0)
        for layers in (FULL, SLIDING):
            if layers in part:
                raise FieldError(f"{name}.{layers}", "is not supported: all layers must have the same rotation")
        rope = {key: part.get(key) for key in part if key in part}
        kind = rope.pop("type", rope.get("rope_type", "default"))
        for key, value in {"rope_type": kind, **outside}.items():
            if rope.setdefault(key, value) != value:
                other = f"{name}.type" if key == "rope_type" else key
                raise FieldError(f"{name}.{key}", f"is {reprlib.repr(rope[key])}, but {other} is {reprlib.repr(value)}")
        if [*part]:
            found[name] = rope
    if len(found) == 2:
        (first, parameters), (second, scaling) = found.items()
        for key in ("rope_type", *sorted(parameters.keys() | scaling.keys())):
            if parameters.get(key) != scaling.get(key):
                raise FieldError(f"{first}.{key}", f"is {reprlib.repr(parameters.get(key))}, but {second}.{key} is "
                                                   f"{reprlib.repr(scaling.get(key))}")
    name, rope = next(reversed(found.items()), ("rope_parameters", {"rope_type": "default", **outside}))
    if rope["rope_type"] in ("llama3", "yarn"):
        rope.setdefault("original_max_position_embeddings", max_positions)
    theta = (fields if "rope_theta" in fields else Fields(rope, name)).number("rope_theta", 10_000.0, above=1)
    rope_frequencies(theta, head_dim, Fields(rope, name))
    return theta, rope


def _read_windows(fields: Fields, model_type: str, num_layers: int) -> tuple[int | None, Collection[int]]:
    """Return the length of the sliding window and the layers that have one, as transformers 5 does.

    Llama has no windows. Mistral has one in all layers, unless its length is null. Qwen has one if
    ``use_sliding_window`` is set, in the layers that ``layer_types`` lists or else from ``max_window_layers`` on.
    """
    is_used, types = fields.flag("use_sliding_window"), _read_layer_types(fields, num_layers)
    if model_type == "llama" and is_used:
        raise FieldError("use_sliding_window", "is True, but a llama network has no windows")
    has_window = model_type == "mistral" or (is_used and model_type != "llama")
    window = fields.whole("sliding_window") if has_window and "sliding_window" in fields else None
    layers: Collection[int] = ()
    if window is not None:
        layers = range(0 if model_type == "mistral" else fields.whole("max_window_layers", at_least=0), num_layers)
    if types is not None:
        listed = tuple(layer for layer, kind in enumerate(types) if kind == SLIDING)
        if window is None and listed:
            raise FieldError("layer_types", f"has {SLIDING!r}, but a {model_type} network has no window if "
                                            f"use_sliding_window is {is_used} and sliding_window is "
                                            f"{fields.get('sliding_window')}")
        if model_type == "mistral" and len(listed) != len(layers):
            raise FieldError("layer_types", f"has {FULL!r}, but sliding_window is {window}, and a mistral network has "
                                            "windows in all layers")
        layers = listed
    return (window, layers) if len(layers) else (None, ())


def _read_layer_types(fields: Fields, num_layers: int) -> list[object] | None:
    if "layer_types" not in fields:
        return None
    types = fields.get("layer_types")
    if not isinstance(types, list):
        raise fields.error("layer_types", "must be a list")
    if len(types) != num_layers:
        raise FieldError("layer_types", f"has {len(types)} entries, must have {num_layers}, one per layer")
    unknown = [kind for kind in types if kind not in (FULL, SLIDING)]
    if unknown:
        raise FieldError("layer_types", f"has {reprlib.repr(unknown[0])}, supported: {FULL}, {SLIDING}")
    return types
