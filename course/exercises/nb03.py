"""The exercises of notebook 03, sharing."""

from __future__ import annotations

from collections.abc import Sequence

from course.exercises import Exercise
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request


def _compute(manager: KVCacheManager, request: Request) -> int:
    """Adopt the part of the prompt that is found, and compute the rest. Returns the number of tokens found."""
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
    """A request that computes its prompt and ends. Returns the number of tokens found."""
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
    """Tokens found and blocks copied for a prompt of 24 tokens that shares 19 with an ended request of 21."""
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
            "began as the shared, partly filled seventh block; four samples copied it, the last wrote in place.",
        hint="100 = 6 × 16 + 4. Which blocks will a sample write into, and which are only read? Section 2 has the "
             "functions to try it: put in 16, 5, 100 and 30.",
        slips={(45, 0): "Five requests without sharing would hold 5 × 9 blocks. The full blocks of the "
                        "prompt exist once.",
               (21, 5): "The number of blocks is right. But the last of the five owners of the partly filled block "
                        "does not copy it: by then it is the only owner.",
               (21, 0): "The number of blocks is right. But 100 is not a multiple of 16: the seventh block is shared "
                        "while partly filled, and then written.",
               (22, 4): "The partly filled original is not left over: the last owner writes into it.",
               (22, 5): "The partly filled original is not left over: the last owner writes into it without a copy."}),
    Exercise(
        answer=(19, 1), proof=find_edited,
        why="Two whole blocks, and 3 tokens of the third. Its key names 5 tokens, so writing another 20th token there "
            "would change what other requests find: the index counts as a reader, and the block is copied.",
        hint="The first request's third block holds 5 tokens, under a key of those 5. Where would the new prompt write "
             "first? ben's question in section 5 is such a case.",
        slips={(16, 0): "A manager without a tree finds 16. With the tree a match may end inside a block.",
               (19, 0): "The number of tokens is right. It is true that no table names the third block. But its key "
                        "names two more tokens, and the new prompt would overwrite them.",
               (21, 0): "The 20th token differs, so the match ends before it.",
               (18, 1): "One token must be left to compute, but here five are left: the last five of the new prompt."}),
    Exercise(
        answer=4, proof=find_after_eviction,
        why="A's second request took one of the two blocks that were still empty, and moved A's blocks to the end of "
            "the queue. C takes the other empty block, then B's third and second block. B's first block is left.",
        hint="Write the free queue down after each request ends. Blocks that were never used are at the head, and a "
             "request returns its last block first.",
        slips={0: "Two things save a block of B: one block of the pool was still empty when C arrived, and B's last "
                  "blocks are given out first.",
               8: "A's second request needs a block for its 13th token, so only one block is empty when C arrives.",
               12: "C needs 3 blocks, and only one is empty. The other two are taken from an ended request: which "
                   "one has been unused longest?"}),
)
