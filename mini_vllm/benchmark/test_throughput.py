"""The throughput benchmark: its workloads, its numbers, its report. Not how fast anything is."""

import json

import pytest

from mini_vllm import benchmark
from mini_vllm.benchmark import throughput
from mini_vllm.benchmark.machine import Noise, NoiseWatch
from mini_vllm.benchmark.peer_script import Watch
from mini_vllm.benchmark.results import (
    ARMS,
    BATCHED,
    DRAFTED,
    ONE_AT_A_TIME,
    PEER,
    BenchmarkResult,
    median_of,
    percentiles,
    result_of,
)
from mini_vllm.benchmark.throughput import CHEAP_ROUND_S, Comparison, run_comparison_benchmark
from mini_vllm.benchmark.workloads import WORKLOADS, Item, Workload, make_workload
from mini_vllm.cli import main
from mini_vllm.fast import tuning
from mini_vllm.fast.step_costs import DraftCost, StepCosts
from mini_vllm.models.loader import load

pytestmark = pytest.mark.usefixtures("few_products")


@pytest.fixture(scope="module")
def loaded(shallow):
    return load(shallow("qwen3"))


def small(more_tokens=0, **settings):
    items = [Item([*range(10 + i, 40 + 3 * i)], 6 + i + more_tokens) for i in range(6)]
    return Workload("small", "a few", [*items, Item([*range(100, 160)], 4, after_tokens=12)], settings)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_every_time_and_as_it_says(name):
    workload = make_workload(name, vocab_size=5000, max_model_len=4096)
    assert workload == make_workload(name, 5000, 4096)
    assert all(0 <= token < 5000 for item in workload.items for token in item.prompt)
    for index, item in enumerate(workload.items):  # no request waits for tokens that only later requests can produce
        assert item.after_tokens <= sum(other.num_tokens for other in workload.items[:index])
    number = workload.about.split()[0]
    assert len(workload.items) == {"chat": 32, "long-arrival": 17}.get(name, int(number))


def test_percentiles_are_values_that_occurred():
    assert percentiles(list(range(1, 101))) == {50: 50, 90: 90, 99: 99, 100: 100}
    assert percentiles([3, 1, 2]) == {50: 2, 90: 3, 99: 3, 100: 3}


def test_all_arms_serve_everything_and_agree(loaded):
    assert benchmark.run_comparison_benchmark is run_comparison_benchmark
    assert benchmark.BenchmarkResult is BenchmarkResult
    workload = small()
    results, speed_ups = run_comparison_benchmark(loaded, workload, rounds=2)
    assert [result.arm for result in results] == list(ARMS) and set(speed_ups) == {ONE_AT_A_TIME, PEER}
    for result in results:
        assert (result.num_different, result.num_rounds, result.num_preemptions) == (0, 2, 0)
        assert (result.num_requests, result.num_output_tokens) == (7, workload.num_output_tokens)
        assert 0 < result.first_token_s[50] <= result.first_token_s[100]
        assert 0 < result.between_tokens_s[50] <= result.between_tokens_s[100]
    for options, complaint in ((dict(arms=["vllm"]), "no arm 'vllm', only one at a time"), (dict(arms=[]), "no arm"),
                               (dict(rounds=0), "rounds is 0")):
        with pytest.raises(ValueError, match=complaint):
            run_comparison_benchmark(loaded, workload, **options)


def test_drawn_tokens_of_our_arms_agree(loaded):
    one, batched = (throughput.serve(loaded, small(), arm, 0.8)[1] for arm in (ONE_AT_A_TIME, BATCHED))
    assert one == batched != throughput.serve(loaded, small(), BATCHED)[1]


def test_a_small_pool_shows_its_preemptions(loaded):
    result, token_ids = throughput.serve(loaded, small(8, num_blocks=19, block_size=8), BATCHED)
    assert result.num_preemptions > 0 and result.num_recomputed_tokens > 0
    assert token_ids == throughput.serve(loaded, small(8), ONE_AT_A_TIME)[1]


