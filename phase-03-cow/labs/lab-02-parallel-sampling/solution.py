"""Block tables that fork: n continuations of one prompt store the prompt once.

    prompt of 10 tokens, block size 4             fork, then one token each

    parent: [1, 2, 3]                             parent: [1, 2, 3]    writes last, in place: 3 is private by then
                   └ tokens 8, 9, two slots       child:  [1, 2, 4]    writes first: block 3 is copied into block 4
                                                           │  └ ref_cnt 2
                                                           └─── ref_cnt 2

The base class is the manager of lab 2.2, and its convention applies here: when a step runs, the slots
``0 … num_computed_tokens + num_new_tokens - 1`` must exist, and position ``p`` is in ``table[p // block_size]`` at
offset ``p % block_size``. The new tokens are written to positions ``num_computed_tokens`` and up. All earlier positions
are only read.

The lab's page says which file the base class comes from, in tests and in ``course run``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from course.base import lab_2_2 as base
from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.request import Request


class KVCacheManager(base.KVCacheManager):
    """The manager of lab 2.2, extended with forks: tables may share blocks, but only private blocks are written.

    The base provides the tables and the prefix cache: ``get_computed_blocks`` finds whole blocks, ``allocate_slots``
    adopts them and makes room, and ``_index_full_blocks`` makes full blocks findable. ``free``, ``stats`` and
    ``reset_prefix_cache`` need no change. The pool (``pool_class``, as in the base) provides ``fork_block``: it is your
    pool of lab 3.1, or ``mini_vllm.block_pool.BlockPool``.
    """

    # ---- Task 1

    def fork(self, parent: Request, child: Request) -> None:
        """Let ``child`` share every block of ``parent``, including the half-filled tail. No block is taken or copied.

        Before:
        - the tokens of ``child`` begin with the computed tokens of ``parent``
        After:
        - the child's table contains the same blocks as the parent's table, in the same order
        - each of these blocks has one more owner
        - the two tables are separate lists: a later change to one does not affect the other
        - if the parent holds no blocks, neither does the child: the child has no entry in ``_tables``
        - neither request object is changed
        - the statistics are unchanged: the child did not query the cache
        Raises:
        - RuntimeError if ``child`` already holds blocks; nothing changes then

        Example::

            >>> manager = KVCacheManager(num_blocks=10, block_size=4)
            >>> parent, child = Request("parent", range(10)), Request("child", range(10))
            >>> blocks = manager.allocate_slots(parent, 10)
            >>> parent.num_computed_tokens = child.num_computed_tokens = 10
            >>> manager.fork(parent, child)
            >>> manager.get_block_ids("child"), [block.ref_cnt for block in blocks]
            ([1, 2, 3], [2, 2, 2])
        """
        # TASK 1: KVCacheManager.fork
        if child.request_id in self._tables:
            raise RuntimeError(f"fork: request {child.request_id!r} holds "
                               f"{len(self._tables[child.request_id])} blocks already")
        table = list(self._tables.get(parent.request_id, []))
        self.block_pool.touch(table)
        if table:
            self._tables[child.request_id] = table
        # END TASK

    # ---- Task 2

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``; return the blocks newly taken from the pool.

            [ computed before: only read | num_new_tokens: written now ]

        For a request that holds no blocks, the base does everything, including the hits. That call is given, and so is
        the check of the arguments. You write the case of a request that already has a table, from a prompt, from hits
        or from a fork. Useful parts of the base: ``_num_blocks_for`` and ``super().allocate_slots``.

        Before:
        - blocks that were found in the cache are not written: the new tokens come after them
        After:
        - each shared block that the new tokens are written into was forked (``fork_block``): the copy is in its place
          in the table
        - each private block is still in its place
        - each shared block that is not written now is still shared
        - fresh blocks follow in the table, exactly as many as the new tokens need
        - blocks that are now full are indexed: the copies, not the blocks that they were copied from
        Returns:
        - a list of the blocks newly taken from the pool, which may be empty: first the copies in the order of the
          table, then the fresh blocks
        - None if there are fewer free blocks than copies and fresh blocks together; nothing has changed then
        Raises:
        - the errors of ``_check_arguments`` of the base, for example RuntimeError if hits are passed for a request that
          has a table

        Example::

            >>> manager = KVCacheManager(num_blocks=10, block_size=4)
            >>> parent, child = Request("parent", range(10)), Request("child", range(11))
            >>> blocks = manager.allocate_slots(parent, 10)
            >>> parent.num_computed_tokens = child.num_computed_tokens = 10
            >>> manager.fork(parent, child)
            >>> [block.block_id for block in manager.allocate_slots(child, 1)]  # a copy of block 3
            [4]
            >>> manager.get_block_ids("parent"), manager.get_block_ids("child")
            ([1, 2, 3], [1, 2, 4])
        """
        hits = list(new_computed_blocks or ())
        num_hit_tokens = len(hits) * self.block_size if num_new_computed_tokens is None else num_new_computed_tokens
        self._check_arguments(request, num_new_tokens, hits, num_hit_tokens)
        table = self._tables.get(request.request_id)
        if table is None:
            return super().allocate_slots(request, num_new_tokens, hits, num_hit_tokens)
        # TASK 2: KVCacheManager.allocate_slots
        first_slot = request.num_computed_tokens
        num_blocks = self._num_blocks_for(first_slot + num_new_tokens)
        written = range(first_slot // self.block_size, min(num_blocks, len(table)))
        shared = [index for index in written if table[index].ref_cnt > 1]
        num_fresh = max(num_blocks - len(table), 0)
        if len(shared) + num_fresh > self.block_pool.get_num_free_blocks():
            return None

        for index in shared:
            table[index] = self.block_pool.fork_block(table[index])
        forked = [table[index] for index in shared]
        return forked + super().allocate_slots(request, num_new_tokens)
        # END TASK

    # ---- given

    def finish_step(self) -> None:
        """Tell the pool that the step has run: its copies are made, and its K/V is written. This method is given."""
        self.block_pool.finish_copies()

    def check_integrity(self) -> None:
        """Raise RuntimeError if the pool and the tables disagree. This method is given: call it when you are in doubt.

        Every reference must belong to a table, as in the base, or to a pending copy.
        """
        self.block_pool.check_integrity()
        owners = Counter(block.block_id for table in self._tables.values() for block in table)
        owners.update(self.block_pool._kept_for_copy)
        for block in self.block_pool.blocks:
            if block.ref_cnt != owners[block.block_id]:
                raise RuntimeError(f"block {block.block_id} has ref_cnt {block.ref_cnt}, "
                                   f"but {owners[block.block_id]} tables and pending copies name it")
