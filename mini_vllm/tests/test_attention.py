"""Paged attention, plain and fast, against attention written out in numpy, over scattered, shared and half-filled
blocks; and the arrays of keys and values."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.attention import PagedKVCache, paged_attention, slot_mapping
from mini_vllm.backend import is_cpu, mx
from mini_vllm.conftest import examples
from mini_vllm.fast import attention as attention_module
from mini_vllm.fast import tuning
from mini_vllm.fast.attention import FastAttention

ATTENTIONS = {"plain": lambda: paged_attention, "fast": FastAttention}
WINDOWS = st.sampled_from([None, None, 1, 2, 5, 8, 30])


def dense(queries, keys, values, scale, window=None):
    """Compute attention for each of the last tokens of a context, one head and one token at a time."""
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


def write(cache, keys, values, table, first=0):
    """Write the K/V of one request's tokens from position ``first`` on into layer 0."""
    positions = np.arange(first, first + len(keys))
    slots = slot_mapping([table], positions, [0, len(keys)], cache.block_size)
    cache.write(0, mx.array(np.concatenate((keys, values), axis=1).astype(np.float32)), slots)


@dataclass
class Step:
    """The requests of one step, their K/V, and the expected result for each alone."""

    rng: np.random.Generator
    cache: PagedKVCache
    num_heads: int
    window: int | None = None
    block_tables: list = field(default_factory=list)
    context_lens: list = field(default_factory=list)
    query_starts: list = field(default_factory=lambda: [0])
    queries: list = field(default_factory=list)
    expected: list = field(default_factory=list)

    def normal(self, *shape):
        return self.rng.normal(size=shape).astype(np.float32)

    def add(self, table, keys, values, num_new=1, unused=()):
        """Add a request whose last ``num_new`` tokens are computed; ``unused`` blocks follow those it needs."""
        queries = self.normal(num_new, self.num_heads, keys.shape[-1])
        write(self.cache, keys, values, table)
        self.block_tables.append([*table, *unused])
        self.context_lens.append(len(keys))
        self.query_starts.append(self.query_starts[-1] + num_new)
        self.queries.append(queries)
        self.expected.append(dense(queries, keys, values, 0.3, self.window))

    def check(self, attention, atol=2e-5):
        options = {} if self.window is None else {"window": self.window}
        dtype = self.cache.pools[0].dtype
        got = attention(mx.array(np.concatenate(self.queries)).astype(dtype), self.cache.pools[0],
                        self.block_tables, self.context_lens, self.query_starts, 0.3, **options)
        assert got.dtype == dtype
        np.testing.assert_allclose(np.array(got.astype(mx.float32)), np.concatenate(self.expected), atol=atol)


