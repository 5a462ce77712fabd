"""Graded tests of lab 5.1. They compare attention with a loop in numpy, and a step with the dense model: the same
weights, one request, all its tokens at once, plain causal attention, no cache.

The tests of tasks 4 and 5 fill the pool themselves. All tests of task 6 except the last one use the engine's own
attention. So you can finish a task while an earlier one is not perfect yet.
"""

from __future__ import annotations

import numpy as np
import pytest

from course.testing.measure_mlx import num_mlx_operations, peak_mlx_bytes
from mini_vllm.attention import paged_attention as given_attention
from mini_vllm.backend import mx
from mini_vllm.fast.attention import FastAttention
from mini_vllm.model_runner import RequestStep
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.random_model import random_weights
from mini_vllm.models.weights import make_model

ATOL = 2e-5
#: The tolerance for logits, which are up to about 6 in size. The order of additions may differ in every layer.
LOGITS_ATOL = 2e-4


# ---- Task 1: positions and slots


@pytest.mark.points(2)
def test_task_1_positions_are_the_last_of_each_context(lab):
    for context_lens, query_starts, expected in [
            ([9, 4, 3, 8], [0, 1, 2, 5, 7], [8, 3, 0, 1, 2, 6, 7]),
            ([1], [0, 1], [0]),
            ([6], [0, 6], [0, 1, 2, 3, 4, 5]),
            ([10, 33, 2], [0, 1, 2, 3], [9, 32, 1])]:
        positions = np.asarray(lab.token_positions(context_lens, query_starts))
        got = positions.tolist()
        assert got == expected, f"token_positions({context_lens}, {query_starts}) is {got}, expected {expected}: the " \
                                "tokens of a request are the last ones of its context, and positions count from 0"
        check_int64(positions, f"token_positions({context_lens}, {query_starts})")


def check_int64(array, call):
    assert array.dtype == np.int64, \
        f"{call} is an array of {array.dtype}, expected int64: a slot of a large pool does not fit into 32 bits"


@pytest.mark.points(2)
def test_task_1_slots_go_through_each_requests_own_table(lab):
    tables, query_starts = [[7, 2, 5], [3], [4], [1, 6]], [0, 1, 2, 5, 7]
    positions = np.array([8, 3, 0, 1, 2, 6, 7])
    slots = np.asarray(lab.slot_mapping(tables, positions, query_starts, 4))
    got, expected = slots.tolist(), [20, 15, 16, 17, 18, 26, 27]
    assert got == expected, f"slot_mapping({tables}, {positions.tolist()}, {query_starts}, block_size=4) is {got}, " \
                            f"expected {expected}: slot = table[p // block_size] * block_size + p % block_size, with " \
                            "the table of the token's own request"
    check_int64(slots, f"slot_mapping({tables}, {positions.tolist()}, {query_starts}, block_size=4)")


