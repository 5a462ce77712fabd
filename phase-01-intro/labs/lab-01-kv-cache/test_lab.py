"""Tests of lab 1.1: attention, a KV cache, the work that the cache saves and the bytes that it costs."""

import contextlib
import math
import numbers
import re
import types

import numpy as np
import pytest

from course.gauges import shares_memory

PROMPT = [3, 1, 4, 1, 5]


@contextlib.contextmanager
def must_refuse(call, given=None):
    """Require that the block raises ValueError, and yield an object that will hold the message.

    A body that is not written yet raises NotImplementedError, which is passed on. ``call`` describes the call in
    messages. ``given`` names the given check that raises the error if the student calls it.
    """
    refused = types.SimpleNamespace(message=None)
    if_called = f": call {given}, which raises it" if given else ""
    try:
        yield refused
    except NotImplementedError:
        raise
    except ValueError as error:
        refused.message = str(error)
        return
    except Exception as other:
        pytest.fail(f"{call} raised {other!r}, expected a ValueError" + if_called, pytrace=False)
    pytest.fail(f"{call} raised nothing, expected a ValueError" + if_called, pytrace=False)


def numbers_in(message):
    return [int(number) for number in re.findall(r"-?\d+", message)]


def small_shape(lab):
    return lab.ModelShape(num_layers=3, num_heads=4, head_dim=8, ffn_dim=48, vocab_size=97)


def small_model(lab, seed=0):
    return lab.TinyDecoder(small_shape(lab), seed=seed)


def small_cache(lab, capacity=64):
    shape = small_shape(lab)
    return lab.KVCache(shape.num_layers, capacity, shape.num_heads, shape.head_dim)


def random_qkv(num_queries, num_keys, num_heads=2, head_dim=4, seed=0):
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(num_queries, num_heads, head_dim))
    keys, values = rng.normal(size=(2, num_keys, num_heads, head_dim))
    return queries, keys, values


def attention_in_slow_motion(queries, keys, values):
    """Compute attention for one query, one head and one key at a time: slow, but hard to get wrong."""
    num_queries, num_heads, head_dim = queries.shape
    out = np.zeros_like(queries)
    for i in range(num_queries):
        num_visible = len(keys) - num_queries + i + 1
        for h in range(num_heads):
            scores = [float(queries[i, h] @ keys[j, h]) / math.sqrt(head_dim) for j in range(num_visible)]
            weights = [math.exp(score - max(scores)) for score in scores]
            for weight, value in zip(weights, values[:num_visible, h]):
                out[i, h] += weight / sum(weights) * value
    return out


def is_close(got, expected, atol=1e-8):
    """Check that both have the same shape and close numbers. (For numpy, an empty array is close to any number.)"""
    return np.shape(got) == np.shape(expected) and np.allclose(got, expected, atol=atol)


def largest_difference(got, expected):
    return np.abs(got - expected).max() if np.shape(got) == np.shape(expected) else np.inf


def check_attends(got, queries, keys, values):
    """Check the result against the slow version. Tests call this before they check anything else."""
    assert is_close(got, attention_in_slow_motion(queries, keys, values)), \
        f"causal_attention of {len(queries)} queries over {len(keys)} keys is off by " \
        f"{largest_difference(got, attention_in_slow_motion(queries, keys, values)):.1g}: per head, weights = " \
        "softmax(q . k / sqrt(head_dim)) over the keys that the query sees, then the weighted sum of the values"


def rows(first, count, num_heads=4, head_dim=8):
    """Make ``count`` rows of K or V. Row t is filled with the number first + t, so failure messages are readable."""
    numbers = np.arange(first, first + count, dtype=float)
    return np.broadcast_to(numbers[:, None, None], (count, num_heads, head_dim)).copy()


def row_numbers(array):
    return array[:, 0, 0].tolist()


# ---------------------------------------------------------------------------------------------- Task 1


@pytest.mark.points(2)
def test_task_1_softmax_of_known_scores(lab):
    got = lab.softmax(np.array([0.0, math.log(2.0), math.log(5.0)]))
    assert is_close(got, [1 / 8, 2 / 8, 5 / 8], atol=1e-12), \
        f"softmax([0, ln 2, ln 5]) gave {got}, expected [0.125, 0.25, 0.625]: divide exp(score) by the sum of all exp"
    got = lab.softmax(np.array([4, 4]))
    assert is_close(got, [0.5, 0.5], atol=1e-12), \
        f"softmax([4, 4]) of an array of integers gave {got}, expected [0.5, 0.5]: the weights are floats, even if " \
        "the scores are integers"


@pytest.mark.points(2)
def test_task_1_softmax_works_along_the_last_axis_of_any_array(lab):
    scores = np.random.default_rng(1).normal(size=(2, 2, 3, 5))
    got = lab.softmax(scores)
    assert got.shape == scores.shape, f"softmax of shape {scores.shape} gave shape {got.shape}, expected the same shape"
    assert np.allclose(got.sum(axis=-1), 1.0), \
        f"softmax of shape {scores.shape} gave rows that sum to {got.sum(axis=-1)}, expected 1: each row gets " \
        "a separate softmax"
    assert (got >= 0).all(), f"softmax gave the weight {got.min()}, expected at least 0"
    one_row = lab.softmax(scores[0, 1, 2])
    assert is_close(got[0, 1, 2], one_row), \
        f"softmax gave {got[0, 1, 2]} for row [0, 1, 2], and {one_row} for that row alone: a row must not depend on " \
        "other rows"


