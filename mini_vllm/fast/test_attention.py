"""What only the fast attention has: requests that attend together, and plans that are kept for a step."""

import numpy as np
import pytest

from mini_vllm.attention import PagedKVCache, paged_attention
from mini_vllm.backend import mx
from mini_vllm.fast import attention as fast_attention
from mini_vllm.fast.attention import FastAttention
from mini_vllm.tests.test_attention import write

MIXES = {
    "short": [[1], [2, 3], [4, 5, 6], [7, 8]],
    "as long": [[1, 2], [3, 4], [5, 6], [7, 8]],
    "one is long": [[1], [2], list(range(3, 40)), [40, 41]],
    "two begin alike": [[1], [2, 3, 4], [2, 3, 5, 6], [7, 8]],
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("what", ["keys", "values", "queries"])
@pytest.mark.parametrize("broken", range(4))
def test_what_one_request_holds_does_not_reach_another(broken, what, mix):
    rng, tables = np.random.default_rng(0), MIXES[mix]
    lengths = [4 * len(table) - i % 2 for i, table in enumerate(tables)]
    attention, lists = FastAttention(), (tables, lengths, [0, 1, 2, 3, 4])
    queries = rng.normal(size=(4, 2, 8)).astype(np.float32)
    whole, damaged = (PagedKVCache(1, 50, 2, 4, 8, mx.float32) for _ in range(2))
    for cache in (whole, damaged):
        cache.pools[0][0] = mx.nan  # a block of none of them
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


def parts_of(attention):
    """Return the numbers of requests and tokens of each part of the planned step."""
    (parts,) = attention._parts.values()
    return [(len(part._mask) if hasattr(part, "_mask") else 1, part.tokens.stop - part.tokens.start) for part in parts]


def attend(nums, num_blocks):
    attention, tables = FastAttention(), [[1 + i] * num for i, num in enumerate(num_blocks)]
    starts = [0, *np.cumsum(nums).tolist()]
    attention(mx.ones((starts[-1], 4, 8)), mx.ones((20, 4, 4, 8)), tables, [4 * num for num in num_blocks], starts, 0.3)
    return parts_of(attention)


def test_requests_with_equally_few_tokens_attend_together():
    found = attend([1, 1, 1, 2, 5, 5, 9, 9, 4], [7] * 9)
    assert found == [(3, 3), (1, 2), (2, 10), (1, 9), (1, 9), (1, 4)]


def test_requests_attend_together_unless_most_blocks_would_be_filled_up():
    assert attend([1] * 4, [3, 2, 3, 1]) == [(4, 4)] and attend([1] * 4, [1, 1, 40, 40]) == [(2, 2), (2, 2)]


def test_no_more_products_at_once_than_a_device_takes(monkeypatch):
    monkeypatch.setattr(fast_attention, "MAX_PRODUCTS", 24)  # two KV heads
    assert attend([1] * 7, [4] * 7) == [(3, 3), (3, 3), (1, 1)]


def test_a_step_is_planned_once_and_known_by_what_is_in_its_lists(monkeypatch):
    plans, plan = [], fast_attention._plan
    monkeypatch.setattr(fast_attention, "_plan", lambda *arguments: plans.append(arguments) or plan(*arguments))
    attention, queries, pool = FastAttention(), mx.ones((3, 2, 8)), mx.ones((9, 4, 4, 8))
    lists = [[1, 2], [3, 4, 5], [6]], [7, 12, 3], [0, 1, 2, 3]
    for _ in range(3):
        attention(queries, pool, *lists, 0.5)
        attention(queries, pool, *lists, 0.5, window=5)
    assert len(plans) == 2, "one for layers that see everything, one for those that see a window"
    pool = mx.random.normal(pool.shape, key=mx.random.key(0))
    tables, lengths, starts = lists
    for number, (changed, index, value) in enumerate([(lengths, 0, 6), (tables[0], 1, 7), (tables, 2, [8])], start=3):
        changed[index] = value  # a caller may use its lists again
        got = attention(queries, pool, tables, lengths, starts, 0.5)
        assert mx.allclose(got, paged_attention(queries, pool, tables, lengths, starts, 0.5), atol=1e-5), "stale"
        assert len(plans) == number


def test_the_fast_one_is_the_plain_one_but_for_rounding():
    """Compare long contexts, which random batches do not draw."""
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
