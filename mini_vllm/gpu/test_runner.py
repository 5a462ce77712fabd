"""The code around the kernels: rounded shapes, requests that fill the rest, and the resulting tokens."""

import functools
import weakref

import numpy as np
import pytest

from mini_vllm.backend import mx
from mini_vllm.conftest import without_garbage_collector
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.gpu.runner import GpuRunner, last_slots, with_spare
from mini_vllm.model_runner import Batch, ModelRunner
from mini_vllm.models.loader import load
from mini_vllm.models.random_model import write_random_checkpoint
from mini_vllm.request import SamplingParams

SMALL = dict(vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=512, rms_norm_eps=1e-6)
MODELS = {
    "qwen3": {"model_type": "qwen3", **SMALL, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", **SMALL, "tie_word_embeddings": False},
    "windows": {"model_type": "mistral", **SMALL, "sliding_window": 20},
    "yarn": {"model_type": "llama", **SMALL, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {name: load(write_random_checkpoint(tmp_path_factory.mktemp(name), config))
            for name, config in MODELS.items()}


def serve(loaded, runner=None, num_requests=7, n=1, temperature=0.0, **settings):
    """Serve several requests, some with a common beginning. Return their tokens and the engine."""
    parts = EngineParts() if runner is None else EngineParts(model_runner=runner)
    engine = LLMEngine(EngineConfig(block_size=4, **{"num_blocks": 400, "max_num_batched_tokens": 64, **settings}),
                       parts, loaded)
    rng, tokens = np.random.default_rng(0), {}
    shared = rng.integers(0, 250, 13).tolist()
    for index in range(num_requests):
        prompt = (shared if index % 2 else []) + rng.integers(0, 250, 1 + 9 * index).tolist()
        engine.add_request(prompt, SamplingParams(max_tokens=5 + 2 * index, temperature=temperature, seed=index, n=n,
                                                  ignore_eos=True), str(index))
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert not output.error, output.error
            tokens[output.request_id] = [each.token_ids for each in output.outputs]
    return tokens, engine


@pytest.fixture(scope="module")
def plain(models):
    """Map model, number of samples and temperature to the tokens of the plain runner, decoded once."""
    return functools.cache(lambda name, n=1, temperature=0.0: serve(models[name], n=n, temperature=temperature)[0])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lookahead", [True, False], ids=["ahead", "in turn"])
def test_the_tokens_are_those_of_the_plain_runner(models, plain, emulated, name, lookahead):
    found, engine = serve(models[name], GpuRunner, enable_lookahead=lookahead)
    assert found == plain(name)
    assert isinstance(engine.runner, GpuRunner) and emulated.num_requests and emulated.num_tokens


@pytest.mark.parametrize("settings", [
    {"n": 3}, {"n": 2, "temperature": 0.9}, {"num_blocks": 30}, {"enable_prefix_caching": False},
    {"max_num_batched_tokens": 8, "max_num_seqs": 8}, {"max_num_seqs": 2},
], ids=str)
def test_forks_preemptions_and_small_chunks_change_nothing(models, plain, emulated, settings):
    found, engine = serve(models["qwen3"], GpuRunner, **settings)
    assert found == plain("qwen3", settings.get("n", 1), settings.get("temperature", 0.0))
    if "num_blocks" in settings:
        assert engine.scheduler.num_preemptions > 0
    if settings.get("n") == 3:
        assert engine.metrics().num_copied_blocks > 0


def test_steps_that_only_decode_have_rounded_sizes(models, emulated):
    _, engine = serve(models["qwen3"], GpuRunner, num_requests=1)
    emulated.num_requests.clear()
    runner = engine.runner
    tables, lens = [[1, 2], [3, 4, 5], [6]], [5, 9, 1]
    logits = runner.step_ahead(mx.array([1, 2, 3]), tables, lens)
    assert logits.shape == (3, 300) and set(emulated.num_requests) == {4}, "one more, in the null block"


@pytest.mark.without_drafts("expects one token in every step")
def test_a_step_begun_early_and_one_in_turn_are_the_same_function(models, emulated):
    """Trace the compiled function once: every combination of shapes and types takes as long as a step."""
    engine = LLMEngine(EngineConfig(block_size=4, num_blocks=50), EngineParts(model_runner=GpuRunner), models["qwen3"])
    real, kinds = engine.runner._decode, []

    def decode(token_ids, numbers, pools):
        kinds.append((token_ids.shape, token_ids.dtype, numbers.shape, numbers.dtype))
        return real(token_ids, numbers, pools)

    engine.runner._decode = decode
    for index in range(2):
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=5, temperature=0, ignore_eos=True), str(index))
    while engine.has_unfinished_requests():
        engine.step()
    assert len(kinds) >= 4 and len(set(kinds)) == 1


def test_pools_stay_the_same_arrays(models, emulated):
    _, engine = serve(models["qwen3"], GpuRunner, num_requests=2)
    before = list(engine.runner.cache.pools)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=4, temperature=0))
    while engine.has_unfinished_requests():
        engine.step()
    assert all(one is other for one, other in zip(before, engine.runner.cache.pools))


