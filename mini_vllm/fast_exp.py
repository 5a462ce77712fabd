"""``exp`` of many numbers on a CPU, for softmax.

MLX computes ``exp`` on a CPU one element at a time, 9 ns each, but simple operations many at a time, 0.4 ns each. So
exp(x) = 2 ** (x / ln 2) is put together from those. The whole part of the exponent goes straight into the bits of a
float, and a polynomial gives the power of what is left:

    bit    31     30 … 23      22 … 0
         sign │ exponent │ fraction        2 ** -3.25 = 2 ** -0.25 with 3 taken from its exponent
"""

from __future__ import annotations

import math

from mini_vllm.backend import mx

#: With fewer elements, starting fifteen operations takes longer than they save.
MIN_SIZE = 32768
#: 2 ** x for -1 < x <= 0 is the sum of these times x ** 0, x ** 1, …: the largest relative error is as small as it can
#: be, 7.5e-8.
COEFFICIENTS = (0.999999925, 0.693142253, 0.240172189, 0.0552797226, 0.0091886117, 0.000938788326)
#: 2 to this power no longer counts beside 1.
MIN_EXPONENT = -60.0
EXPONENT_BIT = 23


def exp_below_zero(x: mx.array) -> mx.array:
    """exp(x) for float32 x <= 0. The relative error is 1e-5 at most; what is less than 1e-18, is at most 1e-18."""
    if x.size < MIN_SIZE or mx.default_device().type != mx.cpu:
        return mx.exp(x)
    return exp2(x * (1 / math.log(2)))


def exp2(x: mx.array) -> mx.array:
    """2 ** x for float32 x <= 0, -inf included. The relative error is 4e-7; below -60, 2 ** -60 is good enough."""
    x = mx.maximum(x, MIN_EXPONENT)
    whole = x.astype(mx.int32)  # towards 0
    rest = x - whole
    power = COEFFICIENTS[-1] * rest
    for coefficient in COEFFICIENTS[-2:0:-1]:
        power = (power + coefficient) * rest
    power = power + COEFFICIENTS[0]
    return (power.view(mx.int32) + (whole << EXPONENT_BIT)).view(mx.float32)
