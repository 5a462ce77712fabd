"""The first cases of the fuzzers, the command that runs them, and deliberate bugs that they must find."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fuzz import models, speculation
from fuzz.__main__ import fuzz, main
from fuzz.with_transformers import BOTH, EQUAL, NUM_TOKENS, REFUSED, TRANSFORMERS_ONLY, compare_config
from mini_vllm.attention import PagedKVCache
from mini_vllm.backend import mx
from mini_vllm.block_pool import BlockPool
from mini_vllm.conftest import examples
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.loader import load
from mini_vllm.models.random_model import random_weights
from mini_vllm.scheduler import Scheduler
from mini_vllm.speculation.drafts import Verifier
from mini_vllm.structured.compiler import Cursor


def test_the_first_schedules_give_what_each_request_gives_alone():
    assert fuzz("speculation", speculation.run_case, 0, range(examples(12))) == 0


REAL_PREEMPT, REAL_FREE = Scheduler.preempt, BlockPool.free_blocks


def preempt_and_keep_what_was_computed(self, request):
    num_computed = request.num_computed_tokens
    REAL_PREEMPT(self, request)
    request.num_computed_tokens = num_computed


@pytest.mark.parametrize("owner, name, bug", [
    (KVCacheManager, "_must_fork", lambda *arguments: False),
    (KVCacheManager, "give_back_slots", lambda self, request: None),
    (Scheduler, "preempt", preempt_and_keep_what_was_computed),
    (BlockPool, "free_blocks", lambda self, blocks: REAL_FREE(self, [each for each in blocks if each.ref_cnt < 3])),
    (PagedKVCache, "copy_blocks", lambda self, copies: None),
    (Verifier, "accept", lambda self, draft, drawn: list(drawn)),
    (Cursor, "allowed", lambda self: None),
])
def test_the_schedules_find(owner, name, bug, monkeypatch, capsys):
    monkeypatch.setattr(owner, name, bug)
    assert fuzz("speculation", speculation.run_case, 0, range(100)) == 1, "100 cases, and none found the bug"
    assert "drawn: " in capsys.readouterr().err


# ---- mlx-lm and transformers


def test_random_networks_decode_what_mlx_lm_decodes(monkeypatch):
    """Decode fewer tokens per request than the command: together the cases still cross every kind of boundary."""
    pytest.importorskip("mlx_lm.utils", reason="mlx-lm is the oracle: pip install mlx-lm")
    monkeypatch.setattr(models, "NUM_TOKENS", 10)
    for case in range(30):
        counts = models.run_case(0, case)
        assert counts["tokens"] == 10 * counts["requests"]
        assert counts["ties"] <= counts["tokens"] // 50, "this many near-ties hide something"
    right = models.decode

    def wrong(folder, drawn):
        outputs = right(folder, drawn)
        outputs[0][7] = (outputs[0][7] + 1) % 256
        return outputs

    monkeypatch.setattr(models, "decode", wrong)
    with pytest.raises(AssertionError, match=r"case 2 of seed 0: token \d+ of request 0 is \d+, mlx-lm's is "
                                             r"\d+, whose logit is \d+\.\d+ higher\nCase\(config={'model_type'"):
        models.run_case(0, 2)


class Peer:
    """Answers as transformers would, from the engine, with ``error`` added to the last logits."""

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
    return next((case, counts) for case in range(50) if (counts := compare_config(Peer(), 0, case))[wanted])


def test_wrong_logits_are_told_with_the_config_and_refusals_are_counted():
    case, counts = first_case(EQUAL)
    assert {name for name, count in counts.items() if count} == {"configs", EQUAL}
    with pytest.raises(AssertionError, match=f"case {case} of seed 0: logits differ from transformers' by 0.5000, .*\n"
                                             '{"model_type": '):
        compare_config(Peer(error=0.5), 0, case)
    counts = compare_config(Peer(refusal="KeyError: 1.5 of /qwen3"), 0, case)
    assert counts[TRANSFORMERS_ONLY] == counts["refused: (transformers) KeyError: # of /qwen3"] == 1
    _, counts = first_case(BOTH)
    assert [count for name, count in counts.items() if name.startswith(REFUSED)] == [1] and counts[EQUAL] == 0


# ---- the command


def test_a_run_closes_with_what_was_tried_and_says_how_to_repeat_a_failure(monkeypatch, capsys):
    def draw(seed, case):
        assert (seed, case) != (5, 3), "drawn: 15, which is too much"
        return {"things": 2}

    monkeypatch.setattr(speculation, "run_case", draw)
    assert main(["speculation", "--cases", "5", "--seed", "4"]) == 0
    assert re.fullmatch(r"speculation, seed 4: 5 cases in .* s, no failure; 10 things\n", capsys.readouterr().out)
    assert main(["speculation", "--seed", "5"]) == 1
    out, err = capsys.readouterr()
    assert "drawn: 15" in err and err.endswith(
        "case 3 failed; to repeat it: python tools/fuzz speculation --seed 5 --case 3\n")
    assert "3 cases in" in out and "1 failure; 6 things" in out
    with pytest.raises(SystemExit):
        main(["models", "--transformers", "false"])
    assert "--transformers false: must have torch and transformers 5" in capsys.readouterr().err
