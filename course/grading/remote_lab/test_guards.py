"""No index that a file chooses reaches MLX unchecked."""

import numpy as np
import pytest

from course.grading.remote_lab.guards import GUARDS, guarded, guarded_attribute
from mini_vllm.attention import paged_attention
from mini_vllm.backend import mx
from mini_vllm.fast.attention import FastAttention
from mini_vllm.logit_rules import SamplerRow, make_key
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.random_model import make_random
from mini_vllm.request import SamplingParams
from mini_vllm.sampler import Sampler

SHAPE = dict(model_type="llama", vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
             rope_theta=10000.0, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def runner():
    return ModelRunner(make_random(SHAPE).model, 8, 4)


def call(function, *positional, **named):
    arguments, keywords = guarded(function, positional, named)
    return function(*arguments, **keywords)


@pytest.mark.parametrize("step", [
    ([1], [8], 1), ([1], [-1], 1), ([1], [10**12], 1), ([50], [1], 1), ([-1], [1], 1), ([1], [1], 5), ([1, 2], [1], 1),
    ([], [1], 1), ([1], [], 1), ([1.0], [1], 1), ([True], [1], 1), ([np.int64(99)], [1], 1), (iter([1]), [1], 1),
    ([1], [1], 10**15), ([1], [1], None),
])
def test_a_step_that_leaves_the_arrays_is_refused(runner, step):
    with pytest.raises((IndexError, TypeError)):
        call(runner.step, [RequestStep(*step, True)])
    assert call(runner.step, [RequestStep([1, 2], [1], 2, True)], [(1, 2)]).shape == (1, 50)


@pytest.mark.parametrize("steps, copies", [([], ()), ([object()], ()), ([RequestStep([1], [1], 1, True)], [(0, 8)]),
                                           ([RequestStep([1], [1], 1, True)], [(0, 1, 2)])])
def test_neither_steps_nor_copies_may_be_anything(runner, steps, copies):
    with pytest.raises((IndexError, TypeError)):
        call(runner.step, steps, copies)


@pytest.mark.parametrize("name, argument", [
    ("copy_blocks", [(8, 0)]), ("copy_blocks", [(0, -1)]), ("copy_blocks", [(0,)]), ("copy_blocks", [(0, "1")]),
    ("clear_blocks", [8]), ("clear_blocks", [-9]), ("clear_blocks", np.array([10**9]))])
def test_blocks_outside_of_the_pool_are_refused(runner, name, argument):
    with pytest.raises((IndexError, TypeError)):
        call(getattr(runner.cache, name), argument)


@pytest.mark.parametrize("attention", [FastAttention(), paged_attention], ids=["fast", "plain"])
def test_attention_stays_within_its_pool(attention):
    pool, queries = mx.zeros((4, 4, 4, 8)), mx.ones((2, 4, 8))
    assert call(attention, queries, pool, [[1], [2]], [1, 3], [0, 1, 2], 1.0).shape == (2, 4, 8)
    for tables, lens, starts in (([[4], [2]], [1, 3], [0, 1, 2]), ([[1], [2]], [1, 5], [0, 1, 2]),
                                 ([[1], [2]], [1, 3], [0, 1, 3]), ([[1], [2]], [1, 3], [0, 2, 2]),
                                 ([[1]], [1, 3], [0, 1, 2]), ([[1], [-1]], [1, 3], [0, 1, 2])):
        with pytest.raises((IndexError, TypeError)):
            call(attention, queries, pool, tables, lens, starts, 1.0)


def test_rows_name_only_tokens_of_the_logits():
    row = SamplerRow(SamplingParams(), [1, 2], [3], (), make_key(1))
    assert len(call(Sampler().sample, mx.zeros((1, 50)), [row]).token_ids) == 1
    row.output_token_ids.append(50)
    for logits, rows in ((mx.zeros((1, 50)), [row]), (mx.zeros((2, 50)), [row]), (mx.zeros((1, 50)), [object()])):
        with pytest.raises((IndexError, TypeError)):
            call(Sampler().sample, logits, rows)


def test_numbers_of_numpy_are_numbers(runner):
    step = RequestStep(np.array([1, 2]), [np.int64(1)], np.int32(2), True)
    assert call(runner.step, [step]).shape[0] == 1


def test_ends_of_text_are_not_before_the_logits():
    row = SamplerRow(SamplingParams(min_tokens=2), [1], [], (-600,), make_key(1))
    with pytest.raises(IndexError, match="eos_token_ids: -600"):
        call(Sampler().sample, mx.zeros((1, 50)), [row])


def test_a_function_of_a_test_in_the_place_of_a_method_is_guarded_too(runner, monkeypatch):
    calls = []
    monkeypatch.setattr(runner, "step", lambda *arguments: calls.append(arguments))
    step = guarded_attribute(runner, "step", runner.step)
    with pytest.raises(IndexError):
        step([RequestStep([1], [99], 1, True)])
    assert not calls
    tokens = [1]
    step([RequestStep(tokens, [1], 1, True)])
    tokens[0] = 99
    assert list(calls[0][0][0].token_ids) == [1], "what was called with is not what somebody changes later"


def test_every_guard_is_of_something_that_exists():
    import importlib
    for key in GUARDS:
        owner, _, name = key.rpartition(".")
        module, _, kind = owner.rpartition(".")
        try:
            assert callable(getattr(importlib.import_module(owner), name))
        except ModuleNotFoundError:
            assert callable(getattr(getattr(importlib.import_module(module), kind), name))
