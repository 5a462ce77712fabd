"""One cache: hits, forks and half-filled blocks in one manager.

    [1 2 3 4]  [5 6 7 8]  [9 10 _ _]         what a finished request left: 10 tokens in blocks 1, 2, 3

    1 … 10  50        adopts 1, 2, 3 with 10 tokens; 50 goes into block 3, in place: no key names that slot
    1 … 6   70 71     adopts 1, 2 with 6 tokens; the key of block 2 names 7 8, so it is copied before 70 71 go in
    1 … 10            adopts 1, 2, 3 with 9 tokens; token 10 is computed again, into the slot that holds it

The base, lab 3.2, has tables, forks and hits of whole blocks. A prefix tree (lab 3.3) finds hits that end *inside* a
block. To adopt such a block is to share it, as a fork does; before it is written, it is forked. The index is one more
reader: what a key names may not be overwritten with other tokens, even if no table names the block.

``from course.base import lab_3_2`` is that lab's solution in tests and grading. In ``course run`` it is your own file,
if lab 3.2 passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course.base import lab_3_2 as base
from mini_vllm.block_pool import BlockPool, KVCacheBlock
from mini_vllm.caching.block_index import PrefixIndex
from mini_vllm.caching.slot_checks import check_arguments, check_hits
from mini_vllm.kv_cache import DEFAULT_BLOCK_SIZE
from mini_vllm.request import Request


class KVCacheManager(base.KVCacheManager):
    """The manager of labs 2.2 and 3.2, with a prefix tree: hits end anywhere, and half-filled tails are kept.

    From the base come ``fork``, ``get_block_ids``, ``stats`` and ``check_integrity``, ``_tables`` and
    ``_num_blocks_for``. Without a tree (no ``tree_class``, or caching is off) all is as in the base. The lines for that
    case are given, and what you write may count on a tree. ``finish_step`` needs none: without a tree nothing is noted.
    """

    def __init__(self, num_blocks: int, block_size: int = DEFAULT_BLOCK_SIZE, enable_caching: bool = True, *,
                 pool_class: type[BlockPool] = BlockPool,
                 tree_class: Callable[[BlockPool, int], PrefixIndex] | None = None) -> None:
        """``tree_class`` is made with the pool and the block size: ``mini_vllm.prefix_tree.PrefixTree``, or yours."""
        super().__init__(num_blocks, block_size, enable_caching, pool_class=pool_class)
        #: Has ``match``, ``insert``, ``donate`` and ``clear``, as in lab 3.3. None without a tree.
        self.prefix_tree = tree_class(self.block_pool, block_size) if tree_class and enable_caching else None
        #: Block id → how many tokens of the block are written, for blocks that the step being planned has yet to write.
        self._num_written: dict[int, int] = {}

    # ---- Tasks 1 and 4: found

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """Find the longest cached prefix of ``request``: its blocks, and how many tokens of them count.

        The tree's ``match`` finds it. At least one token is left to compute, for the logits of the next one.
        Task 4: a step makes its copies before it writes, and a partial block may have to be copied. Whole blocks are
        shared as they are; the step writes them before any request reads them.

        After:
        - nothing has changed: no block is touched, the free queue keeps its order, and ``request`` is as it was
        Returns:
        - the whole blocks of the match, and after them its partial block, if there is one
        - how many tokens of them count: of all its tokens but the last, prompt and answer, under its ``extra_keys``
        - Task 4: of a partial block that is in ``_num_written`` at most that many tokens count; if that is none, the
          block is left out
        - Task 4: whole blocks count in any case

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

    # ---- Tasks 2, 3 and 4: grown

    def _must_fork(self, request: Request, index: int, block: KVCacheBlock, is_hit: bool, first_slot: int) -> bool:
        """Whether ``block`` must be copied before tokens of ``request`` are written into it, from ``first_slot`` on.

        ``block`` stands at ``index`` of the table: its tokens begin at position ``index * block_size``. It is written
        from ``first_slot`` on, or from its own beginning on, whichever comes later. If it ``is_hit``, it has not been
        touched for ``request`` yet: its ``ref_cnt`` counts the other owners only. Its key names what it holds, from its
        beginning on (``block_hash.token_ids``).

        Returns:
        - True if it has another owner, whatever is written; a pending copy that keeps the block may count as one
        - False if it has none, and ``block_hash`` is None: nothing finds the block
        - True if a token that the key names where the block is written is not the request's token at that position
        - True if the key names a token there, and the request has none at that position yet
        - False otherwise: the new tokens come after all that the key names, or are the same again

        Example, if block 2 is found as 5 6 7 8 and has no owner::

            1 … 6 70    adopts 6 tokens; 70 goes where the key names 7                  True
            1 … 8       adopts 7 tokens; 8 goes where the key names 8                   False
            1 … 7       adopts 6 tokens; 7 is the same, but then the key names an 8     True
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
        """Put a copy of the block at ``index`` into its place, and return the copy. Given.

        Before: ``table`` owns the block. It is copied even if no other table owns it.
        """
        block = table[index]
        self.block_pool.touch([block])
        table[index] = self.block_pool.fork_block(block)
        self.block_pool.free_blocks([block])
        return table[index]

    def _count_query(self, request: Request, num_hit_tokens: int) -> None:
        """Count ``request``, which gets its first slots, with this many tokens found. Given."""
        self._num_queries += 1
        self._num_query_tokens += request.num_tokens
        self._num_hit_tokens += num_hit_tokens

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``; return the blocks newly taken from the pool.

            [ computed before | hits: num_new_computed_tokens | num_new_tokens ]
              in the table      adopted here                    slots made here

        ``new_computed_blocks`` are the hits, as ``get_computed_blocks`` found them. ``num_new_computed_tokens``, which
        ends in the last of them, is how many of their tokens count; by default all. The checks are given: the arguments
        fit each other, and the hits still hold what was found.

        After:
        - the table is the blocks held before, the hits, and just as many fresh blocks as the slots need
        - each hit has one more owner
        - each block that is written now and must be copied (``_must_fork``) was replaced by a copy (``_fork_block``)
        - a request that held nothing is counted (``_count_query``), whether anything was found or not
        - ``request`` is as it was: the scheduler advances ``num_computed_tokens``
        - Task 3: every block is found that is full of tokens once this step has run (``_index_full_blocks``); a slot
          whose token does not exist yet does not count
        - Task 4: what this step is going to write is noted (``_note_unwritten``)
        Returns:
        - the copies in the order of the table, then the fresh blocks
        - None if copies and fresh blocks together need more blocks than are free; a hit in the free queue is no room,
          because it is about to leave the queue, and a hit in use takes no room
        - if it is None, nothing has changed: no table, owner, key or statistic, and not the order of the free queue

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

        Its keys have the request's ``extra_keys``. A tail that was adopted, and is full by now, gets a longer key. The
        half-filled block at the end is left out: it is still growing, and ``free`` indexes it when its owner leaves.
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

        ``table`` is the table as stored, fresh blocks included; ``taken`` are the copies and the fresh blocks.

        After:
        - every block of ``table`` that has one of these positions is noted, and no other
        - its note is the number of its positions that lie before ``first_slot``: this much of it is written
        - a block that was just ``taken`` loses its older note, which is of a request that was freed in this step
        - of any other block the first note of a step stays, as it is the smallest

        Example: block size 4, table [1, 2, 3], nothing noted. Positions 6 to 9 are noted as {2: 2, 3: 0}.
        """
        # TASK 4: KVCacheManager._note_unwritten
        for block in taken:
            self._num_written.pop(block.block_id, None)
        for index in range(first_slot // self.block_size, self._num_blocks_for(num_slots)):
            self._num_written.setdefault(table[index].block_id, max(first_slot - index * self.block_size, 0))
        # END TASK

    def finish_step(self) -> None:
        """The planned step has run: its copies are made and its K/V is written.

        After: the copies are reported to the pool, as in the base; nothing is noted as unwritten.
        """
        # TASK 4: KVCacheManager.finish_step
        super().finish_step()
        self._num_written.clear()
        # END TASK

    # ---- Task 5: given back

    def free(self, request: Request) -> None:
        """Give the blocks of ``request`` back, and leave what it computed to be found, the half-filled tail included.

        A request may be aborted between plan and step. What the step was to write into its table (``_num_written``) is
        then perhaps never written. Full blocks are in the index since they were planned.

        After:
        - the request holds nothing; if it held nothing before, nothing changes
        - the last block was freed first
        - of its first ``num_computed_tokens`` tokens, those before the first position that the planned step was to
          write into the table are found, under its ``extra_keys``
        - a block of the table that is in ``_num_written`` is found with these tokens at most, even if another request
          owns it
        - every other block is found as before: what is written stays findable
        - the notes stay until ``finish_step``: other requests may have these blocks

        Example: block size 4. A has computed 6 tokens, and a step is planned that computes 8 more, which
        ``num_computed_tokens``, 14, includes. After ``free(A)`` 6 tokens are found, in block 1 and half of block 2.
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
        """Forget all cached content, in the tree too, and reset the statistics. Given.

        Raises RuntimeError while any block is in use (the pool does); nothing changes then.
        """
        super().reset_prefix_cache()
        if self.prefix_tree is not None:
            self.prefix_tree.clear()
