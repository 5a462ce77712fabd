"""Common mistakes in copy on write, and the test that catches each of them."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="forks-a-private-block",
        story="Always copies, to be safe: every decoded token copies a block.",
        replace="        if num_owners == 1:\n            return block\n",
        by="",
        killed_by="test_task_1_a_private_block_is_returned_as_it_is",
        breaks="BlockPool.fork_block: if block is private (it has one owner): block itself",
    ),
    Mutant(
        name="a-free-block-counts-as-private",
        story="Takes 'not shared' for 'private': lets the caller write into a free block, which any request may get "
              "next.",
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
        story="Trusts the caller: a block of another pool is counted and copied in this pool.",
        replace="""        self._check_mine(block, "fork_block")\n""",
        by="",
        killed_by="test_task_1_the_null_block_and_strangers_cannot_be_forked",
        breaks="BlockPool.fork_block: or belongs to another pool",
    ),
    Mutant(
        name="copies-the-reference",
        story="Does all the bookkeeping but returns the original: the child writes into its parent's block.",
        replace="        return copy\n",
        by="        return block\n",
        killed_by="test_task_2_both_sides_read_back_their_own_tokens",
        breaks=(
            "BlockPool.fork_block: a fresh block, into which block will be copied",
            "BlockPool._fork_shared: the fresh block that get_new_blocks returns",
            "invariant 1: Only a block with one owner is written, and only by that owner.",
        ),
    ),
    Mutant(
        name="the-original-keeps-its-count",
        story="Keeps the caller's reference to the original, although the caller now owns the copy: the original never "
              "becomes private again.",
        replace="        block.ref_cnt -= 1\n        self.num_forks",
        by="        self.num_forks",
        killed_by="test_task_2_forking_a_shared_block_moves_one_reference",
        breaks=(
            "BlockPool._fork_shared: block has lost one owner",
            "invariant 2: the original loses one owner",
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
        story="Takes a fresh block but never requests the copy that should fill it.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="",
        killed_by="test_task_2_both_sides_read_back_their_own_tokens",
        breaks="BlockPool._fork_shared: (block, fresh block) is the last entry of pending_copies",
    ),
    Mutant(
        name="lets-go-before-there-is-room",
        story="Drops the reference first: if no block is free, the call raises and the owner is lost.",
        replace="        copy = self.get_new_blocks(1)[0]\n        block.ref_cnt -= 1\n",
        by="        block.ref_cnt -= 1\n        copy = self.get_new_blocks(1)[0]\n",
        killed_by="test_task_2_without_room_nothing_changes",
        breaks=(
            "BlockPool: a call that raises an error changes nothing",
            "invariant 7: A call that raises an error changes nothing",
        ),
    ),
    Mutant(
        name="the-source-is-reused-before-the-copy",
        story="Keeps only destinations: the parent ends, and its block becomes the destination of another copy.",
        replace="        needed = {block.block_id for copy in self.pending_copies for block in copy}\n",
        by="        needed = {copy.block_id for _, copy in self.pending_copies}\n",
        killed_by="test_task_4_a_parent_that_ends_before_the_copy_leaves_its_content",
        breaks=(
            "BlockPool.free_blocks: A copy needs both of its blocks, the source and the destination",
            "invariant 3: the order among the copies does not matter",
            "invariant 4: The source and the destination of a pending copy both have a ref_cnt of at least 1.",
        ),
    ),
    Mutant(
        name="the-destination-is-reused-before-the-copy",
        story="Keeps only sources: the child is aborted, and the copy is made into a block that another request owns.",
        replace="        needed = {block.block_id for copy in self.pending_copies for block in copy}\n",
        by="        needed = {source.block_id for source, _ in self.pending_copies}\n",
        killed_by="test_task_4_a_child_that_ends_before_the_copy_does_no_harm",
        breaks=(
            "BlockPool.free_blocks: is not in the queue if a pending copy needs it",
            "invariant 4: The source and the destination of a pending copy both have a ref_cnt of at least 1.",
        ),
    ),
    Mutant(
        name="the-copy-keeps-every-reference",
        story="Never drops a reference to a block with a pending copy: the block looks shared forever.",
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
        story="Checks each block separately for an owner: a block that is in the list twice is dropped twice.",
        replace="            if num_drops > num_owners:\n",
        by="            if num_owners < 1:\n",
        killed_by="test_task_3_a_double_free_is_noticed_while_copies_are_pending",
        breaks="BlockPool.free_blocks: RuntimeError if blocks contains a block more often than the block has owners",
    ),
    Mutant(
        name="kept-blocks-leak",
        story="Empties the lists and frees nothing: kept blocks never become free.",
        replace="        self.free_blocks(kept)\n",
        by="",
        killed_by="test_task_4_blocks_kept_for_a_copy_become_free",
        breaks="BlockPool.finish_copies: kept blocks without an owner are at the end of the queue",
    ),
    Mutant(
        name="the-copies-stay-pending",
        story="Frees the kept blocks while their copies are still on the list: the blocks are kept again.",
        replace="        self.pending_copies = []\n",
        by="",
        killed_by="test_task_4_finishing_leaves_owned_blocks_with_their_owners",
        breaks="BlockPool.finish_copies: pending_copies and _kept_for_copy are empty",
    ),
    Mutant(
        name="finishing-takes-the-blocks-away",
        story="Drops a reference to both blocks of each copy, although their owners still hold them.",
        replace="        kept = [self.blocks[block_id] for block_id in sorted(self._kept_for_copy)]\n",
        by="        kept = [block for copy in self.pending_copies for block in copy]\n",
        killed_by="test_task_4_finishing_leaves_owned_blocks_with_their_owners",
        breaks="BlockPool.finish_copies: blocks that have owners keep all their owners",
    ),
    Mutant(
        name="forces-kept-blocks-into-the-queue",
        story="Sets ref_cnt to 0 and queues the block, although another request has touched it since.",
        replace="        self.free_blocks(kept)\n",
        by="""        for block in kept:
            block.ref_cnt = 0
            self.free_block_queue.append(block)
