"""One step of the model: copy blocks, compute a ragged batch, return logits where a next token is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mini_vllm.attention import PagedKVCache, TokenArray, slot_mapping, token_positions
from mini_vllm.backend import mx
from mini_vllm.fast.attention import FastAttention
from mini_vllm.models.network import Model


@dataclass(frozen=True)
class RequestStep:
    """The part of one request that a step computes."""

    token_ids: Sequence[int]
    block_ids: Sequence[int]
    #: How many tokens of the request, including these, have K/V after the step.
    context_len: int
    #: True if the step reaches the request's last token, so that a next one is sampled.
    needs_logits: bool
    #: Whether the logits of all its tokens are needed, for the log-probabilities of a prompt or a draft.
    needs_all_logits: bool = False


class Batch(NamedTuple):
    """The tokens that a step computes, by request: the three lists that attention is called with."""

    block_tables: list[Sequence[int]]
    context_lens: list[int]
    query_starts: list[int]

    @classmethod
    def of(cls, block_tables: Sequence[Sequence[int]], context_lens: Sequence[int], num_new: Sequence[int]) -> Batch:
        return cls(list(block_tables), list(context_lens), [0, *np.cumsum(num_new).tolist()])

    def last_tokens(self, requests: Sequence[int]) -> Batch:
        """Return the batch of only the last token of each of ``requests``."""
        return Batch.of([self.block_tables[i] for i in requests], [self.context_lens[i] for i in requests],
                        [1] * len(requests))


class ModelRunner:
    """Owns the network and the arrays of keys and values.

    Layers with a sliding window keep the K/V that has left the window: one block table serves all layers, and a prefix
    can be shared whatever the window. So a window saves time, not memory.
    """

    #: The class of its K/V arrays.
    cache_class: type[PagedKVCache] = PagedKVCache
    can_step_ahead = True

    def __init__(self, model: Model, num_blocks: int, block_size: int,
                 attention: type | Callable[..., mx.array] = FastAttention) -> None:
        """Create the K/V arrays.

        ``attention`` is a function with the parameters of ``attention.paged_attention``, or a class whose instances can
        be called with these parameters.
        """
        config = model.config
        self.model = model
        self.scale = config.head_dim ** -0.5
        self.attention: Callable[..., mx.array] = attention() if isinstance(attention, type) else attention
        #: Extra keyword arguments for each layer: ``window`` for layers that have one.
        self.options = [{} if window is None else {"window": window}
                        for window in map(config.window, range(config.num_layers))]
        self.cache = self.cache_class(config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_dim,
                                      model.model.norm.weight.dtype)

    def step(self, requests: Sequence[RequestStep], copies: Sequence[tuple[int, int]] = ()) -> mx.array:
        """Compute one step. Return logits [number of wanted tokens, vocab_size], in the order of ``requests``.

        They are the logits of the last token of each request that needs logits, or of all its tokens if it needs all.
        Requests that compute one token must come first. Blocks are copied before anything is written. A step that
        contains a chunk raises ValueError if a key or value of any of its requests is NaN: until the chunk has logits,
        nothing else would reveal it.
        """
        self.cache.copy_blocks(copies)
        token_ids = mx.array(np.concatenate([np.asarray(r.token_ids, dtype=np.int32) for r in requests]))
        batch = Batch.of([r.block_ids for r in requests], [r.context_len for r in requests],
                         [len(r.token_ids) for r in requests])
        if any(r.needs_all_logits for r in requests):
            wanted = [token for r, start, end in zip(requests, batch.query_starts, batch.query_starts[1:])
                      if r.needs_logits or r.needs_all_logits
                      for token in range(start if r.needs_all_logits else end - 1, end)]
            return self._logits_of_tokens(token_ids, batch, wanted)
        return self._logits(token_ids, batch, [i for i, r in enumerate(requests) if r.needs_logits])

    def step_ahead(self, token_ids: mx.array, block_tables: Sequence[Sequence[int]],
                   context_lens: Sequence[int]) -> mx.array | Future[Any]:
        """Return the logits of a step of one token per request, while these tokens are still being computed."""
        batch = Batch.of(block_tables, context_lens, [1] * len(context_lens))
        return self._logits(token_ids, batch, range(len(context_lens)))

    def _logits(self, token_ids: mx.array, batch: Batch, wanted: Sequence[int]) -> mx.array:
        """Return the logits of the last tokens of the ``wanted`` requests."""
        return self.model.logits(self._forward(token_ids, batch, wanted))

    def _logits_of_tokens(self, token_ids: mx.array, batch: Batch, wanted: Sequence[int]) -> mx.array:
        """Return the logits of the ``wanted`` tokens of the step."""
        return self.model.logits(self._forward(token_ids, batch, None)[mx.array(list(wanted))])

    def _forward(self, token_ids: mx.array, batch: Batch, wanted: Sequence[int] | None) -> mx.array:
        """Return the hidden states of the last tokens of the ``wanted`` requests; of all tokens if it is None."""
        positions = token_positions(batch.context_lens, batch.query_starts)
        attend, wanted_tokens = _Attend(self, batch, positions), None
        if wanted is None:
            attend.checks_nan = True
        elif len(wanted) < len(positions):
            attend.checks_nan, attend.last_batch = True, batch.last_tokens(wanted)
            wanted_tokens = mx.array(np.asarray([batch.query_starts[i + 1] - 1 for i in wanted], dtype=np.int32))
        hidden = self.model(token_ids, mx.array(positions.astype(np.int32)), attend, wanted_tokens)
        if attend.has_nan is not None and attend.has_nan.item():
            raise ValueError("keys or values contain NaN")
        return hidden


class _Attend:
    """The attention callback of a step, called in every layer: write the layer's keys and values, then attend."""

    def __init__(self, runner: ModelRunner, batch: Batch, positions: TokenArray) -> None:
        self._runner, self._batch = runner, batch
        self._slots = slot_mapping(batch.block_tables, positions, batch.query_starts, runner.cache.block_size)
        #: Which requests' tokens attend in the last layer, and whether its keys and values are searched for NaN.
        self.last_batch, self.checks_nan = batch, False
        #: Whether any was found. NaN in any layer reaches the last, so checking there is enough.
        self.has_nan: mx.array | None = None

    def __call__(self, layer: int, queries: mx.array, keys_values: mx.array) -> mx.array:
        runner, batch = self._runner, self._batch
        runner.cache.write(layer, keys_values, self._slots)
        if layer == len(runner.options) - 1:
            batch = self.last_batch
            if self.checks_nan:
                self.has_nan = mx.isnan(keys_values).any()
        if not batch.block_tables:
            return queries  # empty: no request needs a token
        return runner.attention(queries, runner.cache.pools[layer], *batch, runner.scale, **runner.options[layer])
