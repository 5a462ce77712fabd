"""The step in C against MLX's operations, on networks of many shapes."""

import platform
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from mini_vllm.attention import paged_attention
from mini_vllm.backend import mx, nn
from mini_vllm.conftest import ARCHITECTURES, SHAPE, examples
from mini_vllm.logit_rules import SamplerRow, make_key
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.network import SideBySide
from mini_vllm.models.random_model import make_random
from mini_vllm.native import build
from mini_vllm.native.build import problem
from mini_vllm.native.sampler import NativeSampler
from mini_vllm.request import SamplingParams
from mini_vllm.sampler import Sampler

pytestmark = pytest.mark.skipif(bool(problem()), reason=problem())
ODD = dict(hidden_size=72, intermediate_size=100, vocab_size=301, num_attention_heads=6, num_key_value_heads=2)
SHAPES = {**ARCHITECTURES,
          "qwen2-window": dict(model_type="qwen2", use_sliding_window=True, sliding_window=13, max_window_layers=1),
          "odd sizes": dict(model_type="llama", head_dim=20, attention_bias=True, mlp_bias=True, **ODD),
          "wide heads": dict(model_type="llama", num_attention_heads=2, num_key_value_heads=1, head_dim=64),
          "one KV head": dict(model_type="llama", num_attention_heads=8, num_key_value_heads=1, head_dim=6)}


@cache
def network(name, bits=32):
    model = make_random({**SHAPE, **SHAPES[name]}).model
    if bits < 32:
        quantize(model, bits)
    return model


def quantize(model, bits, group_size=32):
    nn.quantize(model, group_size, bits, class_predicate=lambda _, module: hasattr(module, "to_quantized")
                and module.weight.shape[-1] % group_size == 0)


