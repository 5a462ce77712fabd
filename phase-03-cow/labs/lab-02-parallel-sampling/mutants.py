"""Mistakes people make with block tables that fork, and the test that catches each."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="forks-without-owning",
        story="Copies the table and touches nothing: the first of the two to end frees the other's blocks.",
        replace="        self.block_pool.touch(table)\n",
        by="",
        killed_by="test_task_1_a_child_shares_every_block_with_the_tail",
        breaks=(
            "KVCacheManager.fork: each of these blocks has one more owner",
            "invariant 1: ref_cnt of a block is the number of tables that name it",
        ),
    ),
    Mutant(
        name="two-names-for-one-table",
        story="Gives the child the parent's list object: the copy that one of them gets, the other has too.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="        table = self._tables.get(parent.request_id, [])\n",
        killed_by="test_task_2_tables_of_parent_and_child_are_two_lists",
        breaks=(
            "KVCacheManager.fork: a later change of one does not show in the other",
            "invariant 6: Every table is a separate list. The blocks are shared, the lists are not.",
        ),
    ),
    Mutant(
        name="shares-full-blocks-only",
        story="Leaves the half-filled tail out, as a prefix cache does: the child's last tokens have no slots.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        num_full_blocks = parent.num_computed_tokens // self.block_size
        table = list(self._tables.get(parent.request_id, []))[:num_full_blocks]
""",
        killed_by="test_task_1_a_child_shares_every_block_with_the_tail",
        breaks="KVCacheManager.fork: Let child share every block of parent, the half-filled tail included",
    ),
    Mutant(
        name="copies-the-tail-at-once",
        story="Forks the tail in fork(): a copy for every child, also for those that never write.",
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
        story="Does not ask whether the child holds blocks; those are owned by nobody's table then.",
        replace="        if child.request_id in self._tables:\n",
        by="        if False:\n",
        killed_by="test_task_1_a_child_that_holds_blocks_is_refused",
        breaks="KVCacheManager.fork: RuntimeError if child holds blocks already",
    ),
    Mutant(
        name="writes-into-a-shared-tail",
        story="Lab 2.2's allocate_slots, unchanged: parent and child write into the same slot.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="        shared = []\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
        breaks=(
            "KVCacheManager.allocate_slots: a shared block that the new tokens are written into was forked",
            "invariant 2: A block that another request reads is not written into",
        ),
    ),
    Mutant(
        name="forks-every-shared-block",
        story="Copies the whole prompt at the first write. Right, and as dear as not sharing at all.",
        replace="        written = range(first_slot // self.block_size, min(num_blocks, len(table)))\n",
        by="        written = range(min(num_blocks, len(table)))\n",
        killed_by="test_task_2_eight_samples_store_the_prompt_once",
        breaks=(
            "KVCacheManager.allocate_slots: a shared block that is not written now is still shared",
            "invariant 3: A block that is only read is never copied",
        ),
    ),
    Mutant(
        name="forks-the-last-block-read",
        story="Looks at the block of the last computed token, not of the first new one: copies at a boundary.",
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
        story="'Only the tail can be half-filled': a step that writes into two shared blocks spoils the second.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="        shared = [index for index in written if table[index].ref_cnt > 1][:1]\n",
        killed_by="test_task_2_every_shared_block_that_is_written_is_forked",
        breaks=(
            "KVCacheManager.allocate_slots: a shared block that the new tokens are written into was forked",
            "invariant 2: the request that is to write it forks it first",
        ),
    ),
    Mutant(
        name="a-fork-is-no-room",
        story="Counts fresh blocks only; with the last free block gone, the pool raises half-way.",
        replace="        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():\n",
        by="        if num_fresh > self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_2_no_room_to_fork_is_none_and_changes_nothing",
        breaks="KVCacheManager.allocate_slots: None if copies and fresh blocks together do not fit",
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
            "KVCacheManager.allocate_slots: together do not fit; nothing has changed then",
            "invariant 5: allocate_slots returning None left counts, queue, tables and pending copies as they were",
        ),
    ),
    Mutant(
        name="asks-for-a-block-too-many",
        story="Wants room to spare: a fork that just fits gets None, and somebody is preempted for nothing.",
        replace="        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():\n",
        by="        if len(shared) + num_fresh >= self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_2_a_fork_counts_as_room",
        breaks="KVCacheManager.allocate_slots: None if copies and fresh blocks together do not fit",
    ),
    Mutant(
        name="the-copy-is-not-in-the-table",
        story="Takes the copy and goes on with the original in the table.",
        replace="            table[index] = self.block_pool.fork_block(table[index])\n",
        by="            self.block_pool.fork_block(table[index])\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
        breaks="KVCacheManager.allocate_slots: the copy is in its place in the table",
    ),
    Mutant(
        name="returns-the-fresh-blocks-only",
        story="The copy was taken from the pool too; whoever counts blocks by this list loses one a fork.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="        return super().allocate_slots(request, num_new_tokens)\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
        breaks="KVCacheManager.allocate_slots: the blocks newly taken from the pool",
    ),
    Mutant(
        name="fresh-blocks-first",
        story="The order of the list is not that of the table: whoever appends it to a copy of the table goes wrong.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="        return super().allocate_slots(request, num_new_tokens) + forked\n",
        killed_by="test_task_2_forked_blocks_come_before_fresh_ones",
        breaks="KVCacheManager.allocate_slots: then fresh blocks",
    ),
    Mutant(
        name="grows-first-forks-after",
        story="Calls the base before the forks: it indexes the block that is shared as if the child had written it.",
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
            "KVCacheManager.allocate_slots: copies, not the blocks that they were copied from",
            "invariant 7: the block that it was copied from is not",
        ),
    ),
    Mutant(
        name="grows-without-the-base",
        story="Appends the fresh blocks itself, as before there was a base: what forked requests fill is never found.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="""        fresh = self.block_pool.get_new_blocks(num_fresh)
        table += fresh
        return forked + fresh
""",
        killed_by="test_task_2_a_copy_is_indexed_not_what_it_was_copied_from",
        breaks=(
            "KVCacheManager.allocate_slots: blocks that are full by now are indexed",
            "invariant 7: a copy that was filled is indexed",
        ),
    ),
    Mutant(
        name="first-slots-without-the-cache",
        story="Drops the hits on the way to the base: blocks that were found are computed again.",
        replace="            return super().allocate_slots(request, num_new_tokens, hits, num_hit_tokens)\n",
        by="            return super().allocate_slots(request, num_hit_tokens + num_new_tokens)\n",
        killed_by="test_task_2_the_first_slots_are_the_bases_hits_and_all",
        breaks="KVCacheManager.allocate_slots: The base does all of it for a request that holds nothing, hits included",
    ),
    Mutant(
        name="hits-for-a-child-are-ignored",
        story="Takes hits that a request with a table cannot have, and says nothing.",
        replace="        self._check_arguments(request, num_new_tokens, hits, num_hit_tokens)\n",
        by="",
        killed_by="test_task_2_hits_for_a_child_are_refused",
        breaks="KVCacheManager.allocate_slots: what _check_arguments of the base raises",
    ),
    Mutant(
        name="counts-the-child",
        story="A child is counted as a query that found everything: the hit rate looks twice as good as it is.",
        replace="            self._tables[child.request_id] = table\n",
        by="""            self._tables[child.request_id] = table
            self._num_queries += 1
            self._num_query_tokens += child.num_tokens
            self._num_hit_tokens += child.num_computed_tokens
""",
        killed_by="test_task_1_a_fork_is_no_query",
        breaks=(
            "KVCacheManager.fork: the statistics are as before",
            "invariant 8: A fork is no query",
        ),
    ),
    Mutant(
        name="forks-into-an-empty-table",
        story="Gives the child of a waiting parent a table without blocks: it counts as one that has its first slots.",
        replace="        if table:\n            self._tables[child.request_id] = table\n",
        by="        self._tables[child.request_id] = table\n",
        killed_by="test_task_1_a_parent_without_blocks_has_a_child_without_blocks",
        breaks="KVCacheManager.fork: neither does the child: it has no entry in _tables",
    ),
    Mutant(
        name="writes-the-child",
        story="Sets the child's num_computed_tokens: the scheduler does that too, and counts twice.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        child.num_computed_tokens = parent.num_computed_tokens
        table = list(self._tables.get(parent.request_id, []))
""",
        killed_by="test_task_1_fork_writes_neither_request",
        breaks="KVCacheManager.fork: neither request is written",
    ),
    Mutant(
        name="reports-copies-that-are-not-made",
        story="Calls finish_step while planning, to have everything clean: the copy is lost before it was made.",
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
        story="Cuts the table to the blocks that the parent's tokens need: slots made ahead are not shared.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        num_blocks = self._num_blocks_for(parent.num_tokens)
        table = self._tables.get(parent.request_id, [])[:num_blocks]
""",
        killed_by="test_task_1_blocks_that_are_not_written_yet_are_shared_too",
        breaks=(
            "KVCacheManager.fork: the child's table names the same blocks as the parent's, in the same order",
            "KVCacheManager.fork: Let child share every block of parent",
        ),
    ),
    Mutant(
        name="wants-equal-tokens",
        story="Asks for the same tokens, not for the same beginning: a child with a token of its own is refused.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        if child.num_tokens != parent.num_tokens:
            raise RuntimeError("fork: parent and child have different tokens")
        table = list(self._tables.get(parent.request_id, []))
""",
        killed_by="test_task_1_a_child_may_have_more_tokens_than_its_parent",
        breaks="KVCacheManager.fork: the tokens of child begin with those of parent that are computed",
    ),
    Mutant(
        name="a-waiting-parent-is-refused",
        story="Finds no table for the parent and raises: samples of a request that waits cannot be made.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        table = list(self._tables.get(parent.request_id, []))
        if not table:
            raise RuntimeError(f"fork: request {parent.request_id!r} holds nothing")
""",
        killed_by="test_task_1_a_parent_without_blocks_has_a_child_without_blocks",
        breaks="KVCacheManager.fork: if the parent holds nothing, neither does the child",
    ),
    Mutant(
        name="nothing-to-share-nothing-to-check",
        story="Returns early when the parent holds nothing, before it looks at the child.",
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
        breaks="KVCacheManager.fork: RuntimeError if child holds blocks already",
    ),
    Mutant(
        name="touches-before-it-refuses",
        story="Adds the owners and then finds that the child has a table: they never leave.",
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
        story="Refuses to fork when no block is free: 'the copy would not fit'. It may never be needed.",
        replace="        self.block_pool.touch(table)\n",
        by="""        if table and self.block_pool.get_num_free_blocks() == 0:
            raise RuntimeError("fork: no block is free")
        self.block_pool.touch(table)
""",
        killed_by="test_task_1_forking_takes_no_block_and_copies_nothing",
        breaks="invariant 4: so it never fails for want of room",
    ),
    Mutant(
        name="leaves-the-source-twice",
        story="Frees the block that it forked, although fork_block has moved the reference.",
        replace="            table[index] = self.block_pool.fork_block(table[index])\n",
        by="""            source = table[index]
            table[index] = self.block_pool.fork_block(source)
            self.block_pool.free_blocks([source])
""",
        killed_by="test_task_2_a_family_ends_in_any_order",
        breaks="invariant 1: ref_cnt of a block is the number of tables that name it",
    ),
    Mutant(
        name="forks-to-the-end-of-the-table",
        story="Takes all blocks from the first written one on, also those after the last new token.",
        replace="min(num_blocks, len(table)))\n",
        by="len(table))\n",
        killed_by="test_task_2_every_shared_block_that_is_written_is_forked",
        breaks="KVCacheManager.allocate_slots: a shared block that is not written now is still shared",
    ),
    Mutant(
        name="forks-the-block-after-the-last-token",
        story="Takes the block of the position after the last new token: at a boundary that is one block too many.",
        replace="min(num_blocks, len(table)))\n",
        by="min((first_slot + num_new_tokens) // self.block_size + 1, len(table)))\n",
        killed_by="test_task_2_every_shared_block_that_is_written_is_forked",
        breaks="KVCacheManager.allocate_slots: a shared block that is not written now is still shared",
    ),
    Mutant(
        name="takes-a-fresh-block-in-reserve",
        story="Grows the table by a block more than the new tokens need, so that the next call is cheap.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="""        fresh = super().allocate_slots(request, num_new_tokens)
        if fresh and self.block_pool.get_num_free_blocks():
            fresh += self.block_pool.get_new_blocks(1)
            self._tables[request.request_id] += fresh[-1:]
        return forked + fresh
""",
        killed_by="test_task_2_a_private_table_is_written_in_place",
        breaks="KVCacheManager.allocate_slots: fresh blocks follow in the table, as many as the new tokens need",
    ),
    Mutant(
        name="an-indexed-block-is-shared",
        story="Takes the index for an owner: a private block is reported as newly taken, and wants room.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="""        shared = [index for index in written
                  if table[index].ref_cnt > 1 or table[index].block_hash is not None]
""",
        killed_by="test_task_2_an_indexed_block_that_is_private_is_written_in_place",
        breaks="KVCacheManager.allocate_slots: a private block is still in its place",
    ),
    Mutant(
        name="an-indexed-block-is-only-read",
        story="'Full, so nobody writes it': a step that was cut short does, into what others share.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="""        shared = [index for index in written
                  if table[index].ref_cnt > 1 and table[index].block_hash is None]
""",
        killed_by="test_task_2_a_shared_block_is_forked_though_it_is_indexed",
        breaks="KVCacheManager.allocate_slots: a shared block that the new tokens are written into was forked",
    ),
    Mutant(
        name="an-indexed-tail-is-only-read",
        story="Forks indexed blocks in the middle of a table, and takes a full last one for finished.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="""        shared = [index for index in written if table[index].ref_cnt > 1
                  and (table[index].block_hash is None or index < len(table) - 1)]
""",
        killed_by="test_task_2_a_shared_block_is_forked_though_it_is_indexed",
        breaks="KVCacheManager.allocate_slots: a shared block that the new tokens are written into was forked",
    ),
    Mutant(
        name="forks-two-at-most",
        story="A step touches a block and perhaps the next, it believes: a third shared one is written in place.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="        shared = [index for index in written if table[index].ref_cnt > 1][:2]\n",
        killed_by="test_task_2_several_copies_and_a_fresh_block_need_just_their_room",
        breaks=(
            "KVCacheManager.allocate_slots: a shared block that the new tokens are written into was forked",
            "invariant 2: the request that is to write it forks it first",
        ),
    ),
    Mutant(
        name="several-copies-want-room-to-spare",
        story="Asks for a block more when two or more are copied: what just fits gets None.",
        replace="        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():\n",
        by="        if len(shared) + num_fresh + (len(shared) > 1) > self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_2_several_copies_and_a_fresh_block_need_just_their_room",
        breaks="KVCacheManager.allocate_slots: None if copies and fresh blocks together do not fit",
    ),
    Mutant(
        name="the-child-was-found-too",
        story="Hands num_cached_tokens on: what the parent found is reported once for every sample.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        child.num_cached_tokens = parent.num_cached_tokens
        table = list(self._tables.get(parent.request_id, []))
""",
        killed_by="test_task_1_fork_writes_neither_request",
        breaks="KVCacheManager.fork: neither request is written",
    ),
    Mutant(
        name="the-copys-reference-is-the-childs",
        story="Does not touch a block that is kept for a copy: 'it has a reference more than owners already'.",
        replace="        self.block_pool.touch(table)\n",
        by="""        kept = self.block_pool._kept_for_copy
        self.block_pool.touch([block for block in table if block.block_id not in kept])
""",
        killed_by="test_task_2_a_block_that_a_copy_holds_is_shared_as_any",
        breaks=(
            "KVCacheManager.fork: each of these blocks has one more owner",
            "invariant 1: A pending copy may hold one reference more",
        ),
    ),
    Mutant(
        name="reports-what-is-written",
        story="Puts every written block through fork_block, and calls the private ones newly taken.",
        replace="        for index in shared:\n",
        by="""        shared = list(written)
        for index in shared:
""",
        killed_by="test_task_2_a_private_table_is_written_in_place",
        breaks="KVCacheManager.allocate_slots: a private block is still in its place",
    ),
    Mutant(
        name="a-long-table-makes-room",
        story="Forgets that the table may be longer than needed: less than no fresh blocks pay for a copy.",
        replace="        num_fresh = max(num_blocks - len(table), 0)\n",
        by="        num_fresh = num_blocks - len(table)\n",
        killed_by="test_task_2_blocks_it_has_already_are_no_room",
        breaks="KVCacheManager.allocate_slots: None if copies and fresh blocks together do not fit",
    ),
    Mutant(
        name="gives-up-half-way",
        story="Forks until the pool refuses, and returns None: the copies before that are pending, and in the "
              "table.",
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
        breaks="invariant 5: allocate_slots returning None left counts, queue, tables and pending copies as they were",
    ),
    Mutant(
        name="copies-in-reverse-order",
        story="Lists the copies last one first: not the order of the table.",
        replace="        forked = [table[index] for index in shared]\n",
        by="        forked = [table[index] for index in reversed(shared)]\n",
        killed_by="test_task_2_every_shared_block_that_is_written_is_forked",
        breaks="KVCacheManager.allocate_slots: copies in the order of the table",
    ),
    Mutant(
        name="none-for-an-empty-list",
        story="'Nothing taken' becomes None, which means 'does not fit': the scheduler preempts somebody.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="        return forked + super().allocate_slots(request, num_new_tokens) or None\n",
        killed_by="test_task_2_a_private_table_is_written_in_place",
        breaks="KVCacheManager.allocate_slots: or an empty list",
    ),
    Mutant(
        name="a-copy-is-a-query",
        story="Counts a request again when its tail is copied.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="""        self._num_queries += len(forked)
        return forked + super().allocate_slots(request, num_new_tokens)
""",
        killed_by="test_task_2_only_first_slots_count_as_a_query",
        breaks="invariant 8: A request is one query when it gets its first slots",
    ),
]
