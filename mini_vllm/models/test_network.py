"""The network and the loader against mlx-lm, on the same weights."""

import json
import shutil

import numpy as np
import pytest

from mini_vllm.backend import is_cpu, mx, nn
from mini_vllm.benchmark.gpu.agreement import compare
from mini_vllm.conftest import ARCHITECTURES, LLAMA3_ROPE, checkpoint_width, write_checkpoint
from mini_vllm.llm import LLM
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.catalogue import find_model
from mini_vllm.models.config import LoadError, ModelConfig, UnsupportedModel
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import load
from mini_vllm.models.random_model import write_byte_tokenizer
from mini_vllm.request import SamplingParams

mlx_lm_utils = pytest.importorskip("mlx_lm.utils", reason="mlx-lm is the oracle: pip install mlx-lm")


def oracle(folder):
    return mlx_lm_utils.load_model(folder)[0]


def check_greedy(model, prompt, token_ids):
    """Check that each of ``token_ids`` is the likeliest by mlx-lm after the prompt and the tokens before it."""
    logits = model(mx.array([[*prompt, *token_ids[:-1]]]))[0, len(prompt) - 1:]
    assert token_ids == mx.argmax(logits, axis=-1).tolist()


def random_prompt(num_tokens, seed=0, vocab_size=256):
    return np.random.default_rng(seed).integers(0, vocab_size, num_tokens).tolist()


def greedy(folder, prompt, num_tokens, **settings):
    llm = LLM(folder, num_blocks=40, block_size=8, max_num_seqs=4, **settings)
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    return llm.generate(prompt, params)[0].token_ids


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_agree_with_the_oracle_whole_and_in_pieces(checkpoints, name):
    folder = checkpoints(name)
    tokens = random_prompt(40)
    expected = np.array(oracle(folder)(mx.array([tokens]))[0])
    loaded = load(folder)
    for pieces in ([40], [33, 7], [1] * 17 + [23], [8, 8, 1, 23]):
        runner = ModelRunner(loaded.model, num_blocks=12, block_size=8)
        table, done = [9, 3, 7, 1, 11, 5], 0
        for n in pieces:
            done += n
            logits = runner.step([RequestStep(tokens[done - n:done], table, done, True)])
            difference = np.abs(np.array(logits[0]) - expected[done - 1]).max()
            assert difference < 1e-4, f"{name} in pieces {pieces}: logits at {done - 1} differ by {difference}"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_32_greedy_tokens_are_the_oracles(checkpoints, name):
    folder, prompt = checkpoints(name), random_prompt(21, seed=1)
    check_greedy(oracle(folder), prompt, greedy(folder, prompt, 32))


@pytest.mark.parametrize("bits, group_size", [(4, 32), (4, 64), (8, 32)])
def test_a_quantised_checkpoint_gives_the_oracles_tokens(checkpoints, tmp_path, bits, group_size):
    from mlx.utils import tree_flatten
    folder = tmp_path / "quantised"
    shutil.copytree(checkpoints("llama3"), folder)
    model = oracle(folder)
    nn.quantize(model, group_size=group_size, bits=bits,
                class_predicate=lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % group_size == 0)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {"group_size": group_size, "bits": bits}
    (folder / "config.json").write_text(json.dumps(config))
    prompt = random_prompt(21, seed=2)
    check_greedy(oracle(folder), prompt, greedy(folder, prompt, 24))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_is_loaded_as_the_device_likes_it(checkpoints, tmp_path, dtype):
    folder = tmp_path / "half"
    shutil.copytree(checkpoints("llama2"), folder)
    weights = mx.load(str(folder / "model.safetensors"))
    mx.save_safetensors(str(folder / "model.safetensors"), {n: a.astype(dtype) for n, a in weights.items()})
    model, prompt = oracle(folder), random_prompt(9)
    tokens = greedy(folder, prompt, 24)
    if is_cpu():
        assert load(folder).model.model.norm.weight.dtype == mx.float32
        model.set_dtype(mx.float32)
        check_greedy(model, prompt, tokens)
    else:  # a different order of sums gives other numbers, and occasionally another token
        assert load(folder).model.model.norm.weight.dtype == dtype
        assert compare(model, [prompt], [tokens]).is_good


