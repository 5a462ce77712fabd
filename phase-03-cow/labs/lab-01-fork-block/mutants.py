"""Mistakes people make with copy on write, and the test that catches each."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="forks-a-private-block",
        story="Copies always, to be safe: every decoded token copies a block.",
        replace="        if num_owners == 1:\n            return block\n",
        by="",
        killed_by="test_task_1_a_private_block_is_returned_as_it_is",
    ),
    Mutant(
        name="a-free-block-counts-as-private",
        story="'Not shared' is not 'mine': hands a block that anybody may get next to a writer.",
        replace="""        if num_owners == 0:
            raise RuntimeError(f"fork_block: block {block.block_id} has no owner, nobody may write to it")
        if num_owners == 1:
""",
        by="        if num_owners <= 1:\n",
        killed_by="test_task_1_a_free_block_cannot_be_forked",
    ),
    Mutant(
        name="forks-a-strangers-block",
        story="Trusts the caller; a block of another pool is counted and copied in this one.",
        replace="""        self._check_mine(block, "fork_block")\n""",
        by="",
        killed_by="test_task_1_the_null_block_and_strangers_cannot_be_forked",
    ),
    Mutant(
        name="copies-the-reference",
        story="Does all the book-keeping and gives the original back: the child writes into its parent's block.",
        replace="        return copy\n",
        by="        return block\n",
        killed_by="test_task_2_both_sides_read_back_their_own_tokens",
    ),
    Mutant(
        name="the-original-keeps-its-count",
        story="The caller owns the copy and, on the books, the original too: it is never private again.",
        replace="        block.ref_cnt -= 1\n        self.num_forks",
        by="        self.num_forks",
        killed_by="test_task_2_forking_a_shared_block_moves_one_reference",
    ),
    Mutant(
        name="copies-backwards",
        story="Records (destination, source): the empty block is copied over the shared one.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="        self.pending_copies.append((copy, block))\n",
        killed_by="test_task_2_both_sides_read_back_their_own_tokens",
    ),
    Mutant(
        name="never-copies",
        story="Takes a fresh block and forgets to have it filled.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="",
        killed_by="test_task_2_both_sides_read_back_their_own_tokens",
    ),
    Mutant(
        name="lets-go-before-there-is-room",
        story="Drops the count first; when no block is free, the pool raises and the owner is lost.",
        replace="        copy = self.get_new_blocks(1)[0]\n        block.ref_cnt -= 1\n",
        by="        block.ref_cnt -= 1\n        copy = self.get_new_blocks(1)[0]\n",
        killed_by="test_task_2_without_room_nothing_changes",
    ),
    Mutant(
        name="the-source-is-reused-before-the-copy",
        story="Keeps destinations only: the parent ends, and its block becomes the destination of another copy.",
        replace="        needed = {block.block_id for copy in self.pending_copies for block in copy}\n",
        by="        needed = {copy.block_id for _, copy in self.pending_copies}\n",
        killed_by="test_task_4_a_parent_that_ends_before_the_copy_leaves_its_content",
    ),
    Mutant(
        name="the-destination-is-reused-before-the-copy",
        story="Keeps sources only: the child is aborted, and the copy lands in somebody else's block.",
        replace="        needed = {block.block_id for copy in self.pending_copies for block in copy}\n",
        by="        needed = {source.block_id for source, _ in self.pending_copies}\n",
        killed_by="test_task_4_a_child_that_ends_before_the_copy_harms_nobody",
    ),
    Mutant(
        name="the-copy-keeps-every-reference",
        story="Whoever leaves a block with a pending copy is not counted; the block looks shared for ever.",
        replace="            if block.ref_cnt == 1 and block.block_id in needed:\n",
        by="            if block.block_id in needed:\n",
        killed_by="test_task_3_only_the_last_owners_reference_is_kept",
    ),
    Mutant(
        name="the-copys-reference-can-be-freed",
        story="A kept block has ref_cnt 1, so a second free by the same owner looks right.",
        replace="""            num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
            if num_drops > num_owners:
""",
        by="""            num_owners = block.ref_cnt
            if num_drops > num_owners:
""",
        killed_by="test_task_3_a_double_free_is_noticed_while_copies_are_pending",
    ),
    Mutant(
        name="checks-each-block-on-its-own",
        story="Asks 'has it an owner?' a block at a time; one that comes twice in the list is dropped twice.",
        replace="            if num_drops > num_owners:\n",
        by="            if num_owners < 1:\n",
        killed_by="test_task_3_a_double_free_is_noticed_while_copies_are_pending",
    ),
    Mutant(
        name="kept-blocks-leak",
        story="Empties the lists and frees nothing: blocks that were kept never come back.",
        replace="        self.free_blocks(kept)\n",
        by="",
        killed_by="test_task_4_blocks_kept_for_a_copy_become_free",
    ),
    Mutant(
        name="the-copies-stay-pending",
        story="Frees the kept blocks while their copies are still on the list: they are kept again.",
        replace="        self.pending_copies = []\n",
        by="",
        killed_by="test_task_4_finishing_leaves_owned_blocks_with_their_owners",
    ),
    Mutant(
        name="finishing-takes-the-blocks-away",
        story="Drops a reference of both sides of each copy, although their owners hold them.",
        replace="        kept = [self.blocks[block_id] for block_id in sorted(self._kept_for_copy)]\n",
        by="        kept = [block for copy in self.pending_copies for block in copy]\n",
        killed_by="test_task_4_finishing_leaves_owned_blocks_with_their_owners",
    ),
    Mutant(
        name="forces-kept-blocks-into-the-queue",
        story="Sets the count to 0 and appends, although somebody has touched the block since.",
        replace="        self.free_blocks(kept)\n",
        by="""        for block in kept:
            block.ref_cnt = 0
            self.free_block_queue.append(block)
