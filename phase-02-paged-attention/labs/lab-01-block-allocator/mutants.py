"""Mistakes that people make in a block allocator, and the test that catches each mistake."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="append-unaware-of-membership",
        story="Appends without checking whether the block is in the queue: a double free turns the list into a loop.",
        replace="""        if block.prev_free is not None or block.next_free is not None:
            raise RuntimeError(f"append: block {block.block_id} is in a free queue already")
""",
        by="",
        killed_by="test_task_1_append_refuses_a_block_that_is_queued",
        breaks="FreeKVCacheBlockQueue.append: Raises RuntimeError if block is already in a queue",
    ),
    Mutant(
        name="remove-leaves-the-back-link",
        story="Unlinks forwards only; walking the queue from the left looks right.",
        replace="        after.prev_free = before\n",
        by="",
        killed_by="test_task_2_remove_from_the_middle_keeps_order",
        breaks="FreeKVCacheBlockQueue.remove: its neighbours point at each other",
    ),
    Mutant(
        name="remove-keeps-the-blocks-own-links",
        story="The removed block still points into the queue, so it always looks like a queued block.",
        replace="        block.prev_free = block.next_free = None\n",
        by="",
        killed_by="test_task_2_a_removed_block_has_no_links_and_can_come_back",
        breaks="FreeKVCacheBlockQueue.remove: both links of ``block`` are None",
    ),
    Mutant(
        name="remove-forgets-the-count",
        story="num_free_blocks counts a block that is no longer in the queue.",
        replace="        self.num_free_blocks -= 1\n",
        by="",
        killed_by="test_task_2_remove_from_the_middle_keeps_order",
        breaks="FreeKVCacheBlockQueue.remove: the count is 1 lower",
    ),
    Mutant(
        name="remove-searches-for-the-block",
        story="Walks from the head until it reaches the block: the result is right, but it costs O(n).",
        replace="        before, after = block.prev_free, block.next_free\n",
        by="""        walker = self._head
        while walker is not None and walker.next_free is not block:
            walker = walker.next_free
        before, after = walker, block.next_free
""",
        killed_by="test_free_queue_o1_middle_removal",
        breaks="FreeKVCacheBlockQueue.remove: in O(1)",
    ),
    Mutant(
        name="popleft-hands-out-the-fake-tail",
        story="Assumes that there is always a first block.",
        replace="""        if self.num_free_blocks == 0:
            raise ValueError("popleft from an empty free queue: 0 free blocks")
""",
        by="",
        killed_by="test_task_3_popleft_from_an_empty_queue_is_a_value_error",
        breaks="FreeKVCacheBlockQueue.popleft: Raises ValueError if the queue is empty",
    ),
    Mutant(
        name="popleft-n-takes-what-it-can",
        story="Pops one by one and fails half-way; the popped blocks are lost.",
        replace="""        if not 0 <= n <= self.num_free_blocks:
            raise ValueError(f"popleft_n({n}): there are {self.num_free_blocks} free blocks")
""",
        by="",
        killed_by="test_task_3_popleft_n_takes_all_or_none",
        breaks="FreeKVCacheBlockQueue.popleft_n: no block is removed then",
    ),
    Mutant(
        name="append-n-fails-half-way",
        story="Checks each block only just before it appends it.",
        replace="""            seen.add(block.block_id)
        for block in blocks:
            self.append(block)
""",
        by="""            self.append(block)
""",
        killed_by="test_task_3_append_n_adds_all_or_none",
        breaks="FreeKVCacheBlockQueue.append_n: no block is appended then",
    ),
    Mutant(
        name="hash-without-the-parent",
        story="Ignores the parent: equal tokens after different prefixes get the same hash, but not the same K/V.",
        replace="    return hash((parent_hash, tuple(token_ids)))\n",
        by="    return hash((None, tuple(token_ids)))\n",
        killed_by="test_task_4_equal_tokens_after_other_prefixes_differ",
        breaks="hash_block_tokens: the parent's hash represents all tokens before the block",
    ),
    Mutant(
        name="hash-of-8-bit-tokens",
        story="Packs token ids into bytes; ids beyond 255 wrap around.",
        replace="    return hash((parent_hash, tuple(token_ids)))\n",
        by="    return hash((parent_hash, tuple(token & 255 for token in token_ids)))\n",
        killed_by="test_task_4_every_bit_of_a_token_counts",
        breaks="hash_block_tokens: without extra keys (None or empty): hash((parent_hash, tuple(token_ids)))",
    ),
    Mutant(
        name="hash-without-extra-keys",
        story="The salt is accepted and ignored: one tenant finds the blocks of another tenant.",
        replace="        return hash((parent_hash, tuple(token_ids), tuple(extra_keys)))\n",
        by="        return hash((parent_hash, tuple(token_ids)))\n",
        killed_by="test_task_4_extra_keys_keep_equal_texts_apart",
        breaks="hash_block_tokens: give equal tokens different hashes",
    ),
    Mutant(
        name="usage-counts-the-null-block",
        story="A full pool never reads 1.0, so 'is it full?' is never true.",
        replace="        num_usable = self.num_blocks - 1\n        return",
        by="        num_usable = self.num_blocks\n        return",
        killed_by="test_task_5_usage_runs_from_0_to_1_without_the_null_block",
        breaks="BlockPool.get_usage: Leave the null block out of numerator and denominator",
    ),
    Mutant(
        name="new-blocks-without-an-owner",
        story="Forgets ref_cnt = 1: the block is not in the queue and has no owner.",
        replace="            block.ref_cnt = 1\n",
        by="",
        killed_by="test_task_5_new_blocks_are_owned_and_never_the_null_block",
        breaks=(
            "BlockPool.get_new_blocks: each of these blocks has ``ref_cnt`` 1",
            "invariant 2: Free blocks + owned blocks + the null block = all blocks",
        ),
    ),
    Mutant(
        name="double-free-unnoticed",
        story="Decrements without a check; the count goes negative, and the block never returns to the queue.",
        replace="            if num_drops[block.block_id] > block.ref_cnt:\n",
        by="            if False:\n",
        killed_by="test_task_5_freeing_what_is_free_fails_at_once",
        breaks="BlockPool.free_blocks: RuntimeError if a block occurs more often in blocks than it has owners",
    ),
    Mutant(
        name="double-free-within-one-call-unnoticed",
        story="Checks only ref_cnt, so it does not notice a block that occurs twice in one list.",
        replace="            if num_drops[block.block_id] > block.ref_cnt:\n",
        by="            if block.ref_cnt == 0:\n",
        killed_by="test_task_5_freeing_what_is_free_fails_at_once",
        breaks="BlockPool.free_blocks: RuntimeError if a block occurs more often in blocks than it has owners",
    ),
    Mutant(
        name="free-takes-from-all-owners",
        story="One owner leaves, and the block is queued although another request still reads it.",
        replace="            block.ref_cnt -= 1\n",
        by="            block.ref_cnt = 0\n",
        killed_by="test_task_6_a_shared_block_is_free_when_its_last_owner_leaves",
        breaks="BlockPool.free_blocks: each block has lost one owner per occurrence",
    ),
    Mutant(
        name="free-forgets-the-content",
        story="Evicts when a block is freed instead of when it is reused: no freed content is ever found.",
        replace="                self.free_block_queue.append(block)\n",
        by="                self._maybe_evict(block)\n                self.free_block_queue.append(block)\n",
        killed_by="test_task_7_a_cached_block_is_found_in_use_and_free",
        breaks=(
            "BlockPool.free_blocks: the index is unchanged",
            "invariant 4: Freeing a block does not remove it from the index",
        ),
    ),
    Mutant(
        name="touch-leaves-the-block-in-the-queue",
        story="Counts the new owner, but leaves the block in the queue, so another request may get it.",
        replace="            if block.ref_cnt == 0:\n                self.free_block_queue.remove(block)\n",
        by="",
        killed_by="test_task_6_touch_pulls_a_free_block_out_of_the_middle",
        breaks=(
            "BlockPool.touch: A free block leaves the queue",
            "invariant 1: A block is in the free queue **iff** its `ref_cnt` is 0",
        ),
    ),
    Mutant(
        name="touch-takes-the-oldest-instead",
        story="Pops the oldest block, whichever block was hit.",
        replace="                self.free_block_queue.remove(block)\n",
        by="                self.free_block_queue.popleft()\n",
        killed_by="test_task_6_touch_pulls_a_free_block_out_of_the_middle",
        breaks="BlockPool.touch: from any place in it",
    ),
    Mutant(
        name="touch-stops-half-way",
        story="Checks each block just before it changes it; blocks before an invalid one keep an extra owner.",
        replace="""            self._check_mine(block, "touch")
        for block in blocks:
