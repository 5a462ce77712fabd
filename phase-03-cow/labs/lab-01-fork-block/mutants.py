"""Mistakes people make with copy on write, and the test that catches each."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="forks-a-private-block",
        story="Copies always, to be safe: every decoded token copies a block.",
        replace="        if num_owners == 1:\n            return block\n",
        by="",
        killed_by="test_task_1_a_private_block_is_returned_as_it_is",
        breaks="BlockPool.fork_block: a private block (one owner): the block itself",
    ),
    Mutant(
        name="a-free-block-counts-as-private",
        story="'Not shared' is not 'mine': hands a block that anybody may get next to a writer.",
        replace="""        if num_owners == 0:
            raise RuntimeError(f"fork_block: block {block.block_id} has no owner, so it must not be written")
        if num_owners == 1:
""",
        by="        if num_owners <= 1:\n",
        killed_by="test_task_1_a_free_block_cannot_be_forked",
        breaks="BlockPool.fork_block: RuntimeError if block has no owner: it is free",
    ),
    Mutant(
        name="forks-a-strangers-block",
        story="Trusts the caller; a block of another pool is counted and copied in this one.",
        replace="""        self._check_mine(block, "fork_block")\n""",
        by="",
        killed_by="test_task_1_the_null_block_and_strangers_cannot_be_forked",
        breaks="BlockPool.fork_block: and blocks of another pool",
    ),
    Mutant(
        name="copies-the-reference",
        story="Does all the book-keeping and gives the original back: the child writes into its parent's block.",
        replace="        return copy\n",
        by="        return block\n",
        killed_by="test_task_2_both_sides_read_back_their_own_tokens",
        breaks=(
            "BlockPool.fork_block: a shared block (two or more owners): a fresh block, into which block will be copied",
            "BlockPool._fork_shared: the block that get_new_blocks gives",
            "invariant 1: Only a block with one owner is written, and only by that owner.",
        ),
    ),
    Mutant(
        name="the-original-keeps-its-count",
        story="The caller owns the copy and, on the books, the original too: it is never private again.",
        replace="        block.ref_cnt -= 1\n        self.num_forks",
        by="        self.num_forks",
        killed_by="test_task_2_forking_a_shared_block_moves_one_reference",
        breaks=(
            "BlockPool._fork_shared: block has one owner less",
            "invariant 2: one owner leaves the original",
        ),
    ),
    Mutant(
        name="copies-backwards",
        story="Records (destination, source): the empty block is copied over the shared one.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="        self.pending_copies.append((copy, block))\n",
        killed_by="test_task_2_both_sides_read_back_their_own_tokens",
        breaks="BlockPool._fork_shared: (block, fresh block)",
    ),
    Mutant(
        name="never-copies",
        story="Takes a fresh block and forgets to have it filled.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="",
        killed_by="test_task_2_both_sides_read_back_their_own_tokens",
        breaks="BlockPool._fork_shared: (block, fresh block) is the last of pending_copies",
    ),
    Mutant(
        name="lets-go-before-there-is-room",
        story="Drops the count first; when no block is free, the pool raises and the owner is lost.",
        replace="        copy = self.get_new_blocks(1)[0]\n        block.ref_cnt -= 1\n",
        by="        block.ref_cnt -= 1\n        copy = self.get_new_blocks(1)[0]\n",
        killed_by="test_task_2_without_room_nothing_changes",
        breaks=(
            "BlockPool: a call that raises has changed nothing",
            "invariant 7: A call that raises has changed nothing",
        ),
    ),
    Mutant(
        name="the-source-is-reused-before-the-copy",
        story="Keeps destinations only: the parent ends, and its block becomes the destination of another copy.",
        replace="        needed = {block.block_id for copy in self.pending_copies for block in copy}\n",
        by="        needed = {copy.block_id for _, copy in self.pending_copies}\n",
        killed_by="test_task_4_a_parent_that_ends_before_the_copy_leaves_its_content",
        breaks=(
            "BlockPool.free_blocks: A copy needs both its blocks, source and destination",
            "invariant 3: the order among the copies does not matter",
            "invariant 4: Both sides of a pending copy have a ref_cnt of at least 1.",
        ),
    ),
    Mutant(
        name="the-destination-is-reused-before-the-copy",
        story="Keeps sources only: the child is aborted, and the copy lands in somebody else's block.",
        replace="        needed = {block.block_id for copy in self.pending_copies for block in copy}\n",
        by="        needed = {source.block_id for source, _ in self.pending_copies}\n",
        killed_by="test_task_4_a_child_that_ends_before_the_copy_harms_nobody",
        breaks=(
            "BlockPool.free_blocks: and that a pending copy needs, is not in the queue",
            "invariant 4: Both sides of a pending copy have a ref_cnt of at least 1.",
        ),
    ),
    Mutant(
        name="the-copy-keeps-every-reference",
        story="Whoever leaves a block with a pending copy is not counted; the block looks shared for ever.",
        replace="            if block.ref_cnt == 1 and block.block_id in needed:\n",
        by="            if block.block_id in needed:\n",
        killed_by="test_task_3_only_the_last_owners_reference_is_kept",
        breaks="BlockPool.free_blocks: each block has lost one owner",
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
        breaks="BlockPool.free_blocks: The copy's reference is not an owner",
    ),
    Mutant(
        name="checks-each-block-on-its-own",
        story="Asks 'has it an owner?' a block at a time; one that comes twice in the list is dropped twice.",
        replace="            if num_drops > num_owners:\n",
        by="            if num_owners < 1:\n",
        killed_by="test_task_3_a_double_free_is_noticed_while_copies_are_pending",
        breaks="BlockPool.free_blocks: RuntimeError if a block is in blocks more often than it has owners",
    ),
    Mutant(
        name="kept-blocks-leak",
        story="Empties the lists and frees nothing: blocks that were kept never come back.",
        replace="        self.free_blocks(kept)\n",
        by="",
        killed_by="test_task_4_blocks_kept_for_a_copy_become_free",
        breaks="BlockPool.finish_copies: kept blocks that have no owner are at the queue's end",
    ),
    Mutant(
        name="the-copies-stay-pending",
        story="Frees the kept blocks while their copies are still on the list: they are kept again.",
        replace="        self.pending_copies = []\n",
        by="",
        killed_by="test_task_4_finishing_leaves_owned_blocks_with_their_owners",
        breaks="BlockPool.finish_copies: pending_copies and _kept_for_copy are empty",
    ),
    Mutant(
        name="finishing-takes-the-blocks-away",
        story="Drops a reference of both sides of each copy, although their owners hold them.",
        replace="        kept = [self.blocks[block_id] for block_id in sorted(self._kept_for_copy)]\n",
        by="        kept = [block for copy in self.pending_copies for block in copy]\n",
        killed_by="test_task_4_finishing_leaves_owned_blocks_with_their_owners",
        breaks="BlockPool.finish_copies: blocks that have owners stay with them",
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
        breaks="BlockPool.finish_copies: blocks that have owners stay with them",
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
        breaks=(
            "BlockPool.fork_block: or one less if it is in _kept_for_copy",
            "BlockPool.fork_block: RuntimeError if block has no owner: it is free, or only a copy holds it",
        ),
    ),
    Mutant(
        name="the-copys-reference-is-an-owner",
        story="Refuses a block that is only kept, but takes one owner and a copy's reference for two owners: one copy "
              "too many.",
        replace="        if num_owners == 1:\n",
        by="        if block.ref_cnt == 1:\n",
        killed_by="test_task_3_the_copys_reference_does_not_make_a_block_shared",
        breaks=(
            "BlockPool.fork_block: that reference is the copy's, and a copy writes nothing",
            "invariant 1: a block with ref_cnt 2 whose second reference is a copy's may be written",
        ),
    ),
    Mutant(
        name="forks-are-not-counted",
        story="Everything works, and the engine reports 0 forks.",
        replace="        self.num_forks += 1\n",
        by="",
        killed_by="test_task_2_every_copy_that_was_asked_for_is_counted",
        breaks="BlockPool._fork_shared: num_forks is one more",
    ),
    Mutant(
        name="counts-before-there-is-room",
        story="Counts the fork and then finds that no block is free: a call that raised has changed a number.",
        replace="        copy = self.get_new_blocks(1)[0]\n        block.ref_cnt -= 1\n        self.num_forks += 1\n",
        by="        self.num_forks += 1\n        copy = self.get_new_blocks(1)[0]\n        block.ref_cnt -= 1\n",
        killed_by="test_task_2_without_room_nothing_changes",
        breaks="BlockPool: a call that raises has changed nothing",
    ),
    Mutant(
        name="counts-pending-copies",
        story="num_forks starts anew each step, with the list: it is a count since the pool was made.",
        replace="        self.free_blocks(kept)\n",
        by="        self.free_blocks(kept)\n        self.num_forks = 0\n",
        killed_by="test_task_4_the_count_of_forks_is_never_reset",
        breaks="BlockPool._fork_shared: num_forks is one more",
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
        breaks=(
            "BlockPool._fork_shared: and no hash",
            "invariant 6: a copy has no hash",
        ),
    ),
    Mutant(
        name="the-source-is-forgotten",
        story="Takes the source out of the index, as if the fork had changed it.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="        self.pending_copies.append((block, copy))\n        self.evict_blocks([block.block_id])\n",
        killed_by="test_task_2_the_copy_has_no_hash_and_the_source_is_found_as_before",
        breaks=(
            "BlockPool._fork_shared: block keeps its hash, and is found as before",
            "invariant 6: its source keeps the one it has",
        ),
    ),
    Mutant(
        name="takes-the-block-past-the-index",
        story="Takes a block straight from the queue: its old hash still finds it, with the copy in it.",
        replace="        copy = self.get_new_blocks(1)[0]\n",
        by="        copy = self.free_block_queue.popleft()\n        copy.ref_cnt = 1\n",
        killed_by="test_task_3_the_block_for_the_copy_forgets_what_it_held",
        breaks=(
            "BlockPool._fork_shared: the block that get_new_blocks gives",
            "invariant 6: The index changes when a block is given out",
        ),
    ),
    Mutant(
        name="a-kept-block-leaves-the-index",
        story="'Nobody owns it, so nobody should find it': throws cached content away that is about to be free anyway.",
        replace="                self._kept_for_copy.add(block.block_id)\n",
        by="""                self._kept_for_copy.add(block.block_id)
                self.evict_blocks([block.block_id])
