"""Decode with and without a KV cache, count the work of both, and weigh the cache in bytes.

    without:  step 1  [a b c]           every step sends the whole text through every layer again
              step 2  [a b c d]
              step 3  [a b c d e]

    with:     step 1  [a b c] ─┐
              step 2        [d]├─▶ K/V of a b c, then d, then e: written once, read by every later step
              step 3        [e]┘

Everything is float64 numpy, so that "the same numbers" can mean 1e-9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder. ``width`` is the length of the vector that a token carries through the layers."""

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
    """Multiply-adds, split by where they were done."""

    linear: int = 0
    attention: int = 0

    @property
    def total(self) -> int:
        return self.linear + self.attention


@dataclass(frozen=True)
class DecodeResult:
    """What a greedy decode emitted: the new tokens only, as plain ints, and the logits each of them was picked from."""

    token_ids: list[int]
    #: ``[num_new_tokens, vocab_size]``; row i is what token i was picked from.
    logits: np.ndarray


def check_at_least(minimum: int, **arguments: int) -> None:
    """Given. Raise ValueError for the first argument that is below ``minimum``.

        check_at_least(1, num_heads=4, head_dim=0)    ValueError: head_dim must be at least 1, got 0
    """
    for name, value in arguments.items():
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")


# ---------------------------------------------------------------------------------------------- Task 1


def softmax(scores: np.ndarray) -> np.ndarray:
    """Turn every row of ``scores`` into weights: a score s weighs exp(s), divided by the sum of all exp of its row.

    A larger score gets a larger weight, and the weights of a row sum to 1.

    Before:
    - ``scores`` has one axis or more; a row runs along the last axis
    - ``scores`` holds floats or integers
    - a score may be ``-inf``, which means masked; every row has at least one finite score
    After:
    - ``scores`` is not changed
    Returns:
    - an array of floats, of the shape of ``scores``
    - the weights of a row come from its own scores only, are not below 0, and sum to 1
    - a masked score has the weight 0, exactly
    - no inf and no nan, even if one row's scores are around 1e4 and the next row's around -1e4

    Example::

        >>> softmax(np.array([[0.0, np.log(3.0)], [5.0, -np.inf]])).round(6).tolist()
        [[0.25, 0.75], [1.0, 0.0]]
    """
    raise NotImplementedError("Task 1: softmax")


# ---------------------------------------------------------------------------------------------- Task 2


