"""Checkpoints as others write them, against mlx-lm in float32: quantised, scaled for long contexts, with windows."""

import shutil
from functools import partial

import numpy as np
import pytest
from fuzz.oracle import float32_oracle, oracle_logits

from mini_vllm.backend import is_cpu, mx
from mini_vllm.conftest import LLAMA3_ROPE, SHAPE, write_checkpoint
from mini_vllm.llm import LLM
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import load
from mini_vllm.models.test_wrong_files import change_fields
from mini_vllm.native.build import problem
from mini_vllm.request import SamplingParams

mlx_lm_convert = pytest.importorskip("mlx_lm.convert", reason="mlx-lm is the oracle: pip install mlx-lm")
mlx_lm_utils = pytest.importorskip("mlx_lm.utils")

NO_WINDOWS = [None] * SHAPE["num_hidden_layers"]


def prompt_of(num_tokens, seed=0):
    return np.random.default_rng(seed).integers(0, 256, num_tokens).tolist()


def our_logits(loaded, token_ids, pieces):
    """Return the logits after the last token of each piece, [len(pieces), vocab_size]."""
    runner = ModelRunner(loaded.model, num_blocks=40, block_size=4)
    table, done, rows = list(range(39, 0, -1)), 0, []
    for n in pieces:
        done += n
        rows.append(runner.step([RequestStep(token_ids[done - n:done], table, done, True)])[0])
    return np.array(mx.stack(rows).astype(mx.float32))


def check_logits(folder, windows=NO_WINDOWS, tolerance=1e-4, num_tokens=48, loaded=None, oracle=None):
    """Compare the logits with mlx-lm's in float32: computed as a whole, in pieces, and one by one."""
    token_ids = prompt_of(num_tokens)
    expected = np.array(oracle_logits(oracle or float32_oracle(folder), token_ids, windows))
    loaded = loaded or load(folder)
    for pieces in ([num_tokens], [num_tokens - 11, 11], [num_tokens - 5] + [1] * 5):
        got = our_logits(loaded, token_ids, pieces)
        difference = np.abs(got - expected[np.cumsum(pieces) - 1]).max()
        assert difference < tolerance, f"in {len(pieces)} pieces: logits differ by {difference}"


def check_greedy(folder, num_tokens=9, windows=NO_WINDOWS, oracle=None):
    """Serve several requests at once, in chunks and small blocks: each token is mlx-lm's likeliest in float32."""
    prompts = [prompt_of(n, seed=n) for n in (1, 9, 30, 14)]
    llm = LLM(folder, num_blocks=200, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_num_chunk_tokens=7)
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    oracle = oracle or float32_oracle(folder)
    for prompt, output in zip(prompts, llm.generate(prompts, params)):
        logits = oracle_logits(oracle, [*prompt, *output.token_ids[:-1]], windows)
        assert output.token_ids == mx.argmax(logits, axis=-1).tolist()[len(prompt) - 1:]


def check_both(folder, windows=NO_WINDOWS, tolerance=1e-4, loaded=None):
    """Check logits and greedy tokens against one oracle."""
    oracle = float32_oracle(folder)
    check_logits(folder, windows, tolerance, loaded=loaded, oracle=oracle)
    check_greedy(folder, windows=windows, oracle=oracle)


@pytest.fixture(scope="module")
def checkpoints(checkpoints):
    """Return small networks also on a GPU: no test here needs its kernels."""
    return partial(checkpoints, hidden_size=SHAPE["hidden_size"])


@pytest.fixture
def packed(monkeypatch):
    """Pretend that the device multiplies packed weights faster, by MLX's operations."""
    monkeypatch.setenv("MINI_VLLM_NATIVE", "0")
    monkeypatch.setattr("mini_vllm.models.weights.is_cpu", lambda: False)


