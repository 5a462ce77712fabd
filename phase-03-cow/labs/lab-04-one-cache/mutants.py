"""Common mistakes when one manager handles hits, forks and tails, and the test that catches each of them."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="asks-for-every-token",
        story="Matches the whole prompt: if all of it is cached, no token is left to compute.",
        replace="match(request.all_token_ids[:request.num_tokens - 1], request.extra_keys)",
        by="match(request.all_token_ids, request.extra_keys)",
        killed_by="test_task_1_at_least_one_token_is_left_to_compute",
        breaks=("invariant 1: leaves at least one token to compute",
                "KVCacheManager.get_computed_blocks: prompt and answer, except the last"),
    ),
    Mutant(
        name="rounds-down-to-blocks",
        story="Looks up only whole blocks, as in lab 2.2: a hit never ends inside a block.",
        replace="match(request.all_token_ids[:request.num_tokens - 1], request.extra_keys)",
        by="match(request.all_token_ids[:(request.num_tokens - 1) // self.block_size * self.block_size],\n"
           "                                       request.extra_keys)",
        killed_by="test_task_1_at_least_one_token_is_left_to_compute",
        breaks=("invariant 1: A hit is the longest cached prefix, exact to the token",
                "KVCacheManager.get_computed_blocks: Find the longest cached prefix of request"),
    ),
    Mutant(
        name="leaves-the-half-block-out",
        story="Counts the tokens of the partial block, but does not return the block.",
        replace="        return [*match.blocks, half], num_whole + num_half\n",
        by="        return match.blocks, num_whole + num_half\n",
        killed_by="test_task_1_a_hit_ends_inside_a_block",
        breaks="KVCacheManager.get_computed_blocks: followed by its partial block",
    ),
    Mutant(
        name="looks-without-the-salt",
        story="Forgets the extra keys in the lookup: a tenant does not find its own text.",
        replace="[:request.num_tokens - 1], request.extra_keys)",
        by="[:request.num_tokens - 1])",
        killed_by="test_task_1_the_salt_keeps_tenants_apart",
        breaks="KVCacheManager.get_computed_blocks: under its extra_keys",
    ),
    Mutant(
        name="touches-while-looking",
        story="Touches the blocks in the lookup: if the request then does not fit, it owns them forever.",
        replace="        num_whole, half = len(match.blocks) * self.block_size, match.partial_block\n",
        by="        num_whole, half = len(match.blocks) * self.block_size, match.partial_block\n"
           "        self.block_pool.touch(match.blocks)\n",
        killed_by="test_task_1_a_lookup_changes_nothing",
        breaks="KVCacheManager.get_computed_blocks: no block is touched",
    ),
    Mutant(
        name="forks-every-half-hit",
        story="Copies every hit that ends inside a block. The result is right, but every turn of a chat needs a copy.",
        replace="        if block.ref_cnt + is_hit > 1:\n",
        by="        if block.ref_cnt + is_hit > 1 or is_hit:\n",
        killed_by="test_task_2_a_tail_without_an_owner_is_written_in_place",
        breaks=("KVCacheManager._must_fork: its ref_cnt counts the other owners only",
                "KVCacheManager._must_fork: False otherwise"),
    ),
    Mutant(
        name="the-index-is-no-reader",
        story="Applies only the rule of lab 3.2: a free block that later requests will look up is overwritten in "
              "place.",
        replace="        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])\n",
        by="        return False\n",
        killed_by="test_task_2_a_block_whose_key_names_other_tokens_is_copied",
        breaks=("invariant 2: only where its key names nothing or the same tokens",
                "KVCacheManager._must_fork: the request has another token at that position"),
    ),
    Mutant(
        name="whatever-is-named-is-copied",
        story="Copies whenever the key names a token at a written position, even if the same token is written there.",
        replace="        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])\n",
        by="        return len(named) > 0\n",
        killed_by="test_task_2_the_same_tokens_are_written_again_in_place",
        breaks="KVCacheManager._must_fork: or equal them",
    ),
    Mutant(
        name="whatever-is-indexed-is-copied",
        story="Never writes a block with a key: a tail is copied although its key ends before the new tokens.",
        replace="        start = index * self.block_size\n        offset = max(first_slot - start, 0)\n        named",
        by="        return True\n        start = index * self.block_size\n        offset = max(first_slot - start, 0)\n"
           "        named",
        killed_by="test_task_2_a_tail_without_an_owner_is_written_in_place",
        breaks="KVCacheManager._must_fork: the new tokens come after all tokens that the key names",
    ),
    Mutant(
        name="compares-from-the-beginning",
        story="Compares the tokens of the key with the wrong part of the text: equal tokens look different.",
        replace="        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])\n",
        by="        return named != tuple(request.all_token_ids[start:start + len(named)])\n",
        killed_by="test_task_2_the_same_tokens_are_written_again_in_place",
        breaks="KVCacheManager._must_fork: or equal them",
    ),
    Mutant(
        name="compares-what-both-have",
        story="Zips the key with the text, and zip stops at the shorter one: a named token beyond the request's last "
              "is missed, and a token sampled later overwrites it.",
        replace="        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])\n",
        by="        return any(a != b for a, b in zip(named, request.all_token_ids[start + offset:]))\n",
        killed_by="test_task_2_a_key_that_goes_on_after_the_text_asks_for_a_copy",
        breaks=("invariant 2: The block is also copied if the key names a token beyond the request's last",
                "KVCacheManager._must_fork: the request has no token there yet"),
    ),
    Mutant(
        name="compares-with-the-prompt",
        story="Compares with the prompt only: a preempted request that resumes copies a block with its own output "
              "tokens.",
        replace="        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])\n",
        by="        return named != tuple(request.prompt_token_ids[start + offset:start + offset + len(named)])\n",
        killed_by="test_task_2_what_a_request_has_said_is_compared_too",
        breaks="KVCacheManager._must_fork: the request has another token at that position",
    ),
    Mutant(
        name="kept-for-a-copy-is-nobodys",
        story="Treats a block that a pending copy keeps as unowned: two requests that adopt it write the same slot.",
        replace="        if block.ref_cnt + is_hit > 1:\n",
        by="        if block.ref_cnt + is_hit > 1 and block.block_id not in self.block_pool._kept_for_copy:\n",
        killed_by="test_task_2_a_block_that_a_copy_keeps_may_have_owners_too",
        breaks=("invariant 2: Only a block's sole owner writes it",
                "KVCacheManager._must_fork: True if the block has another owner, no matter what is written"),
    ),
    Mutant(
        name="every-block-from-the-same-offset",
        story="Uses the offset of the first slot for all blocks: the first tokens of later blocks are not compared.",
        replace="        offset = max(first_slot - start, 0)\n",
        by="        offset = first_slot % self.block_size\n",
        killed_by="test_task_2_a_later_block_is_written_from_its_beginning",
        breaks="KVCacheManager._must_fork: or from the start of the block, whichever is later",
    ),
    Mutant(
        name="an-offset-below-zero",
        story="Uses a negative offset for a block after the first slot, so the key is compared with the wrong tokens.",
        replace="        offset = max(first_slot - start, 0)\n",
        by="        offset = first_slot - start\n",
        killed_by="test_task_3_its_own_keys_cost_a_request_no_copy",
        breaks="KVCacheManager._must_fork: or from the start of the block, whichever is later",
    ),
    Mutant(
        name="copies-the-first-block-only",
        story="Checks only the first written block, but a chunk may begin in one shared block and end in the next.",
        replace="        forked = [i for i in written if",
        by="        forked = [i for i in written[:1] if",
        killed_by="test_task_2_every_block_that_is_written_is_asked_about",
        breaks="KVCacheManager.allocate_slots: each block that this step writes and that must be copied",
    ),
    Mutant(
        name="a-hit-counts-itself-only",
        story="Forgets that an untouched hit is about to get one more owner: two requests write one tail.",
        replace="        if block.ref_cnt + is_hit > 1:\n",
        by="        if block.ref_cnt > 1:\n",
        killed_by="test_task_2_a_tail_with_an_owner_is_copied",
        breaks=("KVCacheManager._must_fork: the block has not been touched for request yet",
                "KVCacheManager._must_fork: True if the block has another owner"),
    ),
    Mutant(
        name="equal-tokens-may-be-shared",
        story="Writes into a block that another request owns if the key names the same tokens: the write races with "
              "the other request's reads.",
        replace="        if block.ref_cnt + is_hit > 1:\n",
        by="        if block.ref_cnt + is_hit > 1 and block.block_hash is None:\n",
        killed_by="test_task_2_the_same_tokens_are_written_again_in_place",
        breaks=("invariant 2: Only a block's sole owner writes it",
                "KVCacheManager._must_fork: True if the block has another owner, no matter what is written"),
    ),
    Mutant(
        name="hits-fill-their-blocks",
        story="Puts the first new token after the last hit block, not after the last hit token.",
        replace="        first_slot = request.num_computed_tokens + num_hit_tokens\n",
        by="        first_slot = request.num_computed_tokens + len(hits) * self.block_size\n",
        killed_by="test_task_2_a_block_whose_key_names_other_tokens_is_copied",
        breaks="KVCacheManager.allocate_slots: is the number of their tokens that count",
    ),
    Mutant(
        name="free-hits-are-room",
        story="Counts free blocks as available although the hit is about to take them.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        num_free_hits = 0\n",
        killed_by="test_task_2_copies_and_fresh_blocks_need_room_and_free_hits_are_none",
        breaks=("invariant 3: A free block that is itself a hit does not count as free",
                "KVCacheManager.allocate_slots: a hit in the free queue does not count as free"),
    ),
    Mutant(
        name="every-hit-is-no-room",
        story="Subtracts all hits from the free blocks, including hits in use: a request that would fit has to wait.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        num_free_hits = len(hits)\n",
        killed_by="test_task_2_a_hit_that_is_in_use_takes_no_room",
        breaks=("invariant 3: a hit in use needs no free block",
                "KVCacheManager.allocate_slots: a hit in use needs no free block"),
    ),
    Mutant(
        name="a-copy-is-no-room",
        story="Counts fresh blocks only; then the pool raises in the middle of the change.",
        replace="        if len(forked) + num_fresh > self.block_pool",
        by="        if num_fresh > self.block_pool",
        killed_by="test_task_2_copies_and_fresh_blocks_need_room_and_free_hits_are_none",
        breaks=("invariant 3: Copies and fresh blocks both need free blocks",
                "KVCacheManager.allocate_slots: None if copies and fresh blocks together need more blocks"),
    ),
    Mutant(
        name="room-for-a-copy-just-in-case",
        story="Requires a spare block for every partial hit: a request that could write its tail in place has to wait.",
        replace="        if len(forked) + num_fresh > self.block_pool",
        by="        if max(len(forked), num_hit_tokens % self.block_size > 0) + num_fresh > self.block_pool",
        killed_by="test_task_2_a_hit_that_is_written_in_place_needs_no_room",
        breaks="KVCacheManager.allocate_slots: None if copies and fresh blocks together need more blocks than are free",
    ),
    Mutant(
        name="touches-before-there-is-room",
        story="Adopts the hits, and then finds that the rest does not fit.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        num_free_hits = 0\n        self.block_pool.touch(hits)\n",
        killed_by="test_task_2_copies_and_fresh_blocks_need_room_and_free_hits_are_none",
        breaks=("invariant 3: If allocate_slots returns None, nothing has changed",
                "KVCacheManager.allocate_slots: if the result is None, nothing has changed"),
    ),
    Mutant(
        name="fresh-blocks-first",
        story="Returns the fresh blocks before the copies, which is not the order of the table.",
        replace="        taken += fresh\n",
        by="        taken = fresh + taken\n",
        killed_by="test_task_2_copies_come_before_fresh_blocks",
        breaks="KVCacheManager.allocate_slots: the copies in the order of the table, then the fresh blocks",
    ),
    Mutant(
        name="counts-whole-blocks-found",
        story="Counts only whole blocks: the tokens of the partial block are missing from the hit rate.",
        replace="            self._count_query(request, num_hit_tokens)\n",
        by="            self._count_query(request, num_hit_tokens // self.block_size * self.block_size)\n",
        killed_by="test_task_2_statistics_count_the_tokens_that_were_found",
        breaks="KVCacheManager._count_query: as a query with num_hit_tokens hit tokens",
    ),
    Mutant(
        name="counts-every-call",
        story="Counts a query for every step of a request: decode steps dominate the hit rate.",
        replace="        if not held:\n            self._count_query",
        by="        if True:\n            self._count_query",
        killed_by="test_task_2_statistics_count_the_tokens_that_were_found",
        breaks="KVCacheManager.allocate_slots: a request that held no block before is counted",
    ),
    Mutant(
        name="counts-until-something-is-computed",
        story="Uses num_computed_tokens to decide whether the request held blocks: if slots are allocated twice "
              "before a step, it counts two queries.",
        replace="        if not held:\n            self._count_query",
        by="        if request.num_computed_tokens == 0:\n            self._count_query",
        killed_by="test_task_2_statistics_count_the_tokens_that_were_found",
        breaks="KVCacheManager.allocate_slots: a request that held no block before is counted",
    ),
    Mutant(
        name="counts-who-finds-something",
        story="Counts a query only where hits are adopted: requests without hits are missing, and the hit rate looks "
              "too good.",
        replace="        if not held:\n            self._count_query",
        by="        if hits:\n            self._count_query",
        killed_by="test_task_2_statistics_count_the_tokens_that_were_found",
        breaks="KVCacheManager.allocate_slots: even if it found nothing",
    ),
    Mutant(
        name="never-indexes",
        story="Indexes blocks only in donate(): requests that run at the same time share nothing.",
        replace="        self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="",
        killed_by="test_task_3_full_blocks_are_found_as_soon_as_they_have_slots",
        breaks="KVCacheManager.allocate_slots: every block that is full of tokens after this step is findable",
    ),
    Mutant(
        name="indexes-past-the-tree",
        story="Uses the index of the base, which treats the key of a tail as the key of a full block, and the tree "
              "gets no children.",
        replace="        self.prefix_tree.insert(request.all_token_ids, table, num_tokens, request.extra_keys)\n",
        by="        super()._index_full_blocks(request, num_tokens)\n",
        killed_by="test_task_3_a_tail_that_has_grown_full_is_found_as_a_whole",
        breaks="KVCacheManager._index_full_blocks: findable, through the tree",
    ),
    Mutant(
        name="indexes-the-running-tail",
        story="Inserts with the tail: the half-filled block of a running request gets a new key with each token.",
        replace="table, num_tokens, request.extra_keys)\n        # END TASK\n\n    def _note",
        by="table, num_tokens, request.extra_keys, with_tail=True)\n        # END TASK\n\n    def _note",
        killed_by="test_task_3_full_blocks_are_found_as_soon_as_they_have_slots",
        breaks="KVCacheManager._index_full_blocks: The half-filled block at the end is left out",
    ),
    Mutant(
        name="indexes-before-the-copy",
        story="Inserts while the table still contains the shared block: that block gets the key of tokens that are "
              "written into the copy.",
        replace="        taken = [self._fork_block(table, index) for index in forked]\n",
        by="        self._tables[request.request_id] = table\n"
           "        self._index_full_blocks(request, min(num_slots, len(table) * self.block_size))\n"
           "        taken = [self._fork_block(table, index) for index in forked]\n",
        killed_by="test_task_3_a_copy_is_indexed_not_what_it_was_copied_from",
        breaks="invariant 4: Every token that the index names is already written, or the planned step will write it",
    ),
    Mutant(
        name="indexes-slots-without-tokens",
        story="Indexes all slots, including slots whose tokens are not sampled yet.",
        replace="        self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="        self._index_full_blocks(request, num_slots)\n",
        killed_by="test_task_3_slots_without_tokens_are_not_indexed",
        breaks="KVCacheManager.allocate_slots: slots whose tokens do not exist yet do not count",
    ),
    Mutant(
        name="indexes-without-the-salt",
        story="Leaves the extra keys out of the index: a tenant's text is indexed as a text without extra keys.",
        replace="        self.prefix_tree.insert(request.all_token_ids, table, num_tokens, request.extra_keys)\n",
        by="        self.prefix_tree.insert(request.all_token_ids, table, num_tokens)\n",
        killed_by="test_task_3_the_salt_is_part_of_the_key",
        breaks="KVCacheManager._index_full_blocks: The keys contain the request's extra_keys",
    ),
    Mutant(
        name="copies-what-is-not-written",
        story="Notes nothing: a request of the same step copies a part of a block before it is written.",
        replace="        self._note_unwritten(table, first_slot, num_slots, taken)\n",
        by="",
        killed_by="test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied",
        breaks=("invariant 5: Nothing is copied from a slot that the planned step has not written yet",
                "KVCacheManager.allocate_slots: the positions that this step will write are noted"),
    ),
    Mutant(
        name="hands-over-an-empty-half",
        story="Counts no token of an unwritten block, but still returns the block.",
        replace="        if num_half == 0:\n            return match.blocks, num_whole\n",
        by="",
        killed_by="test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied",
        breaks="KVCacheManager.get_computed_blocks: if the number is 0, the block is left out",
    ),
    Mutant(
        name="nothing-of-it-is-written",
        story="Notes 0 for every block: the part that earlier steps wrote is computed again.",
        replace="max(first_slot - index * self.block_size, 0))\n",
        by="0)\n",
        killed_by="test_task_4_the_written_part_of_a_block_may_be_copied",
        breaks="KVCacheManager._note_unwritten: which are already written",
    ),
    Mutant(
        name="all-or-nothing",
        story="Leaves a block out as soon as one of its tokens is unwritten.",
        replace="min(match.num_partial_tokens, self._num_written.get(half.block_id, match.num_partial_tokens))\n",
        by="0 if half.block_id in self._num_written else match.num_partial_tokens\n",
        killed_by="test_task_4_the_written_part_of_a_block_may_be_copied",
        breaks="KVCacheManager.get_computed_blocks: at most that number of its tokens counts",
    ),
    Mutant(
        name="the-last-note-wins",
        story="Overwrites the note when more slots are allocated before the step: planned tokens count as written.",
        replace="_num_written.setdefault(table[index].block_id, max(first_slot - index * self.block_size, 0))\n",
        by="_num_written[table[index].block_id] = max(first_slot - index * self.block_size, 0)\n",
        killed_by="test_task_4_the_first_note_of_a_step_stays",
        breaks="KVCacheManager._note_unwritten: any other block keeps its first note of the step",
    ),
    Mutant(
        name="notes-the-whole-table",
        story="Notes all blocks from the start of the table: adopted blocks that are not written cannot be copied in "
              "this step.",
        replace="        for index in range(first_slot // self.block_size, self._num_blocks_for(num_slots)):\n",
        by="""        for index in range(first_slot // self.block_size):
            self._num_written.setdefault(table[index].block_id, 0)
        for index in range(first_slot // self.block_size, self._num_blocks_for(num_slots)):
""",
        killed_by="test_task_4_a_block_that_is_only_read_is_not_noted",
        breaks="KVCacheManager._note_unwritten: and no other",
    ),
    Mutant(
        name="notes-to-the-end-of-the-table",
        story="Also notes blocks after the last slot that this step writes.",
        replace="        for index in range(first_slot // self.block_size, self._num_blocks_for(num_slots)):\n",
        by="        for index in range(first_slot // self.block_size, len(table)):\n",
        killed_by="test_task_4_slots_that_are_not_written_now_are_not_noted",
        breaks="KVCacheManager._note_unwritten: and no other",
    ),
    Mutant(
        name="keeps-old-notes-of-fresh-blocks",
        story="Lets a block keep the note of its last owner when it changes owners within a step: garbage counts as "
              "written.",
        replace="        for block in taken:\n            self._num_written.pop(block.block_id, None)\n",
        by="",
        killed_by="test_task_5_a_block_allocated_again_in_the_same_step_is_recorded_again",
        breaks="KVCacheManager._note_unwritten: a block in taken loses its older note",
    ),
    Mutant(
        name="copies-are-not-taken",
        story="Passes only the fresh blocks as taken: a copy keeps the note of the block's last owner.",
        replace="        self._note_unwritten(table, first_slot, num_slots, taken)\n",
        by="        self._note_unwritten(table, first_slot, num_slots, fresh)\n",
        killed_by="test_task_5_a_block_allocated_again_in_the_same_step_is_recorded_again",
        breaks="KVCacheManager._note_unwritten: taken are the copies and the fresh blocks",
    ),
    Mutant(
        name="old-blocks-only-are-noted",
        story="Notes only blocks that the table held before: fresh blocks count as written at once.",
        replace="        self._note_unwritten(table, first_slot, num_slots, taken)\n",
        by="        num_old = (len(table) - len(fresh)) * self.block_size\n"
           "        self._note_unwritten(table, first_slot, min(num_slots, num_old), taken)\n",
        killed_by="test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied",
        breaks=("KVCacheManager._note_unwritten: every block of table that contains one of these positions is noted",
                "KVCacheManager._note_unwritten: including fresh blocks"),
    ),
    Mutant(
        name="the-notes-stay",
        story="Reports the copies but keeps the notes: from the second step on, lookups find too little.",
        replace="        self._num_written.clear()\n",
        by="",
        killed_by="test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied",
        breaks="KVCacheManager.finish_step: there are no notes",
    ),
    Mutant(
        name="the-copies-stay-pending",
        story="Forgets to call the base: copy sources are never released, and the next step makes the copies again.",
        replace="        super().finish_step()\n",
        by="",
        killed_by="test_task_4_finish_step_reports_the_copies_too",
        breaks="KVCacheManager.finish_step: as in the base",
    ),
    Mutant(
        name="ends-as-in-the-base",
        story="Frees without donating: whole blocks are found, but the tail of every answer is computed again.",
        replace="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)\n",
        by="        self.block_pool.free_blocks(reversed(table))\n",
        killed_by="test_task_5_a_request_that_ends_leaves_its_tail",
        breaks="KVCacheManager.free: including the half-filled tail",
    ),
    Mutant(
        name="donates-the-last-token",
        story="Donates all tokens, but the last one was sampled and never computed.",
        replace="        num_trusted = request.num_computed_tokens\n",
        by="        num_trusted = request.num_tokens\n",
        killed_by="test_task_5_a_request_that_ends_leaves_its_tail",
        breaks=("invariant 4: Every token that the index names is already written",
                "KVCacheManager.free: the first num_computed_tokens tokens are found"),
    ),
    Mutant(
        name="donates-without-the-salt",
        story="Leaves the extra keys out when it donates: requests without extra keys find a tenant's tail.",
        replace="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)\n",
        by="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted)\n",
        killed_by="test_task_5_the_salt_goes_with_the_tail",
        breaks="KVCacheManager.free: under the request's extra_keys",
    ),
    Mutant(
        name="donates-twice",
        story="Keeps the table after free: an abort after the end drops references that other requests own.",
        replace="        table = self._tables.pop(request.request_id, None)\n",
        by="        table = self._tables.get(request.request_id)\n",
        killed_by="test_task_5_to_free_what_holds_nothing_is_harmless",
        breaks="KVCacheManager.free: the request holds no block",
    ),
    Mutant(
        name="donates-nothing-held",
        story="Donates an empty table: the tree accesses blocks that do not exist.",
        replace="""        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
""",
        by="        table = self._tables.pop(request.request_id, [])\n",
        killed_by="test_task_5_to_free_what_holds_nothing_is_harmless",
        breaks="KVCacheManager.free: if it held none before, nothing changes",
    ),
    Mutant(
        name="trusts-the-plan",
        story="Trusts num_computed_tokens, which was advanced when the step was planned: after an abort before the "
              "step, tokens are found that were never written.",
        replace="        if unwritten:\n",
        by="        if False:\n",
        killed_by="test_task_5_what_was_planned_and_never_written_is_not_left",
        breaks=("invariant 6: A freed request leaves its written tokens in the cache, and nothing else",
                "KVCacheManager.free: but only those before the first position in the table"),
    ),
    Mutant(
        name="planned-blocks-stay-indexed",
        story="Donates the right number of tokens, but blocks that were planned as full stay in the index.",
        replace="            self.block_pool.evict_blocks(table[index].block_id for index in unwritten)\n",
        by="",
        killed_by="test_task_5_what_was_planned_and_never_written_is_not_left",
        breaks="KVCacheManager.free: a block of the table that is in _num_written is found with these tokens at most",
    ),
    Mutant(
        name="the-first-planned-block-leaves",
        story="Removes only the first planned block from the index. The others cannot be reached, until another "
              "request computes the first block again.",
        replace="(table[index].block_id for index in unwritten)\n",
        by="(table[index].block_id for index in unwritten[:1])\n",
        killed_by="test_task_5_every_planned_block_leaves_the_index",
        breaks="KVCacheManager.free: a block of the table that is in _num_written is found with these tokens at most",
    ),
    Mutant(
        name="shared-blocks-stay-indexed",
        story="Keeps planned blocks in the index if other requests own them: lookups still find them, and no request "
              "writes them.",
        replace="(table[index].block_id for index in unwritten)\n",
        by="(table[index].block_id for index in unwritten\n"
           "                                         if table[index].ref_cnt == 1)\n",
        killed_by="test_task_5_planned_blocks_leave_the_index_though_others_have_them",
        breaks="KVCacheManager.free: even if another request owns it",
    ),
    Mutant(
        name="what-is-not-trusted-leaves",
        story="Removes all blocks after the trusted tokens from the index, including written blocks that other "
              "requests share.",
        replace="            self.block_pool.evict_blocks(table[index].block_id for index in unwritten)\n",
        by="        self.block_pool.evict_blocks(block.block_id for block in table[num_trusted // self.block_size:])\n",
        killed_by="test_task_5_what_is_written_stays_in_the_index",
        breaks="KVCacheManager.free: written tokens stay findable",
    ),
    Mutant(
        name="evicts-after-donating",
        story="Removes planned blocks from the index after donate: the written part of a tail is lost.",
        replace="""            self.block_pool.evict_blocks(table[index].block_id for index in unwritten)
        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)
""",
        by="""        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)
        self.block_pool.evict_blocks(table[index].block_id for index in unwritten)
