"""``exp`` of many numbers on a CPU, for softmax and activations.

MLX computes ``exp`` on a CPU one element at a time, 9 to 26 ns each, but simple operations many at a time, 0.3 ns each.
So exp(x) = 2 ** (x / ln 2) is composed from simple operations. The integer part of the exponent goes directly into the
bits of a float, and a polynomial gives the power of the rest:

    bit    31     30 … 23      22 … 0
         sign │ exponent │ fraction        2 ** -3.25 = 2 ** -0.25 with 3 subtracted from its exponent

The integer part is found by adding a number so large that its float has no bits left for a fraction: the sum is
rounded, and its last bits are the integer part. Shifted to the position of the exponent, they are 2 to the integer
part.
"""

from __future__ import annotations

import math

from mini_vllm.backend import mx
from mini_vllm.fast import tuning

#: 2 ** x for -0.5 <= x <= 0.5 is the sum of these times x ** 0, x ** 1, …. They minimise the largest relative error,
#: which is 2.6e-6.
COEFFICIENTS = (0.999999261, 0.693121815, 0.240247448, 0.0559178603, 0.00957010188)
#: 2 ** MIN_EXPONENT is negligible next to 1, and 2 ** MAX_EXPONENT is nearly the largest float.
MIN_EXPONENT, MAX_EXPONENT = -60.0, 126.0
#: From 2 ** 23 to 2 ** 24 a float has no bits for a fraction, and this number, plus or minus 126, is in that range. The
#: exponent of a float is stored with 127 added, so 127 is added here.
ROUNDER = 1.5 * 2 ** 23 + 127
EXPONENT_BIT = 23


def exp_below_zero(x: mx.array) -> mx.array:
    """Compute exp(x) for float32 x <= 0.

    The relative error is at most 1e-5; results below 2 ** -60 may be rounded up to it.
    """
    return exp2(mx.maximum(x * (1 / math.log(2)), MIN_EXPONENT)) if tuning.exp_by_hand_is_faster(x) else by_mlx(x)


def one_plus_exp(x: mx.array) -> mx.array:
    """Compute 1 + exp(x). The relative error is at most 1e-5 for x up to 87; above, the result is at least 6e37."""
    if not tuning.exp_by_hand_is_faster(x):
        return 1 + by_mlx(x)
    return 1 + exp2(mx.clip(x * (1 / math.log(2)), MIN_EXPONENT, MAX_EXPONENT))


def by_mlx(x: mx.array) -> mx.array:
    """Compute exp(x) in one MLX operation, the faster one of two."""
    return mx.power(math.e, x) if tuning.power_is_faster_than_exp() and x.dtype == mx.float32 else mx.exp(x)


def exp2(x: mx.array) -> mx.array:
    """Compute 2 ** x for float32 x from -126 to 126. The relative error is 3e-6. NaN stays NaN."""
    rounded = x + ROUNDER
    rest = x - (rounded - ROUNDER)
    power = COEFFICIENTS[-1] * rest
    for coefficient in COEFFICIENTS[-2:0:-1]:
        power = (power + coefficient) * rest
    power = power + COEFFICIENTS[0]
    return power * (rounded.view(mx.int32) << EXPONENT_BIT).view(mx.float32)