@pytest.fixture(scope="module")
def conversions(checkpoints, tmp_path_factory):
    """Convert a random checkpoint with ``mlx_lm.convert``, by name and options, when first used."""
    root, made = tmp_path_factory.mktemp("conversions"), {}

    def get(name, **options):
        key = (name, *sorted(options.items()))
        if key not in made:
            made[key] = root / str(len(made))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(mlx_lm_utils, "create_model_card", lambda *_: None)  # a page for people, from a template
                mlx_lm_convert.convert(str(checkpoints(name)), str(made[key]), quantize=True, **options)
        return made[key]

    return get


@pytest.fixture
def converted(conversions, tmp_path):
    """Copy a converted checkpoint into a folder that the test may change."""
    def get(name, **options):
        folder = tmp_path / "converted"
        shutil.rmtree(folder, ignore_errors=True)
        return shutil.copytree(conversions(name, **{"q_group_size": 32, **options}), folder)

    return get


# ---- quantised by mlx-lm


@pytest.mark.parametrize("name", ["qwen2", "llama-bias", "llama-interleaved", "qwen3"])
def test_a_quantised_network_is_mlx_lms_unpacked_and_packed(converted, request, name):
    folder = converted(name, q_bits=4)
    check_both(folder)
    request.getfixturevalue("packed")
    loaded = load(folder)
    assert loaded.model.model.layers[0].self_attn.qkv_proj.weight.dtype == mx.uint32
    check_both(folder, loaded=loaded)


@pytest.mark.skipif(bool(problem()) or not is_cpu(), reason=problem() or "the step in C is a CPU's")
@pytest.mark.parametrize("bits, stays", [(4, True), (8, True), (3, False)])
def test_an_engine_whose_step_is_native_keeps_four_and_eight_bits_packed(converted, bits, stays):
    folder = converted("qwen3", q_bits=bits)
    native, plain = (LLM(folder, num_blocks=20, native=is_native) for is_native in (None, False))
    sizes = [llm.engine.loaded.num_bytes for llm in (native, plain)]
    assert sizes[0] < sizes[1] / 2 if stays else sizes[0] == sizes[1]
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    texts = [[output.token_ids for output in llm.generate(["hello", "a b c d e"], params)] for llm in (native, plain)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_not_rounded_to_the_half_precision_of_their_scales(converted, monkeypatch, dtype):
    monkeypatch.setattr("mini_vllm.models.weights.is_cpu", lambda: True)
    folder = converted("llama3", q_bits=4, dtype=dtype)
    loaded = load(folder)
    assert loaded.model.model.norm.weight.dtype == mx.float32
    check_both(folder, tolerance=2e-5, loaded=loaded)


def but_v_proj(path, _):
    return "v_proj" not in path


@pytest.mark.parametrize("name, options", [
    *(("llama2", {"q_bits": bits}) for bits in (2, 3, 4, 5, 6, 8)),
    *(("qwen2", {"quant_predicate": recipe, "q_group_size": size})
      for recipe, size in (("mixed_2_6", 64), ("mixed_3_4", None), ("mixed_4_6", 32))),
    *(("qwen2", {"q_mode": mode, "q_group_size": None}) for mode in ("mxfp4", "mxfp8", "nvfp4")),
    ("qwen2", {"quant_predicate": but_v_proj}),
], ids=lambda given: given if isinstance(given, str) else "-".join(getattr(v, "__name__", str(v))
                                                                  for v in given.values()))
def test_any_bits_recipes_and_modes_are_unpacked_or_stay_packed(converted, request, name, options):
    folder = converted(name, **options)
    check_logits(folder)
    request.getfixturevalue("packed")
    check_logits(folder)


def test_a_device_that_keeps_weights_packed_stacks_what_is_packed_alike(converted, packed):
    def predicate(path, module):
        return {"group_size": 32, "bits": 8 if "layers.1.mlp.up_proj" in path else 4}

    loaded = load(converted("llama-bias", quant_predicate=predicate))
    attention, mlp = (loaded.model.model.layers[1][part] for part in ("self_attn", "mlp"))
    assert attention.qkv_proj.weight.shape[0] == 128 and attention.qkv_proj.bits == 4
    assert [(part.bits, part.weight.shape[0]) for part in mlp.gate_up_proj.parts] == [(4, 112), (8, 112)]
    check_logits(loaded.path, loaded=loaded)


def test_what_stays_packed_is_exported_as_floats(converted, tmp_path, packed):
    for name, options in (("qwen2", dict(q_bits=4)), ("llama-bias", dict(quant_predicate="mixed_4_6"))):
        folder = converted(name, **options)
        export_folder(load(folder), tmp_path / name / "exported")
        shutil.copy(folder / "tokenizer.json", tmp_path / name / "exported")
        ours, expected = (oracle_logits(float32_oracle(f), prompt_of(20), NO_WINDOWS)
                          for f in (tmp_path / name / "exported", folder))
        assert mx.abs(ours - expected).max().item() < 1e-4


# ---- yarn


YARN = {
    "plain": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
    "old name": dict(type="yarn", factor=4, original_max_position_embeddings=64),
    "betas": dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=16, beta_slow=2.0),
    "mscale": dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=32, mscale=0.7, mscale_all_dim=1.3),
    "no slow pair": dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=100_000, beta_fast=64),
    "narrow ramp": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=1, beta_slow=1),
    "nothing scaled": dict(rope_type="yarn", factor=1.0, original_max_position_embeddings=512),
}


