"""One cache: hits, forks and half-filled blocks in one manager.

    [1 2 3 4]  [5 6 7 8]  [9 10 _ _]         what a finished request left: 10 tokens in blocks 1, 2, 3

    1 … 10  50        adopts 1, 2, 3 with 10 tokens; 50 goes into block 3, in place: nobody names that slot
    1 … 6   70 71     adopts 1, 2 with 6 tokens; block 2 is named with 7 8, so it is copied before 70 71 go in
    1 … 10            adopts 1, 2, 3 with 9 tokens; token 10 is computed again, into the slot that holds it

The base, lab 3.2, has tables, forks and hits of whole blocks. A prefix tree (lab 3.3) finds hits that end *inside* a
block. To adopt such a block is to share it, as a fork does; to write into it is to fork it first. The index is one more
reader: what a key names may not be overwritten with something else, even if no table names the block.

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
    ``_num_blocks_for``. Without a tree (no ``tree_class``, or caching is off) all is as in the base. The lines that see
    to it are given, and what you write may count on a tree. ``_note_unwritten`` and ``finish_step`` need no such line:
    without a tree the one is never called, and the other finds nothing noted.
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
        """The longest cached prefix of ``request``: its blocks, and how many tokens they hold. No block is touched.

        Task 1: ask the tree (``match``, with the request's ``extra_keys``) for all tokens but the last, because a step
        needs a token to give logits for the next one. The match has ``blocks``, which hold ``block_size`` tokens each,
        and perhaps a ``partial_block``, of which ``num_partial_tokens`` count (else it is None). Return the whole
        blocks, then the partial one, and the number of tokens in all. A match of whole blocks has no partial block.

        Task 4: a step makes its copies before it writes. So if the partial block is in ``_num_written``, at most that
        many tokens of it count; if that is none, the block is left out. Whole blocks need no such care: they are shared
        as they are, and the step writes them before anybody reads.
        """
        if self.prefix_tree is None:
            return super().get_computed_blocks(request)
        asked = tuple(request.all_token_ids)[:request.num_tokens - 1]
        found = self.prefix_tree.match(asked, request.extra_keys)
        half, usable = found.partial_block, found.num_partial_tokens
        usable = 0 if half is None else min(usable, self._num_written.get(half.block_id, usable))
        return [*found.blocks, *([half] if usable else [])], len(found.blocks) * self.block_size + usable

    # ---- Tasks 2, 3 and 4: grown

    def _must_fork(self, request: Request, index: int, block: KVCacheBlock, is_hit: bool, first_slot: int) -> bool:
        """Whether ``block`` must be copied before tokens of ``request`` are written into it, from ``first_slot`` on.

        ``block`` stands at ``index`` of the table: its tokens begin at position ``index * block_size``. The block that
        ``first_slot`` lies in is written from there on, a later one from its own beginning on. If it ``is_hit``, then
        it has not been touched for ``request`` yet: its ``ref_cnt`` counts the others only.
        It must if anybody else owns it, whatever is written. A reference that a pending copy holds may count as an
        owner; that costs a copy at most.
        If nobody does, its ``block_hash`` decides. None: nothing finds it, so no. Else the key's ``token_ids`` name
        what the block holds, from its beginning on. It must if, among those from the first written offset on, there is
        one that the request has not at that position: another token is there, or none yet. Tokens written after all
        that the key names harm nobody, and neither do the same tokens once more.
        """
        if block.ref_cnt >= (1 if is_hit else 2):
            return True
        key = block.block_hash
        if key is None:
            return False
        for offset, named in enumerate(key.token_ids):
            position = index * self.block_size + offset
            if position < first_slot:
                continue
            if position >= request.num_tokens or request.all_token_ids[position] != named:
                return True
        return False

    def _fork_block(self, table: list[KVCacheBlock], index: int) -> KVCacheBlock:
        """Put a copy of the block at ``index`` into its place, and return the copy. Given.

        Before: ``table`` owns the block, perhaps alone. With a second owner, ``fork_block`` copies it in any case.
        """
        block = table[index]
        self.block_pool.touch([block])
        table[index] = self.block_pool.fork_block(block)
        self.block_pool.free_blocks([block])
        return table[index]

    def _count_query(self, request: Request, num_hit_tokens: int) -> None:
        """``request`` gets its first slots, with this many tokens found. Given."""
        self._num_queries += 1
        self._num_query_tokens += request.num_tokens
        self._num_hit_tokens += num_hit_tokens

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       new_computed_blocks: Sequence[KVCacheBlock] | None = None,
                       num_new_computed_tokens: int | None = None) -> list[KVCacheBlock] | None:
        """Make room for the next ``num_new_tokens`` tokens of ``request``; return the blocks newly taken from the pool.

            [ computed before | hits: num_new_computed_tokens | num_new_tokens ]
              in the table      adopted here                    slots made here

        ``new_computed_blocks`` are what ``get_computed_blocks`` found, and ``num_new_computed_tokens``, which ends in
        the last of them, is how many tokens of them count; by default all. The checks are given: the arguments fit each
        other, and the hits hold what they held when they were found.

        Task 2. After: the table is the blocks held before, the hits with one more owner each (``touch``), then just as
        many fresh blocks as the slots ask for; each block that ``_must_fork`` before it is written was replaced by a
        copy (``_fork_block``, once the hits are touched). If the request held nothing, it is counted
        (``_count_query``), whether anything was found or not.
        Returns the copies in the order of the table, then the fresh blocks.
        Returns None if copies and fresh blocks together do not fit, and nothing has changed. A hit that stands in the
        free queue is about to leave it, so it is no room. A hit that is in use takes no room.

        Task 3: tell ``_index_full_blocks`` how many tokens now have a slot *and exist*.

        Task 4: last, tell ``_note_unwritten`` what this step is going to write.
        """
        if self.prefix_tree is None:
            return super().allocate_slots(request, num_new_tokens, new_computed_blocks, num_new_computed_tokens)
        hits = list(new_computed_blocks or ())
        num_hit_tokens = len(hits) * self.block_size if num_new_computed_tokens is None else num_new_computed_tokens
        held = self._tables.get(request.request_id, [])
        check_arguments(request, num_new_tokens, held, hits, num_hit_tokens, self.block_size)
        check_hits(request, hits, num_hit_tokens, self.block_size)
        pool, size = self.block_pool, self.block_size
        begin = num_hit_tokens + request.num_computed_tokens
        end = begin + num_new_tokens
        blocks = [(block, False) for block in held] + [(block, True) for block in hits]
        doomed = set()
        for place, (block, is_hit) in enumerate(blocks):
            if (place + 1) * size > begin and place * size < end:
                if self._must_fork(request, place, block, is_hit, begin):
                    doomed.add(place)
        num_fresh = self._num_blocks_for(end) - len(blocks)
        num_fresh = num_fresh if num_fresh > 0 else 0
        still_free = {block.block_id for block in pool.free_block_queue.get_all_free_blocks()} - {b.block_id for b in hits}
        if len(still_free) < len(doomed) + num_fresh:
            return None
        if request.request_id not in self._tables:
            self._count_query(request, num_hit_tokens)
        table = self._tables.setdefault(request.request_id, [])
        for block in hits:
            pool.touch([block])
            table.append(block)
        taken = [self._fork_block(table, place) for place in sorted(doomed)]
        for _ in range(num_fresh):
            (block,) = pool.get_new_blocks(1)
            table.append(block)
            taken.append(block)
        self._index_full_blocks(request, end if end < request.num_tokens else request.num_tokens)
        self._note_unwritten(table, begin, end, taken)
        return taken

    def _index_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Make every block of ``request`` that its first ``num_tokens`` tokens fill findable, through the tree.

        ``insert`` takes the request's tokens, its table, the number of tokens and its ``extra_keys``. It gives a longer
        key to a tail that was adopted and is full by now. The half-filled block at the end is left out: it is still
        growing, and ``free`` indexes it when its owner leaves.
        """
        if self.prefix_tree is None:
            super()._index_full_blocks(request, num_tokens)
            return
        self.prefix_tree.insert(request.all_token_ids, self._tables[request.request_id], num_tokens, request.extra_keys)

    def _note_unwritten(self, table: list[KVCacheBlock], first_slot: int, num_slots: int,
                        taken: list[KVCacheBlock]) -> None:
        """Note in ``_num_written`` that the step being planned writes positions ``first_slot`` to ``num_slots - 1``.

        ``table`` is the table as stored, fresh blocks included; ``taken`` are the copies and the fresh blocks.
        After: every block of ``table`` that has one of these positions is noted, with the number of its positions that
        lie before ``first_slot``: this much of it is written. Blocks that were just ``taken`` are noted anew: what was
        noted of them belongs to somebody who was freed while this step was planned. Of the others the first note of a
        step stays, as it is the smallest.
        """
        notes = {}
        for position in range(first_slot, num_slots):
            index, offset = divmod(position, self.block_size)
            notes.setdefault(table[index].block_id, offset)   # the first position of this block that is written
        for block in taken:
            if block.block_id in notes:
                self._num_written.pop(block.block_id, None)
        self._num_written = notes | self._num_written

    def finish_step(self) -> None:
        """The planned step has run: its copies are made and its K/V is written.

        After: as in the base; and nothing is noted as unwritten.
        """
        self._num_written = {}
        super().finish_step()

    # ---- Task 5: given back

    def free(self, request: Request) -> None:
        """Give the blocks of ``request`` back, and leave what it computed to be found, the half-filled tail included.

        The tree's ``donate`` does both. It takes the request's tokens, its table, how many of its tokens can be
        trusted, and its ``extra_keys``. Those are the first ``num_computed_tokens``; and if the step being planned is
        to write into the table (``_num_written``), of these only what lies before the first position that it is to
        write. That is the smaller of the two numbers: with this request gone, perhaps nobody writes the rest.
        And every block of the table that is in ``_num_written`` is taken out of the index before the tree is told
        (``block_pool.evict_blocks``, by block id): full ones are in it since they were planned. Every one, also if
        others own it: nobody new may find it. (If it was adopted from a request that still runs, that one does write
        it. To forget it costs a hit at most.) And no other: what is written stays findable.
        The notes stay until ``finish_step``: others may have these blocks, too.

        After: the request holds nothing. Harmless when it held nothing before.
        """
        if self.prefix_tree is None:
            super().free(request)
            return
        if request.request_id not in self._tables:
            return
        table = self._tables[request.request_id]
        notes = [(index * self.block_size + self._num_written[block.block_id], block.block_id)
                 for index, block in enumerate(table) if block.block_id in self._num_written]
        trusted = min([request.num_computed_tokens] + [position for position, _ in notes])
        for _, block_id in notes:
            self.block_pool.evict_blocks([block_id])
        del self._tables[request.request_id]
        self.prefix_tree.donate(list(request.all_token_ids), tuple(table), trusted, request.extra_keys)

    # ---- given

    def reset_prefix_cache(self) -> None:
        """Forget all cached content, in the tree too, and start the statistics anew. Given.

        Raises RuntimeError while any block is in use (the pool does); nothing changes then.
        """
        super().reset_prefix_cache()
        if self.prefix_tree is not None:
            self.prefix_tree.clear()
