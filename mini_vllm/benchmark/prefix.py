"""What sharing a prefix is worth: the cache on, off, and mlx-lm's BatchGenerator, same weights, in one run.

    cold    16 requests at once that share 1024 of 1100 prompt tokens, 16 new tokens each; nothing is cached before
    in_turn the same 16, nothing cached before; each arrives when the one before it has ended
    warm    all at once after one earlier request with that prefix, as with a system prompt that every request has
    chat    one conversation of 8 turns; each turn sends the whole history

Times to the first token are medians over the requests. With all 16 at once and nothing cached before they cannot come
8 times as soon, whatever the server: one request after the other, the middle ones come after 8.5 * 1100 = 9350 computed
tokens, with sharing after 1024 + 8.5 * 76 = 1670 at best, which is 5.6 times less. A server that computes all prompts
side by side, as mlx-lm's does, makes everybody wait for the last, and so has more to gain. In ``in_turn`` nobody waits
for anybody, and a first token takes what it costs itself: 1100 tokens, or 76 of them.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import numpy as np

from mini_vllm.attention import PagedKVCache
from mini_vllm.backend import mx
from mini_vllm.benchmark.drawing import Drawing
from mini_vllm.benchmark.peer import load_peer
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.request import SamplingParams

NUM_REQUESTS, SHARED_TOKENS, OWN_TOKENS, NEW_TOKENS = 16, 1024, 76, 16
NUM_TURNS, TURN_TOKENS, ANSWER_TOKENS = 8, 96, 48


@dataclass
class Arm:
    """What one way of serving a workload took."""

    seconds: float = 0.0
    first_token_s: list[float] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_copied_bytes: int | None = 0
    token_ids: list[list[int]] = field(default_factory=list)


def serve(engine: LLMEngine, prompts: list[list[int]], num_tokens: int, drawing: Drawing, arm: Arm,
          in_turns: bool = False) -> None:
    start, arrived, firsts, results = time.perf_counter(), {}, {}, {}
    copied_before = engine.runner.cache.num_copied_blocks
    while len(results) < len(prompts) or engine.has_unfinished_requests():
        while len(arrived) < len(prompts) and not (in_turns and engine.has_unfinished_requests()):
            params = drawing.params(num_tokens, seed=len(arrived))
            arrived[engine.add_request(prompts[len(arrived)], params)] = time.perf_counter()
        for output in engine.step():
            firsts.setdefault(output.request_id, time.perf_counter() - arrived[output.request_id])
            results[output.request_id] = output
    arm.seconds += time.perf_counter() - start
    arm.first_token_s += firsts.values()
    cache = engine.runner.cache
    _, num_both, block_size, head_dim = cache.pools[0].shape
    block_bytes = PagedKVCache.block_bytes(len(cache.pools), num_both // 2, block_size, head_dim, cache.pools[0].dtype)
    arm.num_copied_bytes += (cache.num_copied_blocks - copied_before) * block_bytes
    for request_id in arrived:
        usage = results[request_id].usage
        arm.num_computed_tokens += (usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
                                    + usage.completion_tokens - 1)
        arm.token_ids.append(results[request_id].token_ids)


def serve_by_peer(model, prompts: list[list[int]], num_tokens: int, drawing: Drawing, arm: Arm,
                  in_turns: bool = False) -> None:
    from mlx_lm.generate import BatchGenerator
    start, arrived, firsts = time.perf_counter(), {}, {}
    generator = BatchGenerator(model, sampler=drawing.peer_sampler())
    results: dict[int, list[int]] = {}
    while len(arrived) < len(prompts) or any(len(tokens) < num_tokens for tokens in results.values()):
        while len(arrived) < len(prompts) and not (in_turns and any(len(t) < num_tokens for t in results.values())):
            (uid,) = generator.insert([prompts[len(arrived)]], [num_tokens])
            arrived[uid], results[uid] = time.perf_counter(), []
        for response in generator.next_generated():
            firsts.setdefault(response.uid, time.perf_counter() - arrived[response.uid])
            results[response.uid].append(int(response.token))
    arm.seconds += time.perf_counter() - start
    generator.close()
    arm.first_token_s += firsts.values()
    arm.num_computed_tokens += sum(map(len, prompts)) + len(prompts) * (num_tokens - 1)
    arm.num_copied_bytes = None
    arm.token_ids += results.values()


class Workloads:
    def __init__(self, loaded: LoadedModel, drawing: Drawing) -> None:
        self.loaded, self.drawing = loaded, drawing
        self.peer, _ = load_peer(loaded)
        rng = np.random.default_rng(0)
        vocabulary = loaded.config.vocab_size
        shared = rng.integers(1, vocabulary, SHARED_TOKENS).tolist()
        self.earlier = shared + rng.integers(1, vocabulary, OWN_TOKENS).tolist()
        self.prompts = [shared + rng.integers(1, vocabulary, OWN_TOKENS).tolist() for _ in range(NUM_REQUESTS)]
        self.turns = [rng.integers(1, vocabulary, TURN_TOKENS).tolist() for _ in range(NUM_TURNS)]

    def _serve(self, name: str, engine: LLMEngine | None, prompts: list[list[int]], num_tokens: int, arm: Arm,
               in_turns: bool = False) -> None:
        if name == "mlx-lm":
            serve_by_peer(self.peer, prompts, num_tokens, self.drawing, arm, in_turns)
        else:
            serve(engine, prompts, num_tokens, self.drawing, arm, in_turns)

    def _engine(self, name: str) -> LLMEngine | None:
        if name == "mlx-lm":
            return None
        return LLMEngine(EngineConfig(num_blocks=NUM_REQUESTS * 36 + 1, enable_prefix_caching=name == "cache on"),
                         loaded=self.loaded)

    def cold(self, name: str) -> Arm:
        arm = Arm()
        self._serve(name, self._engine(name), self.prompts, NEW_TOKENS, arm)
        return arm

    def in_turn(self, name: str) -> Arm:
        arm = Arm()
        self._serve(name, self._engine(name), self.prompts, NEW_TOKENS, arm, in_turns=True)
        return arm

    def warm(self, name: str) -> Arm:
        arm, engine = Arm(), self._engine(name)
        self._serve(name, engine, [self.earlier], 1, Arm())
        self._serve(name, engine, self.prompts, NEW_TOKENS, arm)
        return arm

    def chat(self, name: str) -> Arm:
        arm, history, engine = Arm(), [], self._engine(name)
        for turn in self.turns:
            history = history + turn
            self._serve(name, engine, [history], ANSWER_TOKENS, arm)
            history = history + arm.token_ids[-1]
        return arm


def count_blocks(loaded: LoadedModel, num_samples: int) -> tuple[int, int]:
    """Blocks that hold the prompt, and blocks in all, while samples of one 512-token prompt run."""
    engine = LLMEngine(EngineConfig(num_blocks=num_samples * 20 + 1), loaded=loaded)
    prompt = np.random.default_rng(0).integers(1, loaded.config.vocab_size, 512).tolist()
    engine.add_request(prompt, SamplingParams(max_tokens=NEW_TOKENS, n=num_samples, seed=0, ignore_eos=True), "r")
    names = ["r"] if num_samples == 1 else [f"r#{i}" for i in range(num_samples)]
    of_prompt, in_all = 0, 0
    while engine.has_unfinished_requests():
        engine.step()
        tables = [engine.kv_cache.get_block_ids(name) for name in names]
        of_prompt = max(of_prompt, len({i for table in tables for i in table[:512 // engine.config.block_size]}))
        in_all = max(in_all, len({i for table in tables for i in table}))
    return of_prompt, in_all


def print_prefix(model: str, rounds: int, drawing: Drawing) -> None:
    loaded = load(model)
    one, eight = count_blocks(loaded, 1), count_blocks(loaded, 8)
    print(f"a 512-token prompt takes {one[0]} blocks for 1 sample and {eight[0]} for 8 ({eight[0] / one[0]:.2f}x); "
          f"with {NEW_TOKENS} new tokens each, {one[1]} and {eight[1]}")
    workloads = Workloads(loaded, drawing)
    print(f"{model}; {drawing}; medians of {rounds} interleaved rounds; first token: median over requests")
    print(f"{'workload':<9} {'':<9} {'wall s':>8} {'first token s':>14} {'computed':>9} {'copied':>9}   tokens")
    for workload in ("cold", "in_turn", "warm", "chat"):
        run = getattr(workloads, workload)
        names = ("cache on", "cache off", "mlx-lm")
        mx.eval(mx.zeros(1))
        taken = [{name: run(name) for name in names} for _ in range(rounds)]
        medians = {}
        for name in names:
            arms = [arms_of_round[name] for arms_of_round in taken]
            wall = statistics.median(arm.seconds for arm in arms)
            first = statistics.median(statistics.median(arm.first_token_s) for arm in arms)
            medians[name] = wall, first
            copied = arms[0].num_copied_bytes
            same = "equal" if arms[0].token_ids == taken[0]["cache off"].token_ids else "DIFFERENT"
            if name == "mlx-lm" and not drawing.is_greedy:
                same = "its own"
            print(f"{workload:<9} {name:<9} {wall:>8.2f} {first:>14.3f} {arms[0].num_computed_tokens:>9,} "
                  f"{'-' if copied is None else f'{copied / 1e6:.1f} MB':>9}   {same}")
        for name in names[1:]:
            ratio = [statistics.median(arms[name].seconds / arms["cache on"].seconds for arms in taken),
                     statistics.median(statistics.median(arms[name].first_token_s)
                                       / statistics.median(arms["cache on"].first_token_s) for arms in taken)]
            print(f"{workload:<9} cache on against {name}: {ratio[0]:.1f}x in wall time, "
                  f"{ratio[1]:.1f}x in time to first token")
