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
    # TASK 1: slot_mapping
    if block_size < 1:
        raise ValueError(f"slot_mapping: block_size is {block_size}, must be at least 1")
    if first_position < 0 or num_tokens < 0:
        raise ValueError(f"slot_mapping: first_position is {first_position} and num_tokens is {num_tokens}, "
                         "both must be at least 0")
    num_slots_needed, num_slots = first_position + num_tokens, len(block_table) * block_size
    if num_slots_needed > num_slots:
        raise ValueError(f"slot_mapping: {num_slots_needed} slots are needed, but a table of {len(block_table)} blocks "
                         f"of {block_size} tokens has {num_slots}")
    if num_tokens == 0:
        return np.zeros(0, dtype=np.int64)
    positions = np.arange(first_position, num_slots_needed, dtype=np.int64)
    num_blocks_needed = -(-num_slots_needed // block_size)
    block_ids = np.asarray(block_table[:num_blocks_needed], dtype=np.int64)[positions // block_size]
    if block_ids.min() < 0:
        raise ValueError(f"slot_mapping: block id {block_ids.min()} is in the table, must be at least 0")
    return block_ids * block_size + positions % block_size
    # END TASK


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
    # TASK 2: write_kv
    num_blocks, num_kv_heads, block_size, head_dim = k_pool.shape
    slots = np.asarray(slots, dtype=np.int64)
    if v_pool.shape != k_pool.shape:
        raise ValueError(f"write_kv: v_pool has shape {v_pool.shape}, expected that of k_pool, {k_pool.shape}")
    expected = (len(slots), num_kv_heads, head_dim)
    for name, array in (("keys", keys), ("values", values)):
        if array.shape != expected:
            raise ValueError(f"write_kv: {name} has shape {array.shape}, expected {expected}: "
                             "one [num_kv_heads, head_dim] a slot")
    num_slots = num_blocks * block_size
    outside = slots[(slots < 0) | (slots >= num_slots)]
    if len(outside):
        raise ValueError(f"write_kv: slot {outside[0]} is not between 0 and {num_slots - 1}")
    block_ids, offsets = slots // block_size, slots % block_size
    # Two index arrays with a slice between them: numpy puts their common axis, the token, first.
    k_pool[block_ids, :, offsets] = keys
    v_pool[block_ids, :, offsets] = values
    # END TASK


def gather_kv(pool: np.ndarray, block_table: Sequence[int], num_tokens: int) -> np.ndarray:
    """Copy positions ``0 … num_tokens - 1`` of one sequence out of ``pool``: [num_tokens, num_kv_heads, head_dim].

    Only the slots of these positions are read; the rest of the last block is garbage and is not part of the result.
    Entries of the table past the last of them are padding. The result is an array of its own: who changes it does not
    change the pool.
    Raises ValueError if the table has fewer than ``num_tokens`` slots; if one of the blocks that hold these positions
    is not between 0 and ``num_blocks - 1`` (the message holds the block id).
    """
    # TASK 3: gather_kv
    num_blocks, _, block_size, _ = pool.shape
    slots = slot_mapping(block_table, 0, num_tokens, block_size)
    block_ids, offsets = slots // block_size, slots % block_size
    if num_tokens and block_ids.max() >= num_blocks:
        raise ValueError(f"gather_kv: block id {block_ids.max()} is not between 0 and {num_blocks - 1}")
    return pool[block_ids, :, offsets]
    # END TASK


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
    # TASK 4: paged_attention
    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = k_pool.shape[1]
    if scale is None:
        scale = 1.0 / head_dim**0.5
    keys = gather_kv(k_pool, block_table, context_len)  # [context_len, num_kv_heads, head_dim]
    values = gather_kv(v_pool, block_table, context_len)
    grouped = queries.reshape(num_query_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)

    scores = np.einsum("qkgd,ckd->kgqc", grouped, keys) * scale
    query_positions = np.arange(context_len - num_query_tokens, context_len)
    sees = np.arange(context_len) <= query_positions[:, None]  # [num_query_tokens, context_len]
    scores = np.where(sees, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("kgqc,ckd->qkgd", weights, values).reshape(queries.shape)
    # END TASK


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
    # TASK 5: paged_attention_online
    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    _, num_kv_heads, block_size, _ = k_pool.shape
    group_size = num_heads // num_kv_heads
    if scale is None:
        scale = 1.0 / head_dim**0.5
    head_major = queries.reshape(num_query_tokens, num_kv_heads, group_size, head_dim).transpose(1, 2, 0, 3)
    query_positions = np.arange(context_len - num_query_tokens, context_len)

    running_max = np.full(head_major.shape[:3], -np.inf)  # [num_kv_heads, group_size, num_query_tokens]
    running_sum = np.zeros(head_major.shape[:3])
    accumulator = np.zeros(head_major.shape)
    for index, first_position in enumerate(range(0, context_len, block_size)):
        num_valid = min(block_size, context_len - first_position)
        block_keys = k_pool[block_table[index]][:, None, :num_valid]  # [num_kv_heads, 1, num_valid, head_dim]
        block_values = v_pool[block_table[index]][:, None, :num_valid]
        block_scores = head_major @ block_keys.swapaxes(-1, -2) * scale
        visible = np.arange(first_position, first_position + num_valid) <= query_positions[:, None]
        block_scores = np.where(visible, block_scores, -np.inf)
        # Finite from the first block on: every query sees position 0. So the subtractions below are never inf - inf.
        new_max = np.maximum(running_max, block_scores.max(axis=-1))
        shrink = np.exp(running_max - new_max)
        block_weights = np.exp(block_scores - new_max[..., None])
        running_sum = running_sum * shrink + block_weights.sum(axis=-1)
        accumulator = accumulator * shrink[..., None] + block_weights @ block_values
        running_max = new_max
    return (accumulator / running_sum[..., None]).transpose(2, 0, 1, 3).reshape(queries.shape)
    # END TASK


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
    # TASK 6: ragged_paged_attention
    if not len(block_tables) == len(query_lens) == len(context_lens):
        raise ValueError(f"ragged_paged_attention: {len(block_tables)} block tables, {len(query_lens)} query_lens and "
                         f"{len(context_lens)} context_lens, expected as many of each")
    for request_index, query_len in enumerate(query_lens):
        if query_len < 1:
            raise ValueError(f"ragged_paged_attention: query_lens[{request_index}] is {query_len}, must be at least 1")
    if sum(query_lens) != queries.shape[0]:
        raise ValueError(f"ragged_paged_attention: query_lens add up to {sum(query_lens)}, "
                         f"but there are {queries.shape[0]} query tokens")
    outputs = []
    start = 0
    for block_table, query_len, context_len in zip(block_tables, query_lens, context_lens):
        rows = queries[start:start + query_len]
        outputs.append(paged_attention_online(rows, k_pool, v_pool, block_table, context_len))
        start += query_len
    return np.concatenate(outputs) if outputs else np.zeros(queries.shape)
    # END TASK
