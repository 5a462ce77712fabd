"""Mistakes people make in a block allocator, and the test that catches each."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="append-unaware-of-membership",
        story="Appends without asking whether the block is queued: a double free turns the list into a loop.",
        replace="""        if block.prev_free is not None or block.next_free is not None:
            raise RuntimeError(f"append: block {block.block_id} is in a free queue already")
""",
        by="",
        killed_by="test_task_1_append_refuses_a_block_that_is_queued",
    ),
    Mutant(
        name="remove-leaves-the-back-link",
        story="Unlinks forwards only; walking the queue from the left looks right.",
        replace="        after.prev_free = before\n",
        by="",
        killed_by="test_task_2_remove_from_the_middle_keeps_order",
    ),
    Mutant(
        name="remove-keeps-the-blocks-own-links",
        story="The removed block still points into the queue, so it looks queued for ever.",
        replace="        block.prev_free = block.next_free = None\n",
        by="",
        killed_by="test_task_2_a_removed_block_has_no_links_and_can_come_back",
    ),
    Mutant(
        name="remove-forgets-the-count",
        story="num_free_blocks promises a block that is not there.",
        replace="        self.num_free_blocks -= 1\n",
        by="",
        killed_by="test_task_2_remove_from_the_middle_keeps_order",
    ),
    Mutant(
        name="remove-searches-for-the-block",
        story="Walks from the head until it meets the block: right, and O(n).",
        replace="        before, after = block.prev_free, block.next_free\n",
        by="""        walker = self._head
        while walker is not None and walker.next_free is not block:
            walker = walker.next_free
        before, after = walker, block.next_free
""",
        killed_by="test_free_queue_o1_middle_removal",
    ),
    Mutant(
        name="popleft-hands-out-the-fake-tail",
        story="Trusts that there always is a first block.",
        replace="""        if self.num_free_blocks == 0:
            raise ValueError("popleft from an empty free queue: 0 free blocks")
""",
        by="",
        killed_by="test_task_3_popleft_from_an_empty_queue_is_a_value_error",
    ),
    Mutant(
        name="popleft-n-takes-what-it-can",
        story="Pops one by one and fails half way; the popped blocks are lost.",
        replace="""        if not 0 <= n <= self.num_free_blocks:
            raise ValueError(f"popleft_n({n}): there are {self.num_free_blocks} free blocks")
""",
        by="",
        killed_by="test_task_3_popleft_n_takes_all_or_none",
    ),
    Mutant(
        name="append-n-fails-half-way",
        story="Checks each block only when its turn comes.",
        replace="""            seen.add(block.block_id)
        for block in blocks:
            self.append(block)
""",
        by="""            self.append(block)
