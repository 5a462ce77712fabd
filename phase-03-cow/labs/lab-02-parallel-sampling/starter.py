"""Block tables that fork: n continuations of one prompt store the prompt once.

    prompt of 10 tokens, block size 4             fork, then one token each

    parent: [1, 2, 3]                             parent: [1, 2, 3]    writes into 3 in place, it is private by then
                   └ tokens 8, 9, two slots       child:  [1, 2, 4]    block 3 was copied into block 4 first
                                                           │  └ ref_cnt 2
                                                           └─── ref_cnt 2

The convention is that of lab 2.2, whose manager is the base: slots ``0 … num_computed_tokens + num_new_tokens - 1``
must exist when a step runs, and position ``p`` lives in ``table[p // block_size]`` at offset ``p % block_size``. The
new tokens are written to positions ``num_computed_tokens`` and up. All positions before that are only read.

The lab's page says whose file the base is in tests and in ``course run``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from course.base import lab_2_2 as base
from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.request import Request


class KVCacheManager(base.KVCacheManager):
    """The manager of lab 2.2, whose tables may fork. A block may be in several tables; only a private one is written.

    From the base come the tables and the prefix cache: ``get_computed_blocks`` finds whole blocks, ``allocate_slots``
    adopts them and makes room, ``_index_full_blocks`` makes full blocks findable, ``free``, ``stats`` and
    ``reset_prefix_cache`` stay as they are. The pool (``pool_class``, as in the base) is one that can ``fork_block``:
    what you wrote in lab 3.1, or ``mini_vllm.block_pool.BlockPool``.
    """

    # ---- Task 1

    def fork(self, parent: Request, child: Request) -> None:
        """Let ``child`` share every block of ``parent``, the half-filled tail included. No block is taken or copied.

        Before:
        - the tokens of ``child`` begin with those of ``parent`` that are computed
        After:
        - the child's table names the same blocks as the parent's, in the same order
        - each of these blocks has one more owner
        - the two tables are two lists: a later change of one does not show in the other
        - if the parent holds nothing, neither does the child: it has no entry in ``_tables``
        - neither request is written
        - the statistics are as before: the child did not ask the cache
        Raises:
        - RuntimeError if ``child`` holds blocks already; nothing changes then

        Example::

            >>> manager = KVCacheManager(num_blocks=10, block_size=4)
            >>> parent, child = Request("parent", range(10)), Request("child", range(10))
            >>> blocks = manager.allocate_slots(parent, 10)
            >>> parent.num_computed_tokens = child.num_computed_tokens = 10
            >>> manager.fork(parent, child)
            >>> manager.get_block_ids("child"), [block.ref_cnt for block in blocks]
            ([1, 2, 3], [2, 2, 2])
        """
        raise NotImplementedError("Task 1: KVCacheManager.fork")

    # ---- Task 2

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``; return the blocks newly taken from the pool.

            [ computed before: only read | num_new_tokens: written now ]

        The base does all of it for a request that holds nothing, hits included. That call is given, and so is the check
        of the arguments. You write what follows for a request that has a table, from a prompt, from hits or from a
        fork. Useful parts of the base: ``_num_blocks_for`` and ``super().allocate_slots``.

        Before:
        - blocks that were found in the cache are not written: the new tokens come after them
        After:
        - a shared block that the new tokens are written into was forked (``fork_block``): the copy is in its place in
          the table
        - a private block is still in its place
        - a shared block that is not written now is still shared
        - fresh blocks follow in the table, as many as the new tokens need
        - blocks that are full by now are indexed: copies, not the blocks that they were copied from
        Returns:
        - the blocks newly taken from the pool, or an empty list: copies in the order of the table, then fresh blocks
        - None if copies and fresh blocks together do not fit; nothing has changed then
        Raises:
        - what ``_check_arguments`` of the base raises, for example RuntimeError for hits of a request that has a table

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
        raise NotImplementedError("Task 2: KVCacheManager.allocate_slots")

    # ---- given

    def finish_step(self) -> None:
        """The planned step has run: its copies are made and its K/V is written. Given."""
        self.block_pool.finish_copies()

    def check_integrity(self) -> None:
        """Raise RuntimeError if pool and tables disagree. Given: call it whenever you are in doubt.

        Every reference belongs to a table, as in the base, or to a pending copy.
        """
        self.block_pool.check_integrity()
        owners = Counter(block.block_id for table in self._tables.values() for block in table)
        owners.update(self.block_pool._kept_for_copy)
        for block in self.block_pool.blocks:
            if block.ref_cnt != owners[block.block_id]:
                raise RuntimeError(f"block {block.block_id} has ref_cnt {block.ref_cnt}, "
                                   f"but {owners[block.block_id]} tables and pending copies name it")