@pytest.mark.parametrize("model_type, scaling", [*(("llama", scaling) for scaling in YARN), ("mistral", "plain"),
                                                 ("qwen2", "mscale"), ("qwen3", "betas")])
def test_yarn_is_mlx_lms(tmp_path, model_type, scaling):
    folder = write_checkpoint(tmp_path / "yarn", model_type=model_type, head_dim=8 if model_type != "qwen3" else 32,
                              rope_scaling=YARN[scaling])
    check_logits(folder, num_tokens=120)


def test_yarn_40_greedy_tokens_are_mlx_lms(tmp_path):
    folder = write_checkpoint(tmp_path / "yarn", model_type="qwen2", rope_scaling=YARN["plain"])
    check_greedy(folder, num_tokens=10)
    export_folder(load(folder), tmp_path / "exported")
    ours, expected = (oracle_logits(float32_oracle(f), prompt_of(20), NO_WINDOWS)
                      for f in (tmp_path / "exported", folder))
    assert mx.abs(ours - expected).max().item() < 1e-4


def test_yarn_reaches_as_far_as_it_was_scaled_to(tmp_path):
    scaling = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=512)
    assert load(write_checkpoint(tmp_path / "a", model_type="qwen2", rope_scaling=scaling)).config \
        .max_position_embeddings == 2048
    assert load(write_checkpoint(tmp_path / "b", model_type="qwen2", rope_scaling=scaling,
                                 max_position_embeddings=4096)).config.max_position_embeddings == 4096


def test_yarn_takes_an_attention_factor_as_transformers_does(tmp_path):
    """Read a field that mlx-lm does not: a value that agrees with the other fields changes nothing, another one
    does."""
    plain, same, other = (
        our_logits(load(write_checkpoint(tmp_path / name, model_type="llama", rope_scaling={**YARN["plain"], **extra})),
                   prompt_of(30), [30])
        for name, extra in (("plain", {}), ("same", {"attention_factor": 0.1 * np.log(4.0) + 1}),
                            ("other", {"attention_factor": 1.5})))
    assert np.abs(plain - same).max() < 1e-4 < 0.1 < np.abs(plain - other).max()


# ---- sliding windows


