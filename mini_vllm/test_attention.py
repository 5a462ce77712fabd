"""Paged attention against attention written out in numpy, over scattered, shared and half-filled blocks."""

from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm import attention
from mini_vllm.attention import PagedKVCache, paged_attention
from mini_vllm.backend import blas, is_cpu, mx
from mini_vllm.fast import tuning
from mini_vllm.fast.plan import AttentionPlan, Span, find_shared_prefixes, rows_of_slots


def dense(queries, keys, values, scale, window=None):
    """What each of the last tokens of a context sees, one head and one token at a time."""
    num_queries, num_heads, _ = queries.shape
    context_len, num_kv_heads, _ = keys.shape
    out = np.zeros_like(queries)
    for i in range(num_queries):
        end = context_len - num_queries + i + 1
        start = 0 if window is None else max(end - window, 0)
        for h in range(num_heads):
            kv = h * num_kv_heads // num_heads
            scores = keys[start:end, kv] @ queries[i, h] * scale
            weights = np.exp(scores - scores.max())
            out[i, h] = weights @ values[start:end, kv] / weights.sum()
    return out


def make_cache(num_kv_heads, block_size, head_dim, num_blocks=40):
    cache = PagedKVCache(1, num_blocks, num_kv_heads, block_size, head_dim, mx.float32)
    cache.pools[0] = cache.pools[0] + mx.nan  # what was never written must never be read
    return cache


