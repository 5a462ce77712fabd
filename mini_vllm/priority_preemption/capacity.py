"""Seats, blocks and tokens of the next step: what is available, what a request needs, what it frees by leaving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mini_vllm.block_pool import KVCacheBlock
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request


@dataclass
class Room:
    """Numbers of seats, blocks and tokens.

    The numbers that a step has left may be below 0: then more is promised than is available.
    """

    num_seats: int
    num_blocks: int
    num_tokens: int

    def has_place_for(self, need: Room) -> bool:
        """Check whether there are enough seats and blocks. Tokens do not matter: a prompt may be computed in chunks."""
        return need.num_seats <= self.num_seats and need.num_blocks <= self.num_blocks

    def __add__(self, other: Room) -> Room:
        return Room(self.num_seats + other.num_seats, self.num_blocks + other.num_blocks,
                    self.num_tokens + other.num_tokens)

    def __sub__(self, other: Room) -> Room:
        return Room(self.num_seats - other.num_seats, self.num_blocks - other.num_blocks,
                    self.num_tokens - other.num_tokens)


def num_left(request: Request) -> int:
    """Return the number of tokens that are not computed yet."""
    return request.num_tokens - request.num_computed_tokens


def whole_hits(kv_cache: KVCacheManager, request: Request) -> list[KVCacheBlock]:
    """Return the cached whole blocks of the request's tokens.

    A half-filled hit does not count: a scheduler may skip it.
    """
    hits, num_cached = kv_cache.get_computed_blocks(request)
    return hits[:num_cached // kv_cache.block_size]


def need_of(kv_cache: KVCacheManager, request: Request) -> Room:
    """Return what the waiting ``request`` needs.

    Hits without an owner are taken from the free blocks, so they count.
    """
    hits = whole_hits(kv_cache, request)
    num_new = _num_blocks_of(kv_cache, request) - len(hits) + sum(block.ref_cnt == 0 for block in hits)
    return Room(request.num_sequences, num_new + request.num_sequences - 1,
                request.num_tokens - len(hits) * kv_cache.block_size)


def promised_to(kv_cache: KVCacheManager, request: Request) -> Room:
    """Return what the running ``request`` takes from a step: its seats, its tokens, and the blocks that it lacks for
    them."""
    num_held = len(kv_cache.get_block_ids(request.request_id))
    return Room(request.num_sequences, max(_num_blocks_of(kv_cache, request) - num_held, 0), num_left(request))


class Departures:
    """Computes what is freed if running requests leave one after the other, without changing anything."""

    def __init__(self, kv_cache: KVCacheManager, needed_again: Iterable[KVCacheBlock]) -> None:
        self._kv_cache = kv_cache
        self._kept = {block.block_id for block in needed_again}
        #: Block id → how many of its owners have left.
        self._num_gone: Counter[int] = Counter()

    def go(self, request: Request) -> Room:
        """Let ``request`` leave and return what that frees. A block is freed when its last owner leaves."""
        table = self._kv_cache.get_block_ids(request.request_id)
        self._num_gone.update(table)
        blocks = self._kv_cache.block_pool.blocks
        num_freed = sum(self._num_gone[block_id] == blocks[block_id].ref_cnt and block_id not in self._kept
                        for block_id in table)
        return promised_to(self._kv_cache, request) + Room(0, num_freed, 0)


def _num_blocks_of(kv_cache: KVCacheManager, request: Request) -> int:
    return -(-request.num_tokens // kv_cache.block_size)
