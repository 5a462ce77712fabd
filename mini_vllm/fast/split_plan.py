"""The plan of split-KV decoding: which blocks each request reads, and how partial results are added.

    requests   A: 1 2 3 4   B: 1 2 5   C: 6                    blocks of their contexts
    prefix     1 2, shared by A and B                          attended once for both (cascade attention)
    splits     (A, 3) (A, 4) (B, 5) (C, 6)                     one for each other (request, block)
    partials   (A, 3) (A, 4) (B, 5) (C, 6) │ (A, 1 2) (B, 1 2)

A request has as many splits as it needs; nothing is padded to the longest request. But if all requests need about
equally many and share nothing, the few missing ones are padded: the plan is *even*, the partials of a request are
adjacent, and no lookup is needed to add them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mini_vllm.backend import mx
from mini_vllm.fast import tuning
from mini_vllm.fast.gather_attention import matrix_ids
from mini_vllm.fast.request_span import Span

IntArray = npt.NDArray[np.int64]


class Products(NamedTuple):
    """The operands of each product of a split, as indices.

    For the scores: a matrix of queries and one of keys; then a matrix of weights and one of values. A matrix of queries
    is one query head, or all those that share a KV head.
    """

    queries: mx.array
    keys: mx.array
    weights: mx.array
    values: mx.array


class PartialSums(NamedTuple):
    """Which partials are added together."""

    #: [num_partials]: the row that each partial belongs to.
    rows: mx.array
    #: [num_sums, width]: the partials of one sum each; short sums are padded.
    partials: mx.array
    #: [num_sums, width, 1, 1]: 1 for partials that count, 0 for padding.
    factors: mx.array
    #: [num_sums]: the request of each sum, if some have several; None if each has one.
    requests: mx.array | None


class SplitPlan:
    """The splits of requests that compute few tokens each: one decoding token, possibly with a few drafts.

    All requests have the same number of *rows*, that of the request with the most tokens; shorter ones are padded with
    their last token. With a ``window``, each request begins at its own position, and no prefix is shared.
    """

    def __init__(self, spans: Sequence[Span], num_heads: int, num_kv_heads: int, block_size: int,
                 window: int | None = None) -> None:
        self.num_requests, self._window, self._block_size = len(spans), window, block_size
        self._num_queries = [span.num_queries for span in spans]
        #: Rows of a request, and tokens of all requests.
        self.num_rows, self.num_tokens = max(self._num_queries), sum(self._num_queries)
        #: The token of each row, and the row of each token; None if they are the same.
        self.row_tokens: mx.array | None = None
        self.token_rows: mx.array | None = None
        if self.num_tokens < self.num_requests * self.num_rows:
            self._plan_rows()
        self.prefixes = find_shared_prefixes(spans, num_kv_heads, block_size) if window is None else []
        firsts = np.zeros(len(spans), dtype=np.int64)  # of each request, the first block that is not in a prefix
        for prefix in self.prefixes:
            firsts[prefix.requests] = prefix.num_blocks
        self._prefix_lens = (firsts * block_size).tolist()
        counts = np.asarray([span.num_blocks(block_size) for span in spans]) - firsts
        #: The request of each split, and the position of its block's first slot.
        self._requests, nth_blocks, is_even = _splits(firsts, counts, num_heads, may_fill=not self.prefixes)
        self._positions = nth_blocks * block_size
        lasts = firsts + counts - 1
        blocks = np.asarray([spans[request].block_ids[nth] for request, nth in zip(
            self._requests.tolist(), np.minimum(nth_blocks, lasts[self._requests]).tolist())])
        self.mask = self._mask(spans)
        self.products = _products(self._requests, blocks, num_heads, num_kv_heads, self.num_rows)
        #: None if the plan is even.
        self.sums: PartialSums | None = None
        if not is_even:
            requests = np.concatenate([self._requests, *(prefix.requests for prefix in self.prefixes)])
            self.sums = plan_sums(rows_of(requests, self.num_rows))

    def _plan_rows(self) -> None:
        counts, nth = np.asarray(self._num_queries), np.arange(self.num_rows)
        firsts = np.cumsum(counts) - counts
        rows = np.arange(len(counts) * self.num_rows).reshape(-1, self.num_rows)
        tokens = firsts[:, None] + np.minimum(nth, counts[:, None] - 1)
        self.row_tokens = mx.array(tokens.reshape(-1).astype(np.uint32))
        self.token_rows = mx.array(rows[nth < counts[:, None]].astype(np.uint32))

    def can_move_to(self, spans: Sequence[Span]) -> bool:
        """Check whether ``at`` can be called with these spans. Their blocks must be the blocks of this plan."""
        return (self._num_queries == [span.num_queries for span in spans]
                and all(span.context_len - span.num_queries >= num_shared
                        for span, num_shared in zip(spans, self._prefix_lens)))

    def at(self, spans: Sequence[Span]) -> SplitPlan:
        """Return the plan for the same requests, blocks and numbers of tokens, at other context lengths."""
        moved = copy.copy(self)
        moved.mask = self._mask(spans)
        return moved

    def _mask(self, spans: Sequence[Span]) -> mx.array:
        """Return a mask that is 0 where the slot holds a token that the row sees, and -inf elsewhere.

        Its shape is [num_splits, 1, block_size], or [num_splits, 1, num_rows, 1, block_size] if there are several rows.
        """
        num_seen = np.asarray([span.context_len for span in spans])
        if self.num_rows > 1:  # a token sees one less than the next
            to_come = np.asarray(self._num_queries)[:, None] - 1 - np.arange(self.num_rows)
            num_seen = num_seen[:, None] - np.maximum(to_come, 0)
        lengths = (num_seen[self._requests].T - self._positions).T
        lengths = lengths[:, None, None] if self.num_rows == 1 else lengths[:, None, :, None, None]
        offsets = np.arange(self._block_size)
        sees = offsets < lengths
        if self._window is not None:
            sees &= offsets >= lengths - self._window
        return mx.array(np.where(sees, np.float32(0), np.float32(-np.inf)))


def _splits(firsts: IntArray, counts: IntArray, num_heads: int, may_fill: bool) -> tuple[IntArray, IntArray, bool]:
    """Return the request and the block index of each split, and whether all requests have the same number of splits.

    ``firsts`` and ``counts`` are the first block of each request and its number of blocks. Requests may be padded to
    the same number: a padding split is after the context, so what it reads has weight 0.
    """
    longest, num_requests = int(counts.max()), len(counts)
    num_filled, num_needed = longest * num_requests, int(counts.sum())
    is_even = (may_fill and num_filled <= num_needed * tuning.MAX_FILLED
               and (num_filled == num_needed or num_filled * num_heads <= tuning.max_products()))
    if is_even:
        counts = np.full(num_requests, longest)
    requests = np.repeat(np.arange(num_requests), counts)
    return requests, np.arange(len(requests)) - np.repeat(np.cumsum(counts) - counts - firsts, counts), is_even


def rows_of(requests: IntArray, num_rows: int) -> IntArray:
    """Return the rows of each request, one request after the other."""
    return (requests[:, None] * num_rows + np.arange(num_rows)).reshape(-1)


def _products(requests: IntArray, blocks: IntArray, num_heads: int, num_kv_heads: int, num_rows: int) -> Products:
    """Return the products of splits, given the request and the block of each."""
    per_split = num_heads if tuning.heads_apart_are_faster(num_rows, num_heads // num_kv_heads) else num_kv_heads
    nth = np.arange(per_split)
    queries = requests[:, None] * per_split + nth
    keys = blocks[:, None] * 2 * num_kv_heads + nth // (per_split // num_kv_heads)
    values = keys + num_kv_heads  # a block's values follow its keys
    indices = (queries, keys, np.arange(keys.size), values)
    return Products(*(mx.array(index.reshape(-1).astype(np.uint32)) for index in indices))


def plan_sums(requests: IntArray) -> PartialSums:
    """Plan how to add up partials, given the row of each (here called its request); every request has at least one.

    All sums have the same width. A short sum is padded with partials of the same request that do not count, so that a
    wrong result of one request never touches the others of its step. A request with more than twice the usual number of
    partials gets several sums. Sums are in the order of their requests.
    """
    by_request, counts = np.argsort(requests, kind="stable"), np.bincount(requests)
    width = min(int(counts.max()), 2 * -(-len(requests) // len(counts)), tuning.MAX_PARTIALS_PER_SUM)
    num_sums = -(-counts // width)  # of each request
    sum_requests = np.repeat(np.arange(len(counts)), num_sums)
    nth_of_request = np.arange(len(sum_requests)) - np.repeat(np.cumsum(num_sums) - num_sums, num_sums)
    nth_partials = (nth_of_request * width)[:, None] + np.arange(width)  # among those of the request
    num_partials = counts[sum_requests][:, None]
    firsts = (np.cumsum(counts) - counts)[sum_requests][:, None]
    partials = by_request[firsts + np.minimum(nth_partials, num_partials - 1)]
    factors = (nth_partials < num_partials)[..., None, None]
    has_several = len(sum_requests) > len(counts)
    return PartialSums(mx.array(requests.astype(np.uint32)), mx.array(partials.astype(np.uint32)),
                       mx.array(factors.astype(np.float32)),
                       mx.array(sum_requests.astype(np.uint32)) if has_several else None)


class SharedPrefix:
    """The common first blocks of several requests."""

    def __init__(self, requests: Sequence[int], num_rows: int, block_ids: Sequence[int], num_kv_heads: int) -> None:
        self.num_blocks = len(block_ids)
        self.requests = np.asarray(requests)
        #: Their rows, for MLX.
        self.row_ids = mx.array(rows_of(self.requests, num_rows).astype(np.uint32))
        self.matrices = matrix_ids(block_ids, 2 * num_kv_heads)


def begin_alike(spans: Sequence[Span]) -> bool:
    """Check whether any two requests begin with the same block."""
    return len({span.block_ids[0] for span in spans}) < len(spans)


def find_shared_prefixes(spans: Sequence[Span], num_kv_heads: int, block_size: int) -> list[SharedPrefix]:
    """Return the longest prefix of each family of requests with a common beginning.

    A prefix contains no block with a token that is computed now: the first of these tokens do not see the last.
    """
    families: dict[int, list[int]] = {}
    for request, span in enumerate(spans):
        families.setdefault(span.block_ids[0], []).append(request)
    prefixes, num_rows = [], max(span.num_queries for span in spans)
    for requests in families.values():
        limit = min((spans[request].context_len - spans[request].num_queries) // block_size for request in requests)
        if len(requests) < 2 or limit < 1:
            continue
        tables = np.asarray([spans[request].block_ids[:limit] for request in requests])
        differs = (tables != tables[0]).any(axis=0)
        num_blocks = int(differs.argmax()) if differs.any() else limit
        prefixes.append(SharedPrefix(requests, num_rows, tables[0][:num_blocks].tolist(), num_kv_heads))
    return prefixes