""",
        killed_by="test_task_4_a_kept_block_that_was_touched_stays_with_its_owner",
        breaks="BlockPool.finish_copies: blocks that have owners keep all their owners",
    ),
    Mutant(
        name="a-kept-block-counts-as-private",
        story="Takes ref_cnt 1 for 'one owner': lets the caller write into a block that only a copy holds.",
        replace="""        num_owners = block.ref_cnt - (block.block_id in self._kept_for_copy)
        if num_owners == 0:
""",
        by="""        num_owners = block.ref_cnt
        if num_owners == 0:
""",
        killed_by="test_task_3_a_block_that_is_only_kept_for_a_copy_cannot_be_forked",
        breaks=(
            "BlockPool.fork_block: or one less if its id is in _kept_for_copy",
            "BlockPool.fork_block: RuntimeError if block has no owner: it is free, or only a copy holds it",
        ),
    ),
    Mutant(
        name="the-copys-reference-is-an-owner",
        story="Rejects a block that only a copy holds, but counts one owner and a copy's reference as two owners: "
              "makes one copy too many.",
        replace="        if num_owners == 1:\n",
        by="        if block.ref_cnt == 1:\n",
        killed_by="test_task_3_the_copys_reference_does_not_make_a_block_shared",
        breaks=(
            "BlockPool.fork_block: one of the references then belongs to a copy, and a copy is not an owner",
            "invariant 1: A reference that a copy holds is not an owner.",
        ),
    ),
    Mutant(
        name="forks-are-not-counted",
        story="Everything works, but the engine reports 0 forks.",
        replace="        self.num_forks += 1\n",
        by="",
        killed_by="test_task_2_every_copy_that_was_asked_for_is_counted",
        breaks="BlockPool._fork_shared: num_forks is one higher",
    ),
    Mutant(
        name="counts-before-there-is-room",
        story="Counts the fork and then finds that no block is free: a call that raised has changed num_forks.",
        replace="        copy = self.get_new_blocks(1)[0]\n        block.ref_cnt -= 1\n        self.num_forks += 1\n",
        by="        self.num_forks += 1\n        copy = self.get_new_blocks(1)[0]\n        block.ref_cnt -= 1\n",
        killed_by="test_task_2_without_room_nothing_changes",
        breaks="BlockPool: a call that raises an error changes nothing",
    ),
    Mutant(
        name="counts-pending-copies",
        story="Resets num_forks in each step, together with the list: it must count all forks since the pool was "
              "created.",
        replace="        self.free_blocks(kept)\n",
        by="        self.free_blocks(kept)\n        self.num_forks = 0\n",
        killed_by="test_task_4_the_count_of_forks_is_never_reset",
        breaks="BlockPool._fork_shared: num_forks is one higher",
    ),
    Mutant(
        name="the-copy-inherits-the-hash",
        story="Indexes the copy as a twin, because it has the same content. Its owner is about to write other tokens "
              "into it.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="""        self.pending_copies.append((block, copy))
        if block.block_hash is not None:
            self.cache_full_blocks([copy], [block.block_hash])