@pytest.mark.points(2)
def test_task_1_slots_of_random_batches(lab):
    """Check random batches. The small ones are first, because their tables are readable in a message."""
    rng = np.random.default_rng(1)
    for block_size, num_requests, longest in ((4, 2, 9), (3, 3, 9), (1, 5, 60), (3, 5, 60), (32, 5, 60)):
        lengths = rng.integers(1, longest, num_requests).tolist()
        news = [int(rng.integers(1, n + 1)) for n in lengths]
        starts = [0, *np.cumsum(news).tolist()]
        tables = [rng.permutation(100)[:-(-n // block_size) + 2].tolist() for n in lengths]  # two extra blocks
        expected = [table[p // block_size] * block_size + p % block_size
                    for table, n, new in zip(tables, lengths, news) for p in range(n - new, n)]
        call = f"slot_mapping of token_positions, context_lens {lengths}, query_starts {starts}, " \
               f"block_size {block_size}"
        got = np.asarray(lab.slot_mapping(tables, lab.token_positions(lengths, starts), starts, block_size))
        assert got.shape == (len(expected),), \
            f"{call} has the shape {got.shape}, expected {(len(expected),)}: one slot per token"
        wrong = np.flatnonzero(got != expected)
        if len(wrong):
            token = int(wrong[0])
            i = int(np.searchsorted(starts, token, side="right")) - 1
            position = lengths[i] - (starts[i + 1] - token)
            raise AssertionError(
                f"{call}: the slot of token {token}, the first wrong one, is {got[token]}, expected {expected[token]}. "
                f"The token belongs to request {i} and is at position {position}: entry "
                f"{position // block_size} of the table {tables[i]}, offset {position % block_size}")


# ---- Task 2: writing


def make_cache(lab, num_layers=2, num_blocks=6, num_kv_heads=2, block_size=4, head_dim=3, seed=0):
    """Return a cache filled with random numbers, and the same numbers in numpy."""
    cache = lab.PagedKVCache(num_layers, num_blocks, num_kv_heads, block_size, head_dim, mx.float32)
    shape = (num_layers, num_blocks, 2 * num_kv_heads, block_size, head_dim)
    content = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    cache.pools[:] = [mx.array(layer) for layer in content]
    mx.eval(cache.pools)
    return cache, content


def check_pools(cache, expected, call, rule):
    assert len(cache.pools) == len(expected), \
        f"a cache of {count(len(expected), 'layer')} has {len(cache.pools)} pools, expected one per layer"
    for layer, pool in enumerate(cache.pools):
        assert tuple(pool.shape) == expected[layer].shape, \
            f"after {call}, pools[{layer}] has the shape {tuple(pool.shape)}, expected {expected[layer].shape}"
        wrong = np.argwhere(np.array(pool) != expected[layer])
        if len(wrong):
            place = tuple(wrong[0][:3].tolist())
            got, right = ([round(number, 3) for number in content[place].tolist()]
                          for content in (np.array(pool), expected[layer]))
            raise AssertionError(f"after {call}, pools[{layer}][{', '.join(map(str, place))}] is {got}, expected "
                                 f"{right}: {rule}")


def check_writes(lab):
    """Check that ``write`` works at all, before a test measures its cost."""
    cache, content = make_cache(lab, num_layers=1)
    cache.write(0, mx.ones((2, 4, 3)), np.array([9, 10]))
    content[0, 2, :, 1:3] = 1.0
    check_pools(cache, content, "write(0, ones, slots=[9, 10]) with block_size 4", "that is block 2, offsets 1 and 2")


def check_copies(lab):
    cache, content = make_cache(lab, num_layers=1)
    cache.copy_blocks([(3, 5)])
    content[:, 5] = content[:, 3]
    check_pools(cache, content, "copy_blocks([(3, 5)])", "block 5 must now equal block 3")


def count(number, noun):
    return f"{number} {noun}" + ("" if number == 1 else "s")


def peak_in_pools(lab, change):
    """Return the peak of the extra memory that ``change(cache)`` takes, in pools: 1.0 is a copy of one pool."""
    def changed(cache):
        change(cache)
        return cache

    peak = peak_mlx_bytes(lambda: lab.PagedKVCache(2, 4000, 2, 8, 16, mx.float32), changed)
    return peak / (4000 * 4 * 8 * 16 * mx.float32.size)


@pytest.mark.points(4)
def test_task_2_each_token_lands_in_its_slot_and_nothing_else_changes(lab):
    cache, content = make_cache(lab)
    keys_values = np.random.default_rng(2).normal(size=(4, 4, 3)).astype(np.float32)
    slots = [13, 6, 0, 19]
    cache.write(1, mx.array(keys_values), np.array(slots))
    for token, slot in enumerate(slots):
        content[1, slot // 4, :, slot % 4] = keys_values[token]
    check_pools(cache, content, f"write(1, keys_values, slots={slots}) with block_size 4",
                "token i goes to block slots[i] // 4, offset slots[i] % 4, with all its heads, in that layer; no other "
                "number may change")


@pytest.mark.points(1)
def test_task_2_a_slot_holds_what_was_written_last(lab):
    cache, content = make_cache(lab, num_layers=1)
    for value in (1.0, 2.0):
        cache.write(0, mx.full((2, 4, 3), value), np.array([9, 10]))
    content[0, 2, :, 1:3] = 2.0
    check_pools(cache, content, "two writes to slots 9 and 10, first 1.0, then 2.0",
                "a write replaces the content of the slot; it does not add to it")


@pytest.mark.points(1)
@pytest.mark.inside("the memory that MLX takes can be measured only in the process that holds the pool")
def test_task_2_the_pool_is_written_in_place(lab):
    check_writes(lab)
    for slots in ([9], [25, 18, *range(48, 72)]):
        keys_values = mx.ones((len(slots), 4, 16))
        mx.eval(keys_values)
        peak = peak_in_pools(lab, lambda cache, new=keys_values, slots=slots: cache.write(0, new, np.array(slots)))
        assert peak < 0.1, \
            f"write of {count(len(slots), 'token')} into a pool of 4000 blocks took {peak:.2f} times the memory of " \
            "the pool, expected less than 0.1: assign to the pool itself by index, keep no view of it, and make no " \
            "array of its size"


@pytest.mark.points(1)
@pytest.mark.inside("MLX's graph can be read only in the process that holds the pool")
def test_task_2_all_tokens_are_one_write(lab):
    """Count the operations that MLX has recorded but not computed yet. This needs no clock."""
    check_writes(lab)
    cache, num_tokens = lab.PagedKVCache(1, 20, 2, 32, 16, mx.float32), 256
    keys_values = mx.ones((num_tokens, 4, 16))
    mx.eval(keys_values)
    cache.write(0, keys_values, np.arange(40, 40 + num_tokens))
    num_operations = num_mlx_operations(cache)
    assert num_operations < num_tokens, \
        f"write of {num_tokens} tokens recorded {num_operations} operations in MLX's graph, expected fewer than one " \
        "per token: an index may be an array, so one assignment writes all tokens"


# ---- Task 3: copies


@pytest.mark.points(3)
def test_task_3_whole_blocks_of_every_layer_are_copied(lab):
    cache, content = make_cache(lab)
    cache.copy_blocks([(3, 5), (3, 1)])
    content[:, 5] = content[:, 1] = content[:, 3]
    check_pools(cache, content, "copy_blocks([(3, 5), (3, 1)])", "blocks 5 and 1 must equal block 3 in every layer; "
                "all other blocks must not change")


@pytest.mark.points(3)
@pytest.mark.parametrize("copies", [
    [(3, 5), (5, 1)],            # a copy of a copy
    [(3, 5), (5, 1), (1, 2)],    # a copy of that copy
    [(3, 5), (4, 3)],            # the source is overwritten after it was copied
    [(3, 5), (4, 5)],            # the same destination twice
    [(3, 5), (5, 1), (4, 5)],    # block 1 gets what block 5 held in between
    [(3, 5), (5, 3)],            # there and back
], ids=str)
def test_task_3_copies_are_as_if_made_one_after_the_other(lab, copies):
    cache, content = make_cache(lab)
    for source, destination in copies:
        content[:, destination] = content[:, source]
    cache.copy_blocks(list(copies))
    check_pools(cache, content, f"copy_blocks({copies})",
                "the result must be as if the copies were made one after the other")


@pytest.mark.points(1)
def test_task_3_copies_are_counted(lab):
    cache, content = make_cache(lab, num_layers=3)
    cache.copy_blocks([(3, 5), (3, 1)])
    cache.copy_blocks([])
    cache.copy_blocks([(2, 4)])
    assert cache.num_copied_blocks == 3, \
        f"after copy_blocks with 2 pairs, 0 pairs and 1 pair, num_copied_blocks is {cache.num_copied_blocks}, " \
        "expected 3: each pair counts once, whatever the number of layers"
    content[:, 5], content[:, 1], content[:, 4] = content[:, 3], content[:, 3], content[:, 2]
    check_pools(cache, content, "copy_blocks([(3, 5), (3, 1)]), copy_blocks([]) and copy_blocks([(2, 4)])",
                "without pairs nothing may change")
    for copies in ([(3, 5), (4, 5)], [(2, 2)]):
        before = cache.num_copied_blocks
        cache.copy_blocks(list(copies))
        assert cache.num_copied_blocks - before == len(copies), \
            f"copy_blocks({copies}) raised num_copied_blocks from {before} to {cache.num_copied_blocks}, expected " \
            f"{before + len(copies)}: it must grow by the number of pairs, whatever they copy"


@pytest.mark.points(1)
@pytest.mark.inside("the memory that MLX takes can be measured only in the process that holds the pool")
def test_task_3_a_copied_block_does_not_copy_the_pool(lab):
    """Copy many blocks, so that reading them takes longer than starting the write."""
    check_copies(lab)
    copies = [(block_id, 1000 + block_id) for block_id in range(300)]
    peak = peak_in_pools(lab, lambda cache: cache.copy_blocks(copies))
    assert peak < 0.3, f"copy_blocks of 300 of 4000 blocks took {peak:.2f} times the memory of a pool, expected less " \
                       "than 0.3: evaluate the blocks that you read (mx.eval) before you write to their pool"


# ---- the oracle of tasks 4 and 5


def dense(queries, keys, values, scale, window=None):
    """Compute attention of the last ``len(queries)`` tokens of a context, one token and one head at a time."""
    num_queries, num_heads, _ = queries.shape
    context_len, num_kv_heads, _ = keys.shape
    out = np.zeros_like(queries)
    for i in range(num_queries):
        end = context_len - num_queries + i + 1
        start = 0 if window is None else max(end - window, 0)
        for head in range(num_heads):
            kv_head = head // (num_heads // num_kv_heads)
            scores = keys[start:end, kv_head] @ queries[i, head] * scale
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ values[start:end, kv_head] / weights.sum()
    return out


def make_request(rng, pool, table, context_len, num_new, num_heads=4):
    """Write a context through ``table`` into ``pool``, a numpy array. Return its queries, its keys and its values."""
    _, num_both, block_size, head_dim = pool.shape
    keys, values = rng.normal(size=(2, context_len, num_both // 2, head_dim)).astype(np.float32)
    for position in range(context_len):
        slot = pool[table[position // block_size], :, position % block_size]
        slot[:] = np.concatenate((keys[position], values[position]))
    return rng.normal(size=(num_new, num_heads, head_dim)).astype(np.float32), keys, values


def used_pool(num_blocks=60, num_kv_heads=2, block_size=4, head_dim=8):
    """Return a pool filled with large numbers, so that a read of an unwritten slot shows in the result."""
    shape = (num_blocks, 2 * num_kv_heads, block_size, head_dim)
    return np.random.default_rng(99).normal(scale=30, size=shape).astype(np.float32)


def attend(lab, requests, pool, tables, window=None, scale=None):
    """Call ``paged_attention`` for ``requests``, each (queries, keys, values). The default scale is the usual one."""
    scale = pool.shape[3] ** -0.5 if scale is None else scale
    query_starts = [0, *np.cumsum([len(queries) for queries, _, _ in requests]).tolist()]
    options = {} if window is None else {"window": window}
    return np.array(lab.paged_attention(mx.array(np.concatenate([queries for queries, _, _ in requests])),
                                        mx.array(pool), tables, [len(keys) for _, keys, _ in requests], query_starts,
                                        scale, **options))


def check_attention(lab, requests, pool, tables, rule, window=None, scale=None):
    scale = pool.shape[3] ** -0.5 if scale is None else scale
    got = attend(lab, requests, pool, tables, window, scale)
    expected = np.concatenate([dense(*request, scale, window) for request in requests])
    call = f"paged_attention of {[len(queries) for queries, _, _ in requests]} queries over contexts of " \
           f"{[len(keys) for _, keys, _ in requests]} tokens, block_size {pool.shape[2]}" \
           + ("" if window is None else f", window {window}")
    assert got.shape == expected.shape, \
        f"{call} has the shape {got.shape}, expected {expected.shape}, the shape of queries"
    if np.isnan(got).any():
        nan = f"{call} has NaN in row {int(np.argwhere(np.isnan(got))[0][0])}"
        assert not np.isfinite(pool).all(), \
            f"{nan}, although queries and pool are finite. Softmax gives NaN if a query sees no key at all"
        clean = attend(lab, requests, np.where(np.isfinite(pool), pool, 0), tables, window, scale)
        assert np.isfinite(clean).all(), \
            f"{nan}, even if all unwritten slots are set to 0, so the NaN does not come from those slots. " \
            "Softmax gives NaN if a query sees no key at all"
        assert np.abs(clean - expected).max() < ATOL, \
            f"{nan}; with all unwritten slots set to 0 it differs from dense attention by up to " \
            f"{np.abs(clean - expected).max():.3g}: queries see other requests' slots, or wrong slots of their own"
        raise AssertionError(f"{nan}, but is right if all unwritten slots are set to 0: their content must have no "
                             "effect. A weight of 0 is not enough: 0 × NaN is NaN, and so is 0 × inf")
    row = int(np.abs(got - expected).max(axis=(1, 2)).argmax())
    worst = float(np.abs(got - expected).max())
    assert worst < ATOL, f"{call} differs from dense attention by up to {worst:.3g}, most in row {row}; expected " \
                         f"less than {ATOL}: {rule}"


# ---- Task 4: requests that are alike


@pytest.mark.points(3)
def test_task_4_one_query_sees_its_whole_context(lab):
    rng = np.random.default_rng(4)
    for context_len, table in ((1, [7]), (4, [7]), (5, [9, 2]), (11, [9, 2, 5])):
        pool = used_pool()
        request = make_request(rng, pool, table, context_len, 1)
        check_attention(lab, [request], pool, [table], "position p is in block table[p // block_size], and a query "
                        "sees itself and all tokens before it")


@pytest.mark.points(2)
def test_task_4_a_chunk_is_causal_from_where_it_stands(lab):
    rng = np.random.default_rng(5)
    for context_len, num_new in ((10, 10), (10, 3), (9, 5), (4, 2)):
        pool, table = used_pool(), [9, 2, 5]
        request = make_request(rng, pool, table, context_len, num_new)
        check_attention(lab, [request], pool, [table], f"the first of these {num_new} queries is at position "
                        f"{context_len - num_new}, and no query sees a later token")


@pytest.mark.points(2)
def test_task_4_heads_are_grouped_over_kv_heads(lab):
    rng = np.random.default_rng(6)
    for num_kv_heads, num_heads in ((2, 2), (1, 4), (2, 6), (3, 6)):
        pool, table = used_pool(num_kv_heads=num_kv_heads), [3, 8]
        request = make_request(rng, pool, table, 7, 2, num_heads)
        check_attention(lab, [request], pool, [table], f"{num_heads} heads read {num_kv_heads} KV heads: head h reads "
                        f"KV head h // {num_heads // num_kv_heads}; a block holds first the keys, then the values")


@pytest.mark.points(2)
def test_task_4_scores_are_multiplied_by_the_scale(lab):
    rng = np.random.default_rng(7)
    for scale in (0.05, 1.0, 3.0):
        pool = used_pool()
        request = make_request(rng, pool, [3, 8], 7, 2)
        check_attention(lab, [request], pool, [[3, 8]], f"scores are multiplied by scale, {scale}", scale=scale)


@pytest.mark.points(3)
def test_task_4_a_window_ends_the_view_backwards(lab):
    rng = np.random.default_rng(8)
    for window in (1, 2, 4, 5, 30):
        for num_new in (1, 6):
            pool, table = used_pool(), [9, 2, 5]
            request = make_request(rng, pool, table, 11, num_new)
            check_attention(lab, [request], pool, [table], f"with window {window} a query sees "
                            f"{count(window, 'token')} and is itself the last of them; if there are fewer, it sees all",
                            window=window)


@pytest.mark.points(3)
def test_task_4_requests_alike_are_each_as_alone(lab):
    rng = np.random.default_rng(9)
    for lengths, num_new in (([5, 8, 6], 1), ([9, 12, 10, 11], 5)):
        pool, ids = used_pool(), rng.permutation(np.arange(1, 60)).tolist()
        tables = [[ids.pop() for _ in range(-(-n // 4))] for n in lengths]
        requests = [make_request(rng, pool, table, n, num_new) for table, n in zip(tables, lengths)]
        check_attention(lab, requests, pool, tables, "each request has its own table, its own length and its own "
                        "positions")
        check_attention(lab, requests, pool, tables, "the window of each query is counted from its own position",
                        window=3)


@pytest.mark.points(2)
def test_task_4_what_stands_after_a_context_does_not_matter(lab):
    rng = np.random.default_rng(10)
    for garbage in (np.nan, np.inf, 1e4):
        pool = used_pool()
        pool[:] = garbage
        tables = [[9, 2, 30, 31], [5, 7, 32]]  # the contexts do not need blocks 30, 31 and 32
        requests = [make_request(rng, pool, table, n, 2) for table, n in zip(tables, (6, 5))]
        check_attention(lab, requests, pool, tables, f"the slots after a context hold {garbage} here; a table "
                        "may be longer than the context needs")


@pytest.mark.points(1)
def test_task_4_what_stands_in_a_context_shows_even_if_it_is_nan(lab):
    rng = np.random.default_rng(17)
    for broken in (np.nan, np.inf):
        pool, table = used_pool(), [9, 2]
        request = make_request(rng, pool, table, 7, 1)
        pool[2, 2, 1] = broken  # a value of KV head 0, at position 5
        row = attend(lab, [request], pool, [table])[0]
        assert not np.isfinite(row[:2]).any() and np.isfinite(row[2:]).all(), (
            f"paged_attention of 1 query over a context of 7 tokens, whose value at position 5 is {broken} in KV "
            f"head 0: the outputs of the 4 heads are finite: {np.isfinite(row).all(axis=1).tolist()}, expected "
            "[False, False, True, True]: every value in the context counts, or a broken model looks healthy. Exclude "
            "slots by context_len, not by their content")


@pytest.mark.points(1)
def test_task_4_the_result_has_the_type_of_the_queries(lab):
    rng, pool = np.random.default_rng(11), used_pool()
    queries, keys, values = make_request(rng, pool, [3, 8], 7, 2)
    got = lab.paged_attention(mx.array(queries).astype(mx.bfloat16), mx.array(pool).astype(mx.bfloat16), [[3, 8]], [7],
                              [0, 2], 8 ** -0.5)
    assert got.dtype == mx.bfloat16, f"paged_attention of bfloat16 queries and pool is {got.dtype}, expected " \
                                     "bfloat16: the result has the type of the queries"
    worst = float(np.abs(np.array(got.astype(mx.float32)) - dense(queries, keys, values, 8 ** -0.5)).max())
    assert worst < 0.05, f"paged_attention of 2 bfloat16 queries over 7 tokens differs from dense attention by " \
                         f"{worst:.3g}, expected below 0.05, the precision of 8 bits"


# ---- Task 5: a ragged batch


@pytest.mark.points(3)
def test_task_5_decodes_and_chunks_in_one_batch(lab):
    rng = np.random.default_rng(12)
    pool, ids = used_pool(), rng.permutation(np.arange(1, 60)).tolist()
    lengths, news = [9, 4, 10, 3, 8], [1, 1, 1, 3, 2]
    tables = [[ids.pop() for _ in range(-(-n // 4))] for n in lengths]
    requests = [make_request(rng, pool, table, n, new) for table, n, new in zip(tables, lengths, news)]
    check_attention(lab, requests, pool, tables, "row for row, each request gets what it gets alone")


@pytest.mark.points(2)
def test_task_5_results_stand_in_the_order_of_the_queries(lab):
    """Mix short and long requests, so that a solution which groups them must restore the order."""
    rng = np.random.default_rng(13)
    pool, ids = used_pool(), rng.permutation(np.arange(1, 60)).tolist()
    lengths, news = [3, 9, 2, 10, 9, 6, 12, 7], [1, 1, 2, 1, 4, 1, 4, 2]
    tables = [[ids.pop() for _ in range(-(-n // 4))] for n in lengths]
    requests = [make_request(rng, pool, table, n, new) for table, n, new in zip(tables, lengths, news)]
    check_attention(lab, requests, pool, tables, "row i of the result belongs to row i of queries")


@pytest.mark.points(2)
def test_task_5_requests_may_share_blocks(lab):
    """Attend for two samples of one prompt and another request with the same prefix."""
    rng, pool = np.random.default_rng(14), used_pool()
    _, keys, values = make_request(rng, pool, [6, 3], 8, 1)
    requests, tables = [], [[6, 3, 5], [6, 3, 9], [6, 11]]
    for table, num_shared, num_own, num_new in zip(tables, (8, 8, 4), (2, 4, 3), (1, 1, 2)):
        first = num_shared // 4
        queries, own_keys, own_values = make_request(rng, pool, table[first:], num_own, num_new)
        requests.append((queries, np.concatenate((keys[:num_shared], own_keys)),
                         np.concatenate((values[:num_shared], own_values))))
    check_attention(lab, requests, pool, tables, f"the tables are {tables}: blocks 6 and 3 are shared, and every "
                    "request sees its own tail")


@pytest.mark.points(2)
def test_task_5_where_blocks_lie_does_not_show(lab):
    rng, pool = np.random.default_rng(15), used_pool()
    tables = [[1, 2, 3], [4, 5], [6, 7, 8]]
    requests = [make_request(rng, pool, table, n, new) for table, n, new in zip(tables, (9, 5, 11), (1, 3, 4))]
    check_attention(lab, requests, pool, tables, "in a batch each request gets the same result as alone")
    new_ids = [0, *rng.permutation(np.arange(1, 60)).tolist()]
    moved = used_pool()
    for old, new in enumerate(new_ids):
        moved[new] = pool[old]
    got = attend(lab, requests, moved, [[new_ids[b] for b in table] for table in tables])
    expected = attend(lab, requests, pool, tables)
    worst = float(np.abs(got - expected).max())
    assert worst == 0, f"all blocks were moved, and the tables changed to match: paged_attention differs by " \
                       f"{worst:.3g}, expected 0: only the table says where a block is"


@pytest.mark.points(3)
def test_task_5_random_batches(lab):
    rng = np.random.default_rng(16)
    for block_size in (1, 3, 8):
        for window in (None, 5):
            pool = used_pool(num_blocks=200, block_size=block_size)
            ids = rng.permutation(np.arange(1, 200)).tolist()
            lengths = rng.integers(1, 25, 6).tolist()
            news = sorted(int(rng.choice([1, 1, n, max(n // 2, 1)])) for n in lengths)
            lengths = [max(n, new) for n, new in zip(lengths, news)]
            tables = [[ids.pop() for _ in range(-(-n // block_size))] for n in lengths]
            requests = [make_request(rng, pool, table, n, new) for table, n, new in zip(tables, lengths, news)]
            check_attention(lab, requests, pool, tables, "in a batch each request gets the same result as alone",
                            window=window)


# ---- Task 6: the step


SHAPE = dict(model_type="llama", vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5,
             rope_theta=10000.0, tie_word_embeddings=False)
#: Two of the three layers see only the last 5 tokens.
WINDOWED = dict(SHAPE, model_type="qwen3", head_dim=8, num_hidden_layers=3, use_sliding_window=True, sliding_window=5,
                max_window_layers=1)
BLOCK_SIZE = 4


def small_model(config=SHAPE):
    """Return a network with random weights, the same ones each time."""
    return make_model(ModelConfig.from_dict(config), random_weights(config, seed=0))


def make_runner(lab, config=SHAPE, attention=given_attention, num_blocks=24):
    """Return a runner and its model."""
    model = small_model(config)
    return lab.ModelRunner(model, num_blocks, BLOCK_SIZE, attention), model


def tokens_of(num_tokens, seed=0):
    return np.random.default_rng(seed).integers(0, 50, num_tokens).tolist()


def dense_logits(model, token_ids):
    """Return the logits of all tokens of one text: every token sees itself and all tokens before it."""
    def attend_plainly(layer, queries, keys_values):
        num_kv_heads = keys_values.shape[1] // 2
        keys_values = np.array(keys_values)
        return mx.array(dense(np.array(queries), keys_values[:, :num_kv_heads], keys_values[:, num_kv_heads:],
                              model.config.head_dim ** -0.5, model.config.window(layer)))

    hidden = model(mx.array(token_ids), mx.arange(len(token_ids)), attend_plainly)
    return np.array(model.logits(hidden))


def check_logits(got, expected, call, rule):
    got, expected = np.array(got), np.asarray(expected)
    assert got.shape == expected.shape, \
        f"{call} gave logits of the shape {got.shape}, expected {expected.shape}: {rule}"
    worst = np.abs(got - expected).max(axis=1)
    nan = np.flatnonzero(np.isnan(worst))
    assert not len(nan), f"{call}: row {nan[0]} of the logits contains NaN, but those of the dense model are finite"
    wrong = np.flatnonzero(worst >= LOGITS_ATOL).tolist()
    assert not wrong, f"{call}: row {wrong[0]} of the logits differs from the dense model's by up to " \
                      f"{worst[wrong[0]]:.3g}, expected less than {LOGITS_ATOL}: {rule}"


def compute(runner, token_ids, table, num_computed=0):
    """Return the logits of the last of ``token_ids`` after one step. ``num_computed`` of them already have K/V."""
    return runner.step([RequestStep(token_ids[num_computed:], table, len(token_ids), True)])


@pytest.mark.points(3)
def test_task_6_a_prompt_is_computed_as_by_the_dense_model(lab):
    runner, model = make_runner(lab)
    for num_tokens, table in ((1, [3]), (4, [5]), (11, [7, 2, 9])):
        tokens = tokens_of(num_tokens)
        check_logits(compute(runner, tokens, table), dense_logits(model, tokens)[-1:],
                     f"step with a prompt of {count(num_tokens, 'token')} in blocks {table}", "the last token's logits")


@pytest.mark.points(3)
def test_task_6_chunks_are_as_the_whole_prompt(lab):
    tokens, table = tokens_of(11), [7, 2, 9]
    for cuts in ([0, 4, 8, 11], [0, 3, 11], [0, 1, 2, 10, 11]):
        runner, model = make_runner(lab)
        for start, end in zip(cuts, cuts[1:]):
            got = runner.step([RequestStep(tokens[start:end], table, end, end == 11)])
        check_logits(got, dense_logits(model, tokens)[-1:], f"a prompt of 11 tokens in chunks, cut at {cuts}",
                     "a chunk's positions continue where the last chunk ended, and it reads what earlier chunks wrote")


@pytest.mark.points(3)
def test_task_6_decoding_step_by_step_is_as_the_whole_text(lab):
    (runner, model), tokens, table = make_runner(lab), tokens_of(13), [7, 2, 9, 4]
    expected = dense_logits(model, tokens)
    for end in range(5, 14):
        got = compute(runner, tokens[:end], table, 0 if end == 5 else end - 1)
        check_logits(got, expected[end - 1:end], f"token {end - 1} of a text: a prompt of 5, then one token per step",
                     "a decode is a chunk of one token")


@pytest.mark.points(4)
def test_task_6_a_batch_is_as_each_request_alone(lab):
    runner, model = make_runner(lab)
    texts, tables = [tokens_of(n, seed=n) for n in (10, 5, 9, 6)], [[7, 2, 9], [3, 11], [8, 1, 14], [5, 12]]
    expected = [dense_logits(model, text)[-1] for text in texts]
    for text, table, num_before in zip(texts, tables, (9, 4, 6, 0)):
        if num_before:
            runner.step([RequestStep(text[:num_before], table, num_before, False)])
    got = runner.step([RequestStep(text[num_before:], table, len(text), True)
                       for text, table, num_before in zip(texts, tables, (9, 4, 6, 0))])
    check_logits(got, expected, "step of two decodes, a chunk of 3 after 6 tokens, and a prompt of 6",
                 "row i belongs to request i and does not depend on the other requests")


@pytest.mark.points(2)
def test_task_6_only_requests_that_need_logits_get_them(lab):
    runner, model = make_runner(lab)
    texts, tables = [tokens_of(n, seed=n) for n in (1, 7, 5)], [[7], [3, 11], [8, 1]]
    expected = [dense_logits(model, text)[-1] for text in texts]
    for needs in ([True, False, True], [False, False, True], [True, True, True], [False, True, False]):
        got = runner.step([RequestStep(text, table, len(text), need)
                           for text, table, need in zip(texts, tables, needs)])
        check_logits(got, [row for row, need in zip(expected, needs) if need],
                     f"step of prompts of 1, 7 and 5 tokens with needs_logits {needs}",
                     "one row per request that needs logits, in the order of the requests")


@pytest.mark.points(2)
def test_task_6_no_request_needs_logits(lab):
    (runner, model), tokens = make_runner(lab), tokens_of(7)
    got = runner.step([RequestStep(tokens[:6], [3, 11], 6, False)])
    assert got.shape == (0, 50), f"step([RequestStep(6 tokens, [3, 11], 6, needs_logits=False)]) gave the shape " \
                                 f"{got.shape}, expected (0, 50): no rows, and one column per token of the vocabulary"
    check_logits(compute(runner, tokens, [3, 11], 6), dense_logits(model, tokens)[-1:],
                 "a decode after a chunk without needs_logits", "the chunk's keys and values must be written anyway")


def peak_bytes(make, change):
    """Return the peak of the extra memory that ``change(made)`` takes after ``made = make()``.

    The result is the median of nine runs: MLX computes in a separate thread, which may hold an array a moment longer.
    """
    peaks = []
    for _ in range(9):
        made = make()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(change(made))
        peaks.append(mx.get_peak_memory() - before)
    return sorted(peaks)[4]


@pytest.mark.points(2)
def test_task_6_logits_are_computed_only_where_they_are_wanted(lab):
    """Measure memory: the logits of all 100 tokens take 8 MB, everything else in this step about 0.5 MB."""
    model = small_model(dict(SHAPE, vocab_size=20000))
    mx.eval(model.parameters())
    tokens, table = tokens_of(100), list(range(1, 26))

    def make():
        return lab.ModelRunner(model, 30, BLOCK_SIZE, given_attention)

    check_logits(compute(make(), tokens, table), dense_logits(model, tokens)[-1:],
                 "step with a prompt of 100 tokens, vocab_size 20000", "the last token's logits")
    for needs in (False, True):
        peak = peak_bytes(make, lambda runner, needs=needs: [
            runner.step([RequestStep(tokens, table, 100, needs)]), *runner.cache.pools])
        assert peak < 4e6, \
            f"step with a chunk of 100 tokens and needs_logits {needs}, vocab_size 20000, took {peak / 1e6:.1f} MB, " \
            "expected less than 4; the logits of all its tokens take 8 MB: first choose the hidden states of the " \
            "wanted tokens, then compute only their logits"


@pytest.mark.points(1)
@pytest.mark.inside("the memory that MLX takes can be measured only in the process that holds the pools")
def test_task_6_a_step_leaves_the_pools_where_they_are(lab):
    runner, model = make_runner(lab)
    check_logits(compute(runner, tokens_of(8), [5, 7]), dense_logits(model, tokens_of(8))[-1:],
                 "step with a prompt of 8 tokens in blocks [5, 7]", "the last token's logits")
    del runner
    num_blocks = 4000
    mx.eval(model.parameters())

    def two_steps(_):
        """Create a runner and make two steps, so that a copy kept from the first step is measured."""
        runner = lab.ModelRunner(model, num_blocks, BLOCK_SIZE, given_attention)
        mx.eval(compute(runner, tokens_of(8), [5, 7]))
        requests = [RequestStep([3], [5, 7, 2], 9, True), RequestStep(tokens_of(6), [8, 1], 6, True)]
        mx.eval(runner.step(requests, copies=[(7, 9)]))
        return runner.cache

    peak = peak_mlx_bytes(lambda: None, two_steps) / (num_blocks * 4 * BLOCK_SIZE * 8 * mx.float32.size)
    assert peak < 2.1, f"a runner with two layers and pools of {num_blocks} blocks took {peak:.2f} times the memory " \
                       "of one pool in a step of 8 tokens and one of 7, expected less than 2.1, the size of its two " \
                       "pools: they must be written in place, so only the cache may hold a pool or a view of one " \
                       "while the step writes"


@pytest.mark.points(2)
def test_task_6_all_logits_of_a_request(lab):
    runner, model = make_runner(lab)
    texts, tables = [tokens_of(n, seed=n) for n in (1, 7, 5)], [[7], [3, 11], [8, 1]]
    expected = [dense_logits(model, text) for text in texts]
    for needs in (False, True):
        got = runner.step([RequestStep(texts[0], tables[0], 1, True), RequestStep(texts[1], tables[1], 7, needs, True),
                           RequestStep(texts[2], tables[2], 5, True)])
        check_logits(got, np.concatenate([expected[0][-1:], expected[1], expected[2][-1:]]),
                     f"step of three requests, the second with needs_logits {needs} and needs_all_logits True",
                     "one row, then one row per token of the second request, then one row")


@pytest.mark.points(3)
def test_task_6_requests_of_one_step_may_share_a_block(lab):
    """Let a request adopt a block that another request writes in the same step, in both orders of the batch."""
    prompt = tokens_of(8)
    for num_own, order in ((1, ["adopts", "writes"]), (3, ["adopts", "writes"]), (3, ["writes", "adopts"])):
        (runner, model), other = make_runner(lab), prompt[:4] + tokens_of(num_own, seed=9)
        steps = {"adopts": RequestStep(other[4:], [5, 6], len(other), True),
                 "writes": RequestStep(prompt, [5, 7], 8, True)}
        expected = {"adopts": dense_logits(model, other)[-1], "writes": dense_logits(model, prompt)[-1]}
        check_logits(runner.step([steps[name] for name in order]), [expected[name] for name in order],
                     f"step of {order}: one request writes 8 tokens into blocks 5 and 7, the other adopts the 4 tokens "
                     f"of block 5 and computes {num_own} more",
                     "in every layer all K/V is written before any of it is read")


@pytest.mark.points(4)
def test_task_6_copies_are_made_before_anything_is_written(lab):
    (runner, model), prompt = make_runner(lab), tokens_of(6)
    compute(runner, prompt, [5, 7])
    texts = [prompt + [1], prompt + [2], prompt + [3]]  # three samples of one prompt; block 7 is half full
    got = runner.step([RequestStep(text[6:], table, 7, True) for text, table in zip(texts, ([5, 7], [5, 8], [5, 9]))],
                      copies=[(7, 8), (7, 9)])
    check_logits(got, [dense_logits(model, text)[-1] for text in texts],
                 "step of three samples of one prompt, with copies [(7, 8), (7, 9)]",
                 "each sample continues in its own copy of block 7, made before the step wrote to it")
    assert runner.cache.num_copied_blocks == 2, \
        f"after a step with copies [(7, 8), (7, 9)] runner.cache.num_copied_blocks is " \
        f"{runner.cache.num_copied_blocks}, expected 2: each copy is made once"


@pytest.mark.points(2)
def test_task_6_blocks_are_used_again_as_they_are(lab):
    """Reuse blocks that still hold old content: the engine does not clear a block before it reuses it."""
    runner, model = make_runner(lab)
    runner.cache.pools[:] = [pool + mx.nan for pool in runner.cache.pools]
    for seed, tables in ((1, [[4, 2], [3, 1]]), (2, [[1, 2], [4, 3]])):
        texts = [tokens_of(n, seed) for n in (6, 7)]
        got = runner.step([RequestStep(text, table, len(text), True) for text, table in zip(texts, tables)])
        check_logits(got, [dense_logits(model, text)[-1] for text in texts],
                     f"step with tables {tables} over blocks that held NaN and then other requests",
                     "the old content of a block does not matter")


@pytest.mark.points(2)
def test_task_6_layers_have_windows_of_their_own(lab):
    (runner, model), tokens, table = make_runner(lab, WINDOWED), tokens_of(12), [7, 2, 9]
    expected = dense_logits(model, tokens)
    runner.step([RequestStep(tokens[:6], table, 6, False)])
    for start, end in ((6, 11), (11, 12)):
        got = runner.step([RequestStep(tokens[start:end], table, end, True)])
        check_logits(got, expected[end - 1:end], f"tokens {start} to {end - 1} of a model whose layers 1 and 2 have a "
                     "window of 5", "layer 0 sees everything; layers 1 and 2 get the keyword argument window=5")


@pytest.mark.points(2)
def test_task_6_attention_is_called_as_promised(lab):
    calls = []

    def no_windows(queries, pool, block_tables, context_lens, query_starts, scale):
        calls.append((pool.shape, [list(table) for table in block_tables], list(context_lens), list(query_starts)))
        return given_attention(queries, pool, block_tables, context_lens, query_starts, scale)

    (runner, model), text = make_runner(lab, attention=no_windows), tokens_of(9)
    runner.step([RequestStep(text[:8], [5, 7, 2], 8, False)])
    calls.clear()
    got = runner.step([RequestStep(text[8:], [5, 7, 2], 9, True), RequestStep([4, 9], [6], 2, True)])
    expected = [dense_logits(model, tokens)[-1] for tokens in (text, [4, 9])]
    check_logits(got, expected, "step of a decode and a prompt with an attention that takes no window",
                 "window is passed only in layers that have one")
    wanted = ((24, 4, 4, 8), [[5, 7, 2], [6]], [9, 2], [0, 1, 3])
    assert calls and calls[0] == wanted, \
        f"attention was first called with (pool.shape, block_tables, context_lens, query_starts) {calls[:1]}, " \
        f"expected {wanted}: all requests of the step, in their order"


@pytest.mark.points(2)
def test_task_6_the_engines_fast_attention_and_your_own(lab):
    texts, tables = [tokens_of(n, seed=n) for n in (10, 5, 9)], [[7, 2, 9], [3, 11], [8, 1, 14]]
    for name, attention in (("FastAttention, a class", FastAttention), ("paged_attention", lab.paged_attention)):
        runner, model = make_runner(lab, attention=attention)
        for text, table in zip(texts, tables):
            runner.step([RequestStep(text[:4], table, 4, False)])
        got = runner.step([RequestStep(text[4:num_after], table, num_after, True)
                           for text, table, num_after in zip(texts, tables, (5, 5, 9))])
        expected = [dense_logits(model, text[:num_after])[-1] for text, num_after in zip(texts, (5, 5, 9))]
        check_logits(got, expected, f"step of two decodes and a chunk, with {name}", "attention is a part that can be "
                     "replaced")
