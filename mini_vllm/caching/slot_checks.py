"""The checks of ``KVCacheManager.allocate_slots``, made before it changes anything."""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.block_pool import BlockHash, KVCacheBlock
from mini_vllm.caching.block_index import is_full, key_of
from mini_vllm.request import Request


def check_arguments(request: Request, num_new_tokens: int, table: Sequence[KVCacheBlock],
                    hits: Sequence[KVCacheBlock], num_hit_tokens: int, block_size: int) -> None:
    """Raise unless the numbers fit each other. ``table`` is the request's block table before the hits are added."""
    who = f"allocate_slots for request {request.request_id!r}"
    if num_new_tokens < 1:
        raise ValueError(f"{who}: num_new_tokens is {num_new_tokens}, must be at least 1")
    if -(-num_hit_tokens // block_size) != len(hits):
        raise ValueError(f"{who}: num_new_computed_tokens is {num_hit_tokens}, which does not fit {len(hits)} computed "
                         f"blocks of {block_size} tokens: the last token must be in the last block")
    if hits and table:
        raise RuntimeError(f"{who}: it holds {len(table)} blocks already; "
                           "computed blocks may be passed only in the first call")
    if request.num_computed_tokens > len(table) * block_size:
        raise RuntimeError(f"{who}: num_computed_tokens is {request.num_computed_tokens}, "
                           f"but its table has only {len(table) * block_size} slots")


def check_hits(request: Request, hits: Sequence[KVCacheBlock], num_hit_tokens: int, block_size: int) -> None:
    """Raise RuntimeError unless each of ``hits`` still holds the tokens of ``request`` at its position.

    Since the lookup a free block may have been given to another request; its key shows that.
    """
    parent: BlockHash | None = None
    for index, block in enumerate(hits):
        start = index * block_size
        end = min(start + block_size, num_hit_tokens)
        wanted = BlockHash(parent, request.all_token_ids[start:end], request.extra_keys)
        key = key_of(block)
        is_held = key == wanted if end - start == block_size else _begins_with(key, wanted)
        if not is_held:
            raise RuntimeError(f"allocate_slots for request {request.request_id!r}: block {block.block_id} does not "
                               f"hold its tokens {start} to {end - 1}; was it given to another request after the "
                               "lookup?")
        parent = key


def _begins_with(key: BlockHash | None, wanted: BlockHash) -> bool:
    """Check whether a block with ``key`` holds the tokens of ``wanted``, and possibly more."""
    return (key is not None and key.parent == wanted.parent and key.extra_keys == wanted.extra_keys
            and key.token_ids[:len(wanted.token_ids)] == wanted.token_ids)


def check_keys(table: Sequence[KVCacheBlock], first: int, block_size: int) -> None:
    """Raise RuntimeError if a key that allocation will read is not a BlockHash.

    Allocation reads the keys of the blocks to be written, from ``first`` on, and goes back from there to the nearest
    full block.
    """
    for index in range(len(table) - 1, -1, -1):
        if is_full(key_of(table[index]), block_size) and index < first:
            return