""",
        killed_by="test_task_2_the_copy_has_no_hash_and_the_source_is_found_as_before",
        breaks=(
            "BlockPool._fork_shared: and no hash",
            "invariant 6: the fresh block has no hash",
        ),
    ),
    Mutant(
        name="the-source-is-forgotten",
        story="Removes the source from the index, as if the fork had changed it.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="        self.pending_copies.append((block, copy))\n        self.evict_blocks([block.block_id])\n",
        killed_by="test_task_2_the_copy_has_no_hash_and_the_source_is_found_as_before",
        breaks=(
            "BlockPool._fork_shared: block keeps its hash, and a lookup finds it as before",
            "invariant 6: the source keeps its hash",
        ),
    ),
    Mutant(
        name="takes-the-block-past-the-index",
        story="Takes a block directly from the queue: its old hash still finds it, although it now holds the copy.",
        replace="        copy = self.get_new_blocks(1)[0]\n",
        by="        copy = self.free_block_queue.popleft()\n        copy.ref_cnt = 1\n",
        killed_by="test_task_3_the_block_for_the_copy_forgets_what_it_held",
        breaks=(
            "BlockPool._fork_shared: the fresh block that get_new_blocks returns",
            "invariant 6: The index changes when a block is allocated",
        ),
    ),
    Mutant(
        name="a-kept-block-leaves-the-index",
        story="Removes a kept block from the index because it has no owner: cached content is lost although the block "
              "will soon be free and findable.",
        replace="                self._kept_for_copy.add(block.block_id)\n",
        by="""                self._kept_for_copy.add(block.block_id)
                self.evict_blocks([block.block_id])
""",
        killed_by="test_task_3_a_kept_block_is_found_and_not_evicted",
        breaks="BlockPool.free_blocks: a block that is kept for a copy keeps its hash, and it can be found",
    ),
    Mutant(
        name="frees-in-the-order-of-a-set",
        story="Iterates over the set directly. The order looks sorted as long as all ids are small.",
        replace="for block_id in sorted(self._kept_for_copy)]\n",
        by="for block_id in self._kept_for_copy]\n",
        killed_by="test_task_4_kept_blocks_become_free_lowest_id_first",
        breaks="BlockPool.finish_copies: at the end of the queue, lowest block id first",
    ),
    Mutant(
        name="frees-in-the-order-of-the-copies",
        story="Looks for kept blocks in the order of the pending copies: the right blocks, but not in the promised "
              "order.",
        replace="        kept = [self.blocks[block_id] for block_id in sorted(self._kept_for_copy)]\n",
        by="""        needed = dict.fromkeys(block.block_id for copy in self.pending_copies for block in copy)
        kept = [self.blocks[block_id] for block_id in needed if block_id in self._kept_for_copy]
""",
        killed_by="test_task_4_kept_blocks_become_free_lowest_id_first",
        breaks="BlockPool.finish_copies: at the end of the queue, lowest block id first",
    ),
    Mutant(
        name="wants-room-for-a-private-block",
        story="Requires a free block before checking whether one is needed: a full pool stops every request.",
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
        story="Counts the index as a second reader: every cached block is copied, even for its only owner.",
        replace="        if num_owners == 1:\n            return block\n",
        by="        if num_owners == 1 and block.block_hash is None:\n            return block\n",
        killed_by="test_task_1_a_private_block_with_a_hash_is_returned_as_it_is",
        breaks="BlockPool.fork_block: if block is private (it has one owner): block itself",
    ),
    Mutant(
        name="forgets-what-will-be-written",
        story="Removes a private block from the index before it is written, because it is about to change.",
        replace="        if num_owners == 1:\n            return block\n",
        by="        if num_owners == 1:\n            self._maybe_evict(block)\n            return block\n",
        killed_by="test_task_1_a_private_block_with_a_hash_is_returned_as_it_is",
        breaks=(
            "BlockPool.fork_block: if block is private, nothing has changed",
            "invariant 6: The index changes when a block is allocated, never because of a fork",
        ),
    ),
    Mutant(
        name="takes-the-hash-off-a-private-block",
        story="Resets the hash of a private block: the index still finds a block that has no hash.",
        replace="        if num_owners == 1:\n            return block\n",
        by="        if num_owners == 1:\n            block.reset_hash()\n            return block\n",
        killed_by="test_task_1_a_private_block_with_a_hash_is_returned_as_it_is",
        breaks="BlockPool.fork_block: if block is private, nothing has changed",
    ),
    Mutant(
        name="without-a-cache-nothing-is-shared",
        story="Assumes that blocks are shared only through the index: with caching off, all owners write into the same "
              "block.",
        replace="        if num_owners == 1:\n            return block\n",
        by="        if num_owners == 1 or not self.enable_caching:\n            return block\n",
        killed_by="test_task_2_a_shared_block_is_forked_with_caching_off_too",
        breaks=(
            "BlockPool.fork_block: if block is shared, the caller owns the returned block instead of block",
            "invariant 1: Only a block with one owner is written",
        ),
    ),
    Mutant(
        name="a-kept-destination-leaves-the-index",
        story="Removes a kept destination from the index because the copy will overwrite it. A kept source stays "
              "indexed.",
        replace="                self._kept_for_copy.add(block.block_id)\n",
        by="""                self._kept_for_copy.add(block.block_id)
                if any(block is copy for _, copy in self.pending_copies):
                    self._maybe_evict(block)
