"""What only the fast attention has: several ways to compute, plans that build on each other, and blocks that are not
read."""

from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.attention import PagedKVCache, paged_attention
from mini_vllm.backend import BlasInfo, blas, mx
from mini_vllm.conftest import examples
from mini_vllm.fast import attention as fast_attention
from mini_vllm.fast import split_kv, tuning
from mini_vllm.fast.attention import FastAttention
from mini_vllm.fast.plan import AttentionPlan
from mini_vllm.fast.request_span import Span
from mini_vllm.fast.split_plan import SplitPlan, find_shared_prefixes
from mini_vllm.test_attention import Step, dense, draw_families, draw_mixed_step, write


def splits_of(plan):
    """Return the parts of a plan that are attended together."""
    return [part for part in plan.parts if isinstance(part, SplitPlan)]


def draw_ways_to_compute(data):
    """Draw a way to compute: query heads separate or together, our exp or MLX's, as on a CPU or a GPU, any tile
    size."""
    patches = [patch.object(tuning, "FAST_WITH_ONE_VECTOR", data.draw(st.sampled_from([(), (blas.name,)]))),
               patch.object(tuning, "QUERY_TILE", data.draw(st.sampled_from([2, 5, 128]))),
               patch.object(tuning, "MIN_SPLITS_FOR_TWO_STREAMS", data.draw(st.sampled_from([2, 40]))),
               patch.object(tuning, "MAX_FILLED", data.draw(st.sampled_from([0, 1.125, 100]))),
               patch.object(tuning, "MAX_PARTIALS_PER_SUM", data.draw(st.sampled_from([1, 3, 16])))]
    if data.draw(st.booleans()):
        patches.append(patch.object(tuning, "MIN_EXP_SIZE", 1))
    if data.draw(st.booleans()):
        patches.append(patch.object(tuning, "is_cpu", lambda: False))
    ways = ExitStack()  # after the last draw: a draw may end the example
    for way in patches:
        ways.enter_context(way)
    return ways


def check_every_way(data, step):
    """Check a step with a new plan, or with one derived from a step in which decoding requests had one token less."""
    attention, has_plan = FastAttention(), data.draw(st.booleans())
    with draw_ways_to_compute(data):
        if has_plan:
            num_new = np.diff(step.query_starts)
            lengths = [max(n - (new == 1), 1) for n, new in zip(step.context_lens, num_new)]
            attention(mx.array(np.concatenate(step.queries)), step.cache.pools[0], step.block_tables, lengths,
                      step.query_starts, 0.3, step.window)
        step.check(attention)


@settings(max_examples=examples(50), derandomize=True)
@given(st.data())
def test_every_way_to_compute_a_ragged_batch(data):
    check_every_way(data, draw_mixed_step(data))


@settings(max_examples=examples(50), derandomize=True)
@given(st.data())
def test_every_way_to_compute_shared_beginnings(data):
    check_every_way(data, draw_families(data))


MIXES = {
    "short": [[1], [2, 3], [4, 5, 6], [7, 8]],
    "as long": [[1, 2], [3, 4], [5, 6], [7, 8]],
    "one is long": [[1], [2], list(range(3, 40)), [40, 41]],
    "two begin alike": [[1], [2, 3, 4], [2, 3, 5, 6], [7, 8]],
}


