"""Rotary positions: how fast each pair of a head rotates, and the rotation.

Models are trained on short texts and then extended to longer ones by making some pairs rotate more slowly.
``rope_scaling`` in their config says how: the Llama family uses "linear", "llama3" and "yarn".
"""

from __future__ import annotations

import math
import reprlib

from mini_vllm.backend import mx
from mini_vllm.models.json_fields import Fields

SUPPORTED = ("default", "linear", "llama3", "yarn")


class UnsupportedModel(ValueError):
    """A model that this network does not support; the message names the problem and lists what is supported."""


def rope_frequencies(theta: float, head_dim: int, fields: Fields) -> tuple[mx.array, float]:
    """Return the radians per position of each rotated pair, [head_dim / 2], and the factor of the rotated vectors.

    ``fields`` are those of ``rope_scaling``. Raise UnsupportedModel for an unknown kind, and FieldError for invalid
    numbers.
    """
    inverse = theta ** (-mx.arange(0, head_dim, 2, dtype=mx.float32) / head_dim)
    kind = fields.get("rope_type") or "default"
    if kind == "default":
        return inverse, 1.0
    if kind not in SUPPORTED:
        raise UnsupportedModel(f"rope scaling {reprlib.repr(kind)} is not supported; supported: {', '.join(SUPPORTED)}")
    factor = fields.number("factor")
    if kind == "linear":
        return inverse / factor, 1.0
    if kind == "llama3":
        # Slow pairs rotate `factor` times slower, fast ones as trained, those between are blended.
        low = fields.number("low_freq_factor")
        high = fields.number("high_freq_factor", above=low)
        num_turns = fields.whole("original_max_position_embeddings") * inverse / (2 * math.pi)
        return _blended(inverse, factor, mx.clip((num_turns - low) / (high - low), 0.0, 1.0)), 1.0
    return _yarn(inverse, theta, factor, fields)


def _yarn(inverse: mx.array, theta: float, factor: float, fields: Fields) -> tuple[mx.array, float]:
    """Compute yarn's frequencies and factor: like llama3, but blended by the index of the pair.

    The blend is between the pairs that make ``beta_fast`` and ``beta_slow`` turns within the trained length. Attention
    is made sharper, the more so the larger ``factor`` is.
    """
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

    # As in transformers, one of the two alone, or 0, changes nothing; mlx-lm uses one alone.
    share, share_of_all = (fields.number(name) if fields.get(name) else 0 for name in ("mscale", "mscale_all_dim"))
    scale = sharpness(share) / sharpness(share_of_all) if share and share_of_all else sharpness(1)
    return _blended(inverse, factor, blend), fields.number("attention_factor", scale)


def _blended(inverse: mx.array, factor: float, blend: mx.array) -> mx.array:
    """Mix the frequencies: as trained where ``blend`` is 1, ``factor`` times slower where it is 0."""
    return blend * inverse + (1 - blend) * inverse / factor


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
