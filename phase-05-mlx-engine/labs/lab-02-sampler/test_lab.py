"""Lab 5.2, the sampler. Three kinds of tests:

- **Token for token.** The key fixes the noise, so the right token is known. The functions below compute it, one row at
  a time and in double precision. If two sums are closer than ``NEAR``, rounding may decide, and the row is not checked.
- **Which tokens can be drawn at all.** These tests make ``NUM_SUPPORT_DRAWS`` draws and look at the set of tokens. A
  token that a filter dropped must not be in the set, and a token that it kept must be. Every kept token in these tests
  has a probability of at least 0.09, so it is missing with a probability of at most 0.91 ** 500 < 1e-20.
- **How often.** These tests make ``NUM_DRAWS`` independent draws. By Hoeffding's inequality the share of a token is off
  by more than ``TOLERANCE`` with a probability of at most 2 * exp(-2 * NUM_DRAWS * TOLERANCE ** 2) = 1.5e-11. So one
  test, with at most 20 tokens, gives a false alarm with a probability below 1e-9.

All keys are fixed, so every run gives the same result. The probabilities say how likely a correct sampler is to fail
with randomly chosen keys.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from course.testing.measure_mlx import values_after
from mini_vllm.backend import mx
from mini_vllm.logit_rules import SamplerRow, make_key
from mini_vllm.request import SamplingParams

INF = math.inf
NUM_DRAWS, TOLERANCE = 2000, 0.08
NUM_SUPPORT_DRAWS = 500
#: If two sums are closer than this, rounding may decide. A correct sampler in float32 is off by about 1e-6.
NEAR = 1e-4
SMALLEST_UNIFORM = 2.0 ** -33


# ---- rows, calls, and the expected results


def make_row(key=(1, 2), num_output=0, **params):
    """Return the row of a request that has generated ``num_output`` tokens."""
    return SamplerRow(SamplingParams(**params), (), (0,) * num_output, (), key)


def many_rows(num_rows, first_word=7, **params):
    """Return ``num_rows`` rows with the same parameters and different keys."""
    shared = SamplingParams(**params)
    return [SamplerRow(shared, (), (), (), (first_word, index)) for index in range(num_rows)]


def log_weights(weights, num_rows=1, shift=0):
    """Return the logits of tokens with these ``weights``, the same in every row. ``shift`` is added to all of them."""
    with np.errstate(divide="ignore"):
        return np.tile(np.log(np.array(weights, dtype=np.float64)) + shift, (num_rows, 1)).astype(np.float32)


def draw(lab, logits, rows, *num_ahead):
    """Call ``Sampler().draw``, check the shape of the result, and return it as a list of ints."""
    logits = mx.array(np.asarray(logits, dtype=np.float32)) if not isinstance(logits, mx.array) else logits
    got = lab.Sampler().draw(logits, list(rows), *num_ahead)  # a copy of the list
    assert isinstance(got, mx.array) and got.shape == (len(rows),), (
        f"draw(logits {logits.shape}, {len(rows)} rows) returned {type(got).__name__} of shape "
        f"{getattr(got, 'shape', None)}, expected an mx.array of shape ({len(rows)},): one token id per row")
    return [int(token) for token in got.tolist()]


def check_draws(lab):
    """Check that ``draw`` really draws. A constant result would pass a test that two draws are equal."""
    got = draw(lab, np.zeros((20, 1000), dtype=np.float32), many_rows(20, temperature=1.0))
    assert len(set(got)) > 10, (f"20 rows with 1000 equally likely tokens and 20 different keys drew {got}, "
                                "expected mostly different tokens: the result must be random")


def uniform_of(keys, vocab_size):
    """Return the numbers of MLX's generator for each of ``keys``, one at a time, in double precision."""
    numbers = [mx.random.uniform(shape=(vocab_size,), key=key) for key in mx.array(np.array(keys, dtype=np.uint32))]
    return np.array(mx.stack(numbers), dtype=np.float64)


def noise_of(keys, vocab_size):
    return -np.log(-np.log1p(-np.maximum(uniform_of(keys, vocab_size), SMALLEST_UNIFORM)))


def probabilities(logits, params):
    """Return the probability of each token of one row, and how close the closest decision of a filter was."""
    logits = np.asarray(logits, dtype=np.float64)
    weight = np.exp((logits - logits.max()) / params.temperature)
    kept, nearest = np.argsort(-logits, kind="stable").tolist(), 1.0
    if 0 < params.top_k < len(logits):
        gap = logits[kept[params.top_k - 1]] - logits[kept[params.top_k]]
        nearest, kept = min(nearest, gap or 1.0), kept[:params.top_k]
    if params.top_p < 1:
        total, mass, nucleus = sum(weight[token] for token in kept), 0.0, []
        for token in kept:
            if nucleus:
                nearest = min(nearest, abs(mass / total - params.top_p))
            if nucleus and mass / total >= params.top_p:
                break
            nucleus.append(token)
            mass += weight[token]
        kept = nucleus
    if params.min_p:
        nearest = min([nearest] + [abs(weight[token] - params.min_p) for token in kept if weight[token] != 1])
        kept = [token for token in kept if weight[token] >= params.min_p]
    share = np.zeros(len(logits))
    share[kept] = weight[kept] / weight[kept].sum()
    return share, nearest


def noise_key(row, num_ahead=0):
    return row.key[0], (row.key[1] + len(row.output_token_ids) + num_ahead) % 2 ** 32


