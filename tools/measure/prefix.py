"""What sharing a prefix gains: the cache on, the cache off, and mlx-lm's BatchGenerator, same weights, in one run.

    cold     16 requests at once that share 1024 of 1100 prompt tokens, 16 new tokens each; nothing is cached before
    in_turn  the same 16, nothing cached before; each arrives when the previous one has ended
    warm     all at once after one earlier request with that prefix, as with a system prompt that every request has
    chat     one conversation of 8 turns; each turn sends the whole history

Times to the first token are medians over the requests. With all 16 at once and nothing cached before, no server can
make them 8 times as short. Served one after another without sharing, the median request gets its first token after 8.5
* 1100 = 9350 computed tokens. With sharing it takes at least 1024 + 8.5 * 76 = 1670, which is 5.6 times less. A server
that computes all prompts side by side, as mlx-lm's does, makes every request wait for the last, and so has more to
gain. In ``in_turn`` no request waits for another, and a first token costs its own prompt: 1100 tokens, or 76 of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from measure.prefix_servers import OurServer, PeerServer, Served, Server
from mini_vllm.benchmark.peers import load_peer
from mini_vllm.benchmark.workloads import Drawing
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.request import SamplingParams

CACHE_ON, CACHE_OFF, PEER = SERVERS = ("cache on", "cache off", "mlx-lm")


@dataclass(frozen=True)
class Size:
    """The amount of work: requests that share a prefix and their tokens, then the turns of a chat."""

    num_requests: int = 16
    num_shared: int = 1024
    num_own: int = 76
    num_new: int = 16
    num_turns: int = 8
    num_in_turn: int = 96
    num_in_answer: int = 48


FULL = Size()
SMALL = Size(num_requests=3, num_shared=64, num_own=8, num_new=4, num_turns=2, num_in_turn=8, num_in_answer=4)


class Workloads:
    """The four workloads, each for a server that has not served anything before."""

    def __init__(self, vocab_size: int, size: Size) -> None:
        self.size = size
        rng = np.random.default_rng(0)
        shared = rng.integers(1, vocab_size, size.num_shared).tolist()
        self.earlier = shared + rng.integers(1, vocab_size, size.num_own).tolist()
        self.prompts = [shared + rng.integers(1, vocab_size, size.num_own).tolist() for _ in range(size.num_requests)]
        self.turns = [rng.integers(1, vocab_size, size.num_in_turn).tolist() for _ in range(size.num_turns)]
        self.by_name: dict[str, Callable[[Server], Served]] = {
            "cold": self.cold, "in_turn": self.in_turn, "warm": self.warm, "chat": self.chat}

    def cold(self, server: Server) -> Served:
        return server.serve(self.prompts, self.size.num_new)

    def in_turn(self, server: Server) -> Served:
        return server.serve(self.prompts, self.size.num_new, in_turns=True)

    def warm(self, server: Server) -> Served:
        server.serve([self.earlier], 1)
        return server.serve(self.prompts, self.size.num_new)

    def chat(self, server: Server) -> Served:
        served, history = Served(), list[int]()
        for turn in self.turns:
            history = history + turn
            served += server.serve([history], self.size.num_in_answer)
            history = history + served.token_ids[-1]
        return served


def count_blocks(loaded: LoadedModel, num_samples: int, num_new: int) -> tuple[int, int]:
    """Return the number of blocks for the prompt, and in all, while samples of one 512-token prompt run."""
    config = EngineConfig(num_blocks=num_samples * 20 + 1)
    engine = LLMEngine(config, loaded=loaded)
    prompt = np.random.default_rng(0).integers(1, loaded.config.vocab_size, 512).tolist()
    engine.add_request(prompt, SamplingParams(max_tokens=num_new, n=num_samples, seed=0, ignore_eos=True), "r")
    names = ["r"] if num_samples == 1 else [f"r#{i}" for i in range(num_samples)]
    of_prompt, in_all = 0, 0
    while engine.has_unfinished_requests():
        engine.step()
        tables = [engine.kv_cache.get_block_ids(name) for name in names]
        of_prompt = max(of_prompt, len({i for table in tables for i in table[:512 // config.block_size]}))
        in_all = max(in_all, len({i for table in tables for i in table}))
    return of_prompt, in_all


def print_prefix(model: str, rounds: int, drawing: Drawing, size: Size = FULL) -> None:
    loaded = load(model)
    one, eight = (count_blocks(loaded, num_samples, size.num_new) for num_samples in (1, 8))
    print(f"a 512-token prompt takes {one[0]} blocks for 1 sample and {eight[0]} for 8 ({eight[0] / one[0]:.2f}x); "
          f"with {size.num_new} new tokens each, {one[1]} and {eight[1]}")
    peer, _ = load_peer(loaded)

    def make_server(name: str) -> Server:
        if name == PEER:
            return PeerServer(peer, drawing)
        config = EngineConfig(num_blocks=size.num_requests * 36 + 1, enable_prefix_caching=name == CACHE_ON)
        return OurServer(LLMEngine(config, loaded=loaded), drawing)

    print(f"{model}; {drawing}; medians of {rounds} interleaved rounds; first token: median over requests")
    print(f"{'workload':<9} {'':<9} {'wall s':>8} {'first token s':>14} {'computed':>9} {'copied':>9}   tokens")
    gains: dict[tuple[str, str], tuple[float, float]] = {}
    for workload, run in Workloads(loaded.config.vocab_size, size).by_name.items():
        taken = [{name: run(make_server(name)) for name in SERVERS} for _ in range(rounds)]
        gains |= {(workload, name): gain for name, gain in _print_workload(workload, taken, drawing).items()}
    (cold, _), (warm, warm_first) = gains["cold", CACHE_OFF], gains["warm", CACHE_OFF]
    print(f"In short: {size.num_requests} requests that share {size.num_shared} of {size.num_shared + size.num_own} "
          f"tokens: {cold:.1f} times as fast as without the cache, {gains['cold', PEER][0]:.1f} times mlx-lm's "
          f"batches; with the prefix cached before, {warm:.1f} times as fast, and first tokens arrive "
          f"{warm_first:.1f} times as early; one after the other, first tokens arrive "
          f"{gains['in_turn', CACHE_OFF][1]:.1f} times as early")


def _print_workload(workload: str, taken: list[dict[str, Served]], drawing: Drawing) -> dict[str, tuple[float, float]]:
    """Print a line per server and the ratios to the other servers. Return these ratios, by server.

    ``taken`` contains a dict per round. The ratios are taken within a round, of wall times and of times to the first
    token.
    """
    for name in SERVERS:
        first_round = taken[0][name]
        wall = statistics.median(of_round[name].seconds for of_round in taken)
        first = statistics.median(statistics.median(of_round[name].first_token_s) for of_round in taken)
        copied = first_round.num_copied_bytes
        same = "equal" if first_round.token_ids == taken[0][CACHE_OFF].token_ids else "DIFFERENT"
        if name == PEER and not drawing.is_greedy:
            same = "its own"
        print(f"{workload:<9} {name:<9} {wall:>8.2f} {first:>14.3f} {first_round.num_computed_tokens:>9,} "
              f"{'-' if copied is None else f'{copied / 1e6:.1f} MB':>9}   {same}")
    gains = {}
    for name in (CACHE_OFF, PEER):
        wall = statistics.median(of_round[name].seconds / of_round[CACHE_ON].seconds for of_round in taken)
        first = statistics.median(statistics.median(of_round[name].first_token_s)
                                  / statistics.median(of_round[CACHE_ON].first_token_s) for of_round in taken)
        print(f"{workload:<9} cache on against {name}: {wall:.1f}x in wall time, {first:.1f}x in time to first token")
        gains[name] = wall, first
    return gains
