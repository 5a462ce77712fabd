"""Keys and values in blocks, and attention over them for a ragged batch: the simplest correct implementation.

    pools[layer]              [num_blocks, 2 * num_kv_heads, block_size, head_dim]: a block's keys, then its values
    position p of a request   block table[p // block_size], offset p % block_size
    slot                      block_id * block_size + offset: the place of one token, the same in every layer

A step computes a flat batch of tokens, request after request, with no padding:

    token           0   1   2   3   4   5   6   7   8   9
    request         A   B   C   D   D   D   D   D   E   E
    query_starts  [ 0,  1,  2,  3,                  8,      10 ]

In each layer all K/V of the step is written before any of it is read, so requests in the same step can share a block.
The engine attends by faster code, in ``fast``, ``native`` or ``gpu``, which gives the same results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mini_vllm.backend import mx

#: One number per token: positions or slots.
TokenArray = npt.NDArray[np.int64]


def token_positions(context_lens: Sequence[int], query_starts: Sequence[int]) -> TokenArray:
    """Return the position of each token of a step within its request.

    The tokens of a request are the last of its context.
    """
    return np.concatenate([np.arange(context_len - (end - start), context_len)
                           for context_len, start, end in zip(context_lens, query_starts, query_starts[1:])])


def slot_mapping(block_tables: Sequence[Sequence[int]], positions: TokenArray, query_starts: Sequence[int],
                 block_size: int) -> TokenArray:
    """Return the slot of each token of a step: where its keys and values are written."""
    blocks = np.concatenate([np.asarray(table)[positions[start:end] // block_size]
                             for table, start, end in zip(block_tables, query_starts, query_starts[1:])])
    return blocks * block_size + positions % block_size


class PagedKVCache:
    """The K/V arrays of all layers, addressed by block id.

    MLX writes in place only while nothing else holds the array: a stray reference would make every write copy the whole
    pool. So only this class keeps references to the arrays.
    """

    def __init__(self, num_layers: int, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int,
                 dtype: mx.Dtype) -> None:
        self.block_size = block_size
        self.pools = [mx.zeros((num_blocks, 2 * num_kv_heads, block_size, head_dim), dtype) for _ in range(num_layers)]
        #: Blocks copied since the start. A block counts once, not once per layer.
        self.num_copied_blocks = 0
        mx.eval(self.pools)

    @staticmethod
    def block_bytes(num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: mx.Dtype) -> int:
        """Return the size of one block in bytes, summed over all layers."""
        return 2 * num_layers * num_kv_heads * block_size * head_dim * dtype.size

    def write(self, layer: int, keys_values: mx.array, slots: TokenArray) -> None:
        """Store the keys and values of tokens, [num_tokens, 2 * num_kv_heads, head_dim], each token in its slot."""
        blocks, offsets = np.divmod(slots, self.block_size)
        self.pools[layer][mx.array(blocks), :, mx.array(offsets)] = keys_values

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer, as if one after the other.

        If a source is the destination of an earlier copy, the earlier copy's source is read instead.
        """
        if not copies:
            return
        origins: dict[int, int] = {}
        for source, destination in copies:
            origins[destination] = origins.get(source, source)
        sources, destinations = mx.array(list(origins.values())), mx.array(list(origins))
        copied = [pool[sources] for pool in self.pools]
        mx.eval(copied)  # a pool that is still to be read is not written in place: it would be copied
        for pool, blocks in zip(self.pools, copied):
            pool[destinations] = blocks
        self.num_copied_blocks += len(copies)

    def clear_blocks(self, block_ids: Sequence[int]) -> None:
        """Fill whole blocks with zeros in every layer."""
        if block_ids:
            cleared = mx.array(list(block_ids))
            for pool in self.pools:
                pool[cleared] = 0

    def clear_slots(self, slots: TokenArray) -> None:
        """Fill single slots with zeros in every layer."""
        blocks, offsets = (mx.array(part) for part in np.divmod(slots, self.block_size))
        for pool in self.pools:
            pool[blocks, :, offsets] = 0


def paged_attention(queries: mx.array, pool: mx.array, block_tables: Sequence[Sequence[int]],
                    context_lens: Sequence[int], query_starts: Sequence[int], scale: float,
                    window: int | None = None) -> mx.array:
    """Compute attention for each query. The result has the shape of ``queries``, [num_queries, num_heads, head_dim].

    There is one query per token of the step; in the last layer, only for tokens whose logits are needed. Request i has
    the queries from ``query_starts[i]`` to ``query_starts[i + 1]``, which belong to the last of its ``context_lens[i]``
    tokens. Each query attends to all tokens of its request up to and including its own; with a ``window``, only to the
    last ``window`` of them. A block table may be longer than the context needs. Slots after a context may hold
    anything: they do not affect the result.
    """
    _, num_both, block_size, head_dim = pool.shape
    outs = []
    for table, context_len, start, end in zip(block_tables, context_lens, query_starts, query_starts[1:]):
        num_blocks = -(-context_len // block_size)
        blocks = pool[mx.array(list(table[:num_blocks]))]  # [num_blocks, num_both, block_size, head_dim]
        gathered = blocks.swapaxes(0, 1).reshape(num_both, num_blocks * block_size, head_dim)[:, :context_len]
        keys, values = mx.split(gathered, 2)
        out = mx.fast.scaled_dot_product_attention(
            queries[start:end].swapaxes(0, 1)[None], keys[None], values[None], scale=scale,
            mask=mx.array(visible_keys(end - start, context_len, window)))
        outs.append(out[0].swapaxes(0, 1))
    return mx.concatenate(outs)


def visible_keys(num_queries: int, num_keys: int, window: int | None) -> npt.NDArray[np.bool_]:
    """Return a mask [num_queries, num_keys] that is True where a query sees a key.

    The last query and the last key belong to the same token.
    """
    keys, queries = np.arange(num_keys), np.arange(num_keys - num_queries, num_keys)[:, None]
    return (keys <= queries) & (keys > queries - (window or num_keys))