""",
        killed_by="test_task_3_a_kept_destination_keeps_its_hash",
        breaks="BlockPool.free_blocks: a block that is kept for a copy keeps its hash, and it can be found",
    ),
    Mutant(
        name="drops-a-copy-that-nobody-waits-for",
        story="Removes a pair from the list when both of its blocks have no owner: the blocks stay kept for a copy "
              "that no longer exists.",
        replace="                self._kept_for_copy.add(block.block_id)\n",
        by="""                self._kept_for_copy.add(block.block_id)
                self.pending_copies = [
                    (source, copy) for source, copy in self.pending_copies
                    if not (source.ref_cnt == copy.ref_cnt == 1
                            and {source.block_id, copy.block_id} <= self._kept_for_copy)]
""",
        killed_by="test_task_3_a_copy_without_a_waiting_owner_stays_pending",
        breaks="BlockPool.free_blocks: pending_copies is unchanged, even if neither block of a copy has an owner left",
    ),
    Mutant(
        name="finishing-forgets-what-was-touched",
        story="Removes a kept block from the index if it has an owner again, as if the owner had changed it.",
        replace="        self.free_blocks(kept)\n",
        by="""        self.free_blocks(kept)
        for block in kept:
            if block.ref_cnt > 0:
                self._maybe_evict(block)
""",
        killed_by="test_task_4_a_kept_block_that_was_touched_stays_with_its_owner",
        breaks="invariant 6: The index changes when a block is allocated, never because of a fork",
    ),
    Mutant(
        name="frees-before-the-set-is-empty",
        story="Empties the list and frees the blocks, but the set still says that a copy holds their only reference: "
              "the free is rejected.",
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
        story="Counts every call of fork_block, although most calls return a private block.",
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
        breaks="BlockPool.fork_block: if block is private, nothing has changed",
    ),
    Mutant(
        name="a-pending-copy-cannot-be-written",
        story="Treats a block as not ready while its copy is pending: copies a private block a second time.",
        replace="        if num_owners == 1:\n",
        by="        if num_owners == 1 and all(block is not copy for _, copy in self.pending_copies):\n",
        killed_by="test_task_2_a_copy_is_private_before_it_is_made",
        breaks=(
            "BlockPool.fork_block: if block is private, nothing has changed",
            "invariant 3: All copies are made before anything is written",
        ),
    ),
    Mutant(
        name="a-kept-block-is-always-private",
        story="Never copies a kept block, because a copy holds one of its references: ignores how many owners it has "
              "again.",
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
        story="Requests the copy but returns the original: the caller gets the wrong one of the two blocks.",
        replace="        return self._fork_shared(block)\n",
        by="""        self._fork_shared(block)
        return block
""",
        killed_by="test_task_2_forking_a_shared_block_moves_one_reference",
        breaks=(
            "BlockPool.fork_block: if block is shared, the caller owns the returned block instead of block",
            "invariant 2: the fresh block gets one",
        ),
    ),
    Mutant(
        name="padding-may-be-written",
        story="Accepts the null block, because every padded table contains it.",
        replace="""        self._check_mine(block, "fork_block")
""",
        by="""        if block.is_null:
            return block
        self._check_mine(block, "fork_block")
