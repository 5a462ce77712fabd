"""Graded tests of lab 2.3. The tests fill and read the pools with their own loops, so no test needs an earlier task.

Every slot that a test did not write holds NaN: after one wrong read, the result is NaN.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pytest

from course.expecting import must_answer
from course.gauges import peak_bytes

ATOL = 1e-9


# ---- the oracle and the pools


def dense_attention(queries, keys, values, scale=None):
    """Compute causal attention over contiguous K/V, one query and one head at a time: slow, but easy to verify."""
    num_queries, num_heads, head_dim = queries.shape
    context_len, num_kv_heads, _ = keys.shape
    scale = head_dim ** -0.5 if scale is None else scale
    out = np.empty((num_queries, num_heads, head_dim))
    for i in range(num_queries):
        num_seen = context_len - num_queries + i + 1
        for h in range(num_heads):
            kv_head = h // (num_heads // num_kv_heads)
            scores = np.array([scale * float(queries[i, h] @ keys[j, kv_head]) for j in range(num_seen)])
            weights = np.exp(scores - scores.max())
            out[i, h] = (weights / weights.sum()) @ values[:num_seen, kv_head]
    return out


@dataclass
class Context:
    """One request: its K/V in contiguous arrays, and the block table of the same K/V in the pools."""

    keys: np.ndarray
    values: np.ndarray
    table: list[int]

    @property
    def length(self):
        return len(self.keys)


def empty_pools(num_blocks, num_kv_heads, block_size, head_dim):
    shape = (num_blocks, num_kv_heads, block_size, head_dim)
    return np.full(shape, np.nan), np.full(shape, np.nan)


def put(pool, table, vectors):
    """Write ``vectors`` [num_tokens, num_kv_heads, head_dim] to positions 0, 1, … of ``table``."""
    block_size = pool.shape[2]
    for position, vector in enumerate(vectors):
        for head in range(pool.shape[1]):
            pool[table[position // block_size], head, position % block_size] = vector[head]


def make_context(rng, k_pool, v_pool, length, table):
    num_kv_heads, head_dim = k_pool.shape[1], k_pool.shape[3]
    context = Context(rng.normal(size=(length, num_kv_heads, head_dim)),
                      rng.normal(size=(length, num_kv_heads, head_dim)), table)
    put(k_pool, table, context.keys)
    put(v_pool, table, context.values)
    return context


def make_request(rng, length, block_size, num_kv_heads=2, head_dim=4, num_spare=3):
    """Return pools of NaN that contain one request, in random blocks. Block 0 is never used."""
    num_needed = -(-length // block_size)
    num_blocks = 1 + num_needed + num_spare
    k_pool, v_pool = empty_pools(num_blocks, num_kv_heads, block_size, head_dim)
    table = [int(b) for b in rng.permutation(np.arange(1, num_blocks))[:num_needed]]
    return k_pool, v_pool, make_context(rng, k_pool, v_pool, length, table)


def frozen(*arrays):
    """Return read-only copies of the arrays."""
    copies = [array.copy() for array in arrays]
    for copy in copies:
        copy.setflags(write=False)
    return copies


def on_frozen(call, function, queries, k_pool, v_pool, *rest, **keywords):
    """Call ``function`` with read-only arrays."""
    try:
        return function(*frozen(queries, k_pool, v_pool), *rest, **keywords)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise AssertionError(f"{call} wrote to one of its arguments ({error}), but it may only read "
                             "them") from error


def check_finite(got, name):
    """Check that the result has no NaN. The message is the same in every test, and lists the possible causes."""
    assert not np.isnan(got).any(), \
        f"{name} gave NaN, expected numbers. All K/V of the context is finite, so either a slot outside the context " \
        "was read (0 * NaN is also NaN), or inf - inf, inf / inf or 0 / 0 was computed"


def check_close(got, expected, call, rule):
    """Compare the result with dense attention. ``call`` must start with the name of the function."""
    got = np.asarray(got)
    assert got.shape == expected.shape, f"{call} has shape {got.shape}, expected {expected.shape}: {rule}"
    check_finite(got, call.split()[0])
    worst = float(np.abs(got - expected).max(initial=0.0))
    assert worst < ATOL, f"{call} differs from dense attention by up to {worst:.3g}, expected less than {ATOL} in " \
                         f"float64: {rule}"


def rounded(got, expected):
    """Return both as plain numbers with 4 digits, or with all digits if the first 4 are equal."""
    pair = [np.round(array, 4).tolist() for array in (got, expected)]
    return pair if str(pair[0]) != str(pair[1]) else [np.asarray(array).tolist() for array in (got, expected)]


def check_same_pools(call, rule, *pairs):
    for name, now, before in pairs:
        changed = np.argwhere(~((now == before) | (np.isnan(now) & np.isnan(before))))
        if len(changed):
            got, expected = rounded(now[tuple(changed[0])], before[tuple(changed[0])])
            raise AssertionError(f"after {call} {name}{changed[0].tolist()} is {got}, expected {expected}: {rule}")


def check_refused(function, args, call, *named):
    """Check that ``function(*args)`` raises ValueError, and that the message contains every string in ``named``."""
    try:
        got = function(*args)
    except ValueError as error:
        for value in named:
            assert value in str(error), f"{call} raised ValueError({str(error)!r}), expected {value} in the message: " \
                                        "an error message must contain the value and the limit"
        return
    except NotImplementedError:
        raise
    except Exception as error:
        raise AssertionError(f"{call} raised {type(error).__name__}({str(error)!r}), expected a ValueError: "
                             "check the arguments before you use them") from error
    what = f"an array of shape {got.shape}" if isinstance(got, np.ndarray) else repr(got)
    raise AssertionError(f"{call} returned {what}, expected a ValueError: reject invalid arguments")


# ---- Task 1: slot_mapping


@pytest.mark.points(2)
def test_task_1_positions_go_through_the_table(lab):
    got = np.asarray(lab.slot_mapping([7, 2, 5], 0, 10, 4)).tolist()
    expected = [28, 29, 30, 31, 8, 9, 10, 11, 20, 21]
    assert got == expected, f"slot_mapping([7, 2, 5], first_position=0, num_tokens=10, block_size=4) is {got}, " \
                            f"expected {expected}: slot = table[p // block_size] * block_size + p % block_size"


@pytest.mark.points(2)
def test_task_1_start_inside_a_block(lab):
    for first, num, expected in [(6, 4, [10, 11, 20, 21]), (3, 2, [31, 8]), (9, 1, [21]), (4, 4, [8, 9, 10, 11])]:
        got = np.asarray(lab.slot_mapping([7, 2, 5], first, num, 4)).tolist()
        assert got == expected, f"slot_mapping([7, 2, 5], first_position={first}, num_tokens={num}, block_size=4) is " \
                                f"{got}, expected {expected}: positions count from the start of the sequence, " \
                                "so a step may start in the middle of a block"


@pytest.mark.points(1)
def test_task_1_any_block_size(lab):
    rng = np.random.default_rng(1)
    for block_size in (1, 5, 32):
        table = [int(b) for b in rng.permutation(40)[:6]]
        num_slots = 6 * block_size
        got = np.asarray(lab.slot_mapping(table, 0, num_slots, block_size)).tolist()
        expected = [block_id * block_size + offset for block_id in table for offset in range(block_size)]
        assert got == expected, f"slot_mapping({table}, 0, {num_slots}, {block_size}) is {got}, expected {expected}: " \
                                "a full table maps to all slots of its blocks, in the table's order"


@pytest.mark.points(1)
def test_task_1_slots_are_int64(lab):
    for table, num, block_size in [([7, 2], 6, 4), ([2 ** 27], 2, 32), (np.array([5, 2 ** 27], np.int32), 34, 32),
                                   ([3], 0, 4), ([], 0, 4)]:
        told = f"array({table.tolist()}, dtype=int32)" if isinstance(table, np.ndarray) else table
        rule = "a pool may have more than 2**31 slots" if num else "slots are used as an index, so they must be ints"
        got = must_answer(f"slot_mapping({told}, 0, {num}, {block_size})", lab.slot_mapping, table, 0, num, block_size,
                          rule="a table may be empty if there are no tokens" if not len(table) else rule)
        kind = f"an array of {got.dtype}" if isinstance(got, np.ndarray) else f"a {type(got).__name__}"
        expected = [int(table[p // block_size]) * block_size + p % block_size for p in range(num)]
        assert kind == "an array of int64" and got.tolist() == expected, \
            f"slot_mapping({told}, 0, {num}, {block_size}) is {kind}, {np.asarray(got).tolist()}, expected an array " \
            f"of int64, {expected}: {rule}"


@pytest.mark.points(1)
def test_task_1_padding_and_no_tokens(lab):
    got = np.asarray(must_answer("slot_mapping([3, 1, 0, -1], 2, 5, 4)", lab.slot_mapping, [3, 1, 0, -1], 2, 5, 4,
                                 rule="entries after the last position are padding")).tolist()
    assert got == [14, 15, 4, 5, 6], f"slot_mapping([3, 1, 0, -1], 2, 5, 4) is {got}, expected [14, 15, 4, 5, 6]: " \
                                     "entries after the last position are padding and must be ignored"
    got = lab.slot_mapping([3, 1], 8, 0, 4)
    assert len(got) == 0, f"slot_mapping([3, 1], 8, 0, 4) is {got}, expected an empty array: no token, no slot"
    got = np.asarray(must_answer("slot_mapping([-1, 2, 5], 4, 3, 4)", lab.slot_mapping, [-1, 2, 5], 4, 3, 4,
                                 rule="positions 4 to 6 are in block 2, and earlier entries of the table are "
                                      "ignored")).tolist()
    assert got == [8, 9, 10], f"slot_mapping([-1, 2, 5], 4, 3, 4) is {got}, expected [8, 9, 10]"


@pytest.mark.points(2)
def test_task_1_a_table_too_short_is_refused(lab):
    got = np.asarray(must_answer("slot_mapping([7, 2, 5], 8, 4, 4)", lab.slot_mapping, [7, 2, 5], 8, 4, 4,
                                 rule="a context may end exactly at the end of its last block")).tolist()
    assert got == [20, 21, 22, 23], f"slot_mapping([7, 2, 5], 8, 4, 4) is {got}, expected [20, 21, 22, 23]: " \
                                    "a context may end exactly at the end of its last block"
    check_refused(lab.slot_mapping, ([7, 2, 5], 8, 5, 4), "slot_mapping([7, 2, 5], 8, 5, 4)", "13", "12")
    check_refused(lab.slot_mapping, ([], 0, 1, 4), "slot_mapping([], 0, 1, 4)", "1", "0")
    check_refused(lab.slot_mapping, ([7, 2, 5], 13, 0, 4), "slot_mapping([7, 2, 5], 13, 0, 4)", "13", "12")


@pytest.mark.points(1)
def test_task_1_negative_numbers_are_refused(lab):
    check_refused(lab.slot_mapping, ([7, 2, 5], -3, 4, 4), "slot_mapping([7, 2, 5], -3, 4, 4)", "-3")
    check_refused(lab.slot_mapping, ([7, 2, 5], 3, -2, 4), "slot_mapping([7, 2, 5], 3, -2, 4)", "-2")
    check_refused(lab.slot_mapping, ([7, 2, 5], 0, 0, 0), "slot_mapping([7, 2, 5], 0, 0, 0)", "0")
    check_refused(lab.slot_mapping, ([7, -9, 5], 0, 6, 4), "slot_mapping([7, -9, 5], 0, 6, 4)", "-9")


# ---- Task 2: write_kv


@pytest.mark.points(3)
def test_task_2_each_token_lands_in_its_slot(lab):
    rng = np.random.default_rng(2)
    # Some engines keep the keys and the values of a block next to each other: each pool is a view of one array.
    both = np.full((5, 6, 4, 2), np.nan)
    for what, (k_pool, v_pool) in [("", empty_pools(num_blocks=5, num_kv_heads=3, block_size=4, head_dim=2)),
                                   (" into pools that are views of one array", (both[:, :3], both[:, 3:]))]:
        keys, values = rng.normal(size=(2, 4, 3, 2))
        slots = [13, 6, 0, 19]
        got = lab.write_kv(k_pool, v_pool, keys, values, np.array(slots))
        assert got is None, f"write_kv(...) returned {got!r}, expected None: write_kv writes in place"
        for name, pool, vectors in (("k_pool", k_pool, keys), ("v_pool", v_pool, values)):
            for token, slot in enumerate(slots):
                here = pool[slot // 4, :, slot % 4]
                found, wanted = rounded(here, vectors[token])
                assert np.array_equal(here, vectors[token]), \
                    f"after write_kv(..., slots={slots}){what} {name}[{slot // 4}, :, {slot % 4}] is {found}, " \
                    f"expected {wanted}: token {token} belongs in slot {slot}, in the pool itself, not in a copy"


@pytest.mark.points(2)
def test_task_2_nothing_else_changes(lab):
    rng = np.random.default_rng(3)
    for block_size, slots in [(1, [5, 2]), (5, [24, 11, 10, 3]), (32, [64, 95]), (4, [])]:
        k_pool, v_pool = rng.normal(size=(2, 7, 2, block_size, 3))
        k_pool[..., 1] = v_pool[..., 2] = np.nan  # write_kv must not remove NaN from other slots
        keys, values = rng.normal(size=(2, len(slots), 2, 3))
        before = {"k_pool": k_pool.copy(), "v_pool": v_pool.copy()}
        call = f"write_kv(slots={slots}) with block_size {block_size}"
        must_answer(call, lab.write_kv, k_pool, v_pool, keys, values, slots,
                    rule="the slots and the shapes are valid" if slots else "without slots nothing happens")
        for name, pool, vectors in (("k_pool", k_pool, keys), ("v_pool", v_pool, values)):
            others = pool.copy()
            for token, slot in enumerate(slots):
                block_id, offset = divmod(slot, block_size)
                here = pool[block_id, :, offset]
                found, wanted = rounded(here, vectors[token])
                assert np.array_equal(here, vectors[token]), \
                    f"after {call} slot {slot}, {name}[{block_id}, :, {offset}], is {found}, expected {wanted}: " \
                    f"token {token} belongs in slot {slot}"
                others[block_id, :, offset] = before[name][block_id, :, offset]
            check_same_pools(call, "only the given slots may change; the others belong to other requests",
                             (name, others, before[name]))


@pytest.mark.points(3)
def test_task_2_wrong_shapes_are_refused_before_the_first_write(lab):
    rng = np.random.default_rng(4)
    good = rng.normal(size=(3, 2, 4))
    pool_shape = (5, 2, 4, 4)
    cases = [("one key for three slots", good[:1], good, [1, 9, 6], pool_shape, "(1, 2, 4)", "(3, 2, 4)"),
             ("one value for three slots", good, good[:1], [1, 9, 6], pool_shape, "(1, 2, 4)", "(3, 2, 4)"),
             ("keys of one kv head", good[:, :1], good, [1, 9, 6], pool_shape, "(3, 1, 4)", "(3, 2, 4)"),
             ("keys of 4 kv heads, head_dim 2", good.reshape(3, 4, 2), good, [1, 9, 6], pool_shape, "(3, 4, 2)",
              "(3, 2, 4)"),
             ("values of head_dim 1", good, good[..., :1], [1, 9, 6], pool_shape, "(3, 2, 1)", "(3, 2, 4)"),
             ("three keys for two slots", good, good, [1, 9], pool_shape, "(3, 2, 4)", "(2, 2, 4)"),
             ("three keys for no slots", good, good, [], pool_shape, "(3, 2, 4)", "(0, 2, 4)"),
             ("no token axis", good[0], good[0], [1, 9], pool_shape, "(2, 4)", "(2, 2, 4)"),
             ("a v_pool of 6 blocks", good, good, [1, 9, 6], (6, 2, 4, 4), "(6, 2, 4, 4)", "(5, 2, 4, 4)"),
             ("a v_pool of 10 blocks of 2 slots", good, good, [1, 9, 6], (10, 2, 2, 4), "(10, 2, 2, 4)",
              "(5, 2, 4, 4)")]
    for what, keys, values, slots, v_shape, *named in cases:
        k_pool, v_pool = rng.normal(size=pool_shape), rng.normal(size=v_shape)
        k_before, v_before = k_pool.copy(), v_pool.copy()
        call = f"write_kv(slots={slots}) with {what}"
        check_refused(lab.write_kv, (k_pool, v_pool, keys, values, slots), call, *named)
        check_same_pools(call, "check first, then write: a call that raises has changed nothing",
                         ("k_pool", k_pool, k_before), ("v_pool", v_pool, v_before))


@pytest.mark.points(2)
def test_task_2_slots_out_of_range_are_refused_before_the_first_write(lab):
    rng = np.random.default_rng(5)
    for slots, named in [([3, 20], "20"), ([3, -1], "-1"), ([-1, 3], "-1"), ([0, -1, 2], "-1"), ([0, 20, 2], "20")]:
        k_pool, v_pool = rng.normal(size=(2, 5, 2, 4, 4))
        k_before, v_before = k_pool.copy(), v_pool.copy()
        keys, values = rng.normal(size=(2, len(slots), 2, 4))
        call = f"write_kv(slots={slots}) into 20 slots"
        check_refused(lab.write_kv, (k_pool, v_pool, keys, values, slots), call, named)
        check_same_pools(call, "check first, then write: a call that raises has changed nothing",
                         ("k_pool", k_pool, k_before), ("v_pool", v_pool, v_before))


# ---- Task 3: gather_kv


@pytest.mark.points(2)
def test_task_3_positions_come_back_in_order(lab):
    rng = np.random.default_rng(6)
    for length, block_size in [(10, 4), (7, 1), (13, 5), (70, 32)]:
        k_pool, _, context = make_request(rng, length, block_size, num_kv_heads=3, head_dim=2)
        got = lab.gather_kv(k_pool, context.table, length)
        call = f"gather_kv(pool {k_pool.shape}, {context.table}, {length})"
        assert got.shape == (length, 3, 2), f"{call} has shape {got.shape}, expected {(length, 3, 2)}: " \
                                            "[num_tokens, num_kv_heads, head_dim], and no token beyond num_tokens"
        wrong = np.argwhere(got != context.keys)
        assert len(wrong) == 0, f"{call} is wrong at [position, kv head, dim] {wrong[0].tolist()}: position p is " \
                                "pool[table[p // block_size], :, p % block_size]"


@pytest.mark.points(2)
def test_task_3_the_rest_of_the_last_block_stays_out(lab):
    rng = np.random.default_rng(7)
    k_pool, _, context = make_request(rng, length=12, block_size=4)
    for num_tokens in (1, 4, 5, 8, 9, 12, 0):
        call = f"gather_kv(pool, {context.table + [99, -1]}, {num_tokens}) with block_size 4"
        got = must_answer(call, lab.gather_kv, k_pool, context.table + [99, -1], num_tokens,
                          rule="entries after the last position are padding")
        assert len(got) == num_tokens, f"{call} has {len(got)} rows, expected {num_tokens}: the rest of the last " \
                                       "block is garbage"
        assert np.array_equal(got, context.keys[:num_tokens]), \
            f"{call} is not the first {num_tokens} keys of the sequence: position p is " \
            "pool[table[p // block_size], :, p % block_size]"


@pytest.mark.points(1)
def test_task_3_the_result_is_an_array_of_its_own(lab):
    rng = np.random.default_rng(17)
    k_pool, _, context = make_request(rng, length=6, block_size=4)
    k_pool[context.table[0], 1, 2] = np.inf
    for num_tokens in (3, 4, 6):
        call = f"gather_kv(pool, {context.table}, {num_tokens}) with block_size 4"
        before = k_pool.copy()
        got = lab.gather_kv(k_pool, context.table, num_tokens)
        assert got[2, 1, 0] == np.inf, f"{call} has {got[2, 1, 0]} at [2, 1, 0], expected inf: the numbers of a " \
                                       "slot must not change"
        got[:] = 0.0
        check_same_pools(f"the test called {call} and wrote zeros into the returned array,", "return a copy, not "
                         "a view: a caller must not overwrite the cache", ("pool", k_pool, before))


@pytest.mark.points(1)
def test_task_3_two_tables_may_share_blocks(lab):
    rng = np.random.default_rng(8)
    k_pool, v_pool = empty_pools(num_blocks=6, num_kv_heads=2, block_size=4, head_dim=3)
    first = make_context(rng, k_pool, v_pool, 8, [5, 2])
    second = make_context(rng, k_pool, v_pool, 3, [4])
    got = lab.gather_kv(v_pool, [5, 2, 4], 11)
    assert np.array_equal(got, np.concatenate([first.values, second.values])), \
        "gather_kv(v_pool, [5, 2, 4], 11) is not blocks 5 and 2 followed by 3 tokens of block 4: only the table " \
        "decides which blocks are read, and any table may contain any block"


@pytest.mark.points(1)
def test_task_3_bad_tables_are_refused(lab):
    rng = np.random.default_rng(9)
    k_pool, _, context = make_request(rng, length=8, block_size=4, num_spare=1)  # blocks 0 to 3
    check_refused(lab.gather_kv, (k_pool, context.table, 9), f"gather_kv(pool, {context.table}, 9) with block_size 4")
    check_refused(lab.gather_kv, (k_pool, [1, 4], 8), "gather_kv with table [1, 4] from a pool of 4 blocks", "4")
    check_refused(lab.gather_kv, (k_pool, [1, -2], 8), "gather_kv with table [1, -2]", "-2")


# ---- Tasks 4 and 5: one request. The same checks for both functions


#: Number of queries, number of tokens, a description, and a hint for the first case that fails.
PLAIN_CALLS = [
    (1, 4, "one query over one full block of 4 tokens",
     "it sees all 4 tokens, head h reads kv head h, the scores are divided by sqrt(head_dim), and their softmax gives "
     "the weights of the values"),
    (1, 12, "one query over three full blocks of 4 tokens",
     "the result over one block is right; check how you go from one block to the next"),
    (4, 12, "4 queries over three full blocks of 4 tokens",
     "the result for one query is right; query i is at position context_len - num_query_tokens + i and sees nothing "
     "after it"),
]


def check_plain(attention, name, calls):
    """Check the simplest calls: no garbage in a block, no groups, no padding."""
    rng = np.random.default_rng(24)
    for num_queries, length, what, rule in calls:
        k_pool, v_pool, context = make_request(rng, length, block_size=4)
        queries = rng.normal(size=(num_queries, 2, 4))
        call = f"{name} of {what}"
        got = on_frozen(call, attention, queries, k_pool, v_pool, context.table, length)
        check_close(got, dense_attention(queries, context.keys, context.values), call, rule)


def plainest_first(check):
    """Wrap ``check``: if it fails and a simple call also fails, report the simple call, which shows the cause."""
    @functools.wraps(check)
    def checked(attention, name):
        try:
            return check(attention, name)
        except AssertionError as error:
            failure = error
        check_plain(attention, name, PLAIN_CALLS)
        raise failure
    return checked


@plainest_first
def check_decode(attention, name):
    rng = np.random.default_rng(10)
    for length in (1, 2, 3, 4, 5, 8, 11, 12):
        k_pool, v_pool, context = make_request(rng, length, block_size=4)
        queries = rng.normal(size=(1, 2, 4))
        call = f"{name} of one query over a context of {length}, block_size 4,"
        got = on_frozen(call, attention, queries, k_pool, v_pool, context.table, length)
        check_close(got, dense_attention(queries, context.keys, context.values), call,
                    "a decode step is one query at the last position, and it sees the whole context")


@plainest_first
def check_chunks(attention, name):
    rng = np.random.default_rng(11)
    for length, num_queries in [(10, 10), (10, 7), (10, 3), (8, 4), (8, 5), (9, 2), (4, 4)]:
        k_pool, v_pool, context = make_request(rng, length, block_size=4)
        queries = rng.normal(size=(num_queries, 2, 4))
        call = f"{name} of {num_queries} queries over a context of {length}, block_size 4,"
        got = on_frozen(call, attention, queries, k_pool, v_pool, context.table, length)
        check_close(got, dense_attention(queries, context.keys, context.values), call,
                    "query i is at position context_len - num_query_tokens + i and sees nothing after it")


@plainest_first
def check_groups(attention, name):
    rng = np.random.default_rng(12)
    for group in (1, 2, 4):
        k_pool, v_pool, context = make_request(rng, length=11, block_size=4, num_kv_heads=3)
        queries = rng.normal(size=(1, 3 * group, 4))
        call = f"{name} of one query with {3 * group} heads over 3 kv heads"
        got = on_frozen(call, attention, queries, k_pool, v_pool, context.table, 11)
        check_close(got, dense_attention(queries, context.keys, context.values), call,
                    f"head h reads kv head h // {group}")


@plainest_first
def check_block_sizes(attention, name):
    rng = np.random.default_rng(13)
    for block_size, length in [(1, 6), (5, 13), (5, 15), (32, 20), (32, 32), (32, 64), (32, 65)]:
        k_pool, v_pool, context = make_request(rng, length, block_size)
        queries = rng.normal(size=(1, 2, 4))
        call = f"{name} of one query over a context of {length} with block_size {block_size}"
        got = on_frozen(call, attention, queries, k_pool, v_pool, context.table, length)
        check_close(got, dense_attention(queries, context.keys, context.values), call,
                    "the result must not depend on the block size")


@plainest_first
def check_places(attention, name):
    """Check the same sequence in other blocks, with other garbage around it, and with padding after the table."""
    rng = np.random.default_rng(14)
    k_pool, v_pool, context = make_request(rng, length=14, block_size=4, num_spare=4)
    queries = rng.normal(size=(6, 4, 4))
    expected = dense_attention(queries, context.keys, context.values)
    for garbage in (np.nan, np.inf, 1e300):
        permutation = rng.permutation(len(k_pool))
        moved_k, moved_v = np.full_like(k_pool, garbage), np.full_like(v_pool, garbage)
        table = [int(permutation[block_id]) for block_id in context.table]
        put(moved_k, table, context.keys)
        put(moved_v, table, context.values)
        unused = next(b for b in range(len(k_pool)) if b not in table)
        for padding in ([], [unused], [-1, -1]):
            call = f"{name} of 6 queries with table {table + padding}, context_len 14, block_size 4, {garbage} in " \
                   "all other slots,"
            got = on_frozen(call, attention, queries, moved_k, moved_v, table + padding, 14)
            check_close(got, expected, call, "only the table decides which blocks are read, and only the slots "
                        "of the context count; 0 * NaN is NaN, so a weight of 0 is not enough")


@plainest_first
def check_scale(attention, name):
    rng = np.random.default_rng(15)
    k_pool, v_pool, context = make_request(rng, length=9, block_size=4)
    queries = rng.normal(size=(1, 2, 4))
    for scale in (1.0, 0.25, 0.0):
        call = f"{name} of one query over a context of 9 with scale={scale}"
        got = on_frozen(call, attention, queries, k_pool, v_pool, context.table, 9, scale=scale)
        check_close(got, dense_attention(queries, context.keys, context.values, scale), call,
                    "only None means 1 / sqrt(head_dim); with scale 0.0 the result is the mean of the values")


def check_bad_input(attention, name):
    rng = np.random.default_rng(16)
    k_pool, v_pool, context = make_request(rng, length=8, block_size=4, num_spare=1)
    query = rng.normal(size=(1, 2, 4))
    for what, queries, v, table, length, named in [
            ("9 queries over a context of 8", np.repeat(query, 9, axis=0), v_pool, context.table, 8, "9"),
            ("a context of 9 in 2 blocks of 4", query, v_pool, context.table, 9, "9"),
            ("3 heads over 2 kv heads", rng.normal(size=(1, 3, 4)), v_pool, context.table, 8, "3"),
            ("block id 7 in a pool of 4", query, v_pool, [context.table[0], 7], 8, "7"),
            ("a v_pool of another shape", query, v_pool[:3], context.table, 8, "(3, 2, 4, 4)")]:
        check_refused(attention, (queries, k_pool, v, table, length), f"{name} with {what}", named)


@plainest_first
def check_huge_scores(attention, name):
    rng = np.random.default_rng(22)
    for order, size in [("rising", 3e2), ("falling", 3e2), ("mixed", 3e2), ("low", 3e2), ("low", 1e10)]:
        k_pool, v_pool, context = make_request(rng, length=18, block_size=4, num_kv_heads=2)
        ramp = {"rising": np.arange(18), "falling": -np.arange(18), "mixed": rng.permutation(18),
                "low": -3 - rng.permutation(18)}[order]
        context.keys[:] = 0.0
        context.keys[..., 0] = size * ramp[:, None] + rng.normal(size=(18, 2))
        put(k_pool, context.table, context.keys)
        # If the scores of one query, head or kv head are high, the scores of its neighbours are low.
        signs = np.outer([1, -1, 1, -1], [1, -1, -1, 1])
        queries = np.ones((4, 4, 4)) * signs[..., None]
        call = f"{name} of 4 queries with 4 heads over 18 tokens of 2 kv heads with {order} scores between " \
               f"±{size * 21:.0f}"
        with np.errstate(all="ignore"):
            got = on_frozen(call, attention, queries, k_pool, v_pool, context.table, 18, scale=1.0)
        check_close(got, dense_attention(queries, context.keys, context.values, 1.0), call,
                    "exp(710) is infinite and exp(-750) is 0, so subtract the largest visible score of this query and "
                    "head before exp; and use -inf as the score of a position that is not visible")


@pytest.mark.points(3)
def test_task_4_decode_equals_dense(lab):
    check_decode(lab.paged_attention, "paged_attention")


@pytest.mark.points(3)
def test_task_4_a_chunk_is_causal(lab):
    check_chunks(lab.paged_attention, "paged_attention")


@pytest.mark.points(2)
def test_task_4_heads_are_grouped(lab):
    check_groups(lab.paged_attention, "paged_attention")


@pytest.mark.points(1)
def test_task_4_block_size_does_not_show(lab):
    check_block_sizes(lab.paged_attention, "paged_attention")


@pytest.mark.points(3)
def test_task_4_places_and_garbage_do_not_show(lab):
    check_places(lab.paged_attention, "paged_attention")


@pytest.mark.points(1)
def test_task_4_scale(lab):
    check_scale(lab.paged_attention, "paged_attention")


@pytest.mark.points(2)
def test_task_4_huge_scores_do_not_overflow(lab):
    check_huge_scores(lab.paged_attention, "paged_attention")


@pytest.mark.points(1)
def test_task_4_bad_input_is_refused(lab):
    check_bad_input(lab.paged_attention, "paged_attention")


@pytest.mark.points(3)
def test_task_5_the_sums_follow_the_maximum(lab):
    """Check the example of hint 1, which the phase's README computes by hand."""
    k_pool, v_pool = empty_pools(num_blocks=4, num_kv_heads=1, block_size=2, head_dim=1)
    scores = [0.0, 1.0, 3.0, 2.0, 1.0]
    table = [2, 3, 1]
    put(k_pool, table, np.array(scores).reshape(5, 1, 1))
    put(v_pool, table, np.array([1.0, 2.0, 4.0, 8.0, 16.0]).reshape(5, 1, 1))
    out = np.asarray(lab.paged_attention_online(np.ones((1, 1, 1)), k_pool, v_pool, table, 5, scale=1.0))
    check_finite(out, "paged_attention_online")
    got = float(out[0, 0, 0])
    weights = np.exp(scores)
    expected = float(weights @ [1.0, 2.0, 4.0, 8.0, 16.0] / weights.sum())
    if abs(got - expected) >= ATOL:
        check_plain(lab.paged_attention_online, "paged_attention_online", PLAIN_CALLS[:1])
    assert abs(got - expected) < ATOL, \
        f"paged_attention_online over blocks with scores [0, 1], [3, 2], [1] and values [1, 2], [4, 8], [16] is " \
        f"{got:.6f}, expected {expected:.6f}: when the largest score grows from 1 to 3, multiply the sum and the " \
        "accumulator by exp(1 - 3); when the largest score does not grow, do not change them"


