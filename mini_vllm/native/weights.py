"""The weights of a network as ``step.c`` reads them: matrices in strips, and the structs that point to them."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int, c_void_p
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm.backend import mx, nn
from mini_vllm.models.network import Model, SideBySide
from mini_vllm.models.weights import GROUP_SIZES, Packing

Array = npt.NDArray[Any]


class Matrix(Structure):
    _fields_ = [("outs", c_int), ("ins", c_int), ("bits", c_int), ("group", c_int), ("numbers", c_void_p),
                ("scales", c_void_p), ("bias", c_void_p)]


class Layer(Structure):
    _fields_ = [("qkv", Matrix), ("o", Matrix), ("gate_up", Matrix), ("down", Matrix), ("norm", c_void_p),
                ("mlp_norm", c_void_p), ("qk_norm", c_void_p), ("pool", c_void_p), ("window", c_int)]


class Network(Structure):
    _fields_ = [("num_layers", c_int), ("hidden", c_int), ("heads", c_int), ("kv_heads", c_int), ("head_dim", c_int),
                ("block_size", c_int), ("in_16_bits", c_int), ("by_tiles", c_int), ("eps", c_float),
                ("scale", c_float), ("layers", POINTER(Layer)), ("embedding", Matrix), ("head", Matrix),
                ("norm", c_void_p)]


#: The ``bits`` of a matrix in AMX's tiles.
IN_TILES = 16
#: What step.c multiplies without expanding it.
PACKINGS = [Packing(size, bits, "affine") for size in GROUP_SIZES for bits in (4, 8)]


class Weights:
    """The structs of a network without its K/V, and the arrays that they point to.

    The network's own matrices are released: everything is held once. If the network computes itself after all, it takes
    them back, and both remain.
    """

    @classmethod
    def of(cls, model: Model, wide: int, by_tiles: bool) -> Weights:
        """Return the network's weights, which all its runners share if they multiply alike: by AMX, or without it."""
        held: Weights | None = getattr(model, "_native", None)
        if held is None or held._by_tiles != by_tiles:
            model.take_back()
            model._native = held = cls(model, wide, by_tiles)
        return held

    def __init__(self, model: Model, wide: int, by_tiles: bool) -> None:
        self._wide, self._by_tiles = wide, by_tiles
        self._arrays: list[Array] = []  # kept alive
        #: What was released: the module, the array's name, its strips, the number of its rows, and its type.
        self._released: list[tuple[nn.Module, str, Array, int, mx.Dtype]] = []
        config, body = model.config, model.model
        self._layers = [
            dict(qkv=self._matrix(layer.self_attn.qkv_proj), o=self._matrix(layer.self_attn.o_proj),
                 gate_up=self._matrix(layer.mlp.gate_up_proj), down=self._matrix(layer.mlp.down_proj),
                 norm=self._floats(layer.input_layernorm.weight),
                 mlp_norm=self._floats(layer.post_attention_layernorm.weight),
                 qk_norm=self._floats(layer.self_attn.qk_norm.weight) if config.qk_norm else None,
                 window=config.window(index) or 0)
            for index, layer in enumerate(body.layers)]
        embedding = self._matrix(body.embed_tokens)
        self._rest = dict(
            num_layers=config.num_layers, hidden=config.hidden_size, heads=config.num_heads,
            kv_heads=config.num_kv_heads, head_dim=config.head_dim, eps=config.rms_norm_eps,
            scale=config.head_dim ** -0.5, embedding=embedding,
            head=self._matrix(model.lm_head) if "lm_head" in model else embedding, norm=self._floats(body.norm.weight))
        model._put_back = partial(self._put_back, model)
        mx.clear_cache()

    def _put_back(self, model: Model) -> None:
        model._put_back = None
        for module, name, strips, num_rows, dtype in self._released:
            strips = added(strips) if strips.dtype == np.uint16 else strips
            rows = strips.swapaxes(1, 2).reshape(-1, strips.shape[1])[:num_rows]
            module[name] = mx.array(rows).astype(dtype)
        self._released = []

    def network(self, pools: list[int], **options: int) -> Network:
        """Return the struct of the whole network, with the address of each layer's K/V."""
        layers = (Layer * len(self._layers))(*(Layer(pool=pool, **layer) for pool, layer in zip(pools, self._layers)))
        return Network(layers=layers, **options, **self._rest)

    def _matrix(self, module: nn.Module) -> Matrix:
        bias = self._bias(module)
        if getattr(module, "bits", 0) in (4, 8) and module.mode == "affine":
            outs, words = module.weight.shape
            ins, numbers = words * 32 // module.bits, self._released_strips(module, "weight")
            kinds = [self._strips(module[name].astype(mx.float32)) for name in ("scales", "biases")]
            return Matrix(outs, ins, module.bits, module.group_size, numbers, self._keep(np.stack(kinds, axis=2)), bias)
        if "scales" not in module and "weight" in module:
            outs, ins = module.weight.shape
            numbers = self._released_strips(module, "weight")
            return Matrix(outs, ins, IN_TILES if self._arrays[-1].dtype == np.uint16 else 32, 0, numbers, None, bias)
        weight = _unpacked(module)
        return Matrix(*weight.shape, 32, 0, self._keep(self._strips(weight)), None, bias)

    def _released_strips(self, module: nn.Module, name: str) -> int:
        """Release an array of a module, and return the address of its strips."""
        array = module[name]
        strips = self._strips(array if array.dtype == mx.uint32 else array.astype(mx.float32))
        tiles = in_tiles(strips) if self._by_tiles and array.dtype != mx.uint32 else None
        address = self._keep(strips if tiles is None else tiles)
        self._released.append((module, name, self._arrays[-1], array.shape[0], array.dtype))
        module[name] = mx.zeros((0,), array.dtype)
        return address

    def _bias(self, module: nn.Module) -> int | None:
        parts = module.parts if isinstance(module, SideBySide) else [module]
        if not any("bias" in part for part in parts):
            return None
        bias = np.concatenate([np.array(part.bias.astype(mx.float32)) if "bias" in part else
                               np.zeros(len(part.weight), np.float32) for part in parts])
        return self._keep(np.pad(bias, (0, -len(bias) % self._wide)))

    def _strips(self, array: mx.array) -> Array:
        """Return [outs, n] as [outs / wide, n, wide]."""
        rows = np.asarray(array)
        rows = np.pad(rows, ((0, -len(rows) % self._wide), (0, 0)))
        strips: Array = rows.reshape(-1, self._wide, rows.shape[1]).swapaxes(1, 2)
        return strips

    def _floats(self, array: mx.array) -> int:
        return self._keep(np.asarray(array.astype(mx.float32)))

    def _keep(self, array: Array) -> int:
        """Copy an array to memory that begins at a cache line, and return its address."""
        kept = aligned(array.shape, array.dtype)
        kept[...] = array
        self._arrays.append(kept)
        return kept.ctypes.data


