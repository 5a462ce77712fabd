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


# ---------------------------------------------------------------------------------------------- Task 1


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, for an array of any number of axes.

    An entry may be ``-inf`` (masked) and then gets the weight 0. Every row has at least one finite entry.
    After: an array of the shape of ``scores``; each row is >= 0 and sums to 1, without overflow and without nan, even
    where one row's scores are around 1e4 and its neighbour's around -1e4. ``scores`` is not changed.
    """
    shifted = scores - scores.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    return weights / weights.sum(axis=-1, keepdims=True)


# ---------------------------------------------------------------------------------------------- Task 2


def causal_attention(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Causal multi-head attention of a chunk of queries that ends where the keys end.

    ``queries`` is ``[num_queries, num_heads, head_dim]``; ``keys`` and ``values`` are
    ``[num_keys, num_heads, head_dim]``. The last query belongs to the last key, so query ``i`` stands at position
    ``num_keys - num_queries + i`` and sees the keys at positions 0 up to and including its own::

        num_queries = 2, num_keys = 5         key  0 1 2 3 4
                          query 0 (position 3)     x x x x .
                          query 1 (position 4)     x x x x x

    Per head: ``weights = softmax(q . k / sqrt(head_dim))`` over the keys a query sees; the output is the weighted sum
    of the values. Returns ``[num_queries, num_heads, head_dim]``. The arguments are not changed.
    Raises ValueError if ``keys`` and ``values`` differ in shape, if ``queries`` and ``keys`` differ in ``num_heads`` or
    ``head_dim``, or if there are more queries than keys; 0 queries over some keys are no error.
    """
    if keys.shape != values.shape:
        raise ValueError(f"keys {keys.shape} and values {values.shape} differ in shape")
    if queries.shape[1:] != keys.shape[1:]:
        raise ValueError(f"queries {queries.shape} and keys {keys.shape} differ in num_heads or head_dim")
    num_queries, num_keys, head_dim = len(queries), len(keys), queries.shape[2]
    if num_queries > num_keys:
        raise ValueError(f"{num_queries} queries, but only {num_keys} keys")
    if num_queries == 0:
        return np.zeros(queries.shape)
    scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(head_dim)
    positions = num_keys - num_queries + np.arange(num_queries)
    hidden = np.arange(num_keys)[None, :] > positions[:, None]
    scores = np.where(hidden[None], -np.inf, scores)
    return np.einsum("hqk,khd->qhd", softmax(scores), values)


# ---------------------------------------------------------------------------------------------- Task 3