@pytest.mark.points(2)
def test_task_5_decode_equals_dense(lab):
    check_decode(lab.paged_attention_online, "paged_attention_online")


@pytest.mark.points(2)
def test_task_5_a_chunk_is_causal(lab):
    check_chunks(lab.paged_attention_online, "paged_attention_online")


@pytest.mark.points(2)
def test_task_5_heads_are_grouped(lab):
    check_groups(lab.paged_attention_online, "paged_attention_online")


@pytest.mark.points(1)
def test_task_5_block_size_does_not_show(lab):
    check_block_sizes(lab.paged_attention_online, "paged_attention_online")


@pytest.mark.points(3)
def test_task_5_places_and_garbage_do_not_show(lab):
    check_places(lab.paged_attention_online, "paged_attention_online")


@pytest.mark.points(1)
def test_task_5_scale(lab):
    check_scale(lab.paged_attention_online, "paged_attention_online")


@pytest.mark.points(1)
def test_task_5_bad_input_is_refused(lab):
    check_bad_input(lab.paged_attention_online, "paged_attention_online")


# ---- Task 5: properties of the running softmax only


class OneBlockPool:
    """A pool that can be read only one block at a time, each number once. It records the blocks that were read."""

    def __init__(self, pool, name):
        self.wrapped, self.label = pool, name
        self.shape, self.dtype, self.ndim = pool.shape, pool.dtype, pool.ndim
        self.block_ids_read = []
        self.was_read = np.zeros(pool.shape, dtype=bool)

    def __getitem__(self, key):
        first = key[0] if isinstance(key, tuple) else key
        try:
            block_ids = np.atleast_1d(np.arange(len(self.wrapped))[first]).ravel().tolist()
        except IndexError:
            raise AssertionError(f"{self.label}[{key!r}] was read: there is no such block") from None
        assert len(block_ids) == 1, f"{self.label}[{key!r}] was read, {len(block_ids)} blocks at once, expected one: " \
                                    "the running softmax reads one block at a time and never gathers"
        assert not np.any(self.was_read[key]), \
            f"{self.label}[{key!r}] was read a second time, expected once: each block is read once, for all queries " \
            "together, and there is no second pass over the blocks"
        self.was_read[key] = True
        self.block_ids_read += block_ids
        return self.wrapped[key]

    def __len__(self):
        return len(self.wrapped)

    def __array__(self, dtype=None, copy=None):
        raise AssertionError(f"{self.label} was turned into an array, all {len(self.wrapped)} blocks of it, expected "
                             f"reads of {self.label}[block_id]: the running softmax never gathers")

    def __getattr__(self, attribute):
        raise AssertionError(f"{self.label}.{attribute} was used, expected only its shape and reads of "
                             f"{self.label}[block_id]: the running softmax never gathers")