""",
        killed_by="test_task_3_append_n_adds_all_or_none",
    ),
    Mutant(
        name="hash-without-the-parent",
        story="Equal tokens at the same offset of different prompts share K/V that depends on what came before.",
        replace="    return hash((parent_hash, tuple(token_ids)))\n",
        by="    return hash((None, tuple(token_ids)))\n",
        killed_by="test_task_4_equal_tokens_after_other_prefixes_differ",
    ),
    Mutant(
        name="hash-of-8-bit-tokens",
        story="Packs token ids into bytes; ids beyond 255 wrap around.",
        replace="    return hash((parent_hash, tuple(token_ids)))\n",
        by="    return hash((parent_hash, tuple(token & 255 for token in token_ids)))\n",
        killed_by="test_task_4_every_bit_of_a_token_counts",
    ),
    Mutant(
        name="hash-without-extra-keys",
        story="The salt is accepted and ignored: one tenant finds another's blocks.",
        replace="        return hash((parent_hash, tuple(token_ids), tuple(extra_keys)))\n",
        by="        return hash((parent_hash, tuple(token_ids)))\n",
        killed_by="test_task_4_extra_keys_keep_equal_texts_apart",
    ),
    Mutant(
        name="usage-counts-the-null-block",
        story="A full pool never reads 1.0, so 'is it full?' is never true.",
        replace="        num_usable = self.num_blocks - 1\n        return",
        by="        num_usable = self.num_blocks\n        return",
        killed_by="test_task_5_usage_runs_from_0_to_1_without_the_null_block",
    ),
    Mutant(
        name="new-blocks-without-an-owner",
        story="Forgets ref_cnt = 1: the block is out of the queue and owned by nobody.",
        replace="            block.ref_cnt = 1\n",
        by="",
        killed_by="test_task_5_new_blocks_are_owned_and_never_the_null_block",
    ),
    Mutant(
        name="double-free-unnoticed",
        story="Decrements without looking; the count goes negative and the block never comes back.",
        replace="            if num_drops[block.block_id] > block.ref_cnt:\n",
        by="            if False:\n",
        killed_by="test_task_5_freeing_what_is_free_fails_at_once",
    ),
    Mutant(
        name="double-free-within-one-call-unnoticed",
        story="Looks at ref_cnt only, so the same block twice in one list slips through the check.",
        replace="            if num_drops[block.block_id] > block.ref_cnt:\n",
        by="            if block.ref_cnt == 0:\n",
        killed_by="test_task_5_freeing_what_is_free_fails_at_once",
    ),
    Mutant(
        name="free-takes-from-all-owners",
        story="One owner leaves and the block is offered to others, while someone still reads it.",
        replace="            block.ref_cnt -= 1\n",
        by="            block.ref_cnt = 0\n",
        killed_by="test_task_6_a_shared_block_is_free_when_its_last_owner_leaves",
    ),
    Mutant(
        name="free-forgets-the-content",
        story="Evicts on free instead of on reuse: nothing is ever found again.",
        replace="                self.free_block_queue.append(block)\n",
        by="                self._maybe_evict(block)\n                self.free_block_queue.append(block)\n",
        killed_by="test_task_7_a_cached_block_is_found_in_use_and_free",
    ),
    Mutant(
        name="touch-leaves-the-block-in-the-queue",
        story="Counts the new owner, and lets the block be given to someone else.",
        replace="            if block.ref_cnt == 0:\n                self.free_block_queue.remove(block)\n",
        by="",
        killed_by="test_task_6_touch_pulls_a_free_block_out_of_the_middle",
    ),
    Mutant(
        name="touch-takes-the-oldest-instead",
        story="Pops from the left, whichever block was hit.",
        replace="                self.free_block_queue.remove(block)\n",
        by="                self.free_block_queue.popleft()\n",
        killed_by="test_task_6_touch_pulls_a_free_block_out_of_the_middle",
    ),
    Mutant(
        name="touch-stops-half-way",
        story="Checks each block as it goes; blocks before a bad one keep an owner too many.",
        replace="""            self._check_mine(block, "touch")
        for block in blocks:
""",
        by="""            self._check_mine(block, "touch")
""",
        killed_by="test_task_6_touch_refuses_the_null_block_and_strangers",
    ),
    Mutant(
        name="caching-zips-silently",
        story="zip() stops at the shorter list: the last blocks are never findable, and nobody notices.",
        replace="        if len(hashes) < len(blocks):\n",
        by="        if False:\n",
        killed_by="test_task_7_caching_with_fewer_hashes_than_blocks_fails_at_once",
    ),
    Mutant(
        name="the-later-twin-hides-the-first",
        story="One block a hash: the second overwrites the first in the index.",
        replace="            self._cached.setdefault(block_hash, {})[block.block_id] = block\n",
        by="            self._cached[block_hash] = {block.block_id: block}\n",
        killed_by="test_task_8_a_twin_survives_the_eviction_of_the_other",
    ),
    Mutant(
        name="eviction-drops-both-twins",
        story="Deletes the whole entry of the hash, the twin's content included.",
        replace="            if not twins:\n                del self._cached[block.block_hash]\n",
        by="            del self._cached[block.block_hash]\n",
        killed_by="test_task_8_a_twin_survives_the_eviction_of_the_other",
    ),
    Mutant(
        name="a-stale-hash-after-eviction",
        story="The index is clean, but the block still carries the hash of what it held.",
        replace="        block.reset_hash()\n        # END TASK\n\n    def evict_blocks",
        by="        # END TASK\n\n    def evict_blocks",
        killed_by="test_task_8_giving_a_cached_block_out_again_forgets_its_content",
    ),
    Mutant(
        name="the-index-outlives-the-content",
        story="Clears the block's hash and forgets the index, which now names a stranger's block.",
        replace="            del twins[block.block_id]\n            if not twins:\n"
                "                del self._cached[block.block_hash]\n",
        by="            pass\n",
        killed_by="test_task_8_giving_a_cached_block_out_again_forgets_its_content",
    ),
    Mutant(
        name="counts-what-was-taken-out-on-purpose",
        story="Every block that leaves the index counts as evicted, though nobody needed the room.",
        replace="            self._maybe_evict(self.blocks[block_id])\n",
        by="            self.num_evictions += self.blocks[block_id].block_hash is not None\n"
           "            self._maybe_evict(self.blocks[block_id])\n",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
    ),
    Mutant(
        name="reset-under-the-feet-of-users",
        story="Clears the index while requests still rely on it.",
        replace="        if num_used:\n",
        by="        if False:\n",
        killed_by="test_task_8_reset_is_refused_while_blocks_are_in_use",
    ),
]
