"""The gap between two tokens where two outputs part."""

import math

import pytest

from mini_vllm.benchmark.ties import gap_at_first_difference
from mini_vllm.llm import LLM
from mini_vllm.models.loader import load
from mini_vllm.request import SamplingParams

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def loaded():
    return load("tiny-tales")


def test_equal_outputs_have_no_gap_and_a_longer_one_has_no_end(loaded):
    params = SamplingParams(temperature=0)
    assert gap_at_first_difference(loaded, PROMPT, params, [1, 2], [1, 2]) == 0.0
    assert gap_at_first_difference(loaded, PROMPT, params, [1, 2], [1]) == math.inf


def test_greedy_gaps_are_those_of_the_logits(loaded):
    (output,) = LLM(loaded.name).generate([PROMPT], SamplingParams(max_tokens=2, temperature=0, logprobs=20))
    first, second = output.outputs[0].token_ids
    top = output.outputs[0].logprobs[1].top
    other, unlikely = list(top)[1], next(token for token in range(100) if token not in top)
    gap = gap_at_first_difference(loaded, PROMPT, SamplingParams(temperature=0), [first, second], [first, other])
    assert gap == pytest.approx(top[second].logprob - top[other].logprob, abs=1e-4) and gap > 0
    assert gap_at_first_difference(loaded, PROMPT, SamplingParams(temperature=0), [first, second], [first, unlikely]
                                   ) == math.inf


def test_the_drawn_token_has_the_largest_sum(loaded):
    """Check the noise: with another key, another of the likely tokens would often win."""
    prompt = loaded.tokenizer.encode("The princess opened the")
    llm = LLM(loaded.name)

    def gap(one, other):
        return gap_at_first_difference(loaded, prompt, params, [one], [other])

    for seed in range(6):
        params = SamplingParams(max_tokens=1, temperature=0.7, seed=seed, logprobs=20)
        (output,) = llm.generate([prompt], params)
        drawn, (one, other, *_) = output.outputs[0].token_ids[0], [
            token for token in output.outputs[0].logprobs[0].top if token != output.outputs[0].token_ids[0]]
        # The gap between two losers is the difference of their gaps to the winner; not if one is above the "winner".
        assert gap(one, other) == pytest.approx(abs(gap(drawn, one) - gap(drawn, other)), abs=1e-3)
