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
    raise NotImplementedError("Task 1: gather_index")


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
    raise NotImplementedError("Task 2: score_mask")


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
    raise NotImplementedError("Task 3: attend")


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
        raise NotImplementedError("Task 4: ModelRunner.step")
