"""Attention over K/V that lies scattered over blocks, found through a block table.

    position     0  1  2  3 | 4  5  6  7 | 8  9            context_len 10, block_size 4
    block table  [    7     ,     2      ,   5 ]
    slot        28 29 30 31 | 8  9 10 11 | 20 21           slot = block_id * block_size + offset

    k_pool, v_pool   [num_blocks, num_kv_heads, block_size, head_dim]   one array for all requests
    keys, values     [num_tokens, num_kv_heads, head_dim]               what one step computed
    queries          [num_query_tokens, num_heads, head_dim]            the last positions of a context

Slots outside a request's context hold garbage, NaN included: whoever wrote there last is gone. No result may depend on
it. Arithmetic is numpy's default, float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def slot_mapping(block_table: Sequence[int], first_position: int, num_tokens: int, block_size: int) -> np.ndarray:
    """The slots of positions ``first_position … first_position + num_tokens - 1``, an int64 array [num_tokens].

    Position ``p`` lives in block ``block_table[p // block_size]`` at offset ``p % block_size``; its slot is
    ``block_id * block_size + offset``. No tokens give an empty array, of int64 too. A table may be longer than needed;
    entries past the last of these positions are padding and are not looked at, nor are those before the first.

    Raises ValueError, with the value in the message, for a ``block_size`` below 1; for a negative ``first_position`` or
    ``num_tokens``; for a table with fewer than ``first_position + num_tokens`` slots, even if there are no tokens (the
    message holds both numbers of slots); for a negative block id at one of these positions.
    """
    if block_size < 1:
        raise ValueError(f"slot_mapping: block_size is {block_size}, must be at least 1")
    if first_position < 0:
        raise ValueError(f"slot_mapping: first_position is {first_position}, must be at least 0")
    if num_tokens < 0:
        raise ValueError(f"slot_mapping: num_tokens is {num_tokens}, must be at least 0")
    end = first_position + num_tokens
    if end > len(block_table) * block_size:
        raise ValueError(f"slot_mapping: {end} slots are needed, the table has {len(block_table) * block_size}")
    slots = np.empty(num_tokens, dtype=np.int64)
    for i in range(num_tokens):
        index, offset = divmod(first_position + i, block_size)
        block_id = int(block_table[index])
        if block_id < 0:
            raise ValueError(f"slot_mapping: block id {block_id} is negative")
        slots[i] = block_id * block_size + offset
    return slots


def write_kv(k_pool: np.ndarray, v_pool: np.ndarray, keys: np.ndarray, values: np.ndarray,
             slots: Sequence[int] | np.ndarray) -> None:
    """Write token ``i``'s ``keys[i]`` and ``values[i]`` into slot ``slots[i]`` of the pools, in place.

    Before: the pools have one shape, [num_blocks, num_kv_heads, block_size, head_dim]; ``keys`` and ``values`` are
    exactly [len(slots), num_kv_heads, head_dim]; every slot is between 0 and ``num_blocks * block_size - 1``. The
    slots are distinct and in any order. No slots: nothing happens.
    After: those slots hold the new vectors. Every other number in the pools is what it was.
    Raises ValueError, before the first write, if a shape is wrong (the message holds that shape and the expected one);
    if a slot is out of range (the message holds the slot).
    """
    if v_pool.shape != k_pool.shape:
        raise ValueError(f"write_kv: v_pool has shape {v_pool.shape}, expected {k_pool.shape}")
    num_blocks, num_kv_heads, block_size, head_dim = k_pool.shape
    slots = np.asarray(slots, dtype=np.int64)
    expected = (len(slots), num_kv_heads, head_dim)
    for name, array in (("keys", keys), ("values", values)):
        if array.shape != expected:
            raise ValueError(f"write_kv: {name} have shape {array.shape}, expected {expected}")
    for slot in slots.tolist():
        if not 0 <= slot < num_blocks * block_size:
            raise ValueError(f"write_kv: slot {slot} is not between 0 and {num_blocks * block_size - 1}")
    blocks, offsets = slots // block_size, slots % block_size
    k_pool[blocks, :, offsets] = keys
    v_pool[blocks, :, offsets] = values


def gather_kv(pool: np.ndarray, block_table: Sequence[int], num_tokens: int) -> np.ndarray:
    """Copy positions ``0 … num_tokens - 1`` of one sequence out of ``pool``: [num_tokens, num_kv_heads, head_dim].

    Only the slots of these positions are read; the rest of the last block is garbage and is not part of the result.
    Entries of the table past the last of them are padding. The result is an array of its own: who changes it does not
    change the pool.
    Raises ValueError if the table has fewer than ``num_tokens`` slots; if one of the blocks that hold these positions
    is not between 0 and ``num_blocks - 1`` (the message holds the block id).
    """
    num_blocks, num_kv_heads, block_size, head_dim = pool.shape
    if num_tokens > len(block_table) * block_size:
        raise ValueError(f"gather_kv: {num_tokens} tokens, the table has {len(block_table) * block_size} slots")
    result = np.empty((num_tokens, num_kv_heads, head_dim), dtype=pool.dtype)
    for index in range(-(-num_tokens // block_size)):
        block_id = block_table[index]
        if not 0 <= block_id < num_blocks:
            raise ValueError(f"gather_kv: block id {block_id} is not between 0 and {num_blocks - 1}")
        start = index * block_size
        count = min(block_size, num_tokens - start)
        result[start:start + count] = pool[block_id, :, :count].swapaxes(0, 1)
    return result


def check_attention_inputs(queries: np.ndarray, k_pool: np.ndarray, v_pool: np.ndarray, block_table: Sequence[int],
                           context_len: int) -> None:
    """Given. Raise ValueError if these cannot be the arguments of an attention. It looks at shapes, not at numbers."""
    num_query_tokens, num_heads, head_dim = queries.shape
    num_blocks, num_kv_heads, block_size, pool_head_dim = k_pool.shape
    if v_pool.shape != k_pool.shape:
        raise ValueError(f"attention: v_pool has shape {v_pool.shape}, expected that of k_pool, {k_pool.shape}")
    if head_dim != pool_head_dim:
        raise ValueError(f"attention: queries have head_dim {head_dim}, the pools have {pool_head_dim}")
    if num_heads % num_kv_heads:
        raise ValueError(f"attention: {num_heads} heads do not divide evenly over {num_kv_heads} kv heads")
    if not 1 <= num_query_tokens <= context_len:
        raise ValueError(f"attention: {num_query_tokens} query tokens are not between 1 and context_len {context_len}")
    if context_len > len(block_table) * block_size:
        raise ValueError(f"attention: context_len is {context_len}, but a table of {len(block_table)} blocks of "
                         f"{block_size} tokens has only {len(block_table) * block_size} slots")
    for block_id in block_table[:-(-context_len // block_size)]:
        if not 0 <= block_id < num_blocks:
            raise ValueError(f"attention: block id {block_id} is not between 0 and {num_blocks - 1}")


def paged_attention(queries: np.ndarray, k_pool: np.ndarray, v_pool: np.ndarray, block_table: Sequence[int],
                    context_len: int, scale: float | None = None) -> np.ndarray:
    """Causal attention of one request, K/V gathered first: [num_query_tokens, num_heads, head_dim].

        context   0 ……………………………… context_len - 1      all of it written to the pools already
        queries                  [ the last num_query_tokens positions of it ]

    A prefill chunk and a decode step (one query) are the same call. Query ``i`` stands at position
    ``context_len - num_query_tokens + i`` and sees that position and all before it. Head ``h`` reads kv head
    ``h // group``, where ``group = num_heads // num_kv_heads``. Scores are multiplied by ``scale``; only None means
    the default, ``1 / sqrt(head_dim)``. Nothing is written to the arguments. Finite scores of any size give the right
    result: the largest score that a query and head sees is taken off before exp.
    Raises ValueError as check_attention_inputs does.
    """
    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_queries, num_heads, head_dim = queries.shape
    if scale is None:
        scale = 1.0 / np.sqrt(head_dim)
    group = num_heads // k_pool.shape[1]
    keys = np.repeat(gather_kv(k_pool, block_table, context_len), group, axis=1)
    values = np.repeat(gather_kv(v_pool, block_table, context_len), group, axis=1)
    scores = np.einsum("qhd,khd->hqk", queries, keys) * scale
    positions = context_len - num_queries + np.arange(num_queries)
    visible = np.arange(context_len)[None, :] <= positions[:, None]
    scores = np.where(visible[None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, values)


def paged_attention_online(queries: np.ndarray, k_pool: np.ndarray, v_pool: np.ndarray, block_table: Sequence[int],
                           context_len: int, scale: float | None = None) -> np.ndarray:
    """The same result as ``paged_attention``, one block at a time with a running softmax. Nothing is gathered.

    For each query and head three things are carried from block to block: the largest score so far, the sum of
    ``exp(score - largest)`` so far, and the same sum with the values in it. When the largest grows, the two sums are
    scaled down to it.

    Each pool is read as ``pool[block_id]``, or a part of that, and only for the blocks that hold the context. Each
    block is read once, for all queries together: there is no second pass, for reading is what a decode step waits for.
    Neither K/V nor scores are kept, so memory does not grow with ``context_len``. Finite scores of any size give the
    right result: no exp overflows.
    Raises ValueError as check_attention_inputs does, before it reads a block.
    """
    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_queries, num_heads, head_dim = queries.shape
    num_kv_heads, block_size = k_pool.shape[1], k_pool.shape[2]
    if scale is None:
        scale = 1.0 / np.sqrt(head_dim)
    group = num_heads // num_kv_heads
    grouped = queries.reshape(num_queries, num_kv_heads, group, head_dim)
    positions = context_len - num_queries + np.arange(num_queries)
    largest = np.full((num_queries, num_kv_heads, group), -np.inf)
    total = np.zeros((num_queries, num_kv_heads, group))
    weighted = np.zeros((num_queries, num_kv_heads, group, head_dim))
    for index in range(-(-context_len // block_size)):
        start = index * block_size
        count = min(block_size, context_len - start)
        k_block = k_pool[block_table[index]][:, :count]
        v_block = v_pool[block_table[index]][:, :count]
        block_scores = np.einsum("qngd,nsd->qngs", grouped, k_block) * scale
        seen = start + np.arange(count)[None, :] <= positions[:, None]
        block_scores = np.where(seen[:, None, None, :], block_scores, -np.inf)
        new_largest = np.maximum(largest, block_scores.max(axis=-1))
        shrink = np.exp(largest - new_largest)
        parts = np.exp(block_scores - new_largest[..., None])
        total = total * shrink + parts.sum(axis=-1)
        weighted = weighted * shrink[..., None] + np.einsum("qngs,nsd->qngd", parts, v_block)
        largest = new_largest
    return (weighted / total[..., None]).reshape(queries.shape)


def ragged_paged_attention(queries: np.ndarray, k_pool: np.ndarray, v_pool: np.ndarray,
                           block_tables: Sequence[Sequence[int]], query_lens: Sequence[int],
                           context_lens: Sequence[int]) -> np.ndarray:
    """Attention of a whole step: requests of different lengths, flattened one after the other, without padding.

        queries     [ A A A A A | B | C C ]        query_lens   [5, 1, 2]     A prefills a chunk, B decodes a token
        positions     3 4 5 6 7   9   0 1          context_lens [8, 10, 2]    B's query is the last of its 10 tokens

    Request ``r`` owns the next ``query_lens[r]`` rows of ``queries``, has ``context_lens[r]`` tokens in the pools and
    finds them through ``block_tables[r]``. Tables may name the same blocks. The result has the shape of ``queries``,
    row for row, with the default scale; a batch of no requests gives an empty one.
    Raises ValueError if there are not as many tables, query_lens and context_lens; if a query_len is below 1; if the
    query_lens do not add up to the rows of ``queries`` (the message holds both numbers); if one request's arguments
    fail check_attention_inputs.
    """
    if not len(block_tables) == len(query_lens) == len(context_lens):
        raise ValueError(f"ragged_paged_attention: {len(block_tables)} tables, {len(query_lens)} query_lens, "
                         f"{len(context_lens)} context_lens")
    for query_len in query_lens:
        if query_len < 1:
            raise ValueError(f"ragged_paged_attention: a query_len is {query_len}, must be at least 1")
    if sum(query_lens) != len(queries):
        raise ValueError(f"ragged_paged_attention: query_lens add up to {sum(query_lens)}, there are {len(queries)} rows")
    result = np.zeros(queries.shape)
    row = 0
    for table, query_len, context_len in zip(block_tables, query_lens, context_lens):
        rows = slice(row, row + query_len)
        result[rows] = paged_attention_online(queries[rows], k_pool, v_pool, table, context_len)
        row += query_len
    return result