""",
        killed_by="test_task_3_a_kept_block_is_found_and_not_evicted",
        breaks="BlockPool.free_blocks: such a block keeps its hash, and can be found",
    ),
    Mutant(
        name="frees-in-the-order-of-a-set",
        story="Walks the set as it comes. It looks sorted as long as all ids are small.",
        replace="for block_id in sorted(self._kept_for_copy)]\n",
        by="for block_id in self._kept_for_copy]\n",
        killed_by="test_task_4_kept_blocks_become_free_lowest_id_first",
        breaks="BlockPool.finish_copies: at the queue's end, lowest block id first",
    ),
    Mutant(
        name="frees-in-the-order-of-the-copies",
        story="Walks the pending copies to find what was kept: right blocks, another order than promised.",
        replace="        kept = [self.blocks[block_id] for block_id in sorted(self._kept_for_copy)]\n",
        by="""        needed = dict.fromkeys(block.block_id for copy in self.pending_copies for block in copy)
        kept = [self.blocks[block_id] for block_id in needed if block_id in self._kept_for_copy]
""",
        killed_by="test_task_4_kept_blocks_become_free_lowest_id_first",
        breaks="BlockPool.finish_copies: at the queue's end, lowest block id first",
    ),
    Mutant(
        name="wants-room-for-a-private-block",
        story="Asks for a free block before it looks whether one is needed: a full pool stops everybody.",
        replace="""        if num_owners == 1:
            return block