def expected_tokens(logits, rows, num_ahead=0):
    """Return, for each row, the right token and how close another result was."""
    logits = np.array(logits)
    answers = []
    noises = noise_of([noise_key(row, num_ahead) for row in rows], logits.shape[1])
    for row, row_logits, noise in zip(rows, logits, noises):
        if row.params.temperature == 0:
            answers.append((int(np.argmax(row_logits)), 1.0))
            continue
        share, nearest = probabilities(row_logits, row.params)
        with np.errstate(divide="ignore"):
            sums = np.log(share) + noise
        best = int(np.argmax(sums))
        sums[best], largest = -INF, sums[best]
        answers.append((best, min(nearest, float(largest - sums.max()))))
    return answers


def check_tokens(lab, logits, rows, call, num_ahead=0, rule=None, show=()):
    """Check that each row draws the token that follows from its parameters, its key and its position.

    A test of a filter passes its ``rule`` for the message. The message shows the parameters in ``show`` even if they
    are neutral.
    """
    rows, num_checked = tuple(rows), 0
    answers = expected_tokens(logits, rows, num_ahead)  # before the student's code sees the rows
    got = draw(lab, logits, rows, *([num_ahead] if num_ahead else []))
    for index, (row, token, (expected, margin)) in enumerate(zip(rows, got, answers)):
        if margin > NEAR:
            num_checked += 1
            assert token == expected, (
                f"{call}: row {index} of {len(rows)} ({told(row, show)}) drew token {token}, expected {expected}: "
                + why(np.array(logits)[index], row, token, expected, num_ahead, rule))
    assert num_checked > 0.9 * len(rows), (
        f"{call}: in {len(rows) - num_checked} of {len(rows)} rows two sums are too close to decide: this is a mistake "
        "in the test, not in your code")


def why(logits, row, token, expected, num_ahead, rule):
    """Return the rule that a wrong token breaks."""
    if row.params.temperature == 0:
        return "temperature 0 takes the largest logit; among equal logits, the lowest id"
    if rule is None:
        said = plural(len(row.output_token_ids), "output token")
        return ("it has the largest sum of score and noise. The key of the noise is "
                f"{noise_key(row, num_ahead)} = row.key + {said} + num_ahead {num_ahead}")
    share, _ = probabilities(logits, row.params)
    num_kept = np.count_nonzero(share)
    if 0 <= token < len(share) and share[token] == 0:
        return f"token {token} must be dropped; the filters keep {num_kept} of {len(share)} tokens. {rule}"
    return (f"both are among the {num_kept} of {len(share)} tokens that stay. If the tests of task 3 pass, your code "
            f"dropped token {expected} or changed its score. {rule}")


def plural(count, noun):
    return f"{count} {noun}" + ("" if count == 1 else "s")


def told(row, show=()):
    """Describe a row: its key, its position, and the parameters that are in ``show`` or not neutral."""
    neutral = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
    values = {name: getattr(row.params, name) for name in neutral}
    parts = [f"{name} {value:.10g}" for name, value in values.items() if name in show or value != neutral[name]]
    return ", ".join([*parts, f"key {row.key}", plural(len(row.output_token_ids), "output token")])


def check_support(lab, weights, expected, rule, shift=0, **params):
    """Check that many draws give exactly the tokens in ``expected``."""
    rows = many_rows(NUM_SUPPORT_DRAWS, **params)
    got = sorted(set(draw(lab, log_weights(weights, len(rows), shift), rows)))
    logits = [round(float(logit), 2) for logit in log_weights(weights, 1, shift)[0]]
    if "top_p" in params and len(expected) == 1 and len(got) > 1:
        rule += (". (Is num_kept 0 here? MLX does not check an index: num_kept - 1 is then the last index, and too "
                 "many tokens stay)")
    assert got == sorted(expected), (
        f"{NUM_SUPPORT_DRAWS} draws from tokens with the weights {list(weights)}"
        f"{f' (their logits are {logits})' if shift else ''} and {params}: the tokens {got} were drawn, expected "
        f"{sorted(expected)}: {rule}")


def check_frequencies(lab, weights, shares, rule, **params):
    """Check the frequency of each token in ``NUM_DRAWS`` draws against ``shares``, which need not add up to 1."""
    rows = many_rows(NUM_DRAWS, **params)
    got = np.bincount(draw(lab, log_weights(weights, NUM_DRAWS), rows), minlength=len(weights)) / NUM_DRAWS
    expected = np.array(shares) / sum(shares)
    worst = int(np.argmax(np.abs(got - expected)))
    assert abs(got[worst] - expected[worst]) < TOLERANCE, (
        f"{NUM_DRAWS} draws from tokens with the weights {list(weights)} and {params}: the share of token {worst} is "
        f"{got[worst]:.3f}, expected {expected[worst]:.3f} ± {TOLERANCE}: {rule}")


# ---- Task 1: greedy


@pytest.mark.points(1)
def test_task_1_greedy_takes_the_largest_logit_of_each_row(lab):
    logits = [[1.0, 3.0, 2.0, 0.0], [5.0, 0.0, -1.0, 4.5], [-3.0, -2.0, -1.0, -INF]]
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        got = lab.Sampler().greedy(mx.array(logits).astype(dtype))
        assert isinstance(got, mx.array) and got.tolist() == [1, 0, 2], (
            f"greedy({logits} in {dtype}) returned {got}, expected an mx.array of [1, 0, 2]: the index of the largest "
            "logit of each row")


