"""The sampler: each rule once by example, then all of them at random against a reference in plain Python.

A distribution is checked exactly where possible: applying all parameters leaves scores, and their softmax is the
probability of each token. Two facts are checked once, by counting: the token with the largest sum of score and noise is
drawn, and the noise has the right distribution.
"""

import functools
import math

import numpy as np
import pytest
from fuzz.sampler_reference import chi_square_bound, reference
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mini_vllm.backend import mx
from mini_vllm.conftest import examples
from mini_vllm.logit_rules import SamplerRow, adjust, make_key
from mini_vllm.request import SamplingParams
from mini_vllm.sampler import Sampler, filter_scores, gumbel_noise

INF = math.inf


#: Thousands of rows begin with the same seeds.
key_of = functools.cache(make_key)


def make_row(seed=0, prompt=(), output=(), eos=(), bad_words=(), **params):
    return SamplerRow(SamplingParams(**params), prompt, output, eos, key_of(seed), bad_words)


def rows_of(outputs, seeds, **params):
    """Return a row for each output and seed, all with the same parameters."""
    same = SamplingParams(**params)
    return [SamplerRow(same, (), output, (), key_of(seed)) for output, seed in zip(outputs, seeds)]


def as_rows(logits, rows):
    """Return ``logits`` as an array: a row of numbers for each of ``rows``, or one for all of them."""
    return mx.array(np.broadcast_to(np.array(logits, dtype=np.float32), (len(rows), np.shape(logits)[-1])))


def sample(logits, *rows):
    return Sampler().sample(as_rows(logits, rows), rows).token_ids


def probabilities(logits, *rows):
    """Return the probability of every token, for each row, from the scores that remain after all parameters."""
    scores = np.array(filter_scores(adjust(as_rows(logits, rows), rows), rows), dtype=np.float64)
    widths = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return widths / widths.sum(axis=-1, keepdims=True)


def frequencies(weights, num_draws, **params):
    """Return how often each token is expected among ``num_draws`` draws."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(weights, dtype=np.float64))
    return [round(p * num_draws, 4) for p in probabilities(logits, make_row(**params))[0].tolist()]


# ---- all parameters at random, against a reference one token at a time and in double precision


def check_probabilities(logits, params_of_rows, tolerance=1e-5, **tokens):
    """Check that all rows in one batch give the reference's probabilities."""
    rows = [make_row(**params, **tokens) for params in params_of_rows]
    greedy = [index for index, row in enumerate(rows) if row.params.temperature == 0]
    got = probabilities(logits, *rows)
    drawn = sample(logits, *rows)
    for index, (row, row_logits) in enumerate(zip(rows, logits)):
        expected, _ = reference(row_logits, row)
        if index in greedy:
            assert expected[drawn[index]] == 1.0
        else:
            assert np.abs(got[index] - expected).max() < tolerance, f"row {index}: {row.params}"
            assert expected[drawn[index]] > 0, f"token {drawn[index]} was drawn, which {row.params} drops"


def params_of(vocab_size):
    token = st.integers(0, vocab_size - 1)
    return st.fixed_dictionaries({
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.0, 1.7]),
        "top_k": st.one_of(st.just(0), st.integers(1, vocab_size + 3)),
        "top_p": st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
        "min_p": st.one_of(st.just(0.0), st.floats(0.0, 1.0), st.just(1.0)),
        "repetition_penalty": st.sampled_from([1.0, 0.6, 1.3, 2.0]),
        "logit_bias": st.dictionaries(token, st.one_of(st.floats(-5, 5), st.just(-INF)), max_size=4),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.75, -1.25]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.5, -2.0]),
        "allowed_token_ids": st.one_of(st.none(), st.lists(token, min_size=vocab_size - 4, unique=True)),
        "min_tokens": st.sampled_from([0, 0, 2, 3, 9]),
        "stop_token_ids": st.lists(token, max_size=2),
    })


@settings(derandomize=True, max_examples=examples(40))
@given(st.data())
def test_any_mix_of_parameters_draws_like_the_reference(data):
    vocab_size = data.draw(st.integers(11, 50))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    params_of_rows = data.draw(st.lists(params_of(vocab_size), min_size=1, max_size=5))
    logits = random.normal(scale=2.0, size=(len(params_of_rows), vocab_size)).astype(np.float32)
    if data.draw(st.booleans()):
        logits = logits.round()  # many equal logits
    output = random.integers(0, vocab_size, 3).tolist()
    tokens = dict(prompt=random.integers(0, vocab_size, 6).tolist(), eos=(0, 5), output=output,
                  bad_words=[(7,), (output[-1], 8), (9, output[-1], 3), (*output, 2)])
    for row_logits, params in zip(logits, params_of_rows):
        assume(reference(row_logits, make_row(**params, **tokens))[1] > 1e-5)  # nothing that depends on rounding
    check_probabilities(logits, params_of_rows, **tokens)


