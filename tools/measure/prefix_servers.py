"""The servers of the prefix benchmark: our engine with its cache on or off, and mlx-lm's BatchGenerator."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from mini_vllm.attention import PagedKVCache
from mini_vllm.backend import nn
from mini_vllm.benchmark.peers import make_generator
from mini_vllm.benchmark.workloads import Drawing
from mini_vllm.engine import LLMEngine
from mini_vllm.request import RequestOutput


@dataclass
class Served:
    """The cost and the outputs of serving some requests."""

    seconds: float = 0.0
    first_token_s: list[float] = field(default_factory=list)
    num_computed_tokens: int = 0
    #: None if the server does not report it.
    num_copied_bytes: int | None = 0
    token_ids: list[list[int]] = field(default_factory=list)

    def __add__(self, later: Served) -> Served:
        is_known = self.num_copied_bytes is not None and later.num_copied_bytes is not None
        return Served(self.seconds + later.seconds, self.first_token_s + later.first_token_s,
                      self.num_computed_tokens + later.num_computed_tokens,
                      (self.num_copied_bytes or 0) + (later.num_copied_bytes or 0) if is_known else None,
                      self.token_ids + later.token_ids)


class Server(Protocol):
    def serve(self, prompts: list[list[int]], num_tokens: int, in_turns: bool = False) -> Served:
        """Generate ``num_tokens`` for each prompt: all at once or, ``in_turns``, one after another."""


class OurServer:
    """Our engine. Its prefix cache is kept from one call to the next."""

    def __init__(self, engine: LLMEngine, drawing: Drawing) -> None:
        self.engine, self.drawing = engine, drawing

    def serve(self, prompts: list[list[int]], num_tokens: int, in_turns: bool = False) -> Served:
        engine = self.engine
        arrived: dict[str, float] = {}
        firsts: dict[str, float] = {}
        results: dict[str, RequestOutput] = {}
        start = time.perf_counter()
        copied_before = engine.runner.cache.num_copied_blocks
        while len(results) < len(prompts) or engine.has_unfinished_requests():
            while len(arrived) < len(prompts) and not (in_turns and engine.has_unfinished_requests()):
                params = self.drawing.params(num_tokens, seed=len(arrived))
                arrived[engine.add_request(prompts[len(arrived)], params)] = time.perf_counter()
            for output in engine.step():
                firsts.setdefault(output.request_id, time.perf_counter() - arrived[output.request_id])
                results[output.request_id] = output
        seconds = time.perf_counter() - start
        usages = [results[request_id].usage for request_id in arrived]
        num_computed = sum(usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
                           + usage.completion_tokens - 1 for usage in usages)
        num_copied_blocks = engine.runner.cache.num_copied_blocks - copied_before
        return Served(seconds, list(firsts.values()), num_computed, num_copied_blocks * self._block_bytes(),
                      [results[request_id].token_ids for request_id in arrived])

    def _block_bytes(self) -> int:
        pools = self.engine.runner.cache.pools
        _, num_both, block_size, head_dim = pools[0].shape
        return PagedKVCache.block_bytes(len(pools), num_both // 2, block_size, head_dim, pools[0].dtype)


class PeerServer:
    """mlx-lm's BatchGenerator. It shares nothing between requests, and keeps nothing from one call to the next."""

    def __init__(self, model: nn.Module, drawing: Drawing) -> None:
        self.model, self.drawing = model, drawing

    def serve(self, prompts: list[list[int]], num_tokens: int, in_turns: bool = False) -> Served:
        arrived: dict[int, float] = {}
        firsts: dict[int, float] = {}
        results: dict[int, list[int]] = {}

        def is_busy() -> bool:
            return any(len(tokens) < num_tokens for tokens in results.values())

        start = time.perf_counter()
        generator = make_generator(self.model, self.drawing)
        while len(arrived) < len(prompts) or is_busy():
            while len(arrived) < len(prompts) and not (in_turns and is_busy()):
                (uid,) = generator.insert([prompts[len(arrived)]], [num_tokens])
                arrived[uid], results[uid] = time.perf_counter(), []
            for response in generator.next_generated():
                firsts.setdefault(response.uid, time.perf_counter() - arrived[response.uid])
                results[response.uid].append(int(response.token))
        seconds = time.perf_counter() - start
        generator.close()
        num_computed = sum(map(len, prompts)) + len(prompts) * (num_tokens - 1)
        return Served(seconds, list(firsts.values()), num_computed, None, list(results.values()))
