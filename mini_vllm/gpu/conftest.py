"""The kernels as plain operations, so that the code around them can be tested without a GPU."""

import numpy as np
import pytest

from mini_vllm.attention import paged_attention
from mini_vllm.backend import mx
from mini_vllm.gpu import kernel_checks, network, runner
from mini_vllm.gpu.kernels import paged
from mini_vllm.gpu.kernels import step_upload as upload_module
from mini_vllm.gpu.kernels.small_batch_matmul import flat

collect_ignore = ["test_on_gpu.py"]  # it needs the kernels themselves: `make test-gpu` names the file


class Emulated:
    """The results of each kernel, computed at once. The pool is written in place, as a kernel does it."""

    def __init__(self):
        self.num_requests = []
        self.num_tokens = []

    def upload(self, numbers):
        """Return the numbers followed by values that must not be read."""
        return mx.concatenate([numbers, mx.full((100,), -1, numbers.dtype)])

    def decode(self, queries, pool, tables, context_lens, shape, window=None):
        lens = context_lens.tolist()
        self.num_requests.append(len(lens))
        return paged_attention(queries, pool, tables.tolist(), lens, list(range(len(lens) + 1)), shape.scale, window)

    def attend_chunks(self, queries, pool, chunks, shape, window=None):
        self.num_tokens.append(queries.shape[0])
        return paged_attention(queries, pool, chunks.tables.tolist(), chunks.context_lens.tolist(),
                               chunks.query_starts.tolist(), shape.scale, window)

    def turn_and_write(self, heads, pool, slots, cosines, sines, norm, shape):
        num_heads, kv = shape.num_kv_heads * shape.group_size, shape.num_kv_heads
        x = heads.reshape(heads.shape[0], num_heads + 2 * kv, shape.head_dim)
        turned = x[:, :num_heads + kv]
        if norm is not None:
            turned = mx.fast.rms_norm(turned, None, norm[1]) * norm[0]
        first, second = mx.split(turned, 2, axis=-1)
        cos, sin = cosines[:, None], sines[:, None]
        turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
        written = mx.concatenate([turned[:, num_heads:], x[:, num_heads + kv:]], axis=1)
        mx.eval(pool, written)
        view, numbers = np.array(pool, copy=False), np.array(written)
        for slot, vectors in zip(slots.tolist(), numbers):
            view[slot // shape.block_size, :, slot % shape.block_size] = vectors
        return turned[:, :num_heads]

    def add_norm(self, x, added, weight, eps):
        added = added.sum(axis=0).astype(x.dtype) if added.ndim == 3 else added
        return x + added, mx.fast.rms_norm(x + added, weight, eps)

    def product(self, x, weight):
        return x @ weight.T


def emulate(setattr):
    """Replace the kernels by an ``Emulated``, with ``setattr(object, name, value)``, and return it."""
    kernels = Emulated()
    for module, names in ((paged, ("decode", "attend_chunks")), (network, ("turn_and_write", "add_norm"))):
        for name in names:
            setattr(module, name, getattr(kernels, name))
    for name in ("multiply", "multiply_in_parts"):
        setattr(network, name, lambda layer, x, plain: layer(flat(x)))
    setattr(network, "multiply_gated", lambda layer, x, plain: None)
    for module in (upload_module, runner):
        setattr(module, "upload", kernels.upload)
    setattr(runner.mx, "compile", lambda function, **options: function)
    setattr(kernel_checks.turn_module, "turn_and_write", kernels.turn_and_write)
    setattr(kernel_checks.add_norm_module, "add_norm", kernels.add_norm)
    for name in ("product", "product_in_parts"):
        setattr(kernel_checks.skinny_module, name, kernels.product)
    setattr(kernel_checks.skinny_module, "gated_product", lambda x, weight: None)
    return kernels


@pytest.fixture
def emulated(monkeypatch):
    return emulate(monkeypatch.setattr)