@pytest.mark.points(3)
def test_task_1_softmax_does_not_overflow_on_huge_scores(lab):
    with np.errstate(all="ignore"):
        got = lab.softmax(np.array([1e4, 1e4 - math.log(3.0), -1e4]))
    assert is_close(got, [0.75, 0.25, 0.0]), \
        f"softmax([10000, 10000 - ln 3, -10000]) gave {got}, expected [0.75, 0.25, 0]: exp(10000) is inf in float64, " \
        "but adding a constant to all scores of a row does not change its softmax"


@pytest.mark.points(2)
def test_task_1_softmax_rows_of_very_different_size(lab):
    with np.errstate(all="ignore"):
        got = lab.softmax(np.array([[1e4, 1e4], [-1e4, -1e4]]))
    assert np.shape(got) == (2, 2), \
        f"softmax of shape (2, 2) gave shape {np.shape(got)}, expected the same shape"
    assert np.allclose(got, 0.5), \
        f"softmax([[1e4, 1e4], [-1e4, -1e4]]) gave {got.tolist()}, expected 0.5 everywhere: subtract each row's " \
        "own maximum, or the row of small scores becomes 0 / 0"


@pytest.mark.points(2)
def test_task_1_softmax_masked_entries_weigh_nothing_and_the_input_is_kept(lab):
    scores = np.array([[1.0, -np.inf, 1.0], [0.0, -np.inf, -np.inf]])
    before = scores.copy()
    got = lab.softmax(scores)
    assert is_close(got, [[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]), \
        f"softmax([[1, -inf, 1], [0, -inf, -inf]]) gave {got.tolist()}, expected [[0.5, 0, 0.5], [1, 0, 0]]: the " \
        "weight of a score of -inf is 0"
    assert (got[np.isneginf(before)] == 0).all(), \
        f"softmax([[1, -inf, 1], [0, -inf, -inf]]) gave {got.tolist()}, expected exactly 0 where the score is -inf: " \
        "the weight of a masked entry is 0, not a small number"
    assert np.array_equal(scores, before), \
        f"after softmax(scores) the caller's scores are {scores.tolist()}, they were {before.tolist()}: softmax " \
        "must not change its argument"


# ---------------------------------------------------------------------------------------------- Task 2


@pytest.mark.points(3)
def test_task_2_equal_scores_give_the_mean_of_the_visible_values(lab):
    queries, keys, values = np.zeros((4, 2, 5)), random_qkv(4, 4, head_dim=5)[1], rows(0, 4, num_heads=2, head_dim=5)
    got = row_numbers(lab.causal_attention(queries, keys, values))
    assert is_close(got, [0.0, 0.5, 1.0, 1.5]), \
        f"causal_attention with queries of 0 and values 0, 1, 2, 3 gave {got}, expected the running means [0, 0.5, " \
        "1, 1.5]: query i sees the values 0 up to and including i, and equal scores get equal weights"


@pytest.mark.points(4)
def test_task_2_a_chunk_is_the_tail_of_the_whole(lab):
    queries, keys, values = random_qkv(8, 8)
    whole = lab.causal_attention(queries, keys, values)
    check_attends(whole, queries, keys, values)
    for num_queries in (2, 1, 7):
        first = 8 - num_queries
        error = largest_difference(lab.causal_attention(queries[first:], keys, values), whole[first:])
        assert error < 1e-9, \
            f"causal_attention of the last {num_queries} queries of a text of 8 differs from the same rows of the " \
            f"whole text by {error:.2g}, expected 0: the last query belongs to the last key, so query 0 of " \
            f"{num_queries} is at position {first}"


@pytest.mark.points(4)
def test_task_2_agrees_with_attention_in_slow_motion(lab):
    for num_queries, num_keys in [(1, 1), (6, 6), (2, 7), (1, 9)]:
        queries, keys, values = random_qkv(num_queries, num_keys, num_heads=3, head_dim=5, seed=num_keys)
        expected = attention_in_slow_motion(queries, keys, values)
        got = lab.causal_attention(queries, keys, values)
        assert got.shape == expected.shape, \
            f"causal_attention of {num_queries} queries over {num_keys} keys has shape {got.shape}, expected " \
            f"{expected.shape}: [num_queries, num_heads, head_dim]"
        error = np.abs(got - expected).max()
        assert error < 1e-9, \
            f"causal_attention of {num_queries} queries over {num_keys} keys is off by {error:.2g}, expected < 1e-9: " \
            "softmax(q . k / sqrt(head_dim)) over the visible keys, then the weighted sum of their values, per head"


@pytest.mark.points(4)
def test_task_2_future_tokens_do_not_influence_earlier_outputs(lab):
    queries, keys, values = random_qkv(6, 6)
    before = lab.causal_attention(queries, keys, values)
    check_attends(before, queries, keys, values)
    changed_keys, changed_values = keys.copy(), values.copy()
    changed_keys[4:] = 1e4 * queries[3]  # query 3 would give these keys all of its weight
    changed_values[4:] = 1e6
    after = lab.causal_attention(queries, changed_keys, changed_values)
    error = largest_difference(after[:4], before[:4])
    assert error < 1e-9, \
        f"changing keys and values 4 and 5 changed the outputs of queries 0 to 3 by {error:.2g}, expected 0: a query " \
        "must not see keys after its own position"


@pytest.mark.points(2)
def test_task_2_a_masked_key_weighs_nothing_however_low_the_other_scores_are(lab):
    queries, keys, values = np.full((2, 1, 4), 1e6), np.full((2, 1, 4), -1e6), rows(7, 2, num_heads=1, head_dim=4)
    got = row_numbers(lab.causal_attention(queries, keys, values))
    assert got == [7.0, 7.5], \
        f"causal_attention with all scores at -2e12 and the values 7 and 8 gave {got}, expected [7, 7.5]: query 0 " \
        "sees only key 0, whatever the score is. A score can be lower than a mask of -1e9, but not lower than -inf"


@pytest.mark.points(1)
def test_task_2_the_arguments_are_not_changed(lab):
    arrays = random_qkv(3, 5)
    before = [array.copy() for array in arrays]
    got = lab.causal_attention(*arrays)
    check_attends(got, *before)
    for name, array, old in zip(("queries", "keys", "values"), arrays, before):
        change = np.abs(array - old).max()
        assert change == 0, \
            f"causal_attention of 3 queries over 5 keys changed its {name} by up to {change:.2g}, expected 0"


@pytest.mark.points(2)
def test_task_2_refuses_shapes_that_do_not_fit(lab):
    queries, keys, values = random_qkv(3, 3)
    lab.causal_attention(queries, keys, values)
    for bad in [(queries, keys[:2], values[:2]), (queries, keys, values[:1]), (queries, keys, values[:, :1]),
                (queries, keys, values[:, :, :3]), (queries[:, :1], keys, values), (queries[:, :, :1], keys, values)]:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in zip(("queries", "keys", "values"), bad))
        with must_refuse(f"causal_attention of the shapes {shapes}", given="check_attention_shapes"):
            lab.causal_attention(*bad)


