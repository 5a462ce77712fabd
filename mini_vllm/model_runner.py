"""One step of the model: copy blocks, compute a ragged batch, return logits where a next token is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mini_vllm.attention import PagedKVCache, paged_attention
from mini_vllm.backend import mx
from mini_vllm.fast.plan import AttentionPlan, Span
from mini_vllm.models.network import Model


@dataclass(frozen=True)
class RequestStep:
    """The part of one request that a step computes."""

    token_ids: Sequence[int]
    block_ids: Sequence[int]
    #: How many tokens of the request, these included, have K/V after the step.
    context_len: int
    #: Whether its last token is the last one there is, so that the next must be sampled.
    needs_logits: bool
    #: Whether the logits of all its tokens are wanted, for the log-probabilities of a prompt.
    needs_all_logits: bool = False


class ModelRunner:
    """Owns the network and the arrays of keys and values.

    Layers with a sliding window keep what has left it, like the others: one block table serves all layers, and a prefix
    can be shared whatever the window. So a window saves time, not memory.
    """

    def __init__(self, model: Model, num_blocks: int, block_size: int) -> None:
        config = model.config
        self.model = model
        self.scale = config.head_dim ** -0.5
        self._windows = [config.window(layer) for layer in range(config.num_layers)]
        self.cache = PagedKVCache(config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_dim,
                                  model.model.norm.weight.dtype)
        #: Of the last step, by window: what layers that see everything attend to, and those that see a window.
        self._plans: dict[int | None, AttentionPlan] = {}

    def step(self, requests: Sequence[RequestStep], copies: Sequence[tuple[int, int]] = ()) -> mx.array:
        """Logits [number of rows, vocab_size], in the order of ``requests``: the last row of each that needs logits, or
        all its rows if it needs all.

        Requests that compute one token come first. Block copies are made before anything is written. Raises ValueError
        if keys or values of a chunk are not numbers: until it has logits, nothing else would show it.
        """
        self.cache.copy_blocks(copies)
        token_ids = mx.array(np.concatenate([np.asarray(r.token_ids, dtype=np.int32) for r in requests]))
        ends = np.cumsum([len(r.token_ids) for r in requests]) - 1
        spans = [Span(r.block_ids, len(r.token_ids), r.context_len) for r in requests]
        if any(r.needs_all_logits for r in requests):
            hidden = self._forward(token_ids, spans, None)
            rows = [row for end, r in zip(ends, requests) if r.needs_logits or r.needs_all_logits
                    for row in range(end + 1 - len(r.token_ids) if r.needs_all_logits else end, end + 1)]
            return self.model.logits(hidden[mx.array(rows)])
        return self.model.logits(self._forward(token_ids, spans, [
            (int(end), span) for end, span, r in zip(ends, spans, requests) if r.needs_logits]))

    def step_ahead(self, token_ids: mx.array, spans: Sequence[Span]) -> mx.array:
        """Logits of a step of one token a request whose tokens are still being computed."""
        return self.model.logits(self._forward(token_ids, spans, list(enumerate(spans))))

    def _forward(self, token_ids: mx.array, spans: Sequence[Span],
                 wanted: Sequence[tuple[int, Span]] | None) -> mx.array:
        """Hidden states of the ``wanted`` rows, each the last token of its span; of all rows if it is None."""
        plan, *_ = plans = self._make_plans(spans)
        rows, last_layer = None, len(plans) - 1
        has_nan: list[mx.array] = []
        if wanted is not None and len(wanted) < token_ids.shape[0]:
            rows = mx.array(np.asarray([row for row, _ in wanted], dtype=np.int32))
            plans[-1] = AttentionPlan([replace(span, num_new_tokens=1) for _, span in wanted], self.cache.block_size,
                                      plans[-1], plans[-1].window)

        def attend(layer: int, queries: mx.array, keys_values: mx.array) -> mx.array:
            self.cache.write_step(layer, keys_values, plan)
            if layer == last_layer and (rows is not None or wanted is None):
                has_nan.append(mx.isnan(keys_values).any())
            return paged_attention(queries, self.cache.pools[layer], plans[layer], self.scale)

        hidden = self.model(token_ids, plan.positions, attend, rows)
        if has_nan and has_nan[0].item():
            raise ValueError("keys or values contain NaN")
        return hidden

    def _make_plans(self, spans: Sequence[Span]) -> list[AttentionPlan]:
        """What each layer attends to. A window that reaches back to the first token of every request is none."""
        longest = max(span.context_len for span in spans)
        windows = [window if window is not None and window < longest else None for window in self._windows]
        self._plans = {window: AttentionPlan(spans, self.cache.block_size, self._plans.get(window), window)
                       for window in set(windows)}
        return [self._plans[window] for window in windows]
