"""The same K/V arrays as ``attention.PagedKVCache``, written faster.

The slots of a step are analysed once, and all layers are written in the way chosen then:

    one token            a slice of the pool is replaced: half the cost of a scatter on a CPU
    scattered tokens     one scatter of their numbers, or of their vectors: decoding requests
    adjacent tokens      block by block, one slice each: chunks on a CPU
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mini_vllm.attention import PagedKVCache, TokenArray
from mini_vllm.backend import mx
from mini_vllm.fast import tuning


class FastKVCache(PagedKVCache):
    """A PagedKVCache that plans its writes once per step: as long as the slots are equal."""

    _plan: WritePlan | None = None

    def write(self, layer: int, keys_values: mx.array, slots: TokenArray) -> None:
        """Store keys and values like the plain cache."""
        if self._plan is None or not np.array_equal(self._plan.slots, slots):
            _, num_both, head_dim = keys_values.shape
            self._plan = WritePlan(slots, num_both, head_dim, self.block_size)
        plan, pool = self._plan, self.pools[layer]
        if plan.single is not None:
            self.pools[layer] = mx.slice_update(pool, keys_values[:, :, None], plan.single, axes=(0, 2))
            return
        if plan.elements is not None:
            new = keys_values[:plan.num_apart].reshape(-1)
            self.pools[layer] = mx.put_along_axis(pool.reshape(-1), plan.elements, new, axis=0).reshape(pool.shape)
        elif plan.vectors is not None:
            vectors = pool.reshape(-1, pool.shape[-1])
            vectors[plan.vectors] = keys_values[:plan.num_apart].reshape(-1, pool.shape[-1])
            self.pools[layer] = vectors.reshape(pool.shape)
        for run in plan.runs:
            self.pools[layer][run.block_id, :, run.offsets] = keys_values[run.tokens].swapaxes(0, 1)


class Run(NamedTuple):
    """Consecutive tokens of a step that are adjacent in one block."""

    tokens: slice
    block_id: int
    offsets: slice


class WritePlan:
    """The way the tokens of a step are written: the first ``num_apart`` one by one, the others in ``runs``."""

    def __init__(self, slots: TokenArray, num_both: int, head_dim: int, block_size: int) -> None:
        """Plan the writes of a step. A token has ``num_both`` vectors: keys and values of each KV head."""
        self.slots = slots.copy()
        self.runs: list[Run] = []
        #: Block and offset of the only token, if there is only one.
        self.single: mx.array | None = None
        #: Indices of the scattered tokens' vectors in the pool, seen as one long list of vectors; None if there are
        #: none.
        self.vectors: mx.array | None = None
        #: Indices of each number of these vectors, in the pool seen as one long list of numbers. They are used instead
        #: of ``vectors`` where writing number by number is faster.
        self.elements: mx.array | None = None
        self.num_apart = len(slots)
        if len(slots) == 1:
            self.single = mx.array(divmod(int(slots[0]), block_size))
            return
        if tuning.writing_runs_is_faster():
            self.runs = find_runs(slots, block_size)
            self.num_apart -= sum(run.tokens.stop - run.tokens.start for run in self.runs)
        if self.num_apart:
            blocks, offsets = np.divmod(slots[:self.num_apart], block_size)
            vectors = (blocks[:, None] * num_both + np.arange(num_both)) * block_size + offsets[:, None]
            if tuning.writing_elements_is_faster():
                elements = vectors.reshape(-1, 1) * head_dim + np.arange(head_dim)
                self.elements = mx.array(elements.reshape(-1))
            else:
                self.vectors = mx.array(vectors.reshape(-1).astype(np.uint32))


def find_runs(slots: TokenArray, block_size: int) -> list[Run]:
    """Return all runs from the first that has more than one token; none if they are too short to be worth it.

    The tokens before the first run belong to decoding requests.
    """
    is_start = slots % block_size == 0
    is_start[0] = True
    is_start[1:] |= slots[1:] != slots[:-1] + 1
    starts = np.flatnonzero(is_start)
    if len(starts) == len(slots):
        return []
    lengths = np.append(starts[1:], len(slots)) - starts
    num_apart = int(np.argmax(lengths > 1))
    starts, lengths = starts[num_apart:], lengths[num_apart:]
    if lengths.sum() < tuning.MIN_RUN * len(lengths):
        return []
    runs = []
    for start, length in zip(starts.tolist(), lengths.tolist()):
        block_id, offset = divmod(int(slots[start]), block_size)
        runs.append(Run(slice(start, start + length), block_id, slice(offset, offset + length)))
    return runs
