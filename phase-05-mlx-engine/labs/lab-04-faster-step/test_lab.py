"""Graded tests of lab 5.4. They compare attention with a loop in numpy, and a step with the dense model: the same
weights, one request, all its tokens at once, plain causal attention, no cache.

A ``Driver`` builds the network and the runner where the file under test runs, so that the runner has real arrays in the
grader's sandbox, too. The tests of tasks 3 and 4 do not use the functions of tasks 1 and 2. The last test lets the
runner compute the steps of the comparison next to the reference; its ratio of CPU times gives no points.
"""

from __future__ import annotations

import numpy as np
import pytest

from course.faster_step.driver import make_driver
from course.faster_step.race import ratio_of
from mini_vllm.backend import mx
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.random_model import random_weights
from mini_vllm.models.weights import make_model

ATOL = 2e-5
#: The tolerance for logits, which are up to about 6 in size. The order of additions may differ in every layer.
LOGITS_ATOL = 2e-4


def check_array(got, expected, dtype, call, rule, atol=0.0):
    """Check an array's type, shape and content, and name the first wrong number."""
    assert getattr(got, "dtype", None) == dtype, \
        f"{call} is of type {getattr(got, 'dtype', type(got).__name__)}, expected an mx.array of {dtype}"
    assert tuple(got.shape) == expected.shape, f"{call} has the shape {tuple(got.shape)}, expected {expected.shape}"
    found = np.array(got.astype(mx.float32) if dtype == mx.bfloat16 else got)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        wrong = np.argwhere(~((found == expected) | (np.abs(found - expected) < atol)))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise AssertionError(f"{call}: entry {list(place)} is {found[place]}, expected {expected[place]}: {rule}")


# ---- Task 1: where attention finds its keys and values


def check_index(lab, tables, lens, num_both, block_size, expected, rule):
    call = f"gather_index({tables}, {lens}, num_both={num_both}, block_size={block_size})"
    check_array(lab.gather_index(tables, lens, num_both, block_size), np.array(expected), mx.int32, call, rule)


@pytest.mark.points(2)
def test_task_1_each_head_of_each_block_is_a_page(lab):
    check_index(lab, [[3]], [2], 4, 4, [[[12], [13], [14], [15]]], "page = block_id * num_both + head")
    check_index(lab, [[5, 1, 4]], [12], 2, 4, [[[10, 2, 8], [11, 3, 9]]],
                "the pages of one head follow each other, in the order of the table")


@pytest.mark.points(2)
def test_task_1_each_request_has_its_own_table(lab):
    check_index(lab, [[7, 2], [3, 9]], [5, 8], 2, 4, [[[14, 4], [15, 5]], [[6, 18], [7, 19]]],
                "row i is about block_tables[i]")


@pytest.mark.points(2)
def test_task_1_missing_blocks_are_those_of_block_0(lab):
    check_index(lab, [[7, 2], [3]], [5, 2], 2, 4, [[[14, 4], [15, 5]], [[6, 0], [7, 1]]],
                "the second context has one block; the null block, number 0, fills its row")


@pytest.mark.points(2)
def test_task_1_a_table_may_be_longer_than_its_context(lab):
    check_index(lab, [[7, 2, 8, 8], [3, 5, 6]], [8, 4], 2, 4, [[[14, 4], [15, 5]], [[6, 0], [7, 1]]],
                "contexts of 8 and 4 tokens have 2 blocks and 1 block of 4; the rest of a table is not used")


