"""The sampler: each rule once by example, then all of them at random against a reference in plain Python.

Randomness is driven by hand: a generator that returns chosen numbers walks the whole line from 0 to 1, so a
distribution is checked exactly instead of statistically.
"""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mini_vllm.backend import mx
from mini_vllm.request import SamplingParams
from mini_vllm.sampler import Sampler, SamplerRow, is_plain_greedy, make_generator

INF = math.inf
JUST_BELOW_1 = math.nextafter(1.0, 0.0)


class Scripted:
    """A generator that returns the given numbers and counts how many were taken."""

    def __init__(self, *numbers):
        self.numbers, self.num_draws = numbers, 0

    def random(self):
        self.num_draws += 1
        return self.numbers[self.num_draws - 1]


def make_row(uniform=0.5, prompt=(), output=(), eos=(), **params):
    random = uniform if hasattr(uniform, "random") else Scripted(uniform)
    return SamplerRow(SamplingParams(**params), prompt, output, eos, random)


def sample(logits, *rows):
    """Token ids for ``logits``, a row of numbers for each of ``rows`` or one for all of them."""
    logits = np.broadcast_to(np.array(logits, dtype=np.float32), (len(rows), np.shape(logits)[-1]))
    return Sampler().sample(mx.array(logits), rows).token_ids


