"""Mistakes people make when hits, forks and tails meet in one manager, and the test that catches each."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="asks-for-every-token",
        story="Matches the whole prompt: if all of it is cached, no token is left to compute.",
        replace="match(request.all_token_ids[:request.num_tokens - 1], request.extra_keys)",
        by="match(request.all_token_ids, request.extra_keys)",
        killed_by="test_task_1_at_least_one_token_is_left_to_compute",
        breaks=("invariant 1: leaves at least one token to compute",
                "KVCacheManager.get_computed_blocks: for all tokens but the last"),
    ),
    Mutant(
        name="rounds-down-to-blocks",
        story="Asks for whole blocks of all tokens but one, as lab 2.2 did: a hit never ends inside a block.",
        replace="match(request.all_token_ids[:request.num_tokens - 1], request.extra_keys)",
        by="match(request.all_token_ids[:(request.num_tokens - 1) // self.block_size * self.block_size],\n"
           "                                       request.extra_keys)",
        killed_by="test_task_1_at_least_one_token_is_left_to_compute",
        breaks=("invariant 1: A hit is the longest cached prefix, to the token",
                "KVCacheManager.get_computed_blocks: The longest cached prefix of request"),
    ),
    Mutant(
        name="leaves-the-half-block-out",
        story="Counts the tokens of the partial block, but does not hand the block over.",
        replace="        return [*match.blocks, half], num_whole + num_half\n",
        by="        return match.blocks, num_whole + num_half\n",
        killed_by="test_task_1_a_hit_ends_inside_a_block",
        breaks="KVCacheManager.get_computed_blocks: Return the whole blocks, then the partial one",
    ),
    Mutant(
        name="looks-without-the-salt",
        story="Forgets the extra keys in the lookup: a tenant finds nothing of its own.",
        replace="[:request.num_tokens - 1], request.extra_keys)",
        by="[:request.num_tokens - 1])",
        killed_by="test_task_1_the_salt_keeps_tenants_apart",
        breaks="KVCacheManager.get_computed_blocks: with the request's extra_keys",
    ),
    Mutant(
        name="touches-while-looking",
        story="Takes the blocks in the lookup: a request that then finds no room owns them for ever.",
        replace="        num_whole, half = len(match.blocks) * self.block_size, match.partial_block\n",
        by="        num_whole, half = len(match.blocks) * self.block_size, match.partial_block\n"
           "        self.block_pool.touch(match.blocks)\n",
        killed_by="test_task_1_a_lookup_changes_nothing",
        breaks="KVCacheManager.get_computed_blocks: No block is touched",
    ),
    Mutant(
        name="forks-every-half-hit",
        story="A hit that ends inside a block is always copied. Right, and a copy for every turn of a chat.",
        replace="        if block.ref_cnt + is_hit > 1:\n",
        by="        if block.ref_cnt + is_hit > 1 or is_hit:\n",
        killed_by="test_task_2_a_tail_that_nobody_has_is_written_on_in_place",
        breaks="KVCacheManager._must_fork: its ref_cnt counts the others only",
    ),
    Mutant(
        name="the-index-is-no-reader",
        story="Lab 3.2's rule alone: a free block that others will look for is overwritten in place.",
        replace="        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])\n",
        by="        return False\n",
        killed_by="test_task_2_a_block_whose_key_names_other_tokens_is_copied",
        breaks="invariant 2: only where its key names nothing or the same tokens",
    ),
    Mutant(
        name="whatever-is-named-is-copied",
        story="Copies whenever the key names a token at a written place, even the very token that is written there.",
        replace="        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])\n",
        by="        return len(named) > 0\n",
        killed_by="test_task_2_the_same_tokens_are_written_again_in_place",
        breaks="KVCacheManager._must_fork: neither do the same tokens once more",
    ),
    Mutant(
        name="whatever-is-indexed-is-copied",
        story="A block with a key is never written: a tail is copied although its key ends before the new tokens.",
        replace="        start = index * self.block_size\n        offset = max(first_slot - start, 0)\n        named",
        by="        return True\n        start = index * self.block_size\n        offset = max(first_slot - start, 0)\n"
           "        named",
        killed_by="test_task_2_a_tail_that_nobody_has_is_written_on_in_place",
        breaks="KVCacheManager._must_fork: Tokens written after all that the key names harm nobody",
    ),
    Mutant(
        name="compares-from-the-beginning",
        story="Compares what the key names with the wrong place of the text: equal tokens look different.",
        replace="        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])\n",
        by="        return named != tuple(request.all_token_ids[start:start + len(named)])\n",
        killed_by="test_task_2_the_same_tokens_are_written_again_in_place",
        breaks="KVCacheManager._must_fork: from the first written offset on",
    ),
    Mutant(
        name="compares-what-both-have",
        story="Zips the key with the text, and zip ends with the shorter: a named token that the request does not have "
              "yet is overlooked, and what is sampled there later overwrites it.",
        replace="        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])\n",
        by="        return any(a != b for a, b in zip(named, request.all_token_ids[start + offset:]))\n",
        killed_by="test_task_2_a_key_that_goes_on_after_the_text_asks_for_a_copy",
        breaks=("invariant 2: A named token that the request does not have yet counts as another",
                "KVCacheManager._must_fork: or none yet"),
    ),
    Mutant(
        name="every-block-from-the-same-offset",
        story="Takes the offset of the first slot for all blocks: what later blocks name at their beginning is not "
              "compared.",
        replace="        offset = max(first_slot - start, 0)\n",
        by="        offset = first_slot % self.block_size\n",
        killed_by="test_task_2_a_later_block_is_written_from_its_beginning",
        breaks="KVCacheManager._must_fork: a later one from its own beginning on",
    ),
    Mutant(
        name="an-offset-below-zero",
        story="The first slot lies before a later block; counted from there, its key is compared with other tokens.",
        replace="        offset = max(first_slot - start, 0)\n",
        by="        offset = first_slot - start\n",
        killed_by="test_task_3_its_own_keys_cost_a_request_no_copy",
        breaks="KVCacheManager._must_fork: a later one from its own beginning on",
    ),
    Mutant(
        name="copies-the-first-block-only",
        story="A step writes one block, so it asks about one. A chunk may begin in a shared block and end in the next.",
        replace="        forked = [i for i in written if",
        by="        forked = [i for i in written[:1] if",
        killed_by="test_task_2_every_block_that_is_written_is_asked_about",
        breaks="KVCacheManager.allocate_slots: each block that _must_fork before it is written was replaced by a copy",
    ),
    Mutant(
        name="a-hit-counts-itself-only",
        story="Forgets that an untouched hit is about to have one owner more: two requests write one tail.",
        replace="        if block.ref_cnt + is_hit > 1:\n",
        by="        if block.ref_cnt > 1:\n",
        killed_by="test_task_2_a_tail_that_somebody_has_is_copied",
        breaks="KVCacheManager._must_fork: it has not been touched for request yet",
    ),
    Mutant(
        name="equal-tokens-may-be-shared",
        story="Writes into a block of others if the key names the same tokens: it races with their reading.",
        replace="        if block.ref_cnt + is_hit > 1:\n",
        by="        if block.ref_cnt + is_hit > 1 and block.block_hash is None:\n",
        killed_by="test_task_2_the_same_tokens_are_written_again_in_place",
        breaks=("invariant 2: A block is written by its only owner",
                "KVCacheManager._must_fork: It must if anybody else owns it, whatever is written"),
    ),
    Mutant(
        name="hits-fill-their-blocks",
        story="Puts the first new token after the last hit block, not after the last hit token.",
        replace="        first_slot = request.num_computed_tokens + num_hit_tokens\n",
        by="        first_slot = request.num_computed_tokens + len(hits) * self.block_size\n",
        killed_by="test_task_2_a_block_whose_key_names_other_tokens_is_copied",
        breaks="KVCacheManager.allocate_slots: how many tokens of them count",
    ),
    Mutant(
        name="free-hits-are-room",
        story="Counts blocks as free that the hit itself is about to take.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        num_free_hits = 0\n",
        killed_by="test_task_2_copies_and_fresh_blocks_need_room_and_free_hits_are_none",
        breaks=("invariant 3: a free block that the hit itself takes is none",
                "KVCacheManager.allocate_slots: so it is no room"),
    ),
    Mutant(
        name="every-hit-is-no-room",
        story="Takes all hits off the free blocks, also those that somebody has: a request that would fit waits.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        num_free_hits = len(hits)\n",
        killed_by="test_task_2_a_hit_that_is_in_use_takes_no_room",
        breaks=("invariant 3: a hit that somebody uses needs none",
                "KVCacheManager.allocate_slots: A hit that is in use takes no room"),
    ),
    Mutant(
        name="a-copy-is-no-room",
        story="Counts fresh blocks only; the pool raises half-way.",
        replace="        if len(forked) + num_fresh > self.block_pool",
        by="        if num_fresh > self.block_pool",
        killed_by="test_task_2_copies_and_fresh_blocks_need_room_and_free_hits_are_none",
        breaks=("invariant 3: Copies and fresh blocks both need room",
                "KVCacheManager.allocate_slots: Returns None if copies and fresh blocks together do not fit"),
    ),
    Mutant(
        name="room-for-a-copy-just-in-case",
        story="Wants a spare block for every half hit: a tail that could be written in place has to wait.",
        replace="        if len(forked) + num_fresh > self.block_pool",
        by="        if max(len(forked), num_hit_tokens % self.block_size > 0) + num_fresh > self.block_pool",
        killed_by="test_task_2_a_hit_that_is_written_in_place_needs_no_room",
        breaks="KVCacheManager.allocate_slots: Returns None if copies and fresh blocks together do not fit",
    ),
    Mutant(
        name="touches-before-there-is-room",
        story="Adopts the hits, then finds that the rest does not fit.",
        replace="        num_free_hits = sum(block.ref_cnt == 0 for block in hits)\n",
        by="        num_free_hits = 0\n        self.block_pool.touch(hits)\n",
        killed_by="test_task_2_copies_and_fresh_blocks_need_room_and_free_hits_are_none",
        breaks=("invariant 3: allocate_slots returning None changed nothing",
                "KVCacheManager.allocate_slots: nothing has changed"),
    ),
    Mutant(
        name="fresh-blocks-first",
        story="Returns the fresh blocks before the copies: not the order of the table.",
        replace="        taken += fresh\n",
        by="        taken = fresh + taken\n",
        killed_by="test_task_2_copies_come_before_fresh_blocks",
        breaks="KVCacheManager.allocate_slots: Returns the copies in the order of the table, then the fresh blocks",
    ),
    Mutant(
        name="counts-whole-blocks-found",
        story="The statistics know blocks only: the half block's tokens are missing from the hit rate.",
        replace="            self._count_query(request, num_hit_tokens)\n",
        by="            self._count_query(request, num_hit_tokens // self.block_size * self.block_size)\n",
        killed_by="test_task_2_statistics_count_the_tokens_that_were_found",
        breaks="KVCacheManager._count_query: with this many tokens found",
    ),
    Mutant(
        name="counts-every-call",
        story="Counts a query for every step of a request: the hit rate drowns in decoding.",
        replace="        if not held:\n            self._count_query",
        by="        if True:\n            self._count_query",
        killed_by="test_task_2_statistics_count_the_tokens_that_were_found",
        breaks="KVCacheManager.allocate_slots: If the request held nothing, it is counted",
    ),
    Mutant(
        name="counts-who-finds-something",
        story="Counts a query where the hits are adopted: who finds nothing is missing, and the hit rate looks fine.",
        replace="        if not held:\n            self._count_query",
        by="        if hits:\n            self._count_query",
        killed_by="test_task_2_statistics_count_the_tokens_that_were_found",
        breaks="KVCacheManager.allocate_slots: whether anything was found or not",
    ),
    Mutant(
        name="never-indexes",
        story="Leaves it to donate(): requests that run beside each other share nothing.",
        replace="        self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="",
        killed_by="test_task_3_full_blocks_are_found_as_soon_as_they_have_slots",
        breaks="KVCacheManager.allocate_slots: tell _index_full_blocks",
    ),
    Mutant(
        name="indexes-past-the-tree",
        story="Uses the base's index: it takes a tail's key for that of a full block, and the tree knows no children.",
        replace="        self.prefix_tree.insert(request.all_token_ids, table, num_tokens, request.extra_keys)\n",
        by="        super()._index_full_blocks(request, num_tokens)\n",
        killed_by="test_task_3_a_tail_that_has_grown_full_is_found_as_a_whole",
        breaks="KVCacheManager._index_full_blocks: findable, through the tree",
    ),
    Mutant(
        name="indexes-the-running-tail",
        story="Inserts with the tail: a half-filled block of a request that runs gets a new key with each token.",
        replace="table, num_tokens, request.extra_keys)\n        # END TASK\n\n    def _note",
        by="table, num_tokens, request.extra_keys, with_tail=True)\n        # END TASK\n\n    def _note",
        killed_by="test_task_3_full_blocks_are_found_as_soon_as_they_have_slots",
        breaks="KVCacheManager._index_full_blocks: The half-filled block at the end is left out",
    ),
    Mutant(
        name="indexes-before-the-copy",
        story="Inserts while the table still names the shared block: it gets the key of what is written elsewhere.",
        replace="        taken = [self._fork_block(table, index) for index in forked]\n",
        by="        self._tables[request.request_id] = table\n"
           "        self._index_full_blocks(request, min(num_slots, len(table) * self.block_size))\n"
           "        taken = [self._fork_block(table, index) for index in forked]\n",
        killed_by="test_task_3_a_copy_is_indexed_not_what_it_was_copied_from",
        breaks="invariant 4: The index never names a token that is neither written nor going to be written",
    ),
    Mutant(
        name="indexes-slots-without-tokens",
        story="Indexes all slots: keys of tokens that nobody has sampled yet.",
        replace="        self._index_full_blocks(request, min(num_slots, request.num_tokens))\n",
        by="        self._index_full_blocks(request, num_slots)\n",
        killed_by="test_task_3_slots_without_tokens_are_not_indexed",
        breaks="KVCacheManager.allocate_slots: how many tokens now have a slot and exist",
    ),
    Mutant(
        name="indexes-without-the-salt",
        story="Leaves the extra keys out of the index: every tenant's text is found by nobody in particular.",
        replace="        self.prefix_tree.insert(request.all_token_ids, table, num_tokens, request.extra_keys)\n",
        by="        self.prefix_tree.insert(request.all_token_ids, table, num_tokens)\n",
        killed_by="test_task_3_the_salt_is_part_of_the_key",
        breaks="KVCacheManager._index_full_blocks: and its extra_keys",
    ),
    Mutant(
        name="copies-what-is-not-written",
        story="Notes nothing: a request of the same step copies half a block before it is written.",
        replace="        self._note_unwritten(table, first_slot, num_slots, taken)\n",
        by="",
        killed_by="test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied",
        breaks=("invariant 5: Nothing is copied from a slot that the planned step has yet to write",
                "KVCacheManager.allocate_slots: tell _note_unwritten what this step is going to write"),
    ),
    Mutant(
        name="hands-over-an-empty-half",
        story="Counts no token of an unwritten block, but adopts it all the same.",
        replace="        if num_half == 0:\n            return match.blocks, num_whole\n",
        by="",
        killed_by="test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied",
        breaks="KVCacheManager.get_computed_blocks: if that is none, the block is left out",
    ),
    Mutant(
        name="nothing-of-it-is-written",
        story="Notes 0 for every block: the part that earlier steps have written is computed again.",
        replace="max(first_slot - index * self.block_size, 0))\n",
        by="0)\n",
        killed_by="test_task_4_the_written_part_of_a_block_may_be_copied",
        breaks="KVCacheManager._note_unwritten: with the number of its positions that lie before first_slot: this "
               "much of it is written",
    ),
    Mutant(
        name="all-or-nothing",
        story="Leaves a block out as soon as something of it is unwritten.",
        replace="min(match.num_partial_tokens, self._num_written.get(half.block_id, match.num_partial_tokens))\n",
        by="0 if half.block_id in self._num_written else match.num_partial_tokens\n",
        killed_by="test_task_4_the_written_part_of_a_block_may_be_copied",
        breaks="KVCacheManager.get_computed_blocks: at most that many tokens of it count",
    ),
    Mutant(
        name="the-last-note-wins",
        story="Overwrites the note when slots are asked for ahead: what is planned counts as written.",
        replace="_num_written.setdefault(table[index].block_id, max(first_slot - index * self.block_size, 0))\n",
        by="_num_written[table[index].block_id] = max(first_slot - index * self.block_size, 0)\n",
        killed_by="test_task_4_the_first_note_of_a_step_stays",
        breaks="KVCacheManager._note_unwritten: Of the others the first note of a step stays",
    ),
    Mutant(
        name="notes-the-whole-table",
        story="Notes all blocks from the beginning: those that were only adopted cannot be copied in this step.",
        replace="        for index in range(first_slot // self.block_size, self._num_blocks_for(num_slots)):\n",
        by="""        for index in range(first_slot // self.block_size):
            self._num_written.setdefault(table[index].block_id, 0)
        for index in range(first_slot // self.block_size, self._num_blocks_for(num_slots)):
""",
        killed_by="test_task_4_a_block_that_is_only_read_is_not_noted",
        breaks="KVCacheManager._note_unwritten: every block of table that has one of these positions is noted",
    ),
    Mutant(
        name="notes-to-the-end-of-the-table",
        story="Notes blocks after the last slot that is written now, too.",
        replace="        for index in range(first_slot // self.block_size, self._num_blocks_for(num_slots)):\n",
        by="        for index in range(first_slot // self.block_size, len(table)):\n",
        killed_by="test_task_4_slots_that_are_not_written_now_are_not_noted",
        breaks="KVCacheManager._note_unwritten: every block of table that has one of these positions is noted",
    ),
    Mutant(
        name="keeps-old-notes-of-fresh-blocks",
        story="A block that changes hands within a step keeps the note of its last owner: garbage counts as written.",
        replace="        for block in taken:\n            self._num_written.pop(block.block_id, None)\n",
        by="",
        killed_by="test_task_5_a_block_given_out_again_in_the_same_step_is_noted_anew",
        breaks="KVCacheManager._note_unwritten: Blocks that were just taken are noted anew",
    ),
    Mutant(
        name="copies-are-not-taken",
        story="Tells the note of the fresh blocks only: a copy keeps the note of the block's last owner.",
        replace="        self._note_unwritten(table, first_slot, num_slots, taken)\n",
        by="        self._note_unwritten(table, first_slot, num_slots, fresh)\n",
        killed_by="test_task_5_a_block_given_out_again_in_the_same_step_is_noted_anew",
        breaks="KVCacheManager._note_unwritten: taken are the copies and the fresh blocks",
    ),
    Mutant(
        name="old-blocks-only-are-noted",
        story="Notes what the table held before: fresh blocks count as written at once.",
        replace="        self._note_unwritten(table, first_slot, num_slots, taken)\n",
        by="        num_old = (len(table) - len(fresh)) * self.block_size\n"
           "        self._note_unwritten(table, first_slot, min(num_slots, num_old), taken)\n",
        killed_by="test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied",
        breaks="KVCacheManager._note_unwritten: fresh blocks included",
    ),
    Mutant(
        name="the-notes-stay",
        story="Reports the copies and keeps the notes: from the second step on, little is found.",
        replace="        self._num_written.clear()\n",
        by="",
        killed_by="test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied",
        breaks="KVCacheManager.finish_step: and nothing is noted as unwritten",
    ),
    Mutant(
        name="the-copies-stay-pending",
        story="Forgets to call the base: sources stay kept, and the next step makes the copies again.",
        replace="        super().finish_step()\n",
        by="",
        killed_by="test_task_4_finish_step_reports_the_copies_too",
        breaks="KVCacheManager.finish_step: as in the base",
    ),
    Mutant(
        name="ends-as-in-the-base",
        story="Frees without donating: whole blocks are found, the tail of every answer is computed again.",
        replace="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)\n",
        by="        self.block_pool.free_blocks(reversed(table))\n",
        killed_by="test_task_5_a_request_that_ends_leaves_its_tail",
        breaks="KVCacheManager.free: the half-filled tail included",
    ),
    Mutant(
        name="donates-the-last-token",
        story="Donates all tokens: the last one was sampled, and never computed.",
        replace="        num_trusted = request.num_computed_tokens\n",
        by="        num_trusted = request.num_tokens\n",
        killed_by="test_task_5_a_request_that_ends_leaves_its_tail",
        breaks=("invariant 4: The index never names a token that is neither written",
                "KVCacheManager.free: Those are the first num_computed_tokens"),
    ),
    Mutant(
        name="donates-without-the-salt",
        story="Leaves the extra keys out when it donates: a tenant's tail is found by everybody who has no salt.",
        replace="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)\n",
        by="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted)\n",
        killed_by="test_task_5_the_salt_goes_with_the_tail",
        breaks="KVCacheManager.free: and its extra_keys",
    ),
    Mutant(
        name="donates-twice",
        story="Keeps the table after free: an abort after the end drops references that others have.",
        replace="        table = self._tables.pop(request.request_id, None)\n",
        by="        table = self._tables.get(request.request_id)\n",
        killed_by="test_task_5_the_last_block_is_freed_first",
        breaks="KVCacheManager.free: After: the request holds nothing",
    ),
    Mutant(
        name="donates-nothing-held",
        story="Donates an empty table: the tree looks for blocks that are not there.",
        replace="""        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
""",
        by="        table = self._tables.pop(request.request_id, [])\n",
        killed_by="test_task_5_the_last_block_is_freed_first",
        breaks="KVCacheManager.free: Harmless when it held nothing before",
    ),
    Mutant(
        name="trusts-the-plan",
        story="num_computed_tokens was advanced when the step was planned. An abort before the step leaves what is not "
              "there.",
        replace="        if unwritten:\n",
        by="        if False:\n",
        killed_by="test_task_5_what_was_planned_and_never_written_is_not_left",
        breaks=("invariant 6: A request that goes leaves what is written and nothing else",
                "KVCacheManager.free: only what lies before the first position that it is to write"),
    ),
    Mutant(
        name="planned-blocks-stay-indexed",
        story="Donates the right number of tokens, but blocks that were planned full are in the index since then.",
        replace="            self.block_pool.evict_blocks(table[index].block_id for index in unwritten)\n",
        by="",
        killed_by="test_task_5_what_was_planned_and_never_written_is_not_left",
        breaks="KVCacheManager.free: every block of the table that is in _num_written is taken out of the index",
    ),
    Mutant(
        name="shared-blocks-stay-indexed",
        story="Spares planned blocks that others own: they go on being found, and nobody writes them.",
        replace="(table[index].block_id for index in unwritten)\n",
        by="(table[index].block_id for index in unwritten\n"
           "                                         if table[index].ref_cnt == 1)\n",
        killed_by="test_task_5_planned_blocks_leave_the_index_though_others_have_them",
        breaks="KVCacheManager.free: Every one, also if others own it",
    ),
    Mutant(
        name="evicts-after-donating",
        story="Takes planned blocks out of the index after the tree was told: the written part of a tail goes, too.",
        replace="""            self.block_pool.evict_blocks(table[index].block_id for index in unwritten)
        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)
""",
        by="""        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)
        self.block_pool.evict_blocks(table[index].block_id for index in unwritten)
