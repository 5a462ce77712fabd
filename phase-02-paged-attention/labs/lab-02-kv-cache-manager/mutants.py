"""Mistakes that people make in a KV cache manager, and the test that catches each mistake."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="floor-instead-of-ceil",
        story="Does not count the last, half-filled block.",
        replace="        return -(-num_tokens // self.block_size)\n",
        by="        return num_tokens // self.block_size\n",
        killed_by="test_task_2_a_prompt_takes_just_enough_blocks",
        breaks="KVCacheManager._num_blocks_for: A partly filled block counts as a whole block",
    ),
    Mutant(
        name="fresh-blocks-for-every-call",
        story="Counts blocks only for the new tokens, and leaves the last block half empty.",
        replace="        num_new_blocks = max(self._num_blocks_for(num_slots) - len(table), 0)\n",
        by="        num_new_blocks = self._num_blocks_for(num_new_tokens)\n",
        killed_by="test_task_2_the_last_block_is_filled_before_a_new_one_is_taken",
        breaks="KVCacheManager.allocate_slots: the table has exactly the number of blocks that its slots need",
    ),
    Mutant(
        name="reads-the-table-sorted",
        story="Sorts the block ids, which match the order of the tokens only until the first block is freed.",
        replace="        return [block.block_id for block in self._tables.get(request_id, [])]\n",
        by="        return sorted(block.block_id for block in self._tables.get(request_id, []))\n",
        killed_by="test_task_2_the_table_is_in_the_order_of_the_tokens",
        breaks="KVCacheManager.get_block_ids: in the order of its tokens",
    ),
    Mutant(
        name="nobody-is-an-error",
        story="Raises an error for a request that was never seen or was freed.",
        replace="self._tables.get(request_id, [])]\n",
        by="self._tables[request_id]]\n",
        killed_by="test_task_1_a_request_that_holds_nothing_has_an_empty_table",
        breaks="KVCacheManager.get_block_ids: The list is empty for a request without blocks",
    ),
    Mutant(
        name="asking-leaves-an-entry",
        story="setdefault() keeps an empty table for every id that was ever looked up.",
        replace="self._tables.get(request_id, [])]\n",
        by="self._tables.setdefault(request_id, [])]\n",
        killed_by="test_task_3_nothing_is_kept_of_a_request_that_holds_nothing",
        breaks="KVCacheManager.get_block_ids: the call leaves no entry for such a request",
    ),
    Mutant(
        name="takes-fewer-blocks-than-none",
        story="Forgets that the table may be longer than this step needs, which makes the difference negative.",
        replace="max(self._num_blocks_for(num_slots) - len(table), 0)\n",
        by="self._num_blocks_for(num_slots) - len(table)\n",
        killed_by="test_task_2_slots_that_exist_already_are_not_made_again",
        breaks="KVCacheManager.allocate_slots: or its old number of blocks if that is larger",
    ),
    Mutant(
        name="one-token-late",
        story="Takes the next block one token too late.",
        replace="        num_slots = request.num_computed_tokens + num_hit_tokens + num_new_tokens\n",
        by="        num_slots = request.num_computed_tokens + num_hit_tokens + num_new_tokens - 1\n",
        killed_by="test_task_2_a_prompt_takes_just_enough_blocks",
        breaks="module: the manager takes a new block exactly when ceil(number of slots / block_size) exceeds",
    ),
    Mutant(
        name="none-when-nothing-was-taken",
        story="Returns None instead of an empty list: the scheduler reads 'no room' and preempts a request.",
        replace="        return fresh\n",
        by="        return fresh or None\n",
        killed_by="test_task_2_the_last_block_is_filled_before_a_new_one_is_taken",
        breaks="KVCacheManager.allocate_slots: an empty list if the table had enough slots",
    ),
    Mutant(
        name="returns-the-whole-table",
        story="Returns the whole table, so the caller cannot tell which blocks are new.",
        replace="        return fresh\n",
        by="        return table + fresh\n",
        killed_by="test_task_5_hits_are_shared_not_copied",
        breaks="KVCacheManager.allocate_slots: the fresh blocks, in order",
    ),
    Mutant(
        name="returns-the-fresh-blocks-backwards",
        story="Returns the blocks in another order, so a caller that writes K/V by this list uses the wrong blocks.",
        replace="        return fresh\n",
        by="        return fresh[::-1]\n",
        killed_by="test_task_2_a_prompt_takes_just_enough_blocks",
        breaks="KVCacheManager.allocate_slots: the fresh blocks, in order",
    ),
    Mutant(
        name="raises-instead-of-none",
        story="Lets the pool's ValueError through instead of returning None.",
        replace="""        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None
