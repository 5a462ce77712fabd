"""The exercises of notebook 03: copies, matches inside a block, evicted blocks."""

from __future__ import annotations

from collections.abc import Sequence

from course.exercises import Exercise
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Request


def _compute(manager: KVCacheManager, request: Request) -> int:
    """Adopt the cached prefix of the prompt, and compute the rest. Return the number of tokens found."""
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
    """Serve a request that computes its prompt and ends. Return the number of tokens found in the cache."""
    request = Request(name, prompt)
    num_found = _compute(manager, request)
    manager.free(request)
    return num_found


def count_samples() -> tuple[int, int]:
    """Count blocks and copies for 5 samples of a 100-token prompt, after 30 tokens each, with blocks of 16."""
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
    """Count tokens found and blocks copied for a 24-token prompt that shares 19 tokens with a past request of 21."""
    manager = KVCacheManager(20, block_size=8, tree_class=PrefixTree)
    _leave(manager, "first", range(21))
    num_found = _compute(manager, Request("second", [*range(19), *range(100, 105)]))
    return num_found, manager.block_pool.num_forks


def find_after_eviction() -> int:
    """Count how many of B's 12 tokens are found after A arrived twice and C needed room, in 8 blocks of 4."""
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
        why="All samples share 6 full blocks. Each sample also has 3 private blocks, for positions 96 to 129: 6 + 5 × "
            "3 = 21. The first of these 3 began as the shared seventh block, which was partly filled. Four samples "
            "copied it, and the last one kept the original.",
        hint="100 = 6 × 16 + 4. Which blocks does a sample write into, and which blocks does it only read? You can try "
             "it with the functions of section 2, with 16, 5, 100 and 30.",
        slips={(45, 0): "Five requests without sharing would use 5 × 9 blocks. But the full blocks of the prompt are "
                        "stored once.",
               (21, 5): "The number of blocks is right. But five samples own the partly filled block, and the last of "
                        "them does not copy it: by then it is the only owner.",
               (21, 0): "The number of blocks is right. But 100 is not a multiple of 16: the seventh block is shared "
                        "while it is partly filled, and the samples then write into it.",
               (22, 4): "The partly filled original is not an extra block: the last owner writes into it.",
               (22, 5): "The partly filled original is not an extra block: the last owner writes into it without a "
                        "copy."}),
    Exercise(
        answer=(19, 1), proof=find_edited,
        why="Two whole blocks match, and 3 tokens of the third. The key of the third block names 5 tokens. Writing a "
            "different 20th token into this block would make its key wrong, so the index counts as a reader, and the "
            "block is copied.",
        hint="The third block of the first request holds 5 tokens, and its key names these 5 tokens. Where would the "
             "new prompt write first? ben's question in section 5 is such a case.",
        slips={(16, 0): "A manager without the tree finds 16 tokens. With the tree, a match may end inside a block.",
               (19, 0): "The number of tokens is right. No block table contains the third block, but its key names two "
                        "more tokens, and the new prompt would overwrite them.",
               (21, 0): "The 20th token is different, so the match ends before it.",
               (18, 1): "At least one token must be left to compute. But here five are left: the last five of the new "
                        "prompt."}),
    Exercise(
        answer=4, proof=find_after_eviction,
        why="A's second request took one of the two blocks that were never used, and moved A's blocks to the end of "
            "the queue. C takes the other unused block, and then B's third and second block. Of B's blocks, only the "
            "first is left.",
        hint="Write the free queue down after each request ends. Blocks that were never used are at the head, and a "
             "request returns its last block first.",
        slips={0: "B keeps one block for two reasons: one block of the pool was still unused when C arrived, and B's "
                  "last blocks are allocated before its first.",
               8: "A's second request needs a block for its 13th token, so only one block is still unused when C "
                  "arrives.",
               12: "C needs 3 blocks, and only one is unused. The other two were used by a request that has ended. "
                   "Which request's blocks have been free the longest?"}),
)