def test_a_checkpoint_in_several_files_is_the_same(tmp_path):
    one = write_checkpoint(tmp_path / "one", model_type="llama")
    many = write_checkpoint(tmp_path / "many", shards=3, model_type="llama")
    prompt = random_prompt(9)
    assert greedy(one, prompt, 16) == greedy(many, prompt, 16)
    (many / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(LoadError, match="index.json names model-00002-of-00003.safetensors, which is missing"):
        load(many)


@pytest.mark.parametrize("name", ["llama-interleaved", "mistral", "qwen3"])
def test_what_we_export_loads_in_mlx_lm(checkpoints, tmp_path, name):
    loaded = load(checkpoints(name))
    export_folder(loaded, tmp_path)
    tokens = random_prompt(20)
    ours = oracle(tmp_path)(mx.array([tokens]))
    assert mx.abs(ours - oracle(checkpoints(name))(mx.array([tokens]))).max().item() < 1e-4


def test_output_weights_missing_from_the_config_are_tied_if_there_are_none(tmp_path):
    folder = write_checkpoint(tmp_path / "tied", model_type="llama", tie_word_embeddings=True)
    config = json.loads((folder / "config.json").read_text())
    del config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).config.tie_word_embeddings is True


# ---- models that cannot be loaded


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(LoadError, match="has no config.json"):
        load(tmp_path)


def test_an_unsupported_architecture_is_named_with_the_supported_ones(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}))
    with pytest.raises(LoadError, match=r"MambaForCausalLM.*supported: llama, mistral, qwen2, qwen3"):
        load(tmp_path)


@pytest.mark.parametrize("change, complaint", [
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0, must be a whole number, at least 1"),
    ({"vocab_size": None}, "vocab_size is missing"),
    ({"num_attention_heads": 6, "head_dim": 8}, "num_attention_heads is 6, must be a multiple of num_key_value_heads"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "rope scaling 'dynamic' is not supported"),
])
def test_a_config_that_cannot_be_is_refused_by_its_field(checkpoints, tmp_path, change, complaint):
    folder = tmp_path / "bad"
    shutil.copytree(checkpoints("llama2"), folder)
    config = {**json.loads((folder / "config.json").read_text()), **change}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match=complaint):
        load(folder)


def test_a_config_that_is_not_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LoadError, match="config.json: not JSON"):
        load(tmp_path)


def damaged(checkpoints, tmp_path, change):
    folder = tmp_path / "damaged"
    shutil.copytree(checkpoints("llama2"), folder)
    weights = mx.load(str(folder / "model.safetensors"))
    mx.eval(weights)
    change(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def test_a_missing_tensor_is_named(checkpoints, tmp_path):
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(LoadError, match=f"the tensor {name} is missing"):
        load(damaged(checkpoints, tmp_path, lambda weights: weights.pop(name)))


def test_a_wrongly_shaped_tensor_is_named_with_both_shapes(checkpoints, tmp_path):
    name = "model.layers.2.self_attn.k_proj.weight"
    width = checkpoint_width()
    with pytest.raises(LoadError, match=rf"{name} has the shape \(3, 64\) .* expected \({width}, {width}\)"):
        load(damaged(checkpoints, tmp_path, lambda weights: weights.update({name: mx.zeros((3, 64))})))


def test_an_unknown_tensor_is_named(checkpoints, tmp_path):
    with pytest.raises(LoadError, match="the tensor model.layers.0.router.weight does not belong to a llama network"):
        load(damaged(checkpoints, tmp_path, lambda w: w.update({"model.layers.0.router.weight": mx.zeros(2)})))


@pytest.mark.parametrize("keep", [4, 100, 20_000, -1])
def test_a_truncated_safetensors_file_is_refused(checkpoints, tmp_path, keep):
    folder = tmp_path / "short"
    shutil.copytree(checkpoints("llama2"), folder)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:keep])
    with pytest.raises(LoadError, match=r"model.safetensors: truncated: \d+ bytes"):
        load(folder)
    file.write_bytes(data + b"x")
    with pytest.raises(LoadError, match="too long"):
        load(folder)


