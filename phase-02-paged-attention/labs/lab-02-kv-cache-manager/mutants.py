"""Mistakes people make in a KV cache manager, and the test that catches each."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="floor-instead-of-ceil",
        story="The last, half-filled block does not count.",
        replace="        return -(-num_tokens // self.block_size)\n",
        by="        return num_tokens // self.block_size\n",
        killed_by="test_task_2_a_prompt_takes_just_enough_blocks",
        breaks="KVCacheManager._num_blocks_for: a block that is begun counts as a whole one",
    ),
    Mutant(
        name="fresh-blocks-for-every-call",
        story="Counts the blocks for the new tokens alone, and leaves the last block half empty.",
        replace="        num_new_blocks = max(self._num_blocks_for(num_slots) - len(table), 0)\n",
        by="        num_new_blocks = self._num_blocks_for(num_new_tokens)\n",
        killed_by="test_task_2_the_last_block_is_filled_before_a_new_one_is_taken",
        breaks="KVCacheManager.allocate_slots: the table has just as many blocks as its slots need",
    ),
    Mutant(
        name="reads-the-table-sorted",
        story="Block ids in the order of their numbers, which is that of the tokens only while nothing was freed.",
        replace="        return [block.block_id for block in self._tables.get(request_id, [])]\n",
        by="        return sorted(block.block_id for block in self._tables.get(request_id, []))\n",
        killed_by="test_task_2_the_table_is_in_the_order_of_the_tokens",
        breaks="KVCacheManager.get_block_ids: in the order of its tokens",
    ),
    Mutant(
        name="nobody-is-an-error",
        story="A request that was never seen, or was freed, has no table to read.",
        replace="self._tables.get(request_id, [])]\n",
        by="self._tables[request_id]]\n",
        killed_by="test_task_1_a_request_that_holds_nothing_has_an_empty_table",
        breaks="KVCacheManager.get_block_ids: It is empty for a request that holds nothing",
    ),
    Mutant(
        name="asking-leaves-an-entry",
        story="setdefault() keeps an empty table for every id that was ever asked for.",
        replace="self._tables.get(request_id, [])]\n",
        by="self._tables.setdefault(request_id, [])]\n",
        killed_by="test_task_3_nothing_is_kept_of_a_request_that_holds_nothing",
        breaks="KVCacheManager.get_block_ids: asking leaves no entry behind",
    ),
    Mutant(
        name="takes-fewer-blocks-than-none",
        story="The table may be longer than this step needs; the difference is negative then.",
        replace="max(self._num_blocks_for(num_slots) - len(table), 0)\n",
        by="self._num_blocks_for(num_slots) - len(table)\n",
        killed_by="test_task_2_slots_that_exist_already_are_not_made_again",
        breaks="KVCacheManager.allocate_slots: or as many as before if that is more",
    ),
    Mutant(
        name="one-token-late",
        story="Takes the next block only after it was needed: len % block_size == 1, counted wrongly.",
        replace="        num_slots = request.num_computed_tokens + num_hit_tokens + num_new_tokens\n",
        by="        num_slots = request.num_computed_tokens + num_hit_tokens + num_new_tokens - 1\n",
        killed_by="test_task_2_a_prompt_takes_just_enough_blocks",
        breaks="module: a new block is taken exactly when ceil(number of slots / block_size) exceeds",
    ),
    Mutant(
        name="none-when-nothing-was-taken",
        story="An empty list is falsy: the scheduler reads 'no room' and preempts somebody.",
        replace="        return fresh\n",
        by="        return fresh or None\n",
        killed_by="test_task_2_the_last_block_is_filled_before_a_new_one_is_taken",
        breaks="KVCacheManager.allocate_slots: an empty list if the table had enough slots",
    ),
    Mutant(
        name="returns-the-whole-table",
        story="The caller cannot tell what is new.",
        replace="        return fresh\n",
        by="        return table + fresh\n",
        killed_by="test_task_5_hits_are_shared_not_copied",
        breaks="KVCacheManager.allocate_slots: the fresh blocks, in order",
    ),
    Mutant(
        name="returns-the-fresh-blocks-backwards",
        story="The caller that writes K/V by this list writes it to the wrong blocks.",
        replace="        return fresh\n",
        by="        return fresh[::-1]\n",
        killed_by="test_task_2_a_prompt_takes_just_enough_blocks",
        breaks="KVCacheManager.allocate_slots: the fresh blocks, in order",
    ),
    Mutant(
        name="raises-instead-of-none",
        story="Lets the pool's ValueError through: no room is an error, not an answer.",
        replace="""        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None