@pytest.mark.points(1)
def test_task_2_no_queries_are_no_error(lab):
    one = random_qkv(1, 8)
    check_attends(lab.causal_attention(*one), *one)
    queries, keys, values = random_qkv(0, 8)
    try:
        got = lab.causal_attention(queries, keys, values).shape
    except ValueError as error:
        pytest.fail(f"causal_attention of 0 queries over 8 keys raised ValueError: {error}; expected 0 rows",
                    pytrace=False)
    assert got == (0, 2, 4), f"causal_attention of 0 queries over 8 keys has the shape {got}, expected (0, 2, 4)"


# ---------------------------------------------------------------------------------------------- Task 3


@pytest.mark.points(3)
def test_task_3_append_then_get_in_order(lab):
    cache = small_cache(lab, capacity=8)
    cache.append(1, rows(0, 3), rows(100, 3))
    cache.append(1, rows(3, 1), rows(103, 1))
    keys, values = cache.get(1)
    assert (row_numbers(keys), row_numbers(values)) == ([0, 1, 2, 3], [100, 101, 102, 103]), \
        f"after appending tokens 0..2 and then 3 to layer 1, get(1) returns keys {row_numbers(keys)} and values " \
        f"{row_numbers(values)}, expected [0, 1, 2, 3] and [100, 101, 102, 103]: new rows follow the old ones"
    got = len(cache.get(0)[0])
    assert got == 0, f"after appends to layer 1, get(0) returns {got} rows, expected 0: every layer has its own rows"


@pytest.mark.points(2)
def test_task_3_num_tokens_counts_what_every_layer_holds(lab):
    cache = small_cache(lab, capacity=8)
    assert cache.num_tokens == 0, f"num_tokens of an empty cache is {cache.num_tokens}, expected 0"
    for order in ([0, 1, 2], [2, 1, 0], [0, 2, 1]):
        cache = small_cache(lab, capacity=8)
        for layer, expected in zip(order, [0, 0, 2]):
            cache.append(layer, rows(0, 2), rows(0, 2))
            got = cache.num_tokens
            assert got == expected, \
                f"2 tokens were appended to each of 3 layers, in the order {order}: num_tokens after the append to " \
                f"layer {layer} is {got}, expected {expected}: a token counts as soon as every layer holds it"


@pytest.mark.points(3)
def test_task_3_the_cache_keeps_copies(lab):
    cache = small_cache(lab, capacity=4)
    keys, values = rows(0, 4), rows(100, 4)
    cache.append(0, keys, values)
    keys[:] = values[:] = -1.0
    got = tuple(row_numbers(array) for array in cache.get(0))
    assert got == ([0, 1, 2, 3], [100, 101, 102, 103]), \
        f"after append(0, keys, values) the test overwrote keys and values, and the cache became {got}: the cache " \
        "must hold copies, not the caller's arrays"