@pytest.mark.points(1)
def test_task_1_among_equals_the_lowest_id_comes(lab):
    logits = [[1.0, 3.0, 2.0, 3.0], [2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 7.0, 7.0]]
    got = lab.Sampler().greedy(mx.array(logits)).tolist()
    assert got == [1, 0, 2], f"greedy({logits}) returned {got}, expected [1, 0, 2]: among equal logits, the lowest id"


# ---- Task 2: noise


def noise_rows(lab, keys, vocab_size):
    got = np.array(lab.gumbel_noise(mx.array(np.array(keys, dtype=np.uint32)), vocab_size))
    assert got.shape == (len(keys), vocab_size), (
        f"gumbel_noise of {len(keys)} keys for {vocab_size} tokens has shape {got.shape}, expected "
        f"({len(keys)}, {vocab_size})")
    return got.astype(np.float64)


def check_no_nan(noise, keys):
    row, token = np.unravel_index(np.argmax(np.isnan(noise)), noise.shape)
    assert not np.isnan(noise[row, token]), (
        f"gumbel_noise of key {tuple(keys[row])}: number {token} is nan: the logarithm of a negative number. "
        f"{np.count_nonzero(np.isnan(noise))} of {noise.size} numbers are nan")


@pytest.mark.points(3)
def test_task_2_noise_is_the_formula_of_each_keys_own_numbers(lab):
    keys = np.random.default_rng(1).integers(0, 2 ** 32, (64, 2)).tolist()
    got = noise_rows(lab, keys, 5000)
    check_no_nan(got, keys)
    expected = noise_of(keys, 5000)
    row, token = np.unravel_index(np.argmax(np.abs(got - expected)), got.shape)
    assert abs(got[row, token] - expected[row, token]) < 1e-5, (
        f"gumbel_noise of key {keys[row]}: number {token} is {got[row, token]:.6f}, expected "
        f"{expected[row, token]:.6f}, which is -log(-log(1 - u)) for u = {uniform_of(keys, 5000)[row, token]:.3g}; "
        f"{np.count_nonzero(np.abs(got - expected) >= 1e-5)} of {got.size} numbers are off by 1e-5 or more")


@pytest.mark.points(1)
def test_task_2_noise_depends_on_the_key_alone(lab):
    keys = [(5, 5), (9, 1), (5, 6), (9, 1), (6, 5)]
    together = noise_rows(lab, keys, 100)
    check_no_nan(together, keys)
    alone = np.concatenate([noise_rows(lab, [key], 100) for key in keys])
    assert (together == alone).all(), (f"gumbel_noise({keys}) differs from five calls with one key each: a row must "
                                       "not depend on the other rows or on its index")
    different = {tuple(row) for row in together.tolist()}
    assert len(different) == 4, (f"the keys {keys} gave {len(different)} different rows of noise, expected 4: both "
                                 "words of a key count, and equal keys give equal noise")
    fewer, expected = noise_rows(lab, keys, 60), noise_of(keys, 60)
    assert np.abs(fewer - expected).max() < 1e-5, (
        f"gumbel_noise({keys}, 60), called after the same keys with 100, differs from the formula by up to "
        f"{np.abs(fewer - expected).max():.3g}, expected less than 1e-5: use uniform(shape=(60,), key=...), not the "
        "first 60 of 100 numbers, and keep nothing from an earlier call")


@pytest.mark.points(2)
def test_task_2_noise_is_finite_where_the_generator_gives_0(lab):
    """Use a key for which the generator returns 0 at a known index. One number in 2 ** 32 is 0."""
    key, vocab_size, token = (1, 1_932_248), 1024, 386
    got = noise_rows(lab, [key], vocab_size)[0]
    check_no_nan(got[None], [key])
    assert np.isfinite(got).all(), (
        f"gumbel_noise of key {key} for {vocab_size} tokens: number {int(np.argmin(np.isfinite(got)))} is not finite. "
        "The generator returned 0 there. Replace it with SMALLEST_UNIFORM, or a token with score -inf gets NaN. (In "
        "float32, 1 - SMALLEST_UNIFORM is 1: use log1p)")
    expected = -math.log(-math.log1p(-SMALLEST_UNIFORM))
    assert abs(got[token] - expected) < 1e-5, (
        f"gumbel_noise of key {key}: number {token}, where the generator returned 0, is {got[token]:.4f}, expected "
        f"{expected:.4f}, which is -log(-log(1 - SMALLEST_UNIFORM))")