def test_a_file_that_is_not_safetensors_is_refused(checkpoints, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(checkpoints("llama2"), folder)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"xx")
    with pytest.raises(LoadError, match="not that of a safetensors file"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(LoadError, match=r"no \*.safetensors files"):
        load(folder)


def test_a_folder_without_tokenizer_is_refused(checkpoints, tmp_path):
    folder = tmp_path / "mute"
    shutil.copytree(checkpoints("llama2"), folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match="tokenizer.json"):
        load(folder)


def test_names_that_stand_for_nothing_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path))
    with pytest.raises(LoadError, match="`mini-vllm pull smollm2` downloads it"):
        find_model("smollm2")
    with pytest.raises(LoadError, match="there is no model 'nonsense'"):
        find_model("nonsense")
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(LoadError, match="neither a folder nor a .gguf file"):
        find_model(tmp_path / "file.txt")


def test_a_hub_name_without_a_network_says_so(monkeypatch):
    import huggingface_hub

    def fail(*args, **kwargs):
        raise OSError("network is unreachable")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(LoadError, match="the hub's model could not be downloaded: network is unreachable"):
        find_model("some-org/some-model")


def test_a_hub_name_loads_what_the_hub_client_gives(checkpoints, monkeypatch):
    import huggingface_hub
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, allow_patterns: str(checkpoints("llama2")))
    assert load("some-org/some-model").config.num_layers == 3


# ---- GGUF