def test_a_large_vocabulary_draws_like_the_reference():
    random = np.random.default_rng(6)  # no decision is closer than 1e-5 to the other outcome
    params_of_rows = [dict(), dict(top_k=20), dict(top_k=1024), dict(top_k=1025), dict(top_k=4095), dict(top_k=4096),
                      dict(top_p=0.9), dict(top_p=0.98), dict(top_k=300, top_p=0.7, temperature=0.8), dict(min_p=0.02),
                      dict(top_k=1500, top_p=0.95, min_p=0.001, repetition_penalty=1.5), dict(temperature=0.0)]
    logits = random.normal(scale=3.0, size=(len(params_of_rows), 4096))
    check_probabilities(logits.astype(np.float32), params_of_rows, prompt=random.integers(0, 4096, 500).tolist())


# ---- the distribution


@pytest.mark.parametrize("temperature", [1e-50, 1e-38, 1e-3])
def test_a_tiny_temperature_takes_the_most_likely_token(temperature):
    assert frequencies([1, 9, 4], 5, temperature=temperature) == [0, 5, 0]


def test_a_huge_temperature_makes_all_tokens_equal():
    assert frequencies([1, 9, 4], 6, temperature=1e300) == [2, 2, 2]


def test_top_k_keeps_the_lowest_ids_among_equals():
    assert frequencies([4, 2, 4, 2, 2, 4], 14, top_k=4) == [4, 2, 4, 0, 0, 4]
    assert frequencies([5, 5, 5], 10, top_k=2) == [5, 5, 0]
    assert frequencies([1] * 2000, 30, top_k=3)[:4] == [10, 10, 10, 0], "with only part of the vocabulary sorted"


def test_top_p_ends_where_it_is_reached_exactly():
    assert frequencies([1, 1, 1, 1], 8, top_p=0.5) == [4, 4, 0, 0], "two of four equal tokens reach 0.5"


@pytest.mark.parametrize("top_p", [1e-6, 1e-30, 1e-300])
def test_a_tiny_top_p_keeps_one_token(top_p):
    assert frequencies([1, 4, 4, 1], 6, top_p=top_p) == [0, 6, 0, 0]


def support(logits, **params):
    """Return the tokens that can be drawn at all."""
    return np.flatnonzero(np.array(filter_scores(as_rows(logits, [0]), [make_row(**params)]))[0] > -INF).tolist()


@pytest.mark.parametrize("neutral", [dict(top_k=0), dict(top_k=-1), dict(top_k=5), dict(top_k=6), dict(top_p=1.0),
                                     dict(min_p=0.0)], ids=str)
def test_a_neutral_filter_keeps_what_is_beyond_the_precision_of_a_sum(neutral):
    assert support([-40.0, 0.0, 0.0, -40.0, -40.0], **neutral) == [0, 1, 2, 3, 4]


# ---- the draw


def test_the_draw_is_the_largest_sum_of_score_and_noise():
    """Compute the noise again in numpy, in double precision, from the same uniform numbers."""
    vocab_size, rows = 500, [make_row(seed, temperature=0.7, top_k=400, output=[0] * seed) for seed in range(40)]
    logits = np.random.default_rng(0).normal(scale=2.0, size=(40, vocab_size)).astype(np.float32)
    expected = []
    for row, row_logits in zip(rows, logits):
        key = mx.array(np.array([row.key[0], row.key[1] + len(row.output_token_ids)]).astype(np.uint32))
        uniform = np.array(mx.random.uniform(shape=(vocab_size,), key=key), dtype=np.float64)
        noise = -np.log(-np.log1p(-uniform))
        kept = np.argsort(-row_logits, kind="stable")[:400]
        expected.append(int(kept[np.argmax(row_logits[kept] / 0.7 + noise[kept])]))
    assert sample(logits, *rows) == expected and len(set(expected)) > 20


def noise_of(num_rows, vocab_size):
    return np.array(gumbel_noise(mx.array(np.random.default_rng(1).integers(0, 2**32, (num_rows, 2), dtype=np.uint32)),
                                 vocab_size), dtype=np.float64)


