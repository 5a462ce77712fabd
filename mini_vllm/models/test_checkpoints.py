"""Checkpoints as others write them, against mlx-lm in float32: quantised, scaled for long contexts, with windows."""

import json
import shutil
import struct
from functools import partial

import numpy as np
import pytest
from fuzz.oracle import float32_oracle, oracle_logits

from mini_vllm.backend import is_cpu, mx
from mini_vllm.conftest import ARCHITECTURES, LLAMA3_ROPE, SHAPE, write_checkpoint
from mini_vllm.llm import LLM
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.config import LoadError, ModelConfig
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import check, load
from mini_vllm.models.random_model import random_weights
from mini_vllm.models.tokenizer import Tokenizer, TokenizerError
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
def test_quantised_layers_may_have_biases(converted, name):
    folder = converted(name, q_bits=4)
    check_both(folder)


@pytest.mark.parametrize("name", ["qwen2", "llama-bias", "llama-interleaved", "qwen3"])
def test_quantised_layers_may_have_biases_where_they_stay_packed(converted, packed, name):
    folder = converted(name, q_bits=4)
    assert load(folder).model.model.layers[0].self_attn.qkv_proj.weight.dtype == mx.uint32
    check_both(folder)


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


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_any_number_of_bits_is_unpacked(converted, bits):
    folder = converted("llama2", q_bits=bits)
    check_logits(folder)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_any_number_of_bits_stays_packed(converted, packed, bits):
    folder = converted("llama2", q_bits=bits)
    check_logits(folder)


# Every recipe with every group size, one half unpacked and the other packed: each recipe and size is in both.


@pytest.mark.parametrize("recipe, group_size", [("mixed_2_6", None), ("mixed_2_6", 64), ("mixed_3_4", 32),
                                                ("mixed_4_6", None), ("mixed_4_6", 64)])
def test_mixed_bits_are_unpacked(converted, recipe, group_size):
    check_logits(converted("qwen2", quant_predicate=recipe, q_group_size=group_size))


@pytest.mark.parametrize("recipe, group_size", [("mixed_2_6", 32), ("mixed_3_4", None), ("mixed_3_4", 64),
                                                ("mixed_4_6", 32)])
def test_mixed_bits_stay_packed(converted, packed, recipe, group_size):
    folder = converted("qwen2", quant_predicate=recipe, q_group_size=group_size)
    if group_size == 32:
        check_both(folder)
    else:
        check_logits(folder)


def test_a_device_that_keeps_weights_packed_stacks_what_is_packed_alike(converted, packed):
    def predicate(path, module):
        return {"group_size": 32, "bits": 8 if "layers.1.mlp.up_proj" in path else 4}

    loaded = load(converted("llama-bias", quant_predicate=predicate))
    attention, mlp = (loaded.model.model.layers[1][part] for part in ("self_attn", "mlp"))
    assert attention.qkv_proj.weight.shape[0] == 128 and attention.qkv_proj.bits == 4
    assert [(part.bits, part.weight.shape[0]) for part in mlp.gate_up_proj.parts] == [(4, 112), (8, 112)]
    check_logits(loaded.path, loaded=loaded)


def test_layers_may_be_left_as_they_were(converted, packed):
    folder = converted("qwen2", quant_predicate=lambda path, _: "v_proj" not in path)
    check_logits(folder)


@pytest.mark.parametrize("name, mode", [("qwen2", "mxfp4"), ("llama3", "mxfp8"), ("qwen2", "nvfp4")])
def test_floating_point_modes_are_unpacked(converted, mode, name):
    folder = converted(name, q_mode=mode, q_group_size=None)
    check_both(folder)


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_floating_point_modes_stay_packed(converted, packed, mode):
    folder = converted("qwen2", q_mode=mode, q_group_size=None)
    check_logits(folder)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors"])
def test_weights_quantised_by_another_method_are_refused_by_its_name(tmp_path, method):
    folder = write_checkpoint(tmp_path / "other", model_type="llama", quantization_config={"quant_method": method})
    with pytest.raises(LoadError, match=f"quantization_config.quant_method is '{method}', supported: the format that"):
        load(folder)