@pytest.mark.points(2)
def test_task_3_get_copies_nothing(lab):
    cache = small_cache(lab, capacity=8)
    cache.append(0, rows(0, 3), rows(100, 3))
    before = cache.get(0)
    got = [row_numbers(part) for part in before]
    assert got == [[0, 1, 2], [100, 101, 102]], \
        f"after append of the keys 0, 1, 2 and the values 100, 101, 102, get(0) returned {got}, expected exactly these"
    cache.append(0, rows(3, 2), rows(103, 2))
    after = cache.get(0)
    for name, old, new in zip(("keys", "values"), before, after):
        assert shares_memory(old, new), \
            f"two get(0) calls returned {name} in different memory, expected slices of the same storage: a step must " \
            "not copy the whole cache"


@pytest.mark.points(2)
def test_task_3_the_last_slot_can_be_used(lab):
    cache = small_cache(lab, capacity=4)
    try:
        cache.append(0, rows(0, 3), rows(100, 3))
        cache.append(0, rows(3, 1), rows(103, 1))
    except ValueError as error:
        pytest.fail(f"append of 3 tokens and then of 1 to a capacity of 4 raised ValueError: {error}; a cache may hold "
                    "exactly as many tokens as its capacity")
    got = len(cache.get(0)[0])
    assert got == 4, f"get(0) returned {got} rows after 3 + 1 appended tokens, expected 4"


@pytest.mark.points(3)
def test_task_3_append_beyond_capacity_changes_nothing(lab):
    cache = small_cache(lab, capacity=4)
    cache.append(0, rows(0, 3), rows(100, 3))
    with must_refuse("append of 2 tokens to a layer that holds 3 of 4") as refused:
        cache.append(0, rows(3, 2), rows(103, 2))
    assert {4, 5} <= set(numbers_in(refused.message)), \
        f"append of 2 tokens to a layer that holds 3 of 4 raised ValueError({refused.message!r}); the message must " \
        "contain the number of tokens that the layer would hold (5) and the capacity (4)"
    got = tuple(row_numbers(array) for array in cache.get(0))
    assert got == ([0, 1, 2], [100, 101, 102]), \
        f"after an append that raised, get(0) returned {got}, expected ([0, 1, 2], [100, 101, 102]): check first, " \
        "then change"
    got = tuple(row_numbers(storage[0]) for storage in (cache.keys, cache.values))
    assert got == ([0, 1, 2, 0], [100, 101, 102, 0]), \
        f"after an append that raised, cache.keys[0] and cache.values[0] hold {got}, expected ([0, 1, 2, 0], [100, " \
        "101, 102, 0]): do not write any of the rows, not even those that would fit"
    cache.append(0, rows(3, 1), rows(103, 1))
    got = row_numbers(cache.get(0)[0])
    assert got == [0, 1, 2, 3], f"append of 1 token after one that raised: the keys are {got}, expected [0, 1, 2, 3]"


@pytest.mark.points(2)
def test_task_3_append_refuses_shapes_that_do_not_fit(lab):
    cache = small_cache(lab, capacity=8)
    cache.append(0, rows(0, 1), rows(100, 1))
    for keys, values in [(rows(1, 3), rows(101, 1)), (rows(1, 1), rows(101, 3)), (rows(1, 2, head_dim=1), rows(101, 2)),
                         (rows(1, 2), rows(101, 2, num_heads=1)), (rows(1, 2), rows(101, 2, head_dim=1)),
                         (rows(1, 2, num_heads=1), rows(101, 2, num_heads=1)),
                         (np.zeros(8), np.zeros(8)), (np.zeros((4, 8)), np.zeros((4, 8)))]:
        call = f"append(0, keys, values) of the shapes {keys.shape} and {values.shape} to a cache of 4 heads of size 8"
        with must_refuse(call, given="check_new_rows"):
            cache.append(0, keys, values)
        got = tuple(row_numbers(array) for array in cache.get(0))
        assert got == ([0], [100]), \
            f"{call} raised, as it should, but get(0) returned {got}, expected ([0], [100]): nothing may change"
        got = tuple(row_numbers(storage[0]) for storage in (cache.keys, cache.values))
        assert got == ([0] * 8, [100] + [0] * 7), \
            f"{call} raised, as it should, but cache.keys[0] and cache.values[0] hold {got}, expected 100 in the " \
            "first row of the values and 0 in all others: check both shapes before the first write"


@pytest.mark.points(1)
def test_task_3_no_rows_are_no_error(lab):
    cache = small_cache(lab, capacity=2)
    cache.append(0, rows(0, 2), rows(100, 2))
    for layer, expected in ((0, ([0, 1], [100, 101])), (1, ([], []))):
        call = f"append({layer}, keys, values) of 0 rows to a layer that holds {len(expected[0])} of 2 tokens"
        try:
            cache.append(layer, rows(2, 0), rows(102, 0))
        except ValueError as error:
            pytest.fail(f"{call} raised ValueError: {error}; num_new may be 0", pytrace=False)
        got = tuple(row_numbers(array) for array in cache.get(layer))
        assert got == expected, f"after {call}, get({layer}) returned {got}, expected {expected}"


