"""The numbers that define a network of the Llama family, read from a ``config.json`` and checked."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mini_vllm.models.json_fields import FieldError, Fields
from mini_vllm.models.rope import UnsupportedModel, rope_frequencies

#: model_type → what its attention has besides the common shape
ARCHITECTURES: dict[str, dict[str, bool]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
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
        fields, model_type = Fields(config), config.get("model_type")
        if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
            named = config.get("architectures") or model_type
            raise UnsupportedModel(f"the architecture {reprlib.repr(named)} (model_type {reprlib.repr(model_type)}) is "
                                   f"not supported; supported: {', '.join(ARCHITECTURES)}")
        extras = ARCHITECTURES[model_type]
        fields.only("hidden_act", "silu")
        num_heads, hidden_size = fields.whole("num_attention_heads"), fields.whole("hidden_size")
        num_kv_heads, num_layers = fields.whole("num_key_value_heads", num_heads), fields.whole("num_hidden_layers")
        if num_heads % num_kv_heads:
            raise FieldError("num_attention_heads", f"is {num_heads}, must be a multiple of num_key_value_heads "
                                                    f"({num_kv_heads})")
        head_dim = fields.whole("head_dim", max(hidden_size // num_heads, 1))
        if head_dim % 2:
            raise FieldError("head_dim", f"is {head_dim}, must be even: its halves are rotated against each other")
        rope_theta, rope = _read_rope(fields, head_dim)
        max_positions = fields.whole("max_position_embeddings", 2048)
        if "yarn" in (rope.get("rope_type"), rope.get("type")):  # extended to longer texts than it was trained on
            scaling = Fields(rope)
            trained_length = scaling.whole("original_max_position_embeddings")
            max_positions = max(max_positions, int(scaling.number("factor") * trained_length))
        sliding_window, sliding_layers = _read_windows(fields, model_type, num_layers)
        has_bias = fields.flag("attention_bias")
        return cls(
            model_type=model_type, vocab_size=fields.whole("vocab_size"), hidden_size=hidden_size,
            intermediate_size=fields.whole("intermediate_size"), num_layers=num_layers, num_heads=num_heads,
            num_kv_heads=num_kv_heads, head_dim=head_dim, max_position_embeddings=max_positions,
            # A null would be a mistake; models without the field have the default of their family.
            rms_norm_eps=fields.number("rms_norm_eps", None if "rms_norm_eps" in config else 1e-6),
            rope_theta=rope_theta, rope_scaling=rope or None, rope_interleaved=fields.flag("rope_traditional"),
            tie_word_embeddings=fields.flag("tie_word_embeddings") if "tie_word_embeddings" in fields else None,
            qkv_bias=has_bias or extras.get("qkv_bias", False), output_bias=has_bias,
            mlp_bias=fields.flag("mlp_bias"), qk_norm=extras.get("qk_norm", False),
            sliding_window=sliding_window, sliding_layers=sliding_layers)

    def window(self, layer: int) -> int | None:
        """Return how many tokens a token of this layer attends to, including itself; None: all up to itself."""
        return self.sliding_window if layer in self.sliding_layers else None


def _read_rope(fields: Fields, head_dim: int) -> tuple[float, dict[str, object]]:
    """Return the base of the rotary frequencies and their scaling. Newer configs have both in ``rope_parameters``."""
    parts = {name: fields.part(name) for name in ("rope_parameters", "rope_scaling")}
    rope = {name: part.get(name) for part in parts.values() for name in part}
    for part in (fields, *parts.values()):
        part.only("partial_rotary_factor", 1.0)
    for kind in (FULL, SLIDING):
        if kind in parts["rope_parameters"]:
            raise FieldError(f"rope_parameters.{kind}", "is not supported: all layers must have the same rotation")
    theta = next((part.number("rope_theta", above=1) for part in (fields, *parts.values()) if "rope_theta" in part),
                 10_000.0)
    rope_frequencies(theta, head_dim, Fields(rope, "rope_scaling" if "rope_scaling" in fields else "rope_parameters"))
    return theta, rope


def _read_windows(fields: Fields, model_type: str, num_layers: int) -> tuple[int | None, Collection[int]]:
    """Return the length of the sliding window and the layers that have one.

    For any model, a list of layer types says which. Without such a list, Mistral has a window in all layers if a length
    is given; Qwen, if ``use_sliding_window`` is set, in the layers from ``max_window_layers`` on.
    """
    is_used, window_is_given = fields.flag("use_sliding_window"), "sliding_window" in fields
    if "layer_types" in fields:
        types = fields.get("layer_types")
        if not isinstance(types, list):
            raise fields.error("layer_types", "must be a list")
        if len(types) != num_layers:
            raise FieldError("layer_types", f"has {len(types)} entries, must have {num_layers}, one per layer")
        unknown = [kind for kind in types if kind not in (FULL, SLIDING)]
        if unknown:
            raise FieldError("layer_types", f"has {reprlib.repr(unknown[0])}, supported: {FULL}, {SLIDING}")
        layers: Collection[int] = tuple(layer for layer, kind in enumerate(types) if kind == SLIDING)
        if layers and "use_sliding_window" in fields and not is_used:
            raise FieldError("layer_types", f"has {SLIDING!r}, but use_sliding_window is False")
    elif model_type == "mistral":
        layers = range(num_layers) if window_is_given else ()
    elif is_used and model_type == "llama":
        raise FieldError("use_sliding_window", "is True, which a llama network supports only with layer_types")
    elif is_used:
        fields.whole("sliding_window")
        layers = range(fields.whole("max_window_layers", at_least=0), num_layers)
    else:
        layers = ()
    return (fields.whole("sliding_window"), layers) if len(layers) else (None, ())
