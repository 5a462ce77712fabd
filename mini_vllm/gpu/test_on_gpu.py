"""On a GPU: the kernels against the simple attention, and our tokens against mlx-lm's.

Only ``make test-gpu`` runs it, with the settings that it needs.
"""

import itertools
import os

import numpy as np
import pytest

from mini_vllm.backend import mx
from mini_vllm.benchmark.gpu.agreement import agree, generate, quantise
from mini_vllm.benchmark.peers import load_peer
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.fast.attention import FastAttention
from mini_vllm.gpu.kernel_checks import TOLERANCES, ProofCase, attention_error, find_fault
from mini_vllm.gpu.kernels.paged import DTYPES, FEW_BLOCKS, KernelAttention
from mini_vllm.gpu.kernels.step_upload import uploaded
from mini_vllm.gpu.runner import GpuRunner
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.loader import load
from mini_vllm.models.random_model import load_random, write_random_checkpoint
from mini_vllm.request import SamplingParams

HEAD_DIMS, GROUPS = (32, 48, 64, 80, 96, 128, 160, 192, 256), (1, 2, 3, 4, 5, 7, 8)
BLOCK_SIZES = (1, 3, 8, 16, 32, 64)
SMALL = dict(vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, head_dim=32, max_position_embeddings=70_000, rms_norm_eps=1e-6)
MODELS = {
    "qwen3": {"model_type": "qwen3", **SMALL, "head_dim": 64, "tie_word_embeddings": True},  # with tensor cores
    "qwen2": {"model_type": "qwen2", **SMALL},
    "llama": {"model_type": "llama", **SMALL, "num_key_value_heads": 4},
}


@pytest.mark.parametrize("head_dim, group", list(itertools.product(HEAD_DIMS, GROUPS)))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_random_batch_is_attended_as_by_the_simple_attention(head_dim, group, dtype):
    """Compare random batches; every combination has its own block size and batch."""
    seed = head_dim * 100 + group * 10 + DTYPES.index(dtype)
    rng = np.random.default_rng(seed)
    block_size, kv_heads = int(rng.choice(BLOCK_SIZES)), int(rng.integers(1, 4))
    num_decodes, num_chunks = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    num_queries = (*[1] * num_decodes, *(int(n) for n in rng.integers(2, 90, num_chunks)))
    context_lens = tuple(n + int(rng.integers(0, 200)) for n in num_queries)
    window = int(rng.integers(1, 100)) if seed % 3 == 0 else None
    error = attention_error(ProofCase(num_queries, context_lens, window), kv_heads * group, kv_heads, head_dim,
                            block_size, dtype, KernelAttention(), seed, is_spoiled=True)
    assert error <= TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 3000])
def test_long_contexts_are_split_and_merged(dtype, window):
    case = ProofCase((1, 1), (20_011, 5), window)
    assert attention_error(case, 8, 4, 64, 32, dtype, KernelAttention()) <= TOLERANCES[dtype]


@pytest.mark.parametrize("head_dim, group", list(itertools.product((64, 128), (1, 2, 6, 8, 9))))
@pytest.mark.parametrize("dtype", (mx.float16, mx.bfloat16), ids=str)
def test_many_requests_are_decoded_by_tensor_cores(head_dim, group, dtype):
    """Decode contexts of all lengths around that of a tile, every third with a window."""
    rng = np.random.default_rng(head_dim + group)
    num_requests, block_size = FEW_BLOCKS + 20, int(rng.choice((16, 32)))
    case = ProofCase((1,) * num_requests, tuple(int(n) for n in rng.integers(1, 200, num_requests)),
                     40 if group % 3 == 0 else None)
    error = attention_error(case, 2 * group, 2, head_dim, block_size, dtype, KernelAttention(), group, is_spoiled=True)
    assert error <= TOLERANCES[dtype]


@pytest.mark.parametrize("head_dim, window", list(itertools.product((64, 128), (None, 700))))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_chunks_at_the_end_of_long_contexts(head_dim, window, dtype):
    case = ProofCase((1, 300, 17), (40, 5000, 1617), window)
    assert attention_error(case, 6, 2, head_dim, 32, dtype, KernelAttention(), is_spoiled=True) <= TOLERANCES[dtype]


