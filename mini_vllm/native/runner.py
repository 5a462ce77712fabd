"""The ModelRunner whose step is one call of a function in C."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import Structure, c_int, c_void_p
from functools import cache
from pathlib import Path

import numpy as np

from mini_vllm.attention import PagedKVCache, TokenArray
from mini_vllm.backend import mx
from mini_vllm.fast.attention import FastAttention
from mini_vllm.model_runner import Batch, ModelRunner
from mini_vllm.models.config import ModelConfig
from mini_vllm.models.network import Model
from mini_vllm.native.build import SWITCH, library, problem
from mini_vllm.native.weights import Array, Weights, aligned

#: The values of EngineConfig.precision. FAST: products by AMX where there is one, and K/V in 16 bits; the others do one
#: of the two.
EXACT, FAST, FAST_PRODUCTS, FAST_CACHE = PRECISIONS = ("exact", "fast", "fast-products", "fast-cache")
#: How long this container may compute in each period, both in microseconds.
QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Step(Structure):
    _fields_ = [*((name, c_int) for name in ("num_tokens", "num_requests", "num_wanted", "table_width")),
                *((name, c_void_p) for name in ("token_ids", "starts", "lengths", "wanted", "tables", "angles", "x",
                                                "h", "qkv", "mlp", "gate_up", "logits", "x_tiles", "spans",
                                                "last_spans", "requests")),
                *((name, c_int) for name in ("num_spans", "has_nan"))]


class NativeKVCache(PagedKVCache):
    """The same K/V arrays, except that a block's keys are transposed, and that they have a type of their own."""

    #: The type of the keys and values, and how much longer than ``head_dim`` a token's are.
    dtype, num_more = mx.float32, 0

    def __init__(self, num_layers: int, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int,
                 dtype: mx.Dtype) -> None:
        wide = constant("wide")
        # The last strip of the last block's values may reach beyond it; what follows the keys are values.
        if head_dim % wide or num_kv_heads * block_size * head_dim < wide:
            num_blocks += 1 + wide // (2 * num_kv_heads * block_size * head_dim)
        super().__init__(num_layers, num_blocks, num_kv_heads, block_size, head_dim + self.num_more, self.dtype)
        #: Views of the pools.
        self.blocks = [np.asarray(pool) for pool in self.pools]

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        for source, destination in copies:
            for blocks in self.blocks:
                blocks[destination] = blocks[source]
        self.num_copied_blocks += len(copies)

    def clear_blocks(self, block_ids: Sequence[int]) -> None:
        """Do nothing: slots after a context are never read, in whichever block."""

    def clear_slots(self, slots: TokenArray) -> None:
        """Do nothing, for the same reason."""


class ShortKVCache(NativeKVCache):
    """Keys and values as numbers of 16 bits, with a scale for each token and head."""

    dtype, num_more = mx.int16, 2


