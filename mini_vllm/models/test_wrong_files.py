"""Checkpoint folders that cannot be loaded: the error names the file, and the field or tensor."""

import json
import shutil
import struct

import pytest

from mini_vllm.backend import mx
from mini_vllm.conftest import ARCHITECTURES
from mini_vllm.llm import LLM
from mini_vllm.models.config import LoadError
from mini_vllm.models.loader import check, load
from mini_vllm.models.tokenizer import Tokenizer, TokenizerError
from mini_vllm.request import SamplingParams


@pytest.fixture
def folder(checkpoints, tmp_path):
    """Return the folder of a valid model of 300 tokens that the test may damage."""
    return shutil.copytree(checkpoints("llama2", hidden_size=64), tmp_path / "model")


def change_fields(folder, file="config.json", **fields):
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **fields}))
    return folder


def change_weights(folder, change):
    weights = mx.load(str(folder / "model.safetensors"))
    mx.eval(weights)
    change(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


# ---- fields of config.json


F, S = "full_attention", "sliding_attention"
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
LLAMA3 = ARCHITECTURES["llama3"]["rope_scaling"]
WHOLE = "must be a whole number, at least 1"
#: Fields of config.json of a Llama with three layers → the error message
IMPOSSIBLE = [
    ({"model_type": ["llama"]}, r"model_type \['llama'\]"),
    ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*supported: llama, mistral"),
    *(({field: "64"}, f"config.json: {field} is '64', {WHOLE}")
      for field in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                    "num_key_value_heads", "head_dim", "max_position_embeddings")),
    *(({"hidden_size": value}, f"config.json: hidden_size is {value}, {WHOLE}") for value in (64.0, 0, -1, True)),
    *(({field: None}, f"config.json: {field} is missing, {WHOLE}")
      for field in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")),
    ({"num_attention_heads": 6}, "num_attention_heads is 6, must be a multiple of num_key_value_heads"),
    ({"head_dim": 7}, "config.json: head_dim is 7, must be even"),
    ({"hidden_size": 24, "head_dim": None}, "config.json: head_dim is 3, must be even"),
    ({"hidden_size": 5, "head_dim": None}, "config.json: head_dim is 1, must be even"),
    ({"num_hidden_layers": 10**9}, "the config has 1000000000 layers of at least 9 tensors"),
    ({"hidden_size": 10**12}, r"embed_tokens.weight has the shape \(300, 64\) .* expected \(300, 1000000000000\)"),
    ({"rms_norm_eps": None}, "config.json: rms_norm_eps is missing, must be a number above 0"),
    *(({"rms_norm_eps": value}, "config.json: rms_norm_eps is .*, must be a number above 0")
      for value in ("1e-5", -1.0, 0, float("nan"), float("inf"), 10**400, True, [1e-5])),
    ({"rope_theta": 1}, "config.json: rope_theta is 1, must be a number above 1"),
    ({"rope_theta": None, "rope_parameters": {"rope_theta": "x"}}, "config.json: rope_parameters.rope_theta is 'x'"),
    *(({field: 1}, f"config.json: {field} is 1, must be true or false")
      for field in ("attention_bias", "mlp_bias", "tie_word_embeddings", "rope_traditional", "use_sliding_window")),
    ({"hidden_act": "gelu"}, "config.json: hidden_act is 'gelu', supported: silu"),
    ({"partial_rotary_factor": 0.5}, "config.json: partial_rotary_factor is 0.5, supported: 1.0"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}},
     "config.json: rope_parameters.partial_rotary_factor is 0.5, supported: 1.0"),
    ({"rope_scaling": "yarn"}, "config.json: rope_scaling is 'yarn', must be an object"),
    ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": YARN},
     "config.json: rope_parameters.rope_type is 'default', but rope_scaling.rope_type is 'yarn'"),
    ({"rope_parameters": {**YARN, "factor": 8.0}, "rope_scaling": YARN},
     "config.json: rope_parameters.factor is 8.0, but rope_scaling.factor is 4.0"),
    ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e6}},
     "config.json: rope_parameters.rope_theta is 1000000.0, but rope_theta is 500000.0"),
    ({"rope_theta": None, "rope_parameters": {**YARN, "rope_theta": 1e6}, "rope_scaling": YARN},
     "config.json: rope_parameters.rope_theta is 1000000.0, but rope_scaling.rope_theta is None"),
    ({"rope_scaling": {**YARN, "type": "linear"}},
     "config.json: rope_scaling.rope_type is 'yarn', but rope_scaling.type is 'linear'"),
    ({"rope_parameters": {F: {"rope_theta": 1e4}}}, "config.json: rope_parameters.full_attention"),
    ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope scaling .* is not supported"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}},
     "rope scaling 'dynamic' is not supported; supported: default, linear, llama3, yarn"),
    *(({"rope_scaling": {"rope_type": kind}}, "config.json: rope_scaling.factor is missing, must be a number above 0")
      for kind in ("linear", "llama3", "yarn")),
    *(({"rope_scaling": {**rope, field: -1}}, f"config.json: rope_scaling.{field} is -1, must be")
      for rope, fields in ((LLAMA3, ("factor", "low_freq_factor", "high_freq_factor",
                                     "original_max_position_embeddings")),
                           (YARN, ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale",
                                   "mscale_all_dim", "attention_factor")))
      for field in fields),
    ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}},
     "config.json: rope_scaling.high_freq_factor is 1.0, must be a number above 1.0"),
    ({"rope_scaling": {**YARN, "truncate": False}}, "config.json: rope_scaling.truncate is False, supported: true"),
    ({"model_type": "mistral", "sliding_window": 0}, f"config.json: sliding_window is 0, {WHOLE}"),
    *(({"layer_types": types}, "config.json: layer_types is .*, must be a list of 3 entries, one per layer: full_atten")
      for types in ("full_attention", [F, F], [F, F, "linear_attention"])),
    ({"layer_types": [F, F, S]}, "layer_types is .*, but a llama network with sliding_window None has windows in no"),
    ({"use_sliding_window": True, "sliding_window": 5}, "config.json: use_sliding_window is True, but a llama network"),
    ({"model_type": "qwen2", "sliding_window": 5, "layer_types": [F, F, S]}, r"no layers \(use_sliding_window is Fal"),
    ({"model_type": "mistral", "sliding_window": 5, "layer_types": [F, S, S]},
     "config.json: layer_types is .* a mistral network with sliding_window 5 has windows in all layers"),
    ({"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 5, "max_window_layers": -1},
     "config.json: max_window_layers is -1, must be a whole number, at least 0"),
    ({"quantization_config": {"quant_method": "awq"}},
     "quantization_config.quant_method is 'awq', supported: the format that"),
]


