"""Servers under the same traffic, in turns; and what the machine did meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mini_vllm.benchmark.cpu_time import CpuReading, read_cpu, stolen_share
from mini_vllm.benchmark.machine_noise import Noise, NoiseWatch
from mini_vllm.benchmark.serving.answers import (
    GOOD_SHARE,
    MAX_FIRST_TOKEN_S,
    MAX_STOLEN,
    MAX_TOKEN_S,
    Load,
    read_answer,
)
from mini_vllm.benchmark.serving.client import Received
from mini_vllm.benchmark.serving.goodput import Goodput, GoodputSearch
from mini_vllm.benchmark.serving.servers import Server
from mini_vllm.benchmark.serving.traffic import Call, Traffic, Words

#: A run has the requests of this many seconds, but at least this many requests.
RUN_S, MIN_CALLS = 20.0, 40
#: After a run that was cancelled, a server is idle again when it answers one token within this time.
IDLE_S, MAX_SETTLE_S = 0.5, 120.0
#: Before a run, we check for ``QUIET_S`` whether the host of this virtual machine takes its cores away, and repeat the
#: check until it does not. After ``MAX_DISTURBED_S`` of such checks and of repeated runs, any result is accepted.
QUIET_S, MAX_DISTURBED_S = 2.0, 900.0

#: Called for every run of a search with arm and load.
OnLoad = Callable[[str, Load], None]


class Arms:
    """The servers that take turns, by name; the first is ours."""

    def __init__(self, servers: Sequence[Server], words: Sequence[str], watch: NoiseWatch | None = None,
                 num_calls: int | None = None) -> None:
        """Create the arms. ``num_calls`` is the number of requests per run; None: as many as arrive in RUN_S."""
        self.servers, self._words, self._num_calls = servers, words, num_calls
        self._watch = watch or self._new_watch()
        self._patience_s = MAX_DISTURBED_S

    def _new_watch(self) -> NoiseWatch:
        return NoiseWatch(read=self._read_cpu)

    def _read_cpu(self) -> CpuReading:
        """Read the CPU clocks, counting the servers' time as our own."""
        reading = read_cpu()
        return replace(reading, own_s=reading.own_s + sum(server.cpu_s() or 0.0 for server in self.servers))

    def noise(self) -> Noise:
        return self._watch.noise()

    def words(self, seed: str) -> Words:
        return Words(self._words, seed)

    # ---- one run

    def run(self, server: Server, calls: Sequence[Call], rate: float, may_be_lost: bool = False) -> Load:
        """Send ``calls`` to a server.

        With ``may_be_lost``, the run is cancelled as soon as too many of its answers are bad.
        """
        lost, watch, before = _Lost(len(calls)) if may_be_lost else None, self._new_watch(), read_cpu()
        with watch.over(server.name):
            start_s, client_s, server_s = time.perf_counter(), time.process_time(), server.cpu_s() or 0.0
            received = asyncio.run(server.client.send_all(calls, lost))
            seconds = time.perf_counter() - start_s
            client_s, server_s = time.process_time() - client_s, (server.cpu_s() or 0.0) - server_s
        late_s = max((each.sent_s - each.due_s for each in received), default=0.0)
        load = Load(rate, len(calls), list(map(read_answer, received)), seconds, client_s / seconds, server_s / seconds,
                    late_s, stolen_share(before, read_cpu()))
        if not load.says_nothing:
            self._watch.add(watch)
        self.settle(server)
        return load

    def settle(self, server: Server) -> None:
        """Wait until a server is idle. Raise ValueError if it does not become idle."""
        for _ in range(int(MAX_SETTLE_S / IDLE_S)):
            start_s = time.perf_counter()
            answer = read_answer(asyncio.run(server.client.send(Call(0.0, " a", 1, 1))))
            if not answer.failure and time.perf_counter() - start_s < IDLE_S:
                return
            time.sleep(IDLE_S)
        raise ValueError(f"the server of {server.name} does not become idle: {answer.failure or 'it is still busy'}")

    # ---- what is measured

    def warm_up(self, traffic: Traffic) -> None:
        """Send a few requests, so that the model is loaded and shared prefixes are cached."""
        for server in self.servers:
            for _ in range(2):
                asyncio.run(server.client.send_all(traffic.calls(self.words("warm up"), 4, 100.0)))
            self.settle(server)

    def at_rate(self, traffic: Traffic, rate: float, seed: str = "stated") -> dict[str, Load]:
        """Send the same requests at the same times to each server in turn."""
        return {server.name: self.run(server, self._calls(traffic, rate, seed), rate) for server in self.servers}

    def goodputs(self, traffic: Traffic, first_rate: float, on_load: OnLoad) -> dict[str, Goodput]:
        """Return the goodput of each server. Their searches take turns, so that a slow minute affects both."""
        searches = {server.name: GoodputSearch(first_rate) for server in self.servers}
        found = dict.fromkeys(searches, Goodput())
        while any(search.next_rate is not None for search in searches.values()):
            for server in self.servers:
                search = searches[server.name]
                rate = search.next_rate
                if rate is not None:
                    seed = f"{rate:.3f} {search.num_runs_here}"
                    load = self._undisturbed(server, self._calls(traffic, rate, seed), rate, on_load)
                    search.note(load.is_good)
                    if load.is_good:  # the highest good rate so far: a search then tries only higher rates
                        found[server.name] = Goodput(rate, load.tokens_per_s)
        return found

    def _undisturbed(self, server: Server, calls: Sequence[Call], rate: float, on_load: OnLoad) -> Load:
        """Run until a result is conclusive, within the limit of our patience."""
        while True:
            start_s = time.perf_counter()
            self._wait_for_quiet()
            load = self.run(server, calls, rate, may_be_lost=True)
            on_load(server.name, load)
            if not load.says_nothing or self._patience_s <= 0:
                return load
            self._patience_s -= time.perf_counter() - start_s

    def _wait_for_quiet(self) -> None:
        """Wait until the host leaves this machine alone.

        The check keeps a core busy, because the system reports a core as taken away only while a program wants to use
        it.
        """
        while self._patience_s > 0:
            before = read_cpu()
            while time.perf_counter() < before.at_s + QUIET_S:
                pass
            if stolen_share(before, read_cpu()) <= MAX_STOLEN:
                return
            self._patience_s -= QUIET_S

    def _calls(self, traffic: Traffic, rate: float, seed: str) -> list[Call]:
        """Return calls with texts that no earlier run had, except for shared parts. Seed and rate determine them."""
        num_calls = self._num_calls or max(MIN_CALLS, round(rate * RUN_S))
        return traffic.calls(self.words(f"{traffic.name} {rate:.3f} {seed}"), num_calls, rate)


class _Lost:
    """Checks whether too many answers are already bad, among those that arrived and those that are overdue."""

    def __init__(self, num_calls: int) -> None:
        self._max_bad = num_calls * (1 - GOOD_SHARE)
        self._is_good: dict[int, bool] = {}

    def __call__(self, received: Sequence[Received]) -> bool:
        now_s = time.perf_counter()
        return sum(self._is_bad(each, now_s) for each in received) > self._max_bad + 1e-9

    def _is_bad(self, received: Received, now_s: float) -> bool:
        if not received.is_closed:
            return now_s - received.due_s > MAX_FIRST_TOKEN_S + MAX_TOKEN_S * received.call.max_tokens
        if id(received) not in self._is_good:
            self._is_good[id(received)] = read_answer(received).is_good
        return not self._is_good[id(received)]


def num_different(loads: Mapping[str, Load]) -> int:
    """Count the answers of the other servers that differ from ours. mlx-lm omits the space before a first word."""
    first, *others = loads.values()
    return sum(mine.text.lstrip() != theirs.text.lstrip() for other in others
               for mine, theirs in zip(first.answers, other.answers) if not mine.failure and not theirs.failure)