@pytest.mark.parametrize("min_size", [10**9, 1], ids=["few", "many"])  # exp of many is computed another way
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("what", ["keys", "values", "queries"])
@pytest.mark.parametrize("broken", range(4))
def test_what_one_request_holds_does_not_reach_another(broken, what, mix, min_size, monkeypatch):
    monkeypatch.setattr(tuning, "MIN_EXP_SIZE", min_size)
    rng, tables = np.random.default_rng(0), MIXES[mix]
    lengths = [4 * len(table) - i % 2 for i, table in enumerate(tables)]
    attention, lists = FastAttention(), (tables, lengths, [0, 1, 2, 3, 4])
    queries = rng.normal(size=(4, 2, 8)).astype(np.float32)
    whole, damaged = (PagedKVCache(1, 50, 2, 4, 8, mx.float32) for _ in range(2))
    for i, (table, length) in enumerate(zip(tables, lengths)):
        content = {"keys": rng.normal(size=(length, 2, 8)), "values": rng.normal(size=(length, 2, 8))}
        write(whole, content["keys"], content["values"], table)
        if i == broken and what != "queries":
            content[what][-1] = np.nan  # in a block of its own
        write(damaged, content["keys"], content["values"], table)
    expected = np.array(attention(mx.array(queries), whole.pools[0], *lists, 0.5))
    if what == "queries":
        queries[broken] = np.nan
    seen = np.array(attention(mx.array(queries), damaged.pools[0], *lists, 0.5))
    assert np.isnan(seen[broken]).all()
    others = [i for i in range(4) if i != broken]
    np.testing.assert_allclose(seen[others], expected[others], atol=1e-6)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_a_long_shared_prefix_does_not_overflow_half_precision(dtype):
    pool = mx.full((130, 2, 32, 8), 20.0, dtype)  # 4096 values of 20 add up to 81,920; float16 ends at 65,504
    (prefix,) = find_shared_prefixes([Span([*range(1, 129), own], 1, 4097) for own in (128, 129)], 1, 32)
    queries = mx.zeros((2, 1, 8), dtype)
    partials = split_kv._PrefixPartials(queries, pool, prefix)
    out, sums = partials.weigh(partials.highest)
    assert prefix.num_blocks == 128 and out.dtype == sums.dtype == mx.float32
    np.testing.assert_allclose(np.array(sums), 4096, rtol=1e-3)
    np.testing.assert_allclose(np.array(out), 4096 * 20, rtol=1e-2)
    out, sums = partials.weigh(partials.highest + 1e6)  # other tokens of the requests score far higher
    assert (np.array(sums) <= 1e-14).all() and (np.array(out) <= 1e-12).all()


# ---- plans


def test_a_step_is_planned_once_and_known_by_what_is_in_its_lists(monkeypatch):
    plans = []

    def make(*arguments):
        plans.append(AttentionPlan(*arguments))
        return plans[-1]

    monkeypatch.setattr(fast_attention, "AttentionPlan", make)
    attention, queries, pool = FastAttention(), mx.ones((3, 2, 8)), mx.ones((9, 4, 4, 8))
    lists = [[1, 2], [3, 4, 5], [6]], [7, 12, 3], [0, 1, 2, 3]
    for _ in range(3):
        attention(queries, pool, *lists, 0.5)
        attention(queries, pool, *lists, 0.5, window=5)
        attention(queries, pool, *lists, 0.5, window=12)  # covers all first tokens
    assert len(plans) == 2, "one for layers that see everything, one for those that see a window"
    pool = mx.random.normal(pool.shape, key=mx.random.key(0))
    tables, lengths, starts = lists
    for number, (changed, index, value) in enumerate([(lengths, 0, 6), (tables[0], 1, 7), (tables, 2, [8])], start=3):
        changed[index] = value  # a caller may use its lists again
        got = attention(queries, pool, tables, lengths, starts, 0.5)
        assert mx.allclose(got, paged_attention(queries, pool, tables, lengths, starts, 0.5), atol=1e-5), "stale"
        assert len(plans) == number


def test_the_plan_of_a_step_is_made_from_the_one_before():
    tables = [[1, 2], [3, 4, 5], [6, 7], [8]]

    def plan(lengths, before=None, tables=tables):
        return AttentionPlan([Span(table, 1, length) for table, length in zip(tables, lengths)], 2, 2, 4, None, before)

    first = plan([5, 9, 6, 1])
    second = plan([6, 10, 7, 2], first)
    assert all(new.products is old.products for new, old in zip(splits_of(second), splits_of(first)))
    assert not any(mx.array_equal(new.mask, old.mask) for new, old in zip(splits_of(second), splits_of(first)))
    for other in (plan([6, 10, 9, 2], first, [[1, 2], [3, 4, 5], [6, 7, 9], [8]]), plan([6, 10, 7, 2][:3], first),
                  plan([6, 10, 7, 2], first, [[1, 2], [3, 4, 5], [6, 9], [8]])):
        assert all(new.products is not old.products for new, old in zip(splits_of(other), splits_of(first)))