def compare(model, block_size, seed, num_steps=6, tolerance=1e-4, precision="exact"):
    """Compute random steps of four requests by both; slots that hold nothing are NaN in the native cache.

    Return the largest difference of two logits.
    """
    from mini_vllm.native.runner import NativeRunner
    random = np.random.default_rng(seed)
    num_blocks = 4 * -(-160 // block_size) + 1
    plain = ModelRunner(model, num_blocks, block_size, paged_attention)
    native = NativeRunner(model, num_blocks, block_size, precision=precision)
    for blocks in native.cache.blocks:
        blocks.view(np.int32)[:] = -1  # NaN, as a number or as a scale
    tables = random.permutation(np.arange(1, num_blocks)).reshape(4, -1).tolist()
    lengths, largest = [0] * 4, 0
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
            difference = np.abs(np.array(got) - np.array(expected)).max() / max(1, np.abs(np.array(expected)).max())
            assert difference < tolerance, f"seed {seed}, block size {block_size}"
            largest = max(largest, difference)
    return largest


@pytest.mark.parametrize("name", SHAPES)
def test_logits_agree(name):
    for seed in range(examples(4)):
        compare(network(name), [4, 5, 16, 32, 33, 64][seed % 6], seed)


@pytest.mark.parametrize("precision, tolerance", [("exact", 1e-4), ("fast-cache", 1e-3)])
@pytest.mark.parametrize("name", ["llama2", "qwen2-window"])
def test_requests_that_begin_with_the_same_blocks_see_what_each_would_see_alone(name, precision, tolerance):
    from mini_vllm.native.runner import NativeRunner
    model, random = network(name), np.random.default_rng(0)
    plain, native = (kind(model, 140, 4, **options) for kind, options in (
        (ModelRunner, dict(attention=paged_attention)), (NativeRunner, dict(precision=precision))))
    native._num_threads = 1  # with many threads, fewer requests attend together
    common, own = random.integers(0, 256, 24).tolist(), iter(range(7, 140))
    # Of each request the number of shared blocks, and the length: its last token may be in one of them.
    requests = [(6, 30), (6, 25), (6, 33), (0, 25), (6, 25), (6, 22), (6, 26), (0, 21), (5, 21), (6, 25), (6, 30),
                (3, 30), (4, 18)]
    steps = []
    for num_shared, length in requests:
        table = [*range(1, 1 + num_shared), *(next(own) for _ in range(9 - num_shared))]
        ids = (common[:4 * num_shared] + random.integers(0, 256, length).tolist())[:length]
        for runner in (plain, native):
            runner.step([RequestStep(ids[:-1], table, length - 1, False)])
        steps.append(RequestStep(ids[-1:], table, length, True))
    np.testing.assert_allclose(np.array(native.step(steps)), np.array(plain.step(steps)), atol=10 * tolerance)


@pytest.mark.parametrize("bits", [4, 8, 3, 2])
def test_packed_weights_give_the_same_logits(bits):
    for seed in range(examples(3)):
        compare(network("qwen3", bits), 16, seed)


@pytest.mark.parametrize("bits, group_size", [(4, 32), (4, 64), (8, 32), (8, 64)])
def test_packed_weights_give_nearly_the_same_logits_by_amx(bits, group_size):
    """Some matrices have more ins than are multiplied at once, and groups that are no multiple of four."""
    model = make_random({**SHAPE, **SHAPES["qwen2"], "hidden_size": 320, "intermediate_size": 832}).model
    quantize(model, bits, group_size)
    for seed in range(examples(3)):
        compare(model, 16, seed, precision="fast-products", tolerance=tile_tolerance())


def test_matrices_that_are_packed_in_different_ways_keep_their_biases():
    model = make_random({**SHAPE, **SHAPES["qwen2"]}).model
    for layer in model.model.layers:
        whole, parts = layer.self_attn.qkv_proj, []
        for rows, bits in ((slice(0, 64), 4), (slice(64, None), 3)):
            part = nn.Linear(SHAPE["hidden_size"], 1)
            part.weight, part.bias = whole.weight[rows], whole.bias[rows]
            parts.append(part.to_quantized(32, bits))
        layer.self_attn.qkv_proj = SideBySide(parts)
    compare(model, 16, 0)


def tile_tolerance():
    from mini_vllm.native.runner import may_use_tiles
    return 1e-4 if may_use_tiles() else 1e-5  # without AMX, "fast-products" is "exact"


@pytest.mark.parametrize("precision, tolerance", [("fast-cache", 1e-3), ("fast-products", None), ("fast", 1e-3)])
@pytest.mark.parametrize("name", ["llama2", "qwen3", "qwen2-window", "odd sizes", "wide heads"])
def test_what_is_rounded_changes_logits_by_little(name, precision, tolerance):
    tolerance = tolerance or tile_tolerance()
    for seed in range(examples(2)):
        compare(network(name), [16, 5, 64][seed % 3], seed, precision=precision, tolerance=tolerance)


@pytest.mark.parametrize("kind", [mx.float16, mx.bfloat16])
def test_weights_of_16_bits_are_held_in_tiles_and_come_back_as_they_were(kind):
    from mini_vllm.native.runner import NativeRunner, may_use_tiles
    model = make_random({**SHAPE, **SHAPES["qwen2"]}).model
    model.update(tree_map(lambda array: array.astype(kind).astype(mx.float32), model.parameters()))
    before = tree_flatten(tree_map(np.array, model.parameters()))
    runner = NativeRunner(model, 20, 16, precision="fast-products")
    assert {layer["qkv"].bits for layer in runner._weights._layers} == {16 if may_use_tiles() else 32}
    compare(model, 16, 0, precision="fast-products", tolerance=tile_tolerance())
    compare(model, 16, 0)
    for (name, array), (_, now) in zip(before, tree_flatten(model.parameters())):
        np.testing.assert_array_equal(now, array, name)


@pytest.mark.parametrize("precision", ["exact", "fast-products"])
def test_many_tokens_are_computed_band_by_band(precision):
    from mini_vllm.native.runner import NativeRunner, constant
    model, random = network("qwen3"), np.random.default_rng(0)
    lengths, tables = [constant("band") + 20, constant("band") - 3, 1], [range(1, 41), range(41, 81), range(81, 121)]
    plain, native = (kind(model, 130, 16, **options) for kind, options in (
        (ModelRunner, dict(attention=paged_attention)), (NativeRunner, dict(precision=precision))))
    steps = [RequestStep(random.integers(0, 256, length).tolist(), list(table), length, True, bool(request))
             for request, (length, table) in enumerate(zip(lengths, tables))]
    np.testing.assert_allclose(np.array(native.step(steps)), np.array(plain.step(steps)), atol=1e-3)


def test_keys_and_values_in_16_bits_change_something_and_take_half_the_memory():
    from mini_vllm.native.runner import NativeRunner
    assert compare(network("llama2"), 16, 0, precision="fast-cache", tolerance=1) > 1e-5
    sizes = [sum(pool.nbytes for pool in NativeRunner(network("llama2"), 20, 16, precision=precision).cache.pools)
             for precision in ("exact", "fast-cache")]
    assert 0.5 < sizes[1] / sizes[0] < 0.7


@pytest.mark.parametrize("precision", ["exact", "fast-cache"])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_a_key_or_a_value_that_is_no_number_is_noticed_in_the_same_step_or_by_the_next(precision, broken, num_tokens):
    from mini_vllm.native.runner import NativeRunner
    model = make_random({**SHAPE, **SHAPES["qwen2"]}).model
    model.model.layers[0].self_attn.qkv_proj.bias[-1] = broken  # the last value
    runner = NativeRunner(model, 4, 16, precision=precision)
    try:
        logits = np.array(runner.step([RequestStep([1, 2, 3][:num_tokens], [1], num_tokens, True)]))
    except ValueError as error:
        assert str(error) == "keys or values contain NaN"
    else:
        assert np.isnan(logits).any()


@pytest.mark.parametrize("precision, broken", [("exact", np.nan), ("fast-cache", np.nan), ("fast-cache", np.inf)])
def test_a_piece_of_a_prompt_whose_values_are_no_numbers_is_an_error(precision, broken):
    from mini_vllm.native.runner import NativeRunner
    model = make_random({**SHAPE, **SHAPES["qwen2"]}).model
    model.model.layers[-1].self_attn.qkv_proj.bias[-1] = broken
    with pytest.raises(ValueError, match="keys or values contain NaN"):
        NativeRunner(model, 4, 16, precision=precision).step([RequestStep([1, 2, 3], [1], 3, False)])


@pytest.mark.parametrize("instructions, wide", [("sse2", 8), ("avx2", 16)])
def test_logits_agree_where_registers_are_shorter(builds, monkeypatch, instructions, wide):
    from mini_vllm.native import runner
    if platform.machine() != "x86_64" or instructions not in build._processor().split():
        pytest.skip(f"this processor has no {instructions}")
    monkeypatch.setattr(build, "FLAGS", ["-O1", "-march=x86-64", f"-m{instructions}", *build.FLAGS[2:]])
    library = builds[1]()
    monkeypatch.setattr(runner, "library", lambda: library)
    for function in ("constant", "may_use_tiles"):
        monkeypatch.setattr(runner, function, getattr(runner, function).__wrapped__)
    assert runner.constant("wide") == wide
    for name, precision in [("odd sizes", "exact"), ("qwen3", "fast")]:
        compare(network.__wrapped__(name), 16, 0, tolerance=1e-3, precision=precision)


@pytest.mark.parametrize("quota, cores", [("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 8),
                                          ("max 100000", 8), ("", 8), (None, 8)])
def test_a_step_has_as_many_threads_as_cores_that_it_may_use(monkeypatch, tmp_path, quota, cores):
    from mini_vllm.native import runner
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(runner, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(runner.os, "sched_getaffinity", lambda process: set(range(8)))
    assert runner.usable_cores.__wrapped__() == cores


# ---- the sampler


def row(index, num_tokens=3, **params):
    return SamplerRow(SamplingParams(seed=index, **params), [1], [0] * num_tokens, [], make_key(index))


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 16, 31, 33, 301, 4096])
def test_tokens_are_drawn_with_the_same_noise(vocab_size):
    random = np.random.default_rng(vocab_size)
    choices = [dict(temperature=0), dict(temperature=0.3), dict(), dict(temperature=2), dict(temperature=1e-30),
               dict(top_p=0.8), dict(top_k=3), dict(min_p=0.1, temperature=0.7)]
    for seed in range(examples(30)):
        logits = random.standard_normal((8, vocab_size)).astype(np.float32) * random.choice([0.1, 3, 30])
        logits[:, random.random(vocab_size) < random.choice([0, 0.5])] = -np.inf
        logits[:, random.integers(vocab_size)] = 0
        rows = [row(8 * seed + index, index, **choice) for index, choice in enumerate(choices)]
        expected, got = (sampler().draw(mx.array(logits), rows, 2).tolist() for sampler in (Sampler, NativeSampler))
        assert got == expected, seed
        assert NativeSampler().greedy(mx.array(logits)).tolist() == Sampler().greedy(mx.array(logits)).tolist()


def test_every_token_is_drawn_as_often_as_its_probability_says():
    logits = mx.log(mx.array([[0.5, 0.25, 0.125, 0.125, 0.0]]))
    rows = [row(seed) for seed in range(4000)]
    drawn = NativeSampler().draw(mx.repeat(logits, len(rows), axis=0), rows).tolist()
    assert np.abs(np.bincount(drawn, minlength=5) / len(rows) - [0.5, 0.25, 0.125, 0.125, 0]).max() < 0.03


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("params", [dict(temperature=0), dict(), dict(top_p=0.5)], ids=str)
def test_logits_that_are_no_distribution_are_told_with_their_row(broken, params):
    logits = np.zeros((3, 50), np.float32)
    logits[1, 20 if broken != -np.inf else slice(None)] = broken
    with pytest.raises(ValueError, match="row 1: "):
        NativeSampler().choose(mx.array(logits), [row(index, **params) for index in range(3)]).wait()


def test_where_it_cannot_be_used_the_plain_step_is(monkeypatch):
    from mini_vllm.native import runner
    config = network("llama2").config
    monkeypatch.delenv("MINI_VLLM_NATIVE", raising=False)
    assert runner.why_not(config, 32, None) == ""
    assert runner.why_not(config, 32, False) == "switched off by native=False"
    assert runner.why_not(config, 129, None) == "block_size: 129, at most 128 are supported"
    monkeypatch.setenv("MINI_VLLM_NATIVE", "0")
    assert runner.why_not(config, 32, None) == "switched off by MINI_VLLM_NATIVE=0"
    assert runner.why_not(config, 32, True) == ""
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
    monkeypatch.setattr(build, "FLAGS", ["-O0", *build.FLAGS[1:]])  # faster to compile
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


def test_a_damaged_library_is_compiled_again(builds):
    folder, built = builds
    assert not isinstance(built(), str)
    (library,) = folder.iterdir()
    whole = library.read_bytes()
    for damaged in (b"", b"no library", whole[:len(whole) // 2]):
        library.unlink()  # this process has loaded it
        library.write_bytes(damaged)
        assert not isinstance(built(), str) and library.read_bytes() == whole


def test_a_library_that_cannot_be_kept_is_compiled_for_this_process(builds):
    folder, built = builds
    assert not isinstance(built(), str)
    (library,) = folder.iterdir()
    library.unlink()
    library.mkdir()
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


def test_a_compiler_that_does_not_finish_is_stopped(builds, monkeypatch, tmp_path, capfd):
    folder, built = builds
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nkill -STOP $$\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "TIMEOUT", 0.01)
    monkeypatch.setattr(build.shutil, "which", lambda name: str(compiler))
    assert built() == f"it could not be compiled: {compiler} did not finish within 0.01 seconds"
    assert list(folder.iterdir()) == [] and capfd.readouterr().err.count("\n") == 1


def test_without_a_compiler_nothing_is_told(builds, monkeypatch, capfd):
    _, built = builds
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert built() == "no C compiler was found (cc, gcc, clang)" and capfd.readouterr().err == ""
