"""The numbers that define a network of the Llama family, read from a ``config.json`` and checked.

``Fields`` checks each field of a JSON object as it is read. Importing this module does not import MLX.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
#: The kinds of rope scaling → the numbers that each needs
ROPE_TYPES = {"default": (), "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
              "yarn": ("factor",)}
#: A larger number is infinite in float32.
LARGEST_NUMBER = 3e38


class LoadError(ValueError):
    """A model cannot be loaded; the message names the file, tensor or field."""


class UnsupportedModel(ValueError):
    """A model that this network does not support; the message names the problem and lists what is supported."""


class FieldError(ValueError):
    """A field is missing or invalid; the message names the field, its value and what it must be."""

    def __init__(self, field: str, complaint: str) -> None:
        super().__init__(f"{field} {complaint}")
        self.field = field
        self.complaint = complaint


class Fields:
    """A JSON object. A null field counts as missing; a missing field has its default, if there is one."""

    def __init__(self, content: Mapping[str, object], name: str = "") -> None:
        self._content = content
        self._prefix = f"{name}." if name else ""

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the fields that are not missing."""
        return (name for name in self._content if name in self)

    def get(self, name: str) -> object:
        """Return the field unchecked."""
        return self._content.get(name)

    def error(self, name: str, must: str) -> FieldError:
        is_what = f"is {reprlib.repr(self.get(name))}" if name in self else "is missing"
        return FieldError(self._prefix + name, f"{is_what}, {must}")

    def whole(self, name: str, default: int | None = None, at_least: int = 1) -> int:
        value = self.get(name) if name in self else default
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise self.error(name, f"must be a whole number, at least {at_least}")
        return value

    def number(self, name: str, default: float | None = None, above: float = 0) -> float:
        value = self.get(name) if name in self else default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not above < value < LARGEST_NUMBER:
            raise self.error(name, f"must be a number above {above}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return a boolean field; False if it is missing."""
        value = self.get(name)
        if not isinstance(value, bool) and value is not None:
            raise self.error(name, "must be true or false")
        return bool(value)

    def part(self, name: str) -> Fields:
        """Return an object inside this one; an empty one if the field is missing."""
        value = self.get(name) if name in self else {}
        if not isinstance(value, Mapping):
            raise self.error(name, "must be an object")
        return Fields(value, self._prefix + name)

    def only(self, name: str, supported: object) -> None:
        """Raise FieldError unless the field is missing or has the supported value."""
        if name in self and self.get(name) != supported:
            shown = supported if isinstance(supported, str) else json.dumps(supported)
            raise self.error(name, f"supported: {shown}")


def read_object(file: Path, error_type: type[ValueError] = LoadError) -> dict[str, Any]:
    """Return the JSON object in a file. Raise ``error_type`` if the file contains none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise error_type(f"{file}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise error_type(f"{file} holds {reprlib.repr(content)}, must be a JSON object")
    return content


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
    #: Fields of the file, which were checked.
    rope_scaling: Mapping[str, Any] | None = None
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
        rope_theta, rope = _read_rope(fields, max_positions)
        if rope["rope_type"] == "yarn":  # extended to longer texts than it was trained on
            max_positions = max(max_positions, int(rope["factor"] * rope["original_max_position_embeddings"]))
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


def _read_rope(fields: Fields, max_positions: int) -> tuple[float, dict[str, Any]]:
    """Return the base of the rotary frequencies and their scaling.

    As in transformers 5, they may be in the config itself, in ``rope_parameters`` and in ``rope_scaling``. Raise
    FieldError with both values where two of these disagree, and UnsupportedModel for an unknown kind.
    """
    outside = {name: fields.get(name) for name in ("rope_theta", "original_max_position_embeddings") if name in fields}
    found: dict[str, dict[str, Any]] = {}
    for place in ("rope_parameters", "rope_scaling"):
        part = fields.part(place)
        rope = {name: part.get(name) for name in part}
        if rope:
            kind = rope.pop("type", rope.get("rope_type", "default"))
            _check_equal(f"{place}.rope_type", rope.setdefault("rope_type", kind), f"{place}.type", kind)
            for name, value in outside.items():
                _check_equal(f"{place}.{name}", rope.setdefault(name, value), name, value)
            found[place] = rope
    place, rope = next(reversed(found.items()), ("rope_scaling", {"rope_type": "default", **outside}))
    for other in found:
        for name in ("rope_type", *sorted(rope.keys() | found[other].keys())):
            _check_equal(f"{other}.{name}", found[other].get(name), f"{place}.{name}", rope.get(name))
    if rope["rope_type"] in ("llama3", "yarn"):
        rope.setdefault("original_max_position_embeddings", max_positions)
    fields.only("partial_rotary_factor", 1.0)
    _check_rope(Fields(rope, place))
    return (fields if "rope_theta" in fields else Fields(rope, place)).number("rope_theta", 10_000.0, above=1), rope


def _check_equal(name: str, value: object, other: str, its: object) -> None:
    if value != its:
        raise FieldError(name, f"is {reprlib.repr(value)}, but {other} is {reprlib.repr(its)}")


def _check_rope(rope: Fields) -> None:
    """Raise an error unless the network can compute this scaling."""
    kind = rope.get("rope_type")
    if not isinstance(kind, str) or kind not in ROPE_TYPES:
        raise UnsupportedModel(f"rope scaling {reprlib.repr(kind)} is not supported; supported: "
                               f"{', '.join(ROPE_TYPES)}")
    for layers in (FULL, SLIDING):
        if layers in rope:
            raise rope.error(layers, "but all layers must have the same rotation")
    rope.only("partial_rotary_factor", 1.0)
    for name in ROPE_TYPES[kind]:
        rope.number(name)
    if kind == "llama3":
        rope.number("high_freq_factor", above=rope.number("low_freq_factor"))
    if kind in ("llama3", "yarn"):
        rope.whole("original_max_position_embeddings")
    if kind == "yarn":
        rope.only("truncate", True)
        for name in ("beta_fast", "beta_slow", "attention_factor"):
            rope.number(name, 1)
        for name in ("mscale", "mscale_all_dim"):
            if rope.get(name):  # both may be 0
                rope.number(name)


def _read_windows(fields: Fields, model_type: str, num_layers: int) -> tuple[int | None, Collection[int]]:
    """Return the length of the sliding window and the layers that have one, as transformers 5 does.

    Llama has no windows. Mistral has one in all layers, unless its length is null. Qwen has one if
    ``use_sliding_window`` is set, in the layers that ``layer_types`` lists or else from ``max_window_layers`` on. Raise
    FieldError for a list that says something else.
    """
    is_used = fields.flag("use_sliding_window")
    if model_type == "llama" and is_used:
        raise fields.error("use_sliding_window", "but a llama network has no windows")
    window, layers = None, range(0)
    if "sliding_window" in fields and (model_type == "mistral" or is_used):
        window = fields.whole("sliding_window")
        layers = range(0 if model_type == "mistral" else fields.whole("max_window_layers", at_least=0), num_layers)
    if "layer_types" not in fields:
        return (window, layers) if layers else (None, ())
    types = fields.get("layer_types")
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in (FULL, SLIDING) for kind in types):
        raise fields.error("layer_types", f"must be a list of {num_layers} entries, one per layer: {FULL} or {SLIDING}")
    listed = tuple(layer for layer, kind in enumerate(types) if kind == SLIDING)
    if (listed and window is None) or (model_type == "mistral" and len(listed) != len(layers)):
        raise fields.error("layer_types", f"but a {model_type} network with sliding_window {window} has windows in "
                                          f"{'all' if layers else 'no'} layers (use_sliding_window is {is_used})")
    return (window, listed) if listed else (None, ())