@pytest.mark.parametrize("num_blocks, is_even", [
    ([3, 3, 3, 3], True), ([8, 8, 7, 8], True), ([3, 3, 3, 2], True), ([3, 3, 2, 2], False), ([1, 1, 40], False)])
def test_requests_that_are_about_as_long_are_filled_up(num_blocks, is_even):
    """Pad similar requests, so that their partials are adjacent; if too much padding is needed, partials are looked
    up."""
    spans = [Span(list(range(50 * i + 1, 50 * i + 1 + n)), 1, 4 * n) for i, n in enumerate(num_blocks)]
    plan = SplitPlan(spans, 2, 2, 4)
    assert (plan.sums is None) == is_even
    assert plan.mask.shape[0] == (max(num_blocks) * len(num_blocks) if is_even else sum(num_blocks))
    assert mx.isfinite(plan.mask).sum().item() == 4 * sum(num_blocks), "what fills up is not seen"


def test_a_few_tokens_of_each_request_are_attended_together():
    """Attend a few tokens per request together, as drafts need it. Longer chunks are attended separately."""
    tables = [list(range(10 * i + 1, 10 * i + 8)) for i in range(12)]
    nums = [1, 1, 1, 2, 5, 8, 3, 9, 40, 4, 4]
    plan = AttentionPlan([Span(table, num, 25) for table, num in zip(tables, nums)], 4, 2, 4)
    found = [(type(part).__name__, part.num_tokens) for part in plan.parts]
    assert found == [("SplitPlan", 3), ("SplitPlan", 18), ("GatherPlan", 9), ("GatherPlan", 40), ("GatherPlan", 4),
                     ("GatherPlan", 4)], "the last two are as few as one by one is faster for"


def test_a_plan_is_not_moved_to_where_a_shared_block_is_written():
    """Shorten contexts with two shared blocks of 4: at length 9, the first of three new tokens does not see slot 7."""
    tables = [[1, 2, 3], [1, 2, 4], [1, 2, 5]]
    rng = np.random.default_rng(0)
    pool = mx.array(rng.normal(size=(9, 4, 4, 8)).astype(np.float32))
    queries = mx.array(rng.normal(size=(9, 4, 8)).astype(np.float32))
    attention, starts = FastAttention(), [0, 3, 6, 9]
    for lengths in ([12, 12, 12], [10, 10, 10], [11, 12, 9]):
        got = attention(queries, pool, tables, list(lengths), list(starts), 0.3)
        expected = paged_attention(queries, pool, tables, lengths, starts, 0.3)
        np.testing.assert_allclose(np.array(got), np.array(expected), atol=1e-5)


def test_many_requests_are_shared_out_to_two_streams(monkeypatch):
    monkeypatch.setattr(tuning, "is_cpu", lambda: True)
    monkeypatch.setattr(tuning, "blas", BlasInfo("nvpl", None, "as if"))
    spans = [Span(list(range(20 * i + 1, 20 * i + 21)), 1, 75) for i in range(4)]
    assert [half.num_requests for half in splits_of(AttentionPlan(spans, 2, 2, 4))] == [2, 2]
    alike = [Span([1, *span.block_ids[1:]], 1, 75) for span in spans]
    assert [half.num_requests for half in splits_of(AttentionPlan(alike, 2, 2, 4))] == [4]
    monkeypatch.setattr(tuning, "is_cpu", lambda: False)
    assert [half.num_requests for half in splits_of(AttentionPlan(spans, 2, 2, 4))] == [4]


def test_a_window_reads_only_the_blocks_it_reaches():
    """Fill blocks that have left the window with anything: they are not read."""
    step = Step(np.random.default_rng(0), PagedKVCache(1, 40, 1, 4, 8, mx.float32), 2, window=5)
    for table, num_new, length in ([[1, 2, 3, 4], 1, 14], [[5, 6, 7], 1, 12], [[8, 9, 10, 11, 12], 1, 17],
                                   [[13, 14, 15, 16], 3, 15]):
        step.add(table, step.normal(length, 1, 8), step.normal(length, 1, 8), num_new)
        num_unread = max(length - num_new + 1 - 5, 0) // 4
        assert num_unread, "this test is about blocks that are left out"
        for block in table[:num_unread]:
            step.cache.pools[0][block] = mx.nan
    step.check(FastAttention(), atol=1e-5)


