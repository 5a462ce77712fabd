"""From logits to the next tokens: every request by its own parameters, all of them in one batch.

    raw logits ─┬─▶ log-softmax ─▶ logprobs, as the model meant them
                └─▶ adjust: bias, penalties, what is not allowed ─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ draw

A token is drawn by the *Gumbel-max trick*: add to the score of every token a random number from the Gumbel
distribution, and take the largest sum. Token i wins with the probability softmax(scores)[i], exactly.

    score   2.0   1.1  -inf   0.3        what filters dropped stays at -inf
    noise  -0.4   0.9   3.1   0.2
    sum     1.6   2.0  -inf   0.5        token 1 is drawn

**The same seed gives the same tokens, whatever else is in the batch.** The noise is a function of (seed, sample,
position, token) and of nothing else: there is no generator whose state a preemption or a failed step would have to
restore. And a draw bears rounding. A batch computes the same logits as a request alone but for the order of sums,
about 1e-6 in float32; that changes the winner only if the two largest sums are as near as that. Of 25,600 draws none
changed (``python -m mini_vllm.benchmark seeds``). Inverse CDF, one number thrown at a line of all tokens, has an edge a
token, and rounding moves all of them: 4 of 24,899 changed. ``python -m mini_vllm.fuzz sampler`` counts both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from mini_vllm.backend import mx
from mini_vllm.fast import tuning
from mini_vllm.fast.streams import in_halves
from mini_vllm.request import Logprob, SamplingParams, TokenLogprob

#: A row that keeps at most this many tokens by top-k needs just these in order, not the whole vocabulary. The number
#: is fixed, rather than the largest top_k of the batch, so that a row is always computed the same way.
NARROW_SORT_WIDTH = 1024

FLOAT32 = np.finfo(np.float32)
#: Half a step of the generator, which gives multiples of 2 ** -32 from 0 on: no token has infinite noise.
SMALLEST_UNIFORM = 2.0 ** -33

#: Two words of 32 bits, from the seed of a request and the index of the continuation.
Key = tuple[int, int]


@dataclass
class SamplerRow:
    """What the sampler must know of one request."""

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    #: Not sampled, like the stop ids, until there are ``min_tokens`` output tokens.
    eos_token_ids: Collection[int]
    #: From ``make_key``. With the number of output tokens so far, it decides the draw.
    key: Key
    #: Token sequences of ``params.bad_words``.
    bad_words: Sequence[tuple[int, ...]] = ()


@dataclass
class SamplerOutput:
    token_ids: list[int]
    #: None where the request did not ask.
    logprobs: list[TokenLogprob | None]


def make_key(seed: int | None, index: int = 0) -> Key:
    """The key of continuation ``index`` of a request. Without a seed, another one each time."""
    first, second = np.random.SeedSequence(seed, spawn_key=(index,)).generate_state(2)
    return int(first), int(second)


def is_plain(params: SamplingParams) -> bool:
    """True if a token is the answer, and all of it: no logit changes by what came before, no log-probability is
    reported. Such tokens can be chosen before the ones before them are known."""
    return (params.repetition_penalty == 1 and params.presence_penalty == 0 and params.frequency_penalty == 0
            and not params.logit_bias and params.allowed_token_ids is None and not params.bad_words
            and params.min_tokens == 0 and params.logprobs is None)


class Sampler:
    """The next token of every row of a batch. It holds no state: what a draw needs is in the rows."""

    def greedy(self, logits: mx.array) -> mx.array:
        """The most likely token of each row; the lowest id among equals. Lazy, so nothing is checked."""
        return mx.argmax(logits, axis=-1)

    def draw(self, logits: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
        """A token of each row, whose parameters are plain; lazy, too. It may be one that comes ``num_ahead`` tokens
        after the next: all that the noise depends on is known."""
        return _choose(logits.astype(mx.float32), rows, num_ahead)

    def sample(self, logits: mx.array, rows: Sequence[SamplerRow]) -> SamplerOutput:
        """One token a row, from ``logits`` of shape ``[num_rows, vocab_size]``. Evaluates.

        Raises ValueError if a row's logits are no distribution (NaN, +inf, all -inf) or its parameters do not fit
        the vocabulary.
        """
        num_rows, vocab_size = logits.shape
        if len(rows) != num_rows:
            raise ValueError(f"{len(rows)} rows for logits of {num_rows} rows")
        if not rows:
            return SamplerOutput([], [])
        _check_token_ids(rows, vocab_size)
        logits = logits.astype(mx.float32)
        adjusted = adjust(logits, rows)
        chosen = _choose(adjusted, rows)
        mx.async_eval(chosen)
        _check(logits, adjusted)
        token_ids = chosen.tolist()
        return SamplerOutput(token_ids, _logprobs(logits, token_ids, rows))


def _choose(adjusted: mx.array, rows: Sequence[SamplerRow], num_ahead: int = 0) -> mx.array:
    """The largest of each row: of its adjusted logits if it is greedy, else of its scores and noise together."""
    sampled = [index for index, row in enumerate(rows) if row.params.temperature > 0]
    if len(sampled) == len(rows):
        return _draw(adjusted, rows, num_ahead)
    chosen = mx.argmax(adjusted, axis=-1)
    if sampled:
        chosen[mx.array(sampled)] = _draw(adjusted[mx.array(sampled)], [rows[index] for index in sampled],
                                             num_ahead)
    return chosen


# ---- before the draw: what changes the logits, and what is refused


def _check_token_ids(rows: Sequence[SamplerRow], vocab_size: int) -> None:
    for index, row in enumerate(rows):
        for name in ("logit_bias", "allowed_token_ids"):
            for token_id in getattr(row.params, name) or ():
                if token_id >= vocab_size:
                    raise ValueError(f"row {index}: {name} names token {token_id}, "
                                     f"but the vocabulary has {vocab_size} tokens")


def adjust(logits: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """``logits`` after bias and penalties, with -inf for tokens that must not come. The argument stays as it is."""
    vocab_size = logits.shape[1]
    adjusted = logits

    biased = {i: row.params.logit_bias for i, row in enumerate(rows) if row.params.logit_bias}
    if biased:
        # A bias of +inf becomes the largest number there is: infinities could not be subtracted from each other.
        bias = np.minimum([value for biases in biased.values() for value in biases.values()], float(FLOAT32.max))
        adjusted = adjusted.at[_places(biased, vocab_size)].add(mx.array(bias.astype(np.float32)))

    seen = {i: list(chain(row.prompt_token_ids, row.output_token_ids)) for i, row in enumerate(rows)
            if row.params.repetition_penalty != 1}
    if seen:
        row_ids, token_ids = _places(seen, vocab_size)
        penalty = _column(row.params.repetition_penalty for row in rows)[row_ids, 0]
        old = adjusted[row_ids, token_ids]
        # A token seen twice is written twice, both times with the same value.
        adjusted = mx.array(adjusted)
        adjusted[row_ids, token_ids] = mx.where(old > 0, old / penalty, old * penalty)

    penalties = {i: _penalties(row) for i, row in enumerate(rows)
                 if (row.params.presence_penalty or row.params.frequency_penalty) and row.output_token_ids}
    if penalties:
        amounts = np.array([amount for of_row in penalties.values() for amount in of_row.values()], dtype=np.float32)
        adjusted = adjusted.at[_places(penalties, vocab_size)].add(mx.array(-amounts))

    banned = {i: _banned_token_ids(row) for i, row in enumerate(rows)}
    banned = {i: token_ids for i, token_ids in banned.items() if token_ids}
    if banned:
        adjusted = adjusted.at[_places(banned, vocab_size)].minimum(-math.inf)
    allowed = {i: row.params.allowed_token_ids for i, row in enumerate(rows)
               if row.params.allowed_token_ids is not None}
    if allowed:
        walls = np.zeros((len(rows), vocab_size), dtype=np.float32)
        for i, token_ids in allowed.items():
            walls[i] = -np.inf
            walls[i, list(token_ids)] = 0.0
        adjusted = adjusted + mx.array(walls)
    return adjusted if adjusted is logits else mx.minimum(adjusted, float(FLOAT32.max))


def _penalties(row: SamplerRow) -> dict[int, float]:
    """What to take from the logits of the tokens of the output: once, and once more for each time they came."""
    token_ids, counts = np.unique(np.asarray(row.output_token_ids), return_counts=True)
    amounts = row.params.presence_penalty + row.params.frequency_penalty * counts
    return dict(zip(token_ids.tolist(), amounts.tolist()))


def _banned_token_ids(row: SamplerRow) -> list[int]:
    """Tokens that must not come next: ends before ``min_tokens``, and the last token of a bad word's sequence."""
    banned: list[int] = []
    output = row.output_token_ids
    if len(output) < row.params.min_tokens:
        banned += [*row.eos_token_ids, *row.params.stop_token_ids]
    for *beginning, last in row.bad_words:
        if not beginning or list(output[-len(beginning):]) == beginning:
            banned.append(last)
    return banned


