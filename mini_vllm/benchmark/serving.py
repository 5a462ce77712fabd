"""``mini-vllm bench serve``: our server and mlx-lm's under the same requests, and high priority under overload.

The promise under overload: p90 of the time to the first token of high-priority requests is at most what it is without
load, plus two steps under load. One is the step that runs when the request arrives; the other is the extra time of its
own step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mini_vllm.benchmark.machine import NoiseWatch, describe_machine
from mini_vllm.benchmark.peers import has_peer, without_peer
from mini_vllm.benchmark.results import BATCHED, PEER, Results, Table, announce, percentiles
from mini_vllm.benchmark.throughput import check_draft
from mini_vllm.benchmark.traffic import (
    GOOD_SHARE,
    MAX_FIRST_TOKEN_S,
    MAX_TOKEN_S,
    TRAFFICS,
    Answer,
    Call,
    Client,
    Load,
    Traffic,
    Words,
    single_token_words,
)
from mini_vllm.benchmark.workloads import wants_peer
from mini_vllm.checks import check_installed
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.speculation import draft_settings

#: The default rates of the tables; the searches begin at the first.
DEFAULT_RATES, QUICK_RATES = [4.0, 8.0], [20.0]
#: A run has the requests of this many seconds, but at least this many requests; this many in a quick run.
RUN_S, MIN_CALLS, QUICK_CALLS = 20.0, 40, 6
#: After a run with cancelled calls, a server is idle again when it answers one token within this time.
IDLE_S, MAX_SETTLE_S = 0.5, 120.0
#: The search for the goodput is on a ladder of rates, each STEP times the one below. It jumps over JUMP rungs, about a
#: factor of two, until both a good and a bad rate are known.
STEP, JUMP, LOWEST, HIGHEST = 1.1, 7, -60, 80
#: With fewer high-priority requests, p90 says nothing.
MIN_TO_TELL = 10
GOODPUT = (f"Goodput: the highest rate at which {GOOD_SHARE:.0%} of the answers are good. A good answer has its\n"
           f"first token within {MAX_FIRST_TOKEN_S:g} s and, on average, another token every "
           f"{MAX_TOKEN_S * 1000:.0f} ms.")
LOADS = Table((f"{'':<9}", "{}"), ("first, s: p50", "{:.2f}"), ("  p90", "{:.2f}"), ("  p99", "{:.2f}"),
              ("next, ms: p50", "{:.0f}"), (" p90", "{:.0f}"), ("good", "{:.0%}"), ("tokens/s", "{:.1f}"),
              ("cached", "{}"), ("failed", "{}"))
#: A server must answer within this time after its start.
START_S = 120.0
#: mlx-lm's server, in a process with the same BLAS as ours: the backend loads it before mlx-lm imports MLX.
PEER_SERVER = "import mini_vllm.backend; from mlx_lm.server import main; main()"
#: Its options. By default it decodes 32 requests at once, where ours has 64 seats, and keeps 10 caches, so that a
#: prefix may be lost. It reads 8 prompts together, its default: with 1, mixed traffic was better in one run and shared
#: traffic no better. Logging a line for each prompt would cost it time.
PEER_OPTIONS = ("--decode-concurrency", "64", "--prompt-concurrency", "8", "--prompt-cache-size", "64",
                "--log-level", "ERROR")
#: No token has this id, so no text ends before its length.
NO_TOKEN = 1_000_000


class Sizes(NamedTuple):
    """The numbers of requests of an overload, and their arrival times."""

    num_high: int = 30
    high_rate: float = 2.0
    #: High requests arrive from then on: the low ones have taken their seats.
    high_after_s: float = 3.0
    #: Without load, the high requests arrive one after the other at this interval.
    alone_s: float = 1.0
    #: Low requests of this kind arrive faster than they can be served.
    traffic: str = "mixed"
    num_low: int = 200
    low_rate: float = 12.0
    #: Low requests with long outputs arrive all at once.
    num_long: int = 96
    long_tokens: int = 512


QUICK_SIZES = Sizes(3, 10.0, 0.2, 0.1, "short", 6, 50.0, 6, 24)
HIGH = Traffic("high", "prompts of 32–128 tokens, outputs of 16", (32, 128), (16, 16))


def run_serve_benchmark(arguments: argparse.Namespace) -> int:
    """Run the command. Invalid options are reported before a server is started."""
    check_installed("serve", "the server")
    for rate in arguments.rate or ():
        if not 0 < rate <= 10_000:
            raise ValueError(f"--rate is {rate:g}, must be above 0 and at most 10000 requests per second")
    if arguments.requests is not None and arguments.requests < 1:
        raise ValueError(f"--requests is {arguments.requests}, must be at least 1")
    compares, draft = wants_peer(arguments), draft_settings(arguments)
    EngineConfig(**draft)
    rates = arguments.rate or (QUICK_RATES if arguments.quick else DEFAULT_RATES)
    parts = arguments.part or (["rates", "priority"] if arguments.quick else ["rates", "goodput", "priority"])
    traffics = [TRAFFICS[name] for name in arguments.traffic or (["short"] if arguments.quick else ["mixed", "shared"])]
    with Results(arguments) as results, ExitStack() as running:
        loaded = load(arguments.model)
        announce(arguments, f"{loaded.name}; greedy", *describe_machine())
        options = [word for name, value in draft.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        if draft:
            check_draft(loaded, draft)
            print(f"{BATCHED}: {' '.join(options)}", flush=True)
        servers = [running.enter_context(our_server(str(arguments.model), options))]
        if compares and has_peer():
            servers.append(running.enter_context(peer_server(loaded)))
            print(f"{PEER}: {' '.join(PEER_OPTIONS)}", flush=True)
        elif compares:
            print(without_peer(), file=sys.stderr)
        bench = Bench(servers, single_token_words(loaded.tokenizer),
                      arguments.requests or (QUICK_CALLS if arguments.quick else None))
        saved: dict[str, object] = {"model": loaded.name, **draft}
        for traffic in traffics if {"rates", "goodput"} & set(parts) else ():
            print(f"\n{traffic.name}: {traffic.about}", flush=True)
            bench.warm_up(traffic)
            found: dict[str, object] = {}
            if "rates" in parts:
                found["rates"] = [bench.at_rate(traffic, rate) for rate in rates]
            if "goodput" in parts:
                found["goodput"] = bench.goodput(traffic, rates[0])
            saved[traffic.name] = found
        if "priority" in parts:
            saved["priority"] = bench.overload(QUICK_SIZES if arguments.quick else Sizes())
        results.save(saved)
    return 0


class Bench:
    """The servers that take turns; the first is ours. Each measurement prints its results and returns them."""

    def __init__(self, servers: Sequence[Client], words: Sequence[str], num_calls: int | None = None) -> None:
        """Create the bench. ``num_calls`` is the number of requests per run; None: as many as arrive in RUN_S."""
        self.servers, self._words, self._num_calls = servers, words, num_calls

    def run(self, server: Client, calls: Sequence[Call], rate: float, must_be_good: bool = False) -> Load:
        """Send ``calls`` to a server, and wait until it is idle again. Raise ValueError if it does not become idle."""
        start_s = time.perf_counter()
        answers = asyncio.run(server.send_all(calls, must_be_good))
        found = Load(rate, answers, time.perf_counter() - start_s)
        end_s = time.perf_counter() + MAX_SETTLE_S
        while time.perf_counter() < end_s:
            (answer,) = asyncio.run(server.send_all([Call(0.0, " a", 1, 1)]))
            if not answer.failure and answer.first_token_s < IDLE_S:
                return found
            time.sleep(IDLE_S)
        raise ValueError(f"the server of {server.name} does not become idle: {answer.failure or 'it is still busy'}")

    def _calls(self, traffic: Traffic, rate: float, seed: str) -> list[Call]:
        """Return calls with texts that no earlier run had, except for shared parts. Seed and rate determine them."""
        num_calls = self._num_calls or max(MIN_CALLS, round(rate * RUN_S))
        return traffic.calls(Words(self._words, f"{traffic.name} {rate:.3f} {seed}"), num_calls, rate)

    def warm_up(self, traffic: Traffic) -> None:
        """Send a few requests, so that the model is loaded and shared prefixes are cached."""
        for server in self.servers:
            for _ in range(2):
                self.run(server, traffic.calls(Words(self._words, "warm up"), 4, 100.0), 100.0)

    def at_rate(self, traffic: Traffic, rate: float) -> dict[str, object]:
        """Send the same requests at the same times to each server in turn."""
        loads = {server.name: self.run(server, self._calls(traffic, rate, "stated"), rate) for server in self.servers}
        first, *others = loads.values()
        print(f"\n{len(first.answers)} requests at {rate:g} per second\n{format_loads(loads)}", flush=True)
        for other in others:  # mlx-lm omits the space before a first word
            num_different = sum(mine.text.lstrip() != theirs.text.lstrip() for mine, theirs in
                                zip(first.answers, other.answers) if not mine.failure and not theirs.failure)
            print(f"{num_different} of {len(first.answers)} answers differ.", flush=True)
        return {name: load.to_dict() for name, load in loads.items()}

    def goodput(self, traffic: Traffic, first_rate: float) -> dict[str, object]:
        """Search for the goodput of each server. The searches take turns, so that a slow minute affects both."""
        print(f"\n{GOODPUT}", flush=True)
        watch = NoiseWatch()
        searches = {server.name: search_rates(first_rate) for server in self.servers}
        rates = {name: next(search) for name, search in searches.items()}
        found = {name: {"requests_per_s": 0.0, "tokens_per_s": 0.0} for name in searches}
        num_runs = 0
        with watch.over():
            while rates:
                num_runs += 1
                for server in [server for server in self.servers if server.name in rates]:
                    name, rate = server.name, rates[server.name]
                    run = self.run(server, self._calls(traffic, rate, str(num_runs)), rate, must_be_good=True)
                    print(f"  {name:<10} {rate:>6.2f} per second: {run.good_share:>4.0%} good"
                          + ", which is too few" * (not run.is_good), flush=True)
                    if run.is_good:  # the highest rate so far: the search then tries only higher rates
                        found[name] = {"requests_per_s": rate, "tokens_per_s": run.tokens_per_s}
                    try:
                        rates[name] = searches[name].send(run.is_good)
                    except StopIteration:
                        del rates[name]
        noise = watch.noise()
        for name, best in found.items():
            print(f"{name:<10} {best['requests_per_s']:>6.2f} requests per second, {best['tokens_per_s']:.0f} tokens/s")
        ours = found[BATCHED]["requests_per_s"]
        ratios = {name: ours / best["requests_per_s"] for name, best in found.items()
                  if name != BATCHED and best["requests_per_s"]}
        for name, ratio in ratios.items():
            print(f"{BATCHED} against {name}: {ratio:.2f}x{noise.mark}")
        print(noise.warning(), end="", flush=True)
        return {"goodput": found, "ratios": ratios, "noise": noise.to_dict()}

    def overload(self, sizes: Sizes) -> list[dict[str, Any]]:
        """Send high-priority requests to our server among two kinds of low ones, and without any.

        The low ones are mixed requests faster than they can be served, or long ones that fill the running batch.
        """
        print("\nHigh priority under overload.", flush=True)
        traffic, fills_batch = TRAFFICS[sizes.traffic], sizes.num_long >= EngineConfig.max_num_seqs
        words = Words(self._words, "long")
        mixed = traffic.calls(Words(self._words, "low"), sizes.num_low, sizes.low_rate, "low")
        long = [Call(0.0, words.text(24), 24, sizes.long_tokens, "low") for _ in range(sizes.num_long)]
        found = []
        for low, about in ((mixed, f"at {sizes.low_rate:g} per second, {traffic.about}"),
                           (long, f"at once, outputs of {sizes.long_tokens}"
                            + ": they fill the running batch" * fills_batch)):
            alone, high = (HIGH.calls(Words(self._words, seed), sizes.num_high, sizes.high_rate, "high")
                           for seed in (f"unloaded {about}", about))
            alone = [replace(call, at_s=index * sizes.alone_s) for index, call in enumerate(alone)]
            high = [replace(call, at_s=call.at_s + sizes.high_after_s) for call in high]
            unloaded = self.run(self.servers[0], alone, 1 / sizes.alone_s)
            loaded = self.run(self.servers[0], sorted([*low, *high], key=lambda call: call.at_s), 0.0)
            found.append(summarise(f"{len(low)} low-priority requests {about}",
                                   [answer.first_token_s for answer in unloaded.whole], loaded.answers))
            print(f"\n{format_overload(found[-1])}", flush=True)
        return found


def search_rates(first_rate: float) -> Generator[float, bool, None]:
    """Yield rates to try, from ``first_rate`` on, until one is good and the next rung of the ladder is not.

    The generator is sent whether the run was good. A rate is bad if two runs are: a single one may be the machine's
    fault.
    """
    rung: int | None = 0
    best = worst = None
    while rung is not None:
        rate = first_rate * STEP ** rung
        if (yield rate) or (yield rate):
            best = rung
        else:
            worst = rung
        if worst is None:
            rung = rung + JUMP if rung < HIGHEST else None
        elif best is None:
            rung = rung - JUMP if rung > LOWEST else None
        else:
            rung = (best + worst) // 2 if worst - best > 1 else None


def format_loads(loads: Mapping[str, Load]) -> str:
    """Format the servers at one rate, one line each: times, and throughput."""
    lines = [LOADS.title]
    for name, of_server in loads.items():
        found = of_server.to_dict()
        first, token = found["first_token_s"], found["token_s"]
        token_ms = [1000 * token[p] if token else None for p in (50, 90)]
        lines.append(LOADS.row(name, first.get(50), first.get(90), first.get(99), *token_ms, of_server.good_share,
                               of_server.tokens_per_s, found["cached_tokens"],
                               len(of_server.answers) - len(of_server.whole)))
    return "\n".join(lines)


def summarise(about: str, unloaded_s: Sequence[float], answers: Sequence[Answer]) -> dict[str, Any]:
    """Compute the results from first-token times without load and all answers under load.

    Raise ValueError if no answer to a high-priority request is complete.
    """
    high = [answer for answer in answers if answer.priority == "high" and not answer.failure]
    low = [answer for answer in answers if answer.priority == "low"]
    if not high or not unloaded_s:
        failures = [answer.failure for answer in answers][:3]
        raise ValueError(f"{about}: no high-priority request was answered: {failures}")
    first_s, last_s = min(answer.due_s for answer in high), max(answer.text_times_s[-1] for answer in high)
    # the times between two tokens of a low request while high ones arrived
    gaps = [later - earlier for answer in low for earlier, later in zip(answer.text_times_s, answer.text_times_s[1:])
            if first_s <= later <= last_s]
    unloaded, loaded = percentiles(unloaded_s), percentiles([answer.first_token_s for answer in high])
    step_s = statistics.median(gaps) if gaps else None
    bound_s = None if step_s is None else unloaded[90] + 2 * step_s
    holds = None if bound_s is None or len(high) < MIN_TO_TELL else loaded[90] <= bound_s
    return {"about": about, "unloaded_first_token_s": unloaded, "loaded_first_token_s": loaded, "loaded_step_s": step_s,
            "bound_s": bound_s, "holds": holds, "num_low": len(low),
            "num_low_finished": sum(not answer.failure for answer in low),
            "failures": sorted({answer.failure for answer in answers if answer.failure})}


def format_overload(found: Mapping[str, Any]) -> str:
    """Say whether high-priority requests are served as if there were no low-priority requests."""
    def ms(seconds: float | None) -> str:
        return "unknown" if seconds is None else f"{seconds * 1000:.0f} ms"

    told = {True: "met", False: "NOT MET", None: "too few requests to tell"}[found["holds"]]
    return "\n".join([
        f"{found['about']}",
        f"high, unloaded: first token p90 {ms(found['unloaded_first_token_s'][90])}",
        f"loaded step:    {ms(found['loaded_step_s'])}, the median between tokens",
        f"high, loaded:   first token p90 {ms(found['loaded_first_token_s'][90])}",
        f"target:         {ms(found['bound_s'])}, unloaded time plus two steps: {told}",
        f"low:            {found['num_low_finished']} of {found['num_low']} finished",
        *[f"failures: {', '.join(found['failures'])}"] * bool(found["failures"])])


# ---- the measured servers: each a process of its own, on a loopback port


def our_server(model: str, options: Sequence[str] = ()) -> AbstractContextManager[Client]:
    """Run ``mini-vllm serve``."""
    return _running(BATCHED, ["-m", "mini_vllm", "serve", "--model", model, *options], model)


@contextmanager
def peer_server(loaded: LoadedModel) -> Iterator[Client]:
    """Run mlx-lm's server, with the weights as our engine has them: in float32 on a CPU."""
    with tempfile.TemporaryDirectory() as folder:
        write_peer_folder(loaded, Path(folder))
        with _running(PEER, ["-c", PEER_SERVER, "--model", folder, *PEER_OPTIONS], "default_model") as server:
            yield server


def write_peer_folder(loaded: LoadedModel, folder: Path) -> None:
    """Write weights, config and tokenizer, without an end of text, because mlx-lm does not know ``ignore_eos``.

    Raise ValueError if the tokenizer is not in files that mlx-lm reads, as in a .gguf.
    """
    source = Path(loaded.path)
    if not (source / "tokenizer.json").is_file():
        raise ValueError(f"{loaded.name} has no tokenizer.json, which mlx-lm's server needs: use --arm ours")
    export_folder(loaded, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": NO_TOKEN}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)


@contextmanager
def _running(name: str, command: Sequence[str], model: str) -> Iterator[Client]:
    """Start a process, wait until it answers, and end it afterwards.

    Raise ValueError, with its last line of output, if it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, *command, "--port", str(port)], stdout=log, stderr=log)
        try:
            end_s = time.monotonic() + START_S
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > end_s:
                    log.seek(0)
                    said = [f": {line}" for line in log.read().strip().splitlines()[-1:]]
                    raise ValueError(f"the server of {name} does not start{''.join(said)}")
                time.sleep(0.1)
            yield Client(name, port, model)
        finally:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
    return False