@pytest.mark.parametrize("arm, at_once", [(ONE_AT_A_TIME, False), (BATCHED, True)])
def test_requests_are_served_one_at_a_time_or_together(loaded, arm, at_once, monkeypatch):
    watches = []
    monkeypatch.setattr(throughput, "Watch", lambda items: watches.append(Watch(items)) or watches[0])
    throughput.serve(loaded, small(), arm)
    first, second, *_ = watches[0].token_times_s
    assert (second[0] < first[-1]) is at_once


def test_times_of_tokens(monkeypatch):
    """Tokens that arrive together count as one. A gap counts as beside a prompt if it overlaps with its wait."""
    now_s = [100.0]
    monkeypatch.setattr("mini_vllm.benchmark.peer_script.time.perf_counter", lambda: now_s[0])
    workload = Workload("small", "two", [Item([1], 7), Item([1], 1, after_tokens=4)])
    watch = Watch(workload.items)
    assert watch.arrivals() == [0] and watch.arrivals() == [] and watch.num_to_come == 1
    for seconds, index, tokens in ((1.0, 0, [1]), (2.0, 0, [2, 3, 4]), (3.0, 0, [5]), (0.5, 1, [1]), (0.5, 0, [6]),
                                   (9.0, 0, [7])):
        now_s[0] += seconds
        watch.add(index, tokens)
        if watch.num_to_come:
            assert watch.arrivals() == [1] * (tokens == [2, 3, 4])
    result = result_of(workload, DRAFTED, watch)
    assert result.between_tokens_s == {50: 2.0, 90: 9.0, 99: 9.0, 100: 9.0}
    assert watch.token_ids == [[1, 2, 3, 4, 5, 6, 7], [1]] and result.seconds == 16.0
    assert result.first_token_s == {50: 1.0, 90: 3.5, 99: 3.5, 100: 3.5}
    assert result.worst_gap_beside_prompt_s == 3.0, "the gap of 9 s was later"


def test_a_request_that_fails_ends_the_measurement(loaded, monkeypatch):
    monkeypatch.setattr("mini_vllm.model_runner.ModelRunner.step", lambda *_: 1 / 0)
    with pytest.raises(RuntimeError, match="small: request 0: ZeroDivisionError"):
        throughput.serve(loaded, small(), BATCHED)


# ---- how often it is measured, and the report


def made_up(arm=BATCHED, seconds=2.0, **changes):
    times = {50: 0.1, 90: 0.2, 99: 0.3, 100: 0.4}
    return BenchmarkResult(**{**dict(
        workload="small", arm=arm, num_requests=16, num_output_tokens=1600, seconds=seconds, first_token_s=times,
        between_tokens_s=times, worst_gap_beside_prompt_s=0.0), **changes})


def compared(*rounds):
    """Return a comparison whose arms gave these results, round by round."""
    results = {first.arm: iter(of_arm) for first, of_arm in zip(rounds[0], zip(*rounds))}
    comparison = Comparison(small(), {arm: lambda *_, arm=arm: (next(results[arm]), [[1]]) for arm in results})
    comparison.serve_rounds(len(rounds))
    return comparison


def test_the_median_of_rounds():
    found = median_of([made_up(seconds=seconds, num_preemptions=number, num_different=number)
                       for seconds, number in ((1.0, 3), (5.0, 0), (2.0, 1))])
    assert (found.seconds, found.num_preemptions, found.num_different, found.num_rounds) == (2.0, 1, 3, 3)


@pytest.mark.parametrize("asked, round_s, num_rounds, told", [
    (None, CHEAP_ROUND_S / 3 - 0.1, 3, "medians of 3 rounds"),
    (None, CHEAP_ROUND_S / 3 + 1, 1, "one round; --rounds 3 gives medians"), (2, CHEAP_ROUND_S, 2, "medians of 2")])
def test_there_are_three_rounds_where_that_is_cheap(asked, round_s, num_rounds, told):
    served = []

    def arm(name):
        return lambda *_: (served.append(name), (made_up(name, round_s), [[1]]))[1]

    comparison = Comparison(small(), {name: arm(name) for name in ARMS})
    comparison.serve_rounds(asked)
    assert served == [*ARMS] * num_rounds
    assert throughput.report(comparison).startswith(told)


