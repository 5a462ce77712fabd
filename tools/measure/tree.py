"""What the prefix tree costs with many cached prompts that share a prefix, as all prompts with a BOS token do."""

from __future__ import annotations

import gc
import random
import statistics
import time

from mini_vllm.block_pool import BlockPool
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.prefix_tree import PrefixTree

NUM_PROMPTS = (1_000, 16_000)
#: What the first blocks of the prompts have in common: a name and a number of tokens.
CASES = (("nothing", 0), ("the first token", 1), ("half a block", DEFAULT_BLOCK_SIZE // 2))
OPERATIONS_PER_ROUND = 100
NUM_ROUNDS = 40


class TreeBench:
    """Cached prompts of one block each, all children of the root, and lookups of prompts that share their common part.

    If the prompts have nothing in common, a lookup shares the first token of one of them.
    """

    def __init__(self, num_prompts: int, num_in_common: int, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.heads = [list(range(num_in_common))] if num_in_common else [[index] for index in range(num_prompts)]
        self.pool = BlockPool(num_prompts + 1)
        self.tree = PrefixTree(self.pool, DEFAULT_BLOCK_SIZE)
        self.num_donated = 0
        for _ in range(num_prompts):
            self._donate(self._next_prompt())

    def match(self) -> float:
        """Return the seconds for a round of lookups."""
        questions = [self._prompt(self.rng.choice(self.heads)) for _ in range(OPERATIONS_PER_ROUND)]
        start = time.perf_counter()
        matches = [self.tree.match(question) for question in questions]
        elapsed = time.perf_counter() - start
        assert all(match.num_tokens >= len(self.heads[0]) for match in matches)
        return elapsed

    def replace(self) -> float:
        """Return the seconds for a round that allocates the oldest prompt's block, refills it and donates it."""
        prompts = [self._next_prompt() for _ in range(OPERATIONS_PER_ROUND)]
        start = time.perf_counter()
        for prompt in prompts:
            self._donate(prompt)
        return time.perf_counter() - start

    def _donate(self, prompt: list[int]) -> None:
        self.tree.donate(prompt, self.pool.get_new_blocks(1))

    def _next_prompt(self) -> list[int]:
        """Return a prompt with the next head.

        The heads take turns. So once the pool is full, a new prompt gets the block of the oldest prompt, which has the
        same head.
        """
        self.num_donated += 1
        return self._prompt(self.heads[self.num_donated % len(self.heads)])

    def _prompt(self, head: list[int]) -> list[int]:
        return head + [self.rng.randrange(100_000) for _ in range(DEFAULT_BLOCK_SIZE - len(head))]


def run_tree(all_num_prompts: tuple[int, int], rounds: int) -> dict[tuple[str, str, int], list[float]]:
    """Return the seconds per operation in each of the interleaved rounds.

    The key is (operation, what the prompts share, number of prompts).
    """
    benches = {(name, num_prompts): TreeBench(num_prompts, num_in_common)
               for name, num_in_common in CASES for num_prompts in all_num_prompts}
    times: dict[tuple[str, str, int], list[float]] = {}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for operation in ("match", "replace"):
                for key, bench in benches.items():
                    times.setdefault((operation, *key), []).append(getattr(bench, operation)() / OPERATIONS_PER_ROUND)
    finally:
        gc.enable()
    return times


def print_tree(all_num_prompts: tuple[int, int] = NUM_PROMPTS, rounds: int = NUM_ROUNDS) -> None:
    few, many = all_num_prompts
    times = run_tree(all_num_prompts, rounds)
    print("µs, and ratios of rounds measured side by side; medians")
    print(f"{'':<8} {'the prompts share':<18} {f'{few:,} cached':>13} {f'{many:,} cached':>14} {'ratio':>7} "
          f"{f'{many:,} to {many:,} that share nothing':>35}")
    for operation in ("match", "replace"):
        for name, _ in CASES:
            at_few, at_many = times[operation, name, few], times[operation, name, many]
            print(f"{operation:<8} {name:<18} {statistics.median(at_few) * 1e6:>13.1f} "
                  f"{statistics.median(at_many) * 1e6:>14.1f} {_ratio(at_many, at_few):>6.2f}x "
                  f"{_ratio(at_many, times[operation, CASES[0][0], many]):>34.2f}x")
    matches = {name: times["match", name, many] for name, _ in CASES}
    to_nothing = [f"{_ratio(matches[name], matches['nothing']):.2f}" for name in ("the first token", "half a block")]
    to_few = [_ratio(matches[name], times["match", name, few]) for name in matches]
    print(f"In short: with {many:,} cached prompts that share their first token, a lookup takes {to_nothing[0]} times "
          f"as long as with {many:,} prompts that share nothing; {to_nothing[1]} times if they share half a block. It "
          f"takes {min(to_few):.1f} to {max(to_few):.1f} times as long as with {few:,} prompts")


def _ratio(times: list[float], others: list[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(times, others))
