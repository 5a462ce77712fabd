"""The arithmetic of a plan: by hand, and for each bad value."""

import json
import math
import re

import pytest

from mini_vllm.fast import tuning
from mini_vllm.models.config import LoadError, ModelConfig
from mini_vllm.models.random_model import RANDOM_MODELS
from mini_vllm.models.weights import checkpoint_shapes
from mini_vllm.plan import machines, this_machine
from mini_vllm.plan.estimate import Demand, Limits, Plan
from mini_vllm.plan.explain import count, lines_of, si
from mini_vllm.plan.machines import PRESETS, Machine
from mini_vllm.plan.shape import NAMES, SHAPES, ModelShape, find_shape

SMALL = ModelShape("small", layers=2, width=8, mlp_width=16, heads=2, kv_heads=1, head_size=4, vocabulary=100)
ROUND = Machine("round", "made up", memory=20_000, bandwidth=1e6, flops=1e7, kv_bandwidth=1e5, layer_s=0.01,
                request_s=0.001, step_tokens=8, number_bytes=4)


def change(thing, **fields):
    return type(thing)(**{**vars(thing), **fields})


# ---- by hand


def test_a_small_plan_is_what_a_person_computes():
    plan = Plan(SMALL, ROUND, Demand(0.5, prompt=8, output=4, cached=0.5, peak=3), Limits(64, block_size=4))
    assert SMALL.layer_weights == 8 * 4 * (2 + 1) * 2 + 3 * 8 * 16 == 576
    assert SMALL.num_weights == 2 * 576 + 800 == 1952 and plan.weight_bytes == 7808
    assert plan.kv_bytes_per_token == 2 * 2 * 1 * 4 * 4 == 64
    assert plan.kv_memory == 18_000 - 7808 and plan.request_bytes == 3 * 4 * 64
    assert plan.fitting == plan.batch == 10_192 // 768 == 13
    assert plan.prompt_tokens == 13 * 4 / 4 and plan.steps == 26 / 8
    assert plan.read_s == pytest.approx(3.25 * 7808 / 1e6)
    assert plan.multiply_s == pytest.approx(2 * (1152 * 26 + 800 * 13) / 1e7)
    assert plan.products_s == plan.read_s > plan.multiply_s
    assert plan.kv_read_s == plan.attention_s == pytest.approx(13 * 10 * 64 / 1e5)
    assert plan.attend_s == pytest.approx(4 * 2 * 2 * 4 * (13 * 10 + 13 * 6) / 1e7)
    assert plan.fixed_s == pytest.approx(3.25 * 2 * 0.01) and plan.requests_s == pytest.approx(0.013)
    assert plan.round_s == pytest.approx(0.025376 + 0.0832 + 0.065 + 0.013)
    assert plan.tokens_per_s == pytest.approx(13 / plan.round_s)
    assert plan.capacity == pytest.approx(plan.tokens_per_s / 4)
    assert plan.replicas == 1 and Plan(SMALL, ROUND, Demand(100, 8, 4, 0.5, 3), Limits(64, 4)).replicas == math.ceil(
        300 / (plan.capacity * 0.7))
    assert plan.tier_bytes_per_s == pytest.approx(64 / (2 * 1152 / 1e7))


def test_each_number_of_a_machine_and_a_workload_counts():
    """Change one number at a time: the plan must get better or worse as physics says."""
    fast = Machine("fast", "made up", 1e6, 1e6, 1e6, 1e5, 0.01, 0.001, 8, 4)

    def rate(machine=fast, cached=0.0, **limits):
        return Plan(SMALL, machine, Demand(1, 8, 4, cached), Limits(**{"max_num_seqs": 4, **limits})).tokens_per_s

    base = rate()
    assert rate(change(fast, flops=2e6)) > base and rate(change(fast, kv_bandwidth=2e5)) > base
    assert rate(change(fast, layer_s=0.02)) < base and rate(change(fast, request_s=0.002)) < base
    assert rate(change(fast, bandwidth=1e5)) < base and rate(change(fast, step_tokens=2)) < base
    assert rate(cached=0.5) > base and rate(max_num_seqs=2) < base
    slow = change(fast, bandwidth=1e5)
    assert rate(slow, weight_bits=8) > rate(slow) and rate(kv_bits=8) > base
    assert rate(change(fast, memory=1e9)) == base, "more memory than --max-num-seqs needs changes nothing"