def test_the_report_has_all_arms_and_fits_into_80_columns(monkeypatch):
    monkeypatch.setattr(NoiseWatch, "noise", lambda self: Noise(0.1, 2))
    results = [made_up(arm, 1600 / 54321, first_token_s={50: 123.4, 100: 234.5},
                       between_tokens_s={50: 0.0123, 100: 12.345}) for arm in (*ARMS, DRAFTED)]
    results[-1].num_preemptions, results[-1].num_recomputed_tokens = 2, 40
    results[-1].worst_gap_beside_prompt_s = 0.25
    lines = throughput.report(compared(results)).splitlines()
    assert max(map(len, lines[1:6])) <= 80
    assert lines[3].split() == ["mini_vllm", "0.03", "54321.0", "123.40", "234.50", "12.3", "12345"]
    assert lines[6:] == [
        "mini_vllm with drafts against one at a time: 1.00x", "mini_vllm with drafts against mini_vllm: 1.00x",
        "mini_vllm with drafts against mlx-lm: 1.00x",
        "one at a time, mini_vllm, mlx-lm and mini_vllm with drafts produced the same tokens.",
        "mini_vllm with drafts: worst gap between tokens while a later prompt was computed: 250 ms, 20.3 times the "
        "median gap", "mini_vllm with drafts: 2 preemptions, 40 tokens computed again"]


def test_ratios_of_a_busy_machine_are_marked_and_a_sentence_says_why(monkeypatch):
    monkeypatch.setattr(NoiseWatch, "noise", lambda self: Noise(1.3, 2))
    rounds = [[made_up(seconds=1.0), made_up(PEER, seconds)] for seconds in (0.14, 0.3, 0.1)]
    assert throughput.report(compared(*rounds)).splitlines()[4:6] == [
        "mini_vllm against mlx-lm: 0.14x (0.10–0.30) ?",
        "? During the run, other programs kept 1.3 of 2 cores busy: do not trust these numbers."]


def test_other_tokens_are_told_loudly():
    (told,) = throughput.format_agreement([made_up(ONE_AT_A_TIME), made_up(BATCHED, num_different=2)])
    assert told.startswith("mini_vllm produced different tokens for 2 of 16 requests: THIS IS A BUG")


# ---- the command