def check_attention_shapes(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
    """Given. Raise ValueError if these cannot be the arguments of ``causal_attention``.

    ``keys`` and ``values`` must have the same shape, ``queries`` the same ``num_heads`` and ``head_dim``, and there
    may not be more queries than keys. numpy alone would accept some of these: it repeats an axis of length 1.
    """
    if keys.shape != values.shape:
        raise ValueError(f"keys {keys.shape} and values {values.shape} must have the same shape")
    if queries.shape[1:] != keys.shape[1:]:
        raise ValueError(f"queries {queries.shape} and keys {keys.shape} must agree in num_heads and head_dim")
    if len(queries) > len(keys):
        raise ValueError(f"{len(queries)} queries need at least {len(queries)} keys, got {len(keys)}")


def causal_attention(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Causal attention of a text's last tokens: each query mixes the values of all tokens up to and including its own.

    The last query belongs to the last key, so query ``i`` is at position ``num_keys - num_queries + i``. It sees the
    keys at positions 0 up to and including its own::

        num_queries = 2, num_keys = 5         key  0 1 2 3 4
                          query 0 (position 3)     x x x x .
                          query 1 (position 4)     x x x x x

    Before:
    - ``queries`` is ``[num_queries, num_heads, head_dim]``
    - ``keys`` and ``values`` are ``[num_keys, num_heads, head_dim]``
    After:
    - the arguments are not changed
    Returns:
    - ``[num_queries, num_heads, head_dim]``: per query and head, the sum of weight times value over the keys it sees
    - the weights are ``softmax(q . k / sqrt(head_dim))`` over the keys that the query sees, where ``q . k`` is the dot
      product of the query's and the key's vector of that head
    - a key that the query does not see weighs nothing, however low the other scores are
    - 0 rows for 0 queries over one key or more; this is no error
    Raises:
    - ValueError for what ``check_attention_shapes`` refuses

    Example: two queries of zeros, so that all scores are equal. Query 0 sees the values 10 and 20, query 1 all three::

        >>> values = np.array([10.0, 20.0, 60.0]).reshape(3, 1, 1)
        >>> causal_attention(np.zeros((2, 1, 1)), np.ones((3, 1, 1)), values).round(6).ravel().tolist()
        [15.0, 30.0]
    """
    raise NotImplementedError("Task 2: causal_attention")


# ---------------------------------------------------------------------------------------------- Task 3


class KVCache:
    """The keys and values of one sequence, layer by layer, in storage that is set aside once.

    Growing an array by one token per step would copy the whole cache at every step; here a step writes one row.

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
        #: How many rows of each layer are written.
        self.lengths = [0] * num_layers

    def check_new_rows(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Given. Raise ValueError unless both are ``[num_new, num_heads, head_dim]``, with the same ``num_new``."""
        if keys.shape[1:] != (self.num_heads, self.head_dim) or values.shape != keys.shape:
            raise ValueError(f"keys and values must have the shape [num_new, {self.num_heads}, {self.head_dim}], got "
                             f"{keys.shape} and {values.shape}")

    @property
    def num_tokens(self) -> int:
        """How many tokens *every* layer holds. In the middle of a forward pass some layers are ahead of others."""
        raise NotImplementedError("Task 3: KVCache.num_tokens")

    def append(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Write the keys and the values of the next ``num_new`` tokens into ``layer``.

        A call that raises has changed nothing: not a length, and not a row of the storage, free or written.

        Before:
        - ``keys`` and ``values`` are ``[num_new, num_heads, head_dim]``; ``num_new`` may be 0
        After:
        - the new rows come after the rows that ``layer`` held, which are untouched
        - ``lengths[layer]`` is ``num_new`` more; the other layers are as they were
        - the cache holds copies, so the caller may reuse its arrays
        Raises:
        - ValueError for what ``check_new_rows`` refuses
        - ValueError if the layer would hold more than ``capacity`` tokens (exactly ``capacity`` is allowed); the
          message names the number it would hold and the capacity

        Example::

            >>> cache = KVCache(num_layers=2, capacity=5, num_heads=1, head_dim=1)
            >>> cache.append(0, np.ones((3, 1, 1)), np.ones((3, 1, 1)))
            >>> cache.append(0, np.zeros((1, 1, 1)), np.zeros((1, 1, 1)))
            >>> cache.lengths, cache.keys[0].ravel().tolist()
            ([4, 0], [1.0, 1.0, 1.0, 0.0, 0.0])
        """
        raise NotImplementedError("Task 3: KVCache.append")

    def get(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """The keys and the values that were written into ``layer``, each ``[lengths[layer], num_heads, head_dim]``.

        The oldest row is the first. Reading the cache copies no row: the rows are a slice of the storage (a *view*).
        """
        raise NotImplementedError("Task 3: KVCache.get")


# ---------------------------------------------------------------------------------------------- given


class TinyDecoder:
    """A causal decoder with seeded weights that counts the multiply-adds it does. Given: read it, do not change it.

    Each layer has six matrices and one attention::

        x ─▶ Wq, Wk, Wv [width, width] ─▶ attention ─▶ Wo [width, width] ─▶ + x
          ─▶ Wup [width, ffn_dim] ─▶ relu ─▶ Wdown [ffn_dim, width] ─▶ + x

    After the last layer the head [width, vocab_size] is applied to the *last* token of the call only.
    A vector through an [a, b] matrix counts as a * b. Attention counts num_queries * num_keys * width for the scores
    and as much again for the weighted sum: masked pairs are computed too, then thrown away. Norms, softmax and
    additions are not counted.
    """

    def __init__(self, shape: ModelShape, seed: int = 0) -> None:
        self.shape = shape
        self.counts = MultiplyAdds()
        #: How many tokens each forward call was given, in order.
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

        Without a cache the tokens are the whole text, from position 0. With a cache they continue the
        ``cache.num_tokens`` tokens that are in it, and their keys and values are appended to it.
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
    """Given, for Task 4. Raise ValueError if the prompt is empty or ``num_new_tokens`` is negative."""
    if len(prompt_ids) == 0:
        raise ValueError("the prompt must have at least 1 token, got 0")
    check_at_least(0, num_new_tokens=num_new_tokens)


# ---------------------------------------------------------------------------------------------- Task 4


def decode_without_cache(model: TinyDecoder, prompt_ids: Sequence[int], num_new_tokens: int) -> DecodeResult:
    """Greedy decoding without a cache: for every new token the whole text so far is sent through the model.

    Each new token is the argmax of the logits that the model returns, and is then part of the text.

    After:
    - the forward calls got ``P, P + 1, ..., P + num_new_tokens - 1`` tokens, where P is the length of the prompt
    - ``prompt_ids`` is not changed
    Returns:
    - the ``num_new_tokens`` new tokens and, per token, the logits that it was picked from
    - for 0 new tokens, without a forward call: ``token_ids`` is ``[]`` and ``logits`` is ``[0, vocab_size]``
    Raises:
    - ValueError for what ``check_decode_request`` refuses, before any forward call

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
    """Greedy decoding with a cache: no token is sent twice. The prompt is sent in one call, then one token per call.

    The last new token is never sent. Every refusal comes before any forward call, and leaves the cache as it was.

    After:
    - the ``num_new_tokens`` forward calls got ``P, 1, 1, ..., 1`` tokens, where P is the length of the prompt
    - the cache holds exactly ``P + num_new_tokens - 1`` tokens
    - for 0 new tokens there was no forward call, and the cache is empty
    - ``prompt_ids`` is not changed
    Returns:
    - what ``decode_without_cache`` returns, for 0 new tokens too; the logits differ by less than 1e-9
    Raises:
    - ValueError for what ``check_decode_request`` refuses
    - ValueError if any layer of the cache holds a token, even if no new token is asked for
    - ValueError if the cache's capacity is below ``P + num_new_tokens - 1``, the slots needed; the message names both
      numbers. A decode of 0 new tokens needs no slot

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
    """The multiply-adds of ``decode_without_cache``, worked out without running a model.

    ``TinyDecoder`` says what is counted. A formula is the quickest way; a loop over the steps will do.

    Returns:
    - a new ``MultiplyAdds`` with what ``TinyDecoder.counts`` reads after ``decode_without_cache`` on a fresh model
    - exact Python integers at any size
    - 0 and 0 for 0 new tokens

    Example::

        >>> shape = ModelShape(num_layers=1, num_heads=1, head_dim=2, ffn_dim=3, vocab_size=5)
        >>> multiply_adds_without_cache(shape, num_prompt_tokens=3, num_new_tokens=2)
        MultiplyAdds(linear=216, attention=100)
    """
    raise NotImplementedError("Task 5: multiply_adds_without_cache")


def multiply_adds_with_cache(shape: ModelShape, num_prompt_tokens: int, num_new_tokens: int) -> MultiplyAdds:
    """The multiply-adds of ``decode_with_cache``, worked out without running a model.

    ``TinyDecoder`` says what is counted. A formula is the quickest way; a loop over the steps will do.

    Returns:
    - a new ``MultiplyAdds`` with what ``TinyDecoder.counts`` reads after ``decode_with_cache`` on a fresh model
    - exact Python integers at any size
    - 0 and 0 for 0 new tokens

    Example::

        >>> shape = ModelShape(num_layers=1, num_heads=1, head_dim=2, ffn_dim=3, vocab_size=5)
        >>> multiply_adds_with_cache(shape, num_prompt_tokens=3, num_new_tokens=2)
        MultiplyAdds(linear=132, attention=52)
    """
    raise NotImplementedError("Task 5: multiply_adds_with_cache")


# ---------------------------------------------------------------------------------------------- Task 6


@dataclass(frozen=True)
class KVShape:
    """What a model's cache depends on. ``num_kv_heads`` may be less than the number of query heads."""

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
    """How many bytes of cache one token takes: a key and a value vector, in every KV head of every layer.

    Raises:
    - ValueError if one of the four is below 1 (``check_at_least``); the message names the argument and its value

    Example::

        >>> kv_bytes_per_token(num_layers=32, num_kv_heads=8, head_dim=128, bytes_per_element=2)
        131072
    """
    raise NotImplementedError("Task 6: kv_bytes_per_token")


def num_tokens_that_fit(budget_bytes: int, bytes_per_token: int) -> int:
    """How many whole tokens a budget of bytes holds, exactly, at any size.

    Raises:
    - ValueError if the budget is below 0, or ``bytes_per_token`` below 1 (``check_at_least``); the message names the
      argument and its value

    Example::

        >>> num_tokens_that_fit(budget_bytes=19, bytes_per_token=10)
        1
    """
    raise NotImplementedError("Task 6: num_tokens_that_fit")


# ---------------------------------------------------------------------------------------------- look at it

#: As wide and as deep as Llama-2-7B. Its feed-forward part has three matrices of 11008; two of 16512 are as large.
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
    print(f"largest difference of two logits: {np.abs(plain.logits - cached.logits).max():.0e}")


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