def frequencies(weights, num_draws, **params):
    """How often each token comes, of ``num_draws`` numbers spread evenly over the line."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(weights, dtype=np.float64))
    rows = [make_row((i + 0.5) / num_draws, **params) for i in range(num_draws)]
    return np.bincount(sample(logits, *rows), minlength=len(weights)).tolist()


# ---- a reference, one token at a time and in double precision


def reference(logits, row):
    """Probabilities by token id, and how near any decision came to going the other way."""
    p, x = row.params, [float(value) for value in logits]
    vocab_size, nearest = len(x), 1.0
    for token, bias in (p.logit_bias or {}).items():
        x[token] += bias
    for token in {*row.prompt_token_ids, *row.output_token_ids}:
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
    if len(row.output_token_ids) < p.min_tokens:
        for token in {*row.eos_token_ids, *p.stop_token_ids}:
            x[token] = -INF
    if p.temperature == 0:
        return [float(token == x.index(max(x))) for token in range(vocab_size)], nearest
    weight = [math.exp((value - max(x)) / p.temperature) for value in x]
    kept = sorted(range(vocab_size), key=lambda token: (-x[token], token))
    if p.top_k:
        kept = kept[:p.top_k]
    if p.top_p < 1:
        total, mass, nucleus = sum(weight[token] for token in kept), 0.0, []
        for token in kept:
            if nucleus:
                nearest = min(nearest, abs(mass / total - p.top_p))
            if nucleus and mass / total >= p.top_p:
                break
            nucleus.append(token)
            mass += weight[token]
        kept = nucleus
    nearest = min([nearest] + [abs(weight[token] - p.min_p) for token in kept if weight[token] not in (0, 1)])
    kept = [token for token in kept if weight[token] >= p.min_p]
    total, probabilities = sum(weight[token] for token in kept), [0.0] * vocab_size
    for token in kept:
        probabilities[token] = weight[token] / total
    return probabilities, nearest


def check_whole_line(logits, params_of_rows, margin=1e-5, **tokens):
    """Every token's stretch of the line begins and ends where the reference says, for all rows in one batch.

    Of a vocabulary above 50 tokens some are picked: an edge is the sum of all that lie left of it.
    """
    all_logits, rows, expected = [], [], []
    for row_logits, params in zip(logits, params_of_rows):
        probabilities, _ = reference(row_logits, make_row(**params, **tokens))
        right_edges = np.cumsum(probabilities)
        tokens_on_the_line = np.flatnonzero(np.array(probabilities) > 3 * margin)
        for token in tokens_on_the_line[::1 if len(row_logits) <= 50 else len(tokens_on_the_line) // 15 + 1]:
            left, right = right_edges[token] - probabilities[token], right_edges[token]
            for uniform in (left + margin, (left + right) / 2, right - margin):
                all_logits.append(row_logits)
                rows.append(make_row(uniform, **params, **tokens))
                expected.append((int(token), uniform, params))
    got = Sampler().sample(mx.array(np.array(all_logits, dtype=np.float32)), rows).token_ids
    for token, (expected_token, uniform, params) in zip(got, expected):
        assert token == expected_token, f"u = {uniform} drew token {token}, expected {expected_token}, for {params}"


def params_of(vocab_size):
    token = st.integers(0, vocab_size - 1)
    return st.fixed_dictionaries({
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.0, 1.7]),
        "top_k": st.one_of(st.just(0), st.integers(1, vocab_size + 3)),
        "top_p": st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
        "min_p": st.one_of(st.just(0.0), st.floats(0.0, 1.0), st.just(1.0)),
        "repetition_penalty": st.sampled_from([1.0, 0.6, 1.3, 2.0]),
        "logit_bias": st.dictionaries(token, st.one_of(st.floats(-5, 5), st.just(-INF)), max_size=4),
        "min_tokens": st.sampled_from([0, 0, 2, 3, 9]),
        "stop_token_ids": st.lists(token, max_size=2),
    })


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.data())
def test_any_mix_of_parameters_draws_like_the_reference(data):
    vocab_size = data.draw(st.integers(11, 50))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    params_of_rows = data.draw(st.lists(params_of(vocab_size), min_size=1, max_size=5))
    logits = random.normal(scale=2.0, size=(len(params_of_rows), vocab_size)).astype(np.float32)
    if data.draw(st.booleans()):
        logits = logits.round()  # many equal logits
    tokens = dict(prompt=random.integers(0, vocab_size, 6).tolist(), eos=(0, 5),
                  output=random.integers(0, vocab_size, 2).tolist())
    for row_logits, params in zip(logits, params_of_rows):
        assume(reference(row_logits, make_row(**params, **tokens))[1] > 1e-5)  # nothing that hangs on rounding
    check_whole_line(logits, params_of_rows, **tokens)


def test_a_large_vocabulary_draws_like_the_reference():
    random = np.random.default_rng(6)  # no decision is nearer than 1e-5 to going the other way
    params_of_rows = [dict(), dict(top_k=20), dict(top_k=1024), dict(top_k=1025), dict(top_k=4095), dict(top_k=4096),
                      dict(top_p=0.9), dict(top_p=0.98), dict(top_k=300, top_p=0.7, temperature=0.8), dict(min_p=0.02),
                      dict(top_k=1500, top_p=0.95, min_p=0.001, repetition_penalty=1.5), dict(temperature=0.0)]
    logits = random.normal(scale=3.0, size=(len(params_of_rows), 4096))
    check_whole_line(logits.astype(np.float32), params_of_rows, prompt=random.integers(0, 4096, 500).tolist())


# ---- the distribution


def test_the_frequencies_are_the_probabilities():
    assert frequencies([1, 5, 3, 7, 4], 20) == [1, 5, 3, 7, 4]


def test_the_temperature_flattens_and_sharpens():
    assert frequencies([1, 3, 2], 14, temperature=0.5) == [1, 9, 4]
    assert frequencies([1, 9, 4], 6, temperature=2.0) == [1, 3, 2]


@pytest.mark.parametrize("temperature", [1e-50, 1e-38, 1e-3])
def test_a_tiny_temperature_takes_the_most_likely_token(temperature):
    assert frequencies([1, 9, 4], 5, temperature=temperature) == [0, 5, 0]


def test_a_huge_temperature_makes_all_tokens_equal():
    assert frequencies([1, 9, 4], 6, temperature=1e300) == [2, 2, 2]


@pytest.mark.parametrize("top_k, expected", [(1, [0, 0, 0, 9, 0]), (2, [0, 6, 0, 9, 0]), (3, [0, 6, 0, 9, 4]),
                                             (4, [0, 6, 2, 9, 4]), (5, [1, 6, 2, 9, 4]), (99, [1, 6, 2, 9, 4])])
def test_top_k_keeps_exactly_k(top_k, expected):
    assert frequencies([1, 6, 2, 9, 4], sum(expected), top_k=top_k) == expected


def test_top_k_keeps_the_lowest_ids_among_equals():
    assert frequencies([4, 2, 4, 2, 2, 4], 14, top_k=4) == [4, 2, 4, 0, 0, 4]
    assert frequencies([5, 5, 5], 10, top_k=2) == [5, 5, 0]
    assert frequencies([1] * 2000, 30, top_k=3)[:4] == [10, 10, 10, 0], "with only part of the vocabulary sorted"


def test_top_p_keeps_the_token_that_crosses():
    weights = [1, 2, 3, 4]  # likeliest first: 0.4, 0.7, 0.9, 1.0
    assert frequencies(weights, 4, top_p=0.39) == [0, 0, 0, 4]
    assert frequencies(weights, 7, top_p=0.41) == [0, 0, 3, 4]
    assert frequencies(weights, 9, top_p=0.75) == [0, 2, 3, 4]
    assert frequencies(weights, 10, top_p=0.91) == [1, 2, 3, 4]


def test_top_p_ends_where_it_is_reached_exactly():
    assert frequencies([1, 1, 1, 1], 8, top_p=0.5) == [4, 4, 0, 0], "two of four equal tokens reach 0.5"


@pytest.mark.parametrize("top_p", [1e-6, 1e-30, 1e-300])
def test_a_tiny_top_p_keeps_one_token(top_p):
    assert frequencies([1, 4, 4, 1], 6, top_p=top_p) == [0, 6, 0, 0]


def test_top_p_counts_what_top_k_left():
    # Of 4, 3, 2, 1 top-k keeps 4 and 3. The 4 is 0.57 of these, though 0.4 of all.
    assert frequencies([1, 2, 3, 4], 4, top_k=2, top_p=0.5) == [0, 0, 0, 4]


def test_min_p_is_relative_to_the_most_likely():
    assert frequencies([1, 3, 4, 8], 12, min_p=0.45) == [0, 0, 4, 8]
    assert frequencies([1, 3, 4, 8], 15, min_p=0.3) == [0, 3, 4, 8]
    assert frequencies([1, 2, 4], 4, min_p=0.3, temperature=0.5) == [0, 0, 4], "after the temperature: 4² to 2² is 0.25"


def test_min_p_of_1_keeps_only_what_is_as_likely_as_the_most_likely():
    assert frequencies([7, 8, 1, 8], 16, min_p=1.0) == [0, 8, 0, 8]


@pytest.mark.parametrize("neutral", [dict(top_k=0), dict(top_k=5), dict(top_k=6), dict(top_p=1.0), dict(min_p=0.0)])
def test_a_neutral_filter_keeps_what_is_beyond_the_precision_of_a_sum(neutral):
    logits = [-40.0, 0.0, 0.0, -40.0, -40.0]
    assert sample(logits, make_row(0.0, **neutral)) == [0]


def test_top_p_of_1_keeps_everything_in_a_row_that_is_sorted_for_top_k():
    logits = [-40.0, 0.0, 0.0, -40.0, -50.0]
    assert sample(logits, make_row(0.0, top_k=4, top_p=1.0)) == [0]
    assert sample(logits, make_row(0.0, top_k=4, top_p=0.99)) == [1]


@pytest.mark.parametrize("uniform, expected", [(0.0, 1), (JUST_BELOW_1, 3)])
def test_the_ends_of_the_line_belong_to_tokens_that_were_kept(uniform, expected):
    assert sample([-INF, 0.3, 0.1, 0.2, -INF], make_row(uniform)) == [expected]
    assert sample([0.0, 0.3, 0.1, 0.2, 0.0], make_row(uniform, top_k=3)) == [expected]
    assert sample([0.0, 0.3, 0.1, 0.2, 0.0], make_row(uniform, min_p=0.8)) == [expected]


def test_a_sum_that_rounds_unevenly_draws_no_token_that_was_dropped(monkeypatch):
    """A parallel sum need not grow evenly. Here it also grows at dropped tokens, as no sum on this device does."""
    real = mx.cumsum
    monkeypatch.setattr(mx, "cumsum", lambda x, **how: real(x + (1e-3 if x.dtype == mx.float32 else 0), **how))
    logits = [-INF, 0.0, -INF, 0.5, -INF]
    assert sample(logits, make_row(0.0)) == [1]
    assert sample(logits, make_row(0.3779)) == [3], "the number lies on the stretch that token 2 should not have"
    assert sample(logits, make_row(0.99999)) == [3], "no token is right of the number: the most likely one"


@pytest.mark.parametrize("vocab_size", [1, 2])
def test_the_smallest_vocabularies(vocab_size):
    logits = [0.0] * vocab_size
    assert sample(logits, make_row(0.9), make_row(0.9, top_k=1), make_row(0.9, top_p=0.1)) == [vocab_size - 1, 0, 0]


# ---- greedy


def test_greedy_takes_the_first_of_equals_and_draws_nothing():
    row = make_row(temperature=0.0, top_k=2, top_p=0.5)
    assert sample([1.0, 3.0, 2.0, 3.0], row) == [1]
    assert row.random.num_draws == 0


def test_greedy_sees_differences_that_probabilities_do_not_show():
    logits = [0.0, 1e-9, 2e-9]
    assert sample(logits, make_row(temperature=0.0)) == [2]


def test_the_fast_path_is_the_argmax_of_each_row():
    logits = mx.array([[1.0, 3.0, 3.0], [5.0, 0.0, -1.0], [-3.0, -2.0, -1.0]])
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        got = Sampler().greedy(logits.astype(dtype))
        assert isinstance(got, mx.array) and got.tolist() == [1, 0, 2]


def test_greedy_and_sampled_rows_mix():
    rows = [make_row(0.99), make_row(temperature=0.0), make_row(0.01), make_row(0.01, temperature=0.0)]
    assert sample([0.0, 1.0, 0.0], *rows) == [2, 1, 0, 1]
    assert [row.random.num_draws for row in rows] == [1, 0, 1, 0]


@pytest.mark.parametrize("params, expected", [
    (dict(), True), (dict(top_k=3, top_p=0.5, min_p=0.1, seed=1), True), (dict(stop="x", logit_bias={}), True),
    (dict(temperature=0.1), False), (dict(repetition_penalty=1.1), False), (dict(logit_bias={1: 1.0}), False),
    (dict(min_tokens=1), False), (dict(logprobs=0), False)])
def test_plain_greedy_is_what_the_fast_path_can_do(params, expected):
    assert is_plain_greedy(SamplingParams(**{"temperature": 0.0, **params})) is expected


# ---- what changes the logits


def test_a_bias_is_added_to_its_token_alone():
    assert frequencies([1, 2, 1], 6, logit_bias={0: math.log(3)}) == [3, 2, 1]


@pytest.mark.parametrize("bias", [100, 1e30, INF])
def test_a_bias_of_100_or_more_makes_a_token_certain(bias):
    logits = [0.0, -20.0, 10.0]
    assert sample(logits, *(make_row(u, logit_bias={1: bias}) for u in (1e-9, 0.5, JUST_BELOW_1))) == [1, 1, 1]
    assert sample(logits, make_row(temperature=0.0, logit_bias={1: bias})) == [1]
    assert sample(logits, make_row(0.5, logit_bias={1: bias}, repetition_penalty=0.5, prompt=[1])) == [1]


def test_a_bias_of_minus_infinity_forbids_a_token():
    assert frequencies([6, 2, 1], 9, logit_bias={0: -INF}) == [0, 6, 3]
    assert sample([6.0, 2.0, 1.0], make_row(temperature=0.0, logit_bias={0: -INF})) == [1]


def test_a_bias_of_infinity_does_not_allow_what_the_model_forbids():
    assert sample([-INF, 1.0, 0.0], make_row(temperature=0.0, logit_bias={0: INF})) == [1]


def test_the_repetition_penalty_divides_positive_logits_and_multiplies_negative_ones():
    logits, seen = [4.0, 2.1, -1.0, -1.9, 0.0], dict(prompt=[0, 0, 2], output=[2, 4])
    chosen = [sample(logits, make_row(temperature=0.0, repetition_penalty=2.0,
                                      logit_bias={t: -INF for t in range(5) if t not in pair}, **seen))[0]
              for pair in ((0, 1), (2, 3))]
    assert chosen == [1, 3], "4 / 2 is less than 2.1, and -1 * 2 is less than -1.9; once for each token, not each time"
    weaker = sample(logits, make_row(temperature=0.0, repetition_penalty=1.9, **seen))
    assert weaker == [0], "4 / 1.9 is still more than 2.1"


def test_a_repetition_penalty_below_1_makes_repetition_likelier():
    assert sample([4.0, 2.1], make_row(temperature=0.0, repetition_penalty=0.5, output=[1])) == [1]


@pytest.mark.parametrize("penalty", [1e-50, 1e300])
def test_an_extreme_penalty_still_leaves_a_distribution(penalty):
    token = sample([0.0, 1.0, -1.0], make_row(0.25, repetition_penalty=penalty, prompt=[0, 1, 2]))
    assert token == ([1] if penalty < 1 else [0])


def test_the_bias_comes_before_the_penalty():
    # (1 + 3) / 2 = 2 is less than 2.4; 1 / 2 + 3 would be more.
    row = make_row(temperature=0.0, logit_bias={0: 3.0}, repetition_penalty=2.0, prompt=[0])
    assert sample([1.0, 2.4], row) == [1]


def test_until_min_tokens_neither_eos_nor_a_stop_id_is_sampled():
    params = dict(min_tokens=2, stop_token_ids=[1], eos=(0, 3), temperature=0.0)
    logits = [9.0, 8.0, 1.0, 7.0]
    assert sample(logits, *(make_row(output=output, **params) for output in ([], [2], [2, 2]))) == [2, 2, 0]
    assert sample(logits, make_row(JUST_BELOW_1, min_tokens=2, eos=(3,), stop_token_ids=[2])) == [1]


def test_ids_outside_the_vocabulary_change_nothing():
    row = make_row(temperature=0.0, min_tokens=1, eos=(4, 99), stop_token_ids=[77],
                   prompt=[3, 50], repetition_penalty=2.0)
    assert sample([1.0, 5.0, 4.0], row) == [1]


def test_the_callers_logits_stay_as_they_are():
    values = [[3.0, 2.0, 1.0, -1.0]]
    logits = mx.array(values)
    Sampler().sample(logits, [make_row(logit_bias={0: 1.0}, repetition_penalty=2.0, prompt=[1, 3], min_tokens=1,
                                       eos=(2,), top_k=2, min_p=0.5)])
    assert logits.tolist() == values
    Sampler().sample(logits, [make_row(repetition_penalty=2.0, prompt=[1, 3])])
    assert logits.tolist() == values


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_is_sampled_in_single_precision(dtype):
    logits = mx.array(np.random.default_rng(0).normal(size=(1, 2000)).astype(np.float32)).astype(dtype)
    uniforms = np.linspace(0, 1, 101)[:-1]
    got, expected = (Sampler().sample(mx.repeat(x, 100, axis=0), [make_row(u, top_p=0.9, logprobs=1) for u in uniforms])
                     for x in (logits, logits.astype(mx.float32)))
    assert got == expected
    assert len(set(got.token_ids)) > 90


# ---- the same seed, whatever the company


COMPANY = [dict(), dict(temperature=0.0), dict(top_k=3), dict(top_k=2000), dict(top_p=0.8), dict(min_p=0.1),
           dict(logprobs=3), dict(repetition_penalty=1.2, logit_bias={5: 2.0}),
           dict(top_k=40, top_p=0.9, min_p=0.01, temperature=0.7)]


@pytest.mark.parametrize("params", [p for p in COMPANY if p.get("temperature") != 0.0], ids=str)
def test_the_same_seed_gives_the_same_tokens_in_any_batch(params):
    vocab_size, num_steps = 4099, 8
    own_logits = np.random.default_rng(1).normal(scale=2.5, size=(num_steps, vocab_size)).astype(np.float32)

    def tokens(num_rows, company_seed):
        company = np.random.default_rng(company_seed)
        row, output = make_row(make_generator(42), prompt=[7, 8], **params), []
        for step in range(num_steps):
            rows = [make_row(company.random(), **COMPANY[company.integers(len(COMPANY))]) for _ in range(num_rows)]
            logits = company.normal(scale=3.0, size=(num_rows, vocab_size)).astype(np.float32)
            place = company.integers(num_rows)
            rows[place], logits[place] = row, own_logits[step]
            row.output_token_ids = list(output)
            output.append(Sampler().sample(mx.array(logits), rows).token_ids[place])
        return output

    alone = tokens(1, company_seed=0)
    assert len(set(alone)) > 5
    for num_rows in (7, 33):
        for company_seed in (1, 2):
            got = tokens(num_rows, company_seed)
            assert got == alone, f"in a batch of {num_rows} seed 42 gave {got}, alone {alone}"


@pytest.mark.parametrize("params", COMPANY, ids=str)
def test_a_row_does_not_notice_that_another_one_is_sorted(params):
    logits = np.random.default_rng(2).normal(size=2048)
    uniforms = np.linspace(0, 1, 200, endpoint=False)
    alone = sample(logits, *(make_row(u, **params) for u in uniforms))
    assert len(set(alone)) > (150 if params.get("top_k", 2048) > 40 and params.get("temperature") != 0.0 else 0)
    for other in (dict(top_p=0.7), dict(top_k=5), dict(temperature=0.0)):
        together = sample(logits, *(make_row(u, **params) for u in uniforms), make_row(**other))
        assert together[:-1] == alone


def test_generators_are_told_apart_by_seed_and_index():
    def numbers(*key):
        return tuple(make_generator(*key).random(4))

    assert numbers(5) == numbers(5, 0) == numbers(5)
    keys = [(5, 0), (5, 1), (6, 0), (1, 5), (2**32, 0), (2**64, 0), (0, 0), (0, 1), (0, 2**32)]
    assert len({numbers(*key) for key in keys}) == len(keys)
    assert numbers(None) != numbers(None)


# ---- log-probabilities


def log_softmax(logits):
    logits = np.array(logits, dtype=np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def logprobs_of(logits, **params):
    return Sampler().sample(mx.array([logits]), [make_row(**params)]).logprobs[0]


def test_logprobs_are_the_log_softmax_of_the_raw_logits():
    logits = np.random.default_rng(4).normal(scale=3.0, size=(6, 20)).astype(np.float32)
    rows = [make_row(0.3, logprobs=20, temperature=temperature, top_k=2, repetition_penalty=1.5, logit_bias={3: 4.0},
                     prompt=[1, 2, 3], min_tokens=1, eos=(0,)) for temperature in (0.0, 0.5, 1.0, 2.0, 0.1, 0.0)]
    output = Sampler().sample(mx.array(logits), rows)
    for token_id, answer, row_logits in zip(output.token_ids, output.logprobs, logits):
        expected = log_softmax(row_logits)
        assert sorted(answer.top) == list(range(20))
        assert np.allclose([answer.top[token] for token in range(20)], expected, atol=2e-6)
        assert math.isclose(sum(math.exp(value) for value in answer.top.values()), 1, abs_tol=1e-5)
        assert answer.token_id == token_id and answer.logprob == answer.top[token_id]


@pytest.mark.parametrize("params", [dict(logit_bias={0: 1.0}), dict(repetition_penalty=2.0, prompt=[0]),
                                    dict(min_tokens=1, eos=(0,)), dict(temperature=0.5)], ids=str)
def test_no_parameter_alone_shows_in_the_logprobs(params):
    logits = [1.0, 2.0, 3.0]
    top = logprobs_of(logits, logprobs=3, **params).top
    assert np.allclose([top[token] for token in range(3)], log_softmax(logits), atol=2e-6)


def test_the_top_logprobs_descend_and_the_lower_id_comes_first_among_equals():
    assert list(logprobs_of([1.0, 3.0, 2.0, 3.0, 2.0, 2.0], logprobs=4).top) == [1, 3, 2, 4]
    assert list(logprobs_of([1.0, 1.0, 1.0], logprobs=2).top) == [0, 1]
    assert list(logprobs_of([1.0, 2.0, 2.0], logprobs=20).top) == [1, 2, 0], "more than there are"


def test_logprobs_0_reports_the_chosen_token_alone():
    answer = logprobs_of([0.0, 0.0], logprobs=0)
    assert answer.top == {} and math.isclose(answer.logprob, math.log(0.5), rel_tol=1e-6)


def test_a_chosen_token_need_not_be_among_the_top():
    answer = logprobs_of([0.0, 9.0, 8.0], logprobs=1, logit_bias={0: 100})
    assert answer.token_id == 0 and list(answer.top) == [1] and answer.logprob < -9


def test_only_rows_that_ask_get_logprobs():
    rows = [make_row(), make_row(logprobs=1), make_row(temperature=0.0), make_row(temperature=0.0, logprobs=2)]
    logprobs = Sampler().sample(mx.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [5.0, 0.0]]), rows).logprobs
    assert [answer and list(answer.top) for answer in logprobs] == [None, [0], None, [0, 1]]
    assert math.isclose(logprobs[3].logprob, log_softmax([5.0, 0.0])[0], rel_tol=1e-4)


# ---- what is refused


FINE = [0.0, 1.0, 2.0]


@pytest.mark.parametrize("bad_logits, bad_params, message", [
    ([0.0, math.nan, 1.0], dict(), "row 2: the logits contain NaN"),
    ([0.0, math.nan, 1.0], dict(min_tokens=1, eos=(1,)), "row 2: the logits contain NaN"),
    ([0.0, math.nan, 1.0], dict(temperature=0.0), "row 2: the logits contain NaN"),
    ([-INF, -INF, -INF], dict(), "row 2: all logits are -inf"),
    ([-INF, -INF, -INF], dict(logit_bias={1: INF}), "row 2: all logits are -inf"),
    ([0.0, INF, 1.0], dict(), r"row 2: a logit is \+inf"),
    (FINE, dict(logit_bias={0: -INF, 1: -INF, 2: -INF}), "row 2: all logits are -inf after logit_bias and min_tokens"),
    (FINE, dict(logit_bias={0: -INF, 1: -INF}, min_tokens=1, eos=(2,)), "row 2: all logits are -inf after"),
    (FINE, dict(logit_bias={3: 1.0}), "row 2: logit_bias names token 3, but the vocabulary has 3 tokens"),
])
def test_a_bad_row_is_named_and_no_number_is_drawn(bad_logits, bad_params, message):
    rows = [make_row(), make_row(top_p=0.5), make_row(**bad_params), make_row()]
    with pytest.raises(ValueError, match=message):
        Sampler().sample(mx.array([FINE, FINE, bad_logits, FINE]), rows)
    assert [row.random.num_draws for row in rows] == [0, 0, 0, 0]


def test_after_a_failure_a_seed_continues_as_if_nothing_had_happened():
    logits, random = mx.array(np.zeros((1, 1000), dtype=np.float32)), make_generator(9)
    with pytest.raises(ValueError, match="row 1"):
        Sampler().sample(mx.array([FINE, [math.nan] * 3]), [make_row(random), make_row()])
    again = make_generator(9)
    got = [Sampler().sample(logits, [make_row(random)]).token_ids for _ in range(3)]
    assert got == [Sampler().sample(logits, [make_row(again)]).token_ids for _ in range(3)]


def test_exactly_one_number_is_drawn_for_a_token():
    row = make_row(Scripted(0.1, 0.9, 0.5), top_k=2, top_p=0.9, logprobs=2)
    got = [sample([0.0, 0.0, -9.0], row)[0] for _ in range(3)]
    assert got == [0, 1, 1] and row.random.num_draws == 3


def test_rows_and_logits_must_agree_in_number():
    with pytest.raises(ValueError, match="1 rows for logits of 2 rows"):
        Sampler().sample(mx.array([FINE, FINE]), [make_row()])


def test_no_rows_give_no_tokens():
    output = Sampler().sample(mx.zeros((0, 5)), [])
    assert output.token_ids == [] and output.logprobs == []