""",
        killed_by="test_task_1_the_null_block_and_strangers_cannot_be_forked",
        breaks="BlockPool.fork_block: RuntimeError if block is the null block",
    ),
    Mutant(
        name="refuses-after-the-fork",
        story="Raises at the end: by then the fresh block is taken and the pair is on the list.",
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
            "invariant 7: A call that raises an error changes nothing",
        ),
    ),
    Mutant(
        name="the-copy-has-a-reference-from-the-start",
        story="Counts the pending copy as a second reader of the fresh block: its owner may not write into it.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="""        self.pending_copies.append((block, copy))
        copy.ref_cnt += 1
""",
        killed_by="test_task_2_forking_a_shared_block_moves_one_reference",
        breaks="BlockPool._fork_shared: it has one owner",
    ),
    Mutant(
        name="the-newest-pair-first",
        story="Inserts the pair at the front of the list. The copies still work in any order, but the list is not in "
              "the promised order.",
        replace="        self.pending_copies.append((block, copy))\n",
        by="        self.pending_copies.insert(0, (block, copy))\n",
        killed_by="test_task_2_the_copy_is_recorded_source_first",
        breaks="BlockPool._fork_shared: (block, fresh block) is the last entry of pending_copies",
    ),
    Mutant(
        name="writes-in-place-without-room",
        story="Returns the shared block if no block is free, because that seems better than failing.",
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
        story="Finds a copy of the same block whose owner has left, and reuses it. The list has one pair too few, and "
              "num_forks is one too low.",
        replace="        copy = self.get_new_blocks(1)[0]\n",
        by="""        for source, copy in self.pending_copies:
            if source is block and copy.ref_cnt == 1 and copy.block_id in self._kept_for_copy:
                self._kept_for_copy.remove(copy.block_id)
                block.ref_cnt -= 1
                return copy
        copy = self.get_new_blocks(1)[0]
""",
        killed_by="test_task_3_a_copy_whose_owner_has_left_is_not_given_to_the_next",
        breaks="BlockPool._fork_shared: the fresh block that get_new_blocks returns",
    ),
    Mutant(
        name="counts-this-steps-copies",
        story="Sets num_forks to the length of the list, which is emptied every step.",
        replace="""        self.num_forks += 1
        self.pending_copies.append((block, copy))
""",
        by="""        self.pending_copies.append((block, copy))
        self.num_forks = len(self.pending_copies)
""",
        killed_by="test_task_4_the_count_of_forks_is_never_reset",
        breaks="BlockPool._fork_shared: num_forks is one higher",
    ),
    Mutant(
        name="walks-the-iterator-twice",
        story="Checks reversed(table), which is then exhausted when the blocks should be freed.",
        replace="        blocks = list(blocks)\n",
        by="",
        killed_by="test_task_3_without_pending_copies_blocks_are_free_at_once",
        breaks="BlockPool.free_blocks: such as reversed(table), which can be iterated over only once",
    ),
    Mutant(
        name="frees-in-the-order-of-ids",
        story="Sorts the blocks: the head of a prompt is reused before its tail.",
        replace="        for block in blocks:\n            if block.ref_cnt == 1",
        by="        for block in sorted(blocks, key=lambda block: block.block_id):\n            if block.ref_cnt == 1",
        killed_by="test_task_3_without_pending_copies_blocks_are_free_at_once",
        breaks="BlockPool.free_blocks: several such blocks are there in the order in which they lost their last owner",
    ),
    Mutant(
        name="drops-each-block-once",
        story="Iterates over the keys of the counter: a block that is in the list twice loses only one owner.",
        replace="        for block in blocks:\n            if block.ref_cnt == 1",
        by="        for block in dict.fromkeys(blocks):\n            if block.ref_cnt == 1",
        killed_by="test_task_3_a_block_that_comes_twice_loses_two_owners",
        breaks="BlockPool.free_blocks: each block has lost one owner for each time that blocks contains it",
    ),
    Mutant(
        name="a-kept-block-has-no-reference",
        story="Decrements ref_cnt and keeps the block out of the queue: it is neither free nor held.",
        replace="                self._kept_for_copy.add(block.block_id)\n",
        by="""                block.ref_cnt -= 1
                self._kept_for_copy.add(block.block_id)