def write(cache, keys, values, table, first=0):
    positions = np.arange(first, first + len(keys))
    both = np.concatenate((keys, values), axis=1)
    cache.write(0, mx.array(both), rows_of_slots(np.asarray(table)[positions // cache.block_size],
                                                 positions % cache.block_size, both.shape[1], cache.block_size))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_a_ragged_batch_sees_what_each_request_sees_alone(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    num_kv_heads, group = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.sampled_from([1, 2, 3, 8]))
    block_size, head_dim = data.draw(st.sampled_from([1, 3, 8, 32])), 8
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    news = sorted([data.draw(st.sampled_from([1, 1, min(7, n), n])) for n in lengths], key=lambda n: n > 1)
    lengths = [max(length, n) for length, n in zip(lengths, news)]
    window = data.draw(WINDOWS)
    blocks = rng.permutation(np.arange(1, 300))
    cache = PagedKVCache(1, 300, num_kv_heads, block_size, head_dim, mx.float32)
    cache.pools[0] = cache.pools[0] + 1e4  # garbage in slots that hold no token must not show
    spans, queries, expected = [], [], []
    for length, n in zip(lengths, news):
        count = -(-length // block_size)
        table, blocks = blocks[:count].tolist(), blocks[count:]
        keys, values = (rng.normal(size=(length, num_kv_heads, head_dim)).astype(np.float32) for _ in range(2))
        own = rng.normal(size=(n, num_kv_heads * group, head_dim)).astype(np.float32)
        write(cache, keys, values, table)
        spans.append(Span(table + [7, 8], n, length))  # a table may have room for more
        queries.append(own)
        expected.append(dense(own, keys, values, 0.3, window))
    with draw_ways_to_compute(data):
        plan = draw_plan(data, spans, block_size, window)
        got = paged_attention(mx.array(np.concatenate(queries)), cache.pools[0], plan, 0.3)
    np.testing.assert_allclose(np.array(got), np.concatenate(expected), atol=2e-5)


WINDOWS = st.sampled_from([None, None, 1, 2, 5, 8, 30])


def draw_plan(data, spans, block_size, window):
    """Made anew, or from a plan in which those that decode have a token less, if they can."""
    before = None
    if data.draw(st.booleans()):
        before = AttentionPlan([replace(span, context_len=max(span.context_len - (span.num_new_tokens == 1), 1))
                                for span in spans], block_size, window=window)
    return AttentionPlan(spans, block_size, before, window)


def draw_ways_to_compute(data):
    """Whatever the sizes: query heads one by one or together, the fast exp or MLX's, as on a CPU or a GPU, any tile."""
    patches = [patch.object(tuning, "FAST_WITH_ONE_VECTOR", data.draw(st.sampled_from([(), (blas.name,)]))),
               patch.object(tuning, "QUERY_TILE", data.draw(st.sampled_from([2, 5, 128]))),
               patch.object(tuning, "MIN_SPLITS_FOR_TWO_STREAMS", data.draw(st.sampled_from([2, 40])))]
    if data.draw(st.booleans()):
        patches.append(patch.object(tuning, "MIN_EXP_SIZE", 1))
    if data.draw(st.booleans()):
        patches.append(patch.object(tuning, "is_cpu", lambda: False))
    ways = ExitStack()  # after the last draw: one may end the example
    for way in patches:
        ways.enter_context(way)
    return ways


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_requests_that_share_beginnings_see_what_each_sees_alone(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    num_kv_heads, group = data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([1, 3]))
    block_size, head_dim = data.draw(st.sampled_from([1, 4])), 8
    families = data.draw(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(1, 24), min_size=1, max_size=4)),
                                  min_size=1, max_size=3))
    blocks, window = rng.permutation(np.arange(1, 500)).tolist(), data.draw(WINDOWS)
    cache = PagedKVCache(1, 500, num_kv_heads, block_size, head_dim, mx.float32)
    spans, expected, queries = [], [], []
    for num_shared, own_lengths in families:
        shared = [blocks.pop() for _ in range(num_shared)]
        common = rng.normal(size=(2, num_shared * block_size, num_kv_heads, head_dim)).astype(np.float32)
        for own_length in own_lengths:
            table = shared + [blocks.pop() for _ in range(-(-own_length // block_size))]
            own = rng.normal(size=(2, own_length, num_kv_heads, head_dim)).astype(np.float32)
            keys, values = np.concatenate((common, own), axis=1)
            write(cache, keys, values, table)
            spans.append(Span(table, 1, len(keys)))
            queries.append(rng.normal(size=(1, num_kv_heads * group, head_dim)).astype(np.float32))
            expected.append(dense(queries[-1], keys, values, 0.3, window))
    order = rng.permutation(len(spans))
    spans = [spans[i] for i in order]
    with draw_ways_to_compute(data):
        plan = draw_plan(data, spans, block_size, window)
        got = paged_attention(mx.array(np.concatenate([queries[i] for i in order])), cache.pools[0], plan, 0.3)
    np.testing.assert_allclose(np.array(got), np.concatenate([expected[i] for i in order]), atol=2e-5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from([1, 3, 8]), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=5),
       st.sampled_from([1, 99]))
def test_a_step_is_written_as_token_by_token(block_size, requests, min_run):
    rng = np.random.default_rng(len(requests))
    blocks = rng.permutation(np.arange(1, 400)).tolist()
    spans = []
    for context, new in sorted(requests, key=lambda request: request[1] > 1):
        count = -(-(context + new) // block_size)
        spans.append(Span(blocks[:count], new, context + new))
        blocks = blocks[count:]
    num_tokens = sum(span.num_new_tokens for span in spans)
    rows = rng.normal(size=(num_tokens, 4, 8)).astype(np.float32)
    cache, expected, row = PagedKVCache(1, 400, 2, block_size, 8, mx.float32), np.zeros((400, 4, block_size, 8)), 0
    for span in spans:
        for position in range(span.context_len - span.num_new_tokens, span.context_len):
            expected[span.block_ids[position // block_size], :, position % block_size] = rows[row]
            row += 1
    with patch.object(tuning, "MIN_RUN", min_run):
        cache.write_step(0, mx.array(rows), AttentionPlan(spans, block_size))
    assert np.array_equal(np.array(cache.pools[0]), expected.astype(np.float32))


MIXES = {
    "short": [[1], [2, 3], [4, 5, 6], [7, 8]],
    "one is long": [[1], [2], list(range(3, 40)), [40, 41]],
    "two begin alike": [[1], [2, 3, 4], [2, 3, 5, 6], [7, 8]],
}


@pytest.mark.parametrize("min_size", [10**9, 1], ids=["few", "many"])  # exp of many is computed in another way
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("what", ["keys", "values", "queries"])
@pytest.mark.parametrize("broken", range(4))
def test_what_one_request_holds_does_not_reach_another(broken, what, mix, min_size, monkeypatch):
    monkeypatch.setattr(tuning, "MIN_EXP_SIZE", min_size)
    rng, tables = np.random.default_rng(0), MIXES[mix]
    lengths = [4 * len(table) - i % 2 for i, table in enumerate(tables)]
    plan = AttentionPlan([Span(table, 1, length) for table, length in zip(tables, lengths)], 4)
    queries = rng.normal(size=(4, 2, 8)).astype(np.float32)
    whole, damaged = (PagedKVCache(1, 50, 2, 4, 8, mx.float32) for _ in range(2))
    for i, (table, length) in enumerate(zip(tables, lengths)):
        content = {"keys": rng.normal(size=(length, 2, 8)), "values": rng.normal(size=(length, 2, 8))}
        write(whole, content["keys"], content["values"], table)
        if i == broken and what != "queries":
            content[what][-1] = np.nan  # in a block of its own
        write(damaged, content["keys"], content["values"], table)
    expected = np.array(paged_attention(mx.array(queries), whole.pools[0], plan, 0.5))
    if what == "queries":
        queries[broken] = np.nan
    seen = np.array(paged_attention(mx.array(queries), damaged.pools[0], plan, 0.5))
    assert np.isnan(seen[broken]).all()
    others = [i for i in range(4) if i != broken]
    np.testing.assert_allclose(seen[others], expected[others], atol=1e-6)


def test_requests_may_share_blocks():
    rng = np.random.default_rng(0)
    cache = make_cache(2, 4, 8)
    keys, values = (rng.normal(size=(10, 2, 8)).astype(np.float32) for _ in range(2))
    write(cache, keys, values, [5, 9, 2])
    write(cache, keys[8:], values[8:], [5, 9, 3], first=8)
    cache.pools[0] = mx.nan_to_num(cache.pools[0])
    queries = rng.normal(size=(2, 4, 8)).astype(np.float32)
    plan = AttentionPlan([Span([5, 9, 2], 1, 10), Span([5, 9, 3], 1, 10)], 4)
    got = np.array(paged_attention(mx.array(queries), cache.pools[0], plan, 0.5))
    for row in range(2):
        np.testing.assert_allclose(got[row:row + 1], dense(queries[row:row + 1], keys, values, 0.5), atol=1e-5)


def test_one_request_never_reads_what_was_not_written():
    rng = np.random.default_rng(0)
    cache = make_cache(2, 4, 8)
    keys, values = (rng.normal(size=(6, 2, 8)).astype(np.float32) for _ in range(2))
    write(cache, keys, values, [5, 9])
    queries = rng.normal(size=(1, 2, 8)).astype(np.float32)
    plan = AttentionPlan([Span([5, 9], 1, 6)], 4)
    got = paged_attention(mx.array(queries), cache.pools[0], plan, 0.5)
    np.testing.assert_allclose(np.array(got), dense(queries, keys, values, 0.5), atol=1e-5)


def test_huge_scores_do_not_overflow():
    cache = PagedKVCache(1, 10, 1, 4, 4, mx.float32)
    write(cache, np.full((5, 1, 4), 100, np.float32), np.arange(20, dtype=np.float32).reshape(5, 1, 4), [1, 2])
    plan = AttentionPlan([Span([1, 2], 1, 5), Span([1, 2], 1, 5)], 4)
    got = np.array(paged_attention(mx.full((2, 1, 4), 100.0), cache.pools[0], plan, 1.0))
    np.testing.assert_allclose(got[0, 0], [8, 9, 10, 11], rtol=1e-5)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_a_long_shared_prefix_does_not_overflow_half_precision(dtype):
    pool = mx.full((130, 2, 32, 8), 20.0, dtype)  # 4096 values of 20 add up to 81,920; float16 ends at 65,504
    (prefix,) = find_shared_prefixes([Span([*range(1, 129), own], 1, 4097) for own in (128, 129)], 32)
    queries = mx.zeros((2, 1, 8), dtype)
    parts = attention._PrefixParts(queries, pool, prefix)
    out, sums = parts.weigh(parts.highest)
    assert len(prefix.blocks) == 128 and out.dtype == sums.dtype == mx.float32
    np.testing.assert_allclose(np.array(sums), 4096, rtol=1e-3)
    np.testing.assert_allclose(np.array(out), 4096 * 20, rtol=1e-2)
    out, sums = parts.weigh(parts.highest + 1e6)  # other tokens of the requests score far higher
    assert (np.array(sums) <= 1e-14).all() and (np.array(out) <= 1e-12).all()


def test_writing_touches_its_slots_and_no_other():
    cache = PagedKVCache(2, 6, 2, 4, 8, mx.float32)
    write(cache, np.ones((3, 2, 8), np.float32), 2 * np.ones((3, 2, 8), np.float32), [4, 1], first=2)
    keys, values = np.split(np.array(cache.pools[0]), 2, axis=1)
    assert keys[4, :, 2:].min() == 1 and keys[1, :, 0].min() == 1 and keys.sum() == 3 * 2 * 8
    assert values.sum() == 2 * keys.sum() and np.array(cache.pools[1]).sum() == 0


def test_a_step_is_written_in_place():
    cache = PagedKVCache(1, 4000, 2, 8, 16, mx.float32)
    plan = AttentionPlan([Span([1], 1, 3), Span([2], 1, 4), Span([3, 4, 5], 24, 24)], 8)
    assert plan.runs or not is_cpu()
    keys_values = mx.ones((26, 4, 16))
    mx.eval(keys_values)

    def num_new_bytes():
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        cache.write_step(0, keys_values, plan)
        mx.eval(cache.pools)
        return mx.get_peak_memory() - before

    assert num_new_bytes() < cache.pools[0].nbytes / 10
    held = cache.pools[0].reshape(-1)  # what must not be: somebody else has the array
    mx.eval(held)
    assert num_new_bytes() >= cache.pools[0].nbytes, "this test would not notice a copy"


def test_a_single_token_is_written_the_same_either_way():
    rng = np.random.default_rng(0)
    one, other = (PagedKVCache(2, 6, 2, 4, 8, mx.float32) for _ in range(2))
    for block, offset in ((3, 1), (5, 3), (1, 0)):
        keys_values = mx.array(rng.normal(size=(1, 4, 8)).astype(np.float32))
        one.write(1, keys_values, rows_of_slots(np.array([block]), np.array([offset]), 4, 4))
        other.write_one(1, keys_values, mx.array([block, offset]))
    assert np.array_equal(np.array(one.pools[1]), np.array(other.pools[1])) and np.array(one.pools[1]).any()


def test_a_copied_block_does_not_copy_the_pool():
    cache = PagedKVCache(2, 4000, 2, 8, 16, mx.float32)
    mx.eval(cache.pools)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    cache.copy_blocks([(3, 5), (3, 1)])
    mx.eval(cache.pools)
    assert mx.get_peak_memory() - before < cache.pools[0].nbytes / 10


def test_copies_take_whole_blocks_of_every_layer():
    cache = PagedKVCache(2, 6, 2, 4, 8, mx.float32)
    for layer in range(2):
        cache.pools[layer][3] = layer + 1.0
    cache.copy_blocks([(3, 5), (3, 1)])
    assert cache.num_copied_blocks == 2
    for layer in range(2):
        for block in (1, 3, 5):
            assert np.unique(np.array(cache.pools[layer][block])).tolist() == [layer + 1]
        assert np.array(cache.pools[layer][2]).max() == 0


def test_a_block_costs_keys_and_values_of_all_layers():
    assert PagedKVCache.block_bytes(6, 4, 32, 32, mx.float32) == 2 * 6 * 4 * 32 * 32 * 4


def test_the_plan_of_a_step_is_made_from_the_one_before():
    tables = [[1, 2], [3, 4, 5], [6, 7], [8]]

    def plan(lengths, before=None, tables=tables):
        return AttentionPlan([Span(table, 1, length) for table, length in zip(tables, lengths)], 4, before)

    first = plan([5, 9, 6, 1])
    second = plan([6, 10, 7, 2], first)
    assert all(new.groups is old.groups for new, old in zip(second.pairs, first.pairs))
    assert not any(mx.array_equal(new.mask, old.mask) for new, old in zip(second.pairs, first.pairs))
    for other in (plan([6, 10, 9, 2], first, [[1, 2], [3, 4, 5], [6, 7, 9], [8]]), plan([6, 10, 7, 2][:3], first),
                  plan([6, 10, 7, 2], first, [[1, 2], [3, 4, 5], [6, 9], [8]])):
        assert all(new.groups is not old.groups for new, old in zip(other.pairs, first.pairs))


def test_a_window_reads_only_the_blocks_it_reaches():
    """Blocks that left the window may hold anything; they are not even looked at."""
    rng, spans, expected, queries = np.random.default_rng(0), [], [], []
    cache = make_cache(1, 4, 8)
    for table, num_new, length in ([[1, 2, 3, 4], 1, 14], [[5, 6, 7], 1, 12], [[8, 9, 10, 11, 12], 1, 17],
                                   [[13, 14, 15, 16], 3, 15]):
        num_unread = max(length - num_new + 1 - 5, 0) // 4
        keys, values = (rng.normal(size=(length, 1, 8)).astype(np.float32) for _ in range(2))
        write(cache, keys[4 * num_unread:], values[4 * num_unread:], table, first=4 * num_unread)
        cache.pools[0][table[-1]] = mx.nan_to_num(cache.pools[0][table[-1]])  # slots that hold no token yet
        spans.append(Span(table, num_new, length))
        queries.append(rng.normal(size=(num_new, 2, 8)).astype(np.float32))
        expected.append(dense(queries[-1], keys, values, 0.5, window=5))
        assert num_unread, "this test is about blocks that are left out"
    plan = AttentionPlan(spans, 4, window=5)
    assert plan.positions.tolist() == [13, 11, 16, 12, 13, 14]
    got = paged_attention(mx.array(np.concatenate(queries)), cache.pools[0], plan, 0.5)
    np.testing.assert_allclose(np.array(got), np.concatenate(expected), atol=1e-5)


def test_single_tokens_come_first():
    with pytest.raises(ValueError, match="come first"):
        AttentionPlan([Span([1], 2, 2), Span([2], 1, 1)], 4)
