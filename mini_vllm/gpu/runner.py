"""The ModelRunner of a GPU.

A decode-only step is one compiled function of its arrays, for a few sizes:

    requests   1  2  4  8  16  32  48 … 256  512 …       ``round_tokens``
    tables     8  16  32 … blocks per request            ``round_width``

Unused places are filled with requests of one token, whose keys and values go to the null block, which is never read. In
a step with chunks the unused tokens are one more request, whose blocks are all the null block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mini_vllm.attention import PagedKVCache, TokenArray, slot_mapping, token_positions
from mini_vllm.backend import mx
from mini_vllm.fast.attention import FastAttention
from mini_vllm.gpu.kernels.paged import StepAttention, decode_arrays
from mini_vllm.gpu.kernels.step_upload import slices, upload, uploaded
from mini_vllm.gpu.kernels.tables import TableArray, TableRows, round_tokens, round_width
from mini_vllm.gpu.network import KernelNetwork, StepArrays
from mini_vllm.model_runner import Batch, ModelRunner
from mini_vllm.models.network import Model


class PoolsThatStay(PagedKVCache):
    """The K/V arrays of a GPU: kernels write into them, so a pool is one array from the first step to the last."""

    def clear_slots(self, slots: TokenArray) -> None:
        """Do nothing: the kernels use no number of a slot after a context."""


class GpuRunner(ModelRunner):
    """A ModelRunner with other operations.

    Slots after a context are never used in a computation, so nothing has to be cleared.
    """

    cache_class = PoolsThatStay

    def __init__(self, model: Model, num_blocks: int, block_size: int,
                 attention: type | Callable[..., mx.array] = FastAttention) -> None:
        super().__init__(model, num_blocks, block_size, attention)
        self.network = KernelNetwork(model, block_size)
        self._rows = TableRows()
        self._decode = compiled_decode(model, self.network)

    def _logits(self, token_ids: mx.array, batch: Batch, wanted: Sequence[int]) -> mx.array:
        num_requests = len(batch.context_lens)
        if len(wanted) == num_requests == batch.query_starts[-1]:
            return self._logits_of_decodes(token_ids, batch)
        if not wanted:
            self._hidden(token_ids, batch, [])
            return mx.zeros((0, self.model.config.vocab_size))
        return self.model.logits(self._hidden(token_ids, batch, wanted))[:len(wanted)]

    def _forward(self, token_ids: mx.array, batch: Batch, wanted: Sequence[int] | None) -> mx.array:
        hidden = self._hidden(token_ids, batch, wanted)
        return hidden[:batch.query_starts[-1] if wanted is None else len(wanted)]

    # ---- decode-only steps

    def _logits_of_decodes(self, token_ids: mx.array, batch: Batch) -> mx.array:
        num_requests = len(batch.context_lens)
        num_rows = round_tokens(num_requests)
        context_lens = np.ones(num_rows, dtype=np.int32)
        context_lens[:num_requests] = batch.context_lens
        width = round_width(-(-int(context_lens.max()) // self.cache.block_size))
        tables = self._rows.update(batch.block_tables, num_rows, width)
        numbers = step_numbers(tables, context_lens, self.cache.block_size)
        token_ids = token_ids.astype(mx.uint32)  # the sampler's type: another type would be traced again
        if num_rows > num_requests:
            token_ids = mx.pad(token_ids, (0, num_rows - num_requests))
        logits = self._decode(token_ids, mx.array(numbers), self.cache.pools)
        return logits[:num_requests] if num_rows > num_requests else logits

    # ---- steps with chunks

    def _hidden(self, token_ids: mx.array, batch: Batch, wanted: Sequence[int] | None) -> mx.array:
        """Return the hidden states of the last tokens of the ``wanted`` requests; of all tokens if ``wanted`` is None.

        The number of tokens is rounded up.
        """
        num_tokens, size = batch.query_starts[-1], self.cache.block_size
        num_spare = round_tokens(num_tokens) - num_tokens
        padded = with_spare(batch, num_spare)
        positions = token_positions(padded.context_lens, padded.query_starts)
        slots = slot_mapping(padded.block_tables, positions, padded.query_starts, size)
        positions_there, slots_there = uploaded([positions.astype(np.int32), slots.astype(np.int32)])
        step = StepArrays(positions_there, slots_there, StepAttention.of(
            padded.block_tables, padded.context_lens, np.diff(padded.query_starts).tolist(), self.network.shape))
        if num_spare:
            token_ids = mx.pad(token_ids, (0, num_spare))
        wanted_tokens = last = None
        if wanted is not None and len(wanted) < num_tokens:
            chosen = [*wanted, *[len(batch.context_lens) - 1] * (round_tokens(max(len(wanted), 1)) - len(wanted))]
            tokens = [batch.query_starts[request + 1] - 1 for request in chosen]
            wanted_tokens = mx.array(np.asarray(tokens, dtype=np.int32))
            last = StepAttention(decode_arrays([batch.block_tables[request] for request in chosen],
                                               [batch.context_lens[request] for request in chosen], size))
        hidden, heads = self.network.hidden(token_ids, step, self.cache.pools, wanted_tokens, last)
        is_sound = mx.isfinite(heads[:num_tokens]).all()
        mx.async_eval(hidden, is_sound)
        if not is_sound.item():
            raise ValueError("keys or values contain NaN")
        return hidden


def compiled_decode(model: Model, network: KernelNetwork) -> Callable[..., mx.array]:
    """Return the compiled function that computes the logits of a decode-only step.

    It holds no reference to a runner: a reference cycle would keep the pools until the garbage collector runs.
    """
    def logits(token_ids: mx.array, numbers: mx.array, pools: list[mx.array]) -> mx.array:
        num_rows = token_ids.shape[0]
        width = numbers.shape[0] // num_rows - 3
        positions, slots, context_lens, tables = slices(upload(numbers), [(num_rows,)] * 3 + [(num_rows, width)])
        step = StepArrays(positions, slots, StepAttention((tables, context_lens)))
        return model.logits(network.hidden(token_ids, step, pools)[0])

    found: Callable[..., mx.array] = mx.compile(logits)
    return found


def step_numbers(tables: TableArray, context_lens: TableArray, block_size: int) -> TableArray:
    """Return the numbers of a decode-only step in one array: positions, slots, context_lens, tables."""
    positions = context_lens - 1
    return np.concatenate([positions, last_slots(tables, positions, block_size), context_lens, tables.reshape(-1)])


def last_slots(tables: TableArray, positions: TableArray, block_size: int) -> TableArray:
    """Return the slot of the last token of each row."""
    blocks = np.take_along_axis(tables, positions[:, None] // block_size, axis=1)[:, 0]
    slots: TableArray = blocks * block_size + positions % block_size
    return slots


def with_spare(batch: Batch, num_spare: int) -> Batch:
    """Return the batch with ``num_spare`` more tokens, of a request in the null block.

    That request is last, as a chunk, even if it has only one token.
    """
    if not num_spare:
        return batch
    num_blocks = num_spare  # more than enough: a table may be longer than its context needs
    return Batch([*batch.block_tables, [0] * num_blocks], [*batch.context_lens, num_spare],
                 [*batch.query_starts, batch.query_starts[-1] + num_spare])
