"""One step of the model over paged K/V: find each token's slot, write its K/V there, attend through block tables.

    pools[layer]              [num_blocks, 2 * num_kv_heads, block_size, head_dim]: a block's keys, then its values
    position p of a request   block table[p // block_size], offset p % block_size
    slot                      block_id * block_size + offset: the location of one token, the same in every layer

A step computes a flat batch of tokens, request after request, with no padding:

    token            0   1   2   3   4   5   6
    request          A   B   C   C   C   D   D          A and B decode, C and D compute a chunk of their prompts
    query_starts   [ 0,  1,  2,          5,      7 ]    request i begins at token query_starts[i]
    context_lens   [ 9,  4,  3,          8 ]            how many tokens of the request have K/V after the step
    positions        8   3   0   1   2   6   7          the tokens of a request are the last ones of its context

A block table may be longer than its context needs. Ignore the entries after the context's last block. Nothing here
checks its arguments: they come from the scheduler, which has allocated a slot for every token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mini_vllm.backend import mx
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.network import Model

#: One number per token: positions or slots.
TokenArray = npt.NDArray[np.int64]


# ---- Task 1


def token_positions(context_lens: Sequence[int], query_starts: Sequence[int]) -> TokenArray:
    """Return the position of each token of a step within its own request, as an int64 array [num_tokens].

    Request ``i`` computes ``query_starts[i + 1] - query_starts[i]`` tokens, at least one. They are the last ones of its
    ``context_lens[i]`` tokens, in order. The first token of a request has position 0.
    """
    raise NotImplementedError("Task 1: token_positions")


def slot_mapping(block_tables: Sequence[Sequence[int]], positions: TokenArray, query_starts: Sequence[int],
                 block_size: int) -> TokenArray:
    """Return the slot of each token of a step, where its keys and values are written, as an int64 array [num_tokens].

    If token ``t`` of the step belongs to request ``i``, it is at position ``positions[t]`` of that request, in block
    ``block_tables[i][positions[t] // block_size]``.
    """
    raise NotImplementedError("Task 1: slot_mapping")


class PagedKVCache:
    """The K/V arrays of all layers, addressed by block id.

    MLX writes into an array in place only if nothing else needs the old content. Otherwise it copies the array first,
    and here that is a whole pool. So no other object keeps a reference to a pool, or to a view of one.
    """

    def __init__(self, num_layers: int, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int,
                 dtype: mx.Dtype) -> None:
        """Create the pools, filled with zeros. Given."""
        self.block_size = block_size
        self.pools = [mx.zeros((num_blocks, 2 * num_kv_heads, block_size, head_dim), dtype) for _ in range(num_layers)]
        #: Blocks copied since the start. Each copy counts once, not once per layer.
        self.num_copied_blocks = 0
        mx.eval(self.pools)

    @staticmethod
    def block_bytes(num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: mx.Dtype) -> int:
        """Return the number of bytes of one block, summed over all layers. Given."""
        return 2 * num_layers * num_kv_heads * block_size * head_dim * dtype.size

    # ---- Task 2

    def write(self, layer: int, keys_values: mx.array, slots: TokenArray) -> None:
        """Store the keys and values of tokens, each token in its slot.

        Before:
        - ``keys_values`` is [num_tokens, 2 * num_kv_heads, head_dim]
        - ``slots`` are all different, in any order
        After:
        - each of these slots of ``pools[layer]`` holds its token's keys and values, whatever it held before
        - nothing else in any pool has changed
        - the pool was written in place: no second pool was made
        - there was one write for all tokens, not one per token

        Example::

            >>> cache = PagedKVCache(1, num_blocks=4, num_kv_heads=1, block_size=4, head_dim=2, dtype=mx.float32)
            >>> cache.write(0, mx.array([[[1, 2], [3, 4]]]), np.array([13]))
            >>> cache.pools[0][3, :, 1].tolist()
            [[1.0, 2.0], [3.0, 4.0]]
        """
        raise NotImplementedError("Task 2: PagedKVCache.write")

    # ---- Task 3

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks in every layer; each pair of block ids is (source, destination).

        Evaluate the blocks read from a pool (``mx.eval``) before you write to that pool. MLX is lazy: if a read of the
        pool is still pending, MLX copies the whole pool before it writes.

        After:
        - in every layer the blocks are as if the copies had been made one after the other
        - so a block that an earlier pair wrote is copied with its new content
        - and if two pairs have the same destination, the later pair wins
        - ``num_copied_blocks`` has grown by the number of pairs
        - the pools were written in place
        - if there are no pairs, nothing has changed

        Example::

            >>> cache = PagedKVCache(1, num_blocks=4, num_kv_heads=1, block_size=1, head_dim=1, dtype=mx.float32)
            >>> cache.write(0, mx.array([[[5], [6]]]), np.array([1]))
            >>> cache.copy_blocks([(1, 2), (2, 3)])
            >>> cache.pools[0][3].flatten().tolist()
            [5.0, 6.0]
        """
        raise NotImplementedError("Task 3: PagedKVCache.copy_blocks")

    # ---- given: for content that must not be read again

    def clear_blocks(self, block_ids: Sequence[int]) -> None:
        """Fill whole blocks with zeros in every layer. Given."""
        if block_ids:
            cleared = mx.array(list(block_ids))
            for pool in self.pools:
                pool[cleared] = 0

    def clear_slots(self, slots: TokenArray) -> None:
        """Fill single slots with zeros in every layer. Given."""
        block_ids, offsets = (mx.array(part) for part in np.divmod(slots, self.block_size))
        for pool in self.pools:
            pool[block_ids, :, offsets] = 0


# ---- Task 4


def _attend_alike(queries: mx.array, pool: mx.array, block_tables: Sequence[Sequence[int]],
                  context_lens: Sequence[int], scale: float, window: int | None) -> mx.array:
    """Compute attention for requests with the same number of queries and the same number of blocks.

    Before:
    - ``queries`` is [num_requests, num_queries, num_heads, head_dim]
    - query ``j`` of request ``i`` is at position ``context_lens[i] - num_queries + j`` of its request
    - all contexts have the same number of blocks; their lengths may differ, by less than a block
    - a table may be longer than its context needs, and tables may differ in length
    Returns:
    - the attention output of each query: an array of the shape and the type of ``queries``
    - a query attends to all tokens of its request up to its own position
    - with a ``window``, it attends to the last ``window`` of these tokens, itself included
    - head ``h`` reads KV head ``h // (num_heads // num_kv_heads)``
    - scores are multiplied by ``scale``
    - the content of the slots after a context does not matter, even if it is NaN
    - if a query sees a value that is NaN, its result contains NaN

    Example: with 3 queries and a context of 10 tokens, query 0 is at position 7. It sees tokens 0 to 7, and with a
    window of 4 only tokens 4 to 7.
    """
    raise NotImplementedError("Task 4: attention of requests that are alike")


# ---- Task 5


def paged_attention(queries: mx.array, pool: mx.array, block_tables: Sequence[Sequence[int]],
                    context_lens: Sequence[int], query_starts: Sequence[int], scale: float,
                    window: int | None = None) -> mx.array:
    """Compute attention for a ragged batch: one output per query, [num_queries, num_heads, head_dim] like ``queries``.

    The queries of request ``i`` are the rows ``query_starts[i]`` to ``query_starts[i + 1] - 1``. They belong to the
    last tokens of its context. All ``context_lens[i]`` tokens of the context have been written. ``_attend_alike`` says
    what a query sees, and computes it for requests with the same number of queries and the same number of blocks. In a
    ragged batch the requests may differ in these numbers, be in any order, and share blocks. Each row of the result is
    the same as if its request were alone.
    """
    num_heads, head_dim = queries.shape[1:]
    block_size = pool.shape[2]
    #: (num_queries, num_blocks) of each request. Requests with the same pair can be computed together.
    shapes = [(end - start, -(-context_len // block_size))
              for context_len, start, end in zip(context_lens, query_starts, query_starts[1:])]
    if len(set(shapes)) == 1:
        alike = queries.reshape(len(shapes), shapes[0][0], num_heads, head_dim)
        return _attend_alike(alike, pool, block_tables, context_lens, scale, window).reshape(queries.shape)
    raise NotImplementedError("Task 5: paged_attention")


# ---- Task 6


class ModelRunner:
    """Owns the network and the K/V arrays, and computes one step at a time."""

    def __init__(self, model: Model, num_blocks: int, block_size: int, attention: type | Callable[..., mx.array]
                 ) -> None:
        """Create the K/V arrays. Given.

        ``attention`` is a function that is called like ``paged_attention``, or a class whose instances are.
        """
        config = model.config
        self.model = model
        self.scale = config.head_dim ** -0.5
        self.attention: Callable[..., mx.array] = attention() if isinstance(attention, type) else attention
        #: Extra keyword arguments of ``attention`` for each layer: ``window`` only where the layer has one.
        self.options = [{} if window is None else {"window": window}
                        for window in map(config.window, range(config.num_layers))]
        self.cache = PagedKVCache(config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_dim,
                                  model.model.norm.weight.dtype)

    def step(self, requests: Sequence[RequestStep], copies: Sequence[tuple[int, int]] = ()) -> mx.array:
        """Compute one step for all ``requests``, and return the logits that are wanted.

        ``self.model(token_ids, positions, attend)`` gives the hidden states of the flat batch. Its first two arguments
        are ``mx.array`` of integers, [num_tokens]. In every layer it calls ``attend(layer, queries, keys_values)``
        once, with all tokens of the step, and uses the attention output that ``attend`` returns.

        Before:
        - ``token_ids`` of a request are the tokens to compute now, at least one
        - ``block_ids`` is its block table
        - ``context_len`` is the number of its tokens that have K/V after the step, including these
        - ``needs_logits`` says whether the logits of its last token are wanted
        - ``needs_all_logits`` says whether the logits of all ``token_ids`` are wanted, whatever ``needs_logits`` says
        After:
        - ``copies`` were made before anything was written
        - in every layer all keys and values were written before any were read: a request may read what another request
          writes in the same step
        - the keys and values of all tokens are in their slots, even if no logits are wanted
        - ``self.attention`` was called with all requests of the step, in their order, as
          ``attention(queries, pool, block_tables, context_lens, query_starts, scale)``
        - ``self.attention`` got the keyword argument ``window`` only in layers that have a window
          (``self.options[layer]``)
        - ``self.model.logits(hidden)`` was called with the hidden states of the wanted tokens only: each row is a
          product with the whole vocabulary
        - the pools were written in place: the step held no pool, and no view of a pool, while it wrote
        Returns:
        - logits [number of wanted tokens, vocab_size], in the order of ``requests``
        - for a request with ``needs_all_logits``: a row for each of its ``token_ids``
        - for any other request with ``needs_logits``: a row for its last token
        - for the remaining requests: no row; if no logits are wanted, the shape is (0, vocab_size)

        Example: three requests compute 1, 7 and 5 tokens, and the first and the third need logits. The result has two
        rows: those of tokens 0 and 12 of the flat batch.
        """
        raise NotImplementedError("Task 6: ModelRunner.step")
