"""The plan of a step's attention, made once per step with numpy and used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby

from mini_vllm.fast import tuning
from mini_vllm.fast.gather_attention import CausalMasks, GatherPlan
from mini_vllm.fast.request_span import Span
from mini_vllm.fast.split_plan import SplitPlan, begin_alike


class AttentionPlan:
    """Which requests of a step are attended together, block by block, and which one by one.

    ``before`` is the plan of an earlier step, if there was one: decoding requests attend to mostly the same tokens,
    plus one more each. With a ``window``, a token attends only to the last ``window`` tokens, including itself;
    requests with a common beginning then no longer see the same tokens of it, so each attends separately.

    Raises ValueError if a request with one token follows one with several.
    """

    def __init__(self, spans: Sequence[Span], num_heads: int, num_kv_heads: int, block_size: int,
                 window: int | None = None, before: AttentionPlan | None = None) -> None:
        if window is not None:
            spans = [span.within(window, block_size) for span in spans]
        nums = [span.num_queries for span in spans]
        if any(earlier > 1 and later == 1 for earlier, later in zip(nums, nums[1:])):
            raise ValueError("requests that compute one token must come first in a step, but the numbers of tokens are "
                             f"{nums}")
        masks = CausalMasks(window)
        #: In the order of the step: requests that are attended together, with one plan per stream, and single requests.
        self.parts: list[SplitPlan | GatherPlan] = []
        #: Number of tokens up to the last one that is attended together with others.
        self.num_together = 0
        #: The plans of each group that is attended together, by the blocks of its requests.
        self._runs: list[tuple[list[Sequence[int]], list[SplitPlan]]] = []
        for most_queries, group in groupby(spans, key=_most_queries):
            run = list(group)
            are_few = len(run) <= tuning.MAX_GATHERED_DECODES and (window is not None or not begin_alike(run))
            if not most_queries or are_few:
                self.parts += [GatherPlan(span, num_kv_heads, block_size, masks) for span in run]
                continue
            tables = [span.block_ids[:span.num_blocks(block_size)] for span in run]
            splits = (before._moved(tables, run) if before is not None else None) or [
                SplitPlan(part, num_heads, num_kv_heads, block_size, window)
                for half in _halves(run, block_size, may_share=window is None)
                for part in _within(half, tuning.max_products() // num_heads, block_size)]
            self._runs.append((tables, splits))
            self.parts += splits
            self.num_together = sum(part.num_tokens for part in self.parts)

    def _moved(self, tables: list[Sequence[int]], run: Sequence[Span]) -> list[SplitPlan] | None:
        """Return the earlier plans of a group with these blocks, moved to its current lengths; None if there were
        none."""
        for own_tables, splits in self._runs:
            if own_tables == tables:
                ends = accumulate(each.num_requests for each in splits)
                pieces = [run[end - each.num_requests:end] for each, end in zip(splits, ends)]
                if all(each.can_move_to(piece) for each, piece in zip(splits, pieces)):
                    return [each.at(piece) for each, piece in zip(splits, pieces)]
        return None


def _most_queries(span: Span) -> int:
    """Return the most tokens per request in the group that this request is attended with; 0 for a chunk.

    A chunk is attended separately.
    """
    if span.num_queries == 1:
        return 1
    return tuning.MAX_SPLIT_QUERIES if span.num_queries <= tuning.MAX_SPLIT_QUERIES else 0


def _halves(spans: Sequence[Span], block_size: int, may_share: bool) -> list[Sequence[Span]]:
    """Split requests into two halves with about equally many blocks, for two streams; one part if two would not pay.

    If prefixes may be shared, requests with a common beginning stay together: they attend to it once.
    """
    counts = list(accumulate(span.num_blocks(block_size) for span in spans))
    cut = sum(count < counts[-1] / 2 for count in counts) + 1
    does_not_pay = (not tuning.halves_are_faster() or counts[-1] < tuning.MIN_SPLITS_FOR_TWO_STREAMS
                    or cut >= len(spans))
    if does_not_pay or (may_share and begin_alike(spans)):
        return [spans]
    return [spans[:cut], spans[cut:]]


def _within(spans: Sequence[Span], max_blocks: int, block_size: int) -> list[Sequence[Span]]:
    """Split requests into as few parts as possible of at most ``max_blocks`` blocks each, or of one request."""
    parts: list[Sequence[Span]] = []
    start = num_blocks = 0
    for index, span in enumerate(spans):
        num_blocks += span.num_blocks(block_size)
        if num_blocks > max_blocks and index > start:
            parts.append(spans[start:index])
            start, num_blocks = index, span.num_blocks(block_size)
    return [*parts, spans[start:]]
