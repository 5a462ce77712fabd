"""Decode with and without a KV cache, count the work of both, and compute the size of the cache in bytes.

    without:  step 1  [a b c]           every step sends the whole text through every layer again
              step 2  [a b c d]
              step 3  [a b c d e]

    with:     step 1  [a b c] ─┐
              step 2        [d]├─▶ K/V of a b c, then d, then e: written once, read by every later step
              step 3        [e]┘

All arrays are float64, so "the same numbers" means that they differ by less than 1e-9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder. ``width`` is the length of the vector that represents a token in every layer."""

    num_layers: int
    num_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim


@dataclass
class MultiplyAdds:
    """The number of multiply-adds in the matrices (``linear``) and in attention."""

    linear: int = 0
    attention: int = 0

    @property
    def total(self) -> int:
        return self.linear + self.attention


@dataclass(frozen=True)
class DecodeResult:
    """The result of a greedy decode: only the new tokens, as plain ints, and the logits that each was chosen from."""

    token_ids: list[int]
    #: ``[num_new_tokens, vocab_size]``; token i was chosen from row i.
    logits: np.ndarray


def check_at_least(minimum: int, **arguments: int) -> None:
    """Raise ValueError for the first argument that is below ``minimum``. This function is given.

        check_at_least(1, num_heads=4, head_dim=0)    ValueError: head_dim must be at least 1, got 0
    """
    for name, value in arguments.items():
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")


# ---------------------------------------------------------------------------------------------- Task 1


def softmax(scores: np.ndarray) -> np.ndarray:
    """Turn each row of ``scores`` into weights: the weight of a score s is exp(s), divided by the row's sum of exp.

    A larger score gets a larger weight, and the weights of a row sum to 1.

    Before:
    - ``scores`` has one axis or more; a row runs along the last axis
    - ``scores`` contains floats or integers
    - a score may be ``-inf``, which means that it is masked; every row has at least one finite score
    After:
    - ``scores`` is not changed
    Returns:
    - an array of floats with the same shape as ``scores``
    - the weights of a row depend only on the scores of that row, are at least 0, and sum to 1
    - the weight of a masked score is exactly 0
    - no weight is inf or nan, even if one row's scores are around 1e4 and the next row's scores are around -1e4

    Example::

        >>> softmax(np.array([[0.0, np.log(3.0)], [5.0, -np.inf]])).round(6).tolist()
        [[0.25, 0.75], [1.0, 0.0]]
    """
    raise NotImplementedError("Task 1: softmax")


# ---------------------------------------------------------------------------------------------- Task 2


