"""The network and the loader against mlx-lm, on the same weights."""

import json
import shutil

import numpy as np
import pytest

from mini_vllm.backend import is_cpu, mx, nn
from mini_vllm.benchmark.gpu.agreement import compare
from mini_vllm.conftest import ARCHITECTURES, write_checkpoint
from mini_vllm.llm import LLM
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.catalogue import find_model
from mini_vllm.models.config import LoadError
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import load
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
