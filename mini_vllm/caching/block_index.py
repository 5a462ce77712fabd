"""The index of cached prefixes: the interface that the KV cache manager uses, and the simplest implementation.

    NoIndex       no hits: caching is off
    BlockIndex    hits end between two blocks
    PrefixTree    hits end anywhere, also inside a block          (prefix_tree.py; or a student's own)

No index stores anything twice: a block is cached while it has a ``block_hash``, and the pool finds it by that hash.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mini_vllm.block_pool import BlockHash, BlockPool, ExtraKeys, KVCacheBlock


class Match(Protocol):
    """The result of a lookup; see PrefixMatch."""

    @property
    def blocks(self) -> list[KVCacheBlock]: ...

    @property
    def partial_block(self) -> KVCacheBlock | None: ...

    @property
    def num_partial_tokens(self) -> int: ...


class PrefixIndex(Protocol):
    """The methods that the manager calls.

    ``blocks`` is always a request's table: ``blocks[i]`` begins at ``i * block_size``.
    """

    def match(self, token_ids: Sequence[int], extra_keys: ExtraKeys = None) -> Match: ...

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None: ...

    def donate(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None: ...

    def clear(self) -> None: ...


@dataclass(frozen=True)
class BlockMatch:
    """A cached prefix that ends between two blocks."""

    blocks: list[KVCacheBlock]
    partial_block: None = None
    num_partial_tokens: int = 0


class BlockIndex:
    """Finds whole blocks by their keys."""

    def __init__(self, block_pool: BlockPool, block_size: int) -> None:
        self.block_pool = block_pool
        self.block_size = block_size

    def match(self, token_ids: Sequence[int], extra_keys: ExtraKeys = None) -> Match:
        """Return the longest cached prefix of ``token_ids``. No owner is added, and no count changes."""
        return BlockMatch(self._match_blocks(token_ids, extra_keys))

    def _match_blocks(self, token_ids: Sequence[int], extra_keys: ExtraKeys) -> list[KVCacheBlock]:
        """Match whole blocks from the front, up to the first miss."""
        size, parent = self.block_size, None
        blocks: list[KVCacheBlock] = []
        for start in range(0, len(token_ids) - size + 1, size):
            block = self.block_pool.get_cached_block(BlockHash(parent, token_ids[start:start + size], extra_keys))
            if block is None:
                break
            blocks.append(block)
            # The stored key is the next key's parent, so the next comparison ends after one block.
            parent = key_of(block)
        return blocks

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None:
        """Make the blocks that the first ``num_tokens`` of ``token_ids`` fill findable; the default is all tokens.

        Blocks that are already findable stay as they are. This is called for every decoded token, so it walks
        backwards, to the nearest findable block.
        """
        size = self.block_size
        end = (len(token_ids) if num_tokens is None else num_tokens) // size
        start = end
        while start > 0 and not is_full(key_of(blocks[start - 1]), size):
            start -= 1
        parent = key_of(blocks[start - 1]) if start else None
        for index in range(start, end):
            parent = self._insert_one(parent, token_ids[index * size:(index + 1) * size], extra_keys, blocks[index])

    def _insert_one(self, parent: BlockHash | None, tokens: Sequence[int], extra_keys: ExtraKeys,
                    block: KVCacheBlock) -> BlockHash:
        """Index ``block``, which holds ``tokens`` after ``parent``, and return its key.

        A block that was indexed with fewer tokens, and has grown since, gets the longer key instead of the old one.
        """
        key = BlockHash(parent, tokens, extra_keys)
        twin = self.block_pool.get_cached_block(key)
        if twin is not None and isinstance(twin.block_hash, BlockHash):
            key = twin.block_hash  # one chain of objects for all blocks of equal content: comparisons stay short
        if key_of(block) not in (None, key):
            self.block_pool.evict_blocks([block.block_id])
        self.block_pool.cache_full_blocks([block], [key])
        return key

    def donate(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None:
        """Drop the references of a finished request; findable blocks stay findable. A half-filled last block is lost.

        The last block is freed first, so that the start of a prompt, which most requests share, is evicted last.
        """
        self.block_pool.free_blocks(reversed(blocks))

    def clear(self) -> None:
        """Forget everything. Raise RuntimeError, with the number of blocks in use, while there are any."""
        self.block_pool.reset_prefix_cache()


class NoIndex(BlockIndex):
    """Finds nothing and stores nothing."""

    def match(self, token_ids: Sequence[int], extra_keys: ExtraKeys = None) -> Match:
        return BlockMatch([])

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None:
        return


def key_of(block: KVCacheBlock) -> BlockHash | None:
    """Return the key of ``block``: its tokens and what precedes them. Return None if the block is not findable.

    The pool accepts any hash. Raise RuntimeError for one that is not a BlockHash: it can find a block, but it does not
    say what the block holds.
    """
    key = block.block_hash
    if key is None or isinstance(key, BlockHash):
        return key
    raise RuntimeError(f"block {block.block_id} is cached under {reprlib.repr(key)}, which is of type "
                       f"{type(key).__name__}; a prefix index needs a BlockHash, which knows its tokens and its parent")


def is_full(key: BlockHash | None, block_size: int) -> bool:
    """Check whether a block with this key is findable as a whole."""
    return key is not None and len(key.token_ids) == block_size