def test_what_spare_tokens_leave_in_the_null_block_are_numbers(models, emulated):
    _, engine = serve(models["qwen3"], GpuRunner, num_requests=5)
    for pool in engine.runner.cache.pools:
        assert mx.isfinite(pool).all().item() and mx.abs(pool[0]).max().item() > 0


def test_a_model_that_computes_nan_fails_its_requests_and_the_engine_lives(models, emulated):
    loaded = models["qwen3"]
    _, engine = serve(loaded, GpuRunner, num_requests=1)
    weight = loaded.model.model.layers[1].mlp.down_proj.weight
    loaded.model.model.layers[1].mlp.down_proj.weight = weight * mx.nan
    try:
        engine.add_request(list(range(40)), SamplingParams(max_tokens=4, temperature=0))
        errors = []
        while engine.has_unfinished_requests():
            errors += [output.error for output in engine.step() if output.error]
    finally:
        loaded.model.model.layers[1].mlp.down_proj.weight = weight
    assert len(errors) == 1 and "NaN" in errors[0]
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=4, temperature=0), "after")
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].finished and not outputs[-1].error


def test_log_probabilities_of_a_prompt(models, emulated):
    def of(runner):
        engine = LLMEngine(EngineConfig(block_size=4, num_blocks=50), EngineParts(model_runner=runner),
                           models["qwen3"])
        engine.add_request(list(range(20)), SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=1), "r")
        while engine.has_unfinished_requests():
            outputs = engine.step()
        return [entry and (entry.token_id, round(entry.logprob, 3)) for entry in outputs[-1].prompt_logprobs]

    assert of(GpuRunner) == of(ModelRunner)


# ---- the pieces


def test_spare_tokens_are_a_request_in_the_null_block():
    batch = Batch.of([[1, 2], [3]], [5, 3], [1, 3])
    assert with_spare(batch, 0) is batch
    padded = with_spare(batch, 4)
    assert padded.context_lens == [5, 3, 4] and padded.query_starts == [0, 1, 4, 8]
    assert set(padded.block_tables[-1]) == {0}


def test_the_last_slot_of_a_row():
    tables, positions = np.array([[7, 9, 0], [2, 0, 0]], dtype=np.int32), np.array([5, 0], dtype=np.int32)
    assert last_slots(tables, positions, 4).tolist() == [9 * 4 + 1, 2 * 4]


def test_a_runner_nobody_holds_gives_its_memory_back_at_once(models, emulated):
    """Check that a compiled step holds no reference to its runner, which would keep the pools until garbage
    collection."""
    _, engine = serve(models["qwen3"], GpuRunner, num_requests=2)
    gone = weakref.ref(engine.runner), weakref.ref(engine.runner.cache)
    with without_garbage_collector():
        del engine
        assert [ref() for ref in gone] == [None, None]