@pytest.mark.points(2)
def test_task_1_random_tables(lab):
    rng = np.random.default_rng(1)
    for block_size, num_both, longest_len in ((1, 2, 5), (4, 4, 20), (16, 8, 80)):
        lens = rng.integers(1, longest_len, 4).tolist()
        tables = [rng.permutation(90)[:-(-n // block_size) + 1].tolist() for n in lens]
        longest = max(-(-n // block_size) for n in lens)
        expected = [[[(table[b] if b < -(-n // block_size) else 0) * num_both + head for b in range(longest)]
                     for head in range(num_both)] for table, n in zip(tables, lens)]
        check_index(lab, tables, lens, num_both, block_size, expected, "see the docstring's list Returns")


# ---- Task 2: what a query sees


def check_mask(lab, lens, num_queries, block_size, seen, window=None, rule=""):
    """Compare with ``seen``: for each request and query, the slots that it sees."""
    num_slots = -(-max(lens) // block_size) * block_size
    expected = np.full((len(lens), num_queries, num_slots), -np.inf, dtype=np.float32)
    for request, of_queries in enumerate(seen):
        for query, slots in enumerate(of_queries):
            expected[request, query, list(slots)] = 0.0
    options = {} if window is None else {"window": window}
    call = f"score_mask({lens}, num_queries={num_queries}, block_size={block_size}" + \
           (")" if window is None else f", window={window})")
    check_array(lab.score_mask(lens, num_queries, block_size, **options), expected, mx.float32, call, rule)


@pytest.mark.points(2)
def test_task_2_one_query_sees_its_whole_context(lab):
    check_mask(lab, [3], 1, 4, [[range(3)]], rule="the query is at position 2 and sees positions 0, 1 and 2")
    check_mask(lab, [8], 1, 4, [[range(8)]], rule="the context fills two blocks of 4")


@pytest.mark.points(2)
def test_task_2_a_chunk_is_causal(lab):
    check_mask(lab, [6], 3, 4, [[range(4), range(5), range(6)]],
               rule="the 3 queries are at positions 3, 4 and 5, and no query sees a later token")
    check_mask(lab, [4], 4, 4, [[range(1), range(2), range(3), range(4)]],
               rule="a whole prompt: query i is at position i")


@pytest.mark.points(2)
def test_task_2_requests_have_lengths_of_their_own(lab):
    check_mask(lab, [9, 4, 1], 1, 4, [[range(9)], [range(4)], [range(1)]],
               rule="there are as many slots as the blocks of the longest context have; the shorter contexts see fewer")


@pytest.mark.points(2)
def test_task_2_a_window_ends_the_view_backwards(lab):
    check_mask(lab, [9, 2], 1, 4, [[range(6, 9)], [range(2)]], window=3,
               rule="with window 3 a query sees 3 slots, itself included; if there are fewer, it sees all")
    check_mask(lab, [6], 2, 4, [[range(4, 5), range(5, 6)][:2]], window=1, rule="with window 1 a query sees itself")


@pytest.mark.points(2)
def test_task_2_random_masks(lab):
    rng = np.random.default_rng(2)
    for num_queries, block_size in ((1, 1), (1, 8), (5, 3)):
        for window in (None, 4):
            lens = (num_queries + rng.integers(0, 20, 4)).tolist()
            first = 0 if window is None else -window
            seen = [[range(max(own + 1 + first, 0) if window else 0, own + 1)
                     for own in range(n - num_queries, n)] for n in lens]
            check_mask(lab, lens, num_queries, block_size, seen, window, "see the docstring's list Returns")


# ---- Task 3: attention in one call


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


def check_attend(lab, lens, tables, num_queries, rule, num_kv_heads=2, num_heads=4, scale=0.4, garbage=30.0,
                 dtype=mx.float32, atol=ATOL):
    """Fill a pool, make index and mask without the lab's functions, and compare ``attend`` with ``dense``."""
    rng, block_size, head_dim, num_both = np.random.default_rng(3), 4, 8, 2 * num_kv_heads
    pool = rng.normal(scale=garbage, size=(30, num_both, block_size, head_dim)).astype(np.float32)
    num_blocks = [-(-n // block_size) for n in lens]
    index = np.zeros((len(lens), num_both, max(num_blocks)), dtype=np.int32)
    mask = np.full((len(lens), num_queries, max(num_blocks) * block_size), -np.inf, dtype=np.float32)
    queries = rng.normal(size=(len(lens), num_queries, num_heads, head_dim)).astype(np.float32)
    expected = np.zeros_like(queries)
    for i, (n, table) in enumerate(zip(lens, tables)):
        keys, values = rng.normal(size=(2, n, num_kv_heads, head_dim)).astype(np.float32)
        for position in range(n):
            pool[table[position // block_size], :, position % block_size] = np.concatenate(
                (keys[position], values[position]))
        expected[i] = dense(queries[i], keys, values, scale)
        for head in range(num_both):
            index[i, head] = head  # the pages of block 0
            index[i, head, :num_blocks[i]] = np.array(table[:num_blocks[i]]) * num_both + head
        for j in range(num_queries):
            mask[i, j, :n - num_queries + j + 1] = 0.0
    got = lab.attend(mx.array(queries).astype(dtype), mx.array(pool).astype(dtype), mx.array(index), mx.array(mask),
                     scale)
    call = f"attend for contexts of {lens} tokens, {num_queries} of them new in each"
    check_array(got, expected, dtype, call, rule, atol)


@pytest.mark.points(3)
def test_task_3_one_query_attends_to_its_context(lab):
    for n, table in ((1, [7]), (4, [7]), (11, [9, 2, 5])):
        check_attend(lab, [n], [table], 1, "the weights are the softmax of the scores, and the result adds up values")


@pytest.mark.points(2)
def test_task_3_several_queries_of_one_request(lab):
    check_attend(lab, [10], [[9, 2, 5]], 4, "each query has its own row of the mask, and its own row of the result")


@pytest.mark.points(3)
def test_task_3_requests_of_different_lengths_in_one_call(lab):
    check_attend(lab, [9, 3, 12, 1], [[9, 2, 5], [3], [6, 8, 1], [4]], 1, "each request gets the same as alone")
    check_attend(lab, [9, 3], [[9, 2, 5], [3]], 3, "each request gets the same as alone")


@pytest.mark.points(2)
def test_task_3_heads_are_grouped_over_kv_heads(lab):
    for num_kv_heads, num_heads in ((2, 2), (1, 4), (2, 6), (3, 6)):
        check_attend(lab, [7, 5], [[3, 8], [6, 2]], 2, f"{num_heads} heads read {num_kv_heads} KV heads: head h reads "
                     f"KV head h // {num_heads // num_kv_heads}; a block holds first the keys, then the values",
                     num_kv_heads, num_heads)


@pytest.mark.points(2)
def test_task_3_scores_are_multiplied_by_the_scale(lab):
    for scale in (0.05, 1.0, 2.0):
        check_attend(lab, [7], [[3, 8]], 2, f"scores are multiplied by scale, {scale}", scale=scale)


@pytest.mark.points(2)
def test_task_3_slots_that_are_not_seen_do_not_matter(lab):
    for garbage in (0.0, 1e4):
        check_attend(lab, [9, 2], [[9, 2, 5], [3]], 1, f"all other slots hold numbers of about {garbage} here: the "
                     "mask makes their weights 0", garbage=garbage)


@pytest.mark.points(1)
def test_task_3_the_result_has_the_type_of_the_queries(lab):
    check_attend(lab, [7, 3], [[3, 8], [4]], 1, "bfloat16 has a precision of 8 bits", dtype=mx.bfloat16, atol=0.06)


# ---- Task 4: the step


SHAPE = dict(model_type="llama", vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5,
             rope_theta=10000.0, tie_word_embeddings=False)
#: Two of the three layers see only the last 5 tokens; the last layer is one of them.
WINDOWED = dict(SHAPE, model_type="qwen3", head_dim=8, num_hidden_layers=3, use_sliding_window=True, sliding_window=5,
                max_window_layers=1)
BLOCK_SIZE, NUM_BLOCKS = 4, 24


class Step:
    """A runner of the file under test behind a driver, and the same network for the dense model."""

    def __init__(self, lab, config=SHAPE, fill=0.0):
        weights = random_weights(config, seed=0)
        self.driver = make_driver(lab.ModelRunner, config, tuple(weights.items()), NUM_BLOCKS, BLOCK_SIZE)
        self.model = make_model(ModelConfig.from_dict(config), weights)
        if fill:
            self.driver.fill(fill)

    def run(self, *requests, copies=()):
        """Compute a step. A request is (token_ids, block_ids, context_len, needs_logits, needs_all_logits)."""
        return self.driver.step(tuple(requests), tuple(copies))

    def compute(self, token_ids, table, start=0, end=None):
        """Compute the tokens from ``start`` to ``end`` of one text, and return the last token's logits."""
        end = len(token_ids) if end is None else end
        return self.run((tuple(token_ids[start:end]), tuple(table), end, True))

    def dense(self, token_ids):
        """Return the logits of all tokens of one text: every token sees itself and all tokens before it."""
        def attend_plainly(layer, queries, keys_values):
            num_kv_heads = keys_values.shape[1] // 2
            both = np.array(keys_values)
            return mx.array(dense(np.array(queries), both[:, :num_kv_heads], both[:, num_kv_heads:],
                                  self.model.config.head_dim ** -0.5, self.model.config.window(layer)))

        return np.array(self.model.logits(self.model(mx.array(token_ids), mx.arange(len(token_ids)), attend_plainly)))


def text(num_tokens, seed=0):
    return np.random.default_rng(seed).integers(0, 50, num_tokens).tolist()


def check_logits(got, expected, call, rule):
    expected = np.asarray(expected)
    assert tuple(getattr(got, "shape", ())) == expected.shape, \
        f"{call} gave {getattr(got, 'shape', type(got).__name__)}, expected logits of the shape {expected.shape}: " \
        f"{rule}"
    found = np.array(got)
    worst = np.abs(found - expected).max(axis=1)
    wrong = np.flatnonzero(~(worst < LOGITS_ATOL)).tolist()
    assert not wrong, f"{call}: row {wrong[0]} of the logits differs from the dense model's by up to " \
                      f"{worst[wrong[0]]:.3g}, expected less than {LOGITS_ATOL}: {rule}"


@pytest.mark.points(3)
def test_task_4_a_prompt_is_computed_as_by_the_dense_model(lab):
    for num_tokens, table in ((1, [3]), (4, [5]), (11, [7, 2, 9])):
        step, tokens = Step(lab), text(num_tokens)
        check_logits(step.compute(tokens, table), step.dense(tokens)[-1:],
                     f"step with a prompt of length {num_tokens} in blocks {table}", "the last token's logits")


@pytest.mark.points(3)
def test_task_4_chunks_are_as_the_whole_prompt(lab):
    tokens, table = text(11), [7, 2, 9]
    for cuts in ([0, 4, 8, 11], [0, 3, 11], [0, 1, 2, 10, 11]):
        step = Step(lab)
        for start, end in zip(cuts, cuts[1:]):
            got = step.compute(tokens, table, start, end)
        check_logits(got, step.dense(tokens)[-1:], f"a prompt of 11 tokens in chunks, cut at {cuts}",
                     "a chunk's positions continue where the last chunk ended, and it reads what earlier chunks wrote")


@pytest.mark.points(3)
def test_task_4_decoding_step_by_step_is_as_the_whole_text(lab):
    step, tokens, table = Step(lab), text(13), [7, 2, 9, 4]
    expected = step.dense(tokens)
    for end in range(5, 14):
        got = step.compute(tokens, table, 0 if end == 5 else end - 1, end)
        check_logits(got, expected[end - 1:end], f"token {end - 1} of a text: a prompt of 5, then one token per step",
                     "a decode is a chunk of one token")


@pytest.mark.points(4)
def test_task_4_a_batch_is_as_each_request_alone(lab):
    step = Step(lab)
    texts, tables = [text(n, seed=n) for n in (10, 5, 9, 6)], [[7, 2, 9], [3, 11], [8, 1, 14], [5, 12]]
    before = (9, 4, 6, 0)
    for tokens, table, done in zip(texts, tables, before):
        if done:
            step.run((tuple(tokens[:done]), tuple(table), done, False))
    got = step.run(*((tuple(tokens[done:]), tuple(table), len(tokens), True)
                     for tokens, table, done in zip(texts, tables, before)))
    check_logits(got, [step.dense(tokens)[-1] for tokens in texts],
                 "step of two decodes, a chunk of 3 after 6 tokens, and a prompt of 6",
                 "row i belongs to request i and does not depend on the other requests")


@pytest.mark.points(3)
def test_task_4_contexts_of_very_different_lengths_decode_together(lab):
    step = Step(lab)
    texts = [text(n, seed=n) for n in (2, 31, 5, 17)]
    free = iter(range(1, NUM_BLOCKS))
    tables = [[next(free) for _ in range(-(-len(tokens) // BLOCK_SIZE))] for tokens in texts]
    for tokens, table in zip(texts, tables):
        step.compute(tokens[:-1], table)
    got = step.run(*((tuple(tokens[-1:]), tuple(table), len(tokens), True) for tokens, table in zip(texts, tables)))
    check_logits(got, [step.dense(tokens)[-1] for tokens in texts], "decodes of contexts of 2, 31, 5 and 17 tokens",
                 "each request sees its own context, whatever the longest context of the step is")


@pytest.mark.points(2)
def test_task_4_requests_come_in_any_order(lab):
    step = Step(lab)
    texts, tables = [text(n, seed=n) for n in (6, 10, 3, 5)], [[5, 12], [7, 2, 9], [8], [3, 11]]
    before = (0, 9, 1, 4)
    for tokens, table, done in zip(texts, tables, before):
        if done:
            step.compute(tokens, table, 0, done)
    got = step.run(*((tuple(tokens[done:]), tuple(table), len(tokens), True)
                     for tokens, table, done in zip(texts, tables, before)))
    check_logits(got, [step.dense(tokens)[-1] for tokens in texts],
                 "step of a prompt of 6, a decode, a chunk of 2, and a decode", "row i belongs to request i")
    got = step.run(*((tuple(texts[i][before[i]:]), tuple(tables[i]), len(texts[i]), False, i == 0) for i in range(4)))
    check_logits(got, step.dense(texts[0]), "the same step, with all logits of the first request only",
                 "row i belongs to token i of that request")


@pytest.mark.points(2)
def test_task_4_only_requests_that_need_logits_get_them(lab):
    step = Step(lab)
    texts, tables = [text(n, seed=n) for n in (1, 7, 5)], [[7], [3, 11], [8, 1]]
    expected = [step.dense(tokens)[-1] for tokens in texts]
    for needs in ([True, False, True], [False, False, True], [True, True, True], [False, True, False]):
        got = step.run(*((tuple(tokens), tuple(table), len(tokens), need)
                         for tokens, table, need in zip(texts, tables, needs)))
        check_logits(got, [row for row, need in zip(expected, needs) if need],
                     f"step of prompts of 1, 7 and 5 tokens with needs_logits {needs}",
                     "one row per request that needs logits, in the order of the requests")


@pytest.mark.points(2)
def test_task_4_all_logits_of_a_request(lab):
    step = Step(lab)
    texts, tables = [text(n, seed=n) for n in (1, 7, 5)], [[7], [3, 11], [8, 1]]
    expected = [step.dense(tokens) for tokens in texts]
    got = step.run(*((tuple(tokens), tuple(table), len(tokens), needs, needs_all) for tokens, table, needs, needs_all
                     in zip(texts, tables, (True, False, True), (False, True, False))))
    check_logits(got, np.concatenate([expected[0][-1:], expected[1], expected[2][-1:]]),
                 "step of prompts of 1, 7 and 5 tokens; the second needs all logits, and needs_logits is False there",
                 "needs_all_logits means a row for each of its tokens, in the order of the requests")


@pytest.mark.points(2)
def test_task_4_no_logits_are_wanted(lab):
    step, tokens = Step(lab), text(9)
    got = step.run((tuple(tokens[:8]), (7, 2, 9), 8, False))
    assert tuple(getattr(got, "shape", ())) == (0, 50), \
        f"a step in which no request needs logits gave {getattr(got, 'shape', type(got).__name__)}, expected logits " \
        "of the shape (0, 50): no row, but all columns"
    step.driver.wait()
    check_logits(step.compute(tokens, [7, 2, 9], 8), step.dense(tokens)[-1:],
                 "the step after one that wanted no logits", "its keys and values are in their slots all the same")


@pytest.mark.points(3)
def test_task_4_a_block_that_the_same_step_writes_can_be_read(lab):
    step, tokens = Step(lab, fill=5.0), text(8)
    got = step.run((tuple(tokens[4:]), (5, 6), 8, True), (tuple(tokens), (5, 7), 8, True))
    expected = step.dense(tokens)[-1]
    check_logits(got, [expected, expected],
                 "step of a request that adopts block 5, and of the request that writes block 5 in the same step",
                 "in every layer all keys and values are written before any are read")


@pytest.mark.points(3)
def test_task_4_a_prefix_that_many_requests_share(lab):
    step, prompt = Step(lab), text(8)
    step.compute(prompt, [5, 6])
    texts = [prompt + text(n, seed=n) for n in (3, 1, 2)]
    tables = [[5, 6, 7], [5, 6, 8], [5, 6, 9]]
    got = step.run(*((tuple(tokens[8:]), tuple(table), len(tokens), True) for tokens, table in zip(texts, tables)))
    check_logits(got, [step.dense(tokens)[-1] for tokens in texts], "step of three requests with a common prompt of 8",
                 "their tables begin with the same blocks, and each request sees its own tail")


@pytest.mark.points(3)
def test_task_4_copies_come_first(lab):
    step, tokens = Step(lab), text(8)
    step.compute(tokens[:6], [5, 6])
    other = text(2, seed=9)
    got = step.run((tuple(tokens[6:]), (5, 6), 8, True), (tuple(other), (5, 7), 8, True), copies=((6, 7),))
    check_logits(got, [step.dense(tokens)[-1], step.dense(tokens[:6] + other)[-1]],
                 "step with the copy (6, 7), in which one request writes block 6 and another one block 7",
                 "block 7 holds what block 6 held before the step, and then this step's tokens")
    num_copied = step.driver.num_copied_blocks()
    assert num_copied == 1, f"after a step with one copy, cache.num_copied_blocks is {num_copied}, expected 1: use " \
                            "cache.copy_blocks, which counts"


@pytest.mark.points(2)
def test_task_4_only_the_slots_of_the_step_change(lab):
    step, tokens = Step(lab, fill=5.0), text(6)
    got = step.compute(tokens, [7, 2])
    check_logits(got, step.dense(tokens)[-1:], "step with a prompt of 6 in blocks [7, 2]", "the last token's logits")
    for layer, pool in enumerate(step.driver.pools()):
        content = np.array(pool)
        is_as_before = (content == 5.0).all(axis=(1, 3))  # [num_blocks, block_size]
        expected = np.ones((NUM_BLOCKS, BLOCK_SIZE), dtype=bool)
        expected[7], expected[2, :2] = False, False
        wrong = np.argwhere(is_as_before != expected).tolist()
        assert not wrong, f"after a step with a prompt of 6 in blocks [7, 2], slot {wrong[0][1]} of block " \
                          f"{wrong[0][0]} in layer {layer} has{' not' if is_as_before[tuple(wrong[0])] else ''} " \
                          "changed: the step writes slots 0 to 3 of block 7 and slots 0 and 1 of block 2, no others"


@pytest.mark.points(2)
def test_task_4_what_is_in_other_slots_does_not_matter(lab):
    step = Step(lab, fill=50.0)
    texts, tables = [text(n, seed=n) for n in (10, 5, 6)], [[7, 2, 9], [3, 11, 20], [5, 12]]
    for tokens, table in zip(texts, tables):
        step.compute(tokens[:-1], table)
    got = step.run(*((tuple(tokens[-1:]), tuple(table), len(tokens), True) for tokens, table in zip(texts, tables)))
    check_logits(got, [step.dense(tokens)[-1] for tokens in texts],
                 "decodes in pools whose other slots hold 50.0, also those of block 0",
                 "a query sees the slots of its own context and no others")


@pytest.mark.points(3)
def test_task_4_layers_have_windows_of_their_own(lab):
    step, tokens, table = Step(lab, WINDOWED), text(14), [7, 2, 9, 4]
    expected = step.dense(tokens)
    check_logits(step.compute(tokens, table, 0, 11), expected[10:11], "a prompt of 11 in a network in which two of "
                 "three layers have a window of 5", "self.options[layer] names the window of a layer, if it has one")
    for end in (12, 13, 14):
        got = step.run((tuple(tokens[end - 1:end]), tuple(table), end, True),
                       (tuple(tokens[:3]), (11,), 3, False))
        check_logits(got, expected[end - 1:end], f"a decode at position {end - 1} in the same network",
                     "a window is counted from the token's own position")


@pytest.mark.points(4)
def test_task_4_random_steps(lab):
    """Let six texts run through random steps: prompts in chunks, decodes, and pauses."""
    rng, step = np.random.default_rng(4), Step(lab, fill=3.0)
    texts = [text(int(n), seed=100 + i) for i, n in enumerate(rng.integers(3, 13, 6))]
    tables = np.arange(1, 19).reshape(6, 3)[rng.permutation(6)].tolist()
    expected, done = [step.dense(tokens) for tokens in texts], [0] * 6
    while any(done[i] < len(texts[i]) for i in range(6)):
        running = [i for i in range(6) if done[i] < len(texts[i]) and rng.random() < 0.7]
        if not running:
            continue
        ends = {i: min(done[i] + int(rng.choice([1, 1, 2, 4])), len(texts[i])) for i in running}
        needs = {i: bool(rng.random() < 0.8) for i in running}
        got = step.run(*((tuple(texts[i][done[i]:ends[i]]), tuple(tables[i]), ends[i], needs[i]) for i in running))
        if any(needs.values()):
            check_logits(got, [expected[i][ends[i] - 1] for i in running if needs[i]],
                         f"step of {[ends[i] - done[i] for i in running]} tokens of contexts of "
                         f"{[ends[i] for i in running]}", "each request gets the same as alone")
        else:
            step.driver.wait()
        done = [ends.get(i, done[i]) for i in range(6)]


@pytest.mark.points(2)
def test_task_4_the_tokens_of_the_comparison_are_the_references(lab, keep_score):
    """Give points for the tokens. The ratio of CPU times is kept as the score, and gives no points."""
    ratio = ratio_of(lab.ModelRunner)
    if ratio is not None:  # None: this machine cannot keep the file from starting processes, whose time would not count
        keep_score(ratio)