@pytest.mark.points(4)
def test_task_3_keys_and_values_of_earlier_tokens_never_change(lab):
    short, long = small_cache(lab), small_cache(lab)
    small_model(lab).forward(list(PROMPT), short)
    small_model(lab).forward([*PROMPT, 9, 2, 6], long)
    for layer in range(3):  # small_shape has 3 layers
        got = [[len(part) for part in cache.get(layer)] for cache in (short, long)]
        assert got == [[5, 5], [8, 8]], \
            f"after a forward call with 5 tokens and another with 8, each with its own cache, layer {layer} holds " \
            f"{got} keys and values, expected [[5, 5], [8, 8]]"
        for name, few, many in zip(("keys", "values"), short.get(layer), long.get(layer)):
            error = largest_difference(many[:5], few)
            assert error < 1e-9, \
                f"in layer {layer} the {name} of the first 5 tokens differ by {error:.2g} between a text of 5 and " \
                "the same text with 3 more tokens, expected 0: under a causal mask a token does not see later " \
                "tokens in any layer, and that is why K and V can be kept"


@pytest.mark.points(3)
def test_task_3_a_prompt_in_chunks_gives_the_same_logits(lab):
    text = [*PROMPT, 9, 2, 6]
    whole = small_model(lab).forward(text)
    assert np.shape(whole) == (97,), f"forward gave logits of shape {np.shape(whole)}, expected (97,), the vocabulary"
    for cuts in ([8], [5, 3], [1, 1, 6], [3, 4, 1]):
        model, cache, start = small_model(lab), small_cache(lab, capacity=8), 0
        for num_tokens in cuts:
            logits = model.forward(text[start:start + num_tokens], cache)
            start += num_tokens
        error = largest_difference(logits, whole)
        assert error < 1e-9, \
            f"8 tokens, sent through the cache in chunks of {cuts}, give logits that are off by {error:.2g}, " \
            "expected < 1e-9: the logits must not depend on how the text is cut"


# ---------------------------------------------------------------------------------------------- Task 4


@pytest.mark.points(3)
def test_task_4_without_cache_every_step_sends_the_whole_text(lab):
    model, prompt = small_model(lab), list(PROMPT)
    result = lab.decode_without_cache(model, prompt, 4)
    assert model.forward_lengths == [5, 6, 7, 8], \
        f"decode_without_cache of 4 tokens after a prompt of 5 sent {model.forward_lengths} tokens, expected [5, 6, " \
        "7, 8]: each step sends the prompt and all new tokens so far"
    assert prompt == PROMPT, f"decode_without_cache changed the caller's prompt to {prompt}, it was {PROMPT}"
    for step in range(4):
        expected = small_model(lab).forward([*PROMPT, *result.token_ids[:step]])
        error = largest_difference(result.logits[step], expected)
        assert error < 1e-9, \
            f"decode_without_cache of 4 tokens after a prompt of 5: row {step} of the logits differs by {error:.2g} " \
            f"from the model's logits after the prompt and {step} new tokens, expected < 1e-9"
        assert result.token_ids[step] == int(np.argmax(expected)), \
            f"token {step} is {result.token_ids[step]}, expected {int(np.argmax(expected))}, the argmax"


@pytest.mark.points(5)
def test_task_4_with_cache_gives_the_same_tokens_and_logits(lab):
    for seed in range(4):
        plain = lab.decode_without_cache(small_model(lab, seed), list(PROMPT), 12)
        cached = lab.decode_with_cache(small_model(lab, seed), list(PROMPT), 12, small_cache(lab))
        assert cached.token_ids == plain.token_ids, \
            f"model {seed}: decode_with_cache emitted {cached.token_ids}, decode_without_cache {plain.token_ids}: a " \
            "cache must not change the answer"
        error = largest_difference(cached.logits, plain.logits)
        assert error < 1e-9, f"model {seed}: the logits with and without a cache differ by {error:.2g}, expected < 1e-9"
        for name, result in (("decode_without_cache", plain), ("decode_with_cache", cached)):
            kinds = {type(token_id).__name__ for token_id in result.token_ids}
            assert kinds == {"int"}, f"{name} emitted token ids of type {sorted(kinds)}, expected plain int: " \
                                     "np.argmax returns an np.int64, which json cannot write"


@pytest.mark.points(4)
def test_task_4_with_cache_every_token_is_sent_once(lab):
    model, prompt, cache = small_model(lab), list(PROMPT), small_cache(lab)
    lab.decode_with_cache(model, prompt, 4, cache)
    assert model.forward_lengths == [5, 1, 1, 1], \
        f"decode_with_cache of 4 tokens after a prompt of 5 sent {model.forward_lengths} tokens, expected [5, 1, 1, " \
        "1]: the prompt in one call, then one token per call; the last emitted token is never sent"
    assert cache.num_tokens == 8, \
        f"decode_with_cache of 4 tokens after a prompt of 5 left {cache.num_tokens} tokens in the cache, expected 8 " \
        "= 5 + 4 - 1"
    assert prompt == PROMPT, f"decode_with_cache changed the caller's prompt to {prompt}, it was {PROMPT}"


