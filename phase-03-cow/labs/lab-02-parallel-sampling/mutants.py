"""Mistakes people make with block tables that fork, and the test that catches each."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="forks-without-owning",
        story="Copies the table and touches nothing: the first of the two to end frees the other's blocks.",
        replace="        self.block_pool.touch(table)\n",
        by="",
        killed_by="test_task_1_a_child_shares_every_block_with_the_tail",
    ),
    Mutant(
        name="two-names-for-one-table",
        story="Gives the child the parent's list object: the copy that one of them gets, the other has too.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="        table = self._tables.get(parent.request_id, [])\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
    ),
    Mutant(
        name="shares-full-blocks-only",
        story="Leaves the half-filled tail out, as a prefix cache does: the child's last tokens have no slots.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        num_full_blocks = parent.num_computed_tokens // self.block_size
        table = list(self._tables.get(parent.request_id, []))[:num_full_blocks]
""",
        killed_by="test_task_1_a_child_shares_every_block_with_the_tail",
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
    ),
    Mutant(
        name="overwrites-the-childs-table",
        story="Does not ask whether the child holds blocks; those are owned by nobody's table then.",
        replace="        if child.request_id in self._tables:\n",
        by="        if False:\n",
        killed_by="test_task_1_a_child_that_holds_blocks_is_refused",
    ),
    Mutant(
        name="writes-into-a-shared-tail",
        story="Lab 2.2's allocate_slots, unchanged: parent and child write into the same slot.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="        shared = []\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
    ),
    Mutant(
        name="forks-every-shared-block",
        story="Copies the whole prompt at the first write. Right, and as dear as not sharing at all.",
        replace="        written = range(first_slot // self.block_size, min(num_blocks, len(table)))\n",
        by="        written = range(min(num_blocks, len(table)))\n",
        killed_by="test_task_2_eight_samples_store_the_prompt_once",
    ),
    Mutant(
        name="forks-the-last-block-read",
        story="Looks at the block of the last computed token, not of the first new one: copies at a boundary.",
        replace="        written = range(first_slot // self.block_size,",
        by="        written = range((first_slot - 1) // self.block_size,",
        killed_by="test_task_2_at_a_block_boundary_nothing_is_copied",
    ),
    Mutant(
        name="forks-the-first-written-block-only",
        story="'Only the tail can be half-filled': a step that writes into two shared blocks spoils the second.",
        replace="        shared = [index for index in written if table[index].ref_cnt > 1]\n",
        by="        shared = [index for index in written if table[index].ref_cnt > 1][:1]\n",
        killed_by="test_task_2_every_shared_block_that_is_written_is_forked",
    ),
    Mutant(
        name="a-fork-is-no-room",
        story="Counts fresh blocks only; with the last free block gone, the pool raises half-way.",
        replace="        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():\n",
        by="        if num_fresh > self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_2_no_room_to_fork_is_none_and_changes_nothing",
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
    ),
    Mutant(
        name="asks-for-a-block-too-many",
        story="Wants room to spare: a fork that just fits gets None, and somebody is preempted for nothing.",
        replace="        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():\n",
        by="        if len(shared) + num_fresh >= self.block_pool.get_num_free_blocks():\n",
        killed_by="test_task_2_a_fork_counts_as_room",
    ),
    Mutant(
        name="the-copy-is-not-in-the-table",
        story="Takes the copy and goes on with the original in the table.",
        replace="            table[index] = self.block_pool.fork_block(table[index])\n",
        by="            self.block_pool.fork_block(table[index])\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
    ),
    Mutant(
        name="returns-the-fresh-blocks-only",
        story="The copy was taken from the pool too; whoever counts blocks by this list loses one a fork.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="        return super().allocate_slots(request, num_new_tokens)\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
    ),
    Mutant(
        name="fresh-blocks-first",
        story="The order of the list is not that of the table: whoever appends it to a copy of the table goes wrong.",
        replace="        return forked + super().allocate_slots(request, num_new_tokens)\n",
        by="        return super().allocate_slots(request, num_new_tokens) + forked\n",
        killed_by="test_task_2_forked_blocks_come_before_fresh_ones",
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
    ),
    Mutant(
        name="first-slots-without-the-cache",
        story="Drops the hits on the way to the base: blocks that were found are computed again.",
        replace="            return super().allocate_slots(request, num_new_tokens, hits, num_hit_tokens)\n",
        by="            return super().allocate_slots(request, num_hit_tokens + num_new_tokens)\n",
        killed_by="test_task_2_the_first_slots_are_the_bases_hits_and_all",
    ),
    Mutant(
        name="hits-for-a-child-are-ignored",
        story="Takes hits that a request with a table cannot have, and says nothing.",
        replace="        self._check_arguments(request, num_new_tokens, hits, num_hit_tokens)\n",
        by="",
        killed_by="test_task_2_hits_for_a_child_are_refused",
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
    ),
    Mutant(
        name="forks-into-an-empty-table",
        story="Gives the child of a waiting parent a table without blocks: it counts as one that has its first slots.",
        replace="        if table:\n            self._tables[child.request_id] = table\n",
        by="        self._tables[child.request_id] = table\n",
        killed_by="test_task_1_the_child_of_a_waiting_parent_asks_the_cache_itself",
    ),
    Mutant(
        name="writes-the-child",
        story="Sets the child's num_computed_tokens: the scheduler does that too, and counts twice.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="""        child.num_computed_tokens = parent.num_computed_tokens
        table = list(self._tables.get(parent.request_id, []))
""",
        killed_by="test_task_1_fork_writes_neither_request",
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
    ),
]
