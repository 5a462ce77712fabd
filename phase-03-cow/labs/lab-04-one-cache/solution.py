"""One cache: hits, forks and half-filled blocks in one manager.

    [1 2 3 4]  [5 6 7 8]  [9 10 _ _]         a finished request left 10 tokens in blocks 1, 2, 3

    1 … 10  50        adopts 1, 2, 3 with 10 tokens; 50 is written into block 3, in place: no key names that slot
    1 … 6   70 71     adopts 1, 2 with 6 tokens; the key of block 2 names 7 8, so block 2 is copied before the write
    1 … 10            adopts 1, 2, 3 with 9 tokens; token 10 is computed again, into the slot that holds it

The base class, from lab 3.2, has tables, forks and hits of whole blocks. A prefix tree (lab 3.3) finds hits that end
*inside* a block. A request that adopts such a block shares it, as after a fork. Before the request writes into the
block, the manager forks it. The index is one more reader: a token that a key names must not be overwritten with another
token, even if no table contains the block.

In tests and grading, ``from course.base import lab_3_2`` imports the solution of that lab. In ``course run`` it imports
your own file, if it passes lab 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course.base import lab_3_2 as base
from mini_vllm.block_pool import BlockPool, KVCacheBlock
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE, check_arguments, check_hits
from mini_vllm.prefix_tree import PrefixIndex
from mini_vllm.request import Request


class KVCacheManager(base.KVCacheManager):
    """The manager of labs 2.2 and 3.2, with a prefix tree: hits end at any token, and half-filled tails are kept.

    The base class provides ``fork``, ``get_block_ids``, ``stats``, ``check_integrity``, ``_tables`` and
    ``_num_blocks_for``. Without a tree (no ``tree_class``, or caching is off) everything works as in the base. The
    lines for that case are given, so the code that you write can assume a tree. ``finish_step`` has no such lines:
    without a tree, there are no notes to clear.
    """

    def __init__(self, num_blocks: int, block_size: int = DEFAULT_BLOCK_SIZE, enable_caching: bool = True, *,
                 pool_class: type[BlockPool] = BlockPool,
                 tree_class: Callable[[BlockPool, int], PrefixIndex] | None = None) -> None:
        """Make an empty cache. ``tree_class``, if given, is ``mini_vllm.prefix_tree.PrefixTree``, or your own tree."""
        super().__init__(num_blocks, block_size, enable_caching, pool_class=pool_class)
        #: The tree, with ``match``, ``insert``, ``donate`` and ``clear`` as in lab 3.3, or None.
        self.prefix_tree = tree_class(self.block_pool, block_size) if tree_class and enable_caching else None
        #: Block id → number of its tokens that are written already, for each block that the planned step will write.
        self._num_written: dict[int, int] = {}

    # ---- Tasks 1 and 4: look up

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """Find the longest cached prefix of ``request``: its blocks, and the number of tokens in them that count.

        The tree's ``match`` finds it. At least one token remains to be computed, because its logits give the next
        token. Task 4: a step makes its copies before it writes, and a partial block may have to be copied. Whole blocks
        are shared without a copy; the step writes them before any request reads them.

        After:
        - nothing has changed: no block is touched, the free queue keeps its order, and ``request`` is unchanged
        Returns:
        - the whole blocks of the match, followed by its partial block, if there is one
        - the number of tokens in them that match; look up all tokens of the request, prompt and
          answer, except the last, under its ``extra_keys``
        - Task 4: if the partial block is in ``_num_written``, at most that number of its tokens counts; if the number
          is 0, the block is left out
        - Task 4: whole blocks always count

        Example::

            >>> from mini_vllm.prefix_tree import PrefixTree
            >>> manager = KVCacheManager(num_blocks=9, block_size=4, tree_class=PrefixTree)
            >>> manager.prefix_tree.donate([1, 2, 3, 4, 5, 6, 7, 8], manager.block_pool.get_new_blocks(2))
            >>> hits, num_tokens = manager.get_computed_blocks(Request("r", [1, 2, 3, 4, 5, 6, 70, 71]))
            >>> [block.block_id for block in hits], num_tokens
            ([1, 2], 6)
        """
        if self.prefix_tree is None:
            return super().get_computed_blocks(request)
        # TASK 1: KVCacheManager.get_computed_blocks
        match = self.prefix_tree.match(request.all_token_ids[:request.num_tokens - 1], request.extra_keys)
        num_whole, half = len(match.blocks) * self.block_size, match.partial_block
        if half is None:
            return match.blocks, num_whole
        num_half = min(match.num_partial_tokens, self._num_written.get(half.block_id, match.num_partial_tokens))
        if num_half == 0:
            return match.blocks, num_whole
        return [*match.blocks, half], num_whole + num_half
        # END TASK

    # ---- Tasks 2, 3 and 4: allocate

    def _must_fork(self, request: Request, index: int, block: KVCacheBlock, is_hit: bool, first_slot: int) -> bool:
        """Check whether ``block`` must be copied before ``request`` writes its tokens into it, from ``first_slot`` on.

        ``block`` is at ``index`` of the table: its tokens begin at position ``index * block_size``. The request writes
        it from ``first_slot`` on, or from the start of the block, whichever is later. If ``is_hit`` is true, the block
        has not been touched for ``request`` yet: its ``ref_cnt`` counts the other owners only. Its key
        (``block_hash.token_ids``) names its tokens from the start of the block.

        Returns:
        - True if the block has another owner, no matter what is written; a pending copy of the block may count as an
          owner
        - False if it has no other owner and ``block_hash`` is None: no lookup finds the block
        - True if the key names a token at a written position, and the request has another token at that position
        - True if the key names a token at a written position, and the request has no token there yet
        - False otherwise: the new tokens come after all tokens that the key names, or equal them

        Example, if block 2 is found as 5 6 7 8 and has no owner::

            1 … 6 70    adopts 6 tokens; 70 is written where the key names 7                         True
            1 … 8       adopts 7 tokens; 8 is written where the key names 8                          False
            1 … 7       adopts 6 tokens; 7 equals the key's token, but after it the key names 8      True
        """
        # TASK 2: KVCacheManager._must_fork
        if block.ref_cnt + is_hit > 1:
            return True
        if block.block_hash is None:
            return False
        start = index * self.block_size
        offset = max(first_slot - start, 0)
        named = block.block_hash.token_ids[offset:]
        return named != tuple(request.all_token_ids[start + offset:start + offset + len(named)])
        # END TASK

    def _fork_block(self, table: list[KVCacheBlock], index: int) -> KVCacheBlock:
        """Replace the block at ``index`` with a copy, and return the copy. Given.

        Before: ``table`` owns the block. The block is copied even if no other table owns it.
        """
        block = table[index]
        self.block_pool.touch([block])
        table[index] = self.block_pool.fork_block(block)
        self.block_pool.free_blocks([block])
        return table[index]

    def _count_query(self, request: Request, num_hit_tokens: int) -> None:
        """Count ``request``, which gets its first slots, as a query with ``num_hit_tokens`` hit tokens. Given."""
        self._num_queries += 1
        self._num_query_tokens += request.num_tokens
        self._num_hit_tokens += num_hit_tokens

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``; return the blocks newly taken from the pool.

            [ computed before | hits: num_new_computed_tokens | num_new_tokens ]
              in the table      adopted here                    slots made here

        ``new_computed_blocks`` are the hits, as ``get_computed_blocks`` returned them. ``num_new_computed_tokens`` is
        the number of their tokens that count; by default all count. The last of these tokens is in the last hit. The
        checks are given: they verify that the arguments are consistent and that the hits still hold the tokens.

        After:
        - the table contains the blocks held before, the hits, and exactly as many fresh blocks as the slots need
        - each hit has one more owner
        - each block that this step writes and that must be copied (``_must_fork``) was replaced by a copy
          (``_fork_block``)
        - a request that held no block before is counted (``_count_query``), even if it found nothing
        - ``request`` is unchanged: the scheduler advances ``num_computed_tokens``
        - Task 3: every block that is full of tokens after this step is findable (``_index_full_blocks``); slots whose
          tokens do not exist yet do not count
        - Task 4: the positions that this step will write are noted (``_note_unwritten``)
        Returns:
        - the copies in the order of the table, then the fresh blocks
        - None if copies and fresh blocks together need more blocks than are free; a hit in the free queue does not
          count as free, because this call takes it out of the queue; a hit in use needs no free block
        - if the result is None, nothing has changed: tables, owners, keys, statistics and the order of the free queue
          are the same

        Example::

            >>> from mini_vllm.prefix_tree import PrefixTree
            >>> manager = KVCacheManager(num_blocks=9, block_size=4, tree_class=PrefixTree)
            >>> manager.prefix_tree.donate([1, 2, 3, 4, 5, 6, 7, 8], manager.block_pool.get_new_blocks(2))
            >>> request = Request("r", [1, 2, 3, 4, 5, 6, 70, 71, 72])
            >>> taken = manager.allocate_slots(request, 3, *manager.get_computed_blocks(request))
            >>> [block.block_id for block in taken], manager.get_block_ids("r")  # 3 is a copy of 2, and 4 is fresh
            ([3, 4], [1, 3, 4])
        """
        if self.prefix_tree is None:
            return super().allocate_slots(request, num_new_tokens, new_computed_blocks, num_new_computed_tokens)
        hits = list(new_computed_blocks or ())
        num_hit_tokens = len(hits) * self.block_size if num_new_computed_tokens is None else num_new_computed_tokens
        held = self._tables.get(request.request_id, [])
        check_arguments(request, num_new_tokens, held, hits, num_hit_tokens, self.block_size)
        check_hits(request, hits, num_hit_tokens, self.block_size)
        # TASK 2: KVCacheManager.allocate_slots
        table = held + hits
        first_slot = request.num_computed_tokens + num_hit_tokens
        num_slots = first_slot + num_new_tokens
        num_blocks = self._num_blocks_for(num_slots)
        written = range(first_slot // self.block_size, min(num_blocks, len(table)))
        forked = [i for i in written if self._must_fork(request, i, table[i], table[i] in hits, first_slot)]
        num_fresh = max(num_blocks - len(table), 0)
        num_free_hits = sum(block.ref_cnt == 0 for block in hits)
        if len(forked) + num_fresh > self.block_pool.get_num_free_blocks() - num_free_hits:
            return None

        self.block_pool.touch(hits)
        taken = [self._fork_block(table, index) for index in forked]
        fresh = self.block_pool.get_new_blocks(num_fresh)
        taken += fresh
        table += fresh
        if not held:
            self._count_query(request, num_hit_tokens)
        self._tables[request.request_id] = table
        self._index_full_blocks(request, min(num_slots, request.num_tokens))
        self._note_unwritten(table, first_slot, num_slots, taken)
        return taken
        # END TASK

    def _index_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Make every block of ``request`` that its first ``num_tokens`` tokens fill findable, through the tree.

        The keys contain the request's ``extra_keys``. An adopted tail that is full now gets a longer key. The
        half-filled block at the end is left out: it is still growing, and ``free`` indexes it when the request ends.
        """
        if self.prefix_tree is None:
            super()._index_full_blocks(request, num_tokens)
            return
        # TASK 3: KVCacheManager._index_full_blocks
        table = self._tables[request.request_id]
        self.prefix_tree.insert(request.all_token_ids, table, num_tokens, request.extra_keys)
        # END TASK

    def _note_unwritten(self, table: list[KVCacheBlock], first_slot: int, num_slots: int,
                        taken: list[KVCacheBlock]) -> None:
        """Note in ``_num_written`` that the step being planned writes positions ``first_slot`` to ``num_slots - 1``.

        ``table`` is the table as stored, including fresh blocks; ``taken`` are the copies and the fresh blocks.

        After:
        - every block of ``table`` that contains one of these positions is noted, and no other block
        - the note of a block is the number of its positions before ``first_slot``, which are already written
        - a block in ``taken`` loses its older note, which is from a request that was freed in this step
        - any other block keeps its first note of the step, which is the smallest

        Example: the block size is 4, the table is [1, 2, 3], and there are no notes. For positions 6 to 9, the notes
        are {2: 2, 3: 0}.
        """
        # TASK 4: KVCacheManager._note_unwritten
        for block in taken:
            self._num_written.pop(block.block_id, None)
        for index in range(first_slot // self.block_size, self._num_blocks_for(num_slots)):
            self._num_written.setdefault(table[index].block_id, max(first_slot - index * self.block_size, 0))
        # END TASK

    def finish_step(self) -> None:
        """Record that the planned step has run: its copies are made and its K/V is written.

        After: the copies are reported to the pool, as in the base; there are no notes.
        """
        # TASK 4: KVCacheManager.finish_step
        super().finish_step()
        self._num_written.clear()
        # END TASK

    # ---- Task 5: free

    def free(self, request: Request) -> None:
        """Free the blocks of ``request``, and keep its computed tokens findable, including the half-filled tail.

        A request may be aborted after its step was planned and before the step runs. Then the tokens that the step
        would have written into the table (``_num_written``) may never be written. But full blocks entered the index
        when they were planned.

        After:
        - the request holds no block; if it held none before, nothing changes
        - the last block was freed first
        - the first ``num_computed_tokens`` tokens are found, under the request's ``extra_keys``, but only those before
          the first position in the table that the planned step would write
        - a block of the table that is in ``_num_written`` is found with these tokens at most, even if another request
          owns it
        - every other block is found as before: written tokens stay findable
        - the notes stay until ``finish_step``, because other requests may own these blocks

        Example: the block size is 4. A has computed 6 tokens, and a planned step computes 8 more, so
        ``num_computed_tokens`` is already 14. After ``free(A)``, 6 tokens are found: all of block 1, half of block 2.
        """
        if self.prefix_tree is None:
            super().free(request)
            return
        # TASK 5: KVCacheManager.free
        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
        num_trusted = request.num_computed_tokens
        unwritten = [index for index, block in enumerate(table) if block.block_id in self._num_written]
        if unwritten:
            first = unwritten[0]
            num_trusted = min(num_trusted, first * self.block_size + self._num_written[table[first].block_id])
            self.block_pool.evict_blocks(table[index].block_id for index in unwritten)
        self.prefix_tree.donate(request.all_token_ids, table, num_trusted, request.extra_keys)
        # END TASK

    # ---- given

    def reset_prefix_cache(self) -> None:
        """Forget all cached content, in the pool and in the tree, and reset the statistics. Given.

        Raises RuntimeError while any block is in use (the pool raises it); nothing changes then.
        """
        super().reset_prefix_cache()
        if self.prefix_tree is not None:
            self.prefix_tree.clear()