def _unpacked(module: nn.Module) -> mx.array:
    """Return the matrix in float32."""
    if isinstance(module, SideBySide):
        return mx.concatenate([_unpacked(part) for part in module.parts])
    weight: mx.array = module.weight
    if "scales" not in module:
        return weight.astype(mx.float32)
    biases = module.biases.astype(mx.float32) if "biases" in module else None
    scales = module.scales if biases is None else module.scales.astype(mx.float32)
    return mx.dequantize(weight, scales, biases, module.group_size, module.bits, module.mode, dtype=mx.float32)


def in_tiles(strips: Array) -> Array | None:
    """Return strips [n, ins, 32] as tiles [n, ins / 32, side, part, ins / 2, 16 outs, 2]: see amx.h.

    A part of a number is a bfloat16. Return None if two parts are not the whole number: they are if it has 16 bits.
    """
    num, ins, _ = strips.shape
    high = ((strips.view(np.uint32) + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)  # rounded
    parts = np.stack([high, strips - high]).view(np.uint32)
    if ins % 32 or (parts & 0xFFFF).any():
        return None
    halves = (parts >> 16).astype(np.uint16).reshape(2, num, ins // 32, 16, 2, 2, 16)
    tiles: Array = halves.transpose(1, 2, 5, 0, 3, 6, 4)
    return tiles


def added(tiles: Array) -> Array:
    """Return the strips whose parts are in ``tiles``."""
    parts = (tiles.astype(np.uint32) << 16).view(np.float32).sum(axis=3)  # [n, ins / 32, side, ins / 2, outs, 2]
    strips: Array = parts.transpose(0, 1, 3, 5, 2, 4).reshape(len(tiles), -1, 32)
    return strips


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
    """Return zeros that begin at a cache line."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    space = np.zeros(num_bytes + 64, np.uint8)
    start = -space.ctypes.data % 64
    return space[start:start + num_bytes].view(dtype).reshape(shape)
