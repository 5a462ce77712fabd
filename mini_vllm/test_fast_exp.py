"""The exp of softmax against numpy's in double precision."""

import numpy as np
import pytest

from mini_vllm.backend import mx
from mini_vllm.fast_exp import MIN_SIZE, exp2, exp_below_zero


def test_powers_of_two():
    wholes = np.arange(-60, 1, dtype=np.float32)
    below = np.nextafter(wholes[1:], np.float32(-99))
    assert (below < wholes[1:]).all()
    x = np.concatenate([np.linspace(-60, 0, 200_001, dtype=np.float32), wholes, below])
    got = np.array(exp2(mx.array(x)), dtype=np.float64)
    np.testing.assert_allclose(got, np.exp2(x.astype(np.float64)), rtol=4e-7)


@pytest.mark.parametrize("size", [MIN_SIZE - 1, MIN_SIZE, 100_000])
def test_exp_is_the_same_for_few_and_many(size):
    x = -np.geomspace(1e-9, 41, size).astype(np.float32)
    np.testing.assert_allclose(np.array(exp_below_zero(mx.array(x))), np.exp(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("size", [4, MIN_SIZE])
def test_what_is_far_below_zero_does_not_count(size):
    x = np.full(size, -np.inf, np.float32)
    x[:3] = [-1e4, -1e30, -42]
    got = np.array(exp_below_zero(mx.array(x)))
    assert (got >= 0).all() and (got <= 1e-18).all()


@pytest.mark.parametrize("size", [4, MIN_SIZE])
def test_what_is_not_a_number_stays_so_and_touches_no_other(size):
    x = np.zeros(size, np.float32)
    x[1] = np.nan
    got = np.array(exp_below_zero(mx.array(x)))
    assert np.isnan(got[1]) and np.allclose(np.delete(got, 1), 1)
