"""The step in C against MLX's operations, on networks of many shapes."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from mlx.utils import tree_flatten

from mini_vllm.attention import paged_attention
from mini_vllm.backend import mx, nn
from mini_vllm.conftest import ARCHITECTURES, SHAPE, examples
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.random_model import make_random
from mini_vllm.native import build
from mini_vllm.native.build import problem

pytestmark = pytest.mark.skipif(bool(problem()), reason=problem())
ODD = dict(hidden_size=72, intermediate_size=100, vocab_size=301, num_attention_heads=6, num_key_value_heads=2)
SHAPES = {**ARCHITECTURES,
          "qwen2-window": dict(model_type="qwen2", use_sliding_window=True, sliding_window=13, max_window_layers=1),
          "odd sizes": dict(model_type="llama", head_dim=20, attention_bias=True, mlp_bias=True, **ODD),
          "one KV head": dict(model_type="llama", num_attention_heads=8, num_key_value_heads=1, head_dim=6)}


@cache
def network(name, bits=32):
    model = make_random({**SHAPE, **SHAPES[name]}).model
    if bits < 32:
        quantize(model, bits)
    return model


def quantize(model, bits):
    nn.quantize(model, group_size=32, bits=bits, class_predicate=lambda _, module: hasattr(module, "to_quantized")
                and module.weight.shape[-1] % 32 == 0)


def compare(model, block_size, seed, num_steps=6, tolerance=1e-4):
    """Compute random steps of four requests by both; slots that hold nothing are NaN in the native cache."""
    from mini_vllm.native.runner import NativeRunner
    random = np.random.default_rng(seed)
    num_blocks = 4 * -(-160 // block_size) + 1
    plain = ModelRunner(model, num_blocks, block_size, paged_attention)
    native = NativeRunner(model, num_blocks, block_size)
    for blocks in native.cache.blocks:
        blocks[:] = np.nan
    tables = random.permutation(np.arange(1, num_blocks)).reshape(4, -1).tolist()
    lengths = [0] * 4
    for _ in range(num_steps):
        chosen = sorted(random.choice(4, random.integers(1, 5), replace=False).tolist())
        counts = {request: int(random.choice([1, 1, 2, random.integers(3, 25)])) for request in chosen}
        steps = []
        for request in sorted(chosen, key=lambda request: counts[request] > 1):
            lengths[request] += counts[request]
            steps.append(RequestStep(random.integers(0, 256, counts[request]).tolist(), tables[request],
                                     lengths[request], bool(random.random() < 0.7), bool(random.random() < 0.2)))
        expected, got = plain.step(steps), native.step(steps)
        assert got.shape == expected.shape and got.dtype == mx.float32
        if got.size:
            assert np.abs(np.array(got) - np.array(expected)).max() < tolerance, f"seed {seed}, block size {block_size}"


@pytest.mark.parametrize("name", SHAPES)
def test_logits_agree(name):
    for seed in range(examples(4)):
        compare(network(name), [4, 5, 16, 32, 33, 64][seed % 6], seed)


@pytest.mark.parametrize("bits", [4, 8, 3, 2])
def test_packed_weights_give_the_same_logits(bits):
    for seed in range(examples(3)):
        compare(network("qwen3", bits), 16, seed)


def test_where_it_cannot_be_used_the_plain_step_is(monkeypatch):
    from mini_vllm.native import runner
    config = network("llama2").config
    monkeypatch.delenv("MINI_VLLM_NATIVE", raising=False)
    assert runner.why_not(config, 32, True) == ""
    assert runner.why_not(config, 32, None) == "not switched on by MINI_VLLM_NATIVE=1"
    assert runner.why_not(config, 32, False) == "switched off by native=False"
    assert runner.why_not(config, 129, True) == "block_size: 129, at most 128 are supported"
    monkeypatch.setenv("MINI_VLLM_NATIVE", "1")
    assert runner.why_not(config, 32, None) == "" and "switched off" in runner.why_not(config, 32, False)
    monkeypatch.setenv("MINI_VLLM_NATIVE", "yes")
    with pytest.raises(ValueError, match="MINI_VLLM_NATIVE is 'yes', must be 0 or 1"):
        runner.why_not(config, 32, None)


def test_weights_are_held_once_and_a_network_that_computes_itself_takes_them_back():
    from mini_vllm.native.runner import NativeRunner
    for bits in (32, 4, 3):
        model = make_random({**SHAPE, **SHAPES["qwen3"]}).model
        if bits < 32:
            quantize(model, bits)
        before = dict(tree_flatten(model.parameters()))
        copies = {name: np.array(array) for name, array in before.items()}
        step = RequestStep(list(range(30)), [1, 2], 30, True)
        native = NativeRunner(model, 4, 16)
        expected = np.array(native.step([step]))
        layer = model.model.layers[1]
        sizes = [module.weight.size for module in (layer.self_attn.qkv_proj, layer.self_attn.o_proj)]
        assert sizes == [0, 0] if bits != 3 else all(sizes), "three bits are expanded, and cannot be packed again"
        assert NativeRunner(model, 4, 16)._weights is native._weights
        after = dict(tree_flatten(model.parameters()))
        assert {name: array.dtype for name, array in after.items()} == {name: a.dtype for name, a in before.items()}
        assert all(np.array_equal(copies[name], np.array(array)) for name, array in after.items())
        assert np.abs(np.array(ModelRunner(model, 4, 16, paged_attention).step([step])) - expected).max() < 1e-4
        assert np.array_equal(np.array(native.step([step])), expected)


# ---- the library


@pytest.fixture
def builds(monkeypatch, tmp_path):
    """Return the folder for libraries, and a function that builds as a new process would."""
    monkeypatch.setattr(build, "_cache_folder", lambda: tmp_path / "a" / "libraries")
    return tmp_path / "a" / "libraries", build._built.__wrapped__


def test_a_library_is_compiled_once_per_source_flags_and_processor(builds, monkeypatch):
    folder, built = builds
    assert not isinstance(built(), str)
    (first,) = folder.iterdir()
    changed = first.stat().st_mtime_ns
    assert not isinstance(built(), str) and first.stat().st_mtime_ns == changed
    monkeypatch.setattr(build, "_processor", lambda: "another one")
    assert not isinstance(built(), str) and len(list(folder.iterdir())) == 2


def test_those_who_compile_at_the_same_time_do_not_disturb_each_other(builds):
    folder, built = builds
    with ThreadPoolExecutor(3) as pool:
        assert not any(isinstance(found, str) for found in pool.map(lambda _: built(), range(3)))
    assert [file.suffix for file in folder.iterdir()] == [".so"]


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_code_is_never_loaded_from_a_folder_that_others_may_write_to(builds, mode):
    folder, built = builds
    folder.mkdir(parents=True)
    folder.parent.chmod(mode)
    assert not isinstance(built(), str), "it is compiled for this process alone"
    assert list(folder.iterdir()) == []


def test_without_a_folder_the_library_is_compiled_for_this_process(builds):
    folder, built = builds
    folder.parent.write_text("a file, so that no folder can be made")
    assert not isinstance(built(), str)


@pytest.mark.parametrize("script, why", [("exit 1", "it says nothing"), ("echo no such chip >&2; exit 1", "such chip")])
def test_a_compiler_that_fails_is_told_of_in_one_line(builds, monkeypatch, tmp_path, capfd, script, why):
    folder, built = builds
    assert not isinstance(built(), str)
    (library,) = folder.iterdir()
    library.unlink()
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(build.shutil, "which", lambda name: str(compiler))
    assert why in built()
    assert list(folder.iterdir()) == []
    told = capfd.readouterr().err
    assert told.count("\n") == 1 and why in told and "Continuing without it" in told


def test_without_a_compiler_nothing_is_told(builds, monkeypatch, capfd):
    _, built = builds
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert built() == "no C compiler was found (cc, gcc, clang)" and capfd.readouterr().err == ""