""",
        by="""        if self.get_num_free_blocks() == 0:
            raise ValueError("fork_block: no block is free")
        if num_owners == 1:
            return block
""",
        killed_by="test_task_1_a_private_block_needs_no_room",
        breaks="BlockPool.fork_block: even if no block is free",
    ),
    Mutant(
        name="a-cached-block-is-never-private",
        story="Takes the index for a second reader: every cached block is copied, by its only owner too.",
        replace="        if num_owners == 1:\n            return block\n",
        by="        if num_owners == 1 and block.block_hash is None:\n            return block\n",
        killed_by="test_task_1_a_private_block_with_a_hash_is_returned_as_it_is",
        breaks="BlockPool.fork_block: a private block (one owner): the block itself",
    ),
    Mutant(
        name="forgets-what-will-be-written",
        story="'It is about to change': takes a private block out of the index before it is written.",
        replace="        if num_owners == 1:\n            return block\n",
        by="        if num_owners == 1:\n            self._maybe_evict(block)\n            return block\n",
        killed_by="test_task_1_a_private_block_with_a_hash_is_returned_as_it_is",
        breaks=(
            "BlockPool.fork_block: a private block: nothing has changed",
            "invariant 6: The index changes when a block is given out, never by a fork",
        ),
    ),
    Mutant(
        name="takes-the-hash-off-a-private-block",
        story="The same with reset_hash: the index still finds a block that has no hash.",
        replace="        if num_owners == 1:\n            return block\n",
        by="        if num_owners == 1:\n            block.reset_hash()\n            return block\n",
        killed_by="test_task_1_a_private_block_with_a_hash_is_returned_as_it_is",
        breaks="BlockPool.fork_block: a private block: nothing has changed",
    ),
    Mutant(
        name="without-a-cache-nothing-is-shared",
        story="Thinks that blocks are shared by the index only: with caching off all owners write the same block.",
        replace="        if num_owners == 1:\n            return block\n",
        by="        if num_owners == 1 or not self.enable_caching:\n            return block\n",
        killed_by="test_task_2_a_shared_block_is_forked_with_caching_off_too",
        breaks=(
            "BlockPool.fork_block: a shared block: the caller owns the returned block in its place",
            "invariant 1: Only a block with one owner is written",
        ),
    ),
    Mutant(
        name="a-kept-destination-leaves-the-index",
        story="'The copy will overwrite it': forgets what a kept destination was cached as. A kept source stays.",
        replace="                self._kept_for_copy.add(block.block_id)\n",
        by="""                self._kept_for_copy.add(block.block_id)
                if any(block is copy for _, copy in self.pending_copies):
                    self._maybe_evict(block)