@pytest.mark.points(2)
def test_task_2_noise_has_the_gumbel_distribution(lab):
    """Compare the distribution of n numbers with the Gumbel distribution.

    By the inequality of Dvoretzky, Kiefer and Wolfowitz, the share of numbers below some x is off by more than 0.008
    with a probability of at most 2 * exp(-2 * n * 0.008 ** 2) = 1.5e-11.
    """
    num_numbers = 200_000
    keys = np.random.default_rng(2).integers(0, 2 ** 32, (100, 2)).tolist()
    noise = noise_rows(lab, keys, num_numbers // len(keys))
    check_no_nan(noise, keys)
    noise = np.sort(noise.ravel())
    below = np.exp(-np.exp(-noise))  # the share of the Gumbel distribution below each number
    distance = np.abs(below - (np.arange(num_numbers) + 0.5) / num_numbers)
    worst = int(np.argmax(distance))
    assert distance[worst] < 0.008, (
        f"of {num_numbers} numbers from gumbel_noise, a share of {(worst + 0.5) / num_numbers:.3f} is below "
        f"{noise[worst]:.3f}, expected {below[worst]:.3f} ± 0.008: the distribution function is exp(-exp(-x))")


# ---- Task 3: a draw


@pytest.mark.points(4)
def test_task_3_the_largest_sum_of_score_and_noise_is_drawn(lab):
    temperatures = np.array([1.0, 0.6, 1.7, 0.05, 0.001, 1e-6] * 34)
    # With a small temperature the draw is random only if the logits are close to each other.
    logits = np.random.default_rng(3).normal(scale=2.0, size=(204, 300)) * np.minimum(temperatures, 1)[:, None]
    rows = [make_row(make_key(index), num_output=index % 4, temperature=float(temperature))
            for index, temperature in enumerate(temperatures)]
    check_tokens(lab, logits.astype(np.float32), rows, "draw with temperatures 1, 0.6, 1.7, 0.05, 0.001 and 1e-6",
                 show=["temperature"])


@pytest.mark.points(3)
def test_task_3_tokens_come_as_often_as_the_temperature_says(lab):
    for temperature, shares in ((1.0, [1, 9, 4]), (0.5, [1, 81, 16]), (2.0, [1, 3, 2])):
        check_frequencies(lab, [1, 9, 4], shares, temperature=temperature, rule=(
            "probabilities are proportional to weight ** (1 / temperature). A temperature below 1 is sharper, above 1 "
            "flatter; add the noise unchanged, after the division"))


@pytest.mark.points(2)
def test_task_3_greedy_rows_and_drawn_rows_mix(lab):
    logits = np.random.default_rng(4).integers(0, 6, size=(60, 50)).astype(np.float32)  # many equal logits
    rows = [make_row((3, index), temperature=0.0 if index % 3 else 1.0) for index in range(60)]
    got = draw(lab, logits, rows)
    for index in range(60):
        if index % 3:
            assert got[index] == int(np.argmax(logits[index])), (
                f"row {index} of a mixed batch has temperature 0 and drew token {got[index]}, expected "
                f"{int(np.argmax(logits[index]))}: the result of greedy, without noise among equal logits")
    check_tokens(lab, logits, rows, "a batch in which two of three rows are greedy")
    alone = draw(lab, logits[1:2], rows[1:2])
    assert alone == got[1:2], (f"draw of row 1 alone, which has temperature 0, gave {alone}, expected {got[1:2]}, the "
                               "same as in the batch")


@pytest.mark.points(2)
def test_task_3_each_position_has_its_own_noise(lab):
    logits = np.zeros((20, 1000), dtype=np.float32)
    rows = [make_row((8, 100), num_output=position) for position in range(20)]
    got = draw(lab, logits, rows)
    assert len(set(got)) > 10, (  # 20 draws from 1000 tokens give 10 or fewer different ones once in 1e13 times
        f"one request at 20 positions in a row drew {got} from 1000 equal tokens: each position needs its own "
        "noise, or the request repeats the same token")
    check_tokens(lab, logits, rows, "one request at 20 positions")
    later = [make_row((8, 100), num_output=position) for position in (255, 256, 300, 1000, 65_536, 70_000)]
    check_tokens(lab, logits[:6], later, "one request at positions far apart")


@pytest.mark.points(1)
def test_task_3_what_the_output_says_does_not_matter(lab):
    check_draws(lab)
    logits = np.zeros((1, 1000), dtype=np.float32)
    params = SamplingParams()
    got = [draw(lab, logits, [SamplerRow(params, prompt, output, (), (4, 4))])[0]
           for prompt, output in (((), [3, 3, 3]), ((), [9, 1, 7]), ((5, 6), [0, 0, 999]))]
    assert len(set(got)) == 1, (f"three rows with the same key and different output tokens, but three in each row: the "
                                f"tokens {got} were drawn, expected the same token three times: only the number of "
                                "output tokens counts")


@pytest.mark.points(3)
def test_task_3_draws_of_one_request_are_independent(lab):
    """Draw at 2000 positions of one key, and look at 1000 pairs of consecutive draws that do not overlap.

    By Hoeffding's inequality the share of a pair is off by more than 0.113 with a probability of at most
    2 * exp(-2 * 1000 * 0.113 ** 2) = 1.6e-11.
    """
    share, params = np.array([0.5, 0.3, 0.2]), SamplingParams()
    rows = [SamplerRow(params, (), range(position), (), (11, 13)) for position in range(NUM_DRAWS)]
    got = np.array(draw(lab, log_weights(share, NUM_DRAWS), rows))
    often = np.bincount(got, minlength=3) / NUM_DRAWS
    assert np.abs(often - share).max() < TOLERANCE, (
        f"one request at {NUM_DRAWS} positions: the shares of the tokens are {often.round(3).tolist()}, expected "
        f"{share.tolist()} ± {TOLERANCE}")
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (got[::2], got[1::2]), 2 / NUM_DRAWS)
    worst = np.unravel_index(np.argmax(np.abs(pairs - np.outer(share, share))), (3, 3))
    assert abs(pairs[worst] - share[worst[0]] * share[worst[1]]) < 0.113, (
        f"token {worst[0]} is followed by token {worst[1]} in {pairs[worst]:.3f} of the pairs, expected "
        f"{share[worst[0]] * share[worst[1]]:.3f} ± 0.113: a draw must not depend on the draw before it")