def test_the_noise_has_the_gumbel_distribution():
    noise = np.sort(noise_of(64, 5000).ravel())
    shares = np.exp(-np.exp(-noise))  # uniform, if the noise has the right distribution
    distance = np.abs(shares - (np.arange(len(noise)) + 0.5) / len(noise)).max()
    assert distance < 1.95 / math.sqrt(len(noise)), "Kolmogorov and Smirnov would find this once in 1000 times"
    assert np.isfinite(noise).all()


def test_noise_is_finite_and_fine_where_it_is_largest(monkeypatch):
    """Check the largest noise, which comes from the smallest numbers: none is infinite, and none is rounded away."""
    smallest = np.array([0.0, 2.0**-32, 2.0**-31, 3 * 2.0**-32, 1e-5, 0.3, 1 - 2.0**-24], dtype=np.float32)
    monkeypatch.setattr(mx.random, "uniform", lambda shape, key: mx.array(smallest))
    noise = np.array(gumbel_noise(mx.zeros((1, 2), mx.uint32), len(smallest)), dtype=np.float64)[0]
    expected = -np.log(-np.log1p(-np.maximum(smallest.astype(np.float64), 2.0**-33)))
    assert np.abs(noise - expected).max() < 2e-6


def chi_square(counts, expected):
    return (((counts - expected) ** 2) / expected).sum()


def test_draws_of_one_seed_are_independent_of_each_other():
    """Count the draws of one request, position by position: single tokens and pairs occur as often as numpy says."""
    share, num_draws = np.array([0.5, 0.3, 0.2]), 5000
    drawn = sample(np.log(share), *rows_of([[0] * position for position in range(num_draws)], [7] * num_draws))
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (drawn[:-1], drawn[1:]), 1)
    assert chi_square(np.bincount(drawn), num_draws * share) < chi_square_bound(2)
    assert chi_square(pairs, (num_draws - 1) * np.outer(share, share)) < chi_square_bound(8)


# ---- greedy


def test_greedy_takes_the_first_of_equals():
    row = make_row(temperature=0.0, top_k=2, top_p=0.5)
    assert sample([1.0, 3.0, 2.0, 3.0], row) == [1]


def test_the_fast_path_is_the_argmax_of_each_row():
    logits = mx.array([[1.0, 3.0, 3.0], [5.0, 0.0, -1.0], [-3.0, -2.0, -1.0]])
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        got = Sampler().greedy(logits.astype(dtype))
        assert isinstance(got, mx.array) and got.tolist() == [1, 0, 2]


@pytest.mark.parametrize("params, expected", [
    (dict(), True), (dict(top_k=3, top_p=0.5, min_p=0.1, seed=1), True), (dict(stop="x", logit_bias={}), True),
    (dict(bad_words="x"), False),
    (dict(allowed_token_ids=[1]), False), (dict(presence_penalty=0.1), False), (dict(frequency_penalty=0.1), False),
    (dict(prompt_logprobs=2), True),
    (dict(repetition_penalty=1.1), False), (dict(logit_bias={1: 1.0}), False),
    (dict(min_tokens=1), False), (dict(logprobs=0), False)])
def test_plain_is_what_can_be_chosen_ahead(params, expected):
    for temperature in (0.0, 0.8):
        assert make_row(**{"temperature": temperature, **params}).is_plain is expected


# ---- what changes the logits


@pytest.mark.parametrize("bias", [100, 1e30, INF])
def test_a_bias_of_100_or_more_makes_a_token_certain(bias):
    logits = [0.0, -20.0, 10.0]
    assert sample(logits, *(make_row(seed, logit_bias={1: bias}) for seed in range(9))) == [1] * 9
    assert sample(logits, make_row(temperature=0.0, logit_bias={1: bias})) == [1]
    assert sample(logits, make_row(logit_bias={1: bias}, repetition_penalty=0.5, prompt=[1])) == [1]
    banned = make_row(logit_bias={1: bias}, repetition_penalty=0.5, prompt=[1], min_tokens=1, eos=(1,), temperature=0.0)
    assert sample(logits, banned) == [2], "unless it is forbidden"


def test_ids_outside_the_vocabulary_change_nothing():
    row = make_row(temperature=0.0, min_tokens=1, eos=(4, 99), stop_token_ids=[77],
                   prompt=[3, 50], repetition_penalty=2.0)
    assert sample([1.0, 5.0, 4.0], row) == [1]


# ---- the same seed, whatever else is in the batch