ALL = range(SHAPE["num_hidden_layers"])
S, F = "sliding_attention", "full_attention"
#: Config → which of three layers attend to a window of 5 tokens
WINDOWED = {
    "mistral": (dict(model_type="mistral", sliding_window=5), [0, 1, 2]),
    "mistral with layer types": (dict(model_type="mistral", sliding_window=5, layer_types=[S, S, S]), [0, 1, 2]),
    "mistral without": (dict(model_type="mistral", sliding_window=None), []),
    "qwen2": (dict(model_type="qwen2", sliding_window=5, use_sliding_window=True, max_window_layers=1), [1, 2]),
    "qwen2, all": (dict(model_type="qwen2", sliding_window=5, use_sliding_window=True, max_window_layers=0), [0, 1, 2]),
    "qwen2, none": (dict(model_type="qwen2", sliding_window=5, use_sliding_window=True, max_window_layers=28), []),
    "qwen2 without": (dict(model_type="qwen2", sliding_window=5, use_sliding_window=False, max_window_layers=1), []),
    "qwen3": (dict(model_type="qwen3", head_dim=32, sliding_window=5, use_sliding_window=True, max_window_layers=2),
              [2]),
    "qwen3 with layer types": (dict(model_type="qwen3", head_dim=32, sliding_window=5, use_sliding_window=True,
                                    max_window_layers=3, layer_types=[S, F, S]), [0, 2]),
    "qwen2, a window of null": (dict(model_type="qwen2", sliding_window=None, use_sliding_window=True), []),
    "llama": (dict(model_type="llama", sliding_window=5), []),
}


def windows_of(layers, window=5):
    return [window if layer in layers else None for layer in ALL]


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_are_those_of_the_config(tmp_path, name):
    changes, layers = WINDOWED[name]
    folder = write_checkpoint(tmp_path / "windowed", **changes)
    loaded = load(folder)
    assert [loaded.config.window(layer) for layer in ALL] == windows_of(layers)
    assert loaded.config.max_position_embeddings == 512, "a window is no limit on the length of a text"
    (check_both if layers else check_logits)(folder, windows_of(layers), loaded=loaded)


@pytest.mark.parametrize("window", [1, 3, 4, 17, 60])
def test_windows_of_any_length_hold(tmp_path, window):
    folder = write_checkpoint(tmp_path / "windowed", model_type="qwen2", use_sliding_window=True, sliding_window=window,
                              layer_types=[S, F, S])
    check_logits(folder, windows_of([0, 2], window))


def test_windows_hold_for_shared_prefixes_and_samples(tmp_path):
    """Serve requests with a common beginning: they share blocks, and each still sees its own window."""
    folder = write_checkpoint(tmp_path / "windowed", model_type="qwen2", use_sliding_window=True, sliding_window=6,
                              layer_types=[S, F, S])
    oracle, start = float32_oracle(folder), prompt_of(20)
    llm = LLM(folder, num_blocks=200, block_size=4, max_num_seqs=8)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    for _ in range(2):  # the second time, prompts are found in the cache
        prompts = [start, [*start, 7], [*start[:18], 9, 9], prompt_of(5), [*start, 8, 8, 8, 8]]
        for prompt, output in zip(prompts, llm.generate(prompts, params)):
            logits = oracle_logits(oracle, [*prompt, *output.token_ids[:-1]], windows_of([0, 2], 6))
            assert output.token_ids == mx.argmax(logits, axis=-1).tolist()[len(prompt) - 1:]


@pytest.mark.parametrize("name", ["mistral", "mistral without", "qwen2", "qwen3 with layer types"])
def test_windows_are_exported(tmp_path, name):
    changes, layers = WINDOWED[name]
    loaded = load(write_checkpoint(tmp_path / "windowed", **changes))
    export_folder(loaded, tmp_path / "exported")
    shutil.copy(tmp_path / "windowed" / "tokenizer.json", tmp_path / "exported")
    again = load(tmp_path / "exported")
    assert [again.config.window(layer) for layer in ALL] == windows_of(layers)
    token_ids = prompt_of(30)
    assert np.abs(our_logits(again, token_ids, [30]) - our_logits(loaded, token_ids, [30])).max() < 1e-5


# ---- as transformers 5 reads a config


