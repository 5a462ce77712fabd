"""A step of the model with any attention: the fast one, the plain one, and one that a student might write."""

import numpy as np
import pytest

from mini_vllm.attention import paged_attention
from mini_vllm.backend import mx
from mini_vllm.conftest import write_checkpoint
from mini_vllm.engine_config import EngineParts
from mini_vllm.llm import LLM
from mini_vllm.model_runner import ModelRunner, RequestStep
from mini_vllm.models.loader import load
from mini_vllm.request import SamplingParams

WINDOWED = dict(model_type="qwen3", head_dim=32, use_sliding_window=True, sliding_window=13, max_window_layers=1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("runner")
    return {"llama": write_checkpoint(root / "llama", model_type="llama"),
            "windows": write_checkpoint(root / "windows", **WINDOWED)}


def random_tokens(num_tokens, seed=0):
    return np.random.default_rng(seed).integers(0, 256, num_tokens).tolist()


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 20, "max_num_chunk_tokens": 6},
                                      {"enable_lookahead": True}, {"num_blocks": 25}], ids=str)
@pytest.mark.parametrize("name", ["llama", "windows"])
def test_the_plain_attention_decodes_the_same_tokens(folders, name, settings):
    shared, params = random_tokens(20), SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
    prompts = [shared + random_tokens(9, seed=1), shared + random_tokens(3, seed=2), random_tokens(1, seed=3),
               random_tokens(40, seed=4), shared]
    settings = {"num_blocks": 80, "block_size": 4, "max_num_seqs": 4, **settings}
    expected, got = ([output.token_ids for output in LLM(folders[name], parts=parts, **settings)
                      .generate(prompts, params)] for parts in (EngineParts(), EngineParts(attention=paged_attention)))
    assert got == expected


class Recorder:
    """Attends plainly, and records its arguments."""

    def __init__(self):
        self.calls = []

    def __call__(self, queries, pool, *lists_and_scale, **options):
        self.calls.append((queries.shape[0], lists_and_scale[:3], options))
        return paged_attention(queries, pool, *lists_and_scale, **options)


def test_layers_of_a_step_are_given_windows_only_where_they_have_one(folders):
    recorder = Recorder()
    runner = ModelRunner(load(folders["windows"]).model, 20, 4, recorder)
    requests = [RequestStep([5], [3, 4], 7, True), RequestStep([6], [5], 2, True)]
    runner.step(requests)
    assert [lists for _, lists, _ in recorder.calls] == [([[3, 4], [5]], [7, 2], [0, 1, 2])] * 3
    assert [options for _, _, options in recorder.calls] == [{}, {"window": 13}, {"window": 13}]


def test_the_last_layer_attends_only_for_the_tokens_that_are_wanted(folders):
    recorder = Recorder()
    runner = ModelRunner(load(folders["llama"]).model, 20, 4, recorder)
    runner.step([RequestStep([5], [3], 1, True), RequestStep(random_tokens(6), [4, 5], 6, False),
                 RequestStep(random_tokens(5), [6, 7], 5, True)])
    assert [(num_tokens, lists[1:]) for num_tokens, lists, _ in recorder.calls] == [
        (12, ([1, 6, 5], [0, 1, 7, 12]))] * 2 + [(2, ([1, 5], [0, 1, 2]))]
    recorder.calls.clear()
    logits = runner.step([RequestStep(random_tokens(6), [4, 5], 6, False)])
    assert logits.shape[0] == 0 and len(recorder.calls) == 2, "nobody wants a token: the last layer attends to nothing"


def test_a_step_ahead_is_the_step_itself(folders):
    model = load(folders["llama"]).model
    tables, lengths, tokens = [[3, 4], [5], [6, 7]], [6, 3, 8], [9, 8, 7]
    runners = [ModelRunner(model, 20, 4) for _ in range(2)]
    for runner in runners:
        runner.step([RequestStep(random_tokens(n - 1, seed=n), table, n - 1, True)
                     for table, n in zip(tables, lengths)])
    ahead = runners[0].step_ahead(mx.array(tokens), tables, lengths)
    step = runners[1].step([RequestStep([token], table, n, True) for token, table, n in zip(tokens, tables, lengths)])
    assert mx.array_equal(ahead, step)
    assert all(mx.array_equal(one, other) for one, other in zip(*(runner.cache.pools for runner in runners)))