""",
        by="",
        killed_by="test_task_2_what_does_not_fit_is_none_and_changes_nothing",
        breaks="KVCacheManager.allocate_slots: None if too few blocks are free for these tokens",
    ),
    Mutant(
        name="checks-no-arguments",
        story="Does not call _check_arguments; what makes no sense is carried out.",
        replace="        self._check_arguments(request, num_new_tokens, hits, num_hit_tokens)\n",
        by="",
        killed_by="test_task_2_senseless_arguments_are_refused",
        breaks="KVCacheManager.allocate_slots: ValueError or RuntimeError for what _check_arguments refuses",
    ),
    Mutant(
        name="asks-for-the-whole-request",
        story="Refuses a chunk because the rest of the prompt would not fit; a long prompt never starts.",
        replace="        num_free_hits = sum(",
        by="""        num_new_blocks = max(num_new_blocks, self._num_blocks_for(request.num_tokens) - len(table))
        num_free_hits = sum(""",
        killed_by="test_task_2_only_the_next_tokens_must_fit",
        breaks="KVCacheManager.allocate_slots: whatever the rest of the request will need",
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
        story="Notes the hits on the request, which is not admitted yet.",
        replace="        return blocks, len(blocks) * self.block_size\n",
        by="""        request.num_cached_tokens = len(blocks) * self.block_size
        return blocks, len(blocks) * self.block_size
""",
        killed_by="test_task_5_lookup_hits_and_free_leave_the_request_alone",
        breaks="KVCacheManager.get_computed_blocks: Nothing changes",
    ),
    Mutant(
        name="free-sets-the-request-back",
        story="Sets num_computed_tokens to 0 for a request that it frees: the scheduler's business.",
        replace="        table = self._tables.pop(request.request_id, [])\n",
        by="""        table = self._tables.pop(request.request_id, [])
        request.num_computed_tokens = 0
""",
        killed_by="test_task_5_lookup_hits_and_free_leave_the_request_alone",
        breaks="invariant 6: never writes it",
    ),
    Mutant(
        name="frees-the-head-first",
        story="The blocks that others would share are the first to be overwritten.",
        replace="        self.block_pool.free_blocks(reversed(table))\n",
        by="        self.block_pool.free_blocks(table)\n",
        killed_by="test_task_3_free_gives_the_tail_back_first",
        breaks="KVCacheManager.free: last one first",
    ),
    Mutant(
        name="keeps-the-table-after-free",
        story="A second free, as on abort after finish, is a double free.",
        replace="        table = self._tables.pop(request.request_id, [])\n",
        by="        table = self._tables.get(request.request_id, [])\n",
        killed_by="test_task_3_free_is_harmless_when_nothing_is_held",
        breaks=("KVCacheManager.free: After: it holds nothing",
                "KVCacheManager.free: It is no error if the request held nothing before"),
    ),
    Mutant(
        name="leaves-an-empty-table-behind",
        story="The table is empty, but it is there: the request that comes back does not count as new.",
        replace="        table = self._tables.pop(request.request_id, [])\n",
        by="""        table = self._tables.get(request.request_id, [])
        self._tables[request.request_id] = []
""",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
        breaks="PrefixCacheStats: A request that was freed and comes back counts again",
    ),
    Mutant(
        name="notes-whom-it-has-freed",
        story="A set of all ids ever freed, to be harmless the second time: a server that grows until it is killed.",
        replace="        table = self._tables.pop(request.request_id, [])\n",
        by="""        table = self._tables.pop(request.request_id, [])
        self.__dict__.setdefault("_freed", set()).add(request.request_id)
""",
        killed_by="test_task_3_nothing_is_kept_of_a_request_that_holds_nothing",
        breaks="KVCacheManager.free: the manager keeps nothing of it",
    ),
    Mutant(
        name="an-entry-for-who-did-not-fit",
        story="Makes an empty table first and looks for room then; those who are refused leave it behind.",
        replace="""            return None

        self.block_pool.touch(hits)
""",
        by="""            self._tables.setdefault(request.request_id, [])
            return None

        self.block_pool.touch(hits)
""",
        killed_by="test_task_3_nothing_is_kept_of_a_request_that_holds_nothing",
        breaks="KVCacheManager.allocate_slots: with None, nothing is kept of a request that held nothing",
    ),
    Mutant(
        name="the-list-returned-is-the-table",
        story="Stores the list that it returns, and extends it at the next call: in the caller's hands.",
        replace="        self._tables[request.request_id] = table + fresh\n",
        by="""        if request.request_id in self._tables:
            self._tables[request.request_id] += fresh
        else:
            self._tables[request.request_id] = table + fresh if hits else fresh
""",
        killed_by="test_task_5_the_lists_of_hits_and_of_fresh_blocks_stay_the_callers",
        breaks="KVCacheManager.allocate_slots: the list of hits and the returned list stay the caller's",
    ),
    Mutant(
        name="the-list-of-hits-is-the-table",
        story="The hits are the beginning of the table, so their list becomes it.",
        replace="        self._tables[request.request_id] = table + fresh\n",
        by="""        if new_computed_blocks:
            new_computed_blocks += fresh
        self._tables[request.request_id] = new_computed_blocks or table + fresh
""",
        killed_by="test_task_5_the_lists_of_hits_and_of_fresh_blocks_stay_the_callers",
        breaks="KVCacheManager.allocate_slots: the list of hits and the returned list stay the caller's",
    ),
    Mutant(
        name="frees-only-who-is-there",
        story="A request that was aborted while it waited holds nothing; that is no error.",
        replace="self._tables.pop(request.request_id, [])\n",
        by="self._tables.pop(request.request_id)\n",
        killed_by="test_task_3_free_is_harmless_when_nothing_is_held",
        breaks="KVCacheManager.free: It is no error if the request held nothing before",
    ),
    Mutant(
        name="hits-the-last-token-too",
        story="A fully cached prompt has nothing left to compute, and so no logits.",
        replace="            for index in range((request.num_tokens - 1) // self.block_size):\n",
        by="            for index in range(request.num_tokens // self.block_size):\n",
        killed_by="test_task_4_at_least_one_token_is_left_to_compute",
        breaks=("invariant 5: At least one token of a request is left to compute",
                "KVCacheManager.get_computed_blocks: at most (num_tokens - 1) // block_size blocks"),
    ),
    Mutant(
        name="hits-the-prompt-alone",
        story="Looks at the prompt: a preempted request computes again all that it had decoded.",
        replace="range((request.num_tokens - 1) // self.block_size):\n",
        by="range((request.num_prompt_tokens - 1) // self.block_size):\n",
        killed_by="test_task_4_a_request_that_comes_back_finds_what_it_decoded",
        breaks="KVCacheManager.get_computed_blocks: all tokens count, not only those of the prompt",
    ),
    Mutant(
        name="skips-over-a-miss",
        story="Goes on after the first miss and collects blocks that are no prefix.",
        replace="                if block is None:\n                    break\n",
        by="                if block is None:\n                    parent = self._hash_of(request, index, parent)\n"
           "                    continue\n",
        killed_by="test_task_4_the_walk_stops_at_the_first_miss",
        breaks="KVCacheManager.get_computed_blocks: the full blocks of that prefix in a new list, first block first",
    ),
    Mutant(
        name="no-answer-with-caching-off",
        story="Returns the empty list alone; the caller unpacks two.",
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
        story="Leaves it to the pool to do nothing: every block is hashed for an index that is not there.",
        replace="""        if self.enable_caching:
            self._index_full_blocks(request, min(num_slots, request.num_tokens))
""",
        by="        self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        killed_by="test_task_4_with_caching_off_nothing_is_found",
        breaks="KVCacheManager.allocate_slots: if caching is off, nothing was hashed",
    ),
    Mutant(
        name="looks-with-caching-off",
        story="Asks an index that is always empty, and hashes a block to ask.",
        replace="        if self.enable_caching:\n            parent = None\n",
        by="        if True:\n            parent = None\n",
        killed_by="test_task_4_with_caching_off_nothing_is_found",
        breaks="KVCacheManager.get_computed_blocks: with caching off, nothing was hashed",
    ),
    Mutant(
        name="the-lookup-reuses-its-list",
        story="One list for all lookups: the hits of a request that waits become those of the next one.",
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
        story="Makes the keys of the whole text first, and looks then; one miss in front costs as much as a hit.",
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
        breaks="KVCacheManager.get_computed_blocks: what comes after the first block that misses was not hashed",
    ),
    Mutant(
        name="forgets-the-parent",
        story="Every block is hashed as if it were the first.",
        replace="        return BlockHash(parent, tokens, request.extra_keys)\n",
        by="        return BlockHash(None, tokens, request.extra_keys)\n",
        killed_by="test_task_4_equal_tokens_after_another_prefix_are_no_hit",
        breaks=("invariant 4: its content is that prefix",
                "KVCacheManager._index_full_blocks: A block's key chains to that of the block before it"),
    ),
    Mutant(
        name="trusts-the-hash-alone",
        story="Looks up by the bare number; a collision serves a stranger's K/V.",
        replace="self.block_pool.get_cached_block(self._hash_of(request, index, parent))\n",
        by="self.block_pool.get_cached_block(int(self._hash_of(request, index, parent)))\n",
        killed_by="test_task_4_a_hit_is_proved_not_just_hashed",
        breaks="invariant 4: proved by tokens and parents, not by a hash alone",
    ),
    Mutant(
        name="indexes-the-new-tokens-only",
        story="Looks for full blocks among the new tokens; one that fills up over several calls is missed.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            self._index_full_blocks(request, min(num_new_tokens, request.num_tokens))\n",
        killed_by="test_task_4_blocks_filled_by_chunks_and_decoding_are_found",
        breaks=("KVCacheManager.allocate_slots: each block that the first n tokens fill is findable",
                "KVCacheManager._index_full_blocks: Make every block that the first num_tokens tokens fill findable"),
    ),
    Mutant(
        name="indexes-only-with-fresh-blocks",
        story="No fresh block, nothing to index: the token that fills the last block comes without one.",
        replace="""        if self.enable_caching:
            self._index""",
        by="""        if self.enable_caching and fresh:
            self._index""",
        killed_by="test_task_4_blocks_filled_by_chunks_and_decoding_are_found",
        breaks="KVCacheManager._index_full_blocks: Make every block that the first num_tokens tokens fill findable",
    ),
    Mutant(
        name="forgets-the-tokens-of-the-hits",
        story="num_computed_tokens does not count the hits yet; what is filled after them is not indexed in this call.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            self._index_full_blocks(\n"
           "                request, min(request.num_computed_tokens + num_new_tokens, request.num_tokens))\n",
        killed_by="test_task_5_what_is_filled_after_a_hit_is_found",
        breaks="KVCacheManager.allocate_slots: n is the number of slots (hits included)",
    ),
    Mutant(
        name="each-call-begins-a-chain",
        story="The first block of a call gets no parent, though the request has blocks before it.",
        replace="        parent = table[start - 1].block_hash if start else None\n",
        by="        parent = None\n",
        killed_by="test_task_4_blocks_filled_by_chunks_and_decoding_are_found",
        breaks="KVCacheManager._index_full_blocks: it is the parent for the next",
    ),
    Mutant(
        name="hashes-the-sequence-for-every-token",
        story="Begins at the front at every call; a thousand tokens decoded are a million hashed.",
        replace="""        start = end
        while start > 0 and table[start - 1].block_hash is None:
            start -= 1
""",
        by="        start = 0\n",
        killed_by="test_task_4_a_decoded_token_does_not_hash_the_sequence_again",
        breaks=("KVCacheManager._index_full_blocks: only blocks that have none are hashed",
                "KVCacheManager.allocate_slots: for that, only blocks without a block_hash were hashed"),
    ),
    Mutant(
        name="indexes-tokens-that-do-not-exist",
        story="Look-ahead slots are indexed as if tokens were in them.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            self._index_full_blocks(request, num_slots)\n",
        killed_by="test_task_4_slots_without_tokens_are_not_indexed",
        breaks="KVCacheManager.allocate_slots: at most request.num_tokens",
    ),
    Mutant(
        name="indexes-what-was-computed-before",
        story="Waits until the step has run: requests of one step compute the same prefix twice.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            self._index_full_blocks(request, request.num_computed_tokens + num_hit_tokens)\n",
        killed_by="test_task_5_two_requests_of_one_step_share",
        breaks="KVCacheManager.allocate_slots: each block that the first n tokens fill is findable",
    ),
    Mutant(
        name="indexes-tokens-of-a-later-step",
        story="The tokens exist, so a block looks full whose last slots nobody has written.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            num_slots = len(table + fresh) * self.block_size\n"
           "            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        killed_by="test_task_4_tokens_of_a_later_step_are_not_indexed",
        breaks=("KVCacheManager.allocate_slots: where n is the number of slots",
                "invariant 4: The index names a block only if its content is that prefix"),
    ),
    Mutant(
        name="the-lookup-takes-the-hits",
        story="Touches in get_computed_blocks; a request that then does not fit keeps them for ever.",
        replace="                blocks.append(block)\n",
        by="                blocks.append(block)\n                self.block_pool.touch([block])\n",
        killed_by="test_task_4_a_lookup_changes_nothing",
        breaks="KVCacheManager.get_computed_blocks: Nothing changes",
    ),
    Mutant(
        name="counts-free-hits-as-room",
        story="The hits are free, so they look like room for the rest of the prompt.",
        replace="        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:\n",
        by="        if num_new_blocks > self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_5_free_hits_do_not_count_as_room",
        breaks=("invariant 3: Free blocks that the hit itself would take are no room for the new ones",
                "KVCacheManager.allocate_slots: so it is no room for fresh blocks"),
    ),
    Mutant(
        name="counts-hits-in-use-twice",
        story="Takes all hits off the free blocks; those in use were never among them.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        num_free_hits = len(hits)\n",
        killed_by="test_task_5_hits_that_are_in_use_take_no_room",
        breaks="KVCacheManager.allocate_slots: a hit in use takes no room",
    ),
    Mutant(
        name="a-failed-allocation-leaks-the-hits",
        story="Touches first and decides later.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        self.block_pool.touch(hits)\n        num_free_hits = 0\n",
        killed_by="test_task_5_free_hits_do_not_count_as_room",
        breaks=("invariant 2: left counts",
                "KVCacheManager.allocate_slots: with None, nothing has changed"),
    ),
    Mutant(
        name="touches-and-undoes-it",
        story="Touches first, and frees the hits again if it does not fit: they stand at the end of the queue now.",
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
        story="`x or default`: a caller that says 0 gets the default, and its mistake goes unnoticed.",
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
        breaks=("invariant 1: ref_cnt of a block is the number of tables that name it",
                "KVCacheManager.allocate_slots: the hits with one more owner each"),
    ),
    Mutant(
        name="adopts-a-stale-hit",
        story="Believes the lookup, whatever happened since.",
        replace="            if block.block_hash != parent:\n",
        by="            if False:\n",
        killed_by="test_task_5_a_stale_hit_is_refused",
        breaks=("KVCacheManager._check_hits: Raise RuntimeError unless each of hits still holds the tokens of request",
                "KVCacheManager._check_hits: a free block may have been given to another request"),
    ),
    Mutant(
        name="checks-the-hits-too-late",
        story="Looks at the hits once they are adopted: the refused call has taken them.",
        replace="""        self._check_hits(request, hits)

        table = self""",
        by="""        self.block_pool.touch(hits)
        self._check_hits(request, hits)
        self.block_pool.free_blocks(reversed(hits))
        table = self""",
        killed_by="test_task_5_a_stale_hit_is_refused",
        breaks="KVCacheManager._check_hits: before anything changes",
    ),
    Mutant(
        name="checks-the-hits-only-if-there-is-room",
        story="Looks for room first: the caller of a stale hit hears 'no room' and tries the same hits again.",
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
        breaks="KVCacheManager.allocate_slots: RuntimeError if a hit does not hold its tokens any more",
    ),
    Mutant(
        name="asks-the-index-instead-of-the-hit",
        story="Refuses a block that holds the right tokens because the index names its twin.",
        replace="            if block.block_hash != parent:\n",
        by="            if self.block_pool.get_cached_block(parent) is not block:\n",
        killed_by="test_task_5_a_twin_is_as_good_a_hit",
        breaks="KVCacheManager._check_hits: Ask the block, not the index",
    ),
    Mutant(
        name="checks-the-number-of-a-hit",
        story="Compares the numbers of the keys; numbers collide.",
        replace="            if block.block_hash != parent:\n",
        by="            if block.block_hash is None or int(block.block_hash) != int(parent):\n",
        killed_by="test_task_5_every_hit_must_hold_the_tokens_of_its_place",
        breaks="invariant 4: not by a hash alone",
    ),
    Mutant(
        name="checks-the-tokens-of-a-block-alone",
        story="Compares a block's own tokens; equal tokens after others have another K/V.",
        replace="            if block.block_hash != parent:\n",
        by="            if block.block_hash is None or block.block_hash.token_ids != parent.token_ids:\n",
        killed_by="test_task_5_every_hit_must_hold_the_tokens_of_its_place",
        breaks=("KVCacheManager._check_hits: at its place",
                "invariant 4: proved by tokens and parents"),
    ),
    Mutant(
        name="checks-the-last-hit",
        story="The last key names all that came before; but only the last block is asked for it.",
        replace="            if block.block_hash != parent:\n",
        by="            if index == len(hits) - 1 and block.block_hash != parent:\n",
        killed_by="test_task_5_every_hit_must_hold_the_tokens_of_its_place",
        breaks="KVCacheManager._check_hits: unless each of hits still holds the tokens",
    ),
    Mutant(
        name="checks-the-first-hit",
        story="If the first block is right, the rest will be.",
        replace="        for index, block in enumerate(hits):\n",
        by="        for index, block in enumerate(hits[:1]):\n",
        killed_by="test_task_5_every_hit_must_hold_the_tokens_of_its_place",
        breaks="KVCacheManager._check_hits: unless each of hits still holds the tokens",
    ),
    Mutant(
        name="counts-every-call",
        story="Each step of a request is a query; the hit rate sinks with the length of the answers.",
        replace="        if request.request_id not in self._tables:\n",
        by="        if True:\n",
        killed_by="test_task_6_a_request_that_waits_is_counted_once",
        breaks="KVCacheManager.allocate_slots: a request that held nothing before is counted",
    ),
    Mutant(
        name="counts-blocks-for-tokens",
        story="Found: two blocks. Asked for: ten tokens. The rate is a fifth of that, not 80 %.",
        replace="            self._num_hit_tokens += num_hit_tokens\n",
        by="            self._num_hit_tokens += len(hits)\n",
        killed_by="test_task_6_statistics_count_tokens_asked_found_and_blocks_evicted",
        breaks="KVCacheManager.allocate_slots: the tokens of the hits found",
    ),
    Mutant(
        name="counts-only-who-finds-something",
        story="A request without hits asked, too; without it the hit rate is too high.",
        replace="        if request.request_id not in self._tables:\n",
        by="        if hits and request.request_id not in self._tables:\n",
        killed_by="test_task_6_statistics_count_tokens_asked_found_and_blocks_evicted",
        breaks="KVCacheManager.allocate_slots: is counted in the statistics: one query",
    ),
    Mutant(
        name="counts-only-with-caching",
        story="No cache, no queries: two servers cannot be compared, one with caching and one without.",
        replace="        if request.request_id not in self._tables:\n",
        by="        if self.enable_caching and request.request_id not in self._tables:\n",
        killed_by="test_task_6_with_caching_off_requests_count_and_nothing_is_found",
        breaks="PrefixCacheStats: With caching off requests are counted",
    ),
    Mutant(
        name="counts-what-did-not-fit",
        story="Counts before it knows whether there is room: one that waits asks at every step.",
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
        story="Takes num_computed_tokens == 0 for 'first slots'; slots that were made and not used yet count twice.",
        replace="        if request.request_id not in self._tables:\n",
        by="        if request.num_computed_tokens == 0:\n",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
        breaks=("PrefixCacheStats: when it gets its first slots",
                "KVCacheManager.allocate_slots: a request that held nothing before"),
    ),
    Mutant(
        name="counts-the-tokens-of-one-step",
        story="Asked for: this chunk and the hits. A prompt in chunks looks as if it were found to a larger part.",
        replace="            self._num_query_tokens += request.num_tokens\n",
        by="            self._num_query_tokens += num_hit_tokens + num_new_tokens\n",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
        breaks="KVCacheManager.allocate_slots: one query, request.num_tokens tokens asked for",
    ),
    Mutant(
        name="counts-the-prompt-alone",
        story="A request that comes back asks for what it has decoded, too.",
        replace="            self._num_query_tokens += request.num_tokens\n",
        by="            self._num_query_tokens += request.num_prompt_tokens\n",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
        breaks=("PrefixCacheStats: with the tokens that it has at that moment",
                "KVCacheManager.allocate_slots: request.num_tokens tokens asked for (as of now)"),
    ),
    Mutant(
        name="resets-the-statistics-before-asking",
        story="A refused reset has already thrown the numbers away.",
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
        story="The pool counts since it was made, and the reset does not note where it stands.",
        replace="        self._num_evictions_before = self.block_pool.num_evictions\n",
        by="",
        killed_by="test_task_6_after_a_reset_all_is_forgotten_and_counted_anew",
        breaks=("KVCacheManager.stats: since the last reset",
                "KVCacheManager.reset_prefix_cache: start the statistics again at 0"),
    ),
    Mutant(
        name="resets-the-counter-of-the-pool",
        story="Sets the pool's counter to 0: whoever draws a graph of it sees it fall.",
        replace="        self._num_evictions_before = self.block_pool.num_evictions\n",
        by="        self.block_pool.num_evictions = self._num_evictions_before = 0\n",
        killed_by="test_task_6_after_a_reset_all_is_forgotten_and_counted_anew",
        breaks="KVCacheManager.reset_prefix_cache: the pool's num_evictions goes on",
    ),
    Mutant(
        name="resets-the-numbers-alone",
        story="The statistics begin anew, the content stays.",
        replace="        self.block_pool.reset_prefix_cache()\n",
        by="""        if self.block_pool.get_usage() > 0:
            self.block_pool.reset_prefix_cache()
""",
        killed_by="test_task_6_after_a_reset_all_is_forgotten_and_counted_anew",
        breaks="KVCacheManager.reset_prefix_cache: Forget all cached content",
    ),
    Mutant(
        name="resets-whatever-is-in-use",
        story="Swallows the refusal of the pool.",
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