def _places(token_ids_of_row: Mapping[int, Collection[int]], vocab_size: int) -> tuple[mx.array, mx.array]:
    """Row numbers and token ids of all places, side by side. A token outside the vocabulary has no logit to change."""
    row_ids = np.repeat(list(token_ids_of_row), [len(token_ids) for token_ids in token_ids_of_row.values()])
    token_ids = np.array(list(chain.from_iterable(token_ids_of_row.values())), dtype=np.int64)
    inside = token_ids < vocab_size
    return mx.array(row_ids[inside].astype(np.int32)), mx.array(token_ids[inside].astype(np.int32))


def _check(logits: mx.array, adjusted: mx.array) -> None:
    """ValueError, naming the row, if there is nothing to draw from."""
    has_nan, largest = mx.any(mx.isnan(logits), axis=-1), mx.max(logits, axis=-1)
    largest_adjusted = largest if adjusted is logits else mx.max(adjusted, axis=-1)
    mx.eval(has_nan, largest, largest_adjusted)
    findings = zip(has_nan.tolist(), largest.tolist(), largest_adjusted.tolist())
    for index, (is_nan, top, top_adjusted) in enumerate(findings):
        if is_nan:
            raise ValueError(f"row {index}: the logits contain NaN")
        if math.isinf(top):
            raise ValueError(f"row {index}: " + ("a logit is +inf" if top > 0 else "all logits are -inf"))
        if top_adjusted == -math.inf:
            raise ValueError(f"row {index}: all logits are -inf after logit_bias, allowed_token_ids, bad_words and "
                             "min_tokens, no token is left")