def test_the_command_prints_saves_and_draws(shallow, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(WORKLOADS, "decode-16", ("a few", lambda _: [small().items[index] for index in (0, 1, -1)]))
    monkeypatch.setattr(NoiseWatch, "noise", lambda self: Noise(1.5, 2, 1.1))
    files = tmp_path / "r.json", tmp_path / "r.png"
    assert main(["bench", "throughput", "--model", str(shallow("qwen3")), "--workload", "decode-16",
                 "--output", str(files[0]), "--plot", str(files[1])]) == 0
    captured = capsys.readouterr()
    assert captured.err == "Other programs keep 1.5 of 2 cores busy, so measurements will be unreliable.\n"
    assert captured.out.count(" ?\n") == 2 and "medians of 3 rounds" in captured.out
    assert "one at a time, mini_vllm and mlx-lm produced the same tokens." in captured.out
    saved = json.loads(files[0].read_text())
    assert [(result["arm"], result["num_rounds"]) for result in saved["results"]] == [(arm, 3) for arm in ARMS]
    assert saved["speed_ups"]["decode-16"].keys() == {ONE_AT_A_TIME, PEER}
    assert saved["noise_of"]["decode-16"] == {
        "others_cores": 1.5, "num_cores": 2, "slowdown": 1.1, "cause": "other programs kept 1.5 of 2 cores busy"}
    assert files[1].read_bytes().startswith(b"\x89PNG")


@pytest.mark.without_drafts("compares with an engine that does not draft")
def test_drafts_and_their_absence_are_measured_in_turns(shallow, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tuning, "draft_costs", lambda model_bytes: StepCosts((DraftCost(1, -1.0, 0.0),), -1.0))
    monkeypatch.setitem(WORKLOADS, "mixed-16", ("a few", lambda _: [Item([7, 8, 9, 10 + i] * 8, 6) for i in range(4)]))
    file = tmp_path / "r.json"
    assert main(["bench", "throughput", "--model", str(shallow("qwen3")), "--workload", "mixed-16", "--arm", "ours",
                 "--draft", "ngram", "--num-speculative-tokens", "2", "--output", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "; drafts: ngram" in printed and "medians of 5 rounds" in printed
    assert "mini_vllm with drafts against mini_vllm: " in printed and "produced the same tokens" in printed
    saved = json.loads(file.read_text())
    plain, drafted = saved["results"]
    assert (plain["arm"], drafted["arm"], drafted["num_rounds"]) == (BATCHED, DRAFTED, 5)
    assert drafted["num_drafted_tokens"] > plain["num_drafted_tokens"] == 0
    assert f"{drafted['num_accepted_tokens']} of {drafted['num_drafted_tokens']} drafted tokens accepted" in printed
    assert (saved["draft"], saved["num_speculative_tokens"]) == ("ngram", 2)
    (ratios,) = saved["ratios"]["mixed-16"].values()
    assert len(ratios) == 5 and sorted(ratios)[2] == saved["speed_ups"]["mixed-16"][BATCHED]


@pytest.mark.parametrize("command", [["generate", "hello"], ["bench", "throughput"], ["bench", "serve"]], ids=" ".join)
@pytest.mark.parametrize("options, complaint", [
    (["--model", "none", "--num-speculative-tokens", "2"], "--num-speculative-tokens needs --draft"),
    (["--model", "none", "--draft", "ngram", "--num-speculative-tokens", "-1"], "num_speculative_tokens is -1"),
    (["--draft", "no-such-model"], "no-such-model")])
def test_the_options_of_drafts_are_checked_alike_by_every_command(command, options, complaint, capsys, monkeypatch):
    monkeypatch.setattr(Comparison, "serve_round", lambda *_: pytest.fail("nothing is measured"))
    monkeypatch.setattr("mini_vllm.benchmark.serving.our_server", lambda *_: pytest.fail("no server starts"))
    assert main([*command, *options]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("arguments, complaint", [
    (["--arm", "one", "--arm", "mlx-lm", "--draft", "ngram"], "--draft needs --arm ours"),
    (["--model", "CHECKPOINT", "--draft", "tiny-tales", "--workload", "decode-16", "--arm", "ours"],
     "draft is 'tiny-tales', whose vocabulary"),
    (["--workload", "nano-256", "--model", "CHECKPOINT"], "the model's context is 512"),
    (["--rounds", "0", "--workload", "decode-16"], "rounds is 0"),
])
def test_the_command_says_what_is_wrong(arguments, complaint, shallow, capsys):
    arguments = [str(shallow("qwen3")) if each == "CHECKPOINT" else each for each in arguments]
    assert main(["bench", "throughput", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_generate_records_a_trace_and_trace_draws_it(shallow, tmp_path, capsys):
    path = tmp_path / "run.trace"
    generate = ["generate", "hello", "--model", str(shallow("qwen3")), "--max-tokens", "5", "--temperature", "0"]
    assert main([*generate, "--trace", str(path)]) == 0
    capsys.readouterr()
    assert main(["trace", str(path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'run.svg'}\n"
    assert ">hello</text>" in (tmp_path / "run.svg").read_text(encoding="utf-8"), "the row is named by its prompt"
    assert main([*generate, "--trace", str(tmp_path / "now.png")]) == 0
    assert (tmp_path / "now.png").read_bytes().startswith(b"\x89PNG"), "a picture at once, if the name ends so"
    capsys.readouterr()
    assert main(["generate", "hello", "--model", "none-such", "--trace", str(tmp_path / "nowhere/run.trace")]) == 2
    assert "there is no folder" in capsys.readouterr().err, "that is told before anything is loaded"