@pytest.mark.points(2)
def test_task_4_a_prompt_of_one_token(lab):
    plain = lab.decode_without_cache(small_model(lab), (7,), 6)
    model = small_model(lab)
    cached = lab.decode_with_cache(model, (7,), 6, small_cache(lab))
    assert cached.token_ids == plain.token_ids and len(plain.token_ids) == 6, \
        f"6 tokens after the prompt (7,): with a cache {cached.token_ids}, without {plain.token_ids}; expected the " \
        "same 6 tokens"
    assert model.forward_lengths == [1] * 6, \
        f"decode_with_cache of 6 tokens after a prompt of 1 sent {model.forward_lengths} tokens, expected 1 in each " \
        "of 6 calls"


@pytest.mark.points(2)
def test_task_4_zero_new_tokens_cost_nothing(lab):
    model, cache, large = small_model(lab), small_cache(lab, capacity=0), small_cache(lab)
    for call, decode in (
            ("decode_without_cache of 0 tokens", lambda: lab.decode_without_cache(model, list(PROMPT), 0)),
            ("decode_with_cache of 0 tokens and a cache of capacity 0",
             lambda: lab.decode_with_cache(model, list(PROMPT), 0, cache)),
            ("decode_with_cache of 0 tokens and a cache of capacity 64",
             lambda: lab.decode_with_cache(model, list(PROMPT), 0, large))):
        try:
            result = decode()
        except ValueError as error:
            pytest.fail(f"{call} raised ValueError: {error}; 0 new tokens need no forward call and no slot",
                        pytrace=False)
        assert result.token_ids == [] and result.logits.shape == (0, 97), \
            f"{call} gave {result.token_ids} and logits of shape {result.logits.shape}, expected [] and (0, 97)"
    left = max(cache.num_tokens, large.num_tokens)
    assert model.forward_lengths == [] and left == 0, \
        f"decoding 0 tokens made forward calls of {model.forward_lengths} tokens and left {left} tokens in the " \
        "cache, expected no call and an empty cache"


@pytest.mark.points(2)
def test_task_4_a_cache_of_exactly_the_right_size_is_enough(lab):
    cache = small_cache(lab, capacity=8)
    try:
        result = lab.decode_with_cache(small_model(lab), list(PROMPT), 4, cache)
    except ValueError as error:
        pytest.fail(f"decode_with_cache of 4 tokens after a prompt of 5, capacity 8, raised ValueError: {error}; 5 + 4 "
                    "- 1 slots are enough, because the last token is never sent")
    assert len(result.token_ids) == 4, f"decode_with_cache of 4 tokens emitted {len(result.token_ids)} tokens"


@pytest.mark.points(3)
def test_task_4_bad_requests_are_refused_before_any_work(lab):
    used, torn = small_cache(lab), [small_cache(lab) for _ in range(3)]
    lab.decode_with_cache(small_model(lab), list(PROMPT), 1, used)
    for layer in range(3):
        torn[layer].append(layer, rows(0, 2), rows(0, 2))
    for prompt, num_new_tokens, cache in [([], 3, small_cache(lab)), ([], 0, small_cache(lab)),
                                          (list(PROMPT), -1, small_cache(lab)), (list(PROMPT), 4, small_cache(lab, 7)),
                                          (list(PROMPT), 4, used), (list(PROMPT), 0, used),
                                          *((list(PROMPT), 4, each) for each in torn)]:
        model, before = small_model(lab), list(cache.lengths)
        call = f"decode_with_cache(model, {prompt}, {num_new_tokens}, a cache of capacity {cache.capacity} whose " \
               f"layers hold {before} tokens)"
        with must_refuse(call):
            lab.decode_with_cache(model, prompt, num_new_tokens, cache)
        assert model.forward_lengths == [] and cache.lengths == before, \
            f"{call} raised, as it should, but it had made forward calls of {model.forward_lengths} tokens, and the " \
            f"layers hold {cache.lengths} tokens now: check first, then change"
    for prompt, num_new_tokens in [([], 3), ([], 0), (list(PROMPT), -1)]:
        model, call = small_model(lab), f"decode_without_cache(model, {prompt}, {num_new_tokens})"
        with must_refuse(call, given="check_decode_request"):
            lab.decode_without_cache(model, prompt, num_new_tokens)
        assert model.forward_lengths == [], \
            f"{call} raised, as it should, but it had made forward calls of {model.forward_lengths} tokens: check first"


@pytest.mark.points(1)
def test_task_4_a_cache_that_is_too_small_is_told_both_numbers(lab):
    call = "decode_with_cache of 9 tokens after a prompt of 5, capacity 11,"
    with must_refuse(call) as refused:
        lab.decode_with_cache(small_model(lab), list(PROMPT), 9, small_cache(lab, 11))
    assert {13, 11} <= set(numbers_in(refused.message)), \
        f"{call} raised ValueError({refused.message!r}); the message must contain the number of slots needed (13) " \
        "and the capacity (11)"


