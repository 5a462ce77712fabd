"""What a step's attention needs to know beforehand: where each token is written and what it reads.

Made once a step with numpy, then used by every layer.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.fast import tuning


@dataclass(frozen=True)
class Span:
    """What one request computes in a step: ``num_new_tokens`` positions that end at ``context_len``."""

    block_ids: Sequence[int]
    num_new_tokens: int
    context_len: int


@dataclass(frozen=True)
class Run:
    """Consecutive tokens of a step that are written side by side into one block."""

    rows: slice
    block_id: int
    slots: slice


class BlockTable:
    """The blocks of a context, to be brought together."""

    def __init__(self, block_ids: Sequence[int] | np.ndarray) -> None:
        self._block_ids = np.asarray(block_ids)
        self._matrices: dict[int, mx.array] = {}

    def __len__(self) -> int:
        return len(self._block_ids)

    def matrices(self, per_block: int) -> mx.array:
        """Which of the pool's matrices, ``per_block`` a block, are the first of each block, the second, and so on:
        [per_block, num_blocks]. Made when first asked for, in the first layer; the others use it again.
        """
        if per_block not in self._matrices:
            matrices = self._block_ids * per_block + np.arange(per_block)[:, None]
            self._matrices[per_block] = mx.array(matrices.astype(np.uint32))
        return self._matrices[per_block]


def rows_of_slots(blocks: np.ndarray, offsets: np.ndarray, num_both: int, block_size: int) -> mx.array:
    """Where the vectors of tokens stand in the pool, seen as one long list of them: [num_tokens * num_both]."""
    rows = (blocks[:, None] * num_both + np.arange(num_both)) * block_size + offsets[:, None]
    return mx.array(rows.reshape(-1).astype(np.uint32))


def within(span: Span, window: int, block_size: int) -> Span:
    """The span without the blocks that none of its new tokens sees: as if the request began with the first one left.

        window of 5, blocks of 4    0 1 2 3 │ 4 5 6 7 │ 8 9 10 11 │ 12
        a token at 12 sees                               8 9 10 11   12
    """
    num_left_out = max(span.context_len - span.num_new_tokens + 1 - window, 0) // block_size
    return Span(span.block_ids[num_left_out:], span.num_new_tokens, span.context_len - num_left_out * block_size)


class AttentionPlan:
    """Where the tokens of a step are written and what each attends to: made once a step, used by every layer.

    ``before`` is the plan of an earlier step, if there was one: what requests that decode attend to is mostly the same,
    but for the one token that each has more. With a ``window``, a token attends to this many tokens only, itself
    included; a beginning that requests share is then no longer the same for all of them, and each attends by itself.
    """

    def __init__(self, spans: Sequence[Span], block_size: int, before: AttentionPlan | None = None,
                 window: int | None = None) -> None:
        self.block_size, self.window = block_size, window
        self._rows: dict[int, mx.array] = {}
        self._masks: dict[tuple[int, int, int], mx.array] = {}
        self._visible: dict[tuple[int, int], mx.array] = {}
        positions = [np.arange(span.context_len - span.num_new_tokens, span.context_len) for span in spans]
        if window is not None:
            spans = [within(span, window, block_size) for span in spans]
        num_decodes = sum(span.num_new_tokens == 1 for span in spans)
        decodes = spans[:num_decodes]
        chunks = spans[num_decodes:]
        if any(span.num_new_tokens == 1 for span in chunks):
            raise ValueError("requests that compute one token come first in a step")
        self._decode_tables = [span.block_ids[:-(-span.context_len // block_size)] for span in decodes]
        if not spans:
            self.dense, self.tables, self.pairs = [], [], []
            return
        positions = np.concatenate(positions)
        self.positions = mx.array(positions.astype(np.int32))
        #: How the tokens of chunks are written on a CPU: run by run, if runs are long enough to save time.
        self.runs = _find_runs(chunks, num_decodes, block_size) if tuning.writing_runs_is_faster() else []
        if sum(chunk.num_new_tokens for chunk in chunks) < tuning.MIN_RUN * len(self.runs):
            self.runs = []
        one_by_one = decodes if self.runs else spans
        #: Block and offset of each token that is in no run; and of the only token, if the step has only one.
        self.blocks = np.concatenate([np.asarray(span.block_ids)[np.arange(span.context_len - span.num_new_tokens,
                                                                           span.context_len) // block_size]
                                      for span in one_by_one] or [np.empty(0, dtype=np.int64)])
        self.offsets = positions[:len(self.blocks)] % block_size
        self.slot = mx.array([int(self.blocks[0]), int(self.offsets[0])]) if len(positions) == 1 else None
        is_few = num_decodes <= tuning.MAX_GATHERED_DECODES and (window is not None or not _share_a_block(decodes))
        #: Requests to attend one by one, and (request, block) pairs of the others; both in the order of the step.
        self.dense = list(spans) if is_few else chunks
        self.tables = [BlockTable(span.block_ids[:-(-span.context_len // block_size)]) for span in self.dense]
        if is_few:
            self.pairs = []
        elif before is not None and before.pairs and before._decode_tables == self._decode_tables:
            self.pairs, start = [], 0
            for pairs in before.pairs:
                self.pairs.append(pairs.at(decodes[start:start + pairs.num_requests]))
                start += pairs.num_requests
        else:
            halves = _halves(decodes, block_size, may_share=window is None)
            self.pairs = [PairPlan(half, block_size, window) for half in halves]

    def rows(self, num_both: int) -> mx.array:
        """Where tokens that are in no run are written. Made when first asked for; the other layers use it again."""
        if num_both not in self._rows:
            self._rows[num_both] = rows_of_slots(self.blocks, self.offsets, num_both, self.block_size)
        return self._rows[num_both]

    def mask(self, num_queries: int, num_keys: int, group: int) -> mx.array:
        """[num_keys, group * num_queries]: -inf where a query does not see a key; the last of both are the same token.

        Made when first asked for, in the first layer; the others use it again.
        """
        if (num_queries, num_keys, group) not in self._masks:
            columns = np.where(self._sees(num_queries, num_keys).T, np.float32(0), np.float32(-np.inf))
            self._masks[num_queries, num_keys, group] = mx.array(np.tile(columns, group))
        return self._masks[num_queries, num_keys, group]

    def visible(self, num_queries: int, num_keys: int) -> mx.array | str | None:
        """The same as MLX's own attention takes it: [num_queries, num_keys], True where a query sees a key; or in a
        word."""
        if self.window is None or num_keys <= self.window:
            return "causal" if num_queries > 1 else None
        if (num_queries, num_keys) not in self._visible:
            self._visible[num_queries, num_keys] = mx.array(self._sees(num_queries, num_keys))
        return self._visible[num_queries, num_keys]

    def _sees(self, num_queries: int, num_keys: int) -> np.ndarray:
        keys, queries = np.arange(num_keys), np.arange(num_keys - num_queries, num_keys)[:, None]
        return (keys <= queries) & (keys > queries - (self.window or num_keys))


def _find_runs(chunks: Sequence[Span], first_row: int, block_size: int) -> list[Run]:
    """Where ``chunks`` are written; their tokens are the step's rows from ``first_row`` on."""
    runs, row = [], first_row
    for chunk in chunks:
        position = chunk.context_len - chunk.num_new_tokens
        while position < chunk.context_len:
            index, offset = divmod(position, block_size)
            length = min(block_size - offset, chunk.context_len - position)
            runs.append(Run(slice(row, row + length), chunk.block_ids[index], slice(offset, offset + length)))
            row, position = row + length, position + length
    return runs