def test_single_tokens_come_first():
    with pytest.raises(ValueError, match=r"must come first in a step, but the numbers of tokens are \[2, 1\]"):
        FastAttention()(mx.ones((3, 1, 4)), mx.ones((4, 2, 4, 4)), [[1], [2]], [2, 1], [0, 2, 3], 1.0)


def test_the_fast_one_is_the_plain_one_but_for_rounding():
    """Compare long contexts, which random batches do not draw: many tiles, many sums, a prefix of many blocks."""
    rng = np.random.default_rng(0)
    pool = mx.array(rng.normal(size=(400, 8, 16, 32)).astype(np.float32))
    shared = list(range(1, 41))
    tables = [shared + [41 + i] for i in range(5)] + [list(range(60 + 50 * i, 110 + 50 * i)) for i in range(4)]
    lists = tables, [641 + i for i in range(5)] + [800, 20, 799, 700], [0, 1, 2, 3, 4, 5, 6, 7, 7 + 300, 307 + 700]
    queries = mx.array(rng.normal(size=(1007, 12, 32)).astype(np.float32))
    for window in (None, 100):
        fast, plain = (np.array(attention(queries, pool, *lists, 0.2, window))
                       for attention in (FastAttention(), paged_attention))
        np.testing.assert_allclose(fast, plain, atol=2e-5)
    one = dense(np.array(queries[:1]), *(np.concatenate([np.array(pool[b, h:h + 4]).swapaxes(0, 1) for b in tables[0]])
                                         [:641] for h in (0, 4)), 0.2)
    np.testing.assert_allclose(np.array(FastAttention()(queries[:1], pool, tables[:1], [641], [0, 1], 0.2)), one,
                               atol=2e-5)


@pytest.mark.parametrize("max_products", [1, 7, 24, 10**6])
def test_no_more_products_at_once_than_the_device_takes(max_products, monkeypatch):
    """Attend requests of 1 to 9 blocks, some with a common beginning, in as many parts as the limit requires."""
    monkeypatch.setattr(tuning, "max_products", lambda: max_products)
    tables = [list(range(10 * i, 10 * i + 1 + i % 9)) for i in range(1, 12)] + [[10, 11, 12], [10, 11, 13]]
    spans = [Span(table, 1, 4 * len(table)) for table in tables]
    plan = AttentionPlan(spans, 4, 2, 4)
    assert sum(splits.num_requests for splits in splits_of(plan)) == len(spans)
    for splits in splits_of(plan):
        assert splits.products.keys.shape[0] <= max_products or splits.num_requests == 1
    rng = np.random.default_rng(0)
    pool = mx.array(rng.normal(size=(130, 4, 4, 8)).astype(np.float32))
    queries = mx.array(rng.normal(size=(len(spans), 4, 8)).astype(np.float32))
    lists = (tables, [4 * len(table) for table in tables], list(range(len(spans) + 1)), 0.3)
    assert mx.allclose(FastAttention()(queries, pool, *lists), paged_attention(queries, pool, *lists), atol=1e-4)


def test_what_is_filled_up_counts_as_products_as_well(monkeypatch):
    """Count padding as products: 8, 7 and 8 blocks would be padded to 24, but the device takes no more than 23."""
    monkeypatch.setattr(tuning, "FAST_WITH_ONE_VECTOR", (blas.name,))
    spans = [Span(list(range(20 * i + 1, 20 * i + 1 + n)), 1, 4 * n) for i, n in enumerate((8, 7, 8))]
    for max_products, is_even in ((4 * 23, False), (4 * 24, True)):
        monkeypatch.setattr(tuning, "max_products", lambda most=max_products: most)
        plan = SplitPlan(spans, 4, 2, 4)
        assert (plan.sums is None) == is_even and plan.products.keys.shape[0] <= max_products