# ---------------------------------------------------------------------------------------------- Task 5


def as_pair(counts):
    pair = (counts.linear, counts.attention)
    assert all(isinstance(each, numbers.Integral) for each in pair), f"the counts are {pair}, expected whole numbers"
    return pair


def why_off(got, counted, shape, sent):
    """Say which of the two numbers is wrong, and help to find out why. ``sent`` says which tokens the steps send."""
    width = shape.width
    if got.attention != counted.attention:
        return f"the attention part is off by {got.attention - counted.attention}: the steps send {sent}"
    return (f"the attention part is right, the linear part is off by {got.linear - counted.linear}: the steps send "
            f"{sent}. Which matrices does a token go through, and to how many tokens of a call is the head applied? "
            f"(width × width is {width * width}, width × ffn_dim {width * shape.ffn_dim}, width × vocab_size "
            f"{width * shape.vocab_size}; {shape.num_layers} layers)")


@pytest.mark.points(4)
def test_task_5_formula_without_cache_equals_the_counter(lab):
    for num_prompt, num_new in [(1, 1), (5, 1), (1, 7), (4, 9)]:
        model = small_model(lab)
        lab.decode_without_cache(model, list(range(num_prompt)), num_new)
        got = lab.multiply_adds_without_cache(model.shape, num_prompt, num_new)
        assert as_pair(got) == as_pair(model.counts), \
            f"multiply_adds_without_cache for {num_prompt} + {num_new} tokens gave (linear, attention) = " \
            f"{as_pair(got)}, the model counted {as_pair(model.counts)}: " \
            + why_off(got, model.counts, model.shape, f"{num_prompt} up to {num_prompt + num_new - 1} tokens")


@pytest.mark.points(4)
def test_task_5_formula_with_cache_equals_the_counter(lab):
    for num_prompt, num_new in [(1, 1), (5, 1), (1, 7), (4, 9)]:
        model = small_model(lab)
        lab.decode_with_cache(model, list(range(num_prompt)), num_new, small_cache(lab))
        got = lab.multiply_adds_with_cache(model.shape, num_prompt, num_new)
        assert as_pair(got) == as_pair(model.counts), \
            f"multiply_adds_with_cache for {num_prompt} + {num_new} tokens gave (linear, attention) = " \
            f"{as_pair(got)}, the model counted {as_pair(model.counts)}: " \
            + why_off(got, model.counts, model.shape, f"{num_prompt} tokens once and then 1 token {num_new - 1} "
                      "times, and compare them with all keys so far")


@pytest.mark.points(1)
def test_task_5_zero_new_tokens_cost_zero(lab):
    for name in ("multiply_adds_without_cache", "multiply_adds_with_cache"):
        first = getattr(lab, name)(small_shape(lab), 5, 1)
        before, got = as_pair(first), getattr(lab, name)(small_shape(lab), 5, 0)
        assert as_pair(first) == before, \
            f"{name}(shape, 5, 1) gave {before}; after a second call that first result is {as_pair(first)}: each " \
            "call must return a new object"
        assert as_pair(got) == (0, 0), \
            f"{name}(shape, 5, 0) gave (linear, attention) = {as_pair(got)}, expected (0, 0): no token is decoded"


def why_wrong(numbers, small_call, small, small_expected):
    """Explain why large numbers are wrong: their type, their size, or a mistake that small numbers also show."""
    kinds = sorted({type(number).__name__ for number in numbers if type(number) is not int})
    if kinds:
        return f"the type is {' and '.join(kinds)}, expected int. A float has 53 bits: use // instead of /"
    if small == small_expected:
        return (f"{small_call} is right, so the size of the numbers is the problem. A Python int is exact at any size, "
                "but a float has only 53 bits (use //), and a numpy integer 64")
    return f"{small_call} is also wrong: it gave {small}, expected {small_expected}"


@pytest.mark.points(2)
def test_task_5_formulas_stay_exact_at_real_sizes(lab):
    shape = lab.ModelShape(num_layers=3, num_heads=7, head_dim=11, ffn_dim=13, vocab_size=17)
    for name, num_pairs, num_pairs_of_3 in (("without", 41_667_041_667_750_001, 14), ("with", 125_000_750_001, 6)):
        formula = getattr(lab, f"multiply_adds_{name}_cache")
        got, small = formula(shape, 1, 500_001).attention, formula(shape, 1, 3).attention
        expected, small_expected = (3 * 2 * 77 * number for number in (num_pairs, num_pairs_of_3))
        assert got == expected and type(got) is int, \
            f"the attention part of multiply_adds_{name}_cache for 1 + 500,001 tokens is {got!r}, expected " \
            f"{expected}; " \
            + why_wrong([got], "the same call for 1 + 3 tokens", small, small_expected)


