"""Common mistakes with block tables that fork, and the test that catches each of them."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="forks-without-owning",
        story="Copies the table and touches nothing: the first request to end frees the blocks of the other one.",
        replace="        self.block_pool.touch(table)\n",
        by="",
        killed_by="test_task_1_a_child_shares_every_block_with_the_tail",
        breaks=(
            "KVCacheManager.fork: each of these blocks has one more owner",
            "invariant 1: The ref_cnt of a block is the number of tables that contain it",
        ),
    ),
    Mutant(
        name="two-names-for-one-table",
        story="Gives the child the parent's list object: a copy that one of them gets is also in the table of the "
              "other.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="        table = self._tables.get(parent.request_id, [])\n",
        killed_by="test_task_2_tables_of_parent_and_child_are_two_lists",
        breaks=(
            "KVCacheManager.fork: a later change to one does not affect the other",
            "invariant 6: Every table is a separate list. The blocks are shared, the lists are not.",
        ),
    ),
    Mutant(
        name="shares-full-blocks-only",
        story="Leaves out the half-filled tail, as a prefix cache does: the child's last tokens have no slots.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        num_full_blocks = parent.num_computed_tokens // self.block_size
        table = list(self._tables.get(parent.request_id, []))[:num_full_blocks]
""",
        killed_by="test_task_1_a_child_shares_every_block_with_the_tail",
        breaks="KVCacheManager.fork: Let child share every block of parent, including the half-filled tail",
    ),
    Mutant(
        name="copies-the-tail-at-once",
        story="Forks the tail in fork(): makes a copy for every child, even if the child never writes.",
        replace="        if table:\n            self._tables[child.request_id] = table\n",
        by="""        if table:
            table[-1] = self.block_pool.fork_block(table[-1])
            self._tables[child.request_id] = table
""",
        killed_by="test_task_1_a_child_shares_every_block_with_the_tail",
        breaks=(
            "KVCacheManager.fork: No block is taken or copied",
            "invariant 4: fork takes no block",
        ),
    ),
    Mutant(
        name="overwrites-the-childs-table",
        story="Does not check whether the child holds blocks: those blocks keep an owner but are in no table.",
        replace="        if child.request_id in self._tables:\n",
        by="        if False:\n",
        killed_by="test_task_1_a_child_that_holds_blocks_is_refused",
        breaks="KVCacheManager.fork: RuntimeError if child already holds blocks",
    ),
    Mutant(
        name="writes-into-a-shared-tail",
        story="Uses lab 2.2's allocate_slots unchanged: parent and child write into the same slot.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="        shared = []\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
        breaks=(
            "KVCacheManager.allocate_slots: each shared block that the new tokens are written into was forked",
            "invariant 2: A request never writes into a block that another request reads",
        ),
    ),
    Mutant(
        name="forks-every-shared-block",
        story="Copies the whole prompt at the first write. The tokens are right, but the cost is the same as without "
              "sharing.",
        replace="        written = range(first_slot // self.block_size, min(num_blocks, len(table)))\n",
        by="        written = range(min(num_blocks, len(table)))\n",
        killed_by="test_task_2_eight_samples_store_the_prompt_once",
        breaks=(
            "KVCacheManager.allocate_slots: each shared block that is not written now is still shared",
            "invariant 3: A block that is only read is never copied",
        ),
    ),
    Mutant(
        name="forks-the-last-block-read",
        story="Starts at the block of the last computed token instead of the first new one: makes a copy at a block "
              "boundary.",
        replace="        written = range(first_slot // self.block_size,",
        by="        written = range((first_slot - 1) // self.block_size,",
        killed_by="test_task_2_at_a_block_boundary_nothing_is_copied",
        breaks=(
            "module: The new tokens are written to positions num_computed_tokens and up.",
            "invariant 3: A block that is only read is never copied",
        ),
    ),
    Mutant(
        name="forks-the-first-written-block-only",
        story="Assumes that only the tail can be half-filled: a step that writes into two shared blocks corrupts the "
              "second.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="        shared = [index for index in written if table[index].ref_cnt > 1][:1]\n",
        killed_by="test_task_2_every_shared_block_that_is_written_is_forked",
        breaks=(
            "KVCacheManager.allocate_slots: each shared block that the new tokens are written into was forked",
            "invariant 2: it forks the block first",
        ),
    ),
    Mutant(
        name="a-fork-is-no-room",
        story="Counts only fresh blocks: if no block is left for the copy, the pool raises in the middle of the call.",
        replace="        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():\n",
        by="        if num_fresh > self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_2_no_room_to_fork_is_none_and_changes_nothing",
        breaks="KVCacheManager.allocate_slots: None if there are fewer free blocks than copies and fresh blocks",
    ),
    Mutant(
        name="none-after-forking",
        story="Forks and leaves the rest to the base, which then finds that the fresh blocks do not fit.",
        replace="""        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():
            return None
""",
        by="""        if len(shared) > self.block_pool.get_num_free_blocks():
            return None
""",
        killed_by="test_task_2_a_fork_counts_as_room",
        breaks=(
            "KVCacheManager.allocate_slots: than copies and fresh blocks together; nothing has changed then",
            "invariant 5: the reference counts, the queue, the tables and the pending copies are unchanged",
        ),
    ),
    Mutant(
        name="asks-for-a-block-too-many",
        story="Requires a spare block: a fork that just fits gets None, and a request is preempted for nothing.",
        replace="        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():\n",
        by="        if len(shared) + num_fresh >= self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_2_a_fork_counts_as_room",
        breaks="KVCacheManager.allocate_slots: None if there are fewer free blocks than copies and fresh blocks",
    ),
    Mutant(
        name="the-copy-is-not-in-the-table",
        story="Requests the copy but leaves the original in the table.",
        replace="            table[index] = self.block_pool.fork_block(table[index])\n",
        by="            self.block_pool.fork_block(table[index])\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
        breaks="KVCacheManager.allocate_slots: the copy is in its place in the table",
    ),
    Mutant(
        name="returns-the-fresh-blocks-only",
        story="Does not return the copy, which was also taken from the pool: a caller that counts blocks by this list "
              "loses one per fork.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="        return super().allocate_slots(request, num_new_tokens)\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
        breaks="KVCacheManager.allocate_slots: the blocks newly taken from the pool",
    ),
    Mutant(
        name="fresh-blocks-first",
        story="Returns the blocks in another order than the table: a caller that appends them to its own copy of the "
              "table gets it wrong.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="        return super().allocate_slots(request, num_new_tokens) + forked\n",
        killed_by="test_task_2_forked_blocks_come_before_fresh_ones",
        breaks="KVCacheManager.allocate_slots: then the fresh blocks",
    ),
    Mutant(
        name="grows-first-forks-after",
        story="Calls the base before the forks: the base indexes the shared block as if the child had written into it.",
        replace="""        for index in shared:
            table[index] = self.block_pool.fork_block(table[index])
        forked = [table[index] for index in shared]
        return forked + super().allocate_slots(request, num_new_tokens)
""",
        by="""        fresh = super().allocate_slots(request, num_new_tokens)
        table = self._tables[request.request_id]
        for index in shared:
            table[index] = self.block_pool.fork_block(table[index])
        return [table[index] for index in shared] + fresh
""",
        killed_by="test_task_2_a_copy_is_indexed_not_what_it_was_copied_from",
        breaks=(
            "KVCacheManager.allocate_slots: the copies, not the blocks that they were copied from",
            "invariant 7: the block that it was copied from is not",
        ),
    ),
    Mutant(
        name="grows-without-the-base",
        story="Appends the fresh blocks itself instead of calling the base: blocks that forked requests fill are never "
              "found.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="""        fresh = self.block_pool.get_new_blocks(num_fresh)
        table += fresh
        return forked + fresh
""",
        killed_by="test_task_2_a_copy_is_indexed_not_what_it_was_copied_from",
        breaks=(
            "KVCacheManager.allocate_slots: blocks that are now full are indexed",
            "invariant 7: a copy that was filled is indexed",
        ),
    ),
    Mutant(
        name="first-slots-without-the-cache",
        story="Does not pass the hits to the base: blocks that were found are computed again.",
        replace="            return super().allocate_slots(request, num_new_tokens, hits, num_hit_tokens)\n",
        by="            return super().allocate_slots(request, num_hit_tokens + num_new_tokens)\n",
        killed_by="test_task_2_the_first_slots_are_the_bases_hits_and_all",
        breaks="KVCacheManager.allocate_slots: the base does everything, including the hits",
    ),
    Mutant(
        name="hits-for-a-child-are-ignored",
        story="Silently accepts hits for a request that already has a table.",
        replace="        self._check_arguments(request, num_new_tokens, hits, num_hit_tokens)\n",
        by="",
        killed_by="test_task_2_hits_for_a_child_are_refused",
        breaks="KVCacheManager.allocate_slots: the errors of _check_arguments of the base",
    ),
    Mutant(
        name="counts-the-child",
        story="Counts a child as a query that found everything: the hit rate looks twice as good as it is.",
        replace="            self._tables[child.request_id] = table\n",
        by="""            self._tables[child.request_id] = table
            self._num_queries += 1
            self._num_query_tokens += child.num_tokens
            self._num_hit_tokens += child.num_computed_tokens
""",
        killed_by="test_task_1_a_fork_is_no_query",
        breaks=(
            "KVCacheManager.fork: the statistics are unchanged",
            "invariant 8: A fork does not count as a query",
        ),
    ),
    Mutant(
        name="forks-into-an-empty-table",
        story="Gives the child of a waiting parent an empty table: the child looks like a request that already has its "
              "first slots.",
        replace="        if table:\n            self._tables[child.request_id] = table\n",
        by="        self._tables[child.request_id] = table\n",
        killed_by="test_task_1_a_parent_without_blocks_has_a_child_without_blocks",
        breaks="KVCacheManager.fork: neither does the child: the child has no entry in _tables",
    ),
    Mutant(
        name="writes-the-child",
        story="Sets the child's num_computed_tokens: the scheduler also does that, so the tokens count twice.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        child.num_computed_tokens = parent.num_computed_tokens
        table = list(self._tables.get(parent.request_id, []))
""",
        killed_by="test_task_1_fork_writes_neither_request",
        breaks="KVCacheManager.fork: neither request object is changed",
    ),
    Mutant(
        name="reports-copies-that-are-not-made",
        story="Calls finish_step while planning, to clean up: the copy is lost before it is made.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="""        taken = forked + super().allocate_slots(request, num_new_tokens)
        self.finish_step()
        return taken
""",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
        breaks="KVCacheManager.finish_step: its copies are made",
    ),
    Mutant(
        name="shares-what-the-tokens-need",
        story="Shares only the blocks that the parent's tokens need: slots that were allocated ahead are not shared.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        num_blocks = self._num_blocks_for(parent.num_tokens)
        table = self._tables.get(parent.request_id, [])[:num_blocks]
""",
        killed_by="test_task_1_blocks_that_are_not_written_yet_are_shared_too",
        breaks=(
            "KVCacheManager.fork: the child's table contains the same blocks as the parent's table, in the same order",
            "KVCacheManager.fork: Let child share every block of parent",
        ),
    ),
    Mutant(
        name="wants-equal-tokens",
        story="Requires equal tokens instead of an equal beginning: rejects a child that already has its own next "
              "token.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        if child.num_tokens != parent.num_tokens:
            raise RuntimeError("fork: parent and child have different tokens")
        table = list(self._tables.get(parent.request_id, []))
""",
        killed_by="test_task_1_a_child_may_have_more_tokens_than_its_parent",
        breaks="KVCacheManager.fork: the tokens of child begin with the computed tokens of parent",
    ),
    Mutant(
        name="a-waiting-parent-is-refused",
        story="Raises if the parent has no table: a waiting request cannot be forked.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        table = list(self._tables.get(parent.request_id, []))
        if not table:
            raise RuntimeError(f"fork: request {parent.request_id!r} holds nothing")
""",
        killed_by="test_task_1_a_parent_without_blocks_has_a_child_without_blocks",
        breaks="KVCacheManager.fork: if the parent holds no blocks, neither does the child",
    ),
    Mutant(
        name="nothing-to-share-nothing-to-check",
        story="Returns early if the parent holds no blocks, before it checks the child.",
        replace="""        if child.request_id in self._tables:
            raise RuntimeError(f"fork: request {child.request_id!r} holds "
                               f"{len(self._tables[child.request_id])} blocks already")
""",
        by="""        if parent.request_id not in self._tables:
            return
        if child.request_id in self._tables:
            raise RuntimeError(f"fork: request {child.request_id!r} holds "
                               f"{len(self._tables[child.request_id])} blocks already")
""",
        killed_by="test_task_1_a_child_that_holds_blocks_is_refused",
        breaks="KVCacheManager.fork: RuntimeError if child already holds blocks",
    ),
    Mutant(
        name="touches-before-it-refuses",
        story="Adds the owners and then finds that the child has a table: these references are never dropped.",
        replace="""        if child.request_id in self._tables:
            raise RuntimeError(f"fork: request {child.request_id!r} holds "
                               f"{len(self._tables[child.request_id])} blocks already")
        table = list(self._tables.get(parent.request_id, []))
        self.block_pool.touch(table)
""",
        by="""        table = list(self._tables.get(parent.request_id, []))
        self.block_pool.touch(table)
        if child.request_id in self._tables:
            raise RuntimeError(f"fork: request {child.request_id!r} holds "
                               f"{len(self._tables[child.request_id])} blocks already")
""",
        killed_by="test_task_1_a_child_that_holds_blocks_is_refused",
        breaks="KVCacheManager.fork: nothing changes then",
    ),
    Mutant(
        name="a-fork-wants-room",
        story="Rejects a fork if no block is free for the copy, although the copy may never be needed.",
        replace="        self.block_pool.touch(table)\n",
        by="""        if table and self.block_pool.get_num_free_blocks() == 0:
            raise RuntimeError("fork: no block is free")
        self.block_pool.touch(table)
""",
        killed_by="test_task_1_forking_takes_no_block_and_copies_nothing",
        breaks="invariant 4: so it never fails for lack of free blocks",
    ),
    Mutant(
        name="leaves-the-source-twice",
        story="Frees the block that it forked, although fork_block has already moved the reference.",
        replace="            table[index] = self.block_pool.fork_block(table[index])\n",
        by="""            source = table[index]
            table[index] = self.block_pool.fork_block(source)
            self.block_pool.free_blocks([source])
""",
        killed_by="test_task_2_a_family_ends_in_any_order",
        breaks="invariant 1: The ref_cnt of a block is the number of tables that contain it",
    ),
    Mutant(
        name="forks-to-the-end-of-the-table",
        story="Forks all blocks from the first written one on, including those after the last new token.",
        replace="min(num_blocks, len(table)))\n",
        by="len(table))\n",
        killed_by="test_task_2_every_shared_block_that_is_written_is_forked",
        breaks="KVCacheManager.allocate_slots: each shared block that is not written now is still shared",
    ),
    Mutant(
        name="forks-the-block-after-the-last-token",
        story="Includes the block of the position after the last new token: at a block boundary that is one block too "
              "many.",
        replace="min(num_blocks, len(table)))\n",
        by="min((first_slot + num_new_tokens) // self.block_size + 1, len(table)))\n",
        killed_by="test_task_2_every_shared_block_that_is_written_is_forked",
        breaks="KVCacheManager.allocate_slots: each shared block that is not written now is still shared",
    ),
    Mutant(
        name="takes-a-fresh-block-in-reserve",
        story="Extends the table by one block more than the new tokens need, to make the next call cheap.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="""        fresh = super().allocate_slots(request, num_new_tokens)
        if fresh and self.block_pool.get_num_free_blocks():
            fresh += self.block_pool.get_new_blocks(1)
            self._tables[request.request_id] += fresh[-1:]
        return forked + fresh
""",
        killed_by="test_task_2_a_private_table_is_written_in_place",
        breaks="KVCacheManager.allocate_slots: exactly as many as the new tokens need",
    ),
    Mutant(
        name="an-indexed-block-is-shared",
        story="Counts the index as an owner: a private block is reported as newly taken, and needs a free block.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="""        shared = [index for index in written
                  if table[index].ref_cnt > 1 or table[index].block_hash is not None]
""",
        killed_by="test_task_2_an_indexed_block_that_is_private_is_written_in_place",
        breaks="KVCacheManager.allocate_slots: each private block is still in its place",
    ),
    Mutant(
        name="an-indexed-block-is-only-read",
        story="Assumes that no request writes into a full block. After a step that was cut short, a request does, and "
              "the block is shared.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="""        shared = [index for index in written
                  if table[index].ref_cnt > 1 and table[index].block_hash is None]
""",
        killed_by="test_task_2_a_shared_block_is_forked_though_it_is_indexed",
        breaks="KVCacheManager.allocate_slots: each shared block that the new tokens are written into was forked",
    ),
    Mutant(
        name="an-indexed-tail-is-only-read",
        story="Forks indexed blocks in the middle of a table, but assumes that a full last block is finished.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="""        shared = [index for index in written if table[index].ref_cnt > 1
                  and (table[index].block_hash is None or index < len(table) - 1)]
""",
        killed_by="test_task_2_a_shared_block_is_forked_though_it_is_indexed",
        breaks="KVCacheManager.allocate_slots: each shared block that the new tokens are written into was forked",
    ),
    Mutant(
        name="forks-two-at-most",
        story="Assumes that a step writes into at most two blocks: writes into a third shared block in place.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="        shared = [index for index in written if table[index].ref_cnt > 1][:2]\n",
        killed_by="test_task_2_several_copies_and_a_fresh_block_need_just_their_room",
        breaks=(
            "KVCacheManager.allocate_slots: each shared block that the new tokens are written into was forked",
            "invariant 2: it forks the block first",
        ),
    ),
    Mutant(
        name="several-copies-want-room-to-spare",
        story="Requires one block more if two or more are copied: a request that just fits gets None.",
        replace="        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():\n",
        by="        if len(shared) + num_fresh + (len(shared) > 1) > self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_2_several_copies_and_a_fresh_block_need_just_their_room",
        breaks="KVCacheManager.allocate_slots: None if there are fewer free blocks than copies and fresh blocks",
    ),
    Mutant(
        name="the-child-was-found-too",
        story="Copies num_cached_tokens to the child: the parent's hits are reported once per sample.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        child.num_cached_tokens = parent.num_cached_tokens
        table = list(self._tables.get(parent.request_id, []))
""",
        killed_by="test_task_1_fork_writes_neither_request",
        breaks="KVCacheManager.fork: neither request object is changed",
    ),
    Mutant(
        name="the-copys-reference-is-the-childs",
        story="Does not touch a block that is kept for a copy, because it already has one reference more than owners.",
        replace="        self.block_pool.touch(table)\n",
        by="""        kept = self.block_pool._kept_for_copy
        self.block_pool.touch([block for block in table if block.block_id not in kept])
""",
        killed_by="test_task_2_a_block_that_a_copy_holds_is_shared_as_any",
        breaks=(
            "KVCacheManager.fork: each of these blocks has one more owner",
            "invariant 1: A pending copy may hold one more reference",
        ),
    ),
    Mutant(
        name="reports-what-is-written",
        story="Calls fork_block for every written block, and reports the private ones as newly taken.",
        replace="        for index in shared:\n",
        by="""        shared = list(written)
        for index in shared:
""",
        killed_by="test_task_2_a_private_table_is_written_in_place",
        breaks="KVCacheManager.allocate_slots: each private block is still in its place",
    ),
    Mutant(
        name="a-long-table-makes-room",
        story="Forgets that the table may be longer than needed: a negative number of fresh blocks offsets the copies.",
        replace="        num_fresh = max(num_blocks - len(table), 0)\n",
        by="        num_fresh = num_blocks - len(table)\n",
        killed_by="test_task_2_blocks_it_has_already_are_no_room",
        breaks="KVCacheManager.allocate_slots: None if there are fewer free blocks than copies and fresh blocks",
    ),
    Mutant(
        name="gives-up-half-way",
        story="Forks until the pool raises, and returns None: the earlier copies are already pending and in the table.",
        replace="""        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():
            return None

        for index in shared:
            table[index] = self.block_pool.fork_block(table[index])
""",
        by="""        try:
            for index in shared:
                table[index] = self.block_pool.fork_block(table[index])
        except ValueError:
            return None
        if num_fresh > self.block_pool.get_num_free_blocks():
            return None
""",
        killed_by="test_task_2_a_fork_counts_as_room",
        breaks="invariant 5: the reference counts, the queue, the tables and the pending copies are unchanged",
    ),
    Mutant(
        name="copies-in-reverse-order",
        story="Returns the copies last one first, which is not the order of the table.",
        replace="        forked = [table[index] for index in shared]\n",
        by="        forked = [table[index] for index in reversed(shared)]\n",
        killed_by="test_task_2_every_shared_block_that_is_written_is_forked",
        breaks="KVCacheManager.allocate_slots: first the copies in the order of the table",
    ),
    Mutant(
        name="none-for-an-empty-list",
        story="Returns None instead of an empty list. None means 'does not fit', so the scheduler preempts a request.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="        return forked + super().allocate_slots(request, num_new_tokens) or None\n",
        killed_by="test_task_2_a_private_table_is_written_in_place",
        breaks="KVCacheManager.allocate_slots: which may be empty",
    ),
    Mutant(
        name="a-copy-is-a-query",
        story="Counts a request again when its tail is copied.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="""        self._num_queries += len(forked)
        return forked + super().allocate_slots(request, num_new_tokens)
""",
        killed_by="test_task_2_only_first_slots_count_as_a_query",
        breaks="invariant 8: A request counts as one query when it gets its first slots",
    ),
]
