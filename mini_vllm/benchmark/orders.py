"""The faster order of a product with weights, ``x @ weight.T`` or ``weight @ x.T``: the source of
``tuning.WEIGHTS_FIRST``, and how ``doctor`` checks whether it holds on a machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mini_vllm.backend import mx
from mini_vllm.fast import tuning
from mini_vllm.fast.products import mlp_by_columns, mlp_by_rows, tokens_first, weights_first

NUM_ROWS = (1, 2, 3, 4, 6, 8, 9, 12, 15, 16, 20, 24, 32, 40, 48, 63, 64, 96, 128)


@dataclass(frozen=True)
class Widths:
    """The widths of a model's products."""

    hidden: int
    #: All queries of a token.
    queries: int
    #: All queries, keys and values of a token.
    all_heads: int
    inner: int
    vocab: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the input and output width of each part of the model; an MLP has one in between."""
        return {"qkv": (self.hidden, self.all_heads), "out": (self.queries, self.hidden),
                "mlp": (self.hidden, self.inner, self.hidden), "head": (self.hidden, self.vocab)}


WIDTHS = {"tiny-tales": Widths(256, 256, 512, 704, 4096), "smollm2": Widths(576, 576, 960, 1536, 49_152),
          "qwen3-0.6b": Widths(1024, 2048, 4096, 3072, 151_936)}


#: The field of ``tuning.WeightsFirst`` for each part.
_FIELDS = {"qkv": "one", "out": "one", "mlp": "mlp", "head": "head"}


@dataclass(frozen=True)
class Order:
    """One product, in both orders."""

    model: str
    part: str
    shape: tuple[int, ...]
    num_rows: int
    tokens_first_ms: float
    weights_first_ms: float

    @property
    def table_says(self) -> str:
        return "weights" if tuning.weights_first_is_faster(self.num_rows, _FIELDS[self.part]) else "tokens"

    @property
    def times_off(self) -> float:
        """The time of the order in the table divided by that of the other; below 1 if the table is right."""
        ratio = self.tokens_first_ms / self.weights_first_ms
        return ratio if self.table_says == "tokens" else 1 / ratio

    def __str__(self) -> str:
        shape = "→".join(map(str, self.shape))
        slower = f", which takes {self.times_off:.2f} times as long" if self.times_off > 1.1 else ""
        return (f"{self.model:<11} {self.part:<5} {shape:<15} {self.num_rows:>4} {self.tokens_first_ms:>9.3f} "
                f"{self.weights_first_ms:>9.3f} {self.tokens_first_ms / self.weights_first_ms:>6.2f}x   "
                f"{self.table_says}{slower}")


HEADER = (f"{'model':<11} {'part':<5} {'widths':<15} {'rows':>4} {'x @ W.T':>9} {'W @ x.T':>9} {'ratio':>7}   "
          "first in the table")


def measure_orders(models: Sequence[str], all_num_rows: Sequence[int], seconds: float,
                   parts: Sequence[str] = ("qkv", "out", "mlp", "head")) -> Iterator[Order]:
    """Measure milliseconds of each product, in both orders in turns for ``seconds``.

    The shortest time of each is taken, which interruptions do not change.
    """
    for model, part in itertools.product(models, parts):
        shape = WIDTHS[model].shapes()[part]
        weights = _weights(shape)
        ways: list[Callable[..., mx.array]] = (
            [partial(mlp_by_rows, multiply=tokens_first), mlp_by_columns] if part == "mlp" else
            [tokens_first, weights_first])
        for num_rows in all_num_rows:
            x = mx.random.normal((num_rows, shape[0]), key=mx.random.key(0))
            mx.eval(x)
            tokens_ms, weights_ms = _shortest_ms(ways, [x, *weights], seconds)
            yield Order(model, part, shape, num_rows, tokens_ms, weights_ms)


def _weights(shape: tuple[int, ...]) -> list[mx.array]:
    """Return one matrix for a single product, or two for an MLP, the first of which is gate and up stacked."""
    sizes = [(shape[1], shape[0])] if len(shape) == 2 else [(2 * shape[1], shape[0]), (shape[2], shape[1])]
    weights = [mx.random.normal(size, key=mx.random.key(nth)) for nth, size in enumerate(sizes)]
    mx.eval(weights)
    return weights


def _shortest_ms(ways: Sequence[Callable[..., mx.array]], arrays: Sequence[mx.array], seconds: float) -> list[float]:
    for way in ways:
        mx.eval(mx.contiguous(way(*arrays)))
    shortest = [float("inf")] * len(ways)
    start_s = now_s = time.perf_counter()
    while now_s - start_s < seconds or now_s == start_s:
        for nth, way in enumerate(ways):
            before_s = time.perf_counter()
            mx.eval(mx.contiguous(way(*arrays)))
            now_s = time.perf_counter()
            shortest[nth] = min(shortest[nth], now_s - before_s)
    return [each * 1e3 for each in shortest]