COMPANY = [dict(), dict(temperature=0.0), dict(top_k=3), dict(top_k=2000), dict(top_p=0.8), dict(min_p=0.1),
           dict(logprobs=3), dict(repetition_penalty=1.2, logit_bias={5: 2.0}),
           dict(top_k=40, top_p=0.9, min_p=0.01, temperature=0.7)]


@pytest.mark.parametrize("params", [p for p in COMPANY if p.get("temperature") != 0.0], ids=str)
def test_the_same_seed_gives_the_same_tokens_in_any_batch(params):
    vocab_size, num_steps = 4099, 8
    own_logits = np.random.default_rng(1).normal(scale=2.5, size=(num_steps, vocab_size)).astype(np.float32)

    def tokens(num_rows, company_seed):
        company = np.random.default_rng(company_seed)
        row, output = make_row(42, prompt=[7, 8], **params), []
        for step in range(num_steps):
            kinds = company.integers(len(COMPANY), size=num_rows)
            rows = [make_row(seed, **COMPANY[kind]) for seed, kind in enumerate(kinds)]
            logits = company.normal(scale=3.0, size=(num_rows, vocab_size)).astype(np.float32)
            place = company.integers(num_rows)
            rows[place], logits[place] = row, own_logits[step]
            row.output_token_ids = list(output)
            output.append(Sampler().sample(mx.array(logits), rows).token_ids[place])
        return output

    alone = tokens(1, company_seed=0)
    assert len(set(alone)) > 5
    for num_rows, company_seed in ((7, 1), (7, 2), (33, 3)):
        got = tokens(num_rows, company_seed)
        assert got == alone, f"in a batch of {num_rows} seed 42 gave {got}, alone {alone}"


def test_keys_are_told_apart_by_seed_and_index():
    assert make_key(5) == make_key(5, 0) == make_key(5)
    keys = [(5, 0), (5, 1), (6, 0), (1, 5), (2**32, 0), (2**64, 0), (0, 0), (0, 1), (0, 2**32)]
    assert len({make_key(*key) for key in keys}) == len(keys)


def test_without_a_seed_keys_differ_unless_the_environment_fixes_one(monkeypatch):
    monkeypatch.setenv("MINI_VLLM_SEED", "7")
    assert make_key(None) == make_key(7) and make_key(None, 3) == make_key(7, 3) and make_key(5) != make_key(7)
    for unset in ("", " "):
        monkeypatch.setenv("MINI_VLLM_SEED", unset)
        assert make_key(None) != make_key(None)
    monkeypatch.delenv("MINI_VLLM_SEED")
    assert make_key(None) != make_key(None)


@pytest.mark.parametrize("text", ["-1", "1.5", "seven", "٣"])
def test_a_seed_in_the_environment_that_is_no_number_is_refused(monkeypatch, text):
    monkeypatch.setenv("MINI_VLLM_SEED", text)
    with pytest.raises(ValueError, match=f"MINI_VLLM_SEED is '{text}', must be a whole number, at least 0"):
        make_key(None)
    assert make_key(5) != make_key(6), "a request that names its seed is served"


def test_a_token_can_be_drawn_before_those_before_it_are_known():
    logits = np.random.default_rng(6).normal(size=(20, 500)).astype(np.float32)
    rows = [make_row(seed, output=[0] * seed, top_p=0.9, temperature=float(seed % 4 > 0)) for seed in range(20)]
    ahead = Sampler().draw(mx.array(logits), rows, num_ahead=2).tolist()
    later = [make_row(seed, output=[0] * (seed + 2), top_p=0.9, temperature=float(seed % 4 > 0)) for seed in range(20)]
    assert ahead == sample(logits, *later) and ahead != sample(logits, *rows)


def test_a_key_at_its_end_goes_on(monkeypatch):
    row = make_row()
    row.key, row.output_token_ids = (1, 2**32 - 1), [0] * 5
    other = make_row()
    other.key, other.output_token_ids = (1, 0), [0] * 4
    assert sample(np.zeros(1000), row) == sample(np.zeros(1000), other)


# ---- log-probabilities


