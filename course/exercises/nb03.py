"""The exercises of notebook 03, sharing."""

from __future__ import annotations

from collections.abc import Sequence

from course.exercises import Exercise
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request


def _compute(manager: KVCacheManager, request: Request) -> int:
    """Adopt what is found of the prompt, and compute the rest. Returns how many tokens were found."""
    hits, num_found = manager.get_computed_blocks(request)
    manager.allocate_slots(request, request.num_tokens - num_found, hits, num_found)
    request.num_computed_tokens = request.num_tokens
    manager.finish_step()
    return num_found


def _write_one(manager: KVCacheManager, request: Request) -> None:
    request.append_output_token(1)
    manager.allocate_slots(request, 1)
    request.num_computed_tokens += 1


def _leave(manager: KVCacheManager, name: str, prompt: Sequence[int]) -> int:
    """A request that computes its prompt and ends. Returns how many tokens were found."""
    request = Request(name, prompt)
    num_found = _compute(manager, request)
    manager.free(request)
    return num_found


def count_samples() -> tuple[int, int]:
    """Blocks and copies of 5 samples of a prompt of 100 tokens, after 30 tokens each, with blocks of 16."""
    manager = KVCacheManager(100, block_size=16)
    samples = [Request(str(i), range(100)) for i in range(5)]
    _compute(manager, samples[0])
    for sample in samples[1:]:
        manager.fork(samples[0], sample)
        sample.num_computed_tokens = 100
    for _ in range(30):
        for sample in samples:
            _write_one(manager, sample)
        manager.finish_step()
    block_ids = {block_id for sample in samples for block_id in manager.get_block_ids(sample.request_id)}
    return len(block_ids), manager.block_pool.num_forks


def find_edited() -> tuple[int, int]:
    """Tokens found and blocks copied for a prompt of 24 tokens of which 19 were left, by one who left 21."""
    manager = KVCacheManager(20, block_size=8, tree_class=PrefixTree)
    _leave(manager, "first", range(21))
    num_found = _compute(manager, Request("second", [*range(19), *range(100, 105)]))
    return num_found, manager.block_pool.num_forks


def find_after_eviction() -> int:
    """Of B's 12 tokens, how many are found after A came twice and C needed room. Blocks of 4, 8 of them."""
    manager = KVCacheManager(9, block_size=4, tree_class=PrefixTree)
    tokens = {"A": range(100, 112), "B": range(200, 212), "C": range(300, 312)}
    _leave(manager, "A", tokens["A"])
    _leave(manager, "B", tokens["B"])
    _leave(manager, "A again", [*tokens["A"], 1])
    _leave(manager, "C", tokens["C"])
    return manager.get_computed_blocks(Request("B again", [*tokens["B"], 1]))[1]


EXERCISES = (
    Exercise(
        answer=(21, 4), proof=count_samples,
        why="6 full blocks are shared by all, and each sample has 3 of its own, for positions 96 to 129. One of the 3 "
            "began as the shared, half-filled seventh block; four samples copied it, the last wrote in place.",
        hint="100 = 6 × 16 + 4. Which blocks will somebody write into, and which are only read? Section 2 has the "
             "functions to try it: put in 16, 5, 100 and 30.",
        slips={(45, 0): "This is what five requests without sharing would hold: 5 × 9 blocks. The full blocks of the "
                        "prompt exist once.",
               (21, 5): "The blocks are right. But of the five owners of the half-filled block the last need not copy "
                        "it: by then it is the only one.",
               (21, 0): "The blocks are right. But 100 is not a multiple of 16: the seventh block is shared "
                        "half-filled, and written.",
               (22, 4): "The half-filled original is not left over: the last owner writes into it.",
               (22, 5): "The half-filled original is not left over: the last owner writes into it, without a copy."}),
    Exercise(
        answer=(19, 1), proof=find_edited,
        why="Two whole blocks, and 3 tokens of the third. Its key names 5 tokens, so to write another 20th token there "
            "would change what others find: the index counts as a reader, and the block is copied.",
        hint="The first request's third block holds 5 tokens, under a key of those 5. Where would the new prompt write "
             "first? ben's question in section 5 is such a case.",
        slips={(16, 0): "This is what a manager without a tree finds. With the tree a match may end inside a block.",
               (19, 0): "The tokens are right. Nobody's table names the third block, that is true. But its key names "
                        "two more tokens, and the new prompt would write over them.",
               (21, 0): "The 20th token differs, so the match ends before it.",
               (18, 1): "One token must be left to compute, but five are: the new prompt's own."}),
    Exercise(
        answer=4, proof=find_after_eviction,
        why="A's second visit took one of the two blocks that were still empty, and put A's blocks at the end of the "
            "queue. C takes the other empty one, then B's third and second block. B's first is left.",
        hint="Write the free queue down after each request ends. Blocks that were never used stand at the head, and a "
             "request gives its last block back first.",
        slips={0: "Two things save a block of B: one block of the pool was still empty when C came, and of B the last "
                  "blocks go first.",
               8: "A's second visit needs a block for its 13th token, so only one block is empty when C comes.",
               12: "C needs 3 blocks, and only one is empty. The other two are taken from somebody who has ended: who "
                   "has been away longest?"}),
)
