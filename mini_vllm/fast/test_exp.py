"""The exp of softmax and activations against numpy's in double precision."""

import numpy as np
import pytest

from mini_vllm.backend import mx
from mini_vllm.fast import tuning
from mini_vllm.fast.exp import exp2, exp_below_zero, one_plus_exp
from mini_vllm.fast.tuning import MIN_EXP_SIZE


@pytest.fixture(autouse=True, params=[True, False], ids=["power", "exp"])
def is_power_faster(request, monkeypatch):
    """Run each test as on either kind of CPU."""
    monkeypatch.setattr(tuning, "power_is_faster_than_exp", lambda: request.param)


def test_powers_of_two():
    wholes, halves = np.arange(-126, 127, dtype=np.float32), np.arange(-125.5, 126, dtype=np.float32)
    around = [np.nextafter(halves, np.float32(side)) for side in (-999, 999)]  # where the integer part changes
    x = np.concatenate([np.linspace(-126, 126, 200_001, dtype=np.float32), wholes, halves, *around])
    got = np.array(exp2(mx.array(x)), dtype=np.float64)
    np.testing.assert_allclose(got, np.exp2(x.astype(np.float64)), rtol=3e-6)


@pytest.mark.parametrize("size", [MIN_EXP_SIZE - 1, MIN_EXP_SIZE, 100_000])
def test_exp_is_the_same_for_few_and_many(size):
    x = -np.geomspace(1e-9, 41, size).astype(np.float32)
    np.testing.assert_allclose(np.array(exp_below_zero(mx.array(x))), np.exp(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("size", [4, MIN_EXP_SIZE])
def test_what_is_far_below_zero_does_not_count(size):
    x = np.full(size, -np.inf, np.float32)
    x[:3] = [-1e4, -1e30, -42]
    got = np.array(exp_below_zero(mx.array(x)))
    assert (got >= 0).all() and (got <= 1e-18).all()


@pytest.mark.parametrize("size", [MIN_EXP_SIZE - 1, MIN_EXP_SIZE])
def test_one_more_for_few_and_many(size):
    x = np.linspace(-87, 87, size).astype(np.float32)
    np.testing.assert_allclose(np.array(one_plus_exp(mx.array(x))), 1 + np.exp(x.astype(np.float64)), rtol=1e-5)
    x[:5] = [-np.inf, -1e30, 88, 1e30, np.inf]
    got = np.array(one_plus_exp(mx.array(x)))[:5]
    assert (got[:2] == 1).all() and (got[2:] >= 6e37).all()


def test_half_precision_is_left_to_mlx():
    x = mx.linspace(-8, 8, MIN_EXP_SIZE).astype(mx.float16)
    assert one_plus_exp(x).dtype == mx.float16 and mx.array_equal(one_plus_exp(x), 1 + mx.exp(x))


@pytest.mark.parametrize("bits", [0x7fc00000, 0xffc00000, 0x7fc00001, 0x7fc00080, 0x7fffffff, 0xffffffff, 0x7f800001])
@pytest.mark.parametrize("compute, others", [(exp_below_zero, 1), (one_plus_exp, 2)])
@pytest.mark.parametrize("size", [4, MIN_EXP_SIZE])
def test_what_is_not_a_number_stays_so_and_touches_no_other(size, compute, others, bits):
    x = np.zeros(size, np.float32)
    x.view(np.uint32)[1] = bits
    got = np.array(compute(mx.array(x)))
    assert np.isnan(got[1]) and np.allclose(np.delete(got, 1), others)