@pytest.mark.parametrize("shape", [find_shape(name) for name in NAMES], ids=lambda shape: shape.name)
@pytest.mark.parametrize("machine", [PRESETS["h200"], PRESETS["arm-2"]], ids=lambda each: each.name)
def test_every_formula_computes_to_its_result(shape, machine):
    machine = change(machine, memory=1e12)
    plan = Plan(shape, machine, Demand(11.6, 500, 200, 0.3, 2.5), Limits(max_num_seqs=48))
    lines = [line for _, group in lines_of(plan) for line in group]
    assert len(lines) == len({line.key for line in lines}) > 20
    for line in lines:
        assert compute(line.formula) == pytest.approx(line.value, rel=3e-3), f"{line.key}: {line.formula}"


def compute(formula):
    """Compute a printed formula, as a student would: units with their prefixes, words left out."""
    factors = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6}
    text = re.sub(r"(?<=\d),(?=\d{3})", "", formula)
    text = re.sub(r"([\d.]+(?:e[+-]?\d+)?) ([PTGMkmµ]?)(B/s|FLOP/s|B|s)(?![\w/])",
                  lambda found: repr(float(found[1]) * factors[found[2]]), text)
    text = text.replace("⌈", "ceil(").replace("⌊", "floor(").replace("⌉", ")").replace("⌋", ")")
    text = re.sub(r"(?<![\w.])(?!max\b|min\b|ceil\b|floor\b)[A-Za-z][\w/]*(?: [a-z]+)*", "", text)
    for sign, python in (("×", "*"), ("−", "-")):
        text = text.replace(sign, python)
    return eval(text, {"ceil": math.ceil, "floor": math.floor, "max": max, "min": min, "__builtins__": {}})


def test_numbers_read_well():
    assert [si(value, "B") for value in (0, 512, 114_688, 1.192e9, 4.8e12)] == [
        "0 µB", "512 B", "114.7 kB", "1.192 GB", "4.8 TB"]
    assert si(0.0031, "s") == "3.1 ms" and si(1e-7, "s") == "0.1 µs"
    assert [count(value) for value in (64, 1_234_567, 3.25, 12_345.6)] == ["64", "1,234,567", "3.25", "12,346"]


# ---- shapes


@pytest.mark.parametrize("name", RANDOM_MODELS)
def test_the_weights_are_those_of_the_checkpoint(name):
    tensors = checkpoint_shapes(ModelConfig.from_dict(RANDOM_MODELS[name])).values()
    assert find_shape(name).num_weights == sum(math.prod(shape) for shape in tensors if len(shape) > 1)