@plainest_first
def check_reads(attention, name):
    rng = np.random.default_rng(20)
    for length, num_queries in [(14, 1), (14, 6), (8, 1)]:
        k_pool, v_pool, context = make_request(rng, length, block_size=4)
        queries = rng.normal(size=(num_queries, 4, 4))
        k_spy, v_spy = OneBlockPool(k_pool, "k_pool"), OneBlockPool(v_pool, "v_pool")
        got = attention(queries, k_spy, v_spy, context.table + [0], length)
        for pool_name, spy in (("k_pool", k_spy), ("v_pool", v_spy)):
            read = list(dict.fromkeys(spy.block_ids_read))
            assert sorted(read) == sorted(context.table), \
                f"{name} over {length} tokens read blocks {read} of {pool_name}, expected {context.table}: the " \
                "blocks of the context, and no other block"
        check_close(got, dense_attention(queries, context.keys, context.values),
                    f"{name} of {num_queries} {'query' if num_queries == 1 else 'queries'} with 4 heads over {length} "
                    "tokens of 2 kv heads", "the result must be the same as that of paged_attention")


@pytest.mark.points(3)
def test_task_5_reads_one_block_at_a_time(lab):
    check_reads(lab.paged_attention_online, "paged_attention_online")


@pytest.mark.points(1)
def test_task_5_nothing_is_read_before_the_check(lab):
    rng = np.random.default_rng(23)
    k_pool, v_pool, context = make_request(rng, length=8, block_size=4, num_spare=1)
    k_spy, v_spy = OneBlockPool(k_pool, "k_pool"), OneBlockPool(v_pool, "v_pool")
    table = [context.table[0], 7]
    call = f"paged_attention_online with table {table} and a pool of 4 blocks"
    check_refused(lab.paged_attention_online, (rng.normal(size=(1, 2, 4)), k_spy, v_spy, table, 8), call, "7")
    read = k_spy.block_ids_read + v_spy.block_ids_read
    assert read == [], f"{call} raised ValueError, but had already read blocks {read}, expected none: check first"


