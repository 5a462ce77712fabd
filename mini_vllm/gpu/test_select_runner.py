"""When the kernels are used, and what happens when one returns wrong results."""

import pytest

from mini_vllm.attention import paged_attention
from mini_vllm.backend import mx
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig, EngineParts
from mini_vllm.fast.attention import FastAttention
from mini_vllm.gpu import kernel_checks, select_runner
from mini_vllm.gpu.kernels.kernel import Kernel
from mini_vllm.gpu.runner import GpuRunner
from mini_vllm.model_runner import ModelRunner
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.loader import load
from mini_vllm.models.random_model import write_random_checkpoint
from mini_vllm.request import SamplingParams

CONFIG = dict(model_type="qwen3", vocab_size=300, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512)


@pytest.fixture
def as_on_cuda(monkeypatch):
    monkeypatch.setattr(select_runner.tuning, "has_gpu", lambda: True)
    monkeypatch.setattr(select_runner, "mlx_build", lambda: "cuda")
    monkeypatch.delenv(select_runner.SWITCH, raising=False)
    remembered = select_runner.fault_of
    remembered.cache_clear()
    yield
    remembered.cache_clear()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load(write_random_checkpoint(tmp_path_factory.mktemp("model"), CONFIG))


def test_on_a_cpu_nothing_changes(loaded, monkeypatch):
    monkeypatch.setattr(select_runner.tuning, "has_gpu", lambda: False)
    assert select_runner.why_not_here() == select_runner.NO_GPU
    assert select_runner.runner_class(ModelRunner, FastAttention, loaded.model, 32, native=False) is ModelRunner


def test_the_switch_and_metal(as_on_cuda, monkeypatch):
    assert select_runner.why_not_here() == ""
    monkeypatch.setattr(select_runner, "mlx_build", lambda: "metal")
    assert select_runner.why_not_here() == select_runner.NOT_SEEN_YET
    assert f"{select_runner.SWITCH}=1" in select_runner.NOT_SEEN_YET
    monkeypatch.setenv(select_runner.SWITCH, "1")
    assert select_runner.why_not_here() == ""
    monkeypatch.setenv(select_runner.SWITCH, "0")
    assert select_runner.why_not_here() == select_runner.SWITCHED_OFF
    monkeypatch.setenv(select_runner.SWITCH, "off")
    with pytest.raises(ValueError, match="MINI_VLLM_KERNELS is 'off', must be 0 or 1"):
        select_runner.why_not_here()


def test_honest_kernels_pass_the_proof(emulated):
    for config in (CONFIG, {**CONFIG, "model_type": "llama", "num_key_value_heads": 4}):
        assert kernel_checks.find_fault(ModelConfig.from_dict(config), 16, mx.float32, paged_attention) == ""


def lies_a_little(queries, pool, *batch):
    out = paged_attention(queries, pool, *batch)
    return mx.concatenate([out[:-1], out[-1:] + 0.001])


def forgets_the_window(queries, pool, *batch):
    return paged_attention(queries, pool, *batch[:-1])


def sees_the_future(queries, pool, tables, lens, starts, scale, window):
    table_of = [table for table, start, end in zip(tables, starts, starts[1:]) for _ in range(start, end)]
    len_of = [length for length, start, end in zip(lens, starts, starts[1:]) for _ in range(start, end)]
    return paged_attention(queries, pool, table_of, len_of, list(range(len(len_of) + 1)), scale, window)


def is_not_a_number(queries, pool, *batch):
    return paged_attention(queries, pool, *batch) * mx.nan


@pytest.mark.parametrize("liar", [lies_a_little, sees_the_future, is_not_a_number])
def test_a_kernel_that_lies_is_found_out(emulated, liar):
    assert "attention is off by" in kernel_checks.find_fault(ModelConfig.from_dict(CONFIG), 16, mx.float32, liar)


def reads_a_whole_block(queries, pool, tables, lens, starts, scale, window):
    """Attend to a whole block and give the excess zero weight: zero times NaN is NaN."""
    beyond = pool[mx.array([table[-1] for table in tables])].astype(mx.float32).sum()
    return paged_attention(queries, pool, tables, lens, starts, scale, window) + 0 * beyond


@pytest.mark.parametrize("attention, is_good", [(paged_attention, True), (reads_a_whole_block, False)])
def test_what_is_in_no_context_may_be_anything(attention, is_good):
    case = kernel_checks.ProofCase((1, 1, 5), (3, 20, 9))
    error = kernel_checks.attention_error(case, 4, 2, 32, 16, mx.float32, attention, is_spoiled=True)
    tolerance = kernel_checks.TOLERANCES[mx.float32]
    assert (error <= tolerance) is is_good
    assert kernel_checks.attention_error(case, 4, 2, 32, 16, mx.float32, attention) <= tolerance


def test_one_that_forgets_the_window_is_found_out_where_there_is_one(emulated):
    windows = {**CONFIG, "model_type": "mistral", "sliding_window": 24}
    assert "attention" in kernel_checks.find_fault(ModelConfig.from_dict(windows), 16, mx.float32, forgets_the_window)


