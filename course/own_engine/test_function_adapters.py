"""Functions on lists and numpy arrays: the same results as the reference's, and clear errors."""

import numpy as np
import pytest

from course.own_engine.function_adapters import NumpyAttention, sampler_that_asks
from mini_vllm.backend import mx
from mini_vllm.logit_rules import SamplerRow
from mini_vllm.request import SamplingParams
from mini_vllm.sampler import Sampler

PARAMS = [SamplingParams(temperature=0), SamplingParams(temperature=0.8), SamplingParams(temperature=1.5, top_k=5),
          SamplingParams(temperature=0.7, top_p=0.8), SamplingParams(temperature=1, min_p=0.1)]


def rows_of(params):
    return [SamplerRow(each, (), (0,) * index, (), (7, index)) for index, each in enumerate(params)]


@pytest.mark.parametrize("params", [PARAMS, PARAMS[:1] * 3, PARAMS[1:2] * 3])
def test_it_draws_what_the_reference_draws(params):
    rng = np.random.default_rng(0)
    asking = sampler_that_asks(lambda scores: max(range(len(scores)), key=scores.__getitem__))()
    for num_ahead in range(10):
        logits = mx.array(3 * rng.normal(size=(len(params), 50)).astype(np.float32))
        before = np.array(logits)
        drawn = asking.draw(logits, rows_of(params), num_ahead)
        assert drawn.tolist() == Sampler().draw(logits, rows_of(params), num_ahead).tolist()
        assert asking.greedy(logits).tolist() == Sampler().greedy(logits).tolist()
        assert (np.array(logits) == before).all()


@pytest.mark.parametrize("wrong", [None, 1.0, True, -1, 4, "1", [1]])
def test_what_is_no_id_is_refused(wrong):
    with pytest.raises(ValueError, match=r"returned .+, must be an int from 0 to 3"):
        sampler_that_asks(lambda scores: wrong)().greedy(mx.zeros((2, 4)))


# ---- attention in numpy


def test_numpy_attention_sees_the_blocks_of_the_requests_and_no_others():
    seen = {}

    def ragged(queries, k_pool, v_pool, block_tables, query_lens, context_lens):
        seen.update(k=k_pool, v=v_pool, tables=block_tables, lens=(query_lens, context_lens))
        return np.zeros(queries.shape)

    pool = mx.arange(40 * 2 * 4 * 8).reshape(40, 2, 4, 8).astype(mx.float32)
    out = NumpyAttention(ragged)(mx.zeros((3, 2, 8)), pool, [[17, 3, 0], [17, 30, 8]], [7, 10], [0, 1, 3], 8 ** -0.5)
    assert out.shape == (3, 2, 8) and seen["lens"] == ([1, 2], [7, 10])
    assert seen["tables"] == [[2, 0], [2, 3, 1]], "the blocks 3, 8, 17 and 30, by their places in the small pool"
    assert np.array_equal(seen["k"], np.asarray(pool)[[3, 8, 17, 30], :1])
    assert np.array_equal(seen["v"], np.asarray(pool)[[3, 8, 17, 30], 1:])


def test_numpy_attention_says_what_it_cannot_do():
    attend = NumpyAttention(lambda *args: pytest.fail("it was called"))
    arguments = (mx.zeros((1, 2, 8)), mx.zeros((4, 2, 4, 8)), [[1]], [1], [0, 1])
    with pytest.raises(ValueError, match="no sliding window, but the model has one of 16 tokens"):
        attend(*arguments, 8 ** -0.5, window=16)
    with pytest.raises(ValueError, match=r"scales by 1 / sqrt\(8\), and the model by 0.5"):
        attend(*arguments, 0.5)
