"""Mistakes people make in a KV cache manager, and the test that catches each."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="floor-instead-of-ceil",
        story="The last, half-filled block does not count.",
        replace="        return -(-num_tokens // self.block_size)\n",
        by="        return num_tokens // self.block_size\n",
        killed_by="test_task_2_a_prompt_takes_just_enough_blocks",
    ),
    Mutant(
        name="fresh-blocks-for-every-call",
        story="Counts the blocks for the new tokens alone, and leaves the last block half empty.",
        replace="        num_new_blocks = max(self._num_blocks_for(num_slots) - len(table), 0)\n",
        by="        num_new_blocks = self._num_blocks_for(num_new_tokens)\n",
        killed_by="test_task_2_the_last_block_is_filled_before_a_new_one_is_taken",
    ),
    Mutant(
        name="reads-the-table-sorted",
        story="Block ids in the order of their numbers, which is that of the tokens only while nothing was freed.",
        replace="        return [block.block_id for block in self._tables.get(request_id, [])]\n",
        by="        return sorted(block.block_id for block in self._tables.get(request_id, []))\n",
        killed_by="test_task_2_the_table_is_in_the_order_of_the_tokens",
    ),
    Mutant(
        name="takes-fewer-blocks-than-none",
        story="The table may be longer than this step needs; the difference is negative then.",
        replace="max(self._num_blocks_for(num_slots) - len(table), 0)\n",
        by="self._num_blocks_for(num_slots) - len(table)\n",
        killed_by="test_task_2_slots_that_exist_already_are_not_made_again",
    ),
    Mutant(
        name="one-token-late",
        story="Takes the next block only after it was needed: len % block_size == 1, counted wrongly.",
        replace="        num_slots = request.num_computed_tokens + num_hit_tokens + num_new_tokens\n",
        by="        num_slots = request.num_computed_tokens + num_hit_tokens + num_new_tokens - 1\n",
        killed_by="test_task_2_a_prompt_takes_just_enough_blocks",
    ),
    Mutant(
        name="none-when-nothing-was-taken",
        story="An empty list is falsy: the scheduler reads 'no room' and preempts somebody.",
        replace="        return fresh\n",
        by="        return fresh or None\n",
        killed_by="test_task_2_the_last_block_is_filled_before_a_new_one_is_taken",
    ),
    Mutant(
        name="returns-the-whole-table",
        story="The caller cannot tell what is new.",
        replace="        return fresh\n",
        by="        return table + fresh\n",
        killed_by="test_task_5_hits_are_shared_not_copied",
    ),
    Mutant(
        name="raises-instead-of-none",
        story="Lets the pool's ValueError through: no room is an error, not an answer.",
        replace="""        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None