""",
        by="""            self._check_mine(block, "touch")
""",
        killed_by="test_task_6_touch_refuses_the_null_block_and_strangers",
        breaks=(
            "BlockPool.touch: nothing changes then",
            "invariant 3: A call that raises has changed nothing",
        ),
    ),
    Mutant(
        name="caching-zips-silently",
        story="zip() stops at the shorter list: the last blocks are silently not indexed.",
        replace="        self._check_hashes(blocks, hashes)\n",
        by="        self._check_hashes(blocks[:len(hashes)], hashes)\n",
        killed_by="test_task_7_caching_with_fewer_hashes_than_blocks_fails_at_once",
        breaks="BlockPool.cache_full_blocks: if _check_hashes rejects the hashes: too few of them",
    ),
    Mutant(
        name="the-later-twin-hides-the-first",
        story="Stores one block per hash: the second block replaces the first in the index.",
        replace="            self._cached.setdefault(block_hash, {})[block.block_id] = block\n",
        by="            self._cached[block_hash] = {block.block_id: block}\n",
        killed_by="test_task_8_a_twin_survives_the_eviction_of_the_other",
        breaks="BlockPool.cache_full_blocks: next to its twins",
    ),
    Mutant(
        name="eviction-drops-both-twins",
        story="Deletes the whole entry of the hash, including the twin.",
        replace="            if not twins:\n                del self._cached[block.block_hash]\n",
        by="            del self._cached[block.block_hash]\n",
        killed_by="test_task_8_a_twin_survives_the_eviction_of_the_other",
        breaks="BlockPool._maybe_evict: a twin under the same hash is still found",
    ),
    Mutant(
        name="a-stale-hash-after-eviction",
        story="Removes the block from the index, but leaves the old hash on the block.",
        replace="        block.reset_hash()\n        # END TASK\n\n    def evict_blocks",
        by="        # END TASK\n\n    def evict_blocks",
        killed_by="test_task_8_giving_a_cached_block_out_again_forgets_its_content",
        breaks="BlockPool._maybe_evict: its hash is None",
    ),
    Mutant(
        name="the-index-outlives-the-content",
        story="Clears the block's hash but not the index: a lookup finds a block that now belongs to another request.",
        replace="            del twins[block.block_id]\n            if not twins:\n"
                "                del self._cached[block.block_hash]\n",
        by="            pass\n",
        killed_by="test_task_8_giving_a_cached_block_out_again_forgets_its_content",
        breaks=(
            "BlockPool._maybe_evict: the index does not contain it",
            "invariant 5: If the index maps a hash to a block, the block holds the content with that hash",
        ),
    ),
    Mutant(
        name="counts-what-was-taken-out-on-purpose",
        story="Counts every block that leaves the index as evicted, although no block was given out.",
        replace="            self._maybe_evict(self.blocks[block_id])\n",
        by="            self.num_evictions += self.blocks[block_id].block_hash is not None\n"
           "            self._maybe_evict(self.blocks[block_id])\n",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: num_evictions does not change",
    ),
    Mutant(
        name="reset-under-the-feet-of-users",
        story="Clears the index while requests still rely on it.",
        replace="        if num_used:\n",
        by="        if False:\n",
        killed_by="test_task_8_reset_is_refused_while_blocks_are_in_use",
        breaks="BlockPool.reset_prefix_cache: while any block is in use",
    ),
    Mutant(
        name="reset-hash-cleans-the-whole-block",
        story="Resets the whole block, although it should only forget the hash.",
        replace="""        self.block_hash = None
        # END TASK""",
        by="""        self.block_hash, self.ref_cnt, self.is_null = None, 0, False
        # END TASK""",
        killed_by="test_task_1_reset_hash_forgets_the_hash_only",
        breaks="KVCacheBlock.reset_hash: everything else is unchanged",
    ),
    Mutant(
        name="append-leaves-the-tail-behind",
        story=("The new block points at the tail, but the tail still points at the old last block: the next append "
               "loses it."),
        replace="""        self._tail.prev_free = block
        self.num_free_blocks += 1
""",
        by="        self.num_free_blocks += 1\n",
        killed_by="test_task_1_append_puts_blocks_at_the_end_in_order",
        breaks="FreeKVCacheBlockQueue.append: is linked in both directions",
    ),
    Mutant(
        name="append-forgets-the-count",
        story="The links are right, but the count is wrong.",
        replace="""        self._tail.prev_free = block
        self.num_free_blocks += 1
""",
        by="        self._tail.prev_free = block\n",
        killed_by="test_task_1_append_puts_blocks_at_the_end_in_order",
        breaks="FreeKVCacheBlockQueue.append: the count is 1 higher",
    ),
    Mutant(
        name="append-counts-before-it-looks",
        story="Increases the count before it raises the error: the count is then 1 too high.",
        replace="""        if block.prev_free is not None or block.next_free is not None:
            raise RuntimeError(f"append: block""",
        by="""        self.num_free_blocks += block.next_free is not None
        if block.prev_free is not None or block.next_free is not None:
            raise RuntimeError(f"append: block""",
        killed_by="test_task_1_append_refuses_a_block_that_is_queued",
        breaks="FreeKVCacheBlockQueue.append: nothing changes then",
    ),
    Mutant(
        name="append-walks-to-the-end",
        story="Follows the links from the head to find the last block: the result is right, but it costs O(n).",
        replace="        last = self._tail.prev_free\n",
        by="""        last = self._head
        while last.next_free is not self._tail:
            last = last.next_free
""",
        killed_by="test_task_1_append_costs_the_same_in_a_long_queue",
        breaks=(
            "FreeKVCacheBlockQueue.append: O(1)",
            "FreeKVCacheBlockQueue: O(1) per block that it adds or removes",
        ),
    ),
    Mutant(
        name="reading-empties-the-queue",
        story="Reads the queue by removing all its blocks.",
        replace="""        blocks = []
        block = self._head.next_free
        while block is not self._tail:
            blocks.append(block)
            block = block.next_free
        return blocks
""",
        by="""        blocks = []
        while self._head.next_free is not self._tail:
            block = self._head.next_free
            self._head.next_free = block.next_free
            blocks.append(block)
        return blocks
""",
        killed_by="test_task_1_reading_the_queue_does_not_change_it",
        breaks="FreeKVCacheBlockQueue.get_all_free_blocks: The queue does not change",
    ),
    Mutant(
        name="reading-into-one-list",
        story="Keeps one list and fills it again at each call, which changes the list of an earlier caller.",
        replace="""        blocks = []
        block = self._head.next_free
""",
        by="""        blocks = self.__dict__.setdefault("_all", [])
        blocks.clear()
        block = self._head.next_free
""",
        killed_by="test_task_1_reading_the_queue_does_not_change_it",
        breaks="FreeKVCacheBlockQueue.get_all_free_blocks: in a new list",
    ),
    Mutant(
        name="reading-from-the-wrong-end",
        story="Returns the blocks in reverse order, newest first.",
        replace="""        return blocks
        # END TASK

    def remove""",
        by="""        return blocks[::-1]
        # END TASK

    def remove""",
        killed_by="test_task_1_append_puts_blocks_at_the_end_in_order",
        breaks="FreeKVCacheBlockQueue.get_all_free_blocks: Return all free blocks in a new list, oldest first",
    ),
    Mutant(
        name="remove-lets-strangers-pass",
        story="Ignores a block that is not in the queue, so the caller's mistake is not noticed.",
        replace='            raise RuntimeError(f"remove: block {block.block_id} is not in the free queue")\n',
        by="            return\n",
        killed_by="test_task_2_remove_refuses_a_block_that_is_not_queued",
        breaks="FreeKVCacheBlockQueue.remove: Raises RuntimeError if block is not in a queue",
    ),
    Mutant(
        name="remove-counts-before-it-looks",
        story="Lowers the count before it notices that there is nothing to remove.",
        replace="""        before, after = block.prev_free, block.next_free
        if before is None""",
        by="""        before, after = block.prev_free, block.next_free
        self.num_free_blocks -= before is None
        if before is None""",
        killed_by="test_task_2_remove_refuses_a_block_that_is_not_queued",
        breaks="FreeKVCacheBlockQueue.remove: nothing changes then",
    ),
    Mutant(
        name="popleft-takes-the-newest",
        story="Pops from the end, so the content that was used last is evicted first.",
        replace="""        block = self._head.next_free
        self.remove(block)
""",
        by="""        block = self._tail.prev_free
        self.remove(block)
""",
        killed_by="test_task_3_popleft_takes_the_oldest",
        breaks="FreeKVCacheBlockQueue.popleft: Remove the oldest free block from the queue",
    ),
    Mutant(
        name="popleft-keeps-the-links",
        story="Relinks only the head and leaves the links on the popped block, so it can never be appended again.",
        replace="""        block = self._head.next_free
        self.remove(block)
""",
        by="""        block = self._head.next_free
        self._head.next_free = block.next_free
        block.next_free.prev_free = self._head
        self.num_free_blocks -= 1
""",
        killed_by="test_task_3_popleft_takes_the_oldest",
        breaks="FreeKVCacheBlockQueue: A block that is not in the queue has both links None",
    ),
    Mutant(
        name="popleft-reads-the-whole-queue",
        story="Makes a list of all free blocks to take the first: the result is right, but it costs O(n).",
        replace="""        block = self._head.next_free
        self.remove(block)
""",
        by="""        block = self.get_all_free_blocks()[0]
        self.remove(block)
""",
        killed_by="test_task_3_taking_and_appending_cost_the_same_in_a_long_queue",
        breaks="FreeKVCacheBlockQueue: O(1) per block that it adds or removes",
    ),
    Mutant(
        name="popleft-n-slices-the-whole-queue",
        story="get_all_free_blocks()[:n] walks the whole queue, however small n is.",
        replace="        return [self.popleft() for _ in range(n)]\n",
        by="""        blocks = self.get_all_free_blocks()[:n]
        for block in blocks:
            self.remove(block)
        return blocks
""",
        killed_by="test_task_3_taking_and_appending_cost_the_same_in_a_long_queue",
        breaks="FreeKVCacheBlockQueue: O(1) per block that it adds or removes",
    ),
    Mutant(
        name="popleft-n-of-a-negative-number",
        story="range(-1) is empty, so a wrong calculation in the caller is not noticed.",
        replace="""        if not 0 <= n <= self.num_free_blocks:
            raise ValueError(f"popleft_n""",
        by="""        if n > self.num_free_blocks:
            raise ValueError(f"popleft_n""",
        killed_by="test_task_3_popleft_n_takes_all_or_none",
        breaks="FreeKVCacheBlockQueue.popleft_n: Raises ValueError if ``n`` is negative",
    ),
    Mutant(
        name="popleft-n-newest-first",
        story="Pops the right blocks but returns them in the wrong order.",
        replace="        return [self.popleft() for _ in range(n)]\n",
        by="        return [self.popleft() for _ in range(n)][::-1]\n",
        killed_by="test_task_3_popleft_n_takes_all_or_none",
        breaks="FreeKVCacheBlockQueue.popleft_n: Remove the n oldest free blocks from the queue and return them, "
               "oldest first",
    ),
    Mutant(
        name="append-n-sees-no-repetition",
        story="Checks only the links before the first append, so it notices a block that occurs twice only half-way.",
        replace=" or block.block_id in seen:\n",
        by=":\n",
        killed_by="test_task_3_append_n_adds_all_or_none",
        breaks="FreeKVCacheBlockQueue.append_n: or occurs twice in blocks",
    ),
    Mutant(
        name="append-n-in-reverse",
        story="Appends the blocks in reverse order.",
        replace="""        for block in blocks:
            self.append(block)
        # END TASK""",
        by="""        for block in reversed(blocks):
            self.append(block)
        # END TASK""",
        killed_by="test_task_3_append_n_adds_all_or_none",
        breaks="FreeKVCacheBlockQueue.append_n: Append ``blocks`` in order",
    ),
    Mutant(
        name="append-n-keeps-what-it-saw-in-a-list",
        story="Builds the set of the ids seen so far again for each block: quadratic in the number of blocks.",
        replace="""        seen: set[int] = set()
        for block in blocks:
            if block.prev_free is not None or block.next_free is not None or block.block_id in seen:
""",
        by="""        for i, block in enumerate(blocks):
            seen = {each.block_id for each in blocks[:i]}
            if block.prev_free is not None or block.next_free is not None or block.block_id in seen:
""",
        killed_by="test_task_3_taking_and_appending_cost_the_same_in_a_long_queue",
        breaks="FreeKVCacheBlockQueue: O(1) per block that it adds or removes",
    ),
    Mutant(
        name="hash-with-zero-for-none",
        story="A parent of None and a parent whose hash is 0 become the same.",
        replace="    return hash((parent_hash, tuple(token_ids)))\n",
        by="    return hash((parent_hash or None, tuple(token_ids)))\n",
        killed_by="test_task_4_the_hash_is_that_of_parent_and_tokens",
        breaks="hash_block_tokens: 0 is a valid hash",
    ),
    Mutant(
        name="hash-with-an-empty-third-element",
        story="extra_keys=() and extra_keys=None give different hashes, so equal blocks are not found.",
        replace="    if extra_keys:\n",
        by="    if extra_keys is not None:\n",
        killed_by="test_task_4_extra_keys_are_a_third_element",
        breaks="hash_block_tokens: without extra keys (None or empty)",
    ),
    Mutant(
        name="hash-of-a-list-of-keys",
        story="Hashes the extra keys without tuple(); a list cannot be hashed.",
        replace="tuple(token_ids), tuple(extra_keys)))\n",
        by="tuple(token_ids), extra_keys))\n",
        killed_by="test_task_4_extra_keys_are_a_third_element",
        breaks="hash_block_tokens: with extra keys, given as a tuple or a list",
    ),
    Mutant(
        name="hash-of-keys-and-tokens-in-one-row",
        story="Appends the keys to the tokens: a key that is a number looks like a token.",
        replace="tuple(token_ids), tuple(extra_keys)))\n",
        by="(*token_ids, *extra_keys)))\n",
        killed_by="test_task_4_extra_keys_are_a_third_element",
        breaks="hash_block_tokens: hash((parent_hash, tuple(token_ids), tuple(extra_keys)))",
    ),
    Mutant(
        name="free-blocks-are-counted-one-by-one",
        story="Makes a list of all free blocks to count them, in every call.",
        replace="        return self.free_block_queue.num_free_blocks\n",
        by="        return len(self.free_block_queue.get_all_free_blocks())\n",
        killed_by="test_task_5_giving_out_and_taking_back_cost_the_same_in_a_large_pool",
        breaks="BlockPool: O(1) per block that is passed to it or returned by it",
    ),
    Mutant(
        name="the-null-block-counts-as-free",
        story="Counts the blocks without an owner, including the null block.",
        replace="        return self.free_block_queue.num_free_blocks\n",
        by="        return self.free_block_queue.num_free_blocks + 1\n",
        killed_by="test_task_5_usage_runs_from_0_to_1_without_the_null_block",
        breaks="BlockPool.get_num_free_blocks: Return the number of blocks that can be given out now",
    ),
    Mutant(
        name="usage-of-a-pool-of-one",
        story="Divides by the number of usable blocks, which may be 0.",
        replace="        return 1.0 - self.get_num_free_blocks() / num_usable if num_usable else 0.0\n",
        by="        return 1.0 - self.get_num_free_blocks() / num_usable\n",
        killed_by="test_task_5_usage_runs_from_0_to_1_without_the_null_block",
        breaks="BlockPool.get_usage: The result is 0.0 for a pool with only the null block",
    ),
    Mutant(
        name="usage-in-round-numbers",
        story="Rounds for display, although callers compute with the number.",
        replace="        return 1.0 - self.get_num_free_blocks() / num_usable if num_usable else 0.0\n",
        by="        return round(1.0 - self.get_num_free_blocks() / num_usable, 1) if num_usable else 0.0\n",
        killed_by="test_task_5_usage_runs_from_0_to_1_without_the_null_block",
        breaks="BlockPool.get_usage: Return the fraction of the pool that is in use",
    ),
    Mutant(
        name="new-blocks-as-many-as-there-are",
        story="Returns fewer blocks than requested, without an error.",
        replace="        blocks = self.free_block_queue.popleft_n(n)\n",
        by="        blocks = self.free_block_queue.popleft_n(min(n, self.get_num_free_blocks()))\n",
        killed_by="test_task_5_asking_for_more_than_is_free_takes_nothing",
        breaks="BlockPool.get_new_blocks: ValueError if ``n`` is negative or fewer than ``n`` blocks are free",
    ),
    Mutant(
        name="new-blocks-one-by-one",
        story="Takes blocks until none is left and then fails: the blocks it took have no owner.",
        replace="        blocks = self.free_block_queue.popleft_n(n)\n",
        by="        blocks = [self.free_block_queue.popleft() for _ in range(n)]\n",
        killed_by="test_task_5_asking_for_more_than_is_free_takes_nothing",
        breaks=(
            "BlockPool.get_new_blocks: nothing changes then",
            "BlockPool: Every method does all its checks before its first write",
        ),
    ),
    Mutant(
        name="new-blocks-newest-first",
        story="Returns the right blocks in the wrong order.",
        replace="""            block.ref_cnt = 1
        return blocks
""",
        by="""            block.ref_cnt = 1
        return blocks[::-1]
""",
        killed_by="test_task_5_new_blocks_are_owned_and_never_the_null_block",
        breaks="BlockPool.get_new_blocks: these blocks, starting with the block that has been free longest",
    ),
    Mutant(
        name="free-in-reverse",
        story="Reverses the order, although the caller has already reversed it.",
        replace="""        blocks = list(blocks)
        num_drops""",
        by="""        blocks = list(blocks)[::-1]
        num_drops""",
        killed_by="test_task_5_free_blocks_go_to_the_end_in_the_order_given",
        breaks="BlockPool.free_blocks: in the order given",
    ),
    Mutant(
        name="free-walks-the-iterator-twice",
        story="Uses up an iterator in the checks, so that no block is left to free.",
        replace="""        blocks = list(blocks)
        num_drops""",
        by="        num_drops",
        killed_by="test_task_5_free_blocks_go_to_the_end_in_the_order_given",
        breaks="BlockPool.free_blocks: which may be any iterable",
    ),
    Mutant(
        name="free-refuses-what-comes-twice",
        story="Treats a block that occurs twice as a double free, although it has two owners.",
        replace="            if num_drops[block.block_id] > block.ref_cnt:\n",
        by="            if num_drops[block.block_id] > min(1, block.ref_cnt):\n",
        killed_by="test_task_5_a_block_may_come_as_often_as_it_has_owners",
        breaks="BlockPool.free_blocks: one owner per occurrence in ``blocks``",
    ),
    Mutant(
        name="free-sets-of-blocks",
        story="Drops all owners first, then appends each block in the order of its first occurrence.",
        replace="""            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)
""",
        by="""            block.ref_cnt -= 1
        self.free_block_queue.append_n([block for block in dict.fromkeys(blocks) if block.ref_cnt == 0])
""",
        killed_by="test_task_5_a_block_may_come_as_often_as_it_has_owners",
        breaks="BlockPool.free_blocks: it joined the end when it lost its last owner",
    ),
    Mutant(
        name="free-takes-strangers",
        story="Checks the owners of a block, but not whether it is a block of this pool.",
        replace='            self._check_mine(block, "free_blocks")\n',
        by="",
        killed_by="test_task_5_free_blocks_refuses_the_null_block_and_strangers",
        breaks="BlockPool.free_blocks: RuntimeError if _check_mine rejects a block",
    ),
    Mutant(
        name="free-stops-half-way",
        story="Checks each block just before it frees it; blocks before an invalid one are already free.",
        replace="""                                   f"but has {block.ref_cnt} owners")
        for block in blocks:
            block.ref_cnt -= 1
""",
        by="""                                   f"but has {block.ref_cnt} owners")
            num_drops[block.block_id] -= 1
            block.ref_cnt -= 1
""",
        killed_by="test_task_5_freeing_what_is_free_fails_at_once",
        breaks="BlockPool.free_blocks: nothing changes then",
    ),
    Mutant(
        name="touch-one-owner-however-often",
        story="Removes a free block from the queue once per occurrence, which fails at the second occurrence.",
        replace="""        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1
""",
        by="""        for block in [block for block in blocks if block.ref_cnt == 0]:
            self.free_block_queue.remove(block)
        for block in blocks:
            block.ref_cnt += 1
""",
        killed_by="test_task_6_a_block_that_comes_twice_gets_two_owners",
        breaks="BlockPool.touch: A block that occurs twice in blocks gets two owners",
    ),
    Mutant(
        name="touch-looks-for-the-block-in-the-queue",
        story="Searches a list of all free blocks to see whether the block is free.",
        replace="""            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
""",
        by="""            if block in self.free_block_queue.get_all_free_blocks():
                self.free_block_queue.remove(block)
""",
        killed_by="test_task_6_touch_costs_the_same_in_a_large_pool",
        breaks="BlockPool.touch: in O(1)",
    ),
    Mutant(
        name="touch-takes-strangers",
        story="Assumes that every touched block belongs to this pool.",
        replace='            self._check_mine(block, "touch")\n',
        by="            assert block.block_id < self.num_blocks\n",
        killed_by="test_task_6_touch_refuses_the_null_block_and_strangers",
        breaks="BlockPool.touch: Raises RuntimeError if _check_mine rejects a block",
    ),
    Mutant(
        name="caching-sets-no-hash",
        story="Fills the index but not block_hash, so the pool cannot evict the block when it is reused.",
        replace="            block.block_hash = block_hash\n",
        by="",
        killed_by="test_task_7_freed_twins_both_keep_their_content",
        breaks="BlockPool.cache_full_blocks: each block has its hash",
    ),
    Mutant(
        name="a-twin-is-not-cached",
        story="Does not index a second block, because the content can already be found.",
        replace="""        for block, block_hash in zip(blocks, hashes):
            block.block_hash = block_hash
""",
        by="""        for block, block_hash in zip(blocks, hashes):
            if block_hash in self._cached:
                continue
            block.block_hash = block_hash
""",
        killed_by="test_task_7_freed_twins_both_keep_their_content",
        breaks="BlockPool.cache_full_blocks: the index contains it under that hash, next to its twins",
    ),
    Mutant(
        name="as-many-hashes-as-blocks",
        story="Rejects hashes beyond the last block, although callers may pass them.",
        replace="        self._check_hashes(blocks, hashes)\n",
        by="""        self._check_hashes(blocks, hashes)
        if len(hashes) != len(blocks):
            raise ValueError(f"cache_full_blocks: {len(blocks)} blocks, but {len(hashes)} hashes")
""",
        killed_by="test_task_7_hashes_beyond_the_last_block_are_ignored",
        breaks="BlockPool.cache_full_blocks: hashes beyond the last block are ignored",
    ),
    Mutant(
        name="cached-once-only",
        story="Rejects a block that is already indexed under the same hash.",
        replace="            if held != block_hash:\n",
        by="            if held != block_hash or block.block_hash is not None:\n",
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks="BlockPool.cache_full_blocks: a block that was already indexed under an equal hash is still indexed "
               "under it",
    ),
    Mutant(
        name="equal-is-not-identical",
        story=("Compares hashes with `is not`: equal small ints are one object in Python, but equal large ints and "
               "tuples are not."),
        replace="            if held != block_hash:\n",
        by="            if held is not block_hash:\n",
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks="BlockPool.cache_full_blocks: a block that was already indexed under an equal hash is still indexed "
               "under it",
    ),
    Mutant(
        name="a-hash-is-a-number",
        story="Rejects strings and tuples, although every hashable value can be a key.",
        replace="        self._check_hashes(blocks, hashes)\n",
        by="""        self._check_hashes(blocks, hashes)
        if not all(isinstance(block_hash, int) for block_hash in hashes[:len(blocks)]):
            raise TypeError(f"cache_full_blocks: hashes must be numbers, got {hashes}")
""",
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks="BlockPool.cache_full_blocks: every hash except None is accepted, for example 0, a string or a tuple",
    ),
    Mutant(
        name="zero-is-no-hash-within-one-call",
        story="`x.get(id) or default` treats the hash 0, which this call has just stored, as missing.",
        replace="held = given.setdefault(block.block_id, block_hash) if block.block_hash is None else block.block_hash",
        by="held, given[block.block_id] = given.get(block.block_id) or block.block_hash or block_hash, block_hash",
        killed_by="test_task_7_zero_is_a_hash_like_any_other_and_none_is_none",
        breaks="BlockPool.cache_full_blocks: RuntimeError if a block occurs twice in blocks, with two different "
               "hashes",
    ),
    Mutant(
        name="zero-is-no-hash",
        story="`if block.block_hash` treats the hash 0 as None.",
        replace="""if block.block_hash is None else block.block_hash
            if held""",
        by="""if not block.block_hash else block.block_hash
            if held""",
        killed_by="test_task_7_zero_is_a_hash_like_any_other_and_none_is_none",
        breaks=(
            "BlockPool.cache_full_blocks: every hash except None is accepted, for example 0",
            "BlockPool.cache_full_blocks: RuntimeError if a block is indexed under another hash",
        ),
    ),
    Mutant(
        name="caching-off-but-strict",
        story="Checks its arguments before it checks whether caching is on.",
        replace="""        if not self.enable_caching:
            return
        self._check_hashes(blocks, hashes)
""",
        by="""        self._check_hashes(blocks, hashes)
        if not self.enable_caching:
            return
""",
        killed_by="test_task_7_with_caching_off_nothing_is_found",
        breaks="BlockPool.cache_full_blocks: if caching is off, nothing has changed, and no call raises",
    ),
    Mutant(
        name="caching-off-ignored",
        story="Never checks whether caching is on.",
        replace="""        if not self.enable_caching:
            return
""",
        by="",
        killed_by="test_task_7_with_caching_off_nothing_is_found",
        breaks="BlockPool.cache_full_blocks: if caching is off",
    ),
    Mutant(
        name="none-is-a-hash",
        story="Does not call _check_hashes. A block indexed under None looks unindexed and is never evicted.",
        replace="        self._check_hashes(blocks, hashes)\n",
        by="",
        killed_by="test_task_7_zero_is_a_hash_like_any_other_and_none_is_none",
        breaks=(
            "BlockPool.cache_full_blocks: every hash except None is accepted",
            "BlockPool.cache_full_blocks: ValueError or TypeError if _check_hashes rejects the hashes",
        ),
    ),
    Mutant(
        name="free-blocks-can-be-cached",
        story="Indexes a block that the next request will overwrite.",
        replace="""            if block.ref_cnt == 0:
                raise RuntimeError(f"cache_full""",
        by="""            if block.ref_cnt < 0:
                raise RuntimeError(f"cache_full""",
        killed_by="test_task_7_only_owned_blocks_of_the_pool_can_be_cached",
        breaks="BlockPool.cache_full_blocks: RuntimeError if a block is free",
    ),
    Mutant(
        name="what-is-indexed-need-not-be-owned",
        story="Skips a block that is already indexed under the same hash before it checks whether the block is free.",
        replace="""            if block.ref_cnt == 0:
                raise RuntimeError(f"cache_full""",
        by="""            if block.ref_cnt == 0 and block.block_hash != block_hash:
                raise RuntimeError(f"cache_full""",
        killed_by="test_task_7_only_owned_blocks_of_the_pool_can_be_cached",
        breaks="BlockPool.cache_full_blocks: even if it is indexed under this hash",
    ),
    Mutant(
        name="hashed-when-it-is-too-late",
        story="Notices an unhashable hash only after it has indexed the blocks before it.",
        replace="        self._check_hashes(blocks, hashes)\n",
        by="""        if len(hashes) < len(blocks) or None in hashes[:len(blocks)]:
            raise ValueError(f"cache_full_blocks: {len(blocks)} blocks, hashes {hashes}")
""",
        killed_by="test_task_7_a_hash_that_cannot_be_hashed_changes_nothing",
        breaks=(
            "BlockPool.cache_full_blocks: too few of them, a None, an unhashable value",
            "BlockPool.cache_full_blocks: Do all checks before the first write",
        ),
    ),
    Mutant(
        name="no-hash-may-be-none",
        story="Checks all hashes, including the hashes beyond the last block.",
        replace="        given: dict[int, Hashable] = {}\n",
        by="""        if any(block_hash is None for block_hash in hashes):
            raise ValueError("cache_full_blocks: a hash is None")
        given: dict[int, Hashable] = {}
""",
        killed_by="test_task_7_hashes_beyond_the_last_block_are_ignored",
        breaks="BlockPool.cache_full_blocks: hashes beyond the last block are ignored",
    ),
    Mutant(
        name="caching-keeps-a-copy-of-the-index",
        story="Copies the whole index, to restore it if the call fails.",
        replace="        given: dict[int, Hashable] = {}\n",
        by="        given, before = {}, dict(self._cached)\n",
        killed_by="test_task_8_no_call_about_one_block_walks_or_copies_the_pool",
        breaks="BlockPool: O(1) per block that is passed to it or returned by it",
    ),
    Mutant(
        name="free-keeps-a-copy-of-the-pool",
        story="Makes a list of all blocks, which reads none of them but takes 8 bytes per block.",
        replace="""        blocks = list(blocks)
        num_drops""",
        by="""        blocks, everything = list(blocks), list(self.blocks)
        num_drops""",
        killed_by="test_task_8_no_call_about_one_block_walks_or_copies_the_pool",
        breaks="BlockPool: O(1) per block that is passed to it or returned by it",
    ),
    Mutant(
        name="touch-walks-the-pool",
        story="Compares the block with every block of the pool by `is`, which reads no attribute.",
        replace='            self._check_mine(block, "touch")\n',
        by="""            self._check_mine(block, "touch")
            if not any(each is block for each in self.blocks):
                raise RuntimeError(f"touch: block {block.block_id} is not a block of this pool")
""",
        killed_by="test_task_8_no_call_about_one_block_walks_or_copies_the_pool",
        breaks="BlockPool: O(1) per block that is passed to it or returned by it",
    ),
    Mutant(
        name="strangers-can-be-cached",
        story="Indexes a block of another pool: a hit would return memory that does not belong to this pool.",
        replace='            self._check_mine(block, "cache_full_blocks")\n',
        by="",
        killed_by="test_task_7_only_owned_blocks_of_the_pool_can_be_cached",
        breaks="BlockPool.cache_full_blocks: RuntimeError if _check_mine rejects a block",
    ),
    Mutant(
        name="a-second-hash-replaces-the-first",
        story="A block with a new hash is still found under the old hash.",
        replace="            if held != block_hash:\n",
        by="            if False:\n",
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks=(
            "BlockPool.cache_full_blocks: RuntimeError if a block is indexed under another hash",
            "invariant 5: If the index maps a hash to a block, the block holds the content with that hash",
        ),
    ),
    Mutant(
        name="two-hashes-in-one-call",
        story="Compares only with hashes from before the call, so it does not notice a block that occurs twice.",
        replace="held = given.setdefault(block.block_id, block_hash) if",
        by="held = block_hash if",
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks="BlockPool.cache_full_blocks: RuntimeError if a block occurs twice in blocks, with two different "
               "hashes",
    ),
    Mutant(
        name="caching-stops-half-way",
        story="Indexes each block as soon as it is checked; blocks before an invalid one stay indexed.",
        replace="""                                   f"under {held}, not under {block_hash}")
        for block, block_hash in zip(blocks, hashes):
""",
        by='                                   f"under {held}, not under {block_hash}")\n',
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks="BlockPool.cache_full_blocks: a call that raises has changed nothing",
    ),
    Mutant(
        name="only-blocks-in-use-are-found",
        story="Finds only blocks with an owner, so all freed content is lost.",
        replace="        return next(iter(twins.values())) if twins else None\n",
        by="        return next((block for block in twins.values() if block.ref_cnt), None) if twins else None\n",
        killed_by="test_task_7_a_cached_block_is_found_in_use_and_free",
        breaks="BlockPool.get_cached_block: Return a block that holds this content, whether it is in use or free",
    ),
    Mutant(
        name="a-look-is-a-use",
        story="Moves a block that is found to the end of the queue, as an LRU cache would.",
        replace="        return next(iter(twins.values())) if twins else None\n",
        by="""        block = next(iter(twins.values())) if twins else None
        if block is not None and block.ref_cnt == 0:
            self.free_block_queue.remove(block)
            self.free_block_queue.append(block)
        return block
""",
        killed_by="test_task_7_a_cached_block_is_found_in_use_and_free",
        breaks="BlockPool.get_cached_block: A lookup changes nothing",
    ),
    Mutant(
        name="a-miss-leaves-an-entry",
        story="setdefault() or a defaultdict keeps an empty entry for every hash that was ever looked up.",
        replace="""        twins = self._cached.get(block_hash)
        return""",
        by="""        twins = self._cached.setdefault(block_hash, {})
        return""",
        killed_by="test_task_7_looking_for_what_is_not_there_leaves_nothing_behind",
        breaks="BlockPool.get_cached_block: A lookup changes nothing",
    ),
    Mutant(
        name="the-lowest-twin-serves",
        story="Takes min() of the ids under a hash: with a thousand twins, a lookup makes a thousand comparisons.",
        replace="        return next(iter(twins.values())) if twins else None\n",
        by="        return twins[min(twins)] if twins else None\n",
        killed_by="test_task_7_caching_and_finding_cost_the_same_in_a_large_pool",
        breaks="BlockPool: O(1) per block that is passed to it or returned by it",
    ),
    Mutant(
        name="all-blocks-are-asked",
        story="Compares the hash of every block: the result is right, but it costs O(n).",
        replace="""        twins = self._cached.get(block_hash)
        return next(iter(twins.values())) if twins else None
""",
        by="        return next((block for block in self.blocks if block.block_hash == block_hash), None)\n",
        killed_by="test_task_7_caching_and_finding_cost_the_same_in_a_large_pool",
        breaks="BlockPool: O(1) per block that is passed to it or returned by it",
    ),
    Mutant(
        name="empty-entries-stay",
        story="Keeps the entry of a hash after its last block: the index grows as long as the server runs.",
        replace="""            if not twins:
                del self._cached[block.block_hash]
""",
        by="",
        killed_by="test_task_8_entries_without_a_block_do_not_pile_up",
        breaks="BlockPool._maybe_evict: an entry of the index without blocks is deleted",
    ),
    Mutant(
        name="evicting-walks-the-index",
        story="Searches every entry of the index for the block.",
        replace="""        twins = self._cached.get(block.block_hash) if block.block_hash is not None else None
        if twins is not None and twins.get(block.block_id) is block:
            del twins[block.block_id]
            if not twins:
                del self._cached[block.block_hash]
""",
        by="""        for block_hash, twins in list(self._cached.items()):
            if twins.pop(block.block_id, None) is not None and not twins:
                del self._cached[block_hash]
""",
        killed_by="test_task_8_forgetting_one_block_costs_the_same_in_a_large_pool",
        breaks="BlockPool: O(1) per block that is passed to it or returned by it",
    ),
    Mutant(
        name="the-hash-zero-is-never-evicted",
        story="`if block.block_hash` treats the hash 0 as None: a lookup of 0 still finds the block of a new owner.",
        replace="""            if block.block_hash is not None:
                self._maybe_evict""",
        by="""            if block.block_hash:
                self._maybe_evict""",
        killed_by="test_task_8_each_twin_and_the_hash_zero_count_as_content",
        breaks=(
            "BlockPool.get_new_blocks: the index does not contain any of these blocks",
            "BlockPool.get_new_blocks: and no hash",
            "BlockPool.get_new_blocks: twins count, and 0 is a hash",
        ),
    ),
    Mutant(
        name="only-the-last-twin-counts",
        story="Counts an eviction only if no twin holds the content any more.",
        replace="""                self._maybe_evict(block)
                self.num_evictions += 1
""",
        by="""                block_hash = block.block_hash
                self._maybe_evict(block)
                self.num_evictions += block_hash not in self._cached
""",
        killed_by="test_task_8_each_twin_and_the_hash_zero_count_as_content",
        breaks="BlockPool.get_new_blocks: num_evictions is higher by 1 per block that had a hash",
    ),
    Mutant(
        name="every-new-block-counts-as-evicted",
        story="Counts all blocks that are given out.",
        replace="""                self._maybe_evict(block)
                self.num_evictions += 1
""",
        by="""                self._maybe_evict(block)
            self.num_evictions += 1
""",
        killed_by="test_task_8_giving_a_cached_block_out_again_forgets_its_content",
        breaks="BlockPool.get_new_blocks: num_evictions is higher by 1 per block that had a hash",
    ),
    Mutant(
        name="evict-blocks-frees-them",
        story="Also takes the block away from its owners.",
        replace="            self._maybe_evict(self.blocks[block_id])\n",
        by="""            self._maybe_evict(self.blocks[block_id])
            if self.blocks[block_id].ref_cnt:
                self.blocks[block_id].ref_cnt = 0
                self.free_block_queue.append(self.blocks[block_id])
""",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: Their owners and their places in the free queue do not change",
    ),
    Mutant(
        name="evict-blocks-of-free-blocks-only",
        story="Does not evict blocks in use: a failed step could not remove its blocks from the index.",
        replace="            self._maybe_evict(self.blocks[block_id])\n",
        by="""            if self.blocks[block_id].ref_cnt == 0:
                self._maybe_evict(self.blocks[block_id])
""",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: Remove blocks from the index, whether they are in use or free",
    ),
    Mutant(
        name="evict-blocks-walks-the-iterator-twice",
        story="Uses up an iterator in the checks, so that no id is left to evict.",
        replace="        block_ids = list(block_ids)\n",
        by="",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: Remove blocks from the index",
    ),
    Mutant(
        name="evict-blocks-refuses-what-is-not-indexed",
        story="Raises an error for a block that is not indexed.",
        replace="            self._maybe_evict(self.blocks[block_id])\n",
        by="""            del self._cached[self.blocks[block_id].block_hash][block_id]
            self.blocks[block_id].reset_hash()
""",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: A block that is not indexed does not change",
    ),
    Mutant(
        name="evict-blocks-refuses-an-id-that-comes-twice",
        story="Treats a repeated id as an error, although there is simply nothing left to evict.",
        replace="        block_ids = list(block_ids)\n",
        by="""        block_ids = list(block_ids)
        if len(set(block_ids)) < len(block_ids):
            raise ValueError(f"evict_blocks: an id comes twice in {block_ids}")
""",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: and an id may occur twice",
    ),
    Mutant(
        name="evict-blocks-counts-from-the-end",
        story="Does not call _check_ids. In Python blocks[-1] is the last block, but -1 is not a valid id.",
        replace="        self._check_ids(block_ids)\n",
        by="",
        killed_by="test_task_8_evict_blocks_refuses_an_id_that_is_not_the_pools",
        breaks="BlockPool.evict_blocks: Raises ValueError if _check_ids rejects an id",
    ),
    Mutant(
        name="evict-blocks-stops-half-way",
        story="Checks each id just before it evicts the block; blocks before an invalid id are evicted.",
        replace="""        self._check_ids(block_ids)
        for block_id in block_ids:
""",
        by="""        for block_id in block_ids:
            self._check_ids([block_id])
""",
        killed_by="test_task_8_evict_blocks_refuses_an_id_that_is_not_the_pools",
        breaks="BlockPool.evict_blocks: nothing changes then",
    ),
    Mutant(
        name="reset-does-not-say-how-many",
        story="Raises an error without the number, so the reader cannot tell a busy pool from a leak.",
        replace="refused, {num_used} of {self.num_blocks - 1} blocks are in use",
        by="refused, blocks are in use",
        killed_by="test_task_8_reset_is_refused_while_blocks_are_in_use",
        breaks="BlockPool.reset_prefix_cache: with the number of these blocks in the message",
    ),
    Mutant(
        name="reset-counts-the-owners",
        story="Counts owners instead of blocks: a block with two owners counts twice.",
        replace="        num_used = self.num_blocks - 1 - self.get_num_free_blocks()\n",
        by="        num_used = sum(block.ref_cnt for block in self.blocks)\n",
        killed_by="test_task_8_reset_is_refused_while_blocks_are_in_use",
        breaks="BlockPool.reset_prefix_cache: with the number of these blocks in the message",
    ),
    Mutant(
        name="reset-forgets-before-it-looks",
        story="Empties the index before it notices that blocks are in use.",
        replace="""        num_used = self.num_blocks - 1 - self.get_num_free_blocks()
        if num_used:
""",
        by="""        self._cached = {}
        num_used = self.num_blocks - 1 - self.get_num_free_blocks()
        if num_used:
""",
        killed_by="test_task_8_reset_is_refused_while_blocks_are_in_use",
        breaks="BlockPool.reset_prefix_cache: nothing changes then",
    ),
    Mutant(
        name="reset-leaves-the-hashes",
        story="Empties the index, but the blocks keep their hashes.",
        replace="""        for block in self.blocks:
            block.reset_hash()
""",
        by="",
        killed_by="test_task_8_reset_forgets_all_content_and_nothing_else",
        breaks="BlockPool.reset_prefix_cache: reset every hash",
    ),
    Mutant(
        name="reset-starts-the-count-again",
        story="Sets the counter back to 0, which makes a graph of evictions wrong.",
        replace="""        self._cached = {}
        for block""",
        by="""        self._cached = {}
        self.num_evictions = 0
        for block""",
        killed_by="test_task_8_reset_forgets_all_content_and_nothing_else",
        breaks="BlockPool.reset_prefix_cache: num_evictions does not change",
    ),
]
