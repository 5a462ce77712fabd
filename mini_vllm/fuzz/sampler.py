"""Draws of the sampler against numpy, and the same draws in other company.

Each case draws logits and parameters for a batch of rows and checks

1. that no token is drawn which a reference in plain Python and double precision drops;
2. that one row, drawn a few thousand times with other seeds, has the reference's frequencies (chi-square; the bound is
   exceeded by chance about once in ten million cases);
3. that every row gives the same token alone, in another order, and among other rows;
4. how many plain draws change when all logits are rounded anew, as a batch rounds them. That is counted, and beside it
   how many would change if tokens were drawn by inverse CDF: one number thrown at a line of all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.request import SamplingParams
from mini_vllm.sampler import Sampler, SamplerRow, make_key

#: Of the draws with logits rounded anew.
NUM_ROUNDED, TEMPERATURE = 256, 0.8
#: How far logits of a batch are from those of a request alone, about.
ROUNDING = 1e-6
#: A decision that comes nearer than this to going the other way is not held against the sampler.
MARGIN = 1e-5
NUM_FREQUENCY_DRAWS = 3000
#: Standard deviations of a normal distribution that are exceeded once in ten million times.
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
    return {"batches": 1, "rows": num_checked, "rows in other company": num_again, "draws counted": num_counted,
            "draws with logits rounded anew": NUM_ROUNDED, "changed by noise": changed,
            "changed by inverse CDF": changed_by_line}


# ---- what is drawn


def draw_row(random: np.random.Generator, vocab_size: int) -> SamplerRow:
    def tokens(most: int) -> list[int]:
        return random.integers(0, vocab_size, random.integers(0, most + 1)).tolist()

    fields = {"temperature": [1.0, 0.7, 0.05, 2.0, 0.0], "top_k": [0, 0, 1, 2, 40, vocab_size + 1],
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


def draw_logits(random: np.random.Generator, num_rows: int, vocab_size: int) -> np.ndarray:
    logits = random.normal(scale=random.choice([0.1, 2.0, 8.0]), size=(num_rows, vocab_size))
    if random.random() < 0.3:
        logits = logits.round()  # many equals
    return logits.astype(np.float32)


def sample(logits: np.ndarray, rows: Sequence[SamplerRow]) -> list[int | None]:
    """A token a row; None for all if a row has none left."""
    try:
        return Sampler().sample(mx.array(logits), rows).token_ids
    except ValueError as error:
        if "no token is left" not in str(error):
            raise
        return [None] * len(rows)


# ---- the reference, one token at a time and in double precision


def reference(logits: Sequence[float], row: SamplerRow) -> tuple[list[float], float]:
    """Probabilities by token id, and how near any decision came to going the other way."""
    p, x = row.params, [float(value) for value in logits]
    vocab_size, nearest = len(x), 1.0
    for token, bias in (p.logit_bias or {}).items():
        x[token] += bias
    for token in {*row.prompt_token_ids, *row.output_token_ids}:
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
    for token in row.output_token_ids:
        x[token] -= p.frequency_penalty
    for token in set(row.output_token_ids):
        x[token] -= p.presence_penalty
    for *beginning, last in row.bad_words:
        if list(row.output_token_ids)[len(row.output_token_ids) - len(beginning):] == beginning:
            x[last] = -math.inf
    if p.allowed_token_ids is not None:
        allowed = set(p.allowed_token_ids)
        x = [value if token in allowed else -math.inf for token, value in enumerate(x)]
    if len(row.output_token_ids) < p.min_tokens:
        for token in {*row.eos_token_ids, *p.stop_token_ids}:
            x[token] = -math.inf
    highest = max(x)
    if highest == -math.inf:
        return [0.0] * vocab_size, nearest
    if p.temperature == 0:
        best = x.index(highest)
        gap = min((highest - value for token, value in enumerate(x) if token != best), default=1.0)
        return [float(token == best) for token in range(vocab_size)], nearest if gap == 0 else min(nearest, gap)
    weight = [math.exp((value - highest) / p.temperature) for value in x]
    kept = sorted(range(vocab_size), key=lambda token: (-x[token], token))
    if p.top_k and p.top_k < vocab_size:
        gap = x[kept[p.top_k - 1]] - x[kept[p.top_k]]
        nearest = min(nearest, gap if gap else 1.0)
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
    if p.min_p:
        nearest = min([nearest] + [abs(weight[token] - p.min_p) for token in kept if weight[token] not in (0, 1)])
    kept = [token for token in kept if weight[token] >= p.min_p]
    total, probabilities = sum(weight[token] for token in kept), [0.0] * vocab_size
    for token in kept:
        probabilities[token] = weight[token] / total
    return probabilities, nearest


# ---- what is checked


def check_support(logits: np.ndarray, rows: Sequence[SamplerRow], drawn: Sequence[int | None]) -> int:
    """No token comes that the reference drops. Returns how many rows were checked."""
    if drawn[0] is None:
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


def check_company(random: np.random.Generator, logits: np.ndarray, rows: Sequence[SamplerRow],
                  drawn: Sequence[int | None]) -> int:
    """A row gives the same token whatever else is in the batch."""
    if drawn[0] is None:
        return 0
    order = random.permutation(len(rows))
    shuffled = sample(logits[order], [rows[index] for index in order])
    picked = random.choice(len(rows), size=min(len(rows), 4), replace=False)
    for index, token_id in [*zip(order, shuffled), *((i, sample(logits[i:i + 1], rows[i:i + 1])[0]) for i in picked)]:
        assert token_id == drawn[index], (f"row {index}, {rows[index].params}, drew token {drawn[index]} among "
                                          f"{len(rows)} rows and {token_id} in other company")
    return len(rows) + len(picked)


def check_frequencies(random: np.random.Generator, logits: np.ndarray, rows: Sequence[SamplerRow]) -> int:
    """One row, drawn many times with other keys: tokens come as often as the reference says."""
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
        np.add.at(counts, sample(np.repeat(logits[index:index + 1], len(batch), axis=0), batch), 1)
    # Tokens that are expected less than five times count as one, since chi-square does not hold for them.
    is_common = share * NUM_FREQUENCY_DRAWS >= 5
    observed = np.append(counts[is_common], counts[~is_common].sum())
    expected = np.append(share[is_common], share[~is_common].sum()) * NUM_FREQUENCY_DRAWS
    assert observed[expected == 0].sum() == 0, f"{row.params}: tokens came that the reference drops"
    observed, expected = observed[expected >= 1], expected[expected >= 1]  # what is left out is hardly ever drawn
    chi_square = (((observed - expected) ** 2) / expected).sum()
    assert chi_square < chi_square_bound(len(expected) - 1) + 1, (
        f"{row.params}: chi-square of {NUM_FREQUENCY_DRAWS} draws is {chi_square:.1f} with {len(expected) - 1} degrees "
        f"of freedom; counts {observed.tolist()[:20]}, expected {expected.round(1).tolist()[:20]}")
    return NUM_FREQUENCY_DRAWS


def chi_square_bound(freedom: int) -> float:
    """What chi-square exceeds about once in ten million times, by the approximation of Wilson and Hilferty."""
    if freedom == 0:
        return 1e-6
    part = 2 / (9 * freedom)
    return freedom * (1 - part + ONCE_IN_TEN_MILLION * math.sqrt(part)) ** 3


def count_changes(random: np.random.Generator, vocab_size: int) -> tuple[int, int]:
    """How many plain draws change with logits as a batch would round them; and how many would by inverse CDF."""
    logits = random.normal(scale=3.0, size=(NUM_ROUNDED, vocab_size)).astype(np.float32)
    rounded = logits + random.normal(scale=ROUNDING, size=logits.shape).astype(np.float32)
    rows = [SamplerRow(SamplingParams(temperature=TEMPERATURE), (), (), (), make_key(int(key)))
            for key in random.integers(2**40, size=NUM_ROUNDED)]
    thrown = random.random(NUM_ROUNDED)
    by_noise = [sample(values, rows) for values in (logits, rounded)]
    by_line = [[_inverse_cdf(row_logits, uniform) for row_logits, uniform in zip(values, thrown)]
               for values in (logits, rounded)]
    return tuple(sum(one != other for one, other in zip(*pair)) for pair in (by_noise, by_line))


def _inverse_cdf(logits: np.ndarray, uniform: float) -> int:
    """The token that a number from 0 to 1 lands on, in single precision."""
    edges = np.cumsum(np.exp((logits - logits.max()) / np.float32(TEMPERATURE)), dtype=np.float32)
    return int(np.searchsorted(edges, np.float32(uniform) * edges[-1], side="right"))