def test_the_other_kernels_are_found_out_too(emulated, monkeypatch):
    monkeypatch.setattr(kernel_checks.add_norm_module, "add_norm", lambda x, added, weight, eps: (x + added, x))
    monkeypatch.setattr(kernel_checks.skinny_module, "product", lambda x, weight: (x @ weight.T) * 1.1)
    monkeypatch.setattr(kernel_checks.turn_module, "turn_and_write", lambda heads, pool, *rest: mx.zeros((9, 4, 32)))
    fault = kernel_checks.find_fault(ModelConfig.from_dict(CONFIG), 16, mx.float32, paged_attention)
    assert all(name in fault for name in ("turn is off", "add_norm is off", "product is off"))
    assert "attention" not in fault


@pytest.mark.parametrize("name, liar", [
    ("product_in_parts", lambda x, weight: mx.stack([x @ weight.T] * 2)),
    ("gated_product", lambda x, weight: (x @ weight.T)[:, :weight.shape[0] // 2])])
def test_so_is_a_product_that_does_more_than_multiply(emulated, monkeypatch, name, liar):
    monkeypatch.setattr(kernel_checks.skinny_module, name, liar)
    assert "product is off" in kernel_checks.find_fault(ModelConfig.from_dict(CONFIG), 16, mx.float32, paged_attention)


def test_an_engine_whose_kernels_do_not_compile_says_so_once_and_goes_on(as_on_cuda, loaded, capsys, monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("decode.h(17): error: expected a ';'")

    monkeypatch.setattr(Kernel, "__call__", refuse)
    settings = EngineConfig(block_size=16, num_blocks=30)
    for _ in range(2):
        engine = LLMEngine(settings, loaded=loaded)
        assert type(engine.runner) is ModelRunner
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=3, temperature=0))
        while engine.has_unfinished_requests():
            outputs = engine.step()
        assert outputs[-1].finished and not outputs[-1].error
    told = capsys.readouterr().err
    assert told.count("the GPU kernels are not used: cannot be used: RuntimeError: decode.h(17)") == 1
    assert "Continuing without them" in told


def test_an_engine_with_honest_kernels_uses_them(as_on_cuda, emulated, loaded, monkeypatch):
    monkeypatch.setattr(kernel_checks, "KernelAttention", lambda: paged_attention)
    assert type(LLMEngine(EngineConfig(block_size=16, num_blocks=30), loaded=loaded).runner) is GpuRunner


def test_whoever_brings_an_attention_or_a_runner_keeps_it(as_on_cuda, loaded, monkeypatch):
    class Own(ModelRunner):
        pass

    monkeypatch.setattr(select_runner, "fault_of", lambda *shape: "")
    for parts in (EngineParts(attention=paged_attention), EngineParts(model_runner=Own)):
        chosen = select_runner.runner_class(parts.model_runner, parts.attention, loaded.model, 16)
        assert chosen is parts.model_runner


@pytest.mark.parametrize("head_dim, hidden_size", [(24, 64), (264, 64), (16, 64), (32, 36)])
def test_shapes_that_no_kernel_is_made_for(as_on_cuda, head_dim, hidden_size, capsys):
    config = ModelConfig.from_dict({**CONFIG, "head_dim": head_dim, "hidden_size": hidden_size})
    assert f"heads of {head_dim} numbers" in select_runner.fault_of(config, 16, mx.float32)
    assert "they do not support" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_somebody_at_a_terminal_is_told_that_it_takes_a_while(as_on_cuda, capsys, monkeypatch, is_terminal):
    monkeypatch.setattr(select_runner, "find_fault", lambda *shape: "")
    monkeypatch.setattr(select_runner.sys.stderr, "isatty", lambda: is_terminal)
    for _ in range(2):
        assert select_runner.fault_of(ModelConfig.from_dict(CONFIG), 16, mx.float32) == ""
    assert capsys.readouterr().err == (select_runner.COMPILING + "\n" if is_terminal else "")


@pytest.mark.parametrize("build, switch, fault, told, to_do", [
    ("cuda", "", "", "are used", ""),
    ("cuda", "0", "", "are switched off", "export MINI_VLLM_KERNELS=1"),
    ("metal", "", "", "are switched off", "export MINI_VLLM_KERNELS=1"),
    ("metal", "1", "", "are used", ""),
    ("metal", "", "attention is off by 3", "do not use them: attention is off by 3", ""),
])
def test_doctor_tries_them_and_says_what_to_set(as_on_cuda, monkeypatch, build, switch, fault, told, to_do):
    monkeypatch.setattr(select_runner, "mlx_build", lambda: build)
    monkeypatch.setenv(select_runner.SWITCH, switch)
    monkeypatch.setattr(select_runner, "find_fault", lambda *shape: fault)
    found, what = select_runner.try_kernels()
    assert told in found and what.endswith(to_do) and bool(what) == bool(to_do)


def test_doctor_says_nothing_of_kernels_without_a_gpu(monkeypatch):
    monkeypatch.setattr(select_runner.tuning, "has_gpu", lambda: False)
    assert select_runner.try_kernels() == ("", "")