def check_attention_shapes(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
    """Raise ValueError unless these arrays can be the arguments of ``causal_attention``. This function is given.

    - ``keys`` and ``values`` must have the same shape
    - ``queries`` must have the same ``num_heads`` and ``head_dim`` as ``keys``
    - there must not be more queries than keys

    numpy would accept some wrong shapes, because it repeats an axis of length 1.
    """
    if keys.shape != values.shape:
        raise ValueError(f"keys {keys.shape} and values {values.shape} must have the same shape")
    if queries.shape[1:] != keys.shape[1:]:
        raise ValueError(f"queries {queries.shape} and keys {keys.shape} must agree in num_heads and head_dim")
    if len(queries) > len(keys):
        raise ValueError(f"{len(queries)} queries need at least {len(queries)} keys, got {len(keys)}")


def causal_attention(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Compute causal attention for the last ``num_queries`` tokens of a text.

    The last query belongs to the last key, so query ``i`` is at position ``num_keys - num_queries + i``. A query sees
    the keys at positions 0 up to and including its own::

        num_queries = 2, num_keys = 5         key  0 1 2 3 4
                          query 0 (position 3)     x x x x .
                          query 1 (position 4)     x x x x x

    Before:
    - ``queries`` is ``[num_queries, num_heads, head_dim]``
    - ``keys`` and ``values`` are ``[num_keys, num_heads, head_dim]``
    After:
    - the arguments are not changed
    Returns:
    - an array ``[num_queries, num_heads, head_dim]``: per query and head, the weighted sum of the values of all keys
      that the query sees
    - the weights are ``softmax(q . k / sqrt(head_dim))`` over the keys that the query sees, where ``q . k`` is the dot
      product of the query's vector and the key's vector in that head
    - the weight of a key that the query does not see is 0, however low the other scores are
    - 0 rows if there are 0 queries and at least one key; this is not an error
    Raises:
    - ValueError for shapes that ``check_attention_shapes`` rejects

    Example: the two queries are zeros, so all scores are equal. Query 0 sees the values 10 and 20; query 1 sees all
    three values::

        >>> values = np.array([10.0, 20.0, 60.0]).reshape(3, 1, 1)
        >>> causal_attention(np.zeros((2, 1, 1)), np.ones((3, 1, 1)), values).round(6).ravel().tolist()
        [15.0, 30.0]
    """
    raise NotImplementedError("Task 2: causal_attention")


# ---------------------------------------------------------------------------------------------- Task 3


class KVCache:
    """The keys and values of one sequence, per layer, in storage that is allocated once.

    Growing an array by one token per step would copy the whole cache at every step. Here a step only writes one row.

        keys[layer]   [ row 0 | row 1 | row 2 |  free  |  free  ]     capacity = 5
                        written: lengths[layer] = 3
    """

    def __init__(self, num_layers: int, capacity: int, num_heads: int, head_dim: int) -> None:
        check_at_least(1, num_layers=num_layers, num_heads=num_heads, head_dim=head_dim)
        check_at_least(0, capacity=capacity)
        self.num_layers = num_layers
        self.capacity = capacity
        self.num_heads = num_heads
        self.head_dim = head_dim
        #: One array ``[capacity, num_heads, head_dim]`` per layer.
        self.keys = [np.zeros((capacity, num_heads, head_dim)) for _ in range(num_layers)]
        self.values = [np.zeros((capacity, num_heads, head_dim)) for _ in range(num_layers)]
        #: The number of rows that are written, per layer.
        self.lengths = [0] * num_layers

    def check_new_rows(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Raise ValueError unless both arrays are ``[num_new, num_heads, head_dim]``. This method is given.

        ``num_new`` must be the same for both.
        """
        if keys.shape[1:] != (self.num_heads, self.head_dim) or values.shape != keys.shape:
            raise ValueError(f"keys and values must have the shape [num_new, {self.num_heads}, {self.head_dim}], got "
                             f"{keys.shape} and {values.shape}")

    @property
    def num_tokens(self) -> int:
        """The number of tokens that *every* layer holds. During a forward pass, some layers hold more than others."""
        raise NotImplementedError("Task 3: KVCache.num_tokens")

    def append(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Write the keys and the values of the next ``num_new`` tokens into ``layer``.

        A call that raises changes nothing: no length, and no row of the storage, free or written.

        Before:
        - ``keys`` and ``values`` are ``[num_new, num_heads, head_dim]``; ``num_new`` may be 0
        After:
        - the new rows follow the old rows of ``layer``, which are unchanged
        - ``lengths[layer]`` has grown by ``num_new``; the other layers are unchanged
        - the cache holds copies, so the caller may overwrite the two arrays
        Raises:
        - ValueError for arrays that ``check_new_rows`` rejects
        - ValueError if the layer would hold more than ``capacity`` tokens (exactly ``capacity`` is allowed); the
          message contains the number of tokens that the layer would hold, and the capacity

        Example::

            >>> cache = KVCache(num_layers=2, capacity=5, num_heads=1, head_dim=1)
            >>> cache.append(0, np.ones((3, 1, 1)), np.ones((3, 1, 1)))
            >>> cache.append(0, np.zeros((1, 1, 1)), np.zeros((1, 1, 1)))
            >>> cache.lengths, cache.keys[0].ravel().tolist()
            ([4, 0], [1.0, 1.0, 1.0, 0.0, 0.0])
        """
        raise NotImplementedError("Task 3: KVCache.append")

    def get(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys and values in ``layer``, each ``[lengths[layer], num_heads, head_dim]``, oldest row first.

        This copies no row: both arrays are slices of the storage (*views*).
        """
        raise NotImplementedError("Task 3: KVCache.get")


# ---------------------------------------------------------------------------------------------- given


class TinyDecoder:
    """A causal decoder that counts its multiply-adds. Its weights are random numbers from a seed.

    The class is given: read it, but do not change it. Each layer has six matrices and one attention::

        x ─▶ Wq, Wk, Wv [width, width] ─▶ attention ─▶ Wo [width, width] ─▶ + x
          ─▶ Wup [width, ffn_dim] ─▶ relu ─▶ Wdown [ffn_dim, width] ─▶ + x

    After the last layer, the head, a matrix [width, vocab_size], is applied only to the *last* token of the call.

    These multiply-adds are counted:

    - multiplying one vector by an [a, b] matrix: a * b
    - attention, per layer: num_queries * num_keys * width for the scores, and the same number for the weighted sum.
      Masked pairs are counted like all others: they are computed first and discarded later

    Norms, softmax and additions are not counted.
    """

    def __init__(self, shape: ModelShape, seed: int = 0) -> None:
        self.shape = shape
        self.counts = MultiplyAdds()
        #: The number of tokens in each forward call, in order.
        self.forward_lengths: list[int] = []
        rng = np.random.default_rng(seed)
        width = shape.width

        def matrix(rows: int, columns: int) -> np.ndarray:
            return rng.normal(size=(rows, columns)) / np.sqrt(rows)

        self.embedding = 2.0 * rng.normal(size=(shape.vocab_size, width))
        self.layers = [
            {"q": matrix(width, width), "k": matrix(width, width), "v": matrix(width, width), "o": matrix(width, width),
             "up": matrix(width, shape.ffn_dim), "down": matrix(shape.ffn_dim, width)}
            for _ in range(shape.num_layers)
        ]
        self.head = matrix(width, shape.vocab_size)

    def forward(self, token_ids: Sequence[int], cache: KVCache | None = None) -> np.ndarray:
        """Send ``token_ids`` through the layers and return the logits after the last one, ``[vocab_size]``.

        Without a cache, ``token_ids`` is the whole text, from position 0. With a cache, ``token_ids`` continues the
        ``cache.num_tokens`` tokens that the cache holds, and their keys and values are appended to the cache.
        """
        if len(token_ids) == 0:
            raise ValueError("forward needs at least 1 token, got 0")
        start = 0 if cache is None else cache.num_tokens
        self.forward_lengths.append(len(token_ids))
        x = self.embedding[np.asarray(token_ids)] + self._position_vectors(start, len(token_ids))
        for layer, weights in enumerate(self.layers):
            normed = _rms_norm(x)
            q, k, v = (self._split_heads(self._linear(normed, weights[name])) for name in ("q", "k", "v"))
            if cache is not None:
                cache.append(layer, k, v)
                k, v = cache.get(layer)
            self.counts.attention += 2 * len(q) * len(k) * self.shape.width
            attended = causal_attention(q, k, v).reshape(len(q), self.shape.width)
            x = x + self._linear(attended, weights["o"])
            x = x + self._linear(np.maximum(self._linear(_rms_norm(x), weights["up"]), 0.0), weights["down"])
        return self._linear(_rms_norm(x[-1:]), self.head)[0]

    def _linear(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        self.counts.linear += x.shape[0] * weight.shape[0] * weight.shape[1]
        return x @ weight

    def _split_heads(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), self.shape.num_heads, self.shape.head_dim)

    def _position_vectors(self, start: int, num_tokens: int) -> np.ndarray:
        channels = np.arange(self.shape.width)
        angles = np.arange(start, start + num_tokens)[:, None] / 100.0 ** (channels / self.shape.width)
        return 2.0 * np.sin(angles + (channels % 2) * np.pi / 2)


def _rms_norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def check_decode_request(prompt_ids: Sequence[int], num_new_tokens: int) -> None:
    """Raise ValueError if the prompt is empty or ``num_new_tokens`` is negative. This function is given, for Task 4."""
    if len(prompt_ids) == 0:
        raise ValueError("the prompt must have at least 1 token, got 0")
    check_at_least(0, num_new_tokens=num_new_tokens)


# ---------------------------------------------------------------------------------------------- Task 4


def decode_without_cache(model: TinyDecoder, prompt_ids: Sequence[int], num_new_tokens: int) -> DecodeResult:
    """Decode greedily without a cache: for every new token, send the whole text so far through the model.

    Each new token is the argmax of the logits that the model returns. From then on it is part of the text.

    After:
    - the forward calls received ``P, P + 1, ..., P + num_new_tokens - 1`` tokens, where P is the length of the prompt
    - ``prompt_ids`` is not changed
    Returns:
    - the ``num_new_tokens`` new tokens and, for each of them, the logits that it was chosen from
    - if ``num_new_tokens`` is 0, there is no forward call: ``token_ids`` is ``[]`` and the shape of ``logits`` is
      ``[0, vocab_size]``
    Raises:
    - ValueError for arguments that ``check_decode_request`` rejects, before any forward call

    Example::

        >>> model = TinyDecoder(ModelShape(num_layers=1, num_heads=1, head_dim=4, ffn_dim=8, vocab_size=50))
        >>> result = decode_without_cache(model, [7, 8, 9], num_new_tokens=4)
        >>> model.forward_lengths, len(result.token_ids), result.logits.shape
        ([3, 4, 5, 6], 4, (4, 50))
    """
    raise NotImplementedError("Task 4: decode_without_cache")


def decode_with_cache(
    model: TinyDecoder, prompt_ids: Sequence[int], num_new_tokens: int, cache: KVCache
) -> DecodeResult:
    """Decode greedily with a cache: send the prompt in one call, then one token per call. No token is sent twice.

    The last new token is never sent. Every error is raised before any forward call and leaves the cache unchanged.

    After:
    - the ``num_new_tokens`` forward calls received ``P, 1, 1, ..., 1`` tokens, where P is the length of the prompt
    - the cache holds exactly ``P + num_new_tokens - 1`` tokens
    - if ``num_new_tokens`` is 0, there was no forward call, and the cache is empty
    - ``prompt_ids`` is not changed
    Returns:
    - the same result as ``decode_without_cache``, also for 0 new tokens; the logits differ by less than 1e-9
    Raises:
    - ValueError for arguments that ``check_decode_request`` rejects
    - ValueError if any layer of the cache holds a token, even if ``num_new_tokens`` is 0
    - ValueError if the cache's capacity is below ``P + num_new_tokens - 1``, the number of slots needed; the message
      contains both numbers. A decode of 0 new tokens needs no slot

    Example::

        >>> model = TinyDecoder(ModelShape(num_layers=1, num_heads=1, head_dim=4, ffn_dim=8, vocab_size=50))
        >>> cache = KVCache(num_layers=1, capacity=6, num_heads=1, head_dim=4)
        >>> result = decode_with_cache(model, [7, 8, 9], 4, cache)
        >>> model.forward_lengths, len(result.token_ids), cache.num_tokens
        ([3, 1, 1, 1], 4, 6)
    """
    raise NotImplementedError("Task 4: decode_with_cache")


# ---------------------------------------------------------------------------------------------- Task 5


def multiply_adds_without_cache(shape: ModelShape, num_prompt_tokens: int, num_new_tokens: int) -> MultiplyAdds:
    """Compute the multiply-adds of ``decode_without_cache`` without running a model.

    The docstring of ``TinyDecoder`` says what is counted. A formula is fastest, but a loop over the steps is enough.

    Returns:
    - a new ``MultiplyAdds``, equal to ``TinyDecoder.counts`` after ``decode_without_cache`` with a new model
    - both numbers are exact Python integers of any size
    - both numbers are 0 if there are 0 new tokens

    Example::

        >>> shape = ModelShape(num_layers=1, num_heads=1, head_dim=2, ffn_dim=3, vocab_size=5)
        >>> multiply_adds_without_cache(shape, num_prompt_tokens=3, num_new_tokens=2)
        MultiplyAdds(linear=216, attention=100)
    """
    raise NotImplementedError("Task 5: multiply_adds_without_cache")


def multiply_adds_with_cache(shape: ModelShape, num_prompt_tokens: int, num_new_tokens: int) -> MultiplyAdds:
    """Compute the multiply-adds of ``decode_with_cache`` without running a model.

    The docstring of ``TinyDecoder`` says what is counted. A formula is fastest, but a loop over the steps is enough.

    Returns:
    - a new ``MultiplyAdds``, equal to ``TinyDecoder.counts`` after ``decode_with_cache`` with a new model
    - both numbers are exact Python integers of any size
    - both numbers are 0 if there are 0 new tokens

    Example::

        >>> shape = ModelShape(num_layers=1, num_heads=1, head_dim=2, ffn_dim=3, vocab_size=5)
        >>> multiply_adds_with_cache(shape, num_prompt_tokens=3, num_new_tokens=2)
        MultiplyAdds(linear=132, attention=52)
    """
    raise NotImplementedError("Task 5: multiply_adds_with_cache")


# ---------------------------------------------------------------------------------------------- Task 6


@dataclass(frozen=True)
class KVShape:
    """The sizes that determine a model's cache. ``num_kv_heads`` may be less than the number of query heads."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


#: From the models' published config files.
REAL_SHAPES = {
    "Llama-2-7B": KVShape(num_layers=32, num_kv_heads=32, head_dim=128),
    "Llama-3-8B": KVShape(num_layers=32, num_kv_heads=8, head_dim=128),
    "Qwen3-0.6B": KVShape(num_layers=28, num_kv_heads=8, head_dim=128),
    "SmolLM2-135M": KVShape(num_layers=30, num_kv_heads=3, head_dim=64),
}


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_element: int) -> int:
    """Return how many bytes one token takes in the cache: a key and a value vector per KV head, in every layer.

    Raises:
    - ValueError if one of the four arguments is below 1 (``check_at_least``); the message contains the argument's name
      and value

    Example::

        >>> kv_bytes_per_token(num_layers=32, num_kv_heads=8, head_dim=128, bytes_per_element=2)
        131072
    """
    raise NotImplementedError("Task 6: kv_bytes_per_token")


def num_tokens_that_fit(budget_bytes: int, bytes_per_token: int) -> int:
    """Return how many whole tokens fit into ``budget_bytes``. The result is exact at any size.

    Raises:
    - ValueError if ``budget_bytes`` is below 0 or ``bytes_per_token`` is below 1 (``check_at_least``); the message
      contains the argument's name and value

    Example::

        >>> num_tokens_that_fit(budget_bytes=19, bytes_per_token=10)
        1
    """
    raise NotImplementedError("Task 6: num_tokens_that_fit")


# ---------------------------------------------------------------------------------------------- look at it

#: As wide and as deep as Llama-2-7B. The feed-forward part of Llama-2-7B has three matrices with ffn_dim 11008. Here
#: there are two with ffn_dim 16512, which contain the same number of weights in total.
LIKE_LLAMA_2_7B = ModelShape(num_layers=32, num_heads=32, head_dim=128, ffn_dim=16512, vocab_size=32000)


def print_two_decodes(shape: ModelShape, prompt_ids: Sequence[int], num_new_tokens: int) -> None:
    num_slots = len(prompt_ids) + num_new_tokens - 1
    cache = KVCache(shape.num_layers, num_slots, shape.num_heads, shape.head_dim)
    plain_model, cached_model = TinyDecoder(shape), TinyDecoder(shape)
    plain = decode_without_cache(plain_model, prompt_ids, num_new_tokens)
    cached = decode_with_cache(cached_model, prompt_ids, num_new_tokens, cache)
    for name, result, model in (("without", plain, plain_model), ("with", cached, cached_model)):
        print(f"{name:>8} a cache: tokens {result.token_ids}, sent {model.forward_lengths}, "
              f"{model.counts.total:,} multiply-adds")
    print(f"largest difference between the logits: {np.abs(plain.logits - cached.logits).max():.0e}")


def print_work_table(shape: ModelShape, num_prompt_tokens: int, num_new_tokens_list: Sequence[int]) -> None:
    print(f"{'':>10} | {'without a cache':>21} | {'with a cache':>21} |")
    print(f"{'new tokens':>10} | {'linear':>10} {'attention':>10} | {'linear':>10} {'attention':>10} | {'ratio':>7}")
    for num_new_tokens in num_new_tokens_list:
        without = multiply_adds_without_cache(shape, num_prompt_tokens, num_new_tokens)
        cached = multiply_adds_with_cache(shape, num_prompt_tokens, num_new_tokens)
        print(f"{num_new_tokens:>10} | {without.linear / 1e12:>10.2f} {without.attention / 1e12:>10.2f} | "
              f"{cached.linear / 1e12:>10.2f} {cached.attention / 1e12:>10.2f} | {without.total / cached.total:>6.1f}x")


def print_bytes_table(bytes_per_element: int, budget_bytes: int) -> None:
    print(f"{bytes_per_element} bytes per element, {budget_bytes / 2**30:.0f} GiB of cache")
    print(f"{'model':>14} | {'KiB per token':>13} | {'tokens that fit':>15}")
    for name, shape in REAL_SHAPES.items():
        num_bytes = kv_bytes_per_token(shape.num_layers, shape.num_kv_heads, shape.head_dim, bytes_per_element)
        num_tokens = num_tokens_that_fit(budget_bytes, num_bytes)
        print(f"{name:>14} | {num_bytes / 1024:>13.1f} | {num_tokens:>15,}")


if __name__ == "__main__":
    print_two_decodes(ModelShape(num_layers=2, num_heads=4, head_dim=8, ffn_dim=128, vocab_size=97), [1, 2, 3], 4)
    print("\na model like Llama-2-7B after 512 prompt tokens, in 10^12 multiply-adds")
    print_work_table(LIKE_LLAMA_2_7B, num_prompt_tokens=512, num_new_tokens_list=[1, 16, 128, 512, 1536])
    print()
    print_bytes_table(bytes_per_element=2, budget_bytes=16 * 2**30)