def draw_mixed_step(data, dtype=mx.float32):
    """Draw a step of decodes, then chunks, in scattered blocks that are not shared."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    num_kv_heads, group = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.sampled_from([1, 2, 3, 8]))
    block_size, head_dim = data.draw(st.sampled_from([1, 3, 8, 32])), 8
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    news = sorted([data.draw(st.sampled_from([1, 1, min(7, n), n])) for n in lengths], key=lambda n: n > 1)
    lengths = [max(length, n) for length, n in zip(lengths, news)]
    blocks = rng.permutation(np.arange(1, 300)).tolist()
    cache = PagedKVCache(1, 300, num_kv_heads, block_size, head_dim, dtype)
    cache.pools[0] = cache.pools[0] + 1e4  # garbage in slots without a token must not show
    step = Step(rng, cache, num_kv_heads * group, data.draw(WINDOWS))
    for length, num_new in zip(lengths, news):
        table = [blocks.pop() for _ in range(-(-length // block_size))]
        keys, values = (step.normal(length, num_kv_heads, head_dim) for _ in range(2))
        step.add(table, keys, values, num_new, unused=[7, 8])
    return step


def draw_families(data):
    """Draw a step of decodes, some of which share their first blocks, and chunks."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    num_kv_heads, group = data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([1, 3]))
    block_size, head_dim = data.draw(st.sampled_from([1, 4])), 8
    families = data.draw(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(1, 24), min_size=1, max_size=4)),
                                  min_size=1, max_size=3))
    chunk = data.draw(st.sampled_from([0, 0, 2, 9]))
    blocks = rng.permutation(np.arange(1, 500)).tolist()
    step = Step(rng, PagedKVCache(1, 500, num_kv_heads, block_size, head_dim, mx.float32), num_kv_heads * group,
                data.draw(WINDOWS))
    requests = []
    for num_shared, own_lengths in families:
        shared = [blocks.pop() for _ in range(num_shared)]
        common = step.normal(2, num_shared * block_size, num_kv_heads, head_dim)
        for own_length in own_lengths:
            table = shared + [blocks.pop() for _ in range(-(-own_length // block_size))]
            own = step.normal(2, own_length, num_kv_heads, head_dim)
            requests.append((table, *np.concatenate((common, own), axis=1)))
    for index in rng.permutation(len(requests)):
        step.add(*requests[index])
    if chunk:
        table = [blocks.pop() for _ in range(-(-chunk // block_size))]
        step.add(table, step.normal(chunk, num_kv_heads, head_dim), step.normal(chunk, num_kv_heads, head_dim), chunk)
    return step


# ---- both attentions


@pytest.mark.parametrize("attention", ATTENTIONS)
@settings(max_examples=examples(30), derandomize=True)
@given(data=st.data())
def test_a_ragged_batch_sees_what_each_request_sees_alone(attention, data):
    draw_mixed_step(data).check(ATTENTIONS[attention]())


@pytest.mark.parametrize("attention", ATTENTIONS)
@settings(max_examples=examples(30), derandomize=True)
@given(data=st.data())
def test_requests_that_share_beginnings_see_what_each_sees_alone(attention, data):
    draw_families(data).check(ATTENTIONS[attention]())


@pytest.mark.parametrize("dtype, atol", [(mx.float16, 5e-3), (mx.bfloat16, 4e-2)])
@pytest.mark.parametrize("attention", ATTENTIONS)
@settings(max_examples=examples(20), derandomize=True)
@given(data=st.data())
def test_half_precision_is_half_as_precise_and_no_less(attention, dtype, atol, data):
    with pytest.MonkeyPatch.context() as patch:
        if is_cpu():  # where MLX multiplies matrices from a list only in float32, and the loader loads nothing else
            patch.setattr(attention_module, "MAX_TOGETHER", 0)
        draw_mixed_step(data, dtype).check(ATTENTIONS[attention](), atol=atol)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_one_request_never_reads_what_was_not_written(attention):
    step = Step(np.random.default_rng(0), PagedKVCache(1, 40, 2, 4, 8, mx.float32), 4)
    step.cache.pools[0] = step.cache.pools[0] + mx.nan
    step.add([5, 9], step.normal(6, 2, 8), step.normal(6, 2, 8))
    step.check(ATTENTIONS[attention](), atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_huge_scores_do_not_overflow(attention):
    cache = PagedKVCache(1, 10, 1, 4, 4, mx.float32)
    write(cache, np.full((5, 1, 4), 100, np.float32), np.arange(20, dtype=np.float32).reshape(5, 1, 4), [1, 2])
    got = ATTENTIONS[attention]()(mx.full((2, 1, 4), 100.0), cache.pools[0], [[1, 2]] * 2, [5, 5], [0, 1, 2], 1.0)
    np.testing.assert_allclose(np.array(got)[0, 0], [8, 9, 10, 11], rtol=1e-5)


# ---- slots, and writing


def test_writing_touches_its_slots_and_no_other():
    cache = PagedKVCache(2, 6, 2, 4, 8, mx.float32)
    write(cache, np.ones((3, 2, 8)), 2 * np.ones((3, 2, 8)), [4, 1], first=2)
    keys, values = np.split(np.array(cache.pools[0]), 2, axis=1)
    assert keys[4, :, 2:].min() == 1 and keys[1, :, 0].min() == 1 and keys.sum() == 3 * 2 * 8
    assert values.sum() == 2 * keys.sum() and np.array(cache.pools[1]).sum() == 0


def num_new_bytes(change):
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    change()
    return mx.get_peak_memory() - before


def least_new_bytes(change):
    """Return the memory that ``change`` allocates; on a GPU, the least of several runs, because MLX frees its inputs
    late."""
    found = []
    for _ in range(5 if tuning.has_gpu() else 1):
        mx.synchronize()
        found.append(num_new_bytes(change))
    return min(found)


@pytest.mark.parametrize("slots", [[9], [25, 18, *range(48, 72)]], ids=["one token", "decodes and a chunk"])
def test_a_step_is_written_in_place(slots):
    cache, slots = PagedKVCache(1, 4000, 2, 8, 16, mx.float32), np.array(slots)
    keys_values = mx.ones((len(slots), 4, 16))
    mx.eval(keys_values)

    def write():
        cache.write(0, keys_values, slots)
        mx.eval(cache.pools)

    assert least_new_bytes(write) < cache.pools[0].nbytes / 10
    held = cache.pools[0].reshape(-1)  # the error case: another owner holds the array
    mx.eval(held)
    assert num_new_bytes(write) >= cache.pools[0].nbytes, "this test would not notice a copy"


# ---- copies and clearing


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


def test_clearing_leaves_the_neighbours_alone():
    cache = PagedKVCache(2, 5, 1, 4, 2, mx.float32)
    cache.pools = [pool + 1 for pool in cache.pools]
    cache.clear_slots(np.array([1 * 4 + 2, 3 * 4 + 0]))
    cache.clear_blocks([4])
    cache.clear_blocks([])
    expected = np.ones((5, 2, 4, 2))
    expected[1, :, 2] = expected[3, :, 0] = expected[4] = 0
    for pool in cache.pools:
        assert np.array_equal(np.array(pool), expected)


def test_a_block_costs_keys_and_values_of_all_layers():
    assert PagedKVCache.block_bytes(6, 4, 32, 32, mx.float32) == 2 * 6 * 4 * 32 * 32 * 4