@pytest.mark.points(2)
@pytest.mark.inside("memory can be measured only in the process that uses it")
def test_task_5_memory_does_not_grow_with_the_context(lab):
    rng = np.random.default_rng(21)
    num_blocks, block_size = 128, 128
    k_pool, v_pool = rng.normal(size=(2, num_blocks, 1, block_size, 8))
    queries = rng.normal(size=(1, 8, 8))
    table = [int(b) for b in rng.permutation(num_blocks)]
    # The first call is not measured, because numpy allocates some memory only once.
    got = lab.paged_attention_online(queries, k_pool, v_pool, table, 2 * block_size)
    keys, values = (np.concatenate([pool[block_id, 0] for block_id in table[:2]])[:, None] for pool in (k_pool, v_pool))
    check_close(got, dense_attention(queries, keys, values), "paged_attention_online over 2 blocks of 128",
                "the result must be right before its memory is measured")
    short_len, long_len = 2 * block_size, num_blocks * block_size
    short, peak = (peak_bytes(lab.paged_attention_online, queries, k_pool, v_pool, table, context_len)
                   for context_len in (short_len, long_len))
    limit = k_pool.nbytes // 4
    assert peak < limit, f"paged_attention_online over {num_blocks} blocks had {peak:,} bytes in use at its peak, " \
                         f"expected fewer than {limit:,}: the keys alone are {k_pool.nbytes:,} bytes, so do not " \
                         "keep K/V or scores of the whole context"
    limit = 2 * (long_len - short_len)
    assert peak - short < limit, \
        f"paged_attention_online had {short:,} bytes in use at its peak over {short_len} tokens and {peak:,} over " \
        f"{long_len:,} tokens. That is {peak - short:,} more, expected fewer than {limit:,} (2 bytes per token): " \
        "memory must not grow with context_len, so make a mask for one block, not for the whole context"