""",
        by="",
        killed_by="test_task_2_what_does_not_fit_is_none_and_changes_nothing",
        breaks="KVCacheManager.allocate_slots: None if too few blocks are free for these tokens",
    ),
    Mutant(
        name="checks-no-arguments",
        story="Does not call _check_arguments, so it accepts invalid arguments.",
        replace="        self._check_arguments(request, num_new_tokens, hits, num_hit_tokens)\n",
        by="",
        killed_by="test_task_2_senseless_arguments_are_refused",
        breaks="KVCacheManager.allocate_slots: ValueError or RuntimeError if _check_arguments (given) rejects the "
               "arguments",
    ),
    Mutant(
        name="asks-for-the-whole-request",
        story="Rejects a chunk because the rest of the prompt would not fit: a long prompt never starts.",
        replace="        num_free_hits = sum(",
        by="""        num_new_blocks = max(num_new_blocks, self._num_blocks_for(request.num_tokens) - len(table))
        num_free_hits = sum(""",
        killed_by="test_task_2_only_the_next_tokens_must_fit",
        breaks="KVCacheManager.allocate_slots: what the rest of the request will need does not matter",
    ),
    Mutant(
        name="advances-the-request",
        story="Writes num_computed_tokens, which the scheduler advances a second time.",
        replace="        return fresh\n",
        by="        request.num_computed_tokens += num_new_tokens\n        return fresh\n",
        killed_by="test_task_2_the_manager_never_writes_the_request",
        breaks=("invariant 6: never writes it",
                "KVCacheManager: never writes it"),
    ),
    Mutant(
        name="the-lookup-writes-what-it-found",
        story="Writes the number of hit tokens to the request, although the request has not been admitted yet.",
        replace="        return blocks, len(blocks) * self.block_size\n",
        by="""        request.num_cached_tokens = len(blocks) * self.block_size
        return blocks, len(blocks) * self.block_size
""",
        killed_by="test_task_5_lookup_hits_and_free_leave_the_request_alone",
        breaks="KVCacheManager.get_computed_blocks: Nothing changes",
    ),
    Mutant(
        name="free-sets-the-request-back",
        story="Sets num_computed_tokens of a freed request to 0, which only the scheduler may do.",
        replace="        table = self._tables.pop(request.request_id, [])\n",
        by="""        table = self._tables.pop(request.request_id, [])
        request.num_computed_tokens = 0
""",
        killed_by="test_task_5_lookup_hits_and_free_leave_the_request_alone",
        breaks="invariant 6: never writes it",
    ),
    Mutant(
        name="frees-the-head-first",
        story="Frees the head first, so the blocks that other requests could share are overwritten first.",
        replace="        self.block_pool.free_blocks(reversed(table))\n",
        by="        self.block_pool.free_blocks(table)\n",
        killed_by="test_task_3_free_gives_the_tail_back_first",
        breaks="KVCacheManager.free: last block first",
    ),
    Mutant(
        name="keeps-the-table-after-free",
        story="Keeps the table, so a second free (for example an abort after the end) frees the blocks twice.",
        replace="        table = self._tables.pop(request.request_id, [])\n",
        by="        table = self._tables.get(request.request_id, [])\n",
        killed_by="test_task_3_free_is_harmless_when_nothing_is_held",
        breaks=("KVCacheManager.free: After: the request has no blocks",
                "KVCacheManager.free: It is not an error if the request had no blocks before"),
    ),
    Mutant(
        name="leaves-an-empty-table-behind",
        story="Leaves an empty table, so a request that comes back is not counted as new.",
        replace="        table = self._tables.pop(request.request_id, [])\n",
        by="""        table = self._tables.get(request.request_id, [])
        self._tables[request.request_id] = []
""",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
        breaks="PrefixCacheStats: A request that was freed and comes back is counted again",
    ),
    Mutant(
        name="notes-whom-it-has-freed",
        story="Keeps a set of all ids that were ever freed, so the memory of a server grows without limit.",
        replace="        table = self._tables.pop(request.request_id, [])\n",
        by="""        table = self._tables.pop(request.request_id, [])
        self.__dict__.setdefault("_freed", set()).add(request.request_id)
""",
        killed_by="test_task_3_nothing_is_kept_of_a_request_that_holds_nothing",
        breaks="KVCacheManager.free: the manager stores nothing about it",
    ),
    Mutant(
        name="an-entry-for-who-did-not-fit",
        story="Stores an empty table for a request that does not fit.",
        replace="""            return None

        self.block_pool.touch(hits)
""",
        by="""            self._tables.setdefault(request.request_id, [])
            return None

        self.block_pool.touch(hits)
""",
        killed_by="test_task_3_nothing_is_kept_of_a_request_that_holds_nothing",
        breaks="KVCacheManager.allocate_slots: with None, the manager stores nothing about a request that had no "
               "blocks",
    ),
    Mutant(
        name="the-list-returned-is-the-table",
        story="Stores the list that it returns, and extends this list at the next call.",
        replace="        self._tables[request.request_id] = table + fresh\n",
        by="""        if request.request_id in self._tables:
            self._tables[request.request_id] += fresh
        else:
            self._tables[request.request_id] = table + fresh if hits else fresh
""",
        killed_by="test_task_5_the_lists_of_hits_and_of_fresh_blocks_stay_the_callers",
        breaks="KVCacheManager.allocate_slots: the list of hits and the returned list belong to the caller",
    ),
    Mutant(
        name="the-list-of-hits-is-the-table",
        story="Uses the caller's list of hits as the table.",
        replace="        self._tables[request.request_id] = table + fresh\n",
        by="""        if new_computed_blocks:
            new_computed_blocks += fresh
        self._tables[request.request_id] = new_computed_blocks or table + fresh
""",
        killed_by="test_task_5_the_lists_of_hits_and_of_fresh_blocks_stay_the_callers",
        breaks="KVCacheManager.allocate_slots: the list of hits and the returned list belong to the caller",
    ),
    Mutant(
        name="frees-only-who-is-there",
        story="Raises an error for a request without blocks, for example one that was aborted while it waited.",
        replace="self._tables.pop(request.request_id, [])\n",
        by="self._tables.pop(request.request_id)\n",
        killed_by="test_task_3_free_is_harmless_when_nothing_is_held",
        breaks="KVCacheManager.free: It is not an error if the request had no blocks before",
    ),
    Mutant(
        name="hits-the-last-token-too",
        story="Hits all blocks of a cached prompt: no token is left to compute, so there are no logits.",
        replace="            for index in range((request.num_tokens - 1) // self.block_size):\n",
        by="            for index in range(request.num_tokens // self.block_size):\n",
        killed_by="test_task_4_at_least_one_token_is_left_to_compute",
        breaks=("invariant 5: at least one token of the request is left to compute",
                "KVCacheManager.get_computed_blocks: at most (num_tokens - 1) // block_size blocks"),
    ),
    Mutant(
        name="hits-the-prompt-alone",
        story="Looks up only the prompt: a preempted request computes all its decoded tokens again.",
        replace="range((request.num_tokens - 1) // self.block_size):\n",
        by="range((request.num_prompt_tokens - 1) // self.block_size):\n",
        killed_by="test_task_4_a_request_that_comes_back_finds_what_it_decoded",
        breaks="KVCacheManager.get_computed_blocks: all tokens count, not only the prompt",
    ),
    Mutant(
        name="skips-over-a-miss",
        story="Continues after the first miss and returns blocks that are not a prefix.",
        replace="                if block is None:\n                    break\n",
        by="                if block is None:\n                    parent = self._hash_of(request, index, parent)\n"
           "                    continue\n",
        killed_by="test_task_4_the_walk_stops_at_the_first_miss",
        breaks="KVCacheManager.get_computed_blocks: the full blocks of that prefix in a new list, first block first",
    ),
    Mutant(
        name="no-answer-with-caching-off",
        story="Returns only the empty list, but the caller unpacks two values.",
        replace="""        blocks: list[KVCacheBlock] = []
        if self.enable_caching:
""",
        by="""        blocks: list[KVCacheBlock] = []
        if not self.enable_caching:
            return blocks
        else:
""",
        killed_by="test_task_4_with_caching_off_nothing_is_found",
        breaks="KVCacheManager.get_computed_blocks: ([], 0) if caching is off",
    ),
    Mutant(
        name="indexes-with-caching-off",
        story="Relies on the pool to do nothing, but hashes every block although caching is off.",
        replace="""        if self.enable_caching:
            self._index_full_blocks(request, min(num_slots, request.num_tokens))
""",
        by="        self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        killed_by="test_task_4_with_caching_off_nothing_is_found",
        breaks="KVCacheManager.allocate_slots: if caching is off, nothing was hashed",
    ),
    Mutant(
        name="looks-with-caching-off",
        story="Hashes a block for a lookup although caching is off and the index is always empty.",
        replace="        if self.enable_caching:\n            parent = None\n",
        by="        if True:\n            parent = None\n",
        killed_by="test_task_4_with_caching_off_nothing_is_found",
        breaks="KVCacheManager.get_computed_blocks: with caching off, nothing was hashed",
    ),
    Mutant(
        name="the-lookup-reuses-its-list",
        story="Uses one list for all lookups, so the next lookup changes the hits of a waiting request.",
        replace="        blocks: list[KVCacheBlock] = []\n        if self.enable_caching:\n",
        by="""        blocks: list[KVCacheBlock] = self.__dict__.setdefault("_found", [])
        blocks.clear()
        if self.enable_caching:
""",
        killed_by="test_task_5_a_stale_hit_is_refused",
        breaks="KVCacheManager.get_computed_blocks: in a new list",
    ),
    Mutant(
        name="hashes-all-before-it-looks",
        story=("Computes the keys of the whole sequence before the lookup, so an early miss costs the same as a full "
               "hit."),
        replace="""            parent = None
            for index in range((request.num_tokens - 1) // self.block_size):
                block = self.block_pool.get_cached_block(self._hash_of(request, index, parent))
""",
        by="""            keys = [None]
            for index in range((request.num_tokens - 1) // self.block_size):
                keys.append(self._hash_of(request, index, keys[-1]))
            for key in keys[1:]:
                block = self.block_pool.get_cached_block(key)
""",
        killed_by="test_task_4_a_lookup_hashes_nothing_after_the_first_miss",
        breaks="KVCacheManager.get_computed_blocks: no block after the first miss was hashed",
    ),
    Mutant(
        name="forgets-the-parent",
        story="Hashes every block as if it were the first.",
        replace="        return BlockHash(parent, tokens, request.extra_keys)\n",
        by="        return BlockHash(None, tokens, request.extra_keys)\n",
        killed_by="test_task_4_equal_tokens_after_another_prefix_are_no_hit",
        breaks=("invariant 4: after the same prefix",
                "KVCacheManager._index_full_blocks: The parent of a block's key is the key of the block before it"),
    ),
    Mutant(
        name="trusts-the-hash-alone",
        story="Looks up only the number, so a collision returns the K/V of another prompt.",
        replace="self.block_pool.get_cached_block(self._hash_of(request, index, parent))\n",
        by="self.block_pool.get_cached_block(int(self._hash_of(request, index, parent)))\n",
        killed_by="test_task_4_a_hit_is_proved_not_just_hashed",
        breaks="invariant 4: Tokens and parents prove this; an equal hash alone does not",
    ),
    Mutant(
        name="indexes-the-new-tokens-only",
        story="Looks for full blocks only among the new tokens, and misses a block that several calls fill.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            self._index_full_blocks(request, min(num_new_tokens, request.num_tokens))\n",
        killed_by="test_task_4_blocks_filled_by_chunks_and_decoding_are_found",
        breaks=("KVCacheManager.allocate_slots: each block that is filled by the first n tokens is findable",
                "KVCacheManager._index_full_blocks: Index every block that is filled by the first num_tokens tokens"),
    ),
    Mutant(
        name="indexes-only-with-fresh-blocks",
        story="Indexes nothing if no fresh block was taken, although the last block may now be full.",
        replace="""        if self.enable_caching:
            self._index""",
        by="""        if self.enable_caching and fresh:
            self._index""",
        killed_by="test_task_4_blocks_filled_by_chunks_and_decoding_are_found",
        breaks="KVCacheManager._index_full_blocks: Index every block that is filled by the first num_tokens tokens",
    ),
    Mutant(
        name="forgets-the-tokens-of-the-hits",
        story="Forgets the hits, so blocks that are filled after the hits are not indexed in this call.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            self._index_full_blocks(\n"
           "                request, min(request.num_computed_tokens + num_new_tokens, request.num_tokens))\n",
        killed_by="test_task_5_what_is_filled_after_a_hit_is_found",
        breaks="KVCacheManager.allocate_slots: n is the number of slots (hits included)",
    ),
    Mutant(
        name="each-call-begins-a-chain",
        story="Gives the first block of a call no parent, although the request has blocks before it.",
        replace="        parent = table[start - 1].block_hash if start else None\n",
        by="        parent = None\n",
        killed_by="test_task_4_blocks_filled_by_chunks_and_decoding_are_found",
        breaks="KVCacheManager._index_full_blocks: this hash is the parent for the next block",
    ),
    Mutant(
        name="hashes-the-sequence-for-every-token",
        story="Starts at the front in every call: decoding a thousand tokens hashes a million.",
        replace="""        start = end
        while start > 0 and table[start - 1].block_hash is None:
            start -= 1
""",
        by="        start = 0\n",
        killed_by="test_task_4_a_decoded_token_does_not_hash_the_sequence_again",
        breaks=("KVCacheManager._index_full_blocks: Only blocks without a hash are hashed",
                "KVCacheManager.allocate_slots: for the index, only blocks without a block_hash were hashed"),
    ),
    Mutant(
        name="indexes-tokens-that-do-not-exist",
        story="Indexes look-ahead slots as if they contained tokens.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            self._index_full_blocks(request, num_slots)\n",
        killed_by="test_task_4_slots_without_tokens_are_not_indexed",
        breaks="KVCacheManager.allocate_slots: at most request.num_tokens",
    ),
    Mutant(
        name="indexes-what-was-computed-before",
        story="Indexes a block only after its step has run: two requests of one step compute the same prefix twice.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            self._index_full_blocks(request, request.num_computed_tokens + num_hit_tokens)\n",
        killed_by="test_task_5_two_requests_of_one_step_share",
        breaks="KVCacheManager.allocate_slots: each block that is filled by the first n tokens is findable",
    ),
    Mutant(
        name="indexes-tokens-of-a-later-step",
        story="Indexes a block because its tokens exist, although its last slots have not been written.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            num_slots = len(table + fresh) * self.block_size\n"
           "            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        killed_by="test_task_4_tokens_of_a_later_step_are_not_indexed",
        breaks=("KVCacheManager.allocate_slots: where n is the number of slots",
                "invariant 4: A lookup returns a block only if it holds the request's tokens at that position"),
    ),
    Mutant(
        name="the-lookup-takes-the-hits",
        story="Touches the hits in get_computed_blocks; a request that does not fit never releases them.",
        replace="                blocks.append(block)\n",
        by="                blocks.append(block)\n                self.block_pool.touch([block])\n",
        killed_by="test_task_4_a_lookup_changes_nothing",
        breaks="KVCacheManager.get_computed_blocks: Nothing changes",
    ),
    Mutant(
        name="counts-free-hits-as-room",
        story="Counts free hits as room for the rest of the prompt.",
        replace="        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:\n",
        by="        if num_new_blocks > self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_5_free_hits_do_not_count_as_room",
        breaks=("invariant 3: A hit that is free leaves the free queue, so it cannot also be used as a new block",
                "KVCacheManager.allocate_slots: so it cannot be used as a fresh block"),
    ),
    Mutant(
        name="counts-hits-in-use-twice",
        story="Subtracts all hits from the free blocks, although hits in use are not free.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        num_free_hits = len(hits)\n",
        killed_by="test_task_5_hits_that_are_in_use_take_no_room",
        breaks="KVCacheManager.allocate_slots: a hit in use takes no free block",
    ),
    Mutant(
        name="a-failed-allocation-leaks-the-hits",
        story="Touches the hits before it checks for room.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        self.block_pool.touch(hits)\n        num_free_hits = 0\n",
        killed_by="test_task_5_free_hits_do_not_count_as_room",
        breaks=("invariant 2: reference counts, queue order and index have not changed",
                "KVCacheManager.allocate_slots: with None, nothing has changed"),
    ),
    Mutant(
        name="touches-and-undoes-it",
        story=("Touches first and frees the hits again if the request does not fit: they are now at the end of the "
               "queue."),
        replace="""        num_free_hits = sum(block.ref_cnt == 0 for block in hits)
        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None

        self.block_pool.touch(hits)
""",
        by="""        self.block_pool.touch(hits)
        if num_new_blocks > self.block_pool.get_num_free_blocks():
            self.block_pool.free_blocks(reversed(hits))
            return None

""",
        killed_by="test_task_5_free_hits_do_not_count_as_room",
        breaks=("invariant 2: queue order",
                "KVCacheManager.allocate_slots: tables, owners, queue order, index and statistics are as before"),
    ),
    Mutant(
        name="evicts-its-own-hits",
        story="Takes fresh blocks before the hits have left the queue.",
        replace="""        self.block_pool.touch(hits)
        fresh = self.block_pool.get_new_blocks(num_new_blocks)
""",
        by="""        fresh = self.block_pool.get_new_blocks(num_new_blocks)
        self.block_pool.touch(hits)
""",
        killed_by="test_task_5_a_hit_is_not_evicted_for_its_own_request",
        breaks="KVCacheManager.allocate_slots: the hits with one more owner each, then the fresh blocks",
    ),
    Mutant(
        name="takes-none-for-zero",
        story="`x or default`: a caller that passes 0 gets the default, and its mistake is not noticed.",
        replace="len(hits) * self.block_size if num_new_computed_tokens is None else num_new_computed_tokens\n",
        by="num_new_computed_tokens or len(hits) * self.block_size\n",
        killed_by="test_task_5_a_number_of_tokens_that_the_hits_do_not_hold_is_refused",
        breaks="KVCacheManager.allocate_slots: None, not 0, means all that they can hold",
    ),
    Mutant(
        name="adopts-without-owning",
        story="Puts the hits into the table without touching them.",
        replace="        self.block_pool.touch(hits)\n        fresh",
        by="        fresh",
        killed_by="test_task_5_hits_are_shared_not_copied",
        breaks=("invariant 1: ref_cnt of a block is the number of tables that contain it",
                "KVCacheManager.allocate_slots: the hits with one more owner each"),
    ),
    Mutant(
        name="adopts-a-stale-hit",
        story="Trusts the lookup, although the blocks may have changed since.",
        replace="            if block.block_hash != parent:\n",
        by="            if False:\n",
        killed_by="test_task_5_a_stale_hit_is_refused",
        breaks=("KVCacheManager._check_hits: Raise RuntimeError unless each hit still holds the tokens of request",
                "KVCacheManager._check_hits: a free block may have been given to another request"),
    ),
    Mutant(
        name="checks-the-hits-too-late",
        story="Checks the hits after it has adopted them: the rejected call has changed their owners.",
        replace="""        self._check_hits(request, hits)

        table = self""",
        by="""        self.block_pool.touch(hits)
        self._check_hits(request, hits)
        self.block_pool.free_blocks(reversed(hits))
        table = self""",
        killed_by="test_task_5_a_stale_hit_is_refused",
        breaks="KVCacheManager._check_hits: before it changes anything",
    ),
    Mutant(
        name="checks-the-hits-only-if-there-is-room",
        story="Checks for room first: a caller with a stale hit gets None and tries the same hits again.",
        replace="""        self._check_hits(request, hits)

        table = self._tables.get(request.request_id, []) + hits
        num_slots = request.num_computed_tokens + num_hit_tokens + num_new_tokens
        num_new_blocks = max(self._num_blocks_for(num_slots) - len(table), 0)
        num_free_hits = sum(block.ref_cnt == 0 for block in hits)
        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None

""",
        by="""        table = self._tables.get(request.request_id, []) + hits
        num_slots = request.num_computed_tokens + num_hit_tokens + num_new_tokens
        num_new_blocks = max(self._num_blocks_for(num_slots) - len(table), 0)
        num_free_hits = sum(block.ref_cnt == 0 for block in hits)
        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None

        self._check_hits(request, hits)
""",
        killed_by="test_task_5_a_stale_hit_is_refused",
        breaks="KVCacheManager.allocate_slots: RuntimeError if the block_hash of a hit shows that it no longer "
               "holds the request's tokens",
    ),
    Mutant(
        name="asks-the-index-instead-of-the-hit",
        story="Rejects a block with the right tokens because the index returns its twin.",
        replace="            if block.block_hash != parent:\n",
        by="            if self.block_pool.get_cached_block(parent) is not block:\n",
        killed_by="test_task_5_a_twin_is_as_good_a_hit",
        breaks="KVCacheManager._check_hits: Check the block, not the index",
    ),
    Mutant(
        name="checks-the-number-of-a-hit",
        story="Compares only the numbers of the keys, which may collide.",
        replace="            if block.block_hash != parent:\n",
        by="            if block.block_hash is None or int(block.block_hash) != int(parent):\n",
        killed_by="test_task_5_every_hit_must_hold_the_tokens_of_its_place",
        breaks="invariant 4: an equal hash alone does not",
    ),
    Mutant(
        name="checks-the-tokens-of-a-block-alone",
        story="Compares only the tokens of the block; equal tokens after other tokens have different K/V.",
        replace="            if block.block_hash != parent:\n",
        by="            if block.block_hash is None or block.block_hash.token_ids != parent.token_ids:\n",
        killed_by="test_task_5_every_hit_must_hold_the_tokens_of_its_place",
        breaks=("KVCacheManager._check_hits: at its position",
                "invariant 4: Tokens and parents prove this"),
    ),
    Mutant(
        name="checks-the-last-hit",
        story="Checks only the last hit, whose key includes all its ancestors, but not the other blocks.",
        replace="            if block.block_hash != parent:\n",
        by="            if index == len(hits) - 1 and block.block_hash != parent:\n",
        killed_by="test_task_5_every_hit_must_hold_the_tokens_of_its_place",
        breaks="KVCacheManager._check_hits: unless each hit still holds the tokens",
    ),
    Mutant(
        name="checks-the-first-hit",
        story="Checks only the first hit.",
        replace="        for index, block in enumerate(hits):\n",
        by="        for index, block in enumerate(hits[:1]):\n",
        killed_by="test_task_5_every_hit_must_hold_the_tokens_of_its_place",
        breaks="KVCacheManager._check_hits: unless each hit still holds the tokens",
    ),
    Mutant(
        name="counts-every-call",
        story="Counts each step of a request as a query: the hit rate falls with the length of the answers.",
        replace="        if request.request_id not in self._tables:\n",
        by="        if True:\n",
        killed_by="test_task_6_a_request_that_waits_is_counted_once",
        breaks="KVCacheManager.allocate_slots: a request that had no blocks before is counted",
    ),
    Mutant(
        name="counts-blocks-for-tokens",
        story="Counts found blocks instead of found tokens: two of ten, a rate of 20 %, instead of 80 %.",
        replace="            self._num_hit_tokens += num_hit_tokens\n",
        by="            self._num_hit_tokens += len(hits)\n",
        killed_by="test_task_6_statistics_count_tokens_asked_found_and_blocks_evicted",
        breaks="KVCacheManager.allocate_slots: the tokens of the hits as found tokens",
    ),
    Mutant(
        name="counts-only-who-finds-something",
        story="Does not count requests without hits, which makes the hit rate too high.",
        replace="        if request.request_id not in self._tables:\n",
        by="        if hits and request.request_id not in self._tables:\n",
        killed_by="test_task_6_statistics_count_tokens_asked_found_and_blocks_evicted",
        breaks="KVCacheManager.allocate_slots: is counted in the statistics: one query",
    ),
    Mutant(
        name="counts-only-with-caching",
        story="Counts no queries with caching off, so servers with and without caching cannot be compared.",
        replace="        if request.request_id not in self._tables:\n",
        by="        if self.enable_caching and request.request_id not in self._tables:\n",
        killed_by="test_task_6_with_caching_off_requests_count_and_nothing_is_found",
        breaks="PrefixCacheStats: With caching off, requests are counted",
    ),
    Mutant(
        name="counts-what-did-not-fit",
        story="Counts before it checks for room: a waiting request is counted at every step.",
        replace="""        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None

        self.block_pool.touch(hits)
        fresh = self.block_pool.get_new_blocks(num_new_blocks)
        if request.request_id not in self._tables:
            self._num_queries += 1
            self._num_query_tokens += request.num_tokens
            self._num_hit_tokens += num_hit_tokens
""",
        by="""        if request.request_id not in self._tables:
            self._num_query_tokens += request.num_tokens
            self._num_hit_tokens += num_hit_tokens
        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None

        self.block_pool.touch(hits)
        fresh = self.block_pool.get_new_blocks(num_new_blocks)
        if request.request_id not in self._tables:
            self._num_queries += 1
""",
        killed_by="test_task_6_a_request_that_waits_is_counted_once",
        breaks="KVCacheManager.allocate_slots: index and statistics are as before",
    ),
    Mutant(
        name="counts-while-nothing-is-computed",
        story=("Treats num_computed_tokens == 0 as 'first slots': a request whose slots are not used yet is counted "
               "twice."),
        replace="        if request.request_id not in self._tables:\n",
        by="        if request.num_computed_tokens == 0:\n",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
        breaks=("PrefixCacheStats: when it gets its first slots",
                "KVCacheManager.allocate_slots: a request that had no blocks before"),
    ),
    Mutant(
        name="counts-the-tokens-of-one-step",
        story="Counts only this chunk and the hits as requested, so the hit rate of a prompt in chunks is too high.",
        replace="            self._num_query_tokens += request.num_tokens\n",
        by="            self._num_query_tokens += num_hit_tokens + num_new_tokens\n",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
        breaks="KVCacheManager.allocate_slots: the current request.num_tokens as requested tokens",
    ),
    Mutant(
        name="counts-the-prompt-alone",
        story="Counts only the prompt, although a request that comes back also needs its decoded tokens.",
        replace="            self._num_query_tokens += request.num_tokens\n",
        by="            self._num_query_tokens += request.num_prompt_tokens\n",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
        breaks=("PrefixCacheStats: with all tokens that it has at that moment",
                "KVCacheManager.allocate_slots: the current request.num_tokens as requested tokens"),
    ),
    Mutant(
        name="resets-the-statistics-before-asking",
        story="Resets the statistics before it knows that the pool rejects the reset.",
        replace="""        self.block_pool.reset_prefix_cache()
        self._num_queries = self._num_query_tokens = self._num_hit_tokens = 0
""",
        by="""        self._num_queries = self._num_query_tokens = self._num_hit_tokens = 0
        self.block_pool.reset_prefix_cache()
""",
        killed_by="test_task_6_reset_is_refused_while_blocks_are_in_use",
        breaks="KVCacheManager.reset_prefix_cache: nothing changes then",
    ),
    Mutant(
        name="goes-on-counting-evictions",
        story="Does not record the pool's counter at a reset, so old evictions are still counted.",
        replace="        self._num_evictions_before = self.block_pool.num_evictions\n",
        by="",
        killed_by="test_task_6_a_reset_forgets_everything_and_restarts_the_counts",
        breaks=("KVCacheManager.stats: since the last reset",
                "KVCacheManager.reset_prefix_cache: reset the statistics to 0"),
    ),
    Mutant(
        name="resets-the-counter-of-the-pool",
        story="Sets the pool's counter to 0, which makes a graph of evictions wrong.",
        replace="        self._num_evictions_before = self.block_pool.num_evictions\n",
        by="        self.block_pool.num_evictions = self._num_evictions_before = 0\n",
        killed_by="test_task_6_a_reset_forgets_everything_and_restarts_the_counts",
        breaks="KVCacheManager.reset_prefix_cache: The pool's num_evictions is not reset",
    ),
    Mutant(
        name="resets-the-numbers-alone",
        story="Resets the statistics, but keeps the content.",
        replace="        self.block_pool.reset_prefix_cache()\n",
        by="""        if self.block_pool.get_usage() > 0:
            self.block_pool.reset_prefix_cache()
""",
        killed_by="test_task_6_a_reset_forgets_everything_and_restarts_the_counts",
        breaks="KVCacheManager.reset_prefix_cache: Forget all cached content",
    ),
    Mutant(
        name="resets-whatever-is-in-use",
        story="Catches the error of the pool and ignores it.",
        replace="        self.block_pool.reset_prefix_cache()\n",
        by="""        try:
            self.block_pool.reset_prefix_cache()
        except RuntimeError:
            return
""",
        killed_by="test_task_6_reset_is_refused_while_blocks_are_in_use",
        breaks="KVCacheManager.reset_prefix_cache: Raises RuntimeError while any block is in use",
    ),
]