class NativeRunner(ModelRunner):
    """A ModelRunner that computes a step by ``step.c``."""

    cache_class: type[NativeKVCache] = NativeKVCache
    cache: NativeKVCache

    def __init__(self, model: Model, num_blocks: int, block_size: int,
                 attention: type | Callable[..., mx.array] = FastAttention, precision: str = EXACT) -> None:
        """Create it. ``precision`` is EngineConfig.precision."""
        self.cache_class = cache_class(precision)
        super().__init__(model, num_blocks, block_size, attention)
        self._run = library().run_step
        by_tiles = precision in (FAST, FAST_PRODUCTS) and may_use_tiles()
        self._weights = Weights.of(model, constant("wide"), by_tiles)
        self._network = self._weights.network(
            [blocks.ctypes.data for blocks in self.cache.blocks], block_size=block_size,
            in_16_bits=self.cache_class is ShortKVCache, by_tiles=by_tiles)
        self._frequencies = np.asarray(model._rope.frequencies)
        self._angles = np.zeros((0, model.config.head_dim), np.float32)
        self._buffers: dict[str, Array] = {}
        self._num_threads = usable_cores()
        self._thread = ThreadPoolExecutor(1, "mini-vllm step")  # it starts with its first step
        self._ahead: Future[Array] | None = None

    def _logits(self, token_ids: mx.array, batch: Batch, wanted: Sequence[int]) -> mx.array:
        return self._logits_of_tokens(token_ids, batch, [batch.query_starts[request + 1] - 1 for request in wanted])

    def _logits_of_tokens(self, token_ids: mx.array, batch: Batch, wanted: Sequence[int]) -> mx.array:
        if self._ahead is not None:
            self._ahead.exception()  # wait: Ctrl-C may have interrupted its caller
        return mx.array(self._compute(np.ascontiguousarray(token_ids, np.int32), batch, wanted))

    def step_ahead(self, token_ids: mx.array, block_tables: Sequence[Sequence[int]],
                   context_lens: Sequence[int]) -> Future[Array]:
        """Begin a step of one token per request in another thread. Its logits are kept until the next step begins."""
        batch = Batch.of(block_tables, context_lens, [1] * len(context_lens))
        ids = np.ascontiguousarray(token_ids, np.int32)
        self._ahead = self._thread.submit(self._compute, ids, batch, range(len(ids)))
        return self._ahead

    def _compute(self, token_ids: Array, batch: Batch, wanted: Sequence[int]) -> Array:
        """Return logits in memory that the next step writes to."""
        config, num_tokens, longest = self.model.config, token_ids.size, max(batch.context_lens)
        if longest > len(self._angles):
            self._angles = self._angles_of(np.arange(max(longest, 2 * len(self._angles), 256)))
        width = -(-longest // self.cache.block_size)
        tables = np.zeros((len(batch.block_tables), width), np.int32)
        for row, table in zip(tables, batch.block_tables):
            known = table[:width]
            row[:len(known)] = known
        attended, band = config.num_heads * config.head_dim, min(num_tokens, constant("band"))
        widest = max(config.hidden_size, config.intermediate_size, attended)
        num_heads = config.num_heads + 2 * config.num_kv_heads
        arrays = [token_ids, np.asarray(batch.query_starts, np.int32),
                  np.asarray(batch.context_lens, np.int32), np.asarray(wanted, np.int32), tables, self._angles,
                  self._buffer("x", num_tokens, config.hidden_size),
                  self._buffer("h", num_tokens, max(config.hidden_size, attended)),
                  self._buffer("qkv", num_tokens, num_heads * config.head_dim),
                  self._buffer("mlp", band, widest), self._buffer("gate_up", band, 2 * config.intermediate_size),
                  self._buffer("logits", len(wanted), config.vocab_size),
                  self._buffer("x_tiles", num_tokens, widest + widest // 32 + 16),
                  *(self._buffer(name, num_tokens, 4) for name in ("spans", "last_spans", "requests"))]
        step = Step(num_tokens, len(batch.context_lens), len(wanted), width, *(array.ctypes.data for array in arrays))
        self._run(ctypes.byref(self._network), ctypes.byref(step), self._num_threads)
        if step.has_nan:
            raise ValueError("keys or values contain NaN")
        return self._buffers["logits"][:len(wanted), :config.vocab_size]

    def _angles_of(self, positions: Array) -> Array:
        angles = positions[:, None].astype(np.float32) * self._frequencies
        both: Array = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * np.float32(self.model._rope.scale)
        return both

    def _buffer(self, name: str, rows: int, width: int) -> Array:
        """Return space for rows that are filled up to whole strips: 16 rows at a time, and one more."""
        known, rows = self._buffers.get(name), -(-rows // 16) * 16
        if known is None or len(known) <= rows:
            self._buffers[name] = known = aligned((2 * rows + 1, -(-width // constant("wide")) * constant("wide")))
        return known


def cache_class(precision: str) -> type[NativeKVCache]:
    """Return the class of the K/V arrays."""
    return ShortKVCache if precision in (FAST, FAST_CACHE) else NativeKVCache


@cache
def may_use_tiles() -> bool:
    """Check whether this processor has AMX and the kernel lets this process use it."""
    return bool(library().may_use_tiles())


@cache
def usable_cores() -> int:
    """Return how many cores this process may use at once: a container may have a quota, others a list of cores."""
    try:
        quota, period = QUOTA.read_text().split()
        limit = max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no such file, or no quota: "max"
        limit = sys.maxsize
    return min(limit, len(os.sched_getaffinity(0)))


@cache
def constant(name: str) -> int:
    """Return a constant of ``step.c``."""
    return ctypes.c_int.in_dll(library(), name).value


def why_not(config: ModelConfig, block_size: int, asked_for: bool | None) -> str:
    """Return why ``step.c`` does not compute such a model; empty if it does. ``asked_for`` is EngineConfig.native."""
    if found := why_not_here(asked_for):
        return found
    group = config.num_heads // config.num_kv_heads
    for name, number, most in (("head_dim", config.head_dim, constant("max_head_dim")),
                               ("block_size", block_size, constant("max_block")),
                               ("query heads per KV head", group, constant("span_rows"))):
        if number > most:
            return f"{name}: {number}, at most {most} are supported"
    return ""


def why_not_here(asked_for: bool | None = None) -> str:
    """Return why ``step.c`` computes no model on this machine; empty if it does."""
    switch = os.environ.get(SWITCH, "").strip()
    if switch not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} is {switch!r}, must be 0 or 1")
    if asked_for is False:
        return "switched off by native=False"
    return f"switched off by {SWITCH}=0" if asked_for is None and switch == "0" else problem()
