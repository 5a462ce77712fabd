"""What the attention of a step needs to know beforehand. Made once per step with numpy, then used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from mini_vllm.fast import tuning
from mini_vllm.fast.gathered import CausalMasks, GatherPlan
from mini_vllm.fast.span import Span
from mini_vllm.fast.split_plan import SplitPlan, begin_alike


class AttentionPlan:
    """Which requests of a step are attended together, block by block, and which one by one.

    ``before`` is the plan of an earlier step, if there was one: what requests that decode attend to is mostly the same,
    but for the one token that each has more. With a ``window``, a token attends to this many tokens only, itself
    included; a beginning that requests share is then no longer the same for all of them, and each attends by itself.

    Raises ValueError if a request with one token stands after one with several.
    """

    def __init__(self, spans: Sequence[Span], num_heads: int, num_kv_heads: int, block_size: int,
                 window: int | None = None, before: AttentionPlan | None = None) -> None:
        if window is not None:
            spans = [span.within(window, block_size) for span in spans]
        num_decodes = sum(span.num_queries == 1 for span in spans)
        decodes, chunks = spans[:num_decodes], spans[num_decodes:]
        if any(span.num_queries == 1 for span in chunks):
            raise ValueError(f"requests that compute one token come first in a step, but the numbers of tokens are "
                             f"{[span.num_queries for span in spans]}")
        are_few = num_decodes <= tuning.MAX_GATHERED_DECODES and (window is not None or not begin_alike(decodes))
        self._tables = [span.block_ids[:span.num_blocks(block_size)] for span in decodes]
        #: Requests that decode, if there are many; one plan for each stream that they are shared out to.
        self.splits: list[SplitPlan] = []
        if are_few:
            chunks = spans
        elif before is not None and before.splits and before._tables == self._tables:
            ends = list(accumulate(splits.num_requests for splits in before.splits))
            self.splits = [splits.at(decodes[end - splits.num_requests:end])
                           for splits, end in zip(before.splits, ends)]
        else:
            self.splits = [SplitPlan(part, num_heads, num_kv_heads, block_size, window)
                           for half in _halves(decodes, block_size, may_share=window is None)
                           for part in _within(half, tuning.max_products() // num_heads, block_size)]
        masks = CausalMasks(window)
        #: The others, in the order of the step.
        self.gathered = [GatherPlan(span, num_kv_heads, block_size, masks) for span in chunks]


def _halves(spans: Sequence[Span], block_size: int, may_share: bool) -> list[Sequence[Span]]:
    """Requests in two halves with about as many blocks each, for two streams; in one, if two would not pay.

    Requests that share a beginning, where they may, are not torn apart: together they attend to it once.
    """
    counts = list(accumulate(span.num_blocks(block_size) for span in spans))
    cut = sum(count < counts[-1] / 2 for count in counts) + 1
    does_not_pay = (not tuning.has_two_streams() or counts[-1] < tuning.MIN_SPLITS_FOR_TWO_STREAMS
                    or cut >= len(spans))
    if does_not_pay or (may_share and begin_alike(spans)):
        return [spans]
    return [spans[:cut], spans[cut:]]


def _within(spans: Sequence[Span], max_blocks: int, block_size: int) -> list[Sequence[Span]]:
    """Requests in as few parts as have at most ``max_blocks`` blocks each, or one request."""
    parts: list[Sequence[Span]] = []
    start = num_blocks = 0
    for index, span in enumerate(spans):
        num_blocks += span.num_blocks(block_size)
        if num_blocks > max_blocks and index > start:
            parts.append(spans[start:index])
            start, num_blocks = index, span.num_blocks(block_size)
    return [*parts, spans[start:]]