@pytest.mark.parametrize("fields, complaint", IMPOSSIBLE, ids=[json.dumps(fields)[:70] for fields, _ in IMPOSSIBLE])
def test_a_field_of_config_json_that_cannot_be_is_named(folder, fields, complaint):
    with pytest.raises(LoadError, match=complaint):
        load(change_fields(folder, **fields))


# ---- files


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("file, content, complaint", [
    *((file, "[1, 2]", rf"{file} holds \[1, 2\], must be a JSON object")
      for file in ("config.json", INDEX, "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")),
    *(("config.json", content, "config.json.*not JSON") for content in ("{", "", "[" * 100_000, b"\xff\xfe\x00")),
    ("tokenizer.json", "{}", "tokenizer.json is not a tokenizer"),
    *((INDEX, content, rf"{INDEX}: weight_map is {shown}, must give the file of each tensor") for content, shown in (
        ("{}", "None"), ('{"weight_map": ["a"]}', r"\['a'\]"), ('{"weight_map": {"a": 5}}', "{'a': 5}"))),
    (INDEX, '{"weight_map": {}}', "has no .*safetensors files"),
    (INDEX, '{"weight_map": {"a": "b"}}', f"{INDEX} names b, which is missing"),
    ("generation_config.json", '{"eos_token_id": [2, -1]}', "generation_config.json: eos_token_id is"),
    ("generation_config.json", '{"eos_token_id": [2, true]}', "generation_config.json: eos_token_id is"),
    ("tokenizer_config.json", '{"eos_token": 5}', "eos_token is 5, which is not in the vocabulary"),
    ("tokenizer_config.json", '{"eos_token": "<nowhere>"}', "eos_token is '<nowhere>', which is not in the vocabulary"),
    ("tokenizer_config.json", '{"chat_template": ["x"]}', r"tokenizer_config.json: chat_template is \['x'\]"),
    ("special_tokens_map.json", '{"bos_token": {"content": ["a"]}}', "bos_token is .* not in the vocabulary"),
    ("tokenizer_config.json", '{"chat_template": 5}', "tokenizer_config.json: chat_template is 5"),
    ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja is not a text"),
    ("model.safetensors", b"", "model.safetensors: truncated: 0 bytes"),
    ("model.safetensors", struct.pack("<Q", 2) + b"xx", "header is not that of a safetensors file"),
])
def test_a_broken_file_is_named(folder, file, content, complaint):
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LoadError, match=complaint):
        load(folder)