""",
        killed_by="test_task_3_the_source_of_a_pending_copy_is_not_offered_for_reuse",
        breaks=(
            "BlockPool.free_blocks: its ref_cnt stays 1",
            "invariant 4: When a block has no owner left, the copy holds this last reference",
            "invariant 5: A block is in the free queue if and only if its ref_cnt is 0",
        ),
    ),
    Mutant(
        name="kept-a-second-time",
        story="Checks for the last owner instead of the last reference: an owner that touches a kept block can never "
              "free it.",
        replace="            if block.ref_cnt == 1 and block.block_id in needed:\n",
        by="            is_kept = block.block_id in self._kept_for_copy\n"
           "            if block.ref_cnt - is_kept == 1 and block.block_id in needed:\n",
        killed_by="test_task_3_a_kept_block_can_be_owned_again",
        breaks="BlockPool.free_blocks: and it can be found and touched",
    ),
    Mutant(
        name="a-touched-block-can-be-freed-twice",
        story="Rejects a block that only a copy holds. But if the block has an owner again, two frees are accepted, "
              "and the second one drops the copy's reference.",
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
            "BlockPool.free_blocks: RuntimeError if blocks contains a block more often than the block has owners",
        ),
    ),
    Mutant(
        name="checks-as-it-goes",
        story="Checks each block just before dropping it: the blocks before the invalid one are already free.",
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
            "BlockPool: Every method does all its checks before its first change",
        ),
    ),
    Mutant(
        name="padding-may-be-freed",
        story="Skips the null block, because padded tables contain it.",
        replace="        blocks = list(blocks)\n",
        by="        blocks = [block for block in blocks if not block.is_null]\n",
        killed_by="test_task_3_the_null_block_and_strangers_cannot_be_freed",
        breaks="BlockPool.free_blocks: RuntimeError if blocks contains the null block",
    ),
    Mutant(
        name="frees-a-strangers-block",
        story="Leaves this check to the base, which reaches the foreign block after the earlier blocks are already "
              "free.",
        replace="""            self._check_mine(block, "free_blocks")
""",
        by="",
        killed_by="test_task_3_the_null_block_and_strangers_cannot_be_freed",
        breaks=(
            "BlockPool.free_blocks: or a block of another pool",
            "invariant 7: A call that raises an error changes nothing",
        ),
    ),
    Mutant(
        name="once-kept-always-kept",
        story="Leaves the ids in the set: in the next step, one owner of each of these blocks is not counted.",
        replace="""        self._kept_for_copy = set()
        self.free_blocks(kept)
""",
        by="        super().free_blocks(kept)\n",
        killed_by="test_task_4_the_next_step_starts_without_pending_copies",
        breaks="BlockPool.finish_copies: and _kept_for_copy are empty",
    ),
    Mutant(
        name="queues-what-has-a-count",
        story="Puts kept blocks directly into the queue and leaves their ref_cnt at 1.",
        replace="        self.free_blocks(kept)\n",
        by="        self.free_block_queue.append_n([block for block in kept if block.ref_cnt == 1])\n",
        killed_by="test_task_4_blocks_kept_for_a_copy_become_free",
        breaks=(
            "BlockPool.finish_copies: each block that was kept has lost the copy's reference",
            "invariant 5: A block is in the free queue if and only if its ref_cnt is 0",
        ),
    ),
    Mutant(
        name="the-copys-reference-stays",
        story="Drops the copy's reference only if no request has touched the block since: a touched block looks shared "
              "forever.",
        replace="        self.free_blocks(kept)\n",
        by="        self.free_blocks([block for block in kept if block.ref_cnt == 1])\n",
        killed_by="test_task_4_a_kept_block_that_was_touched_stays_with_its_owner",
        breaks="BlockPool.finish_copies: each block that was kept has lost the copy's reference",
    ),
    Mutant(
        name="finishing-forgets-what-was-kept",
        story="Removes the kept blocks from the index when it frees them: a freed block must stay findable.",
        replace="        self.free_blocks(kept)\n",
        by="""        self.free_blocks(kept)
        self.evict_blocks([block.block_id for block in kept])
""",
        killed_by="test_task_4_a_kept_block_is_still_cached_when_it_is_free",
        breaks=(
            "README: yes, and after that no lookup finds it",
            "invariant 6: The index changes when a block is allocated",
        ),
    ),
    Mutant(
        name="nothing-to-finish-is-an-error",
        story="Raises in a step without copies, although most steps have none.",
        replace="        kept = [self",
        by="""        if not self.pending_copies:
            raise RuntimeError("finish_copies: no copy is pending")
        kept = [self""",
        killed_by="test_task_4_finishing_leaves_owned_blocks_with_their_owners",
        breaks="BlockPool.finish_copies: If no copy is pending, nothing changes",
    ),
]
