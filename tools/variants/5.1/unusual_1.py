"""One step of the model over paged K/V: where each token goes, writing it there, and attention that finds it again.

    pools[layer]              [num_blocks, 2 * num_kv_heads, block_size, head_dim]: a block's keys, then its values
    position p of a request   block table[p // block_size], offset p % block_size
    slot                      block_id * block_size + offset: the place of one token, the same in every layer

A step computes a flat batch of tokens, request after request, with no padding:

    token            0   1   2   3   4   5   6
    request          A   B   C   C   C   D   D          A and B decode, C and D compute a chunk of their prompts
    query_starts   [ 0,  1,  2,          5,      7 ]    request i begins at token query_starts[i]
    context_lens   [ 9,  4,  3,          8 ]            how many tokens of each request have K/V after the step
    positions        8   3   0   1   2   6   7          the tokens of a request are the last ones of its context

Block tables may be longer than a context needs: what stands after the blocks of the context has no say. Nothing here
checks its arguments. They come from the scheduler, which has made a slot for every token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mini_vllm.backend import mx
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.network import Model

#: One number for each token: positions, slots.
TokenArray = npt.NDArray[np.int64]


# ---- Task 1


def token_positions(context_lens: Sequence[int], query_starts: Sequence[int]) -> TokenArray:
    """The position of each token of a step in its own request, [num_tokens].

    Request ``i`` has ``query_starts[i + 1] - query_starts[i]`` tokens, at least one. They are the last ones of its
    ``context_lens[i]`` tokens, in order; the first token of a request has position 0.
    """
    starts = np.asarray(query_starts, dtype=np.int64)
    ends_of_contexts = np.asarray(context_lens, dtype=np.int64)
    return np.arange(starts[-1]) + np.repeat(ends_of_contexts - starts[1:], np.diff(starts))


def slot_mapping(block_tables: Sequence[Sequence[int]], positions: TokenArray, query_starts: Sequence[int],
                 block_size: int) -> TokenArray:
    """The slot of each token of a step, [num_tokens]: where its keys and values are written.

    Token ``t`` of request ``i`` stands at ``positions[t]`` of its request, in block
    ``block_tables[i][positions[t] // block_size]``.
    """
    width = max(map(len, block_tables))
    tables = np.zeros((len(block_tables), width), dtype=np.int64)
    for row, table in enumerate(block_tables):
        tables[row, :len(table)] = table
    owners = np.repeat(np.arange(len(block_tables)), np.diff(query_starts))
    blocks, offsets = np.divmod(np.asarray(positions, dtype=np.int64), block_size)
    return tables[owners, blocks] * block_size + offsets


class PagedKVCache:
    """The K/V arrays of all layers, addressed by block id.

    MLX writes into an array in place only while nothing else needs what was in it. Otherwise it makes a copy, here of
    a whole pool. So nobody but this class keeps a reference to a pool, or to a view of one.
    """

    def __init__(self, num_layers: int, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int,
                 dtype: mx.Dtype) -> None:
        """Given. All zeros."""
        self.block_size = block_size
        self.pools = [mx.zeros((num_blocks, 2 * num_kv_heads, block_size, head_dim), dtype) for _ in range(num_layers)]
        #: Blocks copied since the start, counted once and not once per layer.
        self.num_copied_blocks = 0
        mx.eval(self.pools)

    @staticmethod
    def block_bytes(num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: mx.Dtype) -> int:
        """What one block costs in all layers together. Given."""
        return 2 * num_layers * num_kv_heads * block_size * head_dim * dtype.size

    # ---- Task 2

    def write(self, layer: int, keys_values: mx.array, slots: TokenArray) -> None:
        """Store the keys and values of tokens, [num_tokens, 2 * num_kv_heads, head_dim], each token in its slot.

        ``slots`` are all different, in any order.
        After: each of these slots of ``pools[layer]`` holds its token's keys and values, whatever it held before.
        Nothing else in any pool has changed. The pool is written in place: no second one is made on the way.
        It is one write for all tokens, not one a token.
        """
        pool = self.pools[layer]
        num_rows = pool.shape[1]
        blocks = mx.array(slots // self.block_size).reshape(-1, 1)
        offsets = mx.array(slots % self.block_size).reshape(-1, 1)
        pool[blocks, mx.arange(num_rows).reshape(1, -1), offsets] = keys_values

    # ---- Task 3

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, pairs (source, destination) of block ids, in every layer.

        After: all is as if the copies had been made one after the other. So a copy whose source is the destination of
        an earlier one copies on what that one brought, and of two copies into one block the later one stays.
        ``num_copied_blocks`` has grown by the number of pairs. No pairs: nothing happens.
        The pools are written in place. For that, what is read from a pool must be read to its end (``mx.eval``)
        before that pool is written: MLX is lazy, and a pool that is still to be read would be copied as a whole.
        """
        for source, destination in copies:
            blocks = [pool[mx.array([source])] for pool in self.pools]
            mx.eval(blocks)
            for pool, block in zip(self.pools, blocks):
                pool[mx.array([destination])] = block
            self.num_copied_blocks += 1

    # ---- given: for what must not be read again

    def clear_blocks(self, block_ids: Sequence[int]) -> None:
        """Put zeros into whole blocks of every layer. Given."""
        if block_ids:
            cleared = mx.array(list(block_ids))
            for pool in self.pools:
                pool[cleared] = 0

    def clear_slots(self, slots: TokenArray) -> None:
        """Put zeros into single slots of every layer. Given."""
        block_ids, offsets = (mx.array(part) for part in np.divmod(slots, self.block_size))
        for pool in self.pools:
            pool[block_ids, :, offsets] = 0


# ---- Task 4


def _attend_alike(queries: mx.array, pool: mx.array, block_tables: Sequence[Sequence[int]],
                  context_lens: Sequence[int], scale: float, window: int | None) -> mx.array:
    """What each query of requests that are alike sees, like ``queries``: [num_requests, num_queries, num_heads,
    head_dim].

    Before: all have the same number of queries, and contexts of the same number of blocks. Their lengths may still
    differ, by less than a block. A table may be longer than its context needs, and tables may differ in length.
    Query ``j`` of request ``i`` stands at position ``context_lens[i] - num_queries + j`` and attends to all tokens of
    its request up to that position; with a ``window``, to this many of the last of these, itself included. Head ``h``
    reads KV head ``h // (num_heads // num_kv_heads)``. Scores are multiplied by ``scale``. What the slots after a
    context hold does not matter, even if it is NaN. What those of the context hold does: NaN in a value that a query
    sees shows in its result.
    """
    # By hand: scores, softmax, weights times values.
    num_requests, num_queries, num_heads, head_dim = queries.shape
    num_kv_heads, block_size = pool.shape[1] // 2, pool.shape[2]
    group = num_heads // num_kv_heads
    num_blocks = (max(context_lens) + block_size - 1) // block_size
    num_keys = num_blocks * block_size
    ids = mx.array(np.stack([np.asarray(table)[:num_blocks] for table in block_tables]))
    held = mx.take(pool, ids.reshape(-1), axis=0).reshape(num_requests, num_blocks, 2, num_kv_heads, block_size, head_dim)
    held = held.transpose(2, 0, 3, 1, 4, 5).reshape(2, num_requests, num_kv_heads, 1, num_keys, head_dim)
    keys, values = held[0].astype(mx.float32), held[1].astype(mx.float32)
    position = np.arange(num_keys)
    last = np.asarray(context_lens)[:, None] - num_queries + np.arange(num_queries)[None, :]
    sees = position <= last[:, :, None]
    if window is not None:
        sees &= position > last[:, :, None] - window
    values = mx.where(mx.array(sees.any(axis=1))[:, None, None, :, None], values, 0)
    split = queries.transpose(0, 2, 1, 3).reshape(num_requests, num_kv_heads, group, num_queries, head_dim)
    scores = scale * (split.astype(mx.float32) @ keys.swapaxes(-1, -2))
    scores = mx.where(mx.array(sees)[:, None, None], scores, -float("inf"))
    out = mx.softmax(scores, axis=-1) @ values
    return out.reshape(num_requests, num_heads, num_queries, head_dim).transpose(0, 2, 1, 3).astype(queries.dtype)


# ---- Task 5


def paged_attention(queries: mx.array, pool: mx.array, block_tables: Sequence[Sequence[int]],
                    context_lens: Sequence[int], query_starts: Sequence[int], scale: float,
                    window: int | None = None) -> mx.array:
    """What each query of a ragged batch sees, [num_queries, num_heads, head_dim], like ``queries``.

    Request ``i`` has the queries from ``query_starts[i]`` to ``query_starts[i + 1]``: the last of its
    ``context_lens[i]`` tokens, all of which have been written. What they see is said at ``_attend_alike``, which
    computes it for requests that have the same number of queries and of blocks. Here the requests may differ in both,
    come in any order, and share blocks. Row for row, the result is that of each request alone.
    """
    num_heads, head_dim = queries.shape[1:]
    block_size = pool.shape[2]
    #: For each request, what it must have in common with another to be computed together: (num_queries, num_blocks).
    shapes = [(end - start, -(-context_len // block_size))
              for context_len, start, end in zip(context_lens, query_starts, query_starts[1:])]
    if len(set(shapes)) == 1:
        alike = queries.reshape(len(shapes), shapes[0][0], num_heads, head_dim)
        return _attend_alike(alike, pool, block_tables, context_lens, scale, window).reshape(queries.shape)
    return mx.concatenate([
        paged_attention(queries[start:end], pool, [table], [context_len], [0, end - start], scale, window)
        for start, end, table, context_len in zip(query_starts, query_starts[1:], block_tables, context_lens)])


# ---- Task 6


class ModelRunner:
    """Owns the network and the arrays of keys and values. Computes one step at a time."""

    def __init__(self, model: Model, num_blocks: int, block_size: int, attention: type | Callable[..., mx.array]
                 ) -> None:
        """Given. ``attention`` is a function called like ``paged_attention``, or a class whose instance is."""
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
        """Logits [number of wanted tokens, vocab_size], in the order of ``requests``: of all tokens of a request with
        ``needs_all_logits``, of the last token of any other with ``needs_logits``, of none of the rest.

        A ``RequestStep`` has five fields:

            token_ids: Sequence[int]            to be computed now, at least one
            block_ids: Sequence[int]            its block table
            context_len: int                    how many tokens of it, these included, have K/V after the step
            needs_logits: bool                  whether the logits of its last token are wanted
            needs_all_logits: bool = False      whether those of all of ``token_ids`` are, whatever the field above says

        1. ``copies`` are made: before anything is written.
        2. ``self.model(token_ids, positions, attend)`` computes the hidden states of the flat batch. Both are
           ``mx.array`` of integers, [num_tokens]; the engine's are int32. In every layer it calls
           ``attend(layer, queries, keys_values)`` once, with all tokens of the step, and takes what each of them saw.
           ``attend`` writes all keys and values of the layer, and only then attends: a request may read, in this very
           step, what another one writes.
        3. ``self.model.logits(hidden)`` is computed of the wanted tokens and of no other: a row is a product with the
           whole vocabulary. If nobody wants any, the result has no rows.

        Pools are written in place: the step holds none of them, and no view of one, while it writes.

        ``self.attention`` is called as ``attention(queries, pool, block_tables, context_lens, query_starts, scale)``,
        with the keyword argument ``window`` only in layers that have one (``self.options[layer]``).
        """
        self.cache.copy_blocks(copies)
        num_new = np.array([len(request.token_ids) for request in requests])
        starts = [0, *np.cumsum(num_new).tolist()]
        batch = ([request.block_ids for request in requests], [request.context_len for request in requests], starts)
        positions = token_positions(batch[1], starts)
        slots = slot_mapping(batch[0], positions, starts, self.cache.block_size)

        class Attend:
            def __call__(this, layer: int, queries: mx.array, keys_values: mx.array) -> mx.array:
                self.cache.write(layer, keys_values, slots)
                return self.attention(queries, self.cache.pools[layer], *batch, self.scale, **self.options[layer])

        tokens = np.concatenate([np.asarray(request.token_ids, dtype=np.int32) for request in requests])
        hidden = self.model(mx.array(tokens), mx.array(positions.astype(np.int32)), Attend())
        is_last = np.isin(np.arange(len(tokens)), np.array(starts[1:]) - 1)
        of_all = np.repeat([bool(request.needs_all_logits) for request in requests], num_new)
        of_last = np.repeat([bool(request.needs_logits) for request in requests], num_new) & is_last
        wanted = np.flatnonzero(of_all | of_last).astype(np.int32)
        return self.model.logits(mx.take(hidden, mx.array(wanted), axis=0))