def test_shapes_by_name_have_the_published_sizes():
    assert {name: round(shape.num_weights / 1e9, 2) for name, shape in SHAPES.items()} == {
        "smollm2": 0.13, "qwen3-8b": 8.19, "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.55}
    assert find_shape("tiny-tales").num_weights == 5_472_256


def test_a_folder_needs_only_a_config(tmp_path):
    raw = {**RANDOM_MODELS["qwen3-27m"], "quantization": {"bits": 4, "group_size": 64}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    shape = find_shape(str(tmp_path))
    assert shape.num_weights == find_shape("qwen3-27m").num_weights and shape.packed_bits == 4.5
    demand = Demand(1, 8, 8)
    assert Plan(shape, PRESETS["h200"], demand, Limits()).bytes_per_weight == 4.5 / 8
    assert Plan(shape, PRESETS["arm-2"], demand, Limits()).bytes_per_weight == 4, "a CPU expands packed weights"
    del raw["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert find_shape(str(tmp_path)).num_weights == shape.num_weights + 16_384 * 512


@pytest.mark.parametrize("content, complaint", [
    (None, "there is no model"), ("{", "config.json: not JSON"), ('{"model_type": "gpt2"}', "'gpt2'"),
    (json.dumps({**RANDOM_MODELS["qwen3-27m"], "num_hidden_layers": 0}), "num_hidden_layers is 0, must be a whole"),
    (json.dumps({**RANDOM_MODELS["qwen3-27m"], "quantization": {"bits": 0}}), "bits is 0, must be a whole number"),
])
def test_a_bad_config_is_named(tmp_path, content, complaint):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(LoadError, match=re.escape(complaint)):
        find_shape(str(tmp_path))


# ---- bad values


@pytest.mark.parametrize("make, complaint", [
    (lambda: change(SMALL, layers=0), "layers is 0, must be a whole number from 1 to 10000000"),
    (lambda: change(SMALL, width=2**60), "width is 1152921504606846976"),
    (lambda: change(SMALL, heads=3, kv_heads=2), "kv_heads is 2, must divide heads (3)"),
    (lambda: change(ROUND, memory=math.nan), "memory is nan, must be a finite number"),
    (lambda: change(ROUND, bandwidth=0), "bandwidth is 0, must be a finite number, above 0"),
    (lambda: change(ROUND, flops=math.inf), "flops is inf"),
    (lambda: change(ROUND, layer_s=-1), "layer_s is -1"),
    (lambda: change(ROUND, step_tokens=0), "step_tokens is 0"),
    (lambda: Demand(-1, 8, 8), "requests per second is -1, must be a finite number, above 0"),
    (lambda: Demand(math.nan, 8, 8), "requests per second is nan"),
    (lambda: Demand(1, 0, 8), "prompt is 0, must be a whole number from 1"),
    (lambda: Demand(1, 8, 2.5), "output is 2.5"),
    (lambda: Demand(1, 8, 8, cached=1), "cached is 1, must be a finite number, at least 0, below 1"),
    (lambda: Demand(1, 8, 8, peak=0.5), "peak is 0.5, must be a finite number from 1"),
    (lambda: Limits(max_num_seqs=0), "max_num_seqs is 0"),
    (lambda: Limits(utilisation=1.1), "utilisation is 1.1"),
    (lambda: Limits(memory_share=0), "memory_share is 0, must be a finite number, above 0, at most 1"),
    (lambda: Limits(weight_bits=0), "weight_bits is 0"),
    (lambda: Plan(SMALL, change(ROUND, memory=8000), Demand(1, 8, 8), Limits()),
     "the weights of small take 7808 bytes, must be less than 7200, 0.9 of the memory of round"),
    (lambda: Plan(SMALL, ROUND, Demand(1, 150, 50), Limits()),
     "one request of 200 tokens takes 1.434e+04 bytes of keys and values, must be at most 1.019e+04"),
    (lambda: Plan(change(SMALL, max_tokens=100), ROUND, Demand(1, 90, 11), Limits()),
     "prompt + output is 101, must be at most 100, the context of small"),
])
def test_a_bad_value_is_named_with_its_bound(make, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        make()


# ---- this machine


def test_the_presets_have_the_step_sizes_of_the_engine():
    assert (machines.CPU_STEP_TOKENS, machines.GPU_STEP_TOKENS) == (tuning.CPU_BATCHED_TOKENS,
                                                                    tuning.GPU_BATCHED_TOKENS)


def test_a_measured_machine_has_the_numbers_that_explain_its_steps(monkeypatch):
    """Time the steps of a made-up machine: its numbers must be found again."""
    true, shape = PRESETS["arm-2"], find_shape("tiny-tales")

    def product_s(num_rows, width, number_bytes):
        return max(width * width * number_bytes / true.bandwidth, 2 * num_rows * width * width / true.flops)

    def step_s(loaded, num_requests, context):
        read_s = num_requests * context * shape.kv_bytes(4) / true.kv_bandwidth
        products_s = max(shape.weights_per_token * 4 / true.bandwidth,
                         2 * shape.weights_per_token * num_requests / true.flops)
        return products_s + read_s + shape.layers * true.layer_s + num_requests * (
            true.request_s if num_requests > 1 else 0)

    monkeypatch.setattr(this_machine.tuning, "has_gpu", lambda: False)  # else numbers have 2 bytes
    monkeypatch.setattr(this_machine, "_product_s", product_s)
    monkeypatch.setattr(this_machine, "_step_s", step_s)
    found = this_machine.measure_here()
    for field in ("bandwidth", "flops", "kv_bandwidth", "layer_s", "request_s"):
        assert getattr(found, field) == pytest.approx(getattr(true, field), rel=1e-6), field
    assert found.memory > 2**28 and found.source.startswith("measured now on ")
    monkeypatch.setattr(this_machine, "_step_s", lambda loaded, num_requests, context: 1e-6)
    found = this_machine.measure_here()
    assert found.layer_s == found.request_s == 0 and found.kv_bandwidth == pytest.approx(found.bandwidth)


def test_a_product_is_timed():
    assert 0 < this_machine._product_s(2, 16, 4, seconds=0.001) < 10