def write_gguf(checkpoints, path, tensors=None, **metadata):
    """Write our random Llama as a GGUF file, with the names, interleaved rows and metadata of such files."""
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    weights, arrays = mx.load(str(checkpoints("llama2") / "model.safetensors")), {}
    width = weights["model.norm.weight"].size
    for name, array in weights.items():
        if ".q_proj" in name or ".k_proj" in name:
            array = mx.swapaxes(array.reshape(-1, 2, width // 16, width), 1, 2).reshape(array.shape)
        name = name.replace("model.layers.", "blk.")
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        arrays[name] = array
    from tokenizers import pre_tokenizers
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>", "ab"]
    tokens += [f"<unused-{i}>" for i in range(len(tokens), 300)]
    types = [1] * 256 + [3, 1] + [5] * 42
    full = {"general.architecture": "llama", "llama.embedding_length": mx.array(width, mx.uint32),
            "llama.feed_forward_length": mx.array(112, mx.uint32), "llama.block_count": mx.array(3, mx.uint32),
            "llama.attention.head_count": mx.array(8, mx.uint32),
            "llama.attention.head_count_kv": mx.array(8, mx.uint32), "llama.context_length": mx.array(512, mx.uint32),
            "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5), "llama.rope.freq_base": mx.array(10000.0),
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": mx.array(types, mx.int32), "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.eos_token_id": mx.array(256, mx.uint32), **metadata}
    mx.save_gguf(str(path), {**arrays, **(tensors or {})}, full)
    return path


def logits_of(path, num_tokens=40):
    model = load(path).model
    return np.array(ModelRunner(model, 12, 8).step([RequestStep(random_prompt(num_tokens), [1, 2, 3, 4, 5, 6],
                                                                num_tokens, True)])[0])


def scaled_folder(checkpoints, folder, rope_scaling):
    shutil.copytree(checkpoints("llama2"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_scaling": rope_scaling}))
    return folder


def test_a_gguf_file_gives_the_same_tokens_as_the_folder(checkpoints, tmp_path):
    file, prompt = write_gguf(checkpoints, tmp_path / "model.gguf"), random_prompt(12)
    assert greedy(file, prompt, 32) == greedy(checkpoints("llama2"), prompt, 32)


def test_rope_factors_of_a_gguf_file_are_those_of_llama3_scaling(checkpoints, tmp_path):
    """Write the tensor as converters do for Llama 3.1 and later: what each pair's frequency is divided by."""
    width, factors = checkpoint_width() // 8, []
    for pair in range(width // 2):
        num_turns = LLAMA3_ROPE["original_max_position_embeddings"] * 10000.0 ** (-2 * pair / width) / (2 * np.pi)
        share = np.clip((num_turns - 1.0) / (4.0 - 1.0), 0, 1)  # low_freq_factor, high_freq_factor
        factors.append(1 / ((1 - share) / LLAMA3_ROPE["factor"] + share))
    assert min(factors) == 1 < max(factors)
    file = write_gguf(checkpoints, tmp_path / "model.gguf", {"rope_freqs.weight": mx.array(factors, mx.float32)})
    expected = logits_of(scaled_folder(checkpoints, tmp_path / "folder", LLAMA3_ROPE))
    assert np.abs(logits_of(file) - expected).max() < 1e-4
    assert np.abs(logits_of(checkpoints("llama2")) - expected).max() > 0.1
    with pytest.raises(LoadError, match="model.gguf divides its rotary frequencies, which a config.json cannot say"):
        export_folder(load(file), tmp_path / "exported")
    for wrong in (factors[1:], [0.0, *factors[1:]]):
        write_gguf(checkpoints, file, {"rope_freqs.weight": mx.array(wrong, mx.float32)})
        with pytest.raises(LoadError, match=rf"rope_freqs.weight must have {width // 2} numbers above 0"):
            load(file)


def test_a_factor_without_a_type_scales_linearly_as_in_llama_cpp(checkpoints, tmp_path):
    file = write_gguf(checkpoints, tmp_path / "model.gguf", **{"llama.rope.scaling.factor": mx.array(4.0)})
    folder = scaled_folder(checkpoints, tmp_path / "folder", {"rope_type": "linear", "factor": 4.0})
    assert np.abs(logits_of(file) - logits_of(folder)).max() < 1e-4


def test_a_truncated_or_foreign_gguf_is_refused(checkpoints, tmp_path):
    file = write_gguf(checkpoints, tmp_path / "model.gguf")
    data = file.read_bytes()
    for keep in (100, len(data) // 2, len(data) - 1000):
        file.write_bytes(data[:keep])
        with pytest.raises(LoadError, match=r"model.gguf: "):
            load(file)
    file.write_bytes(b"not a gguf file at all")
    with pytest.raises(LoadError, match=r"model.gguf: "):
        load(file)
    write_gguf(checkpoints, file, **{"general.architecture": "bert"})
    with pytest.raises(LoadError, match="'bert'"):
        load(file)


def test_config_classes_speak_for_themselves():
    with pytest.raises(UnsupportedModel, match="'gemma'"):
        ModelConfig.from_dict({"model_type": "gemma"})
    config = ModelConfig.from_dict({"model_type": "mistral", "vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 1,
                                    "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
                                    "sliding_window": 64, "max_position_embeddings": 999})
    assert (config.max_position_embeddings, config.head_dim, config.num_kv_heads) == (999, 4, 2)
    assert (config.window(0), config.window(1)) == (64, None)


def test_the_byte_tokenizer_of_these_tests_round_trips(tmp_path):
    write_byte_tokenizer(tmp_path)
    from mini_vllm.models.folder import tokenizer_from_folder
    tokenizer = tokenizer_from_folder(tmp_path)
    assert tokenizer.decode(tokenizer.encode("Zoë: 日本 🦊")) == "Zoë: 日本 🦊"
