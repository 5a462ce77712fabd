"""A few dozen cases of the model fuzzer; ``python tools/fuzz models`` runs any number of them."""

import numpy as np
import pytest

from fuzz import model_cases, models
from fuzz.model_cases import draw_case

pytest.importorskip("mlx_lm.utils", reason="mlx-lm is the oracle: pip install mlx-lm")

#: Fewer tokens per request than the command decodes: together the cases still cross every kind of boundary.
SEED, NUM_CASES, NUM_TOKENS = 0, 30, 10


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    for module in (models, model_cases):
        monkeypatch.setattr(module, "NUM_TOKENS", NUM_TOKENS)


@pytest.mark.parametrize("case", range(NUM_CASES))
def test_random_networks_decode_what_mlx_lm_decodes(case):
    counts = models.run_case(SEED, case)
    assert counts["tokens"] == NUM_TOKENS * counts["requests"]
    assert counts["ties"] <= counts["tokens"] // 50, "this many near-ties hide something"


def draw(case):
    return draw_case(np.random.default_rng([SEED, case]))


def test_the_cases_are_of_all_kinds():
    drawn = [draw(case) for case in range(NUM_CASES)]
    configs = [case.config for case in drawn]
    quantised = [case.quantised for case in drawn if case.quantised]
    scalings = [config["rope_scaling"] for config in configs if "rope_scaling" in config]
    groups = {config["num_attention_heads"] // config["num_key_value_heads"] for config in configs}
    assert {config["model_type"] for config in configs} == {"llama", "mistral", "qwen2", "qwen3"}
    assert {config["head_dim"] for config in configs if "head_dim" in config} == {32, 64, 80, 128}
    assert groups == set(range(1, 9)), "query heads that share a KV head"
    assert any(config["num_attention_heads"] % 2 for config in configs)
    assert {config["tie_word_embeddings"] for config in configs} == {True, False}
    assert any(config.get("attention_bias") for config in configs) and any(c.get("mlp_bias") for c in configs)
    assert {scaling.get("rope_type") or scaling.get("type") for scaling in scalings} == {"linear", "llama3", "yarn"}
    assert {case.dtype for case in drawn} == {"float32", "float16", "bfloat16"}
    assert {options["bits"] for options in quantised} >= {2, 3, 4, 5, 6, 8}
    assert {options["group_size"] for options in quantised} >= {32, 64, 128}
    assert len({options["mode"] for options in quantised}) >= 3
    assert any("recipe" in options for options in quantised) and any("layer_bits" in options for options in quantised)
    assert {case.stays_packed for case in drawn} == {case.as_on_gpu for case in drawn} == {True, False}
    windows = [case.windows for case in drawn if any(case.windows)]
    assert len(windows) >= 5 and any(None in layers for layers in windows) and not all(None in w for w in windows)


def test_a_case_is_the_same_whenever_it_is_drawn():
    assert draw(3) == draw(3) != draw(4)


def test_a_wrong_token_is_told_with_all_that_was_drawn(monkeypatch):
    right = models.decode

    def wrong(folder, drawn):
        outputs = right(folder, drawn)
        outputs[0][7] = (outputs[0][7] + 1) % 256
        return outputs

    monkeypatch.setattr(models, "decode", wrong)
    with pytest.raises(AssertionError, match=r"case 2 of seed 0: token \d+ of request 0 is \d+, mlx-lm's is "
                                             r"\d+, whose logit is \d+\.\d+ higher\nCase\(config={'model_type'"):
        models.run_case(SEED, 2)


def test_a_model_that_does_not_load_is_told_with_all_that_was_drawn(monkeypatch):
    def fail(folder, drawn):
        raise ValueError("no")

    monkeypatch.setattr(models, "decode", fail)
    with pytest.raises(AssertionError, match=r"case 2 of seed 0: ValueError: no\nCase\("):
        models.run_case(SEED, 2)
