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
        story="Gives the child the parent's list object: whatever the parent gets later, the child has too.",
        replace="        table = list(self._tables.get(parent.request_id, []))\n",
        by="        table = self._tables.get(parent.request_id, [])\n",
        killed_by="test_task_2_tables_of_parent_and_child_are_two_lists",
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
        story="Forks first and then finds that the fresh blocks do not fit.",
        replace="""        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():
            return None

        for index in shared:
            table[index] = self.block_pool.fork_block(table[index])
""",
        by="""        if len(shared) > self.block_pool.get_num_free_blocks():
            return None
        for index in shared:
            table[index] = self.block_pool.fork_block(table[index])
        if num_fresh > self.block_pool.get_num_free_blocks():
            return None
""",
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
        replace="        return forked + fresh\n",
        by="        return fresh\n",
        killed_by="test_task_2_the_first_write_into_a_shared_tail_forks_it",
    ),
    Mutant(
        name="fresh-blocks-first",
        story="Takes the fresh blocks before the forks: the order of the list is not that of the table.",
        replace="        return forked + fresh\n",
        by="        return fresh + forked\n",
        killed_by="test_task_2_forked_blocks_come_before_fresh_ones",
    ),
    Mutant(
        name="frees-for-everybody",
        story="Frees a block until nobody owns it: when the child ends, the parent's prompt is gone.",
        replace="        self.block_pool.free_blocks(reversed(table))\n",
        by="""        for block in reversed(table):
            self.block_pool.free_blocks([block] * block.ref_cnt)
""",
        killed_by="test_task_3_a_family_ends_in_any_order",
    ),
    Mutant(
        name="frees-private-blocks-only",
        story="'Somebody else still needs it' is not a reason to stay on the books as an owner.",
        replace="        self.block_pool.free_blocks(reversed(table))\n",
        by="        self.block_pool.free_blocks([block for block in reversed(table) if block.ref_cnt == 1])\n",
        killed_by="test_task_3_beam_search_forks_and_drops",
    ),
    Mutant(
        name="keeps-the-table-after-free",
        story="A second free, as on abort after finish, takes away the other's reference.",
        replace="        table = self._tables.pop(request.request_id, [])\n",
        by="        table = self._tables.get(request.request_id, [])\n",
        killed_by="test_task_3_a_name_can_be_used_again",
    ),
    Mutant(
        name="reports-copies-that-are-not-made",
        story="Calls finish_copies in free(), to have everything clean: the copy is lost before it was made.",
        replace="        self.block_pool.free_blocks(reversed(table))\n",
        by="        self.block_pool.free_blocks(reversed(table))\n        self.block_pool.finish_copies()\n",
        killed_by="test_task_3_ending_while_a_copy_is_pending_harms_nobody",
    ),
]