def change_weights(folder, change):
    weights = mx.load(str(folder / "model.safetensors"))
    mx.eval(weights)
    change(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)


V_PROJ = "model.layers.1.self_attn.v_proj"


@pytest.mark.parametrize("kept", ["packed", "unpacked"])
@pytest.mark.parametrize("name, array, complaint", [
    (f"{V_PROJ}.biases", None, r"v_proj.scales \(32, 2\) of float32 are not a matrix of the shape \(32, 64\), packed"),
    (f"{V_PROJ}.scales", None, r"v_proj.weight has the shape \(32, 8\) and type uint32, expected \(32, 64\) and"),
    (f"{V_PROJ}.biases", mx.zeros((32, 3)), r"v_proj.biases \(32, 3\) of float32 are not a matrix"),
    (f"{V_PROJ}.scales", mx.zeros((30, 2)), r"v_proj.scales \(30, 2\) of float32, "),
    (f"{V_PROJ}.scales", mx.zeros((32, 3)), r"v_proj.scales \(32, 3\) of float32, "),
    (f"{V_PROJ}.scales", mx.zeros((32, 2), mx.uint8), r"v_proj.scales \(32, 2\) of uint8, "),
    (f"{V_PROJ}.weight", mx.zeros((32, 7), mx.uint32), r"v_proj.weight \(32, 7\) of uint32, "),
    (f"{V_PROJ}.weight", mx.zeros((32, 64)), r"v_proj.weight \(32, 64\) of float32, "),
    ("model.norm.scales", mx.zeros((64,)), "model.norm.scales does not belong"),
])
def test_packed_tensors_that_do_not_fit_are_named(converted, monkeypatch, kept, name, array, complaint):
    monkeypatch.setattr("mini_vllm.models.weights.is_cpu", lambda: kept == "unpacked")
    folder = converted("llama3", q_bits=4)
    change_weights(folder, lambda weights: weights.pop(name) if array is None else weights.update({name: array}))
    with pytest.raises(LoadError, match=complaint):
        load(folder)


@pytest.mark.parametrize("dtype", [mx.uint8, mx.int32, mx.bool_])
def test_weights_that_are_no_floats_are_named(checkpoints, tmp_path, dtype):
    folder = tmp_path / "bad"
    shutil.copytree(checkpoints("llama2"), folder)
    change_weights(folder, lambda weights: weights.update({f"{V_PROJ}.weight": mx.zeros((64, 64), dtype)}))
    with pytest.raises(LoadError, match=rf"{V_PROJ}.weight has the shape .* and type \w+, expected .* floats"):
        load(folder)


