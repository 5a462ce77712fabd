"""``bench gpu`` as far as possible without a GPU: what is compared with what, and what is reported."""

import json
from argparse import Namespace

import numpy as np
import pytest
from mlx.utils import tree_flatten

from mini_vllm.backend import mx, nn
from mini_vllm.benchmark.gpu import agreement, command, steps
from mini_vllm.benchmark.gpu.agreement import MAX_NOISES, MAX_SHOWN, Agreement, Difference, compare
from mini_vllm.benchmark.peers import load_peer
from mini_vllm.benchmark.workloads import make_workload
from mini_vllm.cli import main
from mini_vllm.fast import tuning
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.models.loader import load
from mini_vllm.models.random_model import load_random


@pytest.fixture(scope="module")
def loaded(shallow):
    return load(shallow("qwen3"))


@pytest.fixture(scope="module")
def peer(loaded):
    """Load the same weights in mlx-lm."""
    return load_peer(loaded)


class Peer(nn.Module):
    """Scores tokens by the previous one: after t, t + 1 is best, t + 2 a little worse.

    Float32 scores differ slightly.
    """

    def __init__(self, gap=0.1, noise=0.01):
        super().__init__()
        self.weight = mx.zeros((1,), mx.bfloat16)
        self._gap, self._noise = gap, noise

    def __call__(self, token_ids):
        scores = np.zeros((token_ids.shape[1], 20), dtype=np.float32)
        for place, token in enumerate(token_ids[0].tolist()):
            scores[place, (token + 1) % 20], scores[place, (token + 2) % 20] = 1.0, 1.0 - self._gap
        if self.weight.dtype == mx.float32:
            scores += self._noise * np.where(np.arange(20) % 2, 1, -1)
        return mx.array(scores)[None]


def test_tokens_that_are_the_first_choice_agree():
    found = compare(Peer(), [[1, 2], [7]], [[3, 4, 5], [8]])
    assert found.num_tokens == 4 and not found.differences and found.is_good
    assert found.noise == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("gap, is_good", [(0.05, True), (0.2, False)])
def test_what_differs_is_measured_by_the_noise(gap, is_good):
    peer = Peer(gap)
    found = compare(peer, [[1], [5]], [[2, 4, 5], [6]])
    (difference,) = found.differences
    assert (difference.request, difference.place, difference.ours, difference.peers) == (0, 1, 4, 3)
    assert difference.num_noises == pytest.approx(gap / 0.01, rel=1e-2) and found.is_good is is_good
    assert peer.weight.dtype == mx.bfloat16, "it is as it was"
    told = str(found)
    assert "4 tokens; different from mlx-lm's first choice: 1" in told
    assert "request 0, token 1: we chose 4, mlx-lm chose 3" in told
    assert ("THE TOKENS DO NOT AGREE" in told) is not is_good


def test_only_the_worst_differences_are_shown():
    found = Agreement(100, 0.1, tuple(Difference(0, i, 1, 2, i / 10, float(i)) for i in range(9)))
    told = str(found)
    assert told.count("request 0") == MAX_SHOWN and "and 4 smaller differences" in told and "token 8" in told
    assert found.is_good and MAX_NOISES > 8


def test_a_real_model_agrees_with_mlx_lm(loaded, peer):
    found = agreement.agree(loaded, peer, 3, 4)
    assert found.num_tokens == 12 and not found.differences


def test_a_step_must_read_the_weights_and_the_contexts(loaded):
    per_token = 2 * 2 * 4 * 32 * loaded.model.model.norm.weight.dtype.size
    assert steps.bytes_per_step(loaded, 16, 512) == loaded.num_bytes + 16 * 512 * per_token


@pytest.mark.parametrize("num_requests", [1, 5])
def test_prompts_are_different_and_of_one_length(num_requests):
    found = steps.prompts(num_requests, 5000, 512, 32)
    assert len({tuple(prompt) for prompt in found}) == num_requests
    assert {len(prompt) for prompt in found} == {512 - 48}


def test_both_are_timed_in_turns(monkeypatch):
    """Time alternating stretches. What one has begun is finished before the other's turn."""
    told, now_s = [], [0.0]

    def stepper(name, step_s):
        def step():
            now_s[0] += step_s
            told.append(name)
            return 1
        return steps.Stepper(1, step, lambda: told.append(f"{name} settles"))

    monkeypatch.setattr(steps.time, "perf_counter", lambda: now_s[0])
    assert steps.time_in_turns([stepper("ours", 0.5), stepper("theirs", 2.0)], 8) == [500, 2000]
    warm_up = ["ours"] * 8 + ["ours settles"] + ["theirs"] * 8 + ["theirs settles"]
    assert told == warm_up + (["ours"] * 3 + ["ours settles"] + ["theirs"] * 3 + ["theirs settles"]) * 4


def test_the_steps_of_both_are_timed(loaded, peer):
    ours_ms, peer_ms = steps.time_both(loaded, peer, 2, 32, 4)
    assert ours_ms > 0 and peer_ms is not None and peer_ms > 0
    assert steps.time_both(loaded, None, 2, 32, 4)[1] is None