""",
        killed_by="test_task_5_what_was_planned_and_never_written_is_not_left",
        breaks="KVCacheManager.free: but only those before the first position in the table",
    ),
    Mutant(
        name="loses-the-whole-block",
        story="Trusts whole blocks only: the written part of a partly written block is lost.",
        replace="first * self.block_size + self._num_written[table[first].block_id])\n",
        by="first * self.block_size)\n",
        killed_by="test_task_5_a_preempted_request_leaves_what_was_computed",
        breaks=("invariant 6: A freed request leaves its written tokens in the cache",
                "KVCacheManager.free: but only those before the first position in the table"),
    ),
    Mutant(
        name="donates-what-has-slots",
        story="Donates as many tokens as a preempted request had slots for.",
        replace="            num_trusted = min(num_trusted, first",
        by="            num_trusted = max(num_trusted, first",
        killed_by="test_task_5_what_was_planned_and_never_written_is_not_left",
        breaks="KVCacheManager.free: but only those before the first position in the table",
    ),
    Mutant(
        name="the-statistics-are-not-reset",
        story="Clears the tree but does not call the base: the statistics are not reset.",
        replace="        super().reset_prefix_cache()\n",
        by="",
        killed_by="test_task_5_reset_forgets_the_tree_too",
        breaks="KVCacheManager.reset_prefix_cache: reset the statistics",
    ),
    Mutant(
        name="a-tree-without-a-cache",
        story="Makes a tree even if caching is off: lookups find nothing, but free() donates to it.",
        replace="if tree_class and enable_caching else None\n",
        by="if tree_class else None\n",
        killed_by="test_task_1_without_a_tree_the_base_looks",
        breaks=("invariant 7: Without a tree, everything works as in lab 3.2", "KVCacheManager: or caching is off"),
    ),
    Mutant(
        name="asks-for-the-prompt-only",
        story="Looks up the prompt only: the cached output tokens of a preempted request are computed again.",
        replace="match(request.all_token_ids[:request.num_tokens - 1], request.extra_keys)",
        by="match(request.prompt_token_ids[:request.num_tokens - 1], request.extra_keys)",
        killed_by="test_task_1_what_a_request_has_said_is_asked_for_too",
        breaks="KVCacheManager.get_computed_blocks: prompt and answer",
    ),
    Mutant(
        name="unwritten-blocks-are-not-shared",
        story="Leaves a whole block out because this step writes it: equal prompts in one step are all computed.",
        replace="        if half is None:\n            return match.blocks, num_whole\n",
        by="        while match.blocks and match.blocks[-1].block_id in self._num_written:\n"
           "            match.blocks.pop()\n            num_whole, half = num_whole - self.block_size, None\n"
           "        if half is None:\n            return match.blocks, num_whole\n",
        killed_by="test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied",
        breaks="KVCacheManager.get_computed_blocks: whole blocks always count",
    ),
    Mutant(
        name="a-block-without-a-key-is-copied",
        story="Copies a block that no lookup can find: every decoded token costs a copy.",
        replace="        if block.block_hash is None:\n            return False\n",
        by="        if block.block_hash is None:\n            return True\n",
        killed_by="test_task_2_forks_share_and_copy_as_before",
        breaks="KVCacheManager._must_fork: False if it has no other owner and block_hash is None",
    ),
    Mutant(
        name="a-tail-is-nobodys",
        story="Protects only full blocks: a tail that later requests will look up is overwritten.",
        replace="        if block.block_hash is None:\n            return False\n",
        by="        if block.block_hash is None or len(block.block_hash.token_ids) < self.block_size:\n"
           "            return False\n",
        killed_by="test_task_2_a_tail_is_copied_where_its_key_names_another_token",
        breaks="KVCacheManager._must_fork: the request has another token at that position",
    ),
    Mutant(
        name="copies-to-the-end-of-the-table",
        story="Checks every block from the first slot on, including blocks that the step does not reach.",
        replace="        written = range(first_slot // self.block_size, min(num_blocks, len(table)))\n",
        by="        written = range(first_slot // self.block_size, len(table))\n",
        killed_by="test_task_2_a_block_after_the_last_slot_is_not_copied",
        breaks="KVCacheManager.allocate_slots: each block that this step writes and that must be copied",
    ),
    Mutant(
        name="hits-without-an-owner",
        story="Touches only free hits; hits in use get no additional owner.",
        replace="        self.block_pool.touch(hits)\n        taken",
        by="        self.block_pool.touch([block for block in hits if block.ref_cnt == 0])\n        taken",
        killed_by="test_task_2_a_hit_that_is_in_use_takes_no_room",
        breaks="KVCacheManager.allocate_slots: each hit has one more owner",
    ),
    Mutant(
        name="one-block-ahead",
        story="Takes a fresh block as soon as the last one is full, for a token that does not exist yet.",
        replace="        num_blocks = self._num_blocks_for(num_slots)\n",
        by="        num_blocks = num_slots // self.block_size + 1\n",
        killed_by="test_task_2_the_same_tokens_are_written_again_in_place",
        breaks="KVCacheManager.allocate_slots: exactly as many fresh blocks as the slots need",
    ),
    Mutant(
        name="a-query-that-found-no-room",
        story="Counts before it knows whether there is room: a waiting request is counted at every step.",
        replace="""        if len(forked) + num_fresh > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None

        self.block_pool.touch(hits)
        taken = [self._fork_block(table, index) for index in forked]
        fresh = self.block_pool.get_new_blocks(num_fresh)
        taken += fresh
        table += fresh
        if not held:
            self._count_query(request, num_hit_tokens)
