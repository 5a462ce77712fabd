"""The statistics of a served load, the search for goodput, traffic and client; and a quick run of everything."""

import asyncio
import json
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mini_vllm.backend import mx
from mini_vllm.benchmark import traffic
from mini_vllm.benchmark.serving import (
    STEP,
    Bench,
    format_loads,
    format_overload,
    search_rates,
    summarise,
    write_peer_folder,
)
from mini_vllm.benchmark.traffic import TRAFFICS, Answer, Call, Client, Load, Words, read_answer, single_token_words
from mini_vllm.cli import main
from mini_vllm.models.loader import load

WORDS = [" a", " fox", " king", " said"]


# ---- traffic


@pytest.mark.parametrize("name", TRAFFICS)
def test_the_same_seed_gives_the_same_requests_and_another_rate_only_other_times(name):
    slow, again, fast = (TRAFFICS[name].calls(Words(WORDS, "s"), 30, rate) for rate in (2.0, 2.0, 8.0))
    assert slow == again
    assert [call.prompt for call in slow] == [call.prompt for call in fast]
    assert all(one.at_s == pytest.approx(4 * other.at_s) for one, other in zip(slow, fast))
    assert TRAFFICS[name].calls(Words(WORDS, "other"), 30, 2.0) != slow


def test_requests_come_as_in_a_poisson_process():
    calls = TRAFFICS["short"].calls(Words(WORDS, "s"), 4000, 5.0)
    gaps = [later.at_s - earlier.at_s for earlier, later in zip(calls, calls[1:])]
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.05), "as large as the mean"


def test_prompts_have_the_tokens_that_are_said_and_share_what_they_are_to_share():
    tokenizer = load("tiny-tales").tokenizer
    words = single_token_words(tokenizer)
    for name in TRAFFICS:
        for call in TRAFFICS[name].calls(Words(words, "s"), 5, 1.0):
            assert len(tokenizer.encode(call.prompt)) == call.num_prompt_tokens
    first, second = (TRAFFICS["shared"].calls(Words(words, seed), 1, 1.0)[0].prompt for seed in "ab")
    common = tokenizer.encode(first)[:1024]
    assert tokenizer.encode(second)[:1024] == common and first != second


# ---- answers


def read(*pieces):
    return read_answer(Call(0.0, " a", 1, 3), 10.0, [(at_s, data.encode()) for at_s, data in pieces])


def event(text="", usage=None):
    return "data: " + json.dumps({"choices": [{"text": text}] if text is not None else [], "usage": usage}) + "\n\n"


HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
USAGE = {"completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 7}}


def test_the_first_token_is_the_first_text_and_a_token_takes_the_mean_of_the_rest():
    answer = read((10.1, HEAD + ": keepalive 1/2\n\n"), (10.2, event("")), (10.4, event(" one")),
                  (10.5, "1a\r\n" + event(" two") + "\r\n"), (11.0, event(" three four")),
                  (11.2, event(None, USAGE) + "data: [DONE]\n\n"))
    assert not answer.failure and answer.text == " one two three four"
    assert (answer.num_tokens, answer.num_cached_tokens) == (4, 7)
    assert answer.first_token_s == pytest.approx(0.4)
    assert answer.token_s == pytest.approx(0.2), "0.6 s for the three tokens after the first"
    whole = event(" one")
    answer = read((10.1, HEAD + whole[:20]), (10.3, whole[20:]), (10.4, "data: [DONE]\n\n"))
    assert answer.first_token_s == pytest.approx(0.3) and answer.text == " one", "it came with its second piece"


@pytest.mark.parametrize("pieces, failure", [
    ([], "no answer"), ([(10.1, "HTTP/1.1 429 Too Many Requests\r\n\r\n{}")], "HTTP/1.1 429 Too Many Requests"),
    ([(10.1, HEAD + event(" one"))], "cut off"), ([(10.1, HEAD + "data: [DONE]\n\n")], "cut off")])
def test_an_answer_that_is_not_whole_is_a_failure(pieces, failure):
    assert read(*pieces).failure == failure


def answer(first_s=0.5, token_s=0.1, num_tokens=11, failure="", priority="normal", due_s=0.0):
    times = tuple(due_s + first_s + i * token_s for i in range(num_tokens))
    return Answer(priority, due_s, failure, "x", num_tokens, 2, times)


def test_good_is_a_first_token_within_a_second_and_then_one_every_150_ms():
    assert answer(first_s=1.0, token_s=0.149).is_good
    assert not answer(first_s=1.01).is_good and not answer(token_s=0.151).is_good
    assert answer(num_tokens=1).is_good and not answer(failure="cut off").is_good


def test_a_load_is_good_if_nine_in_ten_answers_are_and_its_percentiles_are_of_whole_answers():
    answers = [answer(first_s=i / 10) for i in range(1, 11)] + [answer(failure="cut off")]
    load = Load(4.0, answers, 10.0)
    assert load.good_share == 10 / 11 and load.is_good and not Load(4.0, answers[2:], 10.0).is_good
    found = load.to_dict()
    assert [found["first_token_s"][p] for p in (50, 90, 99)] == pytest.approx([0.5, 0.9, 1.0])
    assert (found["tokens_per_s"], found["failures"], found["cached_tokens"]) == (11.0, {"cut off": 1}, 20)
    assert Load(4.0, answers[-1:], 1.0).to_dict()["first_token_s"] == {}


# ---- goodput


def search(capacity):
    """Search for the goodput of a server that is good up to its capacity."""
    rates, tries, best = search_rates(4.0), [], 0.0
    rate = next(rates)
    while True:
        tries.append(rate)
        is_good = rate <= capacity
        best = rate if is_good else best
        try:
            rate = rates.send(is_good)
        except StopIteration:
            return best, tries


@pytest.mark.parametrize("capacity", [0.05, 0.5, 3.9, 4.0, 4.1, 7.0, 33.3, 400.0])
def test_the_search_finds_the_highest_good_rate_within_a_tenth_in_few_runs(capacity):
    goodput, tries = search(capacity)
    assert goodput <= capacity < goodput * STEP * (1 + 1e-9)
    assert len(tries) <= 24


def test_one_bad_run_does_not_decide():
    rates = search_rates(4.0)
    assert next(rates) == rates.send(False) == 4.0 > rates.send(False)
    assert search(0.0)[0] == 0.0 and search(1e9)[0] > 1000, "a server that is never good, or always, ends the search"


def test_the_goodputs_of_two_servers_are_searched_in_turns_and_compared(monkeypatch, capsys):
    """The servers are good up to 5 and 2 requests per second. Each run has other texts, the same for both servers."""
    bench = Bench([SimpleNamespace(name=name) for name in ("mini_vllm", "mlx-lm")], WORDS, num_calls=4)
    ran = []

    def run(server, calls, rate, must_be_good):
        assert must_be_good
        ran.append((server.name, calls[0].prompt))
        is_good = rate <= {"mini_vllm": 5.0, "mlx-lm": 2.0}[server.name]
        return Load(rate, [answer(first_s=0.1 if is_good else 2.0)] * 4, 1.0)

    monkeypatch.setattr(bench, "run", run)
    found = bench.goodput(TRAFFICS["short"], 4.0)
    ours, theirs = (found["goodput"][name]["requests_per_s"] for name in ("mini_vllm", "mlx-lm"))
    assert 5.0 / STEP < ours <= 5.0 and 2.0 / STEP < theirs <= 2.0
    assert found["ratios"] == {"mlx-lm": pytest.approx(ours / theirs)} and found["noise"]["num_cores"] > 0
    assert found["goodput"]["mini_vllm"]["tokens_per_s"] == 44.0
    assert [name for name, _ in ran[:6]] == ["mini_vllm", "mlx-lm"] * 3
    assert ran[1][1] != ran[3][1], "the same rate again has other texts"
    assert f"mini_vllm against mlx-lm: {ours / theirs:.2f}x" in capsys.readouterr().out


# ---- overload


def test_the_promise_is_checked_on_p90_and_the_step_is_the_median_gap_of_low_ones_meanwhile():
    high = [answer(first_s=0.1 + 0.001 * i, priority="high", due_s=5.0 + i, num_tokens=2) for i in range(10)]
    before = answer(first_s=0.1, token_s=0.004, num_tokens=1000, priority="low")
    low = [answer(first_s=1.0, token_s=0.04, num_tokens=500, priority="low"), before,
           answer(priority="low", failure="cut off")]
    found = summarise("made up", [0.05] * 10, [*high, *low])
    assert found["loaded_step_s"] == pytest.approx(0.04) and found["bound_s"] == pytest.approx(0.13) and found["holds"]
    assert (found["num_low"], found["num_low_finished"], found["failures"]) == (3, 2, ["cut off"])
    assert "two steps: met" in format_overload(found) and "2 of 3 finished" in format_overload(found)
    slow = [answer(first_s=0.2, priority="high", due_s=5.0, num_tokens=2)] * 2
    assert "NOT MET" in format_overload(summarise("made up", [0.05] * 10, [*high, *slow, *low]))
    few = summarise("made up", [0.05] * 10, high[:3])
    assert few["loaded_step_s"] is few["holds"] is None
    assert "unknown, unloaded time plus two steps: too few" in format_overload(few)
    with pytest.raises(ValueError, match="no high-priority request was answered"):
        summarise("made up", [0.05], low)


# ---- the output


def test_a_table_of_loads_shows_every_server():
    loads = {"mini_vllm": Load(4.0, [answer(), answer(failure="cut off")], 10.0),
             "mlx-lm": Load(4.0, [answer(failure="no answer")], 10.0)}
    _, ours, theirs = format_loads(loads).splitlines()
    assert ours.split() == ["mini_vllm", "0.50", "0.50", "0.50", "100", "100", "50%", "1.1", "2", "1"]
    assert theirs.split() == ["mlx-lm", *"-----", "0%", "0.0", "0", "1"]


# ---- the client, and everything together


class EchoServer:
    """Answers every request with its model name, in two pieces.

    A request whose prompt says so is answered slowly or never.
    """

    async def handle(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        writer.write((HEAD + event(body["model"])).encode())
        await writer.drain()
        if "hang" in body["prompt"]:
            await reader.read()  # until the client leaves
            self.num_left += 1
        else:
            await asyncio.sleep(0.4 if "slow" in body["prompt"] else 0.0)
            writer.write((event(None, {"completion_tokens": 1}) + "data: [DONE]\n\n").encode())
        writer.close()

    async def use(self, run):
        self.bodies, self.num_left = [], 0
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        try:
            return await run(Client("echo", server.sockets[0].getsockname()[1], "echo"))
        finally:
            await asyncio.sleep(0.01)
            server.close()


def test_the_client_sends_each_call_when_it_is_due_and_reads_whole_answers():
    calls = [Call(i * 0.02, f" prompt {i}", 2, 1, "high") for i in range(5)]
    server = EchoServer()
    got = asyncio.run(server.use(lambda client: client.send_all(calls)))
    assert [body["prompt"] for body in server.bodies] == [call.prompt for call in calls]
    assert all(each.text == "echo" and not each.failure for each in got)
    assert got[4].due_s - got[0].due_s == pytest.approx(0.08)
    assert {body["priority"] for body in server.bodies} == {"high"} and server.bodies[0]["temperature"] == 0


def test_a_call_that_cannot_be_good_any_more_is_cancelled_and_its_connection_is_closed(monkeypatch):
    monkeypatch.setattr(traffic, "MAX_FIRST_TOKEN_S", 0.05)
    hang, slow = Call(0.0, " hang", 1, 1), Call(0.0, " slow", 1, 20)  # after 0.2 s, and after 3.05 s
    server = EchoServer()
    got = asyncio.run(server.use(lambda client: client.send_all([hang, slow], must_be_good=True)))
    assert [each.failure for each in got] == ["cut off", ""] and server.num_left == 1
    (got,) = asyncio.run(server.use(lambda client: client.send_all([replace(slow, max_tokens=1)])))
    assert not got.failure
    (got,) = asyncio.run(Client("nobody", 1, "nobody").send_all([Call(0.0, " a", 1, 1)]))
    assert got.failure == "no answer", "there is no such server"


@pytest.mark.parametrize("words, complaint", [(["--rate", "0"], "--rate is 0, must be above 0"),
                                              (["--requests", "0"], "--requests is 0, must be at least 1")])
def test_what_cannot_be_is_refused_before_a_server_is_started(words, complaint, capsys):
    assert main(["bench", "serve", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_a_quick_run_serves_measures_and_saves(tmp_path, capsys):
    file = tmp_path / "serve.json"
    assert main(["bench", "serve", "--quick", "--output", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("quick: ") and "6 requests at 20 per second" in printed
    assert printed.count("low:            6 of 6 finished") == 2 and "failures" not in printed
    saved = json.loads(file.read_text())
    assert saved["short"]["rates"][0]["mini_vllm"]["failures"] == {} and len(saved["priority"]) == 2


@pytest.mark.parametrize("words, options", [
    ([], []), (["--draft", "ngram"], ["--draft", "ngram", "--num-speculative-tokens", "7"])], ids=["plain", "drafts"])
def test_drafts_are_an_option_of_our_server_only(words, options, capsys, monkeypatch):
    def our_server(model, given):
        raise ValueError(f"our server: {given}")

    monkeypatch.setattr("mini_vllm.benchmark.serving.our_server", our_server)
    assert main(["bench", "serve", "--quick", *words]) == 2
    captured = capsys.readouterr()
    assert f"our server: {options}" in captured.err
    assert (f"mini_vllm: {' '.join(options)}" in captured.out) is bool(options)


def test_mlx_lm_gets_the_weights_as_ours_are_and_no_end_of_text(tmp_path):
    loaded = load("tiny-tales")
    write_peer_folder(loaded, tmp_path / "folder")
    weights = mx.load(str(tmp_path / "folder" / "model.safetensors"))
    ours = loaded.model.model.norm.weight.dtype
    assert {weight.dtype for weight in weights.values()} == {ours}
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert config["eos_token_id"] >= config["vocab_size"] and (tmp_path / "folder" / "tokenizer.json").is_file()
    with pytest.raises(ValueError, match="has no tokenizer.json, .* --arm ours"):
        write_peer_folder(replace(loaded, path=tmp_path), tmp_path / "other")
    assert not (tmp_path / "other").exists()
