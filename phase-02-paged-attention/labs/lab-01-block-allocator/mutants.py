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
        breaks="FreeKVCacheBlockQueue.append: Raises RuntimeError if ``block`` is in a queue already",
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
        story="The removed block still points into the queue, so it looks queued for ever.",
        replace="        block.prev_free = block.next_free = None\n",
        by="",
        killed_by="test_task_2_a_removed_block_has_no_links_and_can_come_back",
        breaks="FreeKVCacheBlockQueue.remove: both links of ``block`` are None",
    ),
    Mutant(
        name="remove-forgets-the-count",
        story="num_free_blocks promises a block that is not there.",
        replace="        self.num_free_blocks -= 1\n",
        by="",
        killed_by="test_task_2_remove_from_the_middle_keeps_order",
        breaks="FreeKVCacheBlockQueue.remove: the count is one less",
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
        breaks="FreeKVCacheBlockQueue.remove: in O(1)",
    ),
    Mutant(
        name="popleft-hands-out-the-fake-tail",
        story="Trusts that there always is a first block.",
        replace="""        if self.num_free_blocks == 0:
            raise ValueError("popleft from an empty free queue: 0 free blocks")
""",
        by="",
        killed_by="test_task_3_popleft_from_an_empty_queue_is_a_value_error",
        breaks="FreeKVCacheBlockQueue.popleft: Raises ValueError if there is none",
    ),
    Mutant(
        name="popleft-n-takes-what-it-can",
        story="Pops one by one and fails half way; the popped blocks are lost.",
        replace="""        if not 0 <= n <= self.num_free_blocks:
            raise ValueError(f"popleft_n({n}): there are {self.num_free_blocks} free blocks")
""",
        by="",
        killed_by="test_task_3_popleft_n_takes_all_or_none",
        breaks="FreeKVCacheBlockQueue.popleft_n: none is taken then",
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
        breaks="FreeKVCacheBlockQueue.append_n: none is appended then",
    ),
    Mutant(
        name="hash-without-the-parent",
        story="Equal tokens at the same offset of different prompts share K/V that depends on what came before.",
        replace="    return hash((parent_hash, tuple(token_ids)))\n",
        by="    return hash((None, tuple(token_ids)))\n",
        killed_by="test_task_4_equal_tokens_after_other_prefixes_differ",
        breaks="hash_block_tokens: the parent's hash stands for every token before it",
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
        story="The salt is accepted and ignored: one tenant finds another's blocks.",
        replace="        return hash((parent_hash, tuple(token_ids), tuple(extra_keys)))\n",
        by="        return hash((parent_hash, tuple(token_ids)))\n",
        killed_by="test_task_4_extra_keys_keep_equal_texts_apart",
        breaks="hash_block_tokens: keep equal texts apart",
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
        story="Forgets ref_cnt = 1: the block is out of the queue and owned by nobody.",
        replace="            block.ref_cnt = 1\n",
        by="",
        killed_by="test_task_5_new_blocks_are_owned_and_never_the_null_block",
        breaks=(
            "BlockPool.get_new_blocks: each of these blocks has ``ref_cnt`` 1",
            "invariant 2: Free + owned + null = all blocks",
        ),
    ),
    Mutant(
        name="double-free-unnoticed",
        story="Decrements without looking; the count goes negative and the block never comes back.",
        replace="            if num_drops[block.block_id] > block.ref_cnt:\n",
        by="            if False:\n",
        killed_by="test_task_5_freeing_what_is_free_fails_at_once",
        breaks="BlockPool.free_blocks: RuntimeError if a block comes more often than it has owners",
    ),
    Mutant(
        name="double-free-within-one-call-unnoticed",
        story="Looks at ref_cnt only, so the same block twice in one list slips through the check.",
        replace="            if num_drops[block.block_id] > block.ref_cnt:\n",
        by="            if block.ref_cnt == 0:\n",
        killed_by="test_task_5_freeing_what_is_free_fails_at_once",
        breaks="BlockPool.free_blocks: RuntimeError if a block comes more often than it has owners",
    ),
    Mutant(
        name="free-takes-from-all-owners",
        story="One owner leaves and the block is offered to others, while someone still reads it.",
        replace="            block.ref_cnt -= 1\n",
        by="            block.ref_cnt = 0\n",
        killed_by="test_task_6_a_shared_block_is_free_when_its_last_owner_leaves",
        breaks="BlockPool.free_blocks: each block has lost one owner per occurrence",
    ),
    Mutant(
        name="free-forgets-the-content",
        story="Evicts on free instead of on reuse: nothing is ever found again.",
        replace="                self.free_block_queue.append(block)\n",
        by="                self._maybe_evict(block)\n                self.free_block_queue.append(block)\n",
        killed_by="test_task_7_a_cached_block_is_found_in_use_and_free",
        breaks=(
            "BlockPool.free_blocks: each block is indexed as before",
            "invariant 4: Freeing a block forgets nothing",
        ),
    ),
    Mutant(
        name="touch-leaves-the-block-in-the-queue",
        story="Counts the new owner, and lets the block be given to someone else.",
        replace="            if block.ref_cnt == 0:\n                self.free_block_queue.remove(block)\n",
        by="",
        killed_by="test_task_6_touch_pulls_a_free_block_out_of_the_middle",
        breaks=(
            "BlockPool.touch: a free one leaves the queue",
            "invariant 1: A block is in the free queue **iff** its `ref_cnt` is 0",
        ),
    ),
    Mutant(
        name="touch-takes-the-oldest-instead",
        story="Pops from the left, whichever block was hit.",
        replace="                self.free_block_queue.remove(block)\n",
        by="                self.free_block_queue.popleft()\n",
        killed_by="test_task_6_touch_pulls_a_free_block_out_of_the_middle",
        breaks="BlockPool.touch: from wherever it is",
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
        breaks=(
            "BlockPool.touch: nothing changes then",
            "invariant 3: A call that raises has changed nothing",
        ),
    ),
    Mutant(
        name="caching-zips-silently",
        story="zip() stops at the shorter list: the last blocks are never findable, and nobody notices.",
        replace="        self._check_hashes(blocks, hashes)\n",
        by="        self._check_hashes(blocks[:len(hashes)], hashes)\n",
        killed_by="test_task_7_caching_with_fewer_hashes_than_blocks_fails_at_once",
        breaks="BlockPool.cache_full_blocks: for what ``_check_hashes`` refuses: too few hashes",
    ),
    Mutant(
        name="the-later-twin-hides-the-first",
        story="One block a hash: the second overwrites the first in the index.",
        replace="            self._cached.setdefault(block_hash, {})[block.block_id] = block\n",
        by="            self._cached[block_hash] = {block.block_id: block}\n",
        killed_by="test_task_8_a_twin_survives_the_eviction_of_the_other",
        breaks="BlockPool.cache_full_blocks: next to its twins",
    ),
    Mutant(
        name="eviction-drops-both-twins",
        story="Deletes the whole entry of the hash, the twin's content included.",
        replace="            if not twins:\n                del self._cached[block.block_hash]\n",
        by="            del self._cached[block.block_hash]\n",
        killed_by="test_task_8_a_twin_survives_the_eviction_of_the_other",
        breaks="BlockPool._maybe_evict: a twin under the same hash is still found",
    ),
    Mutant(
        name="a-stale-hash-after-eviction",
        story="The index is clean, but the block still carries the hash of what it held.",
        replace="        block.reset_hash()\n        # END TASK\n\n    def evict_blocks",
        by="        # END TASK\n\n    def evict_blocks",
        killed_by="test_task_8_giving_a_cached_block_out_again_forgets_its_content",
        breaks="BlockPool._maybe_evict: its hash is None",
    ),
    Mutant(
        name="the-index-outlives-the-content",
        story="Clears the block's hash and forgets the index, which now names a stranger's block.",
        replace="            del twins[block.block_id]\n            if not twins:\n"
                "                del self._cached[block.block_hash]\n",
        by="            pass\n",
        killed_by="test_task_8_giving_a_cached_block_out_again_forgets_its_content",
        breaks=(
            "BlockPool._maybe_evict: the index does not name it",
            "invariant 5: The index never names a block whose content is something else",
        ),
    ),
    Mutant(
        name="counts-what-was-taken-out-on-purpose",
        story="Every block that leaves the index counts as evicted, though nobody needed the room.",
        replace="            self._maybe_evict(self.blocks[block_id])\n",
        by="            self.num_evictions += self.blocks[block_id].block_hash is not None\n"
           "            self._maybe_evict(self.blocks[block_id])\n",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: ``num_evictions`` stays as it is",
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
        story="A block is made as good as new, though only its content was to be forgotten.",
        replace="""        self.block_hash = None
        # END TASK""",
        by="""        self.block_hash, self.ref_cnt, self.is_null = None, 0, False
        # END TASK""",
        killed_by="test_task_1_reset_hash_forgets_the_hash_only",
        breaks="KVCacheBlock.reset_hash: all else as before",
    ),
    Mutant(
        name="append-leaves-the-tail-behind",
        story="The new block points at the tail, the tail still at the old last one: the next append forgets it.",
        replace="""        self._tail.prev_free = block
        self.num_free_blocks += 1
""",
        by="        self.num_free_blocks += 1\n",
        killed_by="test_task_1_append_puts_blocks_at_the_end_in_order",
        breaks="FreeKVCacheBlockQueue.append: it is linked both ways",
    ),
    Mutant(
        name="append-forgets-the-count",
        story="The queue is right and its number is not.",
        replace="""        self._tail.prev_free = block
        self.num_free_blocks += 1
""",
        by="        self._tail.prev_free = block\n",
        killed_by="test_task_1_append_puts_blocks_at_the_end_in_order",
        breaks="FreeKVCacheBlockQueue.append: the count is one more",
    ),
    Mutant(
        name="append-counts-before-it-looks",
        story="Counts first and refuses afterwards: the count promises a block too many.",
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
        story="Follows the links from the head to find the last block: right, and O(n).",
        replace="        last = self._tail.prev_free\n",
        by="""        last = self._head
        while last.next_free is not self._tail:
            last = last.next_free
""",
        killed_by="test_task_1_append_costs_the_same_in_a_long_queue",
        breaks=(
            "FreeKVCacheBlockQueue.append: O(1)",
            "FreeKVCacheBlockQueue: O(1) for each block that it takes or gives",
        ),
    ),
    Mutant(
        name="reading-empties-the-queue",
        story="Reads the queue by taking everything out of it.",
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
        story="Keeps one list and fills it again at each call: what an earlier caller got has changed.",
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
        story="Follows prev_free from the tail: newest first.",
        replace="""        return blocks
        # END TASK

    def remove""",
        by="""        return blocks[::-1]
        # END TASK

    def remove""",
        killed_by="test_task_1_append_puts_blocks_at_the_end_in_order",
        breaks="FreeKVCacheBlockQueue.get_all_free_blocks: All free blocks, oldest first",
    ),
    Mutant(
        name="remove-lets-strangers-pass",
        story="A block that is in no queue is removed without a word, and the count is wrong.",
        replace='            raise RuntimeError(f"remove: block {block.block_id} is not in the free queue")\n',
        by="            return\n",
        killed_by="test_task_2_remove_refuses_a_block_that_is_not_queued",
        breaks="FreeKVCacheBlockQueue.remove: Raises RuntimeError if ``block`` is in no queue",
    ),
    Mutant(
        name="remove-counts-before-it-looks",
        story="Counts one less, then finds that there is nothing to remove.",
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
        story="Pops from the end where blocks are appended: the content that was used last is lost first.",
        replace="""        block = self._head.next_free
        self.remove(block)
""",
        by="""        block = self._tail.prev_free
        self.remove(block)
""",
        killed_by="test_task_3_popleft_takes_the_oldest",
        breaks="FreeKVCacheBlockQueue.popleft: Take the oldest free block out of the queue",
    ),
    Mutant(
        name="popleft-keeps-the-links",
        story="Moves the head on by hand and leaves the links on the popped block: it can never be appended again.",
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
        story="Makes a list of all free blocks to take the first: right, and O(n).",
        replace="""        block = self._head.next_free
        self.remove(block)
""",
        by="""        block = self.get_all_free_blocks()[0]
        self.remove(block)
""",
        killed_by="test_task_3_taking_and_appending_cost_the_same_in_a_long_queue",
        breaks="FreeKVCacheBlockQueue: O(1) for each block that it takes or gives",
    ),
    Mutant(
        name="popleft-n-slices-the-whole-queue",
        story="get_all_free_blocks()[:n] walks the whole queue, however few are wanted.",
        replace="        return [self.popleft() for _ in range(n)]\n",
        by="""        blocks = self.get_all_free_blocks()[:n]
        for block in blocks:
            self.remove(block)
        return blocks
""",
        killed_by="test_task_3_taking_and_appending_cost_the_same_in_a_long_queue",
        breaks="FreeKVCacheBlockQueue: O(1) for each block that it takes or gives",
    ),
    Mutant(
        name="popleft-n-of-a-negative-number",
        story="range(-1) is empty, so a wrong sum upstream goes by unseen.",
        replace="""        if not 0 <= n <= self.num_free_blocks:
            raise ValueError(f"popleft_n""",
        by="""        if n > self.num_free_blocks:
            raise ValueError(f"popleft_n""",
        killed_by="test_task_3_popleft_n_takes_all_or_none",
        breaks="FreeKVCacheBlockQueue.popleft_n: Raises ValueError if ``n`` is negative",
    ),
    Mutant(
        name="popleft-n-newest-first",
        story="Gives the right blocks in the wrong order.",
        replace="        return [self.popleft() for _ in range(n)]\n",
        by="        return [self.popleft() for _ in range(n)][::-1]\n",
        killed_by="test_task_3_popleft_n_takes_all_or_none",
        breaks="FreeKVCacheBlockQueue.popleft_n: Take the ``n`` oldest free blocks, oldest first",
    ),
    Mutant(
        name="append-n-sees-no-repetition",
        story="Looks at the links of all blocks first; one that comes twice has none yet, and is found half way.",
        replace=" or block.block_id in seen:\n",
        by=":\n",
        killed_by="test_task_3_append_n_adds_all_or_none",
        breaks="FreeKVCacheBlockQueue.append_n: or comes twice in ``blocks``",
    ),
    Mutant(
        name="append-n-in-reverse",
        story="Appends the last one first.",
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
        story="Looks each block up in a list of those before it: quadratic in the length of the call.",
        replace="""        seen: set[int] = set()
        for block in blocks:
            if block.prev_free is not None or block.next_free is not None or block.block_id in seen:
""",
        by="""        for i, block in enumerate(blocks):
            seen = {each.block_id for each in blocks[:i]}
            if block.prev_free is not None or block.next_free is not None or block.block_id in seen:
""",
        killed_by="test_task_3_taking_and_appending_cost_the_same_in_a_long_queue",
        breaks="FreeKVCacheBlockQueue: O(1) for each block that it takes or gives",
    ),
    Mutant(
        name="hash-with-zero-for-none",
        story="A parent of None and a parent whose hash is 0 become the same.",
        replace="    return hash((parent_hash, tuple(token_ids)))\n",
        by="    return hash((parent_hash or None, tuple(token_ids)))\n",
        killed_by="test_task_4_the_hash_is_that_of_parent_and_tokens",
        breaks="hash_block_tokens: 0 is a hash like any other",
    ),
    Mutant(
        name="hash-with-an-empty-third-element",
        story="extra_keys=() makes another hash than extra_keys=None, so equal blocks miss each other.",
        replace="    if extra_keys:\n",
        by="    if extra_keys is not None:\n",
        killed_by="test_task_4_extra_keys_are_a_third_element",
        breaks="hash_block_tokens: without extra keys (None or empty)",
    ),
    Mutant(
        name="hash-of-a-list-of-keys",
        story="Hashes the extra keys as they come; a list cannot be hashed.",
        replace="tuple(token_ids), tuple(extra_keys)))",
        by="tuple(token_ids), extra_keys))",
        killed_by="test_task_4_extra_keys_are_a_third_element",
        breaks="hash_block_tokens: with extra keys, in a tuple or a list",
    ),
    Mutant(
        name="hash-of-keys-and-tokens-in-one-row",
        story="Appends the keys to the tokens: a key that is a number passes for a token.",
        replace="tuple(token_ids), tuple(extra_keys)))",
        by="(*token_ids, *extra_keys)))",
        killed_by="test_task_4_extra_keys_are_a_third_element",
        breaks="hash_block_tokens: with ``tuple(extra_keys)`` as a third element of the hashed tuple",
    ),
    Mutant(
        name="free-blocks-are-counted-one-by-one",
        story="len() of a list of all free blocks, for every question how many there are.",
        replace="        return self.free_block_queue.num_free_blocks\n",
        by="        return len(self.free_block_queue.get_all_free_blocks())\n",
        killed_by="test_task_5_giving_out_and_taking_back_cost_the_same_in_a_large_pool",
        breaks="BlockPool: O(1) for each block that it takes or gives",
    ),
    Mutant(
        name="the-null-block-counts-as-free",
        story="Counts the blocks without an owner, the null block among them.",
        replace="        return self.free_block_queue.num_free_blocks\n",
        by="        return self.free_block_queue.num_free_blocks + 1\n",
        killed_by="test_task_5_usage_runs_from_0_to_1_without_the_null_block",
        breaks="BlockPool.get_num_free_blocks: How many blocks can be given out now",
    ),
    Mutant(
        name="usage-of-a-pool-of-one",
        story="Divides by the number of usable blocks, which may be 0.",
        replace="        return 1.0 - self.get_num_free_blocks() / num_usable if num_usable else 0.0\n",
        by="        return 1.0 - self.get_num_free_blocks() / num_usable\n",
        killed_by="test_task_5_usage_runs_from_0_to_1_without_the_null_block",
        breaks="BlockPool.get_usage: A pool that has only the null block is 0.0 in use",
    ),
    Mutant(
        name="usage-in-round-numbers",
        story="Rounds for the display where others compute with it.",
        replace="        return 1.0 - self.get_num_free_blocks() / num_usable if num_usable else 0.0\n",
        by="        return round(1.0 - self.get_num_free_blocks() / num_usable, 1) if num_usable else 0.0\n",
        killed_by="test_task_5_usage_runs_from_0_to_1_without_the_null_block",
        breaks="BlockPool.get_usage: The fraction of the pool that is in use",
    ),
    Mutant(
        name="new-blocks-as-many-as-there-are",
        story="Gives what it has, and lets the caller find out.",
        replace="        blocks = self.free_block_queue.popleft_n(n)\n",
        by="        blocks = self.free_block_queue.popleft_n(min(n, self.get_num_free_blocks()))\n",
        killed_by="test_task_5_asking_for_more_than_is_free_takes_nothing",
        breaks="BlockPool.get_new_blocks: ValueError if ``n`` is negative or fewer than ``n`` blocks are free",
    ),
    Mutant(
        name="new-blocks-one-by-one",
        story="Takes blocks until there are none left, and fails then: those it took belong to nobody.",
        replace="        blocks = self.free_block_queue.popleft_n(n)\n",
        by="        blocks = [self.free_block_queue.popleft() for _ in range(n)]\n",
        killed_by="test_task_5_asking_for_more_than_is_free_takes_nothing",
        breaks=(
            "BlockPool.get_new_blocks: none is taken then",
            "BlockPool: Every method does its checking before its first write",
        ),
    ),
    Mutant(
        name="new-blocks-newest-first",
        story="Gives the right blocks, in the wrong order.",
        replace="""            block.ref_cnt = 1
        return blocks
""",
        by="""            block.ref_cnt = 1
        return blocks[::-1]
""",
        killed_by="test_task_5_new_blocks_are_owned_and_never_the_null_block",
        breaks="BlockPool.get_new_blocks: these blocks, the one that has been free longest first",
    ),
    Mutant(
        name="free-in-reverse",
        story="Turns the order round once more, though the caller has done so already.",
        replace="""        blocks = list(blocks)
        num_drops""",
        by="""        blocks = list(blocks)[::-1]
        num_drops""",
        killed_by="test_task_5_free_blocks_go_to_the_end_in_the_order_given",
        breaks="BlockPool.free_blocks: in the order given",
    ),
    Mutant(
        name="free-walks-the-iterator-twice",
        story="Checks all blocks of an iterator, and finds none left to free.",
        replace="""        blocks = list(blocks)
        num_drops""",
        by="        num_drops",
        killed_by="test_task_5_free_blocks_go_to_the_end_in_the_order_given",
        breaks="BlockPool.free_blocks: which may be any iterable",
    ),
    Mutant(
        name="free-refuses-what-comes-twice",
        story="Takes a block that comes twice for a double free, though it has two owners.",
        replace="            if num_drops[block.block_id] > block.ref_cnt:\n",
        by="            if num_drops[block.block_id] > min(1, block.ref_cnt):\n",
        killed_by="test_task_5_a_block_may_come_as_often_as_it_has_owners",
        breaks="BlockPool.free_blocks: one owner per occurrence in ``blocks``",
    ),
    Mutant(
        name="free-sets-of-blocks",
        story="Drops all owners first, then appends each block once, where it came first.",
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
        story="Asks for the owners of a block, and not whose block it is.",
        replace='            self._check_mine(block, "free_blocks")\n',
        by="",
        killed_by="test_task_5_free_blocks_refuses_the_null_block_and_strangers",
        breaks="BlockPool.free_blocks: RuntimeError for what ``_check_mine`` refuses",
    ),
    Mutant(
        name="free-stops-half-way",
        story="Checks each block when its turn comes; those before a bad one are free already.",
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
        story="Sets the owners of a free block to one, and takes it out of the queue twice.",
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
        breaks="BlockPool.touch: A block that comes twice gets two owners",
    ),
    Mutant(
        name="touch-looks-for-the-block-in-the-queue",
        story="Asks a list of all free blocks whether the block is free.",
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
        story="Trusts that whoever touches has a block of this pool.",
        replace='            self._check_mine(block, "touch")\n',
        by="            assert block.block_id < self.num_blocks\n",
        killed_by="test_task_6_touch_refuses_the_null_block_and_strangers",
        breaks="BlockPool.touch: Raises RuntimeError for what ``_check_mine`` refuses",
    ),
    Mutant(
        name="caching-sets-no-hash",
        story="Fills the index and not the block, so nobody knows what to forget when it is reused.",
        replace="            block.block_hash = block_hash\n",
        by="",
        killed_by="test_task_7_freed_twins_both_keep_their_content",
        breaks="BlockPool.cache_full_blocks: each block has its hash",
    ),
    Mutant(
        name="a-twin-is-not-cached",
        story="The content is findable already, so the second block is left out.",
        replace="""        for block, block_hash in zip(blocks, hashes):
            block.block_hash = block_hash
""",
        by="""        for block, block_hash in zip(blocks, hashes):
            if block_hash in self._cached:
                continue
            block.block_hash = block_hash
""",
        killed_by="test_task_7_freed_twins_both_keep_their_content",
        breaks="BlockPool.cache_full_blocks: the index names it under that hash, next to its twins",
    ),
    Mutant(
        name="as-many-hashes-as-blocks",
        story="Refuses hashes beyond the last block, which a half-filled last block always has.",
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
        story="Refuses a block that is indexed under this very hash.",
        replace="            if held != block_hash:\n",
        by="            if held != block_hash or block.block_hash is not None:\n",
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks="BlockPool.cache_full_blocks: a block that was indexed under an equal hash is indexed as before",
    ),
    Mutant(
        name="equal-is-not-identical",
        story="Compares hashes by `is not`: small numbers are one object in Python, large ones and tuples are not.",
        replace="            if held != block_hash:\n",
        by="            if held is not block_hash:\n",
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks="BlockPool.cache_full_blocks: a block that was indexed under an equal hash is indexed as before",
    ),
    Mutant(
        name="a-hash-is-a-number",
        story="Refuses strings and tuples, though whatever hash() accepts can be a key.",
        replace="        self._check_hashes(blocks, hashes)\n",
        by="""        self._check_hashes(blocks, hashes)
        if not all(isinstance(block_hash, int) for block_hash in hashes[:len(blocks)]):
            raise TypeError(f"cache_full_blocks: hashes must be numbers, got {hashes}")
""",
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks="BlockPool.cache_full_blocks: any hash but None is accepted: 0, a string, a tuple",
    ),
    Mutant(
        name="zero-is-no-hash-within-one-call",
        story="`x.get(id) or default` takes the hash 0, which this call has just seen, for none.",
        replace="held = given.setdefault(block.block_id, block_hash) if block.block_hash is None else block.block_hash",
        by="held, given[block.block_id] = given.get(block.block_id) or block.block_hash or block_hash, block_hash",
        killed_by="test_task_7_zero_is_a_hash_like_any_other_and_none_is_none",
        breaks="BlockPool.cache_full_blocks: RuntimeError if a block comes twice in ``blocks``, with two hashes",
    ),
    Mutant(
        name="zero-is-no-hash",
        story="`if block.block_hash` takes the hash 0 for none.",
        replace="""if block.block_hash is None else block.block_hash
            if held""",
        by="""if not block.block_hash else block.block_hash
            if held""",
        killed_by="test_task_7_zero_is_a_hash_like_any_other_and_none_is_none",
        breaks=(
            "BlockPool.cache_full_blocks: any hash but None is accepted: 0",
            "BlockPool.cache_full_blocks: RuntimeError if a block is indexed under another hash",
        ),
    ),
    Mutant(
        name="caching-off-but-strict",
        story="Checks what it is given before it asks whether caching is on.",
        replace="""        if not self.enable_caching:
            return
        self._check_hashes(blocks, hashes)
""",
        by="""        self._check_hashes(blocks, hashes)
        if not self.enable_caching:
            return
""",
        killed_by="test_task_7_with_caching_off_nothing_is_found",
        breaks="BlockPool.cache_full_blocks: if caching is off, nothing has changed, and nothing is refused",
    ),
    Mutant(
        name="caching-off-ignored",
        story="Never asks whether caching is on.",
        replace="""        if not self.enable_caching:
            return
""",
        by="",
        killed_by="test_task_7_with_caching_off_nothing_is_found",
        breaks="BlockPool.cache_full_blocks: if caching is off",
    ),
    Mutant(
        name="none-is-a-hash",
        story="Does not call _check_hashes. A block under None has no hash, so it is never taken out of the index.",
        replace="        self._check_hashes(blocks, hashes)\n",
        by="",
        killed_by="test_task_7_zero_is_a_hash_like_any_other_and_none_is_none",
        breaks=(
            "BlockPool.cache_full_blocks: any hash but None is accepted",
            "BlockPool.cache_full_blocks: ValueError or TypeError for what ``_check_hashes`` refuses",
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
        story="A block that is indexed under this very hash is passed over before anybody asks whether it is free.",
        replace="""            if block.ref_cnt == 0:
                raise RuntimeError(f"cache_full""",
        by="""            if block.ref_cnt == 0 and block.block_hash != block_hash:
                raise RuntimeError(f"cache_full""",
        killed_by="test_task_7_only_owned_blocks_of_the_pool_can_be_cached",
        breaks="BlockPool.cache_full_blocks: even if it is indexed under this hash",
    ),
    Mutant(
        name="hashed-when-it-is-too-late",
        story="Finds out that a list cannot be hashed when the blocks before it are indexed already.",
        replace="        self._check_hashes(blocks, hashes)\n",
        by="""        if len(hashes) < len(blocks) or None in hashes[:len(blocks)]:
            raise ValueError(f"cache_full_blocks: {len(blocks)} blocks, hashes {hashes}")
""",
        killed_by="test_task_7_a_hash_that_cannot_be_hashed_changes_nothing",
        breaks=(
            "BlockPool.cache_full_blocks: too few hashes, None, an unhashable one",
            "BlockPool.cache_full_blocks: All checks come before the first write",
        ),
    ),
    Mutant(
        name="no-hash-may-be-none",
        story="Looks at all hashes, those beyond the last block, too.",
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
        story="Copies the whole index, to put it back should something go wrong.",
        replace="        given: dict[int, Hashable] = {}\n",
        by="        given, before = {}, dict(self._cached)\n",
        killed_by="test_task_8_no_call_about_one_block_walks_or_copies_the_pool",
        breaks="BlockPool: O(1) for each block that it takes or gives",
    ),
    Mutant(
        name="free-keeps-a-copy-of-the-pool",
        story="Makes a list of all blocks, which reads none of them and takes 8 bytes for each.",
        replace="""        blocks = list(blocks)
        num_drops""",
        by="""        blocks, everything = list(blocks), list(self.blocks)
        num_drops""",
        killed_by="test_task_8_no_call_about_one_block_walks_or_copies_the_pool",
        breaks="BlockPool: O(1) for each block that it takes or gives",
    ),
    Mutant(
        name="touch-walks-the-pool",
        story="Asks every block of the pool whether it is the one, by `is`, which reads nothing of it.",
        replace='            self._check_mine(block, "touch")\n',
        by="""            self._check_mine(block, "touch")
            if not any(each is block for each in self.blocks):
                raise RuntimeError(f"touch: block {block.block_id} is not a block of this pool")
""",
        killed_by="test_task_8_no_call_about_one_block_walks_or_copies_the_pool",
        breaks="BlockPool: O(1) for each block that it takes or gives",
    ),
    Mutant(
        name="strangers-can-be-cached",
        story="Indexes a block of another pool: a hit would hand out memory that is not there.",
        replace='            self._check_mine(block, "cache_full_blocks")\n',
        by="",
        killed_by="test_task_7_only_owned_blocks_of_the_pool_can_be_cached",
        breaks="BlockPool.cache_full_blocks: RuntimeError for what ``_check_mine`` refuses",
    ),
    Mutant(
        name="a-second-hash-replaces-the-first",
        story="A block under a new hash is still found under the old one.",
        replace="            if held != block_hash:\n",
        by="            if False:\n",
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks=(
            "BlockPool.cache_full_blocks: RuntimeError if a block is indexed under another hash",
            "invariant 5: The index never names a block whose content is something else",
        ),
    ),
    Mutant(
        name="two-hashes-in-one-call",
        story="Compares with what was indexed before the call, so one block twice in it slips through.",
        replace="held = given.setdefault(block.block_id, block_hash) if",
        by="held = block_hash if",
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks="BlockPool.cache_full_blocks: RuntimeError if a block comes twice in ``blocks``, with two hashes",
    ),
    Mutant(
        name="caching-stops-half-way",
        story="Indexes each block as soon as it is checked; those before a bad one stay.",
        replace="""                                   f"under {held}, not under {block_hash}")
        for block, block_hash in zip(blocks, hashes):
""",
        by='                                   f"under {held}, not under {block_hash}")\n',
        killed_by="test_task_7_a_block_holds_one_content_at_a_time",
        breaks="BlockPool.cache_full_blocks: a call that raises has changed nothing",
    ),
    Mutant(
        name="only-blocks-in-use-are-found",
        story="A hit must have an owner, so whatever was freed is lost.",
        replace="        return next(iter(twins.values())) if twins else None\n",
        by="        return next((block for block in twins.values() if block.ref_cnt), None) if twins else None\n",
        killed_by="test_task_7_a_cached_block_is_found_in_use_and_free",
        breaks="BlockPool.get_cached_block: A block that holds this content, in use or free",
    ),
    Mutant(
        name="a-look-is-a-use",
        story="Moves a block that is found to the queue's end, as an LRU cache would.",
        replace="        return next(iter(twins.values())) if twins else None\n",
        by="""        block = next(iter(twins.values())) if twins else None
        if block is not None and block.ref_cnt == 0:
            self.free_block_queue.remove(block)
            self.free_block_queue.append(block)
        return block
""",
        killed_by="test_task_7_a_cached_block_is_found_in_use_and_free",
        breaks="BlockPool.get_cached_block: Looking changes nothing",
    ),
    Mutant(
        name="a-miss-leaves-an-entry",
        story="setdefault() or a defaultdict keeps an empty entry for every hash that was ever asked for.",
        replace="""        twins = self._cached.get(block_hash)
        return""",
        by="""        twins = self._cached.setdefault(block_hash, {})
        return""",
        killed_by="test_task_7_looking_for_what_is_not_there_leaves_nothing_behind",
        breaks="BlockPool.get_cached_block: Looking changes nothing",
    ),
    Mutant(
        name="the-lowest-twin-serves",
        story="min() of the ids under a hash: a thousand twins are a thousand comparisons per lookup.",
        replace="        return next(iter(twins.values())) if twins else None\n",
        by="        return twins[min(twins)] if twins else None\n",
        killed_by="test_task_7_caching_and_finding_cost_the_same_in_a_large_pool",
        breaks="BlockPool: O(1) for each block that it takes or gives",
    ),
    Mutant(
        name="all-blocks-are-asked",
        story="Compares the hash of every block: right, and O(n).",
        replace="""        twins = self._cached.get(block_hash)
        return next(iter(twins.values())) if twins else None
""",
        by="        return next((block for block in self.blocks if block.block_hash == block_hash), None)\n",
        killed_by="test_task_7_caching_and_finding_cost_the_same_in_a_large_pool",
        breaks="BlockPool: O(1) for each block that it takes or gives",
    ),
    Mutant(
        name="empty-entries-stay",
        story="The entry of a hash outlives its last block: the index grows for as long as the server runs.",
        replace="""            if not twins:
                del self._cached[block.block_hash]
""",
        by="",
        killed_by="test_task_8_entries_without_a_block_do_not_pile_up",
        breaks="BlockPool._maybe_evict: an entry with no block left is gone",
    ),
    Mutant(
        name="evicting-walks-the-index",
        story="Looks for the block in every entry.",
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
        breaks="BlockPool: O(1) for each block that it takes or gives",
    ),
    Mutant(
        name="the-hash-zero-is-never-evicted",
        story="`if block.block_hash` takes the hash 0 for none: the next owner's block is found under it.",
        replace="""            if block.block_hash is not None:
                self._maybe_evict""",
        by="""            if block.block_hash:
                self._maybe_evict""",
        killed_by="test_task_8_each_twin_and_the_hash_zero_count_as_content",
        breaks=(
            "BlockPool.get_new_blocks: the index does not name a block that was given out",
            "BlockPool.get_new_blocks: and no hash",
            "BlockPool.get_new_blocks: twins and the hash 0 included",
        ),
    ),
    Mutant(
        name="only-the-last-twin-counts",
        story="Counts an eviction only if the content is found no more.",
        replace="""                self._maybe_evict(block)
                self.num_evictions += 1
""",
        by="""                block_hash = block.block_hash
                self._maybe_evict(block)
                self.num_evictions += block_hash not in self._cached
""",
        killed_by="test_task_8_each_twin_and_the_hash_zero_count_as_content",
        breaks="BlockPool.get_new_blocks: ``num_evictions`` has grown by 1 per block that had a hash",
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
        breaks="BlockPool.get_new_blocks: ``num_evictions`` has grown by 1 per block that had a hash",
    ),
    Mutant(
        name="evict-blocks-frees-them",
        story="Takes a block from its owners, too.",
        replace="            self._maybe_evict(self.blocks[block_id])\n",
        by="""            self._maybe_evict(self.blocks[block_id])
            if self.blocks[block_id].ref_cnt:
                self.blocks[block_id].ref_cnt = 0
                self.free_block_queue.append(self.blocks[block_id])
""",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: they stay with their owners or where they are in the queue",
    ),
    Mutant(
        name="evict-blocks-of-free-blocks-only",
        story="Leaves blocks in use in the index: a step that failed could not take its blocks back.",
        replace="            self._maybe_evict(self.blocks[block_id])\n",
        by="""            if self.blocks[block_id].ref_cnt == 0:
                self._maybe_evict(self.blocks[block_id])
""",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: Take blocks out of the index, in use or free",
    ),
    Mutant(
        name="evict-blocks-walks-the-iterator-twice",
        story="Checks all ids of an iterator, and finds none left to evict.",
        replace="        block_ids = list(block_ids)\n",
        by="",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: Take blocks out of the index",
    ),
    Mutant(
        name="evict-blocks-refuses-what-is-not-indexed",
        story="Whoever evicts a block twice gets an error.",
        replace="            self._maybe_evict(self.blocks[block_id])\n",
        by="""            del self._cached[self.blocks[block_id].block_hash][block_id]
            self.blocks[block_id].reset_hash()
""",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: A block that is not indexed is left alone",
    ),
    Mutant(
        name="evict-blocks-refuses-an-id-that-comes-twice",
        story="Takes it for a mistake, though the second time there is merely nothing left to forget.",
        replace="        block_ids = list(block_ids)\n",
        by="""        block_ids = list(block_ids)
        if len(set(block_ids)) < len(block_ids):
            raise ValueError(f"evict_blocks: an id comes twice in {block_ids}")
""",
        killed_by="test_task_8_evict_blocks_leaves_owners_and_queue_alone",
        breaks="BlockPool.evict_blocks: and an id may come twice",
    ),
    Mutant(
        name="evict-blocks-counts-from-the-end",
        story="Does not call _check_ids. blocks[-1] is the last block in Python, and no block of the pool.",
        replace="        self._check_ids(block_ids)\n",
        by="",
        killed_by="test_task_8_evict_blocks_refuses_an_id_that_is_not_the_pools",
        breaks="BlockPool.evict_blocks: Raises ValueError for what ``_check_ids`` refuses",
    ),
    Mutant(
        name="evict-blocks-stops-half-way",
        story="Checks each id when its turn comes; those before a bad one are evicted.",
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
        story="Refuses without a number: nobody knows whether to wait or to look for a leak.",
        replace="refused, {num_used} of {self.num_blocks - 1} blocks are in use",
        by="refused, blocks are in use",
        killed_by="test_task_8_reset_is_refused_while_blocks_are_in_use",
        breaks="BlockPool.reset_prefix_cache: with the number of these blocks in the message",
    ),
    Mutant(
        name="reset-counts-the-owners",
        story="A block with two owners is two owners, and one block.",
        replace="        num_used = self.num_blocks - 1 - self.get_num_free_blocks()\n",
        by="        num_used = sum(block.ref_cnt for block in self.blocks)\n",
        killed_by="test_task_8_reset_is_refused_while_blocks_are_in_use",
        breaks="BlockPool.reset_prefix_cache: with the number of these blocks in the message",
    ),
    Mutant(
        name="reset-forgets-before-it-looks",
        story="Empties the index, then finds that it must not.",
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
        story="Empties the index; the blocks still say that they are in it.",
        replace="""        for block in self.blocks:
            block.reset_hash()
""",
        by="",
        killed_by="test_task_8_reset_forgets_all_content_and_nothing_else",
        breaks="BlockPool.reset_prefix_cache: no block has a hash",
    ),
    Mutant(
        name="reset-starts-the-count-anew",
        story="A counter that falls back to 0 makes a graph of evictions wrong.",
        replace="""        self._cached = {}
        for block""",
        by="""        self._cached = {}
        self.num_evictions = 0
        for block""",
        killed_by="test_task_8_reset_forgets_all_content_and_nothing_else",
        breaks="BlockPool.reset_prefix_cache: ``num_evictions`` stays as it is",
    ),
]