""",
        by="""        if not held:
            self._count_query(request, num_hit_tokens)
        if len(forked) + num_fresh > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None

        self.block_pool.touch(hits)
        taken = [self._fork_block(table, index) for index in forked]
        fresh = self.block_pool.get_new_blocks(num_fresh)
        taken += fresh
        table += fresh
""",
        killed_by="test_task_2_copies_and_fresh_blocks_need_room_and_free_hits_are_none",
        breaks="KVCacheManager.allocate_slots: if the result is None, nothing has changed",
    ),
    Mutant(
        name="a-tail-keeps-its-short-key",
        story="Skips blocks that already have a key: an adopted tail that is full now is found only in part.",
        replace="        table = self._tables[request.request_id]\n",
        by="        table = self._tables[request.request_id]\n"
           "        while num_tokens >= self.block_size and table[num_tokens // self.block_size - 1].block_hash:\n"
           "            num_tokens -= self.block_size\n",
        killed_by="test_task_3_a_tail_that_has_grown_full_is_found_as_a_whole",
        breaks="KVCacheManager._index_full_blocks: An adopted tail that is full now gets a longer key",
    ),
    Mutant(
        name="believes-the-note-alone",
        story="Trusts all tokens before the planned step, including tokens that were taken back.",
        replace="min(num_trusted, first * self.block_size + self._num_written[table[first].block_id])\n",
        by="first * self.block_size + self._num_written[table[first].block_id]\n",
        killed_by="test_task_5_what_was_taken_back_is_not_left",
        breaks="KVCacheManager.free: the first num_computed_tokens tokens are found",
    ),
    Mutant(
        name="the-notes-go-with-the-request",
        story="Deletes the notes of the freed table, although another request owns the same unwritten blocks.",
        replace="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)\n",
        by="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)\n"
           "        for block in table:\n            self._num_written.pop(block.block_id, None)\n",
        killed_by="test_task_5_the_notes_stay_when_one_of_two_owners_goes",
        breaks="KVCacheManager.free: the notes stay until finish_step",
    ),
    Mutant(
        name="what-was-looked-at-is-young",
        story="Touches the blocks in the lookup and frees them at once: they move to the end of the free queue.",
        replace="        num_whole, half = len(match.blocks) * self.block_size, match.partial_block\n",
        by="        num_whole, half = len(match.blocks) * self.block_size, match.partial_block\n"
           "        self.block_pool.touch(match.blocks)\n        self.block_pool.free_blocks(reversed(match.blocks))\n",
        killed_by="test_task_1_a_lookup_changes_nothing",
        breaks="KVCacheManager.get_computed_blocks: the free queue keeps its order",
    ),
    Mutant(
        name="the-lookup-writes-down-what-it-found",
        story="Sets num_cached_tokens in the lookup: the usage counts it, even if the request then finds no room.",
        replace="        num_whole, half = len(match.blocks) * self.block_size, match.partial_block\n",
        by="        num_whole, half = len(match.blocks) * self.block_size, match.partial_block\n"
           "        request.num_cached_tokens = num_whole + match.num_partial_tokens\n",
        killed_by="test_task_1_a_lookup_changes_nothing",
        breaks="KVCacheManager.get_computed_blocks: request is unchanged",
    ),
    Mutant(
        name="a-key-of-zero-is-no-key",
        story="Tests ``if not block.block_hash``: a BlockHash is an int, and the tokens under a key of 0 are "
              "overwritten.",
        replace="        if block.block_hash is None:\n            return False\n",
        by="        if not block.block_hash:\n            return False\n",
        killed_by="test_task_2_a_block_whose_key_names_other_tokens_is_copied",
        breaks="KVCacheManager._must_fork: False if it has no other owner and block_hash is None",
    ),
    Mutant(
        name="the-hits-are-held",
        story="Appends the hits to the list of held blocks: the request seems to have held them before.",
        replace="        table = held + hits\n",
        by="        table = held\n        table += hits\n",
        killed_by="test_task_2_statistics_count_the_tokens_that_were_found",
        breaks="KVCacheManager.allocate_slots: a request that held no block before is counted",
    ),
    Mutant(
        name="hits-count-if-they-are-counted",
        story="Ignores the default: if the number of hit tokens is not given, the hits count as no tokens.",
        replace="        first_slot = request.num_computed_tokens + num_hit_tokens\n",
        by="        first_slot = request.num_computed_tokens + (num_new_computed_tokens or 0)\n",
        killed_by="test_task_2_hits_and_numbers_are_checked_before_anything_changes",
        breaks="KVCacheManager.allocate_slots: is the number of their tokens that count; by default all",
    ),
    Mutant(
        name="touches-and-lets-go",
        story="Adopts the hits, finds no room and frees them again: they move to the end of the free queue.",
        replace="            return None\n\n        self.block_pool.touch(hits)\n",
        by="            self.block_pool.touch(hits)\n            self.block_pool.free_blocks(reversed(hits))\n"
           "            return None\n\n        self.block_pool.touch(hits)\n",
        killed_by="test_task_2_copies_and_fresh_blocks_need_room_and_free_hits_are_none",
        breaks="KVCacheManager.allocate_slots: statistics and the order of the free queue are the same",
    ),
    Mutant(
        name="advances-the-request",
        story="Sets num_computed_tokens itself: the scheduler advances it a second time.",
        replace="        self._note_unwritten(table, first_slot, num_slots, taken)\n",
        by="        self._note_unwritten(table, first_slot, num_slots, taken)\n"
           "        request.num_computed_tokens = num_slots\n",
        killed_by="test_task_2_the_manager_never_writes_the_request",
        breaks="KVCacheManager.allocate_slots: request is unchanged",
    ),
    Mutant(
        name="every-block-is-written-to-the-same-offset",
        story="Also notes the offset of the first slot for later blocks, although nothing in them is written.",
        replace="max(first_slot - index * self.block_size, 0))\n",
        by="first_slot % self.block_size)\n",
        killed_by="test_task_4_the_written_part_of_a_block_may_be_copied",
        breaks="KVCacheManager._note_unwritten: the number of its positions before first_slot",
    ),
    Mutant(
        name="notes-the-next-block",
        story="Notes the block after the last slot if the slots end at a block boundary.",
        replace="        for index in range(first_slot // self.block_size, self._num_blocks_for(num_slots)):\n",
        by="        end = min(len(table), num_slots // self.block_size + 1)\n"
           "        for index in range(first_slot // self.block_size, end):\n",
        killed_by="test_task_4_slots_that_are_not_written_now_are_not_noted",
        breaks="KVCacheManager._note_unwritten: and no other",
    ),
    Mutant(
        name="frees-the-head-first",
        story="Inserts and frees by hand, in the order of the table: the beginning of every text is reused first.",
        replace="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)\n",
        by="        self.prefix_tree.insert(request.all_token_ids, table, num_trusted, request.extra_keys, True)\n"
           "        self.block_pool.free_blocks(table)\n",
        killed_by="test_task_5_the_last_block_is_freed_first",
        breaks="KVCacheManager.free: the last block was freed first",
    ),
    Mutant(
        name="the-whole-table-leaves",
        story="Removes all blocks of an aborted request from the index, including blocks that it had only adopted.",
        replace="(table[index].block_id for index in unwritten)\n",
        by="(block.block_id for block in table)\n",
        killed_by="test_task_5_what_is_written_stays_in_the_index",
        breaks="KVCacheManager.free: every other block is found as before",
    ),
    Mutant(
        name="all-that-is-noted-leaves",
        story="Removes every noted block from the index, including blocks that other requests of the step still write.",
        replace="(table[index].block_id for index in unwritten)\n",
        by="(list(self._num_written))\n",
        killed_by="test_task_5_what_is_written_stays_in_the_index",
        breaks="KVCacheManager.free: every other block is found as before",
    ),
]