@pytest.mark.points(2)
def test_task_3_a_token_can_be_drawn_ahead(lab):
    random = np.random.default_rng(5)
    logits = random.normal(size=(40, 500)).astype(np.float32)
    rows = [make_row((6, index), num_output=index % 7, temperature=float(index % 4 > 0)) for index in range(40)]
    for num_ahead in (1, 3):
        later = [make_row((6, index), num_output=index % 7 + num_ahead, temperature=float(index % 4 > 0))
                 for index in range(40)]
        got, expected = draw(lab, logits, rows, num_ahead), draw(lab, logits, later)
        wrong = [index for index in range(40) if got[index] != expected[index]]
        first = wrong[0] if wrong else 0
        assert not wrong, (
            f"draw(…, num_ahead={num_ahead}): {len(wrong)} of 40 rows are wrong. The first is row {first} "
            f"({told(rows[first], ['temperature'])}), which drew {got[first]}, expected {expected[first]}, the "
            f"token that the same request draws from the same logits when it has {plural(num_ahead, 'more token')}: a "
            "step that begins early must draw the same tokens")
    check_tokens(lab, logits, rows, "draw with num_ahead=1", num_ahead=1)


@pytest.mark.points(1)
def test_task_3_a_key_that_reaches_its_end_goes_on_at_0(lab):
    check_draws(lab)
    logits = np.zeros((2, 1000), dtype=np.float32)
    rows = [make_row((1, 2 ** 32 - 1), num_output=5), make_row((1, 0), num_output=4)]
    try:
        first, second = draw(lab, logits, rows)
    except NotImplementedError:
        raise
    except (RuntimeError, OverflowError, ValueError, TypeError) as error:  # MLX only says std::bad_cast
        raise AssertionError(
            f"key (1, 2 ** 32 - 1) at position 5: draw raised {type(error).__name__}: {error}. row.key[1] + 5 output "
            "tokens is more than fits into uint32: compute it modulo 2 ** 32") from error
    assert first == second, (f"key (1, 2 ** 32 - 1) at position 5 drew {first}, key (1, 0) at position 4 drew "
                             f"{second}, expected the same token: both have the key (1, 4), because the second word "
                             "is taken modulo 2 ** 32")