""",
        killed_by="test_task_3_a_kept_destination_keeps_its_hash",
        breaks="BlockPool.free_blocks: such a block keeps its hash, and can be found",
    ),
    Mutant(
        name="drops-a-copy-that-nobody-waits-for",
        story="Takes the pair off the list when both sides are without owners; its blocks stay kept for a copy that "
              "is not there.",
        replace="                self._kept_for_copy.add(block.block_id)\n",
        by="""                self._kept_for_copy.add(block.block_id)
                self.pending_copies = [
                    (source, copy) for source, copy in self.pending_copies
                    if not (source.ref_cnt == copy.ref_cnt == 1
                            and {source.block_id, copy.block_id} <= self._kept_for_copy)]
""",
        killed_by="test_task_3_a_copy_that_nobody_waits_for_stays_pending",
        breaks="BlockPool.free_blocks: pending_copies is as before, even if neither side of a copy has an owner left",
    ),
    Mutant(
        name="finishing-forgets-what-was-touched",
        story="Takes a kept block that has an owner again out of the index: 'it is no longer what was copied'.",
        replace="        self.free_blocks(kept)\n",
        by="""        self.free_blocks(kept)
        for block in kept:
            if block.ref_cnt > 0:
                self._maybe_evict(block)
""",
        killed_by="test_task_4_a_kept_block_that_was_touched_stays_with_its_owner",
        breaks="invariant 6: The index changes when a block is given out, never by a fork",
    ),
    Mutant(
        name="frees-before-the-set-is-empty",
        story="Empties the list and frees; the set still says that the one reference is the copy's, so the free is "
              "refused.",
        replace="""        self._kept_for_copy = set()
        self.free_blocks(kept)
""",
        by="""        self.free_blocks(kept)
        self._kept_for_copy = set()
""",
        killed_by="test_task_4_blocks_kept_for_a_copy_become_free",
        breaks="BlockPool.finish_copies: each block that was kept has lost the copy's reference",
    ),
    Mutant(
        name="counts-calls",
        story="Counts every call of fork_block, though most of them find a private block.",
        replace="""        if num_owners == 1:
            return block
        return self._fork_shared(block)
""",
        by="""        if num_owners == 1:
            self.num_forks += 1
            return block
        return self._fork_shared(block)