""",
        by="",
        killed_by="test_task_2_what_does_not_fit_is_none_and_changes_nothing",
    ),
    Mutant(
        name="advances-the-request",
        story="Writes num_computed_tokens, which the scheduler advances a second time.",
        replace="        return fresh\n",
        by="        request.num_computed_tokens += num_new_tokens\n        return fresh\n",
        killed_by="test_task_2_the_manager_never_writes_the_request",
    ),
    Mutant(
        name="frees-the-head-first",
        story="The blocks that others would share are the first to be overwritten.",
        replace="        self.block_pool.free_blocks(reversed(table))\n",
        by="        self.block_pool.free_blocks(table)\n",
        killed_by="test_task_3_free_gives_the_tail_back_first",
    ),
    Mutant(
        name="keeps-the-table-after-free",
        story="A second free, as on abort after finish, is a double free.",
        replace="        table = self._tables.pop(request.request_id, [])\n",
        by="        table = self._tables.get(request.request_id, [])\n",
        killed_by="test_task_3_free_is_harmless_when_nothing_is_held",
    ),
    Mutant(
        name="hits-the-last-token-too",
        story="A fully cached prompt has nothing left to compute, and so no logits.",
        replace="            for index in range((request.num_tokens - 1) // self.block_size):\n",
        by="            for index in range(request.num_tokens // self.block_size):\n",
        killed_by="test_task_4_at_least_one_token_is_left_to_compute",
    ),
    Mutant(
        name="skips-over-a-miss",
        story="Goes on after the first miss and collects blocks that are no prefix.",
        replace="                if block is None:\n                    break\n",
        by="                if block is None:\n                    parent = self._hash_of(request, index, parent)\n"
           "                    continue\n",
        killed_by="test_task_4_the_walk_stops_at_the_first_miss",
    ),
    Mutant(
        name="forgets-the-parent",
        story="Every block is hashed as if it were the first.",
        replace="        return BlockHash(parent, tokens, request.extra_keys)\n",
        by="        return BlockHash(None, tokens, request.extra_keys)\n",
        killed_by="test_task_4_equal_tokens_after_another_prefix_are_no_hit",
    ),
    Mutant(
        name="trusts-the-hash-alone",
        story="Looks up by the bare number; a collision serves a stranger's K/V.",
        replace="self.block_pool.get_cached_block(self._hash_of(request, index, parent))\n",
        by="self.block_pool.get_cached_block(int(self._hash_of(request, index, parent)))\n",
        killed_by="test_task_4_a_hit_is_proved_not_just_hashed",
    ),
    Mutant(
        name="indexes-the-new-tokens-only",
        story="Looks for full blocks among the new tokens; one that fills up over several calls is missed.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            self._index_full_blocks(request, min(num_new_tokens, request.num_tokens))\n",
        killed_by="test_task_4_blocks_filled_by_chunks_and_decoding_are_found",
    ),
    Mutant(
        name="indexes-tokens-that-do-not-exist",
        story="Look-ahead slots are indexed as if tokens were in them.",
        replace="            self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="            self._index_full_blocks(request, num_slots)\n",
        killed_by="test_task_4_slots_without_tokens_are_not_indexed",
    ),
    Mutant(
        name="the-lookup-takes-the-hits",
        story="Touches in get_computed_blocks; a request that then does not fit keeps them for ever.",
        replace="                blocks.append(block)\n",
        by="                blocks.append(block)\n                self.block_pool.touch([block])\n",
        killed_by="test_task_4_a_lookup_changes_nothing",
    ),
    Mutant(
        name="counts-free-hits-as-room",
        story="The hits are free, so they look like room for the rest of the prompt.",
        replace="        if num_new_blocks > self.block_pool.get_num_free_blocks() - num_free_hits:\n",
        by="        if num_new_blocks > self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_5_free_hits_do_not_count_as_room",
    ),
    Mutant(
        name="a-failed-allocation-leaks-the-hits",
        story="Touches first and decides later.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        self.block_pool.touch(hits)\n        num_free_hits = 0\n",
        killed_by="test_task_5_free_hits_do_not_count_as_room",
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
    ),
    Mutant(
        name="takes-none-for-zero",
        story="`x or default`: a caller that says 0 gets the default, and its mistake goes unnoticed.",
        replace="len(hits) * self.block_size if num_new_computed_tokens is None else num_new_computed_tokens\n",
        by="num_new_computed_tokens or len(hits) * self.block_size\n",
        killed_by="test_task_5_a_number_of_tokens_that_the_hits_do_not_hold_is_refused",
    ),
    Mutant(
        name="adopts-without-owning",
        story="Puts the hits into the table without touching them.",
        replace="        self.block_pool.touch(hits)\n        fresh",
        by="        fresh",
        killed_by="test_task_5_hits_are_shared_not_copied",
    ),
    Mutant(
        name="adopts-a-stale-hit",
        story="Believes the lookup, whatever happened since.",
        replace="            if block.block_hash != parent:\n",
        by="            if False:\n",
        killed_by="test_task_5_a_stale_hit_is_refused",
    ),
    Mutant(
        name="counts-every-call",
        story="Each step of a request is a query; the hit rate sinks with the length of the answers.",
        replace="        if request.request_id not in self._tables:\n",
        by="        if True:\n",
        killed_by="test_task_6_a_request_that_waits_is_counted_once",
    ),
    Mutant(
        name="counts-while-nothing-is-computed",
        story="Takes num_computed_tokens == 0 for 'first slots'; slots that were made and not used yet count twice.",
        replace="        if request.request_id not in self._tables:\n",
        by="        if request.num_computed_tokens == 0:\n",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
    ),
    Mutant(
        name="counts-the-tokens-of-one-step",
        story="Asked for: this chunk and the hits. A prompt in chunks looks as if it were found to a larger part.",
        replace="            self._num_query_tokens += request.num_tokens\n",
        by="            self._num_query_tokens += num_hit_tokens + num_new_tokens\n",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
    ),
    Mutant(
        name="counts-the-prompt-alone",
        story="A request that comes back asks for what it has decoded, too.",
        replace="            self._num_query_tokens += request.num_tokens\n",
        by="            self._num_query_tokens += request.num_prompt_tokens\n",
        killed_by="test_task_6_a_request_counts_with_all_its_tokens_when_it_gets_its_first_slots",
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
    ),
]
