"""A faster step: the arrays of a step are made once, and all requests that decode are attended to in one call.

    requests          A decodes    B decodes    C computes a chunk of 3
    context_lens      9            4            8
    block tables      [7, 2, 5]    [3]          [1, 6]                         block_size 4

    A and B together            index    A: 7 2 5    B: 3 0 0                  0 is the null block
                                mask     A: 9 slots of 12    B: 4 slots of 12
    C alone, with 3 queries     index    C: 1 6
                                mask     C: 6, 7 and 8 slots of 8

The runner of lab 5.1 makes such arrays in every layer, although they are the same in all layers. Here the first three
functions do the work of one call of attention, and ``step`` prepares what they need before the first layer.

A pool has the same layout as in lab 5.1, [num_blocks, 2 * num_kv_heads, block_size, head_dim]. All its numbers are
finite, also those in slots that were never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from course.base import lab_5_1 as base
from mini_vllm.backend import mx
from mini_vllm.model_runner import RequestStep

# ---- Task 1


def gather_index(block_tables: Sequence[Sequence[int]], context_lens: Sequence[int], num_both: int, block_size: int
                 ) -> mx.array:
    """Return where attention finds the keys and values of these requests, in the order in which it reads them.

    ``num_both`` is the number of key heads plus value heads. ``pool.reshape(-1, block_size, head_dim)`` is a list of
    pages: page ``block_id * num_both + head`` holds the slots of one block for one head. Indexing this list with the
    result gives [num_requests, num_both, num_blocks, block_size, head_dim]. There the blocks of a head follow each
    other, so they can be reshaped to one row of slots without another copy.

    Returns:
    - an int32 array [num_requests, num_both, num_blocks]; ``num_blocks`` is that of the longest context
    - entry [i, head, b] is the page of ``block_tables[i][b]`` for that head
    - if context i has no block b, the entry is the page of block 0
    - entries of a table after the last block of its context are not used

    Example::

        >>> gather_index([[7, 2], [3]], [5, 2], num_both=2, block_size=4).tolist()
        [[[14, 4], [15, 5]], [[6, 0], [7, 1]]]
    """
    # TASK 1: gather_index
    num_blocks = [-(-context_len // block_size) for context_len in context_lens]
    blocks = np.zeros((len(block_tables), max(num_blocks)), dtype=np.int32)
    for row, table, count in zip(blocks, block_tables, num_blocks):
        row[:count] = table[:count]
    return mx.array(blocks[:, None] * num_both + np.arange(num_both, dtype=np.int32)[:, None])
    # END TASK


# ---- Task 2


def score_mask(context_lens: Sequence[int], num_queries: int, block_size: int, window: int | None = None) -> mx.array:
    """Return what is added to the scores of the queries: 0 where a query sees a slot, minus infinity where it does not.

    Each request has ``num_queries`` queries, which belong to the last tokens of its context.

    Returns:
    - a float32 array [num_requests, num_queries, num_slots]
    - ``num_slots`` is the number of slots of the longest context's blocks
    - a query sees the slots from position 0 to its own position
    - with a ``window`` it sees only the last ``window`` of these slots, its own included

    Example::

        >>> score_mask([3, 1], num_queries=1, block_size=2).tolist()
        [[[0.0, 0.0, 0.0, -inf]], [[0.0, -inf, -inf, -inf]]]
    """
    # TASK 2: score_mask
    num_slots = -(-max(context_lens) // block_size) * block_size
    slots = np.arange(num_slots)
    own = np.asarray(context_lens)[:, None, None] - num_queries + np.arange(num_queries)[:, None]
    sees = slots <= own
    if window is not None:
        sees &= slots > own - window
    return mx.array(np.where(sees, np.float32(0), np.float32(-np.inf)))
    # END TASK


# ---- Task 3


def attend(queries: mx.array, pool: mx.array, index: mx.array, mask: mx.array, scale: float) -> mx.array:
    """Compute attention for requests with the same number of queries, in one call.

    Before:
    - ``queries`` is [num_requests, num_queries, num_heads, head_dim]
    - ``index`` is the result of ``gather_index``, and ``mask`` that of ``score_mask``, for these requests
    Returns:
    - the attention output of each query: an array of the shape and the type of ``queries``
    - head ``h`` reads KV head ``h // (num_heads // num_kv_heads)``; a block holds first the keys, then the values
    - scores are multiplied by ``scale``; then the mask is added
    - the content of slots that a query does not see does not change its result

    Example: a query of zeros has the same score everywhere, so its result is the mean of the values that it sees.

        >>> pool = mx.arange(16).reshape(2, 2, 2, 2).astype(mx.float32)
        >>> index, mask = gather_index([[1]], [2], 2, 2), score_mask([2], 1, 2)
        >>> attend(mx.zeros((1, 1, 1, 2)), pool, index, mask, scale=1.0).tolist()
        [[[[13.0, 14.0]]]]
    """
    # TASK 3: attend
    num_requests, num_queries, num_heads, head_dim = queries.shape
    _, num_both, block_size, _ = pool.shape
    num_kv_heads = num_both // 2
    group = num_heads // num_kv_heads

    pages = pool.reshape(-1, block_size, head_dim)[index]
    keys_values = pages.reshape(num_requests, num_both, -1, head_dim)
    keys, values = keys_values[:, :num_kv_heads], keys_values[:, num_kv_heads:]
    # The heads of a group read the same keys: as rows of one matrix they take one product instead of several.
    rows = (queries * scale).reshape(num_requests, num_queries, num_kv_heads, group, head_dim)
    rows = rows.transpose(0, 2, 3, 1, 4).reshape(num_requests, num_kv_heads, group * num_queries, head_dim)
    scores = (rows @ keys.swapaxes(2, 3)).reshape(num_requests, num_kv_heads, group, num_queries, -1)
    weights = mx.softmax(scores + mask[:, None, None], axis=-1)
    out = weights.reshape(num_requests, num_kv_heads, group * num_queries, -1).astype(values.dtype) @ values
    out = out.reshape(num_requests, num_kv_heads, group, num_queries, head_dim).transpose(0, 3, 1, 2, 4)
    return out.reshape(queries.shape).astype(queries.dtype)
    # END TASK


# SOLUTION ONLY


class _Together(NamedTuple):
    """Requests with the same number of queries, and the arrays for them that are the same in all layers."""

    #: The rows of the flat batch that are their queries.
    rows: list[int]
    num_requests: int
    index: mx.array
    #: By window.
    masks: dict[int | None, mx.array]


class _Plan:
    """Everything about attention in a step that does not depend on the layer."""

    def __init__(self, block_tables: Sequence[Sequence[int]], context_lens: Sequence[int], starts: Sequence[int],
                 num_both: int, block_size: int, windows: set[int | None]) -> None:
        nums = [end - start for start, end in zip(starts, starts[1:])]
        decodes = [i for i, num in enumerate(nums) if num == 1]
        self.parts = []
        for members in [decodes] * bool(decodes) + [[i] for i, num in enumerate(nums) if num > 1]:
            tables, lens, num = [block_tables[i] for i in members], [context_lens[i] for i in members], nums[members[0]]
            self.parts.append(_Together(
                [row for i in members for row in range(starts[i], starts[i + 1])], len(members),
                gather_index(tables, lens, num_both, block_size),
                {window: score_mask(lens, num, block_size, window) for window in windows}))
        rows = [row for part in self.parts for row in part.rows]
        #: How to bring the results back into the order of the rows; None if they are in that order.
        self.order = None if rows == list(range(len(rows))) else mx.array(np.argsort(rows).astype(np.int32))

    def attend(self, queries: mx.array, pool: mx.array, scale: float, window: int | None) -> mx.array:
        outs = []
        for part in self.parts:
            first, last = part.rows[0], part.rows[-1]
            is_run = last - first == len(part.rows) - 1
            own = queries[first:last + 1] if is_run else queries[mx.array(part.rows)]
            alike = own.reshape(part.num_requests, -1, *queries.shape[1:])
            outs.append(attend(alike, pool, part.index, part.masks[window], scale).reshape(own.shape))
        out = outs[0] if len(outs) == 1 else mx.concatenate(outs)
        return out if self.order is None else out[self.order]


# END SOLUTION ONLY
# ---- Task 4


class ModelRunner(base.ModelRunner):
    """Attends to all decoding requests at once, with arrays that are made once per step."""

    def step(self, requests: Sequence[RequestStep], copies: Sequence[tuple[int, int]] = ()) -> mx.array:
        """Compute one step for all ``requests``, and return the logits that are wanted, with little CPU time.

        The results are those of lab 5.1. You need not call the functions above, nor ``self.attention``, nor
        ``self.cache.write``. The network is called as in lab 5.1, or with a fourth argument:
        ``self.model(token_ids, positions, attend, wanted)``.

        Before:
        - the fields of a request are those of lab 5.1; requests and slots come in any order
        - all numbers in the pools are finite
        - ``wanted`` is an ``mx.array`` of tokens; the network returns the hidden states of these only, in this order
        - with ``wanted``, in the last layer ``attend`` gets the queries of these tokens and the keys and values of all
        After:
        - ``copies`` were made before anything was written
        - in every layer all keys and values were written before any were read: a request may read what another request
          writes in the same step
        - the keys and values of all tokens are in their slots, even if no logits are wanted
        - no other slot has changed
        Returns:
        - logits [number of wanted tokens, vocab_size], in the order of ``requests``
        - for a request with ``needs_all_logits``: a row for each of its ``token_ids``
        - for any other request with ``needs_logits``: a row for its last token
        - for the remaining requests: no row; if no logits are wanted, the shape is (0, vocab_size)
        - each row is that of the dense model, whatever other requests are in the step
        - in a layer with a window (``self.options[layer]``) a token sees only the last ``window`` tokens

        Example: three requests compute 1, 7 and 5 tokens, and the first and the third need logits. The result has two
        rows: those of tokens 0 and 12 of the flat batch.
        """
        # TASK 4: ModelRunner.step
        pools, block_size, last = self.cache.pools, self.cache.block_size, len(self.options) - 1
        _, num_both, _, head_dim = pools[0].shape
        windows: list[int | None] = [options.get("window") for options in self.options]

        tables = [request.block_ids for request in requests]
        lens = [request.context_len for request in requests]
        starts = [0, *np.cumsum([len(request.token_ids) for request in requests]).tolist()]
        positions = base.token_positions(lens, starts)
        blocks, offsets = np.divmod(base.slot_mapping(tables, positions, starts, block_size), block_size)
        # Where each key and value of the step is in a pool that is seen as a list of vectors.
        vectors = mx.array(((blocks[:, None] * num_both + np.arange(num_both)) * block_size
                            + offsets[:, None]).reshape(-1).astype(np.uint32))

        wanted: list[int] = []
        for request, start, end in zip(requests, starts, starts[1:]):
            wanted += range(start if request.needs_all_logits else end - 1,
                            end if request.needs_logits or request.needs_all_logits else end - 1)
        plan = _Plan(tables, lens, starts, num_both, block_size, set(windows))
        # Only in the last layer do the queries of the other tokens not matter.
        owners = [i for i, request in enumerate(requests) if request.needs_logits]
        is_cut = len(wanted) < starts[-1] and not any(request.needs_all_logits for request in requests)
        last_plan = plan
        if is_cut and owners:
            last_plan = _Plan([tables[i] for i in owners], [lens[i] for i in owners], range(len(owners) + 1), num_both,
                              block_size, {windows[last]})

        def write_and_attend(layer: int, queries: mx.array, keys_values: mx.array) -> mx.array:
            pool = pools[layer].reshape(-1, head_dim)
            pool[vectors] = keys_values.reshape(-1, head_dim)
            pools[layer] = pool.reshape(pools[layer].shape)
            if not queries.shape[0]:
                return queries
            return (last_plan if layer == last else plan).attend(queries, pools[layer], self.scale, windows[layer])

        token_ids = mx.array([token_id for request in requests for token_id in request.token_ids], dtype=mx.int32)
        rows = mx.array(wanted, dtype=mx.int32)
        self.cache.copy_blocks(copies)
        hidden = self.model(token_ids, mx.array(positions.astype(np.int32)), write_and_attend, rows if is_cut else None)
        return self.model.logits(hidden if is_cut or len(wanted) == starts[-1] else hidden[rows])
        # END TASK