""",
        killed_by="test_task_1_a_private_block_is_returned_as_it_is",
        breaks="BlockPool.fork_block: a private block: nothing has changed",
    ),
    Mutant(
        name="a-pending-copy-cannot-be-written",
        story="'Not copied yet, so not ready': copies a private block again while its own copy is pending.",
        replace="        if num_owners == 1:\n",
        by="        if num_owners == 1 and all(block is not copy for _, copy in self.pending_copies):\n",
        killed_by="test_task_2_a_copy_is_private_before_it_is_made",
        breaks=(
            "BlockPool.fork_block: a private block: nothing has changed",
            "invariant 3: Copies come before writes",
        ),
    ),
    Mutant(
        name="a-kept-block-is-always-private",
        story="'One of its references is only the copy's': never copies it, however many owners it has again.",
        replace="        if num_owners == 1:\n",
        by="        if num_owners == 1 or block.block_id in self._kept_for_copy:\n",
        killed_by="test_task_3_two_owners_of_a_kept_block_do_not_write_in_place",
        breaks=(
            "BlockPool.fork_block: A block has ref_cnt owners, or one less",
            "invariant 1: Only a block with one owner is written",
        ),
    ),
    Mutant(
        name="gives-the-original-to-the-writer",
        story="Has the copy made and hands out the original: the wrong one of the two blocks is private.",
        replace="        return self._fork_shared(block)\n",
        by="""        self._fork_shared(block)
        return block
""",
        killed_by="test_task_2_forking_a_shared_block_moves_one_reference",
        breaks=(
            "BlockPool.fork_block: a shared block: the caller owns the returned block in its place",
            "invariant 2: one owner has the copy",
        ),
    ),
    Mutant(
        name="padding-may-be-written",
        story="Lets the null block through: it stands in every padded table.",
        replace="""        self._check_mine(block, "fork_block")
""",
        by="""        if block.is_null:
            return block
        self._check_mine(block, "fork_block")
""",
        killed_by="test_task_1_the_null_block_and_strangers_cannot_be_forked",
        breaks="BlockPool.fork_block: refuses: the null block",
    ),
    Mutant(
        name="refuses-after-the-fork",
        story="Raises at the end: the block is taken and the pair is on the list by then.",
        replace="""        if num_owners == 0:
            raise RuntimeError(f"fork_block: block {block.block_id} has no owner, so it must not be written")
        if num_owners == 1:
            return block
        return self._fork_shared(block)
""",
        by="""        if num_owners == 1:
            return block
        copy = self._fork_shared(block)
        if num_owners == 0:
            raise RuntimeError(f"fork_block: block {block.block_id} has no owner, so it must not be written")
        return copy
""",
        killed_by="test_task_1_a_free_block_cannot_be_forked",
        breaks=(
            "BlockPool.fork_block: RuntimeError if block has no owner",
            "invariant 7: A call that raises has changed nothing",
        ),
    ),
    Mutant(
        name="the-copy-has-a-reference-from-the-start",
        story="Counts the pending copy as a second reader of the fresh block: its owner may not write it.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="""        self.pending_copies.append((block, copy))
        copy.ref_cnt += 1
""",
        killed_by="test_task_2_forking_a_shared_block_moves_one_reference",
        breaks="BlockPool._fork_shared: it has one owner",
    ),
    Mutant(
        name="the-newest-pair-first",
        story="Puts the pair at the front of the list. Copies in any order still work; whoever reads the list is "
              "misled.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="        self.pending_copies.insert(0, (block, copy))\n",
        killed_by="test_task_2_the_copy_is_recorded_source_first",
        breaks="BlockPool._fork_shared: (block, fresh block) is the last of pending_copies",
    ),
    Mutant(
        name="writes-in-place-without-room",
        story="'Better than failing': with no block free the shared one is written.",
        replace="        copy = self.get_new_blocks(1)[0]\n",
        by="""        if self.get_num_free_blocks() == 0:
            return block
        copy = self.get_new_blocks(1)[0]
""",
        killed_by="test_task_2_without_room_nothing_changes",
        breaks=(
            "BlockPool.fork_block: ValueError if block is shared and no block is free",
            "BlockPool._fork_shared: ValueError if no block is free",
        ),
    ),
    Mutant(
        name="takes-over-an-abandoned-copy",
        story="Finds a copy of the same block whose owner has left, and saves one. The list has a pair too few, and so "
              "has the count.",
        replace="        copy = self.get_new_blocks(1)[0]\n",
        by="""        for source, copy in self.pending_copies:
            if source is block and copy.ref_cnt == 1 and copy.block_id in self._kept_for_copy:
                self._kept_for_copy.remove(copy.block_id)
                block.ref_cnt -= 1
                return copy
        copy = self.get_new_blocks(1)[0]