@pytest.mark.parametrize("entry, complaint", [
    ({"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}, "model.safetensors: "),
    ({"dtype": "F32", "shape": [1], "data_offsets": ["0", "x"]}, "header is not that of a safetensors file"),
    ({"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}, "model.safetensors: "),
    ({"dtype": "F32", "shape": [1], "data_offsets": 4}, "header is not that of a safetensors file"),
    ({"dtype": "F32", "shape": [7], "data_offsets": [0, 4]}, "model.safetensors: "),
])
def test_a_header_of_a_safetensors_file_that_cannot_be_is_refused(checkpoints, tmp_path, entry, complaint):
    folder = tmp_path / "bad"
    shutil.copytree(checkpoints("llama2"), folder)
    header, size = json.dumps({"a": entry}).encode(), 2 if entry["dtype"] == "F4" else 4
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    with pytest.raises(LoadError, match=complaint):
        load(folder)


def test_what_stays_packed_is_exported_as_floats(converted, tmp_path, packed):
    for name, options in (("qwen2", dict(q_bits=4)), ("llama-bias", dict(quant_predicate="mixed_4_6"))):
        folder = converted(name, **options)
        export_folder(load(folder), tmp_path / name / "exported")
        shutil.copy(folder / "tokenizer.json", tmp_path / name / "exported")
        ours, expected = (oracle_logits(float32_oracle(f), prompt_of(20), NO_WINDOWS)
                          for f in (tmp_path / name / "exported", folder))
        assert mx.abs(ours - expected).max().item() < 1e-4


# ---- quantised GGUF


def write_quantised_gguf(path, arrays, metadata):
    """Write a GGUF file with matrices as Q8_0 (a float16 scale and 32 signed bytes per group), the rest as floats."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def entry(value):
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        if isinstance(value, list):
            kind = 8 if isinstance(value[0], str) else 5
            items = b"".join(text(item) if kind == 8 else struct.pack("<i", item) for item in value)
            return struct.pack("<IIQ", 9, kind, len(value)) + items
        return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)

    head = struct.pack("<4sIQQ", b"GGUF", 3, len(arrays), len(metadata))
    head += b"".join(text(key) + entry(value) for key, value in metadata.items())
    data = b""
    for name, array in arrays.items():
        is_matrix = array.ndim == 2
        head += text(name) + struct.pack(f"<I{array.ndim}QIQ", array.ndim, *reversed(array.shape),
                                         8 if is_matrix else 0, len(data))
        if is_matrix:
            groups = array.reshape(-1, 32)
            scales = (np.abs(groups).max(axis=1, keepdims=True) / 127).astype(np.float16)
            rounded = np.rint(groups / scales.astype(np.float32)).clip(-127, 127).astype(np.int8)
            data += b"".join(scale.tobytes() + row.tobytes() for scale, row in zip(scales, rounded))
            arrays[name] = (rounded * scales.astype(np.float32)).reshape(array.shape)
        else:
            data += array.astype(np.float32).tobytes()
        data += b"\0" * (-len(data) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


@pytest.mark.parametrize("kept", ["packed", "unpacked"])
def test_a_quantised_gguf_of_qwen2_has_biases_and_loads(tmp_path, monkeypatch, kept):
    from tokenizers import pre_tokenizers
    monkeypatch.setattr("mini_vllm.models.weights.is_cpu", lambda: kept == "unpacked")
    config = {**SHAPE, "model_type": "qwen2", "intermediate_size": 96}
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
             "model.layers.": "blk.", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down"}
    originals, arrays = {}, {}
    for name, array in random_weights(config, 0).items():
        stored = name
        for ours, theirs in names.items():
            stored = stored.replace(ours, theirs)
        originals[stored], arrays[stored] = name, np.array(array)
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>", "ab",
              *(f"<unused-{i}>" for i in range(258, 300))]
    write_quantised_gguf(tmp_path / "model.gguf", arrays, {
        "general.architecture": "qwen2", "qwen2.embedding_length": 64, "qwen2.feed_forward_length": 96,
        "qwen2.block_count": 3, "qwen2.attention.head_count": 8, "qwen2.attention.head_count_kv": 4,
        "qwen2.context_length": 512, "qwen2.attention.layer_norm_rms_epsilon": 1e-5, "qwen2.rope.freq_base": 1e4,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3, 1] + [5] * 42, "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 256})
    folder = write_checkpoint(tmp_path / "floats", **{**config, "rope_theta": 1e4})
    mx.save_safetensors(str(folder / "model.safetensors"),
                        {originals[name]: mx.array(array) for name, array in arrays.items()})
    loaded = load(tmp_path / "model.gguf")
    # Packed weights are computed in the float16 of their scales.
    check_logits(folder, tolerance=1e-4 if kept == "unpacked" else 0.1, loaded=loaded)


def test_rope_scaling_in_a_gguf_file_is_read(tmp_path, checkpoints):
    from mini_vllm.models.test_network import write_gguf
    file = write_gguf(checkpoints, tmp_path / "model.gguf", **{
        "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": mx.array(4.0)})
    assert load(file).config.rope_scaling["factor"] == 4.0
    write_gguf(checkpoints, file, **{"llama.rope.scaling.type": "none"})
    assert load(file).config.rope_scaling is None
    write_gguf(checkpoints, file, **{"llama.rope.scaling.type": "longrope"})
    with pytest.raises(LoadError, match="rope scaling 'longrope' is not supported"):
        load(file)


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
    with_fields(folder, "config.json", {"attention_bias": True, "mlp_bias": True})
    assert np.array_equal(our_logits(load(folder), prompt_of(30), [30]), expected)


def test_tied_weights_that_differ_are_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "untied", model_type="llama")
    with_fields(folder, "config.json", {"tie_word_embeddings": True})
    with pytest.raises(LoadError, match="lm_head.weight differs from model.embed_tokens.weight, but tie_word_emb"):
        load(folder)
    change_weights(folder, lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"]}))
    assert load(folder).config.tie_word_embeddings


# ---- files with invalid values


def with_fields(folder, file, fields):
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **fields}))


ROPE = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
LLAMA3 = ARCHITECTURES["llama3"]["rope_scaling"]
WHOLE = "must be a whole number, at least 1"
#: Fields of config.json of a Llama with three layers → the error message
IMPOSSIBLE = [
    ({"model_type": ["llama"]}, r"model_type \['llama'\]"),
    ({"model_type": None}, "model_type None"),
    *(({field: value}, rf"config.json: {field} is {shown}, {WHOLE}")
      for field in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                    "num_key_value_heads", "head_dim", "max_position_embeddings")
      for value, shown in (("64", "'64'"), (64.0, "64.0"), (-1, "-1"), (True, "True"), ([64], r"\[64\]"))),
    *(({field: None}, f"config.json: {field} is missing, {WHOLE}")
      for field in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")),
    ({"head_dim": 7}, "config.json: head_dim is 7, must be even"),
    ({"hidden_size": 24, "head_dim": None}, "config.json: head_dim is 3, must be even"),
    ({"hidden_size": 5, "head_dim": None}, "config.json: head_dim is 1, must be even"),
    ({"num_hidden_layers": 10**9}, "the config has 1000000000 layers of at least 9 tensors"),
    ({"hidden_size": 10**12}, r"embed_tokens.weight has the shape \(300, 64\) .* expected \(300, 1000000000000\)"),
    ({"rope_theta": 10**400}, "config.json: rope_theta is 1000.*000, must be a number above 1"),
    ({"rms_norm_eps": None}, "config.json: rms_norm_eps is missing, must be a number above 0"),
    ({"rms_norm_eps": "1e-5"}, "config.json: rms_norm_eps is '1e-5', must be a number above 0"),
    ({"rms_norm_eps": -1.0}, "config.json: rms_norm_eps is -1.0, must be a number above 0"),
    ({"rms_norm_eps": float("nan")}, "config.json: rms_norm_eps is nan, must be a number above 0"),
    ({"rms_norm_eps": [1e-5]}, "config.json: rms_norm_eps is"),
    ({"rope_theta": "10000"}, "config.json: rope_theta is '10000', must be a number above 1"),
    ({"rope_theta": 0}, "config.json: rope_theta is 0, must be a number above 1"),
    ({"rope_theta": True}, "config.json: rope_theta is True, must be a number above 1"),
    ({"rope_theta": float("inf")}, "config.json: rope_theta is inf, must be a number above 1"),
    ({"rope_theta": None, "rope_parameters": {"rope_theta": "x"}}, "config.json: rope_parameters.rope_theta is 'x'"),
    *(({field: value}, f"config.json: {field} is {value!r}, must be true or false")
      for field in ("attention_bias", "mlp_bias", "tie_word_embeddings", "rope_traditional", "use_sliding_window")
      for value in ("true", 1)),
    ({"hidden_act": "gelu"}, "config.json: hidden_act is 'gelu', supported: silu"),
    ({"partial_rotary_factor": 0.5}, "config.json: partial_rotary_factor is 0.5, supported: 1.0"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}},
     "config.json: rope_parameters.partial_rotary_factor is 0.5, supported: 1.0"),
    ({"rope_scaling": "yarn"}, "config.json: rope_scaling is 'yarn', must be an object"),
    ({"rope_scaling": [1]}, r"config.json: rope_scaling is \[1\], must be an object"),
    ({"rope_parameters": "yarn"}, "config.json: rope_parameters is 'yarn', must be an object"),
    ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": ROPE},
     "config.json: rope_parameters.rope_type is 'default', but rope_scaling.rope_type is 'yarn'"),
    ({"rope_parameters": {**ROPE, "factor": 8.0}, "rope_scaling": ROPE},
     "config.json: rope_parameters.factor is 8.0, but rope_scaling.factor is 4.0"),
    ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e6}},
     "config.json: rope_parameters.rope_theta is 1000000.0, but rope_theta is 500000.0"),
    ({"rope_theta": None, "rope_parameters": {**ROPE, "rope_theta": 1e6}, "rope_scaling": ROPE},
     "config.json: rope_parameters.rope_theta is 1000000.0, but rope_scaling.rope_theta is None"),
    ({"rope_scaling": ROPE, "original_max_position_embeddings": 32},
     "rope_scaling.original_max_position_embeddings is 64, but original_max_position_embeddings is 32"),
    ({"rope_scaling": {**ROPE, "type": "linear"}},
     "config.json: rope_scaling.rope_type is 'yarn', but rope_scaling.type is 'linear'"),
    ({"rope_scaling": {F: ROPE}}, "config.json: rope_scaling.full_attention"),
    ({"rope_scaling": {"type": "mrope"}}, "rope scaling 'mrope' is not supported"),
    ({"rope_parameters": {F: {"rope_theta": 1e4}}}, "config.json: rope_parameters.full_attention"),
    ({"rope_scaling": {"rope_type": 5}}, "rope scaling 5 is not supported"),
    ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope scaling .* is not supported"),
    ({"rope_scaling": {"rope_type": "longrope"}},
     "rope scaling 'longrope' is not supported; supported: default, linear, llama3, yarn"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic' is not supported"),
    *(({"rope_scaling": {"rope_type": kind}}, "config.json: rope_scaling.factor is missing, must be a number above 0")
      for kind in ("linear", "llama3", "yarn")),
    *(({"rope_scaling": {**rope, field: value}}, f"config.json: rope_scaling.{field} is {value!r}, must be")
      for rope, fields in ((LLAMA3, ("factor", "low_freq_factor", "high_freq_factor",
                                     "original_max_position_embeddings")),
                           (ROPE, ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale",
                                   "mscale_all_dim", "attention_factor")))
      for field in fields for value in ("x", -1)),
    ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}},
     "config.json: rope_scaling.high_freq_factor is 1.0, must be a number above 1.0"),
    *(({"rope_scaling": {**LLAMA3, field: None}}, f"config.json: rope_scaling.{field} is missing, must be a number")
      for field in ("low_freq_factor", "high_freq_factor")),
    ({"rope_scaling": {**ROPE, "truncate": False}}, "config.json: rope_scaling.truncate is False, supported: true"),
    ({"model_type": "mistral", "sliding_window": "4096"}, f"config.json: sliding_window is '4096', {WHOLE}"),
    ({"model_type": "mistral", "sliding_window": 0}, f"config.json: sliding_window is 0, {WHOLE}"),
    *(({"layer_types": types}, "config.json: layer_types is .*, must be a list of 3 entries, one per layer: full_atten")
      for types in ("full_attention", [F, F], [F, F, "linear_attention"], [F, F, {}])),
    ({"layer_types": [F, F, S]}, "layer_types is .*, but a llama network with sliding_window None has windows in no"),
    ({"use_sliding_window": True, "sliding_window": 5}, "config.json: use_sliding_window is True, but a llama network"),
    ({"model_type": "qwen2", "sliding_window": 5, "layer_types": [F, F, S]}, r"no layers \(use_sliding_window is Fal"),
    ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": None, "layer_types": [F, F, S]},
     r"layer_types is .* sliding_window None has windows in no layers \(use_sliding_window is True\)"),
    ({"model_type": "mistral", "sliding_window": 5, "layer_types": [F, S, S]},
     "config.json: layer_types is .* a mistral network with sliding_window 5 has windows in all layers"),
    ({"model_type": "mistral", "sliding_window": None, "layer_types": [F, S, S]}, "sliding_window None has windows in"),
    ({"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 5, "max_window_layers": "1"},
     "config.json: max_window_layers is '1', must be a whole number, at least 0"),
    ({"quantization_config": "awq"}, "config.json: quantization_config is 'awq', must be an object"),
    ({"eos_token_id": "2"}, "config.json: eos_token_id is '2', must be one token id or a list"),
]


@pytest.mark.parametrize("fields, complaint", IMPOSSIBLE, ids=[json.dumps(fields)[:70] for fields, _ in IMPOSSIBLE])
def test_a_field_of_config_json_that_cannot_be_is_named(checkpoints, tmp_path, fields, complaint):
    folder = tmp_path / "bad"
    shutil.copytree(checkpoints("llama2"), folder)
    with_fields(folder, "config.json", fields)
    with pytest.raises(LoadError, match=complaint):
        load(folder)


NOT_OBJECTS = [("[1, 2]", r"\[1, 2\]"), ("null", "None"), ('"text"', "'text'"), ("3", "3")]
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("file, content, complaint", [
    *(("config.json", content, rf"config.json holds {shown}, must be a JSON object") for content, shown in NOT_OBJECTS),
    *((INDEX, content, rf"{INDEX} holds {shown}, must be a JSON object") for content, shown in NOT_OBJECTS),
    *(("generation_config.json", content, rf"generation_config.json holds {shown}, must be a JSON object")
      for content, shown in NOT_OBJECTS),
    *(("tokenizer_config.json", content, rf"tokenizer_config.json holds {shown}, must be a JSON object")
      for content, shown in NOT_OBJECTS),
    *((file, content, rf"{file}.*not JSON")
      for file in ("config.json", INDEX, "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
      for content in ("{", "", "[" * 100_000)),
    *((file, b"\xff\xfe\x00", rf"{file}.*not JSON")
      for file in ("config.json", INDEX, "generation_config.json", "tokenizer_config.json")),
    *((INDEX, content, rf"{INDEX}: weight_map is {shown}, must give the file of each tensor") for content, shown in (
        ("{}", "None"), ('{"weight_map": ["a"]}', r"\['a'\]"), ('{"weight_map": {"a": 5}}', "{'a': 5}"))),
    (INDEX, '{"weight_map": {}}', "has no .*safetensors files"),
    (INDEX, '{"weight_map": {"a": "b"}}', f"{INDEX} names b, which is missing"),
    ("generation_config.json", '{"eos_token_id": "2"}', "generation_config.json: eos_token_id is '2'"),
    ("generation_config.json", '{"eos_token_id": [2, -1]}', "generation_config.json: eos_token_id is"),
    ("tokenizer_config.json", '{"eos_token": 5}', "eos_token is 5, which is not in the vocabulary"),
    ("tokenizer_config.json", '{"bos_token": {"content": ["a"]}}', "bos_token is .* not in the vocabulary"),
    ("tokenizer_config.json", '{"chat_template": 5}', "tokenizer_config.json: chat_template is 5"),
    ("special_tokens_map.json", '{"bos_token": 5}', "bos_token is 5, which is not in the vocabulary"),
    ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja is not a text"),
])
def test_a_broken_file_is_named(checkpoints, tmp_path, file, content, complaint):
    folder = tmp_path / "bad"
    shutil.copytree(checkpoints("llama2"), folder)
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LoadError, match=complaint):
        load(folder)


@pytest.mark.parametrize("metadata, complaint", [
    ({"llama.embedding_length": "64"}, f"model.gguf: llama.embedding_length is '64', {WHOLE}"),
    ({"llama.feed_forward_length": mx.array(1.5)}, f"model.gguf: llama.feed_forward_length is 1.5, {WHOLE}"),
    ({"llama.block_count": mx.array(0, mx.uint32)}, f"model.gguf: llama.block_count is 0, {WHOLE}"),
    ({"llama.attention.head_count": mx.array([8, 8, 8], mx.uint32)},
     rf"model.gguf: llama.attention.head_count is \[8, 8, 8\], {WHOLE}"),
    ({"llama.attention.head_count_kv": "8"}, f"model.gguf: llama.attention.head_count_kv is '8', {WHOLE}"),
    ({"llama.attention.key_length": mx.array(7, mx.uint32)},
     "model.gguf: llama.attention.key_length is 7, must be even"),
    ({"llama.context_length": mx.array(-1, mx.int32)}, f"model.gguf: llama.context_length is -1, {WHOLE}"),
    ({"llama.attention.layer_norm_rms_epsilon": "x"},
     "model.gguf: llama.attention.layer_norm_rms_epsilon is 'x', must be a number above 0"),
    ({"llama.rope.freq_base": "x"}, "model.gguf: llama.rope.freq_base is 'x', must be a number above 1"),
    ({"llama.rope.scaling.type": "linear"}, "model.gguf: llama.rope.scaling.factor is missing"),
    ({"llama.rope.scaling.factor": mx.array(-2.0)}, "llama.rope.scaling.factor is -2.0, must be a number above 0"),
    ({"llama.rope.scaling.attn_factor": mx.array(2.0)},
     "model.gguf: llama.rope.scaling.attn_factor is 2.0, which is not supported"),
    ({"llama.rope.dimension_count": mx.array(4, mx.uint32)}, "llama.rope.dimension_count is 4, supported: 8"),
    ({"tokenizer.ggml.tokens": mx.array(5, mx.uint32)}, "tokenizer.ggml.tokens is 5"),
    ({"tokenizer.ggml.token_type": "x"}, "tokenizer.ggml.token_type is 'x'"),
    ({"tokenizer.ggml.merges": mx.array([1, 2], mx.uint32)}, "tokenizer.ggml.merges"),
    ({"tokenizer.ggml.eos_token_id": "x"}, "tokenizer.ggml.eos_token_id is 'x'"),
    ({"general.architecture": mx.array(5, mx.uint32)}, "model_type 5"),
])
def test_metadata_of_a_gguf_file_that_cannot_be_is_named(checkpoints, tmp_path, metadata, complaint):
    from mini_vllm.models.test_network import write_gguf
    file = write_gguf(checkpoints, tmp_path / "model.gguf", **metadata)
    with pytest.raises(LoadError, match=complaint):
        load(file)


def test_layers_are_counted_before_anything_is_made_of_them(checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints("llama2"), tmp_path / "model")
    change_weights(folder, lambda weights: weights.update({"model.layers.999.input_layernorm.weight": mx.zeros(64)}))
    with_fields(folder, "config.json", {"num_hidden_layers": 1000})
    with pytest.raises(LoadError, match="the config has 1000 layers of at least 9 tensors, the files have 31 tensors"):
        load(folder)


def test_an_id_beyond_the_network_is_refused_with_its_text(checkpoints, tmp_path):
    """Load a checkpoint with added tokens that the network lacks, as real ones have for padding; they may not be
    used."""
    folder = shutil.copytree(checkpoints("llama2"), tmp_path / "model")
    with_fields(folder, "tokenizer.json", {"added_tokens": [
        {"id": token_id, "content": "<|endoftext|>" if token_id == 256 else f"<{token_id}>", "single_word": False,
         "lstrip": False, "rstrip": False, "normalized": False, "special": True} for token_id in range(256, 310)]})
    engine = LLM(folder, num_blocks=50).engine
    complaint = "has the token id 300, which the model does not have: it must be at most 299"
    with pytest.raises(ValueError, match=complaint):
        engine.add_request("a<300>")
    with pytest.raises(TokenizerError, match=complaint):
        engine.prompts.read("a<300>")
    assert engine.prompts.read("a<299>").token_ids[1:] == [299]
    with pytest.raises(ValueError, match=complaint):
        engine.add_request("a", SamplingParams(bad_words=["a<300>"]))


def test_what_a_check_finds_is_what_a_load_finds(checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints("llama2"), tmp_path / "model")
    assert isinstance(check(folder), Tokenizer) and load(folder, check(folder)).tokenizer.encode("a")
    (folder / "tokenizer.json").write_text("{}")
    for function in (check, load):
        with pytest.raises(LoadError, match="model: .*tokenizer.json is not a tokenizer"):
            function(folder)


def test_null_stands_for_a_field_that_is_not_there(checkpoints, tmp_path):
    folder = tmp_path / "nulls"
    shutil.copytree(checkpoints("llama2"), folder)
    with_fields(folder, "config.json", dict.fromkeys((
        "head_dim", "num_key_value_heads", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias",
        "tie_word_embeddings", "rope_traditional", "use_sliding_window", "sliding_window", "max_window_layers",
        "layer_types", "hidden_act", "partial_rotary_factor", "quantization", "quantization_config", "eos_token_id")))
    token_ids = prompt_of(20)
    assert np.array_equal(our_logits(load(folder), token_ids, [20]),
                          our_logits(load(checkpoints("llama2")), token_ids, [20]))
