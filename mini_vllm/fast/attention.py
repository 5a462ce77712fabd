"""``paged_attention`` for speed: the same call, and the same results except for rounding.

Requests that compute one token or a few are attended together, block by block (``split_kv``). A longer chunk, or a
request in a step of few, is attended separately (``gather_attention``).
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.backend import mx
from mini_vllm.fast.gather_attention import attend_gathered
from mini_vllm.fast.plan import AttentionPlan
from mini_vllm.fast.request_span import Span
from mini_vllm.fast.split_kv import attend_splits
from mini_vllm.fast.split_plan import SplitPlan
from mini_vllm.fast.streams import joined, streams


class FastAttention:
    """The attention of one engine, whose layers all have the same shape.

    It is called once per layer, and plans once per step: as long as tables, lengths and starts are equal. The plan of a
    step builds on that of the previous one.

    It requires more than ``paged_attention``: requests with one token come first, and slots after a context hold
    numbers, any numbers.
    """

    def __init__(self) -> None:
        self._step: tuple[object, ...] = ()
        self._longest = 0
        #: By window: the plans of this step, and the latest plans of any step.
        self._plans: dict[int | None, AttentionPlan] = {}
        self._latest: dict[int | None, AttentionPlan] = {}

    def __call__(self, queries: mx.array, pool: mx.array, block_tables: Sequence[Sequence[int]],
                 context_lens: Sequence[int], query_starts: Sequence[int], scale: float,
                 window: int | None = None) -> mx.array:
        """Compute attention like ``paged_attention``.

        Raise ValueError if a request with one token follows one with several.
        """
        step = tuple(map(tuple, block_tables)), tuple(context_lens), tuple(query_starts)
        if step != self._step:
            self._step, self._longest, self._plans = step, max(context_lens), {}
        if window is not None and window >= self._longest:
            window = None  # it covers every request from its first token
        if window not in self._plans:
            spans = [Span(table, end - start, context_len) for table, context_len, start, end
                     in zip(*step, step[2][1:])]
            _, num_both, block_size, _ = pool.shape
            self._latest[window] = self._plans[window] = AttentionPlan(
                spans, queries.shape[1], num_both // 2, block_size, window, self._latest.get(window))
        return attend(queries, pool, self._plans[window], scale)


def attend(queries: mx.array, pool: mx.array, plan: AttentionPlan, scale: float) -> mx.array:
    """Compute attention for each token of the planned step, [num_tokens, num_heads, head_dim], like ``queries``."""
    scaled = queries[:plan.num_together] * scale if plan.num_together else queries
    outs, start = [], 0
    for part in plan.parts:
        tokens = slice(start, start + part.num_tokens)
        if isinstance(part, SplitPlan):
            with mx.stream(next(streams)):
                outs.append(attend_splits(scaled[tokens], pool, part))
        else:
            outs.append(attend_gathered(queries[tokens], pool, part, scale))
        start = tokens.stop
    return joined(outs)