""",
        killed_by="test_task_3_a_copy_whose_owner_has_left_is_not_given_to_the_next",
        breaks="BlockPool._fork_shared: the block that get_new_blocks gives",
    ),
    Mutant(
        name="counts-this-steps-copies",
        story="Sets the count to the length of the list, which is emptied every step.",
        replace="""        self.num_forks += 1
        self.pending_copies.append((block, copy))
""",
        by="""        self.pending_copies.append((block, copy))
        self.num_forks = len(self.pending_copies)
""",
        killed_by="test_task_4_the_count_of_forks_is_never_reset",
        breaks="BlockPool._fork_shared: num_forks is one more",
    ),
    Mutant(
        name="walks-the-iterator-twice",
        story="Checks reversed(table) and finds it used up when the blocks are to be freed.",
        replace="        blocks = list(blocks)\n",
        by="",
        killed_by="test_task_3_without_pending_copies_blocks_are_free_at_once",
        breaks="BlockPool.free_blocks: may be an iterator, such as reversed(table), which can be walked once",
    ),
    Mutant(
        name="frees-in-the-order-of-ids",
        story="Sorts the blocks: the head of a prompt is reused before its tail.",
        replace="        for block in blocks:\n            if block.ref_cnt == 1",
        by="        for block in sorted(blocks, key=lambda block: block.block_id):\n            if block.ref_cnt == 1",
        killed_by="test_task_3_without_pending_copies_blocks_are_free_at_once",
        breaks="BlockPool.free_blocks: several are there in the order in which they lost it",
    ),
    Mutant(
        name="drops-each-block-once",
        story="Walks the counter that it checked with: a block that comes twice loses one owner.",
        replace="        for block in blocks:\n            if block.ref_cnt == 1",
        by="        for block in dict.fromkeys(blocks):\n            if block.ref_cnt == 1",
        killed_by="test_task_3_a_block_that_comes_twice_loses_two_owners",
        breaks="BlockPool.free_blocks: each block has lost one owner for each time that it is in blocks",
    ),
    Mutant(
        name="a-kept-block-has-no-reference",
        story="Drops the count and keeps the block out of the queue: it is neither free nor held.",
        replace="                self._kept_for_copy.add(block.block_id)\n",
        by="""                block.ref_cnt -= 1
                self._kept_for_copy.add(block.block_id)
""",
        killed_by="test_task_3_the_source_of_a_pending_copy_is_not_offered_for_reuse",
        breaks=(
            "BlockPool.free_blocks: its ref_cnt stays 1",
            "invariant 4: When no owner is left, that reference is the copy's",
            "invariant 5: A block is in the free queue iff its ref_cnt is 0",
        ),
    ),
    Mutant(
        name="kept-a-second-time",
        story="Asks for the last owner, not the last reference: who touches a kept block can never let go of it.",
        replace="            if block.ref_cnt == 1 and block.block_id in needed:\n",
        by="            is_kept = block.block_id in self._kept_for_copy\n"
           "            if block.ref_cnt - is_kept == 1 and block.block_id in needed:\n",
        killed_by="test_task_3_a_kept_block_can_be_owned_again",
        breaks="BlockPool.free_blocks: and can be found and touched",
    ),
    Mutant(
        name="a-touched-block-can-be-freed-twice",
        story="Refuses a block that is only kept. With one owner more, two frees pass: the second drops the copy's "
              "reference.",
        replace="""            num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
            if num_drops > num_owners:
""",
        by="""            is_kept = block.block_id in self._kept_for_copy
            num_owners = 0 if block.ref_cnt == 1 and is_kept else block.ref_cnt
            if num_drops > num_owners:
""",
        killed_by="test_task_3_a_kept_block_can_be_owned_again",
        breaks=(
            "BlockPool.free_blocks: The copy's reference is not an owner",
            "BlockPool.free_blocks: RuntimeError if a block is in blocks more often than it has owners",
        ),
    ),
    Mutant(
        name="checks-as-it-goes",
        story="Checks each block just before it drops it: those before the bad one are free by then.",
        replace="""        for block, num_drops in Counter(blocks).items():
            self._check_mine(block, "free_blocks")
            num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
            if num_drops > num_owners:
                raise RuntimeError(f"free_blocks: block {block.block_id} is freed {num_drops} times, "
                                   f"but has {num_owners} owners")
        needed = {block.block_id for copy in self.pending_copies for block in copy}
        for block in blocks:
""",
        by="""        needed = {block.block_id for copy in self.pending_copies for block in copy}
        for block in blocks:
            self._check_mine(block, "free_blocks")
            if block.ref_cnt == (block.block_id in self._kept_for_copy):
                raise RuntimeError(f"free_blocks: block {block.block_id} has no owner")
""",
        killed_by="test_task_3_a_double_free_is_noticed_while_copies_are_pending",
        breaks=(
            "BlockPool: Every method does its checking before its first write",
        ),
    ),
    Mutant(
        name="padding-may-be-freed",
        story="Skips the null block, because padded tables hold it.",
        replace="        blocks = list(blocks)\n",
        by="        blocks = [block for block in blocks if not block.is_null]\n",
        killed_by="test_task_3_the_null_block_and_strangers_cannot_be_freed",
        breaks="BlockPool.free_blocks: refuses: the null block",
    ),
    Mutant(
        name="frees-a-strangers-block",
        story="Leaves that check to the base, which sees the stranger when the blocks before it are free.",
        replace="""            self._check_mine(block, "free_blocks")
""",
        by="",
        killed_by="test_task_3_the_null_block_and_strangers_cannot_be_freed",
        breaks=(
            "BlockPool.free_blocks: and blocks of another pool",
            "invariant 7: A call that raises has changed nothing",
        ),
    ),
    Mutant(
        name="once-kept-always-kept",
        story="Leaves the ids in the set: in the next step these blocks have an owner less than they have.",
        replace="""        self._kept_for_copy = set()
        self.free_blocks(kept)
""",
        by="        super().free_blocks(kept)\n",
        killed_by="test_task_4_the_next_step_starts_anew",
        breaks="BlockPool.finish_copies: and _kept_for_copy are empty",
    ),
    Mutant(
        name="queues-what-has-a-count",
        story="Puts what was kept straight into the queue, and leaves its ref_cnt at 1.",
        replace="        self.free_blocks(kept)\n",
        by="        self.free_block_queue.append_n([block for block in kept if block.ref_cnt == 1])\n",
        killed_by="test_task_4_blocks_kept_for_a_copy_become_free",
        breaks=(
            "BlockPool.finish_copies: each block that was kept has lost the copy's reference",
            "invariant 5: A block is in the free queue iff its ref_cnt is 0",
        ),
    ),
    Mutant(
        name="the-copys-reference-stays",
        story="Drops it only where nobody has touched the block since: there it looks shared for ever.",
        replace="        self.free_blocks(kept)\n",
        by="        self.free_blocks([block for block in kept if block.ref_cnt == 1])\n",
        killed_by="test_task_4_a_kept_block_that_was_touched_stays_with_its_owner",
        breaks="BlockPool.finish_copies: each block that was kept has lost the copy's reference",
    ),
    Mutant(
        name="finishing-forgets-what-was-kept",
        story="Takes the kept blocks out of the index when it frees them: free is not forgotten.",
        replace="        self.free_blocks(kept)\n",
        by="""        self.free_blocks(kept)
        self.evict_blocks([block.block_id for block in kept])
""",
        killed_by="test_task_4_a_kept_block_is_still_cached_when_it_is_free",
        breaks=(
            "README: yes, and then no lookup finds it any more",
            "invariant 6: The index changes when a block is given out",
        ),
    ),
    Mutant(
        name="nothing-to-finish-is-an-error",
        story="Refuses a step without copies, and most steps are.",
        replace="        kept = [self",
        by="""        if not self.pending_copies:
            raise RuntimeError("finish_copies: no copy is pending")
        kept = [self""",
        killed_by="test_task_4_finishing_leaves_owned_blocks_with_their_owners",
        breaks="BlockPool.finish_copies: If none is pending, nothing changes",
    ),
]