def log_softmax(logits):
    logits = np.array(logits, dtype=np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def logprobs_of(logits, **params):
    return Sampler().sample(mx.array([logits]), [make_row(**params)]).logprobs[0]


def test_logprobs_are_the_log_softmax_of_the_raw_logits():
    logits = np.random.default_rng(4).normal(scale=3.0, size=(6, 20)).astype(np.float32)
    rows = [make_row(logprobs=20, temperature=temperature, top_k=2, repetition_penalty=1.5, logit_bias={3: 4.0},
                     prompt=[1, 2, 3], min_tokens=1, eos=(0,)) for temperature in (0.0, 0.5, 1.0, 2.0, 0.1, 0.0)]
    output = Sampler().sample(mx.array(logits), rows)
    for token_id, answer, row_logits in zip(output.token_ids, output.logprobs, logits):
        expected = log_softmax(row_logits)
        assert sorted(answer.top) == list(range(20))
        assert np.allclose([answer.top[token].logprob for token in range(20)], expected, atol=2e-6)
        assert math.isclose(sum(math.exp(entry.logprob) for entry in answer.top.values()), 1, abs_tol=1e-5)
        assert [entry.rank for entry in answer.top.values()] == list(range(1, 21))
        mine = answer.top[token_id]
        assert (answer.token_id, answer.logprob, answer.rank) == (token_id, mine.logprob, mine.rank)


def test_the_top_logprobs_descend_and_the_lower_id_comes_first_among_equals():
    assert list(logprobs_of([1.0, 3.0, 2.0, 3.0, 2.0, 2.0], logprobs=4).top) == [1, 3, 2, 4]
    assert list(logprobs_of([1.0, 1.0, 1.0], logprobs=2).top) == [0, 1]
    assert list(logprobs_of([1.0, 2.0, 2.0], logprobs=20).top) == [1, 2, 0], "more than there are"


def test_equals_have_the_same_rank():
    answer = logprobs_of([1.0, 3.0, 2.0, 3.0, 2.0], logprobs=5, allowed_token_ids=[4])
    assert [(token, entry.rank) for token, entry in answer.top.items()] == [(1, 1), (3, 1), (2, 3), (4, 3), (0, 5)]
    assert (answer.token_id, answer.rank) == (4, 3)


def test_only_rows_that_ask_get_logprobs():
    rows = [make_row(), make_row(logprobs=1), make_row(temperature=0.0), make_row(temperature=0.0, logprobs=2)]
    logprobs = Sampler().sample(mx.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [5.0, 0.0]]), rows).logprobs
    assert [answer and list(answer.top) for answer in logprobs] == [None, [0], None, [0, 1]]
    assert math.isclose(logprobs[3].logprob, log_softmax([5.0, 0.0])[0], rel_tol=1e-4)


# ---- rejected values


FINE = [0.0, 1.0, 2.0]


@pytest.mark.parametrize("bad_logits, bad_params, message", [
    ([0.0, math.nan, 1.0], dict(), "row 2: the logits contain NaN"),
    ([0.0, math.nan, 1.0], dict(min_tokens=1, eos=(1,)), "row 2: the logits contain NaN"),
    ([0.0, math.nan, 1.0], dict(temperature=0.0), "row 2: the logits contain NaN"),
    ([-INF, -INF, -INF], dict(), "row 2: all logits are -inf"),
    ([-INF, -INF, -INF], dict(logit_bias={1: INF}), "row 2: all logits are -inf"),
    ([0.0, INF, 1.0], dict(), r"row 2: a logit is \+inf"),
    (FINE, dict(logit_bias={0: -INF, 1: -INF, 2: -INF}), "row 2: allowed_token_ids, bad_words, logit_bias"),
    (FINE, dict(logit_bias={0: -INF, 1: -INF}, min_tokens=1, eos=(2,)), "row 2: .* leave no possible next token"),
    (FINE, dict(allowed_token_ids=[1], bad_words=[(1,)]), "row 2: .* leave no possible next token"),
    (FINE, dict(allowed_token_ids=[3]), "row 2: allowed_token_ids names token 3, but the vocabulary has 3 tokens"),
    (FINE, dict(logit_bias={3: 1.0}), "row 2: logit_bias names token 3, but the vocabulary has 3 tokens"),
])
def test_a_bad_row_is_named(bad_logits, bad_params, message):
    rows = [make_row(), make_row(top_p=0.5), make_row(**bad_params), make_row()]
    with pytest.raises(ValueError, match=message):
        Sampler().sample(mx.array([FINE, FINE, bad_logits, FINE]), rows)


def test_rows_and_logits_must_agree_in_number():
    with pytest.raises(ValueError, match="1 rows for logits of 2 rows"):
        Sampler().sample(mx.array([FINE, FINE]), [make_row()])


def test_no_rows_give_no_tokens():
    output = Sampler().sample(mx.zeros((0, 5)), [])
    assert output.token_ids == [] and output.logprobs == []
