"""The comparison with transformers, with the engine itself in its place: ``--transformers`` asks the real one."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from fuzz.__main__ import main
from fuzz.config_cases import draw_config
from fuzz.with_transformers import BOTH, EQUAL, NUM_TOKENS, REFUSED, TRANSFORMERS_ONLY, compare_config
from mini_vllm.backend import mx
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.loader import load
from mini_vllm.models.random_model import random_weights


class Peer:
    """Answers as the other interpreter would, from the engine, with ``error`` added to the last logits."""

    def __init__(self, error=0.0, refusal=""):
        self.error, self.refusal = error, refusal

    def ask(self, folder, token_ids, seed, has_own_head):
        folder = Path(folder)
        try:
            weights = random_weights(json.loads((folder / "config.json").read_text()), seed)
        except ValueError as error:
            return str(error)
        mx.save_safetensors(str(folder / "model.safetensors"), weights)
        runner = ModelRunner(load(folder).model, num_blocks=NUM_TOKENS, block_size=8)
        logits = [runner.step([RequestStep([token], list(range(1, 13)), end, True)])[0]
                  for end, token in enumerate(token_ids, 1)]
        logits = np.array(mx.stack(logits))
        logits[-1, 5] += self.error
        np.save(folder / "logits.npy", logits)
        return self.refusal


def first_case(wanted):
    """Return the first case whose counts have ``wanted``, and the counts."""
    for case in range(50):
        counts = compare_config(Peer(), 0, case)
        if counts[wanted]:
            return case, counts
    raise AssertionError(wanted)


def test_equal_logits_are_counted_and_wrong_ones_are_told_with_the_config():
    case, counts = first_case(EQUAL)
    assert {name for name, count in counts.items() if count} == {"configs", EQUAL}
    with pytest.raises(AssertionError, match=f"case {case} of seed 0: logits differ from transformers' by 0.5000, .*\n"
                                             '{"model_type": '):
        compare_config(Peer(error=0.5), 0, case)


def test_refusals_are_counted_and_listed_without_their_values():
    _, counts = first_case(BOTH)
    (refusal,) = [name for name in counts if name.startswith(REFUSED)]
    assert counts[refusal] == 1 and counts[EQUAL] == 0
    case, _ = first_case(EQUAL)
    counts = compare_config(Peer(refusal="KeyError: 1.5 of /qwen3"), 0, case)
    assert counts[TRANSFORMERS_ONLY] == counts["refused: (transformers) KeyError: # of /qwen3"] == 1


def test_the_configs_are_of_all_kinds():
    configs = [draw_config(random.Random(case)) for case in range(300)]
    ropes = [config[name] for config in configs for name in ("rope_scaling", "rope_parameters") if config.get(name)]
    assert {config["model_type"] for config in configs} == {"llama", "mistral", "qwen2", "qwen3", "gemma"}
    assert {rope.get("rope_type") or rope["type"] for rope in ropes} >= {"default", "linear", "llama3", "yarn"}
    for name in ("head_dim", "num_key_value_heads", "sliding_window", "tie_word_embeddings", "rope_theta",
                 "original_max_position_embeddings", "layer_types", "max_position_embeddings", "attention_bias"):
        given = sum(name in config for config in configs)
        assert 10 < given < 290, f"{name} is in {given} of 300 configs"
    assert sum(bool(c.get("rope_scaling")) and bool(c.get("rope_parameters")) for c in configs) > 10


@pytest.mark.parametrize("arguments, complaint", [
    (["engine", "--transformers", "python"], "--transformers is for models, not for engine"),
    (["models", "--transformers", "/no/python"], "--transformers /no/python: .*No such file"),
    (["models", "--transformers", "false"], "--transformers false: must have torch and transformers 5"),
])
def test_an_interpreter_that_cannot_compare_is_refused(capsys, arguments, complaint):
    assert main([*arguments, "--cases", "1"]) == 2
    assert re.search(complaint, capsys.readouterr().err)