@pytest.mark.points(3)
def test_task_5_huge_scores_do_not_overflow(lab):
    check_huge_scores(lab.paged_attention_online, "paged_attention_online")


# ---- Task 6: ragged_paged_attention


def make_batch(rng, block_size=4, num_heads=4):
    """Return four requests: a chunk, a decode that shares its first two blocks, a whole prompt, another decode."""
    k_pool, v_pool = empty_pools(num_blocks=24, num_kv_heads=2, block_size=block_size, head_dim=4)
    free_ids = [int(b) for b in rng.permutation(np.arange(1, 24))]

    def new_context(length):
        return make_context(rng, k_pool, v_pool, length, [free_ids.pop() for _ in range(-(-length // block_size))])

    chunk, tail, prompt, other = (new_context(n) for n in (3 * block_size + 1, 2, block_size + 2, 4 * block_size))
    num_shared = 2 * block_size
    decode = Context(np.concatenate([chunk.keys[:num_shared], tail.keys]),
                     np.concatenate([chunk.values[:num_shared], tail.values]), chunk.table[:2] + tail.table)
    contexts, query_lens = [chunk, decode, prompt, other], [block_size + 2, 1, prompt.length, 1]
    queries = rng.normal(size=(sum(query_lens), num_heads, 4))
    return k_pool, v_pool, contexts, query_lens, queries


def dense_batch(contexts, query_lens, queries):
    rows = np.split(queries, np.cumsum(query_lens)[:-1])
    return np.concatenate([dense_attention(q, c.keys, c.values) for q, c in zip(rows, contexts)])


def ragged(lab, queries, k_pool, v_pool, contexts, query_lens):
    return on_frozen("ragged_paged_attention", lab.ragged_paged_attention, queries, k_pool, v_pool,
                     [c.table for c in contexts], query_lens, [c.length for c in contexts])


@pytest.mark.points(4)
def test_task_6_prefill_and_decode_in_one_batch(lab):
    rng = np.random.default_rng(30)
    for block_size in (1, 4, 5):
        k_pool, v_pool, contexts, query_lens, queries = make_batch(rng, block_size)
        got = ragged(lab, queries, k_pool, v_pool, contexts, query_lens)
        check_close(got, dense_batch(contexts, query_lens, queries),
                    f"ragged_paged_attention with query_lens {query_lens}, context_lens "
                    f"{[c.length for c in contexts]} and block_size {block_size}",
                    "request r owns the next query_lens[r] rows; use its table and its context_len for these rows")
    queries = queries.astype(np.float32)
    got = ragged(lab, queries, k_pool, v_pool, contexts, query_lens)
    check_close(got, dense_batch(contexts, query_lens, queries),
                f"ragged_paged_attention of float32 queries with query_lens {query_lens}",
                "compute in float64 and return float64, whatever the type of the queries is")


@pytest.mark.points(2)
def test_task_6_the_order_of_requests_does_not_show(lab):
    rng = np.random.default_rng(31)
    k_pool, v_pool, contexts, query_lens, queries = make_batch(rng)
    rows = np.split(queries, np.cumsum(query_lens)[:-1])
    for order in ([3, 2, 1, 0], [1, 3, 0, 2], [2]):
        got = ragged(lab, np.concatenate([rows[r] for r in order]), k_pool, v_pool, [contexts[r] for r in order],
                     [query_lens[r] for r in order])
        expected = np.concatenate([dense_attention(rows[r], contexts[r].keys, contexts[r].values) for r in order])
        check_close(got, expected, f"ragged_paged_attention of requests {order} of the batch",
                    "a request's result must not depend on the other requests in the batch, or on their order")


@pytest.mark.points(2)
def test_task_6_sharing_is_by_table_only(lab):
    """Check two samples of one prompt, which share all full blocks and have one private block each."""
    rng = np.random.default_rng(32)
    k_pool, v_pool = empty_pools(num_blocks=8, num_kv_heads=2, block_size=4, head_dim=4)
    prompt = make_context(rng, k_pool, v_pool, 8, [6, 3])
    tails = [make_context(rng, k_pool, v_pool, 3, [5]), make_context(rng, k_pool, v_pool, 1, [1])]
    contexts = [Context(np.concatenate([prompt.keys, tail.keys]), np.concatenate([prompt.values, tail.values]),
                        prompt.table + tail.table) for tail in tails]
    queries = rng.normal(size=(2, 4, 4))
    for padding in ([], [0, 0]):
        tables = [c.table + padding for c in contexts]
        call = f"ragged_paged_attention with tables {tables[0]} and {tables[1]}"
        got = must_answer(call, lab.ragged_paged_attention, queries, k_pool, v_pool, tables, [1, 1],
                          [c.length for c in contexts],
                          rule="two tables may contain the same block, and entries after the context are padding")
        check_close(got, dense_batch(contexts, [1, 1], queries), call,
                    "both requests share blocks 6 and 3, and each request sees only its own last block")


@pytest.mark.points(1)
def test_task_6_an_empty_batch(lab):
    k_pool, v_pool = empty_pools(num_blocks=3, num_kv_heads=2, block_size=4, head_dim=4)
    got = lab.ragged_paged_attention(np.zeros((0, 4, 4)), k_pool, v_pool, [], [], [])
    assert np.shape(got) == (0, 4, 4), f"ragged_paged_attention without requests has shape {np.shape(got)}, expected " \
                                       "(0, 4, 4): the result has the shape of queries"


@pytest.mark.points(2)
def test_task_6_lengths_that_disagree_are_refused(lab):
    rng = np.random.default_rng(33)
    k_pool, v_pool, contexts, query_lens, queries = make_batch(rng)
    tables, lengths = [c.table for c in contexts], [c.length for c in contexts]
    num_rows = len(queries)
    for what, args, *named in [
            (f"no tables, no lengths and {num_rows} rows", ([], [], []), "0", str(num_rows)),
            ("no tables for 4 query_lens", ([], query_lens, [])),
            ("3 tables for 4 requests", (tables[:3], query_lens, lengths)),
            ("5 context_lens for 4 requests", (tables, query_lens, lengths + [1])),
            ("one query row too few", (tables, query_lens[:3] + [2], lengths), str(num_rows), str(num_rows + 1)),
            ("one query row too many", (tables[:3], query_lens[:3], lengths[:3]), str(num_rows), str(num_rows - 1)),
            ("a query_len of -1", (tables, [query_lens[0], -1, query_lens[2], 3], lengths), "-1"),
            ("a query_len of 0", (tables, [query_lens[0], 0, query_lens[2], 2], lengths), "0"),
            ("a decode over 17 tokens in 4 blocks of 4", (tables, query_lens, [*lengths[:3], 17]), "17"),
            ("more queries than context", (tables, query_lens, [*lengths[:2], query_lens[2] - 1, lengths[3]]))]:
        check_refused(lab.ragged_paged_attention, (queries, k_pool, v_pool, *args),
                      f"ragged_paged_attention with {what}", *named)
    check_refused(lab.ragged_paged_attention, (queries[:0], k_pool, v_pool, tables[:1], [], []),
                  "ragged_paged_attention with no rows, one table, no query_lens and no context_lens")