@pytest.mark.points(4)
def test_task_3_a_row_draws_the_same_in_any_company(lab):
    check_draws(lab)
    temperatures = np.array([[0.7, 1.0, 0.0, 1.5, 0.001][index % 5] for index in range(64)])
    logits = np.random.default_rng(6).normal(size=(64, 400))
    logits[temperatures == 0.001] *= 0.001
    logits[7] += 1000  # only this row may subtract it; in another row's scores it would destroy the precision
    rows = [make_row(make_key(index // 2, index % 2), num_output=index % 9, temperature=float(temperatures[index]))
            for index in range(64)]
    check_company(lab, logits.astype(np.float32), rows)


def check_company(lab, logits, rows, show=("temperature",)):
    """Check that each row draws the same token alone, with all rows, in another order, and with every second row."""
    alone = [draw(lab, logits[index:index + 1], rows[index:index + 1])[0] for index in range(len(rows))]
    order = np.random.default_rng(0).permutation(len(rows))
    every_second = np.arange(0, len(rows), 2)
    for name, places in (("together", np.arange(len(rows))), ("in another order", order),
                         ("without every second one", every_second)):
        got = draw(lab, logits[places], [rows[index] for index in places])
        wrong = [(int(index), token) for index, token in zip(places, got) if token != alone[index]]
        assert not wrong, (
            f"{len(places)} rows in one call, {name}: {len(wrong)} of them drew different tokens than alone. The first "
            f"is ({told(rows[wrong[0][0]], show)}): it drew {wrong[0][1]}, alone {alone[wrong[0][0]]}. A row must "
            "not depend on the other rows or on its index")


@pytest.mark.points(1)
def test_task_3_the_samples_of_one_seed_differ(lab):
    keys = [make_key(5, index) for index in range(3)]
    rows = [make_row(key, num_output=position) for key in keys for position in range(8)]
    got = np.array(draw(lab, np.zeros((24, 1000), dtype=np.float32), rows)).reshape(3, 8).tolist()
    assert len({tuple(sample) for sample in got}) == 3, (
        f"three samples of one prompt, with the keys {keys}, drew {got} from 1000 equal tokens at 8 positions, "
        "expected three different texts")


@pytest.mark.points(1)
def test_task_3_a_logit_of_minus_infinity_is_never_drawn(lab):
    check_support(lab, [1, 0, 2, 0, 1], {0, 2, 4}, "a token with logit -inf must not be drawn, whatever its noise")
    key, vocab_size, token = (1, 1_932_248), 1024, 386  # this token has the largest possible noise
    logits = np.zeros((1, vocab_size), dtype=np.float32)
    logits[0, token] = -INF
    (got,) = draw(lab, logits, [make_row(key)])
    ((expected, _),) = expected_tokens(logits, [make_row(key)])
    assert got == expected, (f"token {token} has logit -inf, and the generator returns 0 for it; token {got} was "
                             f"drawn, expected {expected}")


@pytest.mark.points(1)
def test_task_3_half_precision_is_drawn_in_single_precision(lab):
    check_draws(lab)
    for dtype in (mx.float16, mx.bfloat16):
        logits = mx.array(np.random.default_rng(7).normal(size=(300, 2000)).astype(np.float32)).astype(dtype)
        rows = many_rows(300, temperature=0.7)
        got, expected = draw(lab, logits, rows), draw(lab, logits.astype(mx.float32), rows)
        num_other = sum(one != other for one, other in zip(got, expected))
        assert num_other == 0, (f"{num_other} of 300 rows drew a different token from logits in {dtype} than from the "
                                "same numbers in float32: convert them to float32 before you compute anything")


@pytest.mark.points(1)
def test_task_3_no_temperature_is_too_small_or_too_large(lab):
    for temperature in (1e-50, 1e-38, 1e-3):
        for shift in (20, -20):
            check_support(lab, [1, 9, 4, 0], {1}, f"temperature {temperature} leaves only the most likely token. The "
                          "largest score of a row is 0, however large or small its logits are: first subtract the "
                          "largest logit, then divide", temperature=temperature, shift=shift)
    check_frequencies(lab, [1, 9, 4, 0], [1, 1, 1, 0], "temperature 1e300 makes all tokens equally likely, except one "
                      "with logit -inf", temperature=1e300)


@pytest.mark.points(1)
@pytest.mark.inside("another process gets a copy of an MLX array: only the file's own process can see a write into it")
def test_task_3_the_callers_logits_stay_as_they_are(lab):
    check_draws(lab)
    values = [[3.0, 2.0, 1.0, -1.0], [0.5, 0.25, 4.0, 4.0]]
    rows = [SamplerRow(SamplingParams(temperature=temperature), (), [0] * num_output, (), (1, 2))
            for temperature, num_output in ((0.5, 2), (0.0, 1))]
    check_tokens(lab, values, rows, "draw of two rows")
    before = repr(rows)
    after = values_after(lab.Sampler().draw, mx.array(values), rows)
    assert after == values, (f"after draw the caller's logits are {after}, but they were {values}: do not change them, "
                             "because the engine still uses them")
    assert repr(rows) == before, (f"after draw the caller's rows are {rows}, but they were {before}: a row belongs "
                                  "to its request, and the scheduler appends the token")


# ---- Task 4: top-k


TOP_K_RULE = ("Top-k keeps the top_k most likely tokens of each row; among equal tokens, the lowest ids. It keeps all "
              "tokens if top_k is 0 or above vocab_size")


@pytest.mark.points(3)
def test_task_4_top_k_keeps_exactly_k(lab):
    weights = [1, 6, 2, 9, 4]
    for top_k, expected in ((1, {3}), (2, {1, 3}), (3, {1, 3, 4}), (4, {1, 2, 3, 4})):
        check_support(lab, weights, expected, f"the {plural(top_k, 'most likely token')} must stay", top_k=top_k)


@pytest.mark.points(1)
def test_task_4_a_top_k_of_0_or_above_the_vocabulary_keeps_all(lab):
    rows = [make_row((2, index), top_k=[0, 5, 6, 99, 2][index % 5]) for index in range(400)]
    check_tokens(lab, log_weights([1, 6, 2, 9, 4], 400), rows, "draw with top_k 0, 5, 6, 99 and 2 for 5 tokens",
                 rule=TOP_K_RULE, show=["top_k"])


@pytest.mark.points(1)
def test_task_4_a_row_without_top_k_keeps_all_next_to_one_that_has_it(lab):
    rows = [make_row((12, index), top_k=[0, 2][index % 2]) for index in range(2 * NUM_SUPPORT_DRAWS)]
    logits = np.tile(np.concatenate([log_weights([1, 2, 3, 4]), np.zeros((1, 4))]), (NUM_SUPPORT_DRAWS, 1))
    drawn = draw(lab, logits, rows)
    got = sorted(set(drawn[::2])), sorted(set(drawn[1::2]))
    assert got == ([0, 1, 2, 3], [0, 1]), (
        f"{NUM_SUPPORT_DRAWS} rows with top_k 0 and the weights [1, 2, 3, 4], each next to a row with top_k 2 and "
        f"four equal tokens: {got[0]} and {got[1]} were drawn, expected [0, 1, 2, 3] and [0, 1]: a row with top_k 0 "
        "keeps all tokens, even next to a row with a top_k: num_kept must be from 1 to vocab_size")


@pytest.mark.points(3)
def test_task_4_of_equals_the_lowest_ids_stay(lab):
    for weights, top_k, expected in (([4, 2, 4, 2, 2, 4], 4, {0, 1, 2, 5}), ([5, 5, 5], 2, {0, 1}),
                                     ([1, 1, 3, 3, 3], 2, {2, 3}), ([1] * 8, 3, {0, 1, 2})):
        check_support(lab, weights, expected, f"exactly {top_k} tokens stay; among equal scores on the border, those "
                      "with the lowest ids", top_k=top_k)


@pytest.mark.points(1)
def test_task_4_what_stays_keeps_its_proportions(lab):
    check_frequencies(lab, [1, 6, 2, 9, 4], [0, 6, 0, 9, 4], "tokens that stay keep their proportions", top_k=3)


@pytest.mark.points(2)
def test_task_4_every_row_has_its_own_k(lab):
    random = np.random.default_rng(8)
    logits = random.normal(size=(300, 120)).astype(np.float32)
    rows = [make_row((9, index), top_k=[0, 1, 2, 40, 119][index % 5], temperature=2.0) for index in range(300)]
    check_tokens(lab, logits, rows, "one batch with top_k 0, 1, 2, 40 and 119", rule=TOP_K_RULE, show=["top_k"])


# ---- Task 5: top-p


@pytest.mark.points(3)
def test_task_5_the_token_that_crosses_is_kept(lab):
    weights = [1, 2, 3, 4]  # running sums, most likely first: 0.4, 0.7, 0.9, 1.0
    for top_p, expected in ((0.39, {3}), (0.41, {2, 3}), (0.69, {2, 3}), (0.75, {1, 2, 3}), (0.91, {0, 1, 2, 3})):
        check_support(lab, weights, expected, "keep the smallest number of most likely tokens that reach top_p; the "
                      "running sums are 0.4, 0.7, 0.9 and 1.0", top_p=top_p)


@pytest.mark.points(2)
def test_task_5_the_nucleus_ends_where_top_p_is_reached_exactly(lab):
    for weights, top_p, expected in (([1, 1, 1, 1], 0.5, {0, 1}), ([1, 1, 1, 1], 0.25, {0}), ([1, 1], 0.5, {0})):
        check_support(lab, weights, expected, f"the expected tokens add up to exactly {top_p}; among equally "
                      "likely tokens, the lowest ids stay", top_p=top_p)


@pytest.mark.points(1)
def test_task_5_a_tiny_top_p_keeps_one_token(lab):
    check_draws(lab)
    for top_p in (1e-6, 1e-30, 1e-300):
        check_support(lab, [1, 4, 4, 1], {1}, "one token is enough, and at least one token always stays", top_p=top_p)


@pytest.mark.points(2)
def test_task_5_top_p_counts_what_top_k_left(lab):
    # Top-k keeps the weights 4 and 3 of 4, 3, 2, 1. The weight 4 is 0.4 of all weights, but 0.57 of these two.
    kept = "top-k keeps the tokens with the weights 4 and 3. The most likely one then has the probability 4/7, "
    check_support(lab, [1, 2, 3, 4], {3}, kept + "which reaches 0.5: top-p keeps only that token", top_k=2, top_p=0.5)
    check_support(lab, [1, 2, 3, 4], {2, 3}, kept + "which does not reach 0.6: top-p keeps both", top_k=2, top_p=0.6)


@pytest.mark.points(2)
def test_task_5_the_temperature_comes_first(lab):
    # With the squares of 4, 3, 2, 1 the largest has 16 of 30 (0.53) instead of 4 of 10 (0.4).
    check_support(lab, [1, 2, 3, 4], {3}, "with temperature 0.5 the most likely token has 16 of 30, which reaches 0.5",
                  temperature=0.5, top_p=0.5)
    check_support(lab, [1, 4, 9, 16], {1, 2, 3}, "with temperature 2 the tokens have 4, 3, 2 and 1 of 10; the first "
                  "three reach 0.8", temperature=2.0, top_p=0.8)


@pytest.mark.points(2)
def test_task_5_top_p_of_1_keeps_what_a_sum_does_not_notice(lab):
    """Use 65,535 tokens with a probability of 2.5e-8 each. In float32, 1 plus such a number is 1."""
    logits = np.full((2, 65_536), -17.5, dtype=np.float32)
    logits[:, 0] = 0.0
    rows = [make_row((2, 936)), make_row((2, 936), top_p=0.9)]
    expected = [expected_tokens(logits[:1], rows[:1])[0][0], 0]
    got = draw(lab, logits, rows)
    assert got == expected, (
        f"two rows with the same logits and key, top_p 1 and 0.9, drew {got}, expected {expected}: the first row has "
        "no filter, so even a token with a probability of 2.5e-8 stays")


@pytest.mark.points(1)
def test_task_5_a_top_p_just_below_1_is_a_filter(lab):
    """Use one token of probability 0.9996. With this key, a token of probability 0.0003 wins unless it is dropped."""
    logits, key = log_weights([3, 9996, 1], 2), (3, 8075)
    got = draw(lab, logits, [make_row(key), make_row(key, top_p=0.9995)])
    assert got == [0, 1], (
        f"two rows with the weights [3, 9996, 1] and the key {key}, top_p 1 and 0.9995, drew {got}, expected [0, 1]: "
        "with top_p 1 all tokens stay; the most likely token has 0.9996, so it reaches 0.9995 alone")


@pytest.mark.points(2)
def test_task_5_every_row_has_its_own_p(lab):
    random = np.random.default_rng(9)
    logits = random.normal(size=(300, 120)).astype(np.float32)
    rows = [make_row((9, index), top_p=[1.0, 0.1, 0.5, 0.9][index % 4], top_k=[0, 30][index % 2])
            for index in range(300)]
    check_tokens(lab, logits, rows, "one batch with top_p 1, 0.1, 0.5 and 0.9", show=["top_k", "top_p"], rule=(
        "Of the tokens that top-k kept, top-p keeps the smallest number of most likely ones that reach the row's own "
        "top_p; with top_p 1 it keeps all"))


@pytest.mark.points(2)
def test_task_5_a_nucleus_is_never_larger_than_the_vocabulary(lab):
    """Use rows whose 4096 probabilities add up to less than top_p in float32.

    The sum is a little more or less than 1, and in some rows below 0.999999. Rounding decides which of the least likely
    tokens stay. So in this test each winner is among the most likely tokens, which have 0.99 of the total.
    """
    logits = np.random.default_rng(19).normal(size=(32, 4096)).astype(np.float32)
    rows = [make_row((16, index), top_p=[0.999999, 0.9999999][index // 2 % 2]) for index in range(32)]
    sums = logits.astype(np.float64) + noise_of([row.key for row in rows], 4096)
    expected, weights = np.argmax(sums, axis=-1), np.exp(logits.astype(np.float64))
    for index, token in enumerate(expected):
        is_likelier = logits[index] > logits[index, token]
        assert weights[index, is_likelier].sum() < 0.99 * weights[index].sum(), "this test is wrong, not your code"
        assert np.diff(np.sort(sums[index])[-2:]) > NEAR, "this test is wrong, not your code"
    for num_rows in (32, 31):  # another row is the last one
        got = draw(lab, logits[:num_rows], rows[:num_rows])
        wrong = [index for index in range(num_rows) if got[index] != expected[index]]
        first = wrong[0] if wrong else 0
        assert not wrong, (
            f"{num_rows} rows of 4096 tokens: {len(wrong)} are wrong. The first is row {first} ({told(rows[first])}), "
            f"which drew token {got[first]}, expected {expected[first]} (the most likely is "
            f"{np.argmax(logits[first])}): nearly all tokens stay. A sum of probabilities in float32 may end "
            "below top_p, but the nucleus has at most vocab_size tokens. MLX does not check an index: one past the end "
            "reads arbitrary memory")


# ---- Task 6: min-p, and all together


FILTERS = ["temperature", "top_k", "top_p", "min_p"]
ALL_RULES = ("First the temperature, then top-k, then top-p of the tokens that are left, then min-p relative to the "
             "most likely; each with the row's own parameter")


@pytest.mark.points(2)
def test_task_6_min_p_is_relative_to_the_most_likely(lab):
    check_support(lab, [1, 3, 4, 8], {2, 3}, "3 is less than 0.45 times 8, and 4 is more", min_p=0.45)
    check_support(lab, [1, 3, 4, 8], {1, 2, 3}, "3 is more than 0.3 times 8, although only 0.19 of all", min_p=0.3)
    check_support(lab, [3, 3, 3, 3, 3, 3, 3, 3, 1], set(range(8)), "eight tokens are equally likely and stay, "
                  "although each has only 0.12 of all", min_p=0.5)
    check_support(lab, [4999, 10000, 5001], {1, 2}, "4999 is less than half of 10000, and rounding cannot change that",
                  min_p=0.5)


@pytest.mark.points(1)
def test_task_6_min_p_of_1_keeps_all_that_are_as_likely_as_the_likeliest(lab):
    check_support(lab, [7, 8, 1, 8], {1, 3}, "a token that is exactly min_p times as likely stays", min_p=1.0)


@pytest.mark.points(2)
def test_task_6_min_p_comes_after_the_temperature(lab):
    check_support(lab, [1, 2, 4], {2}, "with temperature 0.5, 4 of 16 is 0.25, less than 0.3", temperature=0.5,
                  min_p=0.3)
    check_support(lab, [1, 2, 4], {1, 2}, "with temperature 2 the others are 0.5 and 0.71 times as likely as the "
                  "most likely token", temperature=2.0,
                  min_p=0.6)


@pytest.mark.points(2)
def test_task_6_min_p_comes_after_top_p(lab):
    # 50, 30, 10, 10. With top-p first, 50 and 30 reach 0.6. With min-p first, 50 would be 0.625 of the rest.
    check_support(lab, [10, 50, 10, 30], {1, 3}, "the weight 50 of 100 does not reach 0.6, so top-p keeps the weights "
                  "50 and 30; min-p sees only the tokens that top-p kept", top_p=0.6, min_p=0.3)


@pytest.mark.points(3)
def test_task_6_any_mix_draws_what_the_rules_say(lab):
    random = np.random.default_rng(10)
    for vocab_size, num_rows in ((7, 300), (150, 150), (1500, 50)):
        logits = random.normal(scale=2.0, size=(num_rows, vocab_size)).astype(np.float32)
        logits[::2] = logits[::2].round()  # many equal logits
        rows = [make_row(make_key(index), num_output=index % 4, temperature=float(random.choice([0.0, 0.3, 1.0, 1.7])),
                         top_k=int(random.choice([0, 1, 4, 40, vocab_size + 3])),
                         top_p=float(random.choice([1.0, 0.97, 0.61, 0.13])),
                         min_p=float(random.choice([0.0, 0.017, 0.23, 1.0]))) for index in range(num_rows)]
        check_tokens(lab, logits, rows, f"{num_rows} rows with random parameters, {vocab_size} tokens",
                     rule=ALL_RULES, show=FILTERS)


@pytest.mark.points(2)
def test_task_6_all_filters_together_have_the_right_frequencies(lab):
    weights = [1, 2, 30, 4, 25, 16, 9]
    # Temperature 2: 1, 1.41, 5.48, 2, 5, 4, 3. Top-k 5 keeps 5.48, 5, 4, 3, 2 (19.48 in total). Top-p 0.85 keeps 5.48,
    # 5, 4 and 3, which reach 0.897. Min-p 0.6 keeps 3.29 and more.
    check_frequencies(lab, weights, [0, 0, math.sqrt(30), 0, 5, 4, 0], "temperature, top-k, top-p, min-p, in this "
                      "order", temperature=2.0, top_k=5, top_p=0.85, min_p=0.6)


@pytest.mark.points(3)
def test_task_6_a_row_does_not_notice_the_parameters_of_others(lab):
    logits = np.random.default_rng(11).normal(scale=1.5, size=(64, 400)).astype(np.float32)
    kinds = [dict(), dict(temperature=0.0), dict(top_k=5), dict(top_p=0.8), dict(min_p=0.1), dict(temperature=0.7),
             dict(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02)]
    rows = [make_row(make_key(index), num_output=index % 5, **kinds[index % 7]) for index in range(64)]
    check_company(lab, logits, rows, show=FILTERS)
    check_tokens(lab, logits, rows, "a batch of seven kinds of rows", rule=ALL_RULES, show=FILTERS)