""",
        killed_by="test_task_5_what_was_planned_and_never_written_is_not_left",
        breaks="KVCacheManager.free: before the tree is told",
    ),
    Mutant(
        name="loses-the-whole-block",
        story="Trusts whole blocks only: the written part of a block that was to be filled is given up.",
        replace="first * self.block_size + self._num_written[table[first].block_id])\n",
        by="first * self.block_size)\n",
        killed_by="test_task_5_a_preempted_request_leaves_what_was_computed",
        breaks="invariant 6: A request that goes leaves what is written",
    ),
    Mutant(
        name="donates-what-has-slots",
        story="A preempted request leaves as many tokens as it had slots for.",
        replace="            num_trusted = min(num_trusted, first",
        by="            num_trusted = max(num_trusted, first",
        killed_by="test_task_5_what_was_planned_and_never_written_is_not_left",
        breaks="KVCacheManager.free: only what lies before the first position that it is to write",
    ),
    Mutant(
        name="the-statistics-are-not-reset",
        story="Clears the tree, and leaves the base out: the statistics go on from before.",
        replace="        super().reset_prefix_cache()\n",
        by="",
        killed_by="test_task_5_reset_forgets_the_tree_too",
        breaks="KVCacheManager.reset_prefix_cache: start the statistics anew",
    ),
    Mutant(
        name="a-tree-without-a-cache",
        story="Makes a tree even when caching is off: it is asked, and finds nothing, but free() asks it to donate.",
        replace="if tree_class and enable_caching else None\n",
        by="if tree_class else None\n",
        killed_by="test_task_1_without_a_tree_the_base_looks",
        breaks=("invariant 7: Without a tree, everything is as in lab 3.2", "KVCacheManager: or caching is off"),
    ),
    Mutant(
        name="asks-for-the-prompt-only",
        story="A request that was preempted has an answer, too: it is cached, and computed again.",
        replace="match(request.all_token_ids[:request.num_tokens - 1], request.extra_keys)",
        by="match(request.prompt_token_ids[:request.num_tokens - 1], request.extra_keys)",
        killed_by="test_task_1_what_a_request_has_said_is_asked_for_too",
        breaks="KVCacheManager.get_computed_blocks: for all tokens but the last",
    ),
    Mutant(
        name="unwritten-blocks-are-not-shared",
        story="Leaves a whole block out because this step writes it: equal prompts of one step are all computed.",
        replace="        if half is None:\n            return match.blocks, num_whole\n",
        by="        while match.blocks and match.blocks[-1].block_id in self._num_written:\n"
           "            match.blocks.pop()\n            num_whole, half = num_whole - self.block_size, None\n"
           "        if half is None:\n            return match.blocks, num_whole\n",
        killed_by="test_task_4_what_a_step_has_yet_to_write_is_shared_whole_but_not_copied",
        breaks="KVCacheManager.get_computed_blocks: Whole blocks need no such care",
    ),
    Mutant(
        name="a-block-without-a-key-is-copied",
        story="Asks for a copy where nobody can find the block: every decoded token costs one.",
        replace="        if block.block_hash is None:\n            return False\n",
        by="        if block.block_hash is None:\n            return True\n",
        killed_by="test_task_2_forks_share_and_copy_as_before",
        breaks="KVCacheManager._must_fork: None: nothing finds it, so no",
    ),
    Mutant(
        name="a-tail-is-nobodys",
        story="Only a full block is protected: a tail that others will look for is overwritten.",
        replace="        if block.block_hash is None:\n            return False\n",
        by="        if block.block_hash is None or len(block.block_hash.token_ids) < self.block_size:\n"
           "            return False\n",
        killed_by="test_task_2_a_tail_is_copied_where_its_key_names_another_token",
        breaks="KVCacheManager._must_fork: another token is there",
    ),
    Mutant(
        name="copies-to-the-end-of-the-table",
        story="Asks about every block from the first slot on, also about those that the step does not reach.",
        replace="        written = range(first_slot // self.block_size, min(num_blocks, len(table)))\n",
        by="        written = range(first_slot // self.block_size, len(table))\n",
        killed_by="test_task_2_a_block_after_the_last_slot_is_not_copied",
        breaks="KVCacheManager.allocate_slots: each block that _must_fork before it is written was replaced by a copy",
    ),
    Mutant(
        name="hits-without-an-owner",
        story="Touches the hits that are free; those that somebody has get no owner more.",
        replace="        self.block_pool.touch(hits)\n        taken",
        by="        self.block_pool.touch([block for block in hits if block.ref_cnt == 0])\n        taken",
        killed_by="test_task_2_a_hit_that_is_in_use_takes_no_room",
        breaks="KVCacheManager.allocate_slots: the hits with one more owner each",
    ),
    Mutant(
        name="one-block-ahead",
        story="Takes a block as soon as the last one is full, for the token that will come.",
        replace="        num_blocks = self._num_blocks_for(num_slots)\n",
        by="        num_blocks = num_slots // self.block_size + 1\n",
        killed_by="test_task_2_the_same_tokens_are_written_again_in_place",
        breaks="KVCacheManager.allocate_slots: just as many fresh blocks as the slots ask for",
    ),
    Mutant(
        name="a-query-that-found-no-room",
        story="Counts before it knows whether there is room: a request that waits is counted at every step.",
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
        breaks="KVCacheManager.allocate_slots: and nothing has changed",
    ),
    Mutant(
        name="a-tail-keeps-its-short-key",
        story="Leaves out what has a key already: an adopted tail that is full by now is still found half.",
        replace="        table = self._tables[request.request_id]\n",
        by="        table = self._tables[request.request_id]\n"
           "        while num_tokens >= self.block_size and table[num_tokens // self.block_size - 1].block_hash:\n"
           "            num_tokens -= self.block_size\n",
        killed_by="test_task_3_a_tail_that_has_grown_full_is_found_as_a_whole",
        breaks="KVCacheManager._index_full_blocks: gives a longer key to a tail that was adopted and is full by now",
    ),
    Mutant(
        name="believes-the-note-alone",
        story="Takes all that lies before the planned step, also what was taken back.",
        replace="min(num_trusted, first * self.block_size + self._num_written[table[first].block_id])\n",
        by="first * self.block_size + self._num_written[table[first].block_id]\n",
        killed_by="test_task_5_what_was_taken_back_is_not_left",
        breaks="KVCacheManager.free: Those are the first num_computed_tokens",
    ),
    Mutant(
        name="the-notes-go-with-the-request",
        story="Tears up the notes of the table that is freed; another has the same blocks, and they are not written.",
        replace="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)\n",
        by="        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)\n"
           "        for block in table:\n            self._num_written.pop(block.block_id, None)\n",
        killed_by="test_task_5_the_notes_stay_when_one_of_two_owners_goes",
        breaks="KVCacheManager.free: The notes stay until finish_step",
    ),
]
