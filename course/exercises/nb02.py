"""The exercises of notebook 02: the free queue, hits after an eviction, attention through a block table."""

from __future__ import annotations

from itertools import permutations

from course.exercises import Exercise
from mini_vllm.block_pool import BlockPool
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request


def _blocks_of_r() -> list[int]:
    pool = BlockPool(8)
    p, q = pool.get_new_blocks(3), pool.get_new_blocks(2)
    pool.cache_full_blocks(p, ["first", "second", "third"])
    pool.free_blocks(reversed(p))
    pool.free_blocks(reversed(q))
    pool.touch(p[:1])
    return [block.block_id for block in pool.get_new_blocks(5)]


def _tokens_found() -> int:
    manager = KVCacheManager(num_blocks=8, block_size=4)
    first = Request("first", list(range(16)))
    for request in (first, Request("other", list(range(100, 120)))):
        if manager.allocate_slots(request, request.num_tokens) is None:
            raise RuntimeError(f"{request.num_tokens} tokens do not fit")
        request.num_computed_tokens = request.num_tokens
        manager.free(request)
    return manager.get_computed_blocks(Request("first again", list(first.prompt_token_ids)))[1]


def _orders_that_are_right() -> int:
    import numpy as np

    from mini_vllm.attention import paged_attention
    from mini_vllm.backend import mx
    table, num_tokens, block_size, head_dim = (7, 2, 5), 10, 4, 8
    rng = np.random.default_rng(0)
    pool = np.full((8, 2, block_size, head_dim), np.nan, np.float32)  # one kv head: a block's keys, then its values
    for position in range(num_tokens):
        pool[table[position // block_size], :, position % block_size] = rng.normal(size=(2, head_dim))
    query = mx.array(rng.normal(size=(1, 1, head_dim)).astype(np.float32))

    def attend(order: tuple[int, ...]) -> np.ndarray:
        return np.array(paged_attention(query, mx.array(pool), [order], [num_tokens], [0, 1], head_dim ** -0.5))

    right = attend(table)
    return sum(bool(np.allclose(attend(order), right, atol=1e-5)) for order in permutations(table))


EXERCISES = (
    Exercise(
        answer=[6, 7, 3, 2, 5], proof=_blocks_of_r,
        why="Blocks 6 and 7 were never allocated, so they are first. P's blocks follow, in the order 3, 2, 1. The hit "
            "removed block 1 from the middle of the queue, so block 5 follows block 2. The contents of blocks 3 and 2 "
            "are evicted.",
        hint="Write the queue down after each call. It begins as 1 2 3 4 5 6 7. Blocks are allocated from the left, "
             "and freed blocks are appended on the right.",
        slips={(6, 7, 3, 2, 1): "Block 1 has an owner again: the hit removed it from the queue.",
               (6, 7, 2, 3, 5): "P returned its last block first: 3 is before 2.",
               (6, 7, 2, 3, 4): "Both requests returned their last block first: 3 is before 2, and 5 is before 4.",
               (6, 7, 3, 2, 4): "Q also returned its last block first: 5 is before 4.",
               (6, 7, 5, 4, 3): "This order would spare the cached blocks. But the queue only orders blocks by how "
                                "long they have been free.",
               (2, 3, 4, 5, 6): "The queue does not allocate the lowest numbers first. It allocates the blocks that "
                                "have been free the longest. Blocks 6 and 7 were never allocated."}),
    Exercise(
        answer=8, proof=_tokens_found,
        why="The first prompt's blocks were freed in the order 4, 3, 2, 1, after 5, 6 and 7. The other prompt took 5, "
            "6, 7, 4 and 3. So the end of the first text is evicted, and blocks 1 and 2 are found, with 4 tokens each.",
        hint="Seven blocks can be allocated. Write down the queue after the first request has ended, and take five "
             "blocks.",
        slips={0: "0 would be right if the first block were freed first. But a request returns its last block first.",
               12: "At most 12 tokens could be found, but two of the first prompt's blocks were evicted for the other "
                   "prompt.",
               16: "Some blocks were evicted: the other prompt needs 5 blocks, and only 3 had never been used.",
               4: "The other prompt takes 5 blocks. 3 of them had never been used, so only 2 blocks are evicted."}),
    Exercise(
        answer=2, proof=_orders_that_are_right,
        why="The orders are [7, 2, 5] and [2, 7, 5]. The query sees all tokens, and a sum does not depend on their "
            "order. So the two full blocks may change places. The half-full block must be last; otherwise attention "
            "reads NaN as if it were text. With several queries, the full blocks may not change places either, because "
            "each query sees only the tokens before it.",
        hint="Which slots does attention read for 10 tokens if block 5 is first or second? Does a sum over all tokens "
             "depend on their order?",
        slips={1: "Try [2, 7, 5]. The only query sees all ten tokens, so it adds up the same ten terms.",
               6: "Two of the four slots of block 5 contain NaN. Attention leaves them out only if block 5 is the last "
                  "block.",
               3: "At which place must block 5 be, so that only its two written slots are read? Two orders do this.",
               4: "At which place must block 5 be, so that only its two written slots are read? Two orders do this."}),
)