""",
        killed_by="test_task_4_a_kept_block_that_was_touched_stays_with_its_owner",
    ),
    Mutant(
        name="a-kept-block-counts-as-private",
        story="Reads ref_cnt 1 as 'one owner': lets somebody write a block that only a copy holds.",
        replace="""        num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
        if num_owners == 0:
""",
        by="""        num_owners = block.ref_cnt
        if num_owners == 0:
""",
        killed_by="test_task_3_a_block_that_is_only_kept_for_a_copy_cannot_be_forked",
    ),
    Mutant(
        name="the-copys-reference-is-an-owner",
        story="Refuses a block that is only kept, but takes one owner and a copy's reference for two owners: one copy "
              "too many.",
        replace="        if num_owners == 1:\n",
        by="        if block.ref_cnt == 1:\n",
        killed_by="test_task_3_the_copys_reference_does_not_make_a_block_shared",
    ),
    Mutant(
        name="forks-are-not-counted",
        story="Everything works, and the engine reports 0 forks.",
        replace="        self.num_forks += 1\n",
        by="",
        killed_by="test_task_2_every_copy_that_was_asked_for_is_counted",
    ),
    Mutant(
        name="counts-before-there-is-room",
        story="Counts the fork and then finds that no block is free: a call that raised has changed a number.",
        replace="        copy = self.get_new_blocks(1)[0]\n        block.ref_cnt -= 1\n        self.num_forks += 1\n",
        by="        self.num_forks += 1\n        copy = self.get_new_blocks(1)[0]\n        block.ref_cnt -= 1\n",
        killed_by="test_task_2_without_room_nothing_changes",
    ),
    Mutant(
        name="counts-pending-copies",
        story="num_forks starts anew each step, with the list: it is a count since the pool was made.",
        replace="        self.free_blocks(kept)\n",
        by="        self.free_blocks(kept)\n        self.num_forks = 0\n",
        killed_by="test_task_4_the_count_of_forks_is_never_reset",
    ),
    Mutant(
        name="the-copy-inherits-the-hash",
        story="'It holds the same': indexes the copy as a twin. Its owner is about to write something else into it.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="""        self.pending_copies.append((block, copy))
        if block.block_hash is not None:
            self.cache_full_blocks([copy], [block.block_hash])
""",
        killed_by="test_task_2_the_copy_has_no_hash_and_the_source_is_found_as_before",
    ),
    Mutant(
        name="the-source-is-forgotten",
        story="Takes the source out of the index, as if the fork had changed it.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="        self.pending_copies.append((block, copy))\n        self.evict_blocks([block.block_id])\n",
        killed_by="test_task_2_the_copy_has_no_hash_and_the_source_is_found_as_before",
    ),
    Mutant(
        name="takes-the-block-past-the-index",
        story="Takes a block straight from the queue: its old hash still finds it, with the copy in it.",
        replace="        copy = self.get_new_blocks(1)[0]\n",
        by="        copy = self.free_block_queue.popleft()\n        copy.ref_cnt = 1\n",
        killed_by="test_task_3_the_block_for_the_copy_forgets_what_it_held",
    ),
    Mutant(
        name="a-kept-block-leaves-the-index",
        story="'Nobody owns it, so nobody should find it': throws cached content away that is about to be free anyway.",
        replace="                self._kept_for_copy.add(block.block_id)\n",
        by="""                self._kept_for_copy.add(block.block_id)
                self.evict_blocks([block.block_id])
""",
        killed_by="test_task_3_a_kept_block_is_found_and_not_evicted",
    ),
    Mutant(
        name="frees-in-the-order-of-a-set",
        story="Walks the set as it comes. It looks sorted as long as all ids are small.",
        replace="for block_id in sorted(self._kept_for_copy)]\n",
        by="for block_id in self._kept_for_copy]\n",
        killed_by="test_task_4_kept_blocks_become_free_lowest_id_first",
    ),
    Mutant(
        name="frees-in-the-order-of-the-copies",
        story="Walks the pending copies to find what was kept: right blocks, another order than promised.",
        replace="        kept = [self.blocks[block_id] for block_id in sorted(self._kept_for_copy)]\n",
        by="""        needed = dict.fromkeys(block.block_id for copy in self.pending_copies for block in copy)
        kept = [self.blocks[block_id] for block_id in needed if block_id in self._kept_for_copy]
""",
        killed_by="test_task_4_kept_blocks_become_free_lowest_id_first",
    ),
]
