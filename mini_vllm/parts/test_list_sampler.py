"""A function on a list chooses the same tokens as the reference; a result that is not an id is rejected."""

import numpy as np
import pytest

from mini_vllm.backend import mx
from mini_vllm.logit_rules import SamplerRow
from mini_vllm.parts.list_sampler import sampler_that_asks
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
