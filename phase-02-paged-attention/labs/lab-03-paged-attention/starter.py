"""Attention over K/V in scattered blocks, located through a block table.

    position     0  1  2  3 | 4  5  6  7 | 8  9            context_len 10, block_size 4
    block table  [    7     ,     2      ,   5 ]
    slot        28 29 30 31 | 8  9 10 11 | 20 21           slot = block_id * block_size + offset

    k_pool, v_pool   [num_blocks, num_kv_heads, block_size, head_dim]   one array for all requests
    keys, values     [num_tokens, num_kv_heads, head_dim]               what one step computed
    queries          [num_query_tokens, num_heads, head_dim]            the last positions of a context

Slots outside a request's context hold garbage from earlier requests, which may be NaN. Entries of a table after the
context are padding, such as -1. No result may depend on either. A pool may be a view of a larger array. Arithmetic is
numpy's default, float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def check_slot_mapping_inputs(block_table: Sequence[int], first_position: int, num_tokens: int,
                              block_size: int) -> None:
    """Raise ValueError if the arguments of ``slot_mapping`` are invalid. Padding is not checked. Given."""
    if block_size < 1:
        raise ValueError(f"slots: block_size is {block_size}, must be at least 1")
    if first_position < 0 or num_tokens < 0:
        raise ValueError(f"slots: first_position is {first_position} and num_tokens is {num_tokens}, both must be at "
                         "least 0")
    num_slots_needed, num_slots = first_position + num_tokens, len(block_table) * block_size
    if num_slots_needed > num_slots:
        raise ValueError(f"slots: {num_slots_needed} slots are needed, but a table of {len(block_table)} blocks of "
                         f"{block_size} tokens has {num_slots}")
    used = block_table[first_position // block_size:-(-num_slots_needed // block_size)] if num_tokens else []
    for block_id in used:
        if block_id < 0:
            raise ValueError(f"slots: block id {block_id} is in the table, must be at least 0")


def slot_mapping(block_table: Sequence[int], first_position: int, num_tokens: int, block_size: int) -> np.ndarray:
    """Return the slots of positions ``first_position … first_position + num_tokens - 1``.

    Position ``p`` is in block ``block_table[p // block_size]`` at offset ``p % block_size``. Its slot is
    ``block_id * block_size + offset``.

    Before:
    - ``block_table`` is a list of ints, or an array of int32: vLLM keeps its tables in such arrays
    Returns:
    - the slots in the order of the positions, an int64 array [num_tokens]; without tokens it is empty but still int64
    - the same slots whatever the table contains before and after these positions: those entries are padding, such as -1
    Raises:
    - ValueError if ``check_slot_mapping_inputs`` rejects the arguments, even if there are no tokens

    Example::

        >>> slot_mapping([7, 2, 5], first_position=6, num_tokens=4, block_size=4).tolist()
        [10, 11, 20, 21]
    """
    raise NotImplementedError("Task 1: slot_mapping")


def check_write_inputs(k_pool: np.ndarray, v_pool: np.ndarray, keys: np.ndarray, values: np.ndarray,
                       slots: Sequence[int] | np.ndarray) -> None:
    """Raise ValueError if the arguments of ``write_kv`` are invalid: a wrong shape, a slot out of range. Given."""
    num_blocks, num_kv_heads, block_size, head_dim = k_pool.shape
    if v_pool.shape != k_pool.shape:
        raise ValueError(f"write_kv: v_pool has shape {v_pool.shape}, expected that of k_pool, {k_pool.shape}")
    expected = (len(slots), num_kv_heads, head_dim)
    for name, array in (("keys", keys), ("values", values)):
        if array.shape != expected:
            raise ValueError(f"write_kv: {name} has shape {array.shape}, expected {expected}: "
                             "one [num_kv_heads, head_dim] per slot")
    for slot in slots:
        if not 0 <= slot < num_blocks * block_size:
            raise ValueError(f"write_kv: slot {slot} is not between 0 and {num_blocks * block_size - 1}")


def write_kv(k_pool: np.ndarray, v_pool: np.ndarray, keys: np.ndarray, values: np.ndarray,
             slots: Sequence[int] | np.ndarray) -> None:
    """Write token ``i``'s ``keys[i]`` and ``values[i]`` into slot ``slots[i]`` of the pools, in place.

    Before:
    - both pools are [num_blocks, num_kv_heads, block_size, head_dim]
    - ``keys`` and ``values`` are [len(slots), num_kv_heads, head_dim]
    - ``slots`` is a list or an array of distinct slots in any order; it may be empty
    After:
    - those slots hold the new vectors, in the pools themselves
    - every other number in the pools is unchanged
    Raises:
    - ValueError if ``check_write_inputs`` rejects the arguments; nothing is written then

    Example::

        >>> k_pool, v_pool = np.zeros((2, 3, 1, 4, 2))  # 3 blocks of 4 tokens, 1 kv head, head_dim 2
        >>> write_kv(k_pool, v_pool, np.ones((1, 1, 2)), np.ones((1, 1, 2)), [6])
        >>> np.argwhere(k_pool).tolist()  # block 1, kv head 0, offset 2, both numbers of the vector
        [[1, 0, 2, 0], [1, 0, 2, 1]]
    """
    raise NotImplementedError("Task 2: write_kv")


def check_gather_inputs(pool: np.ndarray, block_table: Sequence[int], num_tokens: int) -> None:
    """Raise ValueError if the arguments of ``gather_kv`` are invalid. Padding is not checked. Given."""
    num_blocks, _, block_size, _ = pool.shape
    check_slot_mapping_inputs(block_table, 0, num_tokens, block_size)
    for block_id in block_table[:-(-num_tokens // block_size)]:
        if block_id >= num_blocks:
            raise ValueError(f"gather_kv: block id {block_id} is not between 0 and {num_blocks - 1}")


def gather_kv(pool: np.ndarray, block_table: Sequence[int], num_tokens: int) -> np.ndarray:
    """Copy positions ``0 … num_tokens - 1`` of one sequence out of ``pool``.

    Returns:
    - the vectors of these positions in order, [num_tokens, num_kv_heads, head_dim], each number as it is in the pool
    - nothing else: not the rest of the last block, and no block of the table's padding, which may be -1
    - a new array: a write to it does not change the pool
    Raises:
    - ValueError if ``check_gather_inputs`` rejects the arguments

    Example::

        >>> pool = np.arange(12).reshape(3, 1, 4, 1)  # 3 blocks of 4 tokens: each slot holds its own number
        >>> gather_kv(pool, [2, 0], 6).ravel().tolist()
        [8, 9, 10, 11, 0, 1]
    """
    raise NotImplementedError("Task 3: gather_kv")


def check_attention_inputs(queries: np.ndarray, k_pool: np.ndarray, v_pool: np.ndarray, block_table: Sequence[int],
                           context_len: int) -> None:
    """Raise ValueError if the arguments of an attention function are invalid: shapes, lengths, block ids. Given.

    The check does not read the contents of the pools.
    """
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
    """Compute causal attention for one request: gather its K/V first. Prefill and decode use the same call.

        context   0 ……………………………… context_len - 1      already written to the pools
        queries                  [ its last num_query_tokens positions ]

    After:
    - nothing is written to the arguments
    Returns:
    - [num_query_tokens, num_heads, head_dim]: per query and head, the sum of the visible values, weighted by the
      softmax of the scores
    - query ``i`` is at position ``context_len - num_query_tokens + i`` and sees that position and all before it
    - head ``h`` reads kv head ``h // group``, where ``group = num_heads // num_kv_heads``
    - scores are multiplied by ``scale``; only None means the default, ``1 / sqrt(head_dim)``
    - the right numbers for finite scores of any size, even if the scores of two queries or two heads are far apart
    Raises:
    - ValueError if ``check_attention_inputs`` rejects the arguments

    Example::

        >>> k_pool, v_pool = np.zeros((3, 1, 2, 1)), np.arange(6.0).reshape(3, 1, 2, 1)
        >>> out = paged_attention(np.ones((2, 1, 1)), k_pool, v_pool, [2, 0], 3)  # all scores are equal
        >>> out.ravel().round(6).tolist()  # the means of 4 and 5, and of 4, 5 and 0
        [4.5, 3.0]
    """
    raise NotImplementedError("Task 4: paged_attention")


def paged_attention_online(queries: np.ndarray, k_pool: np.ndarray, v_pool: np.ndarray, block_table: Sequence[int],
                           context_len: int, scale: float | None = None) -> np.ndarray:
    """Compute the result of ``paged_attention`` one block at a time, with a running softmax and without gathering.

    From block to block, keep three values per query and head: the largest score so far, the sum of
    ``exp(score - largest)`` so far, and the sum of ``exp(score - largest) * value`` so far.

    After:
    - nothing is written to the arguments
    - each pool was read only as ``pool[block_id]``, or a part of that, for blocks that hold the context
    - each of these blocks was read once, for all queries together: there is no second pass
    - no K/V, scores or mask of the whole context were kept: memory does not grow with ``context_len``
    Returns:
    - what ``paged_attention`` returns
    - the right numbers for finite scores of any size, even if the scores of two queries or two heads are far apart
    Raises:
    - ValueError if ``check_attention_inputs`` rejects the arguments, before a block is read

    Example::

        >>> k_pool = np.array([0.0, 1.0, 3.0, 2.0, 1.0, np.nan]).reshape(3, 1, 2, 1)  # the scores, for a query of 1
        >>> v_pool = np.array([1.0, 2.0, 4.0, 8.0, 16.0, np.nan]).reshape(3, 1, 2, 1)
        >>> paged_attention_online(np.ones((1, 1, 1)), k_pool, v_pool, [0, 1, 2], 5, scale=1.0).round(4).tolist()
        [[[5.5847]]]
    """
    raise NotImplementedError("Task 5: paged_attention_online")


def ragged_paged_attention(queries: np.ndarray, k_pool: np.ndarray, v_pool: np.ndarray,
                           block_tables: Sequence[Sequence[int]], query_lens: Sequence[int],
                           context_lens: Sequence[int]) -> np.ndarray:
    """Compute attention for a whole step: requests of different lengths, one after the other, without padding.

        queries     [ A A A A A | B | C C ]        query_lens   [5, 1, 2]     A prefills a chunk, B decodes a token
        positions     3 4 5 6 7   9   0 1          context_lens [8, 10, 2]    B's query is the last of its 10 tokens

    Request ``r`` owns the next ``query_lens[r]`` rows of ``queries``. It has ``context_lens[r]`` tokens in the pools,
    and ``block_tables[r]`` is its block table. Two tables may contain the same block, and tables may be padded.

    After:
    - nothing is written to the arguments
    Returns:
    - per row, what ``paged_attention`` returns for its request, with the default scale
    - a float64 array with the shape of ``queries``, even if ``queries`` is float32; without requests it has no rows
    Raises:
    - ValueError if the numbers of tables, query_lens and context_lens differ, even if there are no rows
    - ValueError if a query_len is below 1; the message contains that number
    - ValueError if the query_lens do not add up to the rows of ``queries``; the message contains both numbers
    - ValueError if ``check_attention_inputs`` rejects the arguments of one of the requests

    Example::

        >>> k_pool, v_pool = np.zeros((3, 1, 2, 1)), np.arange(6.0).reshape(3, 1, 2, 1)
        >>> out = ragged_paged_attention(np.ones((3, 1, 1)), k_pool, v_pool, [[2, 0], [1]], [2, 1], [3, 2])
        >>> out.ravel().round(6).tolist()  # two rows of the first request, one of the second: the mean of 2 and 3
        [4.5, 3.0, 2.5]
    """
    raise NotImplementedError("Task 6: ragged_paged_attention")
