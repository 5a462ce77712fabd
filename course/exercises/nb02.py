"""The exercises of notebook 02: the free queue, what is found after an eviction, attention through a table."""

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
        why="6 and 7 were never given out. Then P's blocks follow, last one first: 3, 2, 1. The hit took 1 out of the "
            "middle of the queue, so 5 follows 2. The content of 3 and 2 is now forgotten.",
        hint="Write the queue down after each call: it begins as 1 2 3 4 5 6 7, blocks are taken from the left, and "
             "returned blocks are put on the right.",
        slips={(6, 7, 3, 2, 1): "Block 1 has an owner again: the hit took it out of the queue.",
               (6, 7, 2, 3, 5): "P returned its blocks last one first: 3 came before 2.",
               (6, 7, 2, 3, 4): "Both returned their blocks last one first: 3 came before 2, and 5 before 4.",
               (6, 7, 3, 2, 4): "Q also returned its blocks last one first: 5 came before 4.",
               (6, 7, 5, 4, 3): "That would spare the cached blocks. The queue only knows how long each has been free.",
               (2, 3, 4, 5, 6): "The queue does not give out the lowest numbers, but the blocks that have been free "
                                "longest. 6 and 7 were never given out."}),
    Exercise(
        answer=8, proof=_tokens_found,
        why="The first prompt's blocks were returned as 4, 3, 2, 1, after 5, 6 and 7. The other prompt took 5, 6, 7, 4 "
            "and 3: the end of the text is forgotten, and blocks 1 and 2 are found, 4 tokens each.",
        hint="Seven blocks can be given out. Write down the queue after the first request has ended, and take five.",
        slips={0: "It would be 0 if the first block had been returned first. Tables are returned last block first.",
               12: "At most 12 could be found, but two of these blocks had to make room for the other prompt.",
               16: "A part was forgotten: the other prompt needs 5 blocks, and only 3 had never been used.",
               4: "The other prompt takes 5 blocks; the first 3 of them were never used, so only 2 are forgotten."}),
    Exercise(
        answer=2, proof=_orders_that_are_right,
        why="[7, 2, 5] and [2, 7, 5]. The last query sees all tokens, and a sum does not depend on their order: two "
            "full blocks may change places. The half-full one may not, or NaN is read as if it were text. With several "
            "queries not even the full ones may: each query sees only the tokens before it.",
        hint="Which slots are read for 10 tokens, if block 5 is first or second? Does a sum over all tokens "
             "depend on their order?",
        slips={1: "Try [2, 7, 5]: the one query sees all ten tokens. It adds up the same ten terms.",
               6: "Two of the four slots of block 5 hold NaN. They are left out only if block 5 is the last block.",
               3: "Where must block 5 be, so that only its two written slots are read? That leaves two orders.",
               4: "Where must block 5 be, so that only its two written slots are read? That leaves two orders."}),
)
