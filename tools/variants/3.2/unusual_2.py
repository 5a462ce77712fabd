"""Block tables that fork: n continuations of one prompt store the prompt once.

    prompt of 10 tokens, block size 4             fork, then one token each

    parent: [1, 2, 3]                             parent: [1, 2, 3]    writes into 3 in place, it is private by then
                   └ tokens 8, 9, two slots       child:  [1, 2, 4]    block 3 was copied into block 4 first
                                                           │  └ ref_cnt 2
                                                           └─── ref_cnt 2

The convention is that of lab 2.2, whose manager is the base: slots ``0 … num_computed_tokens + num_new_tokens - 1``
must exist when a step runs, and position ``p`` lives in ``table[p // block_size]`` at offset ``p % block_size``. The
new tokens are written to positions ``num_computed_tokens`` and up. All before that is only read.

Whose file the base is in tests and in ``course run``, the lab's page says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from course.base import lab_2_2 as base
from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.request import Request


class KVCacheManager(base.KVCacheManager):
    """The manager of lab 2.2, whose tables may fork. A block may be in many tables; only a private one is written.

    From the base come the tables and the prefix cache: ``get_computed_blocks`` finds whole blocks, ``allocate_slots``
    adopts them and makes room, ``_index_full_blocks`` makes full blocks findable, ``free``, ``stats`` and
    ``reset_prefix_cache`` stay as they are. The pool (``pool_class``, as in the base) is one that can ``fork_block``:
    what you wrote in lab 3.1, or ``mini_vllm.block_pool.BlockPool``.
    """

    # ---- Task 1

    def fork(self, parent: Request, child: Request) -> None:
        """Let ``child`` share every block of ``parent``, the half-filled tail included. No block is taken or copied.

        Before: the tokens of ``child`` begin with those of ``parent`` that are computed.
        After: the child's table names the same blocks, and each has one more owner (``touch``). The two tables are two
        lists: what happens to one later does not show in the other. If the parent holds nothing, neither does the
        child (no entry in ``_tables``). Neither request is written, and the child is no query in the statistics: it did
        not ask the cache.
        Raises RuntimeError if ``child`` holds blocks already; nothing changes then.
        """
        if self.get_block_ids(child.request_id):
            raise RuntimeError(f"{child.request_id} has {len(self._tables[child.request_id])} blocks")
        blocks = [self.block_pool.blocks[number] for number in self.get_block_ids(parent.request_id)]
        if blocks:
            self._tables[child.request_id] = blocks
            self.block_pool.touch(blocks)

    # ---- Task 2

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``; return the blocks newly taken from the pool.

            [ computed before: only read | num_new_tokens: written now ]

        The base does all of it for a request that holds nothing, hits included: a hit is a whole block, and the new
        tokens are written after it. That call is given, and so is the check of the arguments. You write what follows
        for a request that has a table, from a prompt, from hits or from a fork.
        A block of its table that the new tokens are written into, and that has other owners too, is forked first
        (``block_pool.fork_block``), and the copy takes its place in the table. A private one is written in place. A
        shared one that is not written now stays shared. The copies go into the table first; then
        ``super().allocate_slots`` appends the fresh blocks and indexes what is full by now: copies, not the blocks that
        they were copied from.
        Returns the blocks newly taken from the pool: the forked ones in the order of the table, then the fresh ones.
        The list is empty if there are none.
        Returns None if the forked and the fresh blocks together do not fit, and nothing has changed: count both
        (``_num_blocks_for``) before you fork.
        """
        hits = list(new_computed_blocks or ())
        num_hit_tokens = len(hits) * self.block_size if num_new_computed_tokens is None else num_new_computed_tokens
        self._check_arguments(request, num_new_tokens, hits, num_hit_tokens)
        table = self._tables.get(request.request_id)
        if table is None:
            return super().allocate_slots(request, num_new_tokens, hits, num_hit_tokens)
        positions = range(request.num_computed_tokens, request.num_computed_tokens + num_new_tokens)
        places = list(dict.fromkeys(position // self.block_size for position in positions))
        to_copy = [place for place in places if place < len(table) and self._owners(table[place]) >= 2]
        num_wanted = len(to_copy) + sum(place >= len(table) for place in places)
        num_wanted += max(0, places[0] - len(table))
        if self.block_pool.get_num_free_blocks() < num_wanted:
            return None
        taken = []
        while to_copy:
            place = to_copy.pop(0)
            taken.append(self.block_pool.fork_block(table[place]))
            table[place:place + 1] = taken[-1:]
        taken.extend(super().allocate_slots(request, num_new_tokens))
        return taken

    def _owners(self, block):
        return sum(block in table for table in self._tables.values())

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