class KVCache:
    """The keys and values of one sequence, layer by layer, in storage that is set aside once.

    Growing an array by one token a step would copy the whole cache at every step; here a step writes one row.

        keys[layer]   [ row 0 | row 1 | row 2 |  free  |  free  ]     capacity = 5
                        written: lengths[layer] = 3
    """

    def __init__(self, num_layers: int, capacity: int, num_heads: int, head_dim: int) -> None:
        for name, value in (("num_layers", num_layers), ("num_heads", num_heads), ("head_dim", head_dim)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if capacity < 0:
            raise ValueError(f"capacity must be at least 0, got {capacity}")
        self.num_layers = num_layers
        self.capacity = capacity
        self.num_heads = num_heads
        self.head_dim = head_dim
        #: One array ``[capacity, num_heads, head_dim]`` a layer.
        self.keys = [np.zeros((capacity, num_heads, head_dim)) for _ in range(num_layers)]
        self.values = [np.zeros((capacity, num_heads, head_dim)) for _ in range(num_layers)]
        #: How many rows of each layer are written.
        self.lengths = [0] * num_layers

    @property
    def num_tokens(self) -> int:
        """How many tokens *every* layer holds. In the middle of a forward pass some layers are ahead of others."""
        return min(self.lengths)

    def append(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Write the K/V of the next tokens of ``layer``, both ``[num_new, num_heads, head_dim]``.

        After: ``lengths[layer]`` is ``num_new`` more; what was written before is untouched; the cache holds copies, so
        the caller may reuse its arrays. Filling the cache to exactly ``capacity`` is allowed.
        Raises ValueError, and changes nothing, if either shape is not ``[num_new, num_heads, head_dim]`` with one
        ``num_new``, which may be 0, for both, or if the layer would hold more than ``capacity`` tokens. That message
        names how many it would hold and the capacity.
        """
        expected = (self.num_heads, self.head_dim)
        if keys.shape[1:] != expected or keys.ndim != 3:
            raise ValueError(f"keys have shape {keys.shape}, expected [num_new, {self.num_heads}, {self.head_dim}]")
        if values.shape != keys.shape:
            raise ValueError(f"values have shape {values.shape}, keys {keys.shape}")
        start = self.lengths[layer]
        end = start + len(keys)
        if end > self.capacity:
            raise ValueError(f"layer {layer} would hold {end} tokens, the capacity is {self.capacity}")
        self.keys[layer][start:end] = keys
        self.values[layer][start:end] = values
        self.lengths[layer] = end

    def get(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """The keys and the values written so far, each ``[lengths[layer], num_heads, head_dim]``, oldest first.

        Both are slices of the storage (views): reading the cache copies nothing.
        """
        length = self.lengths[layer]
        return self.keys[layer][:length], self.values[layer][:length]


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
    """Raise ValueError if the prompt is empty or ``num_new_tokens`` is negative. Given, for Task 4."""
    if len(prompt_ids) == 0:
        raise ValueError("the prompt must have at least 1 token, got 0")
    if num_new_tokens < 0:
        raise ValueError(f"num_new_tokens must be at least 0, got {num_new_tokens}")


# ---------------------------------------------------------------------------------------------- Task 4


def decode_without_cache(model: TinyDecoder, prompt_ids: Sequence[int], num_new_tokens: int) -> DecodeResult:
    """Greedy decoding (argmax) that sends the whole text through the model for every new token.

    The forward calls get ``P, P + 1, ..., P + num_new_tokens - 1`` tokens, where P is the length of the prompt. For
    ``num_new_tokens = 0`` there is no forward call, ``token_ids`` is ``[]`` and ``logits`` is ``[0, vocab_size]``.
    ``prompt_ids`` is not changed.
    Raises ValueError, before any forward call, for what ``check_decode_request`` refuses.
    """
    check_decode_request(prompt_ids, num_new_tokens)
    text = list(prompt_ids)
    token_ids: list[int] = []
    rows = np.zeros((num_new_tokens, model.shape.vocab_size))
    for step in range(num_new_tokens):
        rows[step] = model.forward(text)
        token = int(np.argmax(rows[step]))
        token_ids.append(token)
        text.append(token)
    return DecodeResult(token_ids, rows)


def decode_with_cache(
    model: TinyDecoder, prompt_ids: Sequence[int], num_new_tokens: int, cache: KVCache
) -> DecodeResult:
    """Greedy decoding that sends every token through the model once: the prompt in one call, then one token a call.

    The forward calls get ``P, 1, 1, ..., 1`` tokens, ``num_new_tokens`` calls in all. The last token that is emitted
    is never fed back, so the cache needs ``P + num_new_tokens - 1`` slots and holds exactly that many tokens after.
    For ``num_new_tokens = 0`` there is no forward call, the cache stays empty and needs no slot; the result is as in
    ``decode_without_cache``. ``prompt_ids`` is not changed.
    Raises ValueError, before any forward call and with the cache unchanged, for what ``check_decode_request`` refuses,
    if any layer of the cache holds a token, or if its capacity is too small. That last message names the slots needed
    and the capacity.
    """
    check_decode_request(prompt_ids, num_new_tokens)
    if any(length > 0 for length in cache.lengths):
        raise ValueError(f"the cache must be empty, its layers hold {cache.lengths}")
    num_slots = len(prompt_ids) + num_new_tokens - 1 if num_new_tokens > 0 else 0
    if num_slots > cache.capacity:
        raise ValueError(f"decoding needs {num_slots} slots, the capacity is {cache.capacity}")
    emitted: list[int] = []
    logits = np.zeros((num_new_tokens, model.shape.vocab_size))
    chunk = list(prompt_ids)
    for step in range(num_new_tokens):
        logits[step] = model.forward(chunk, cache)
        emitted.append(int(np.argmax(logits[step])))
        chunk = emitted[-1:]
    return DecodeResult(emitted, logits)


# ---------------------------------------------------------------------------------------------- Task 5


def multiply_adds_without_cache(shape: ModelShape, num_prompt_tokens: int, num_new_tokens: int) -> MultiplyAdds:
    """What ``TinyDecoder.counts`` reads after ``decode_without_cache`` on a fresh model, without running one.

    Exact Python integers at any size. A formula is the quickest way; a loop over the steps will do.
    0 new tokens cost 0.
    """
    total = MultiplyAdds()
    width = shape.width
    per_token = shape.num_layers * (4 * width * width + 2 * width * shape.ffn_dim)
    for step in range(num_new_tokens):
        length = num_prompt_tokens + step
        total.linear += length * per_token + width * shape.vocab_size
        total.attention += shape.num_layers * 2 * length * length * width
    return total


def multiply_adds_with_cache(shape: ModelShape, num_prompt_tokens: int, num_new_tokens: int) -> MultiplyAdds:
    """What ``TinyDecoder.counts`` reads after ``decode_with_cache`` on a fresh model, without running one.

    Exact Python integers at any size. A formula is the quickest way; a loop over the steps will do.
    0 new tokens cost 0.
    """
    count = MultiplyAdds()
    width = shape.width
    token_cost = shape.num_layers * (4 * width * width + 2 * width * shape.ffn_dim)
    for step in range(num_new_tokens):
        num_sent = num_prompt_tokens if step == 0 else 1
        num_keys = num_prompt_tokens + step
        count.linear += num_sent * token_cost + width * shape.vocab_size
        count.attention += shape.num_layers * 2 * num_sent * num_keys * width
    return count


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

    Raises ValueError, naming the argument and its value, if any of the four is below 1.
    """
    for name, value in (("num_layers", num_layers), ("num_kv_heads", num_kv_heads), ("head_dim", head_dim),
                        ("bytes_per_element", bytes_per_element)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, it is {value}")
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_element


def num_tokens_that_fit(budget_bytes: int, bytes_per_token: int) -> int:
    """How many whole tokens a budget of bytes holds, exactly, at any size.

    Raises ValueError, naming the argument and its value, if the budget is negative or ``bytes_per_token`` is below 1.
    """
    if budget_bytes < 0:
        raise ValueError(f"budget_bytes must be at least 0, got {budget_bytes}")
    if bytes_per_token < 1:
        raise ValueError(f"bytes_per_token must be at least 1, got {bytes_per_token}")
    return budget_bytes // bytes_per_token


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
    print(f"{bytes_per_element} bytes an element, {budget_bytes / 2**30:.0f} GiB of cache")
    print(f"{'model':>14} | {'KiB a token':>11} | {'tokens that fit':>15}")
    for name, shape in REAL_SHAPES.items():
        num_bytes = kv_bytes_per_token(shape.num_layers, shape.num_kv_heads, shape.head_dim, bytes_per_element)
        num_tokens = num_tokens_that_fit(budget_bytes, num_bytes)
        print(f"{name:>14} | {num_bytes / 1024:>11.1f} | {num_tokens:>15,}")


if __name__ == "__main__":
    print_two_decodes(ModelShape(num_layers=2, num_heads=4, head_dim=8, ffn_dim=128, vocab_size=97), [1, 2, 3], 4)
    print("\na model like Llama-2-7B after 512 prompt tokens, in 10^12 multiply-adds")
    print_work_table(LIKE_LLAMA_2_7B, num_prompt_tokens=512, num_new_tokens_list=[1, 16, 128, 512, 1536])
    print()
    print_bytes_table(bytes_per_element=2, budget_bytes=16 * 2**30)
