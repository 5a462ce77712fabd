"""The sampler's draws against numpy, and the same draws in other batches.

Each case draws logits and parameters for a batch of rows and checks

1. that no token is drawn which a reference in plain Python and double precision drops;
2. that one row, drawn a few thousand times with other seeds, has the reference's frequencies (chi-square; the bound is
   exceeded by chance about once in ten million cases);
3. that every row gives the same token alone, in another order, and among other rows;
4. how many plain draws change when all logits are rounded again, as a batch rounds them. This is only counted, together
   with the number of draws that would change with inverse CDF sampling, which maps one random number to a token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fuzz.sampler_reference import reference
from mini_vllm.backend import mx
from mini_vllm.logit_rules import NO_TOKEN_LEFT, SamplerRow, make_key
from mini_vllm.request import SamplingParams
from mini_vllm.sampler import Sampler

Logits = npt.NDArray[np.float32]

#: The number and temperature of the draws whose logits are rounded again.
NUM_ROUNDED, TEMPERATURE = 256, 0.8
#: The approximate difference between the logits of a batch and those of a request alone.
ROUNDING = 1e-6
#: A decision closer than this to its threshold may go either way.
MARGIN = 1e-5
NUM_FREQUENCY_DRAWS = 3000
#: The number of standard deviations that a normal distribution exceeds once in ten million times.
ONCE_IN_TEN_MILLION = 5.2


def run_case(seed: int, case: int) -> dict[str, int]:
    random = np.random.default_rng([seed, case])
    vocab_size = int(random.choice([2, 3, 17, 17, 300, 300, 1500, 5000]))
    rows = [draw_row(random, vocab_size) for _ in range(random.integers(1, 33))]
    logits = draw_logits(random, len(rows), vocab_size)
    drawn = sample(logits, rows)
    num_checked = check_support(logits, rows, drawn)
    num_again = check_company(random, logits, rows, drawn)
    num_counted = check_frequencies(random, logits, rows)
    changed, changed_by_line = count_changes(random, vocab_size)
    return {"batches": 1, "rows": num_checked, "rows in another batch": num_again, "draws counted": num_counted,
            "draws with logits rounded again": NUM_ROUNDED, "changed by noise": changed,
            "changed by inverse CDF": changed_by_line}


# ---- draws


def draw_row(random: np.random.Generator, vocab_size: int) -> SamplerRow:
    def tokens(most: int) -> list[int]:
        return [int(token) for token in random.integers(0, vocab_size, random.integers(0, most + 1))]

    fields: dict[str, list[float]] = {
        "temperature": [1.0, 0.7, 0.05, 2.0, 0.0], "top_k": [0, 0, 1, 2, 40, vocab_size + 1],
        "top_p": [1.0, 1.0, 0.9, 0.3, 1e-6], "min_p": [0.0, 0.0, 0.05, 0.5, 1.0],
        "repetition_penalty": [1.0, 1.0, 1.3, 0.7], "presence_penalty": [0.0, 0.0, 1.5, -1.0],
        "frequency_penalty": [0.0, 0.0, 0.75, -0.5], "min_tokens": [0, 0, 5]}
    params = {name: random.choice(values).item() for name, values in fields.items()}
    if random.random() < 0.2:
        biases = [-math.inf, -3.0, 2.0, 100.0]
        params["logit_bias"] = {token: random.choice(biases).item() for token in tokens(3)}
    if random.random() < 0.2:
        params["allowed_token_ids"] = [0, *tokens(30)]
    output = tokens(6)
    bad_words = [tuple(output[-n:]) + (int(random.integers(vocab_size)),) for n in range(1, 3) if random.random() < 0.3]
    eos = tokens(1) if vocab_size > 3 else []
    key = make_key(int(random.integers(2**40)))
    return SamplerRow(SamplingParams(**params), tokens(9), output, eos, key, bad_words)


def draw_logits(random: np.random.Generator, num_rows: int, vocab_size: int) -> Logits:
    logits = random.normal(scale=random.choice([0.1, 2.0, 8.0]), size=(num_rows, vocab_size))
    if random.random() < 0.3:
        logits = logits.round()  # many equal logits
    return logits.astype(np.float32)


def sample(logits: Logits, rows: Sequence[SamplerRow]) -> list[int] | None:
    """Draw one token per row. Return None if a row has no token left."""
    try:
        return Sampler().sample(mx.array(logits), rows).token_ids
    except ValueError as error:
        if NO_TOKEN_LEFT not in str(error):
            raise
        return None


def sample_all(logits: Logits, rows: Sequence[SamplerRow]) -> list[int]:
    """Draw one token per row. Raise AssertionError if a row has no token left."""
    drawn = sample(logits, rows)
    assert drawn is not None, f"no token is left for one of {[row.params for row in rows]}"
    return drawn


# ---- checks


def check_support(logits: Logits, rows: Sequence[SamplerRow], drawn: Sequence[int] | None) -> int:
    """Check that no token is drawn that the reference drops. Return the number of rows checked."""
    if drawn is None:
        empty = [not any(reference(row_logits, row)[0]) for row_logits, row in zip(logits, rows)]
        assert any(empty), "the sampler says that a row has no token left, the reference finds one for each"
        return len(rows)
    num_checked = 0
    for index, (row_logits, row, token_id) in enumerate(zip(logits, rows, drawn)):
        probabilities, nearest = reference(row_logits, row)
        if nearest > MARGIN:
            num_checked += 1
            assert probabilities[token_id] > 0, f"row {index}: token {token_id} was drawn, which {row.params} drops"
    return num_checked


def check_company(random: np.random.Generator, logits: Logits, rows: Sequence[SamplerRow],
                  drawn: Sequence[int] | None) -> int:
    """Check that a row gives the same token whatever else is in the batch. Return the number of rows checked."""
    if drawn is None:
        return 0
    order = random.permutation(len(rows))
    shuffled = sample_all(logits[order], [rows[index] for index in order])
    picked = random.choice(len(rows), size=min(len(rows), 4), replace=False)
    alone = [sample_all(logits[i:i + 1], rows[i:i + 1])[0] for i in picked]
    for index, token_id in [*zip(order, shuffled), *zip(picked, alone)]:
        assert token_id == drawn[index], (f"row {index}, {rows[index].params}, drew token {drawn[index]} among "
                                          f"{len(rows)} rows and {token_id} in another batch")
    return len(rows) + len(picked)


def check_frequencies(random: np.random.Generator, logits: Logits, rows: Sequence[SamplerRow]) -> int:
    """Check that one row, drawn many times with other keys, has the reference's frequencies.

    Return the number of draws, or 0 if the row cannot be compared.
    """
    index = int(random.integers(len(rows)))
    row = rows[index]
    share, nearest = (np.array(part) for part in reference(logits[index], row))
    if row.params.temperature == 0 or nearest <= MARGIN or not share.any():
        return 0
    many = [replace(row, key=make_key(int(key))) for key in random.integers(2**40, size=NUM_FREQUENCY_DRAWS)]
    per_batch = max(400_000 // logits.shape[1], 1)
    counts = np.zeros(logits.shape[1])
    for start in range(0, len(many), per_batch):
        batch = many[start:start + per_batch]
        np.add.at(counts, sample_all(np.repeat(logits[index:index + 1], len(batch), axis=0), batch), 1)
    # Tokens expected fewer than five times are counted together, because chi-square does not hold for them.
    is_common = share * NUM_FREQUENCY_DRAWS >= 5
    observed = np.append(counts[is_common], counts[~is_common].sum())
    expected = np.append(share[is_common], share[~is_common].sum()) * NUM_FREQUENCY_DRAWS
    assert observed[expected == 0].sum() == 0, f"{row.params}: tokens came that the reference drops"
    observed, expected = observed[expected >= 1], expected[expected >= 1]  # the tokens left out are hardly ever drawn
    chi_square = (((observed - expected) ** 2) / expected).sum()
    assert chi_square < chi_square_bound(len(expected) - 1) + 1, (
        f"{row.params}: chi-square of {NUM_FREQUENCY_DRAWS} draws is {chi_square:.1f} with {len(expected) - 1} degrees "
        f"of freedom; counts {observed.tolist()[:20]}, expected {expected.round(1).tolist()[:20]}")
    return NUM_FREQUENCY_DRAWS


def chi_square_bound(freedom: int) -> float:
    """Return the chi-square value exceeded about once in ten million times (approximation of Wilson and Hilferty)."""
    if freedom == 0:
        return 1e-6
    part = 2 / (9 * freedom)
    return freedom * (1 - part + ONCE_IN_TEN_MILLION * math.sqrt(part)) ** 3


def count_changes(random: np.random.Generator, vocab_size: int) -> tuple[int, int]:
    """Count the plain draws that change when logits are rounded as in a batch: with our sampler, and by inverse CDF."""
    logits = random.normal(scale=3.0, size=(NUM_ROUNDED, vocab_size)).astype(np.float32)
    rounded = logits + random.normal(scale=ROUNDING, size=logits.shape).astype(np.float32)
    rows = [SamplerRow(SamplingParams(temperature=TEMPERATURE), (), (), (), make_key(int(key)))
            for key in random.integers(2**40, size=NUM_ROUNDED)]
    thrown = random.random(NUM_ROUNDED)
    by_noise = [sample_all(values, rows) for values in (logits, rounded)]
    by_line = [[_inverse_cdf(row_logits, uniform) for row_logits, uniform in zip(values, thrown)]
               for values in (logits, rounded)]
    return _num_different(*by_noise), _num_different(*by_line)


def _num_different(some: Sequence[int], others: Sequence[int]) -> int:
    return sum(one != other for one, other in zip(some, others))


def _inverse_cdf(logits: Logits, uniform: float) -> int:
    """Return the token that a number from 0 to 1 selects by inverse CDF, in single precision."""
    edges = np.cumsum(np.exp((logits - logits.max()) / np.float32(TEMPERATURE)), dtype=np.float32)
    return int(np.searchsorted(edges, np.float32(uniform) * edges[-1], side="right"))