@pytest.mark.points(2)
def test_task_5_formulas_stay_exact_after_a_very_long_prompt(lab):
    shape = lab.ModelShape(num_layers=1, num_heads=1, head_dim=1, ffn_dim=1, vocab_size=1)
    for name in ("without", "with"):
        pairs = []
        for num_prompt in (10**10 + 1, 2):
            num_keys = range(num_prompt, num_prompt + 3)
            sent = num_keys if name == "without" else [num_prompt, 1, 1]
            pairs += [as_pair(getattr(lab, f"multiply_adds_{name}_cache")(shape, num_prompt, 3)),
                      (6 * sum(sent) + 3, 2 * sum(a * b for a, b in zip(sent, num_keys)))]
        got, expected, small, small_expected = pairs
        assert got == expected and all(type(number) is int for number in got), \
            f"multiply_adds_{name}_cache for {10**10 + 1} + 3 tokens, with all sizes of the shape 1, gave (linear, " \
            f"attention) = {got}, expected {expected}; " \
            + why_wrong(got, "the same call for 2 + 3 tokens", small, small_expected)


@pytest.mark.points(3)
def test_task_5_growth_when_the_output_doubles(lab):
    shape = lab.ModelShape(num_layers=2, num_heads=4, head_dim=16, ffn_dim=256, vocab_size=1)
    for name, part, expected in [("multiply_adds_without_cache", "linear", 4),
                                 ("multiply_adds_with_cache", "linear", 2),
                                 ("multiply_adds_without_cache", "attention", 8),
                                 ("multiply_adds_with_cache", "attention", 4)]:
        formula = getattr(lab, name)
        growth = getattr(formula(shape, 1, 8000), part) / getattr(formula(shape, 1, 4000), part)
        assert growth == pytest.approx(expected, rel=0.01), \
            f"from 4000 to 8000 new tokens the {part} part of {name} grew by a factor of {growth:.2f}, expected " \
            f"{expected}: summed over n steps, the cost grows like n, n^2 or n^3"


# ---------------------------------------------------------------------------------------------- Task 6


@pytest.mark.points(3)
def test_task_6_bytes_per_token_of_real_models(lab):
    for name, kib in [("Llama-2-7B", 512), ("Llama-3-8B", 128), ("Qwen3-0.6B", 112), ("SmolLM2-135M", 22.5)]:
        shape = lab.REAL_SHAPES[name]
        got = lab.kv_bytes_per_token(shape.num_layers, shape.num_kv_heads, shape.head_dim, 2)
        assert got == kib * 1024, \
            f"kv_bytes_per_token of {name} in 16-bit floats gave {got} bytes, expected {kib} KiB = " \
            f"{int(kib * 1024)}: a key and a value per KV head, in every layer"


@pytest.mark.points(2)
def test_task_6_every_argument_counts_once(lab):
    got = lab.kv_bytes_per_token(num_layers=3, num_kv_heads=5, head_dim=7, bytes_per_element=4)
    assert got == 840, f"kv_bytes_per_token(3, 5, 7, 4) gave {got}, expected 840 = 2 * 3 * 5 * 7 * 4"


@pytest.mark.points(2)
def test_task_6_impossible_shapes_are_refused(lab):
    good = {"num_layers": 2, "num_kv_heads": 2, "head_dim": 4, "bytes_per_element": 2}
    lab.kv_bytes_per_token(**good)
    for name in good:
        for bad in (0, -3):
            with must_refuse(f"kv_bytes_per_token with {name}={bad}", given="check_at_least") as refused:
                lab.kv_bytes_per_token(**{**good, name: bad})
            assert name in refused.message and bad in numbers_in(refused.message), \
                f"kv_bytes_per_token with {name}={bad} raised ValueError({refused.message!r}), expected a message " \
                "with the argument's name and value"


@pytest.mark.points(2)
def test_task_6_tokens_that_fit_are_whole_tokens(lab):
    for budget, per_token, expected in [(0, 10, 0), (9, 10, 0), (10, 10, 1), (19, 10, 1), (16 * 2**30, 2**19, 32768)]:
        got = lab.num_tokens_that_fit(budget, per_token)
        assert got == expected, \
            f"num_tokens_that_fit({budget}, {per_token}) gave {got}, expected {expected}: count only whole tokens"
    got = lab.num_tokens_that_fit(10**18 - 1, 10)
    assert got == 10**17 - 1, \
        f"num_tokens_that_fit({10**18 - 1}, 10) gave {got}, expected {10**17 - 1}; small numbers are right: a / " \
        "b is a float with 53 bits, a // b is exact"
    for budget, per_token, name, bad in [(-7, 10, "budget_bytes", -7), (10, 0, "bytes_per_token", 0),
                                         (10, -3, "bytes_per_token", -3)]:
        with must_refuse(f"num_tokens_that_fit({budget}, {per_token})", given="check_at_least") as refused:
            lab.num_tokens_that_fit(budget, per_token)
        assert name in refused.message and bad in numbers_in(refused.message), \
            f"num_tokens_that_fit({budget}, {per_token}) raised ValueError({refused.message!r}), expected a message " \
            f"with the argument's name, {name}, and its value"