def test_a_steps_arrays_arrive_whole():
    arrays = [np.arange(7, dtype=np.int32), -np.arange(300_000, dtype=np.int32).reshape(3, -1), np.ones(1, np.int32)]
    assert all(np.array_equal(np.array(found), array) for found, array in zip(uploaded(arrays), arrays))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {(name, dtype): write_random_checkpoint(tmp_path_factory.mktemp(name), config, dtype=dtype)
            for name, config in MODELS.items() for dtype in (mx.float32, mx.bfloat16)}


@pytest.mark.parametrize("name", MODELS)
def test_in_float32_the_tokens_are_those_of_mlx_lm(folders, name):
    assert os.environ.get("MLX_ENABLE_TF32") == "0", "in TF32 a product has three digits: set MLX_ENABLE_TF32=0"
    loaded = load(folders[name, mx.float32])
    found = agree(loaded, load_peer(loaded))
    assert found.num_tokens == 288 and not found.differences, [str(each) for each in found.differences]


@pytest.mark.parametrize("name", MODELS)
def test_in_bfloat16_they_are_but_for_near_ties(folders, name):
    loaded = load(folders[name, mx.bfloat16])
    found = agree(loaded, load_peer(loaded))
    print(f"{name}: {len(found.differences)} of {found.num_tokens} tokens are near-ties")
    assert found.is_good, [str(each) for each in found.differences]


def test_packed_weights_stay_packed_and_give_the_same_tokens(folders):
    packed, peer = quantise(load(folders["qwen3", mx.bfloat16]))
    assert "Quantized" in type(packed.model.model.layers[0].mlp.down_proj).__name__
    assert type(LLMEngine(EngineConfig(num_blocks=10), loaded=packed).runner) is GpuRunner
    found = agree(packed, peer)
    assert found.is_good, [str(each) for each in found.differences]


class OwnAttention(FastAttention):
    """A user's own attention, so that no kernel is used."""


@pytest.mark.parametrize("parts", [EngineParts(), EngineParts(attention=OwnAttention)], ids=["kernels", "without"])
@pytest.mark.parametrize("num_requests, length", [(256, 300), (1024, 40)])
def test_many_requests_at_once(folders, parts, num_requests, length):
    """Serve many requests, with and without kernels: more than 65,535 products of blocks in a step."""
    loaded = load(folders["qwen3", mx.float32])
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 1000, length).tolist() for _ in range(num_requests)]
    num_blocks = num_requests * (length // 8 + 2) + 2
    engine = LLMEngine(EngineConfig(num_blocks=num_blocks, max_num_seqs=num_requests, block_size=8), parts, loaded)
    for index, prompt in enumerate(prompts):
        engine.add_request(prompt, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True), str(index))
    found = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert not output.error, output.error
            found[int(output.request_id)] = output.token_ids
    few = [0, 100, num_requests - 1]
    assert [found[index] for index in few] == generate(loaded, [prompts[index] for index in few], 6)


def test_a_context_of_the_models_limit(folders):
    loaded = load(folders["qwen3", mx.bfloat16])
    prompt = np.random.default_rng(0).integers(0, 1000, 65_000).tolist()
    (tokens,) = generate(loaded, [prompt], 4)
    assert len(tokens) == 4


def test_forks_preemptions_and_copies_give_the_tokens_of_one_request_alone(folders):
    loaded = load(folders["qwen3", mx.float32])
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 1000, 30 + 7 * index).tolist() for index in range(12)]
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=5, n=2, ignore_eos=True)

    def serve(indices, **settings):
        engine = LLMEngine(EngineConfig(block_size=8, **settings), loaded=loaded)
        assert type(engine.runner) is GpuRunner
        for index in indices:
            engine.add_request(prompts[index], params, str(index))
        found = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                assert not output.error, output.error
                found[output.request_id] = [each.token_ids for each in output.outputs]
        return found, engine

    together, engine = serve(range(12), num_blocks=100)
    assert engine.scheduler.num_preemptions > 0 and engine.metrics().num_copied_blocks > 0
    for index in (0, 5, 11):
        assert serve([index], num_blocks=100)[0][str(index)] == together[str(index)]


def test_the_proof_passes_for_the_shapes_of_real_models():
    assert find_fault(load_random("qwen3-27m").config, 32, mx.bfloat16) == ""
    smol = ModelConfig.from_dict({"model_type": "llama", **SMALL, "hidden_size": 576, "num_attention_heads": 9,
                                  "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536})
    assert find_fault(smol, 32, mx.float16) == ""