@pytest.mark.parametrize("file, complaint", [
    ("config.json", "has no config.json"), ("tokenizer.json", "tokenizer.json is missing"),
    ("model.safetensors", r"has no \*.safetensors files"),
])
def test_a_missing_file_is_named(folder, file, complaint):
    (folder / file).unlink()
    with pytest.raises(LoadError, match=complaint):
        load(folder)


@pytest.mark.parametrize("keep", [4, 100, 20_000, -1])
def test_a_truncated_safetensors_file_is_refused(folder, keep):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:keep])
    with pytest.raises(LoadError, match=r"model.safetensors: truncated: \d+ bytes"):
        load(folder)
    file.write_bytes(data + b"x")
    with pytest.raises(LoadError, match="too long"):
        load(folder)


@pytest.mark.parametrize("entry", [
    {"dtype": "F4", "shape": [2], "data_offsets": [0, 4]}, {"dtype": "F32", "shape": [1], "data_offsets": ["0", "x"]},
    {"dtype": "F32", "shape": [1], "data_offsets": 4}, {"dtype": "F32", "shape": [7], "data_offsets": [0, 4]},
])
def test_a_header_of_a_safetensors_file_that_cannot_be_is_refused(folder, entry):
    header = json.dumps({"a": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(LoadError, match="model.safetensors: "):
        load(folder)


# ---- tensors


UP, V = "model.layers.1.mlp.up_proj", "model.layers.1.self_attn.v_proj"
#: A 4-bit matrix of 64 rows and columns in groups of 32
PACKED = {f"{V}.weight": mx.zeros((64, 8), mx.uint32), f"{V}.scales": mx.zeros((64, 2)),
          f"{V}.biases": mx.zeros((64, 2))}


@pytest.mark.parametrize("tensors, complaint", [
    ({f"{UP}.weight": None}, f"the tensor {UP}.weight is missing"),
    ({f"{V}.weight": mx.zeros((3, 64))}, rf"{V}.weight has the shape \(3, 64\) .* expected \(64, 64\)"),
    ({f"{V}.weight": mx.zeros((64, 64), mx.int32)}, rf"{V}.weight has the shape .* and type int32, expected .* floats"),
    ({"model.layers.0.router.weight": mx.zeros(2)}, "model.layers.0.router.weight does not belong to a llama network"),
    ({"model.norm.scales": mx.zeros(64)}, "model.norm.scales does not belong"),
    ({**PACKED, f"{V}.biases": None}, r"v_proj.scales \(64, 2\) of float32 are not a matrix of the shape \(64, 64\)"),
    ({**PACKED, f"{V}.scales": None}, r"v_proj.weight has the shape \(64, 8\) and type uint32, expected \(64, 64\)"),
    ({**PACKED, f"{V}.biases": mx.zeros((64, 3))}, r"v_proj.biases \(64, 3\) of float32 are not a matrix"),
    ({**PACKED, f"{V}.scales": mx.zeros((60, 2))}, r"v_proj.scales \(60, 2\) of float32, "),
    ({**PACKED, f"{V}.scales": mx.zeros((64, 3)), f"{V}.biases": mx.zeros((64, 3))}, r"v_proj.scales \(64, 3\) of flo"),
    ({**PACKED, f"{V}.scales": mx.zeros((64, 2), mx.uint8)}, r"v_proj.scales \(64, 2\) of uint8, "),
    ({**PACKED, f"{V}.weight": mx.zeros((64, 7), mx.uint32)}, r"v_proj.weight \(64, 7\) of uint32, "),
    ({**PACKED, f"{V}.weight": mx.zeros((64, 64))}, r"v_proj.weight \(64, 64\) of float32, "),
])
def test_a_tensor_that_does_not_fit_is_named(folder, tensors, complaint):
    change_weights(folder, lambda weights: [weights.pop(name, None) if array is None else weights.update({name: array})
                                            for name, array in tensors.items()])
    with pytest.raises(LoadError, match=complaint):
        load(folder)


def test_rotary_frequencies_of_old_checkpoints_are_left_out(folder):
    change_weights(folder, lambda weights: weights.update({
        "model.layers.0.self_attn.rotary_emb.inv_freq": mx.ones(4)}))
    assert load(folder).config.num_layers == 3


def test_tied_weights_that_differ_are_refused(folder):
    change_fields(folder, tie_word_embeddings=True)
    with pytest.raises(LoadError, match="lm_head.weight differs from model.embed_tokens.weight, but tie_word_emb"):
        load(folder)
    change_weights(folder, lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"]}))
    assert load(folder).config.tie_word_embeddings


def test_layers_are_counted_before_anything_is_made_of_them(folder):
    change_weights(folder, lambda weights: weights.update({"model.layers.999.input_layernorm.weight": mx.zeros(64)}))
    change_fields(folder, num_hidden_layers=1000)
    with pytest.raises(LoadError, match="the config has 1000 layers of at least 9 tensors, the files have 31 tensors"):
        load(folder)


def test_an_id_beyond_the_network_is_refused_with_its_text(folder):
    """Load a checkpoint with added tokens that the network lacks, as real ones have for padding; they may not be
    used."""
    change_fields(folder, "tokenizer.json", added_tokens=[
        {"id": token_id, "content": "<|endoftext|>" if token_id == 256 else f"<{token_id}>", "single_word": False,
         "lstrip": False, "rstrip": False, "normalized": False, "special": True} for token_id in range(256, 310)])
    engine = LLM(folder, num_blocks=50).engine
    complaint = "has the token id 300, which the model does not have: it must be at most 299"
    with pytest.raises(ValueError, match=complaint):
        engine.add_request("a<300>")
    with pytest.raises(TokenizerError, match=complaint):
        engine.prompts.read("a<300>")
    assert engine.prompts.read("a<299>").token_ids[1:] == [299]
    with pytest.raises(ValueError, match=complaint):
        engine.add_request("a", SamplingParams(bad_words=["a<300>"]))


def test_what_a_check_finds_is_what_a_load_finds(folder):
    assert isinstance(check(folder), Tokenizer) and load(folder, check(folder)).tokenizer.encode("a")
    (folder / "tokenizer.json").write_text("{}")
    for function in (check, load):
        with pytest.raises(LoadError, match="model: .*tokenizer.json is not a tokenizer"):
            function(folder)