class Indices(NamedTuple):
    """What each product takes, [num_pairs * rows_per_request]: for the scores rows of queries, and keys of the pool;
    then rows of weights, and values of the pool."""

    queries: mx.array
    keys: mx.array
    rows: mx.array
    values: mx.array


class PairPlan:
    """All (request, block) pairs of requests that decode: nothing is multiplied for the sake of a longer request.

    Blocks that several requests share at the beginning of their tables are attended once for all of them, unless each
    sees a window of its own.
    """

    def __init__(self, spans: Sequence[Span], block_size: int, window: int | None = None) -> None:
        self.num_requests, self._window = len(spans), window
        self.prefixes = find_shared_prefixes(spans, block_size) if window is None else []
        firsts = np.zeros(len(spans), dtype=np.int64)
        for prefix in self.prefixes:
            firsts[prefix.requests] = len(prefix.blocks)
        self._block_size = block_size
        context_lens = np.asarray([span.context_len for span in spans])
        counts = -(-context_lens // block_size) - firsts
        owners = np.repeat(np.arange(len(spans)), counts)
        blocks = np.concatenate([np.asarray(span.block_ids[first:first + n])
                                 for span, first, n in zip(spans, firsts, counts)])
        self._starts = np.concatenate([np.arange(first, first + n) for first, n in zip(firsts, counts)]) * block_size
        self.blocks, self.owners = blocks, owners
        self.mask = self._mask(context_lens)
        part_owners = np.concatenate([owners, *(prefix.requests for prefix in self.prefixes)])
        #: The request of every partial result: first of the pairs, then of each shared prefix.
        self.part_owners = mx.array(part_owners.astype(np.uint32))
        groups, does_count, group_owners = _groups(part_owners)
        #: Rows of partial results to be summed up, all of one request in each group; 1 for those that count, 0 for the
        #: others, [num_groups, width, 1, 1]; and the request of each sum, unless each has one sum.
        self.groups = mx.array(groups.astype(np.uint32))
        self.group_factors = mx.array(does_count[..., None, None].astype(np.float32))
        self.group_owners = mx.array(group_owners.astype(np.uint32)) if len(groups) > self.num_requests else None
        self._indices: dict[tuple[int, int], Indices] = {}

    def at(self, spans: Sequence[Span]) -> PairPlan:
        """The same requests, with the same blocks, at another length."""
        moved = copy.copy(self)
        moved.mask = self._mask(np.asarray([span.context_len for span in spans]))
        return moved

    def _mask(self, context_lens: np.ndarray) -> mx.array:
        """[num_pairs, 1, block_size]: 0 where the slot holds a token that the request sees, -inf where it does not."""
        lengths = (context_lens[self.owners] - self._starts)[:, None, None]
        slots = np.arange(self._block_size)
        sees = slots < lengths if self._window is None else (slots < lengths) & (slots >= lengths - self._window)
        return mx.array(np.where(sees, np.float32(0), np.float32(-np.inf)))

    def indices(self, rows_per_request: int, num_kv_heads: int) -> Indices:
        """For products of one query head each, or of all that share a KV head: as many a request as there are rows.

        Made when first asked for, in the first layer; the others use it again.
        """
        if (rows_per_request, num_kv_heads) not in self._indices:
            rows = np.arange(rows_per_request)
            queries = self.owners[:, None] * rows_per_request + rows
            keys = self.blocks[:, None] * 2 * num_kv_heads + rows // (rows_per_request // num_kv_heads)
            values = keys + num_kv_heads  # a block's values stand behind its keys
            self._indices[rows_per_request, num_kv_heads] = Indices(*(
                mx.array(index.reshape(-1).astype(np.uint32))
                for index in (queries, keys, np.arange(keys.size), values)))
        return self._indices[rows_per_request, num_kv_heads]


def _groups(owners: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the same owner, [num_groups, width]; which of them count, likewise; and the owner of each group.

    Short groups are filled up with rows of the same owner that do not count: what one request computes, however wrong,
    never touches the others of its step. Owners with more than twice the usual number of rows get several groups.
    Groups come in the order of their owners, each of whom has at least one row.
    """
    rows = np.argsort(owners, kind="stable")
    counts = np.bincount(owners)
    width = min(int(counts.max()), 2 * -(-len(owners) // len(counts)), tuning.MAX_PARTIALS_PER_SUM)
    num_groups = -(-counts // width)
    group_owners = np.repeat(np.arange(len(counts)), num_groups)
    nth_of_owner = np.arange(len(group_owners)) - np.repeat(np.cumsum(num_groups) - num_groups, num_groups)
    starts = nth_of_owner * width  # of each group, among the rows of its owner
    places, num_rows = starts[:, None] + np.arange(width), counts[group_owners][:, None]
    firsts = (np.cumsum(counts) - counts)[group_owners][:, None]
    return rows[firsts + np.minimum(places, num_rows - 1)], places < num_rows, group_owners


def _share_a_block(spans: Sequence[Span]) -> bool:
    """Whether any two begin with the same block."""
    return len({span.block_ids[0] for span in spans}) < len(spans)


def _halves(spans: Sequence[Span], block_size: int, may_share: bool) -> list[Sequence[Span]]:
    """Two runs of requests with about as many blocks each, for two streams; one run, if it would not pay.

    Requests that share a beginning, where they may, are not torn apart: together they attend to it once.
    """
    counts = np.cumsum([-(-span.context_len // block_size) for span in spans])
    cut = int(np.searchsorted(counts, counts[-1] / 2)) + 1
    does_not_pay = not tuning.has_two_streams() or counts[-1] < tuning.MIN_SPLITS_FOR_TWO_STREAMS or cut >= len(spans)
    if does_not_pay or (may_share and _share_a_block(spans)):
        return [spans]
    return [spans[:cut], spans[cut:]]


@dataclass(frozen=True)
class SharedPrefix:
    """Blocks at the beginning of several requests' tables."""

    requests: np.ndarray
    #: The same for MLX.
    rows: mx.array
    blocks: BlockTable


def find_shared_prefixes(spans: Sequence[Span], block_size: int) -> list[SharedPrefix]:
    """Requests that begin with the same blocks, and how many. The last block of a request is never part of it."""
    families: dict[int, list[int]] = {}
    for row, span in enumerate(spans):
        families.setdefault(span.block_ids[0], []).append(row)
    prefixes = []
    for rows in families.values():
        limit = min((spans[row].context_len - 1) // block_size for row in rows)
        if len(rows) < 2 or limit < 1:
            continue
        tables = np.asarray([spans[row].block_ids[:limit] for row in rows])
        differs = (tables != tables[0]).any(axis=0)
        num_blocks = int(differs.argmax()) if differs.any() else limit
        prefixes.append(SharedPrefix(np.asarray(rows), mx.array(rows), BlockTable(tables[0][:num_blocks])))
    return prefixes
