"""Fast writing of keys and values puts each vector where the plain cache puts it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.attention import PagedKVCache, slot_mapping, token_positions
from mini_vllm.backend import mx
from mini_vllm.fast import tuning
from mini_vllm.fast.paged_kv_cache import FastKVCache, WritePlan, find_runs


@pytest.mark.parametrize("min_run", [1, 99])
@pytest.mark.parametrize("on_cpu", [True, False])
@settings(max_examples=40, derandomize=True)
@given(block_size=st.sampled_from([1, 3, 8]),
       requests=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=5))
def test_a_step_is_written_as_token_by_token(on_cpu, min_run, block_size, requests):
    rng = np.random.default_rng(len(requests))
    blocks, tables, lengths, starts = rng.permutation(np.arange(1, 400)).tolist(), [], [], [0]
    for context, num_new in sorted(requests, key=lambda request: request[1] > 1):
        tables.append([blocks.pop() for _ in range(-(-(context + num_new) // block_size))])
        lengths.append(context + num_new)
        starts.append(starts[-1] + num_new)
    slots = slot_mapping(tables, token_positions(lengths, starts), starts, block_size)
    fast, plain = (kind(2, 400, 2, block_size, 8, mx.float32) for kind in (FastKVCache, PagedKVCache))
    expected = np.zeros((2, 400, 4, block_size, 8), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "MIN_RUN", min_run)
        patch.setattr(tuning, "is_cpu", lambda: on_cpu)
        for layer in range(2):
            keys_values = rng.normal(size=(len(slots), 4, 8)).astype(np.float32)
            for cache in (fast, plain):
                cache.write(layer, mx.array(keys_values), slots)
            for slot, vectors in zip(slots, keys_values):
                expected[layer, slot // block_size, :, slot % block_size] = vectors
    for cache in (fast, plain):
        assert np.array_equal(np.array(mx.stack(cache.pools)), expected)


def test_a_single_token_is_written_the_same_either_way():
    rng = np.random.default_rng(0)
    fast, plain = (kind(2, 6, 2, 4, 8, mx.float32) for kind in (FastKVCache, PagedKVCache))
    for slot in (3 * 4 + 1, 5 * 4 + 3, 1 * 4 + 0):
        keys_values, slots = mx.array(rng.normal(size=(1, 4, 8)).astype(np.float32)), np.array([slot])
        assert WritePlan(slots, 4, 8, 4).single.tolist() == [slot // 4, slot % 4]
        for cache in (fast, plain):
            cache.write(1, keys_values, slots)
    assert np.array_equal(np.array(fast.pools[1]), np.array(plain.pools[1])) and np.array(fast.pools[1]).any()


def test_runs_begin_after_the_tokens_that_stand_apart_and_end_with_their_block(monkeypatch):
    monkeypatch.setattr(tuning, "MIN_RUN", 2)
    #                          decodes   │ a chunk that begins inside block 4 and ends inside block 2
    runs = find_runs(np.array([13, 44, 31, 34, 35, 36, 37, 38, 39, 16, 17]), block_size=8)
    assert runs == [(slice(3, 9), 4, slice(2, 8)), (slice(9, 11), 2, slice(0, 2))]
    # blocks 4 and 5 are adjacent in the pool, but are two of its matrices
    assert [run.block_id for run in find_runs(np.arange(32, 48), block_size=8)] == [4, 5]
    monkeypatch.setattr(tuning, "MIN_RUN", 5)
    assert find_runs(np.array([13, 44, 31, 34, 35, 36, 37, 38, 39, 16, 17]), block_size=8) == []


def test_new_slots_are_planned_anew():
    cache = FastKVCache(1, 6, 1, 4, 2, mx.float32)
    slots = np.array([4, 9])
    cache.write(0, mx.ones((2, 2, 2)), slots)
    slots += 1  # a caller may use its array again
    cache.write(0, 2 * mx.ones((2, 2, 2)), slots)
    assert np.array(cache.pools[0][:, 0, :, 0]).reshape(-1)[[4, 5, 9, 10]].tolist() == [1, 2, 1, 2]
