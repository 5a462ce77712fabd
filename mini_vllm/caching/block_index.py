"""Where a cached prefix is found: what the KV cache manager asks of an index, and the plainest one.

    NoIndex       a hit ends nowhere: caching is off
    BlockIndex    between two blocks
    PrefixTree    anywhere, inside a block too          (prefix_tree.py; or a student's own)

No index stores anything twice: a block is cached while it has a ``block_hash``, and the pool finds it by that.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mini_vllm.block_pool import BlockHash, BlockPool, ExtraKeys, KVCacheBlock


class Match(Protocol):
    """What an index found; see PrefixMatch."""

    @property
    def blocks(self) -> list[KVCacheBlock]: ...

    @property
    def partial_block(self) -> KVCacheBlock | None: ...

    @property
    def num_partial_tokens(self) -> int: ...


class PrefixIndex(Protocol):
    """What the manager calls. ``blocks`` is always a request's table: ``blocks[i]`` begins at ``i * block_size``."""

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
    """Finds whole blocks, by their keys."""

    def __init__(self, block_pool: BlockPool, block_size: int) -> None:
        self.block_pool = block_pool
        self.block_size = block_size

    def match(self, token_ids: Sequence[int], extra_keys: ExtraKeys = None) -> Match:
        """The longest cached prefix of ``token_ids``. No block is touched, no count changes."""
        return BlockMatch(self._match_blocks(token_ids, extra_keys))

    def _match_blocks(self, token_ids: Sequence[int], extra_keys: ExtraKeys) -> list[KVCacheBlock]:
        """Walk whole blocks from the front, up to the first miss."""
        size, parent = self.block_size, None
        blocks: list[KVCacheBlock] = []
        for start in range(0, len(token_ids) - size + 1, size):
            block = self.block_pool.get_cached_block(BlockHash(parent, token_ids[start:start + size], extra_keys))
            if block is None:
                break
            blocks.append(block)
            parent = key_of(block)  # the stored chain, so that the next proof ends after one block
        return blocks

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None:
        """Make the blocks that the first ``num_tokens`` of ``token_ids`` fill findable; by default all tokens count.

        Blocks that are findable already stay as they are. This is called for every token that is decoded, so the walk
        is backwards, to the nearest block that is.
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

        One that was indexed with fewer tokens, and has grown since, gets the longer key in place of the old one.
        """
        key = BlockHash(parent, tokens, extra_keys)
        twin = self.block_pool.get_cached_block(key)
        if twin is not None and isinstance(twin.block_hash, BlockHash):
            key = twin.block_hash  # one chain of objects for all twins: proofs stay short
        if key_of(block) not in (None, key):
            self.block_pool.evict_blocks([block.block_id])
        self.block_pool.cache_full_blocks([block], [key])
        return key

    def donate(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None:
        """A request is done: its references go, and what is findable stays so. A tail that fills no block is lost.

        The last block goes first, so that the head of a prompt, which most others share, is evicted last.
        """
        self.block_pool.free_blocks(reversed(blocks))

    def clear(self) -> None:
        """Forget everything. Raises RuntimeError, which says how many, while any block is in use."""
        self.block_pool.reset_prefix_cache()


class NoIndex(BlockIndex):
    """Finds nothing and remembers nothing."""

    def match(self, token_ids: Sequence[int], extra_keys: ExtraKeys = None) -> Match:
        return BlockMatch([])

    def insert(self, token_ids: Sequence[int], blocks: Sequence[KVCacheBlock], num_tokens: int | None = None,
               extra_keys: ExtraKeys = None) -> None:
        return


def key_of(block: KVCacheBlock) -> BlockHash | None:
    """The tokens for which ``block`` can be found, and what comes before them; None if it cannot be found.

    The pool takes any hash. Raises RuntimeError for one that is no BlockHash: it may find a block, but it cannot say
    what the block holds.
    """
    key = block.block_hash
    if key is None or isinstance(key, BlockHash):
        return key
    raise RuntimeError(f"block {block.block_id} is cached under {reprlib.repr(key)}, which is of type "
                       f"{type(key).__name__}; a prefix index needs a BlockHash, which knows its tokens and its parent")


def is_full(key: BlockHash | None, block_size: int) -> bool:
    """Whether a block of that key is findable as a whole."""
    return key is not None and len(key.token_ids) == block_size