def test_a_step_in_which_somebody_got_no_token_is_no_measurement():
    numbers = iter([2] * 8 + [2, 2, 1, *[2] * 20])
    stepper = steps.Stepper(2, lambda: next(numbers), lambda: None)
    with pytest.raises(ValueError, match="all 2 requests must decode .*, but in one step only 1 got a token"):
        steps.time_in_turns([stepper], 8)


@pytest.mark.parametrize("ours_ms, peer_ms", [(3.3, 9.0), (9.0, 3.3)])
def test_a_step_faster_than_the_memory_is_no_measurement(ours_ms, peer_ms, monkeypatch, loaded):
    """The bandwidth is such that reading takes 6.5 ms."""
    arguments = Namespace(quick=True, bandwidth=steps.bytes_per_step(loaded, 1, 512) / 6.5e-3 / 1e9)
    monkeypatch.setattr(steps, "time_both", lambda *_: (ours_ms, peer_ms))
    with pytest.raises(ValueError, match="1 requests at contexts of 512, .*: 3.3 ms, but .* at least 6.5 ms"):
        command._steps("", loaded, None, arguments, 512, (1,))
    monkeypatch.setattr(steps, "time_both", lambda *_: (7.0, None))
    (row,) = command._steps("", loaded, None, arguments, 512, (1,))
    assert (row["floor_ms"], row["ratio"]) == (pytest.approx(6.5), None)


def test_every_request_decodes_however_long_the_prompts_take(loaded, peer, monkeypatch):
    """Use prompts that take many more steps than are timed: the first request would end before the last begins."""
    monkeypatch.setattr(tuning, "max_num_batched_tokens", lambda: 32)
    prompts = steps.prompts(6, 100, 128, 4)
    for stepper in (steps.begin_ours(loaded, prompts, 4), steps.begin_peer(peer, prompts, 4)):
        assert [stepper.step() for _ in range(10)] == [6] * 10


def test_a_workload_has_a_seat_and_room_for_every_request():
    workload = command.sized(make_workload("nano-64", 10_000, 4096))
    assert workload.settings["max_num_seqs"] == 64
    tokens = sum(len(item.prompt) + item.num_tokens for item in workload.items)
    assert workload.settings["num_blocks"] * DEFAULT_BLOCK_SIZE >= tokens


def test_on_a_cpu_it_says_what_to_do_instead(capsys, monkeypatch):
    monkeypatch.setattr(command, "is_cpu", lambda: True)
    assert main(["bench", "gpu"]) == 2
    assert "this benchmark needs a GPU" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["-3", "0", "nan"])
def test_a_memory_gives_some_bytes_a_second(capsys, given):
    assert main(["bench", "gpu", "--quick", "--no-peer", f"--bandwidth={given}"]) == 2
    told = capsys.readouterr()
    assert f"--bandwidth is {float(given)}, must be a finite number, above 0" in told.err and not told.out


def test_a_quick_run_measures_and_saves(tmp_path, capsys):
    assert main(["bench", "gpu", "--quick", "--no-peer", "--output", str(tmp_path / "gpu.json")]) == 0
    told, saved = capsys.readouterr().out, json.loads((tmp_path / "gpu.json").read_text())
    assert "kernels: " in told and "nano-16" in told
    assert [(row["num_requests"], row["context"]) for row in saved["steps"]] == [(1, 32), (2, 32), (1, 64), (2, 64)]
    assert saved["workloads"][0]["ratio"] is None and {"device", "mlx"} <= set(saved["machine"])


def test_what_is_known_is_saved_when_a_run_is_ended(tmp_path, monkeypatch):
    path = tmp_path / "gpu.json"

    def ended(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure", ended)
    with pytest.raises(KeyboardInterrupt):
        command.run_gpu_benchmark(Namespace(quick=True, arm=None, output=path, bandwidth=None,
                                            workload=None, only=None, typed="mini-vllm bench gpu --quick"))
    saved = json.loads(path.read_text())
    assert len(saved["steps"]) == 4 and "workloads" not in saved


def test_no_pause_of_the_garbage_collector_is_measured(monkeypatch, loaded):
    """Freeze objects: with mlx-lm's libraries a collection takes hundreds of milliseconds, with a warm-up's engine
    tens."""
    told = []
    monkeypatch.setattr("gc.freeze", lambda: told.append("alone"))
    monkeypatch.setattr(command, "serve", lambda *arguments: told.append("serve") or (None, None))
    command.measure(loaded, None, make_workload("nano-16", 100, 4096))
    assert told == ["alone", "serve"] * 2


def test_a_part_can_be_measured_by_itself(tmp_path):
    path = str(tmp_path / "gpu.json")
    assert main(["bench", "gpu", "--quick", "--no-peer", "--only", "workloads", "--output", path]) == 0
    saved = json.loads((tmp_path / "gpu.json").read_text())
    assert len(saved["workloads"]) == 1 and not {"steps", "quantised", "agreement"} & set(saved)


def test_a_random_model_is_the_same_every_time():
    first, second = (load_random("qwen3-27m") for _ in range(2))
    arrays = [mx.array_equal(one, two) for (_, one), (_, two) in zip(
        tree_flatten(first.model.parameters()), tree_flatten(second.model.parameters()))]
    assert all(arrays) and first.name == "qwen3-27m"
    with pytest.raises(ValueError, match="no random model 'gpt', only qwen3-27m"):
        load_random("gpt")
