"""Rotary positions: how fast each pair of a head turns, and the turning.

Models are trained on short texts and then made to read longer ones by letting some pairs turn slower. ``rope_scaling``
in their config says how: "linear", "llama3" and "yarn" are the ways of the Llama family.
"""

from __future__ import annotations

import math
import reprlib

from mini_vllm.backend import mx
from mini_vllm.models.json_fields import Fields

SUPPORTED = ("default", "linear", "llama3", "yarn")


class UnsupportedModel(ValueError):
    """A model this network cannot be; the message names what and lists what it can be."""


def rope_frequencies(theta: float, head_dim: int, fields: Fields) -> tuple[mx.array, float]:
    """Radians a position for each rotated pair, [head_dim / 2], and what the rotated vectors are multiplied by.

    ``fields`` are those of ``rope_scaling``. Raises UnsupportedModel for a kind it does not know, FieldError for
    one whose numbers cannot be.
    """
    inverse = theta ** (-mx.arange(0, head_dim, 2, dtype=mx.float32) / head_dim)
    kind = fields.get("rope_type") or fields.get("type") or "default"
    if kind in ("default", "mrope"):
        return inverse, 1.0
    if kind not in SUPPORTED:
        raise UnsupportedModel(f"rope scaling {reprlib.repr(kind)} is not supported; supported: {', '.join(SUPPORTED)}")
    factor = fields.number("factor")
    if kind == "linear":
        return inverse / factor, 1.0
    if kind == "llama3":
        # Slow pairs turn `factor` times slower, fast ones as trained, those between are blended.
        low = fields.number("low_freq_factor", 1.0)
        high = fields.number("high_freq_factor", 4.0, above=low)
        num_turns = fields.whole("original_max_position_embeddings", 8192) * inverse / (2 * math.pi)
        return _blended(inverse, factor, mx.clip((num_turns - low) / (high - low), 0.0, 1.0)), 1.0
    return _yarn(inverse, theta, factor, fields)


def _yarn(inverse: mx.array, theta: float, factor: float, fields: Fields) -> tuple[mx.array, float]:
    """As llama3, but the blend goes by the number of the pair, between those that make ``beta_fast`` and ``beta_slow``
    turns within the trained length; and attention is made sharper, the more so the larger ``factor`` is."""
    fields.only("truncate", True)
    trained_length = fields.whole("original_max_position_embeddings")
    num_pairs = inverse.size

    def pair_that_makes(num_turns: float) -> float:
        return num_pairs * math.log(trained_length / (num_turns * 2 * math.pi)) / math.log(theta)

    first = max(math.floor(pair_that_makes(fields.number("beta_fast", 32))), 0)
    last = min(math.ceil(pair_that_makes(fields.number("beta_slow", 1))), 2 * num_pairs - 1)
    width = last - first or 0.001
    blend = 1 - mx.clip((mx.arange(num_pairs, dtype=mx.float32) - first) / width, 0.0, 1.0)

    def sharpness(share: float) -> float:
        return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0

    share_of_all = fields.number("mscale_all_dim") if fields.get("mscale_all_dim") else 0
    scale = sharpness(fields.number("mscale", 1)) / sharpness(share_of_all)
    return _blended(inverse, factor, blend), fields.number("attention_factor", scale)


def _blended(inverse: mx.array, factor: float, blend: mx.array) -> mx.array:
    """As trained where ``blend`` is 1, ``factor`` times slower where it is 0."""
    return blend * inverse + (1 - blend) * inverse / factor


class Rope:
    """Rotates queries and keys by their positions, and leaves values alone, all heads at once.

    The angles are made once a step, not once a layer. Element i of a head turns together with element i + head_dim / 2,
    so a head is seen as two halves, and each is mixed with the other.
    """

    def __init__(self, frequencies: mx.array, scale: float, num_rotated: int, num_values: int) -> None:
        """``num_rotated`` heads of queries and keys, then ``num_values`` of values."""
        self.frequencies, self.scale = frequencies, scale
        self.num_rotated, self.num_values = num_rotated, num_values
        mx.eval(self.frequencies)

    def angles(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """For tokens at ``positions`` [n]: factors of each half and of its other half, [n, heads, 2, head_dim / 2]."""
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
        """``x`` is [n, heads, head_dim]."""
        halves = x.reshape(*x.shape[:2], 2, -1)
        return (halves * angles[0] + halves[:, :, ::-1] * angles[1]).astype(x.dtype).reshape(x.shape)