YARN_4 = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
#: Fields of config.json → the same in its plainest form
SAME_ROTATION = {
    "yarn, trained on the length of the config": (
        dict(rope_scaling=dict(type="yarn", factor=4.0)),
        dict(rope_scaling={**YARN_4, "original_max_position_embeddings": 512})),
    "yarn, trained length outside": (dict(rope_scaling=dict(type="yarn", factor=4.0),
                                          original_max_position_embeddings=64), dict(rope_scaling=YARN_4)),
    "yarn, mscale alone": (dict(rope_scaling={**YARN_4, "mscale": 0.7}), dict(rope_scaling=YARN_4)),
    "yarn, mscale_all_dim alone": (dict(rope_scaling={**YARN_4, "mscale_all_dim": 0.7}), dict(rope_scaling=YARN_4)),
    "yarn, mscale_all_dim 0": (dict(rope_scaling={**YARN_4, "mscale": 0.7, "mscale_all_dim": 0}),
                               dict(rope_scaling=YARN_4)),
    "llama3, trained length outside": (
        dict(rope_scaling={key: value for key, value in LLAMA3_ROPE.items() if not key.startswith("original")},
             original_max_position_embeddings=64), dict(rope_scaling=LLAMA3_ROPE)),
    "all in one object": (dict(rope_theta=None, rope_parameters={**YARN_4, "rope_theta": 5e5}),
                          dict(rope_theta=5e5, rope_scaling=YARN_4)),
    "two objects that agree": (dict(rope_theta=5e5, rope_parameters={**YARN_4, "rope_theta": 5e5}, rope_scaling=YARN_4),
                               dict(rope_theta=5e5, rope_scaling=YARN_4)),
    "an empty object": (dict(rope_parameters=YARN_4, rope_scaling={}), dict(rope_scaling=YARN_4)),
}


@pytest.mark.parametrize("name", SAME_ROTATION)
def test_rotation_is_read_as_transformers_reads_it(tmp_path, name):
    got, expected = (our_logits(load(write_checkpoint(tmp_path / folder, model_type="llama", **fields)), prompt_of(100),
                                [100]) for folder, fields in zip(("given", "plain"), SAME_ROTATION[name]))
    assert np.abs(got - expected).max() < 1e-5


def test_missing_fields_have_the_values_of_transformers():
    shape = {key: SHAPE[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    llama, mistral, qwen2, qwen3 = (ModelConfig.from_dict({**shape, "model_type": name, "num_attention_heads": 32})
                                    for name in ("llama", "mistral", "qwen2", "qwen3"))
    assert [config.max_position_embeddings for config in (llama, mistral, qwen2)] == [2048, 131_072, 32_768]
    assert [config.num_kv_heads for config in (llama, mistral, qwen2, qwen3)] == [32, 8, 32, 32]
    assert [config.head_dim for config in (llama, mistral, qwen2, qwen3)] == [2, 2, 2, 128]
    assert [config.window(0) for config in (llama, mistral, qwen2, qwen3)] == [None, 4096, None, None]
    windowed = ModelConfig.from_dict({**shape, "model_type": "qwen2", "num_attention_heads": 32,
                                      "num_hidden_layers": 30, "use_sliding_window": True})
    assert [windowed.window(layer) for layer in (27, 28)] == [None, 4096]


@pytest.mark.parametrize("model_type", ["qwen2", "mistral"])
def test_biases_are_those_of_the_architecture(tmp_path, model_type):
    """Read as in transformers: Qwen2 has them in queries, keys and values only, Mistral has none."""
    folder = write_checkpoint(tmp_path / "biased", model_type=model_type)
    expected = our_logits(load(folder), prompt_of(30), [30])
    change_fields(folder, attention_bias=True, mlp_bias=True)
    assert np.array_equal(our_logits(load(folder), prompt_of(30), [30]), expected)


def test_null_stands_for_a_field_that_is_not_there(checkpoints, tmp_path):
    folder = tmp_path / "nulls"
    shutil.copytree(checkpoints("llama2"), folder)
    change_fields(folder, **dict.fromkeys((
        "head_dim", "num_key_value_heads", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias",
        "tie_word_embeddings", "rope_traditional", "use_sliding_window", "sliding_window", "max_window_layers",
        "layer_types", "hidden_act", "partial_rotary_factor", "quantization", "quantization_config", "eos_token_id")))
    token_ids = prompt_of(20)
    assert np.array_equal(our_logits(load(folder), token_ids, [20]),
                          our_logits(load(checkpoints("llama2")), token_ids, [20]))