# ---- the draw


def _draw(adjusted: mx.array, rows: Sequence[SamplerRow], num_ahead: int) -> mx.array:
    """A token a row. Rows with equal keys at the same position get the same noise."""
    keys = np.array([(row.key[0], row.key[1] + len(row.output_token_ids) + num_ahead) for row in rows])
    keys = keys.astype(np.uint32)
    return mx.argmax(filter_scores(adjusted, rows) + gumbel_noise(mx.array(keys), adjusted.shape[1]), axis=-1)


def filter_scores(adjusted: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """Logarithms of how likely each token is, relative to the likeliest; -inf for those that a filter drops."""
    temperature = _column(row.params.temperature for row in rows)
    relative = (adjusted - mx.max(adjusted, axis=-1, keepdims=True)) / temperature
    relative = _keep_top_k_and_top_p(relative, rows)
    if any(row.params.min_p for row in rows):
        min_p = _column((row.params.min_p for row in rows), smallest=0)
        relative = mx.where(relative >= mx.log(min_p), relative, -math.inf)
    return relative


def gumbel_noise(keys: mx.array, vocab_size: int) -> mx.array:
    """[num_rows, vocab_size] numbers of the Gumbel distribution, each row from its own of ``keys`` [num_rows, 2].

    MLX's generator counts instead of remembering: number i of a key is a function of the key and i.
    """
    return in_halves(lambda keys: _gumbel_noise(keys, vocab_size), keys,
                     min_size=2 * tuning.MIN_NOISE_TO_SPLIT // vocab_size)


def _gumbel_noise(keys: mx.array, vocab_size: int) -> mx.array:
    uniform = mx.vmap(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))(keys)
    uniform = mx.maximum(uniform, SMALLEST_UNIFORM)
    # This is -log(-log1p(-uniform)). The log1p is put together from log, which is three times as fast on a CPU: what
    # ``1 - uniform`` loses by rounding is added again. Large noise comes of small numbers, so these must stay exact.
    rest = 1 - uniform
    return -mx.log((uniform - (1 - rest)) - mx.log(rest))


def _keep_top_k_and_top_p(scores: mx.array, rows: Sequence[SamplerRow]) -> mx.array:
    """Write -inf over the ``scores`` that top-k and top-p drop. A row that uses neither is not touched, nor sorted."""
    vocab_size = scores.shape[1]
    groups: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        top_k = min(row.params.top_k or vocab_size, vocab_size)
        if top_k < vocab_size or row.params.top_p < 1:
            num_sorted = vocab_size if top_k > NARROW_SORT_WIDTH else min(NARROW_SORT_WIDTH, vocab_size)
            groups[num_sorted].append(index)
    for num_sorted, indices in groups.items():
        params = [rows[index].params for index in indices]
        top_k = mx.array([[min(p.top_k or vocab_size, vocab_size)] for p in params])
        top_p = mx.array([[p.top_p if p.top_p < 1 else math.inf] for p in params])
        scores[mx.array(indices)] = _keep_most_likely(scores[mx.array(indices)], num_sorted, top_k, top_p)
    return scores


def _keep_most_likely(scores: mx.array, num_sorted: int, top_k: mx.array, top_p: mx.array) -> mx.array:
    """Top-k, then top-p of what is left. Among equals the lowest ids stay.

    The values are sorted, not the ids: they tell how many tokens stay and the score of the last one. Which of several
    with that very score stay is counted off by id, so nothing hangs on whether the device's sort is stable.
    """
    vocab_size = scores.shape[1]
    largest = scores if num_sorted == vocab_size else mx.topk(scores, num_sorted, axis=-1)
    descending = -mx.sort(-largest, axis=-1)
    within_k = mx.arange(num_sorted) < top_k
    widths = mx.where(within_k, mx.exp(descending), 0.0)
    mass_before = mx.cumsum(widths, axis=-1, inclusive=False)
    mass = mass_before[:, -1:] + widths[:, -1:]
    num_kept = mx.sum(within_k & (mass_before < top_p * mass), axis=-1, keepdims=True)
    num_kept = mx.maximum(num_kept, 1)

    last_kept = mx.take_along_axis(descending, num_kept - 1, axis=-1)
    is_above, is_equal = scores > last_kept, scores == last_kept
    num_equal_kept = num_kept - mx.sum(is_above, axis=-1, keepdims=True)
    is_kept = is_above | (is_equal & (mx.cumsum(is_equal.astype(mx.int32), axis=-1) <= num_equal_kept))
    return mx.where(is_kept, scores, -math.inf)


def _column(values: Iterable[float], smallest: float = float(FLOAT32.tiny)) -> mx.array:
    """One number a row, as a column; none becomes 0 or inf just because float32 has a smaller range."""
    return mx.array(np.clip(list(values), smallest, float(FLOAT32.max)).astype(np.float32)[:, None])


# ---- after the draw


def _logprobs(logits: mx.array, token_ids: list[int], rows: Sequence[SamplerRow]) -> list[TokenLogprob | None]:
    """Log-probabilities by the raw logits, for the rows that ask."""
    asking = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    answers: list[TokenLogprob | None] = [None] * len(rows)
    if asking:
        reports = report_logprobs(logits[mx.array(asking)], [token_ids[index] for index in asking],
                                  [rows[index].params.logprobs for index in asking])
        for index, report in zip(asking, reports):
            answers[index] = report
    return answers


def report_logprobs(logits: mx.array, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprob]:
    """How likely ``token_ids[i]`` is by row i of ``logits``, and which ``num_top[i]`` tokens are likeliest."""
    logits = logits.astype(mx.float32)
    rows = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    return [TokenLogprob(token_id, float(logprobs[token_id]), _likeliest(logprobs, k),
                         rank=1 + int((logprobs > logprobs[token_id]).sum()))
            for logprobs, token_id, k in zip(rows, token_ids, num_top)]


def _likeliest(logprobs: np.ndarray, k: int) -> dict[int, Logprob]:
    """The ``k`` likeliest tokens, most likely first, the lower id first among equals, which have the same rank."""
    if k == 0:
        return {}
    smallest = np.partition(logprobs, -k)[-k] if k < len(logprobs) else -math.inf
    candidates = np.flatnonzero(logprobs >= smallest)
    order = candidates[np.argsort(-logprobs[candidates], kind="stable")][:k]
    values = logprobs[order]
    ranks = 1 + np.searchsorted(-values, -values)
    return {int(token_id): Logprob(float(value), int(rank)) for token_id, value, rank in zip(order, values, ranks)}
