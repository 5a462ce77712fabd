"""What three ideas are worth on the reference of lab 5.4, each alone and all together.

    once       make indices and masks once per step, not in every layer
    together   attend to all requests that decode in one call, not one by one
    pages      gather keys and values in the order in which attention reads them: one copy instead of two
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from course.faster_step.reference import ReferenceRunner
from mini_vllm.attention import PagedKVCache, TokenArray
from mini_vllm.backend import mx
from mini_vllm.models.network import Model


class IdeaAttention:
    """``paged_attention`` of the reference, changed by some of the ideas. Pools must hold finite numbers."""

    def __init__(self, once: bool, together: bool, pages: bool) -> None:
        self._is_once, self._is_together, self._has_pages = once, together, pages
        self._step: tuple[object, object] | None = None
        self._plans: dict[int | None, list[_Part]] = {}

    def __call__(self, queries: mx.array, pool: mx.array, block_tables: Sequence[Sequence[int]],
                 context_lens: Sequence[int], query_starts: Sequence[int], scale: float,
                 window: int | None = None) -> mx.array:
        is_known = self._step is not None and self._step[0] is block_tables and self._step[1] is query_starts
        if not (self._is_once and is_known):
            self._step, self._plans = (block_tables, query_starts), {}
        if window not in self._plans:
            num_new = [end - start for start, end in zip(query_starts, query_starts[1:])]
            num_decodes = next((i for i, num in enumerate(num_new) if num > 1), len(num_new))
            if not self._is_together:
                num_decodes = 0
            groups = [range(num_decodes)] * bool(num_decodes)
            groups += [range(i, i + 1) for i in range(num_decodes, len(num_new))]
            self._plans[window] = [
                _Part([block_tables[i] for i in group], [context_lens[i] for i in group], num_new[group[0]],
                      pool.shape, window, self._has_pages) for group in groups]
        outs, start = [], 0
        for part in self._plans[window]:
            end = start + part.num_requests * part.num_queries
            outs.append(part.attend(queries[start:end], pool, scale))
            start = end
        return mx.concatenate(outs)


class _Part:
    """Requests with the same number of queries that are attended to in one call."""

    def __init__(self, tables: Sequence[Sequence[int]], lens: Sequence[int], num_queries: int, shape: tuple[int, ...],
                 window: int | None, has_pages: bool) -> None:
        _, num_both, block_size, _ = shape
        self.num_requests, self.num_queries, self._has_pages = len(tables), num_queries, has_pages
        blocks = np.zeros((len(tables), max(-(-length // block_size) for length in lens)), dtype=np.int32)
        for row, table, length in zip(blocks, tables, lens):
            row[:-(-length // block_size)] = table[:-(-length // block_size)]
        self._index = mx.array(blocks[:, None] * num_both + np.arange(num_both, dtype=np.int32)[:, None]
                               if has_pages else blocks)
        slots = np.arange(blocks.shape[1] * block_size)
        own = np.asarray(lens)[:, None, None] - num_queries + np.arange(num_queries)[:, None]
        self._sees = mx.array(((slots <= own) & (slots > own - (window or len(slots))))[:, None])

    def attend(self, queries: mx.array, pool: mx.array, scale: float) -> mx.array:
        _, num_both, block_size, head_dim = pool.shape
        gathered = (pool.reshape(-1, block_size, head_dim)[self._index] if self._has_pages
                    else pool[self._index].swapaxes(1, 2))
        keys, values = mx.split(gathered.reshape(self.num_requests, num_both, -1, head_dim), 2, axis=1)
        alike = queries.reshape(self.num_requests, self.num_queries, *queries.shape[1:]).swapaxes(1, 2)
        out = mx.fast.scaled_dot_product_attention(alike, keys, values, scale=scale, mask=self._sees)
        return out.swapaxes(1, 2).reshape(queries.shape)


class OnceCache(PagedKVCache):
    """Makes the indices of a write once per step. It recognises a step by the identity of its slots."""

    _known: tuple[TokenArray, mx.array, mx.array] | None = None

    def write(self, layer: int, keys_values: mx.array, slots: TokenArray) -> None:
        """Store keys and values like the plain cache."""
        if self._known is None or self._known[0] is not slots:
            blocks, offsets = np.divmod(slots, self.block_size)
            self._known = slots, mx.array(blocks), mx.array(offsets)
        _, blocks_array, offsets_array = self._known
        self.pools[layer][blocks_array, :, offsets_array] = keys_values


def runner_with(once: bool = False, together: bool = False, pages: bool = False) -> type[ReferenceRunner]:
    """Return the reference, changed by these ideas."""
    class Runner(ReferenceRunner):
        cache_class = OnceCache if once else PagedKVCache

        def __init__(self, model: Model, num_blocks: int, block_size: int, attention: Any = None) -> None:
            super().__init__(model, num_blocks, block_size, attention)
            self.attention = IdeaAttention(once, together, pages)

    return Runner


#: What the table of ``course.faster_step.score --ideas`` compares.
IDEAS = {"once": runner_with(once=True), "together": runner_with(together=True), "pages": runner_with(pages=True),
         "all three": runner_with(True, True, True)}
