"""The real model with a pool that is too small: requests lose their blocks and resume, and the outputs do not
change."""

import random

import pytest

from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import load
from mini_vllm.request import Priority, SamplingParams
from mini_vllm.tests.test_engine import run


@pytest.fixture(scope="module")
def loaded(checkpoints):
    return load(checkpoints("qwen3"))


def make_engine(loaded, **settings):
    settings = {"block_size": 8, "max_num_seqs": 24, "max_num_batched_tokens": 96, "enable_lookahead": True, **settings}
    return LLMEngine(EngineConfig(**settings), loaded=loaded)


def requests(count, seed, temperature=1.0, seed_of=lambda index: None, n_of=lambda index: 1):
    """Create prompts of 1 to 120 tokens, some with a common beginning, and outputs of 4 to 40 tokens."""
    rng = random.Random(seed)
    beginning = [rng.randrange(250) for _ in range(70)]
    for index in range(count):
        shared = beginning[:rng.choice([0, 0, 20, 70])]
        prompt = shared + [rng.randrange(250) for _ in range(rng.randint(1, 50))]
        yield prompt, SamplingParams(max_tokens=rng.randint(4, 40), temperature=temperature, seed=seed_of(index),
                                     n=n_of(index), ignore_eos=True)


WORK = list(requests(40, seed=10, temperature=0))


@pytest.fixture(scope="module")
def alone(loaded):
    """Return what each request of WORK gives when it has the engine to itself."""
    engine, results = make_engine(loaded, num_blocks=40, max_num_seqs=1, enable_prefix_caching=False), []
    for prompt, params in WORK:
        engine.add_request(prompt, params, "r")
        results.append(run(engine)["r"].token_ids)
    return results


@pytest.mark.parametrize("settings", [{}, {"enable_lookahead": False}, {"enable_prefix_caching": False}],
                         ids=["all on", "no look-ahead", "no prefix cache"])
def test_40_requests_with_many_preemptions_give_what_each_gives_alone(loaded, alone, settings):
    engine = make_engine(loaded, num_blocks=44, **settings)
    ids = [engine.add_request(prompt, params, priority=Priority(i % 3)) for i, (prompt, params) in enumerate(WORK)]
    results = run(engine)
    assert engine.scheduler.num_preemptions >= 10
    assert [results[request_id].token_ids for request_id in ids] == alone
    assert {results[request_id].finish_reason for request_id in ids} == {"length"}


def test_sampled_requests_and_several_samples_survive_preemption(loaded):
    """Preempt sequences that each have their own random numbers: none may be lost or repeated.

    Recomputed values are rounded differently, by about 1e-6. That shows only where a random number falls exactly
    between two tokens; with these seeds none does.
    """
    work = list(requests(16, seed=2, seed_of=lambda index: index, n_of=lambda index: 4 if index % 4 == 0 else 1))
    small = make_engine(loaded, num_blocks=60)
    ids = [small.add_request(prompt, params) for prompt, params in work]
    results = run(small)
    assert small.scheduler.num_preemptions >= 10
    large = make_engine(loaded, num_blocks=900)
    for request_id, (prompt, params) in zip(ids, work):
        large.add_request(prompt, params, request_id)
    for request_id, wanted in run(large).items():
        assert [c.token_ids for c in results[request_id].outputs] == [c.token_ids for c in wanted.outputs]
        assert [c.text for c in results[request_id].outputs] == [c.text for c in wanted.outputs]
    assert large.scheduler.num_preemptions == 0
