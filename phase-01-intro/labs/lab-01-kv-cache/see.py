"""Watch your cache at work: tiny-tales, the model of this course, tells a tale without your cache, then with it.

    course run --lab 1.1
    python see.py --tokens 200        a longer tale: the longer it is, the more the cache saves

This file contains the layers of a Llama in numpy. Softmax, attention, the cache and both loops are yours.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from course.lab.load_module import load_file
from mini_vllm.backend import mx
from mini_vllm.models.loader import LoadedModel, load

PROMPT = "A fox and a wolf lived together in the deep dark forest"
NUM_TOKENS = 64
MODEL = "tiny-tales"


class NumpyLlama:
    """A Llama checkpoint in numpy. ``forward`` takes the same arguments as ``TinyDecoder.forward``."""

    def __init__(self, loaded: LoadedModel, lab: ModuleType) -> None:
        config = loaded.config
        self.config, self.lab = config, lab
        self.shape = lab.ModelShape(config.num_layers, config.num_heads, config.head_dim, config.intermediate_size,
                                    config.vocab_size)
        network = loaded.model.model
        self.embedding = _numpy(network.embed_tokens.weight)
        self.layers: list[dict[str, np.ndarray]] = [
            {"qkv": _numpy(layer.self_attn.qkv_proj.weight), "o": _numpy(layer.self_attn.o_proj.weight),
             "gate_up": _numpy(layer.mlp.gate_up_proj.weight), "down": _numpy(layer.mlp.down_proj.weight),
             "norm_1": _numpy(layer.input_layernorm.weight), "norm_2": _numpy(layer.post_attention_layernorm.weight)}
            for layer in network.layers]
        self.last_norm = _numpy(network.norm.weight)
        self.forward_lengths: list[int] = []

    def forward(self, token_ids: Sequence[int], cache: Any = None) -> np.ndarray:
        """Return the logits after the last of ``token_ids``. With a cache, ``token_ids`` continues the cached text."""
        config = self.config
        start = 0 if cache is None else cache.num_tokens
        self.forward_lengths.append(len(token_ids))
        x = self.embedding[np.asarray(token_ids)]
        sizes = [config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim]
        for number, weights in enumerate(self.layers):
            q, k, v = np.split(self._norm(x, weights["norm_1"]) @ weights["qkv"].T, np.cumsum(sizes), axis=-1)
            q, k = (self._rotate(self._heads(part), start) for part in (q, k))
            v = self._heads(v)
            if cache is not None:
                cache.append(number, k, v)
                k, v = cache.get(number)
            num_shared = config.num_heads // config.num_kv_heads  # query heads per head of K and V
            k, v = (np.repeat(part, num_shared, axis=1) for part in (k, v))
            x = x + self.lab.causal_attention(q, k, v).reshape(len(x), -1) @ weights["o"].T
            gate, up = np.split(self._norm(x, weights["norm_2"]) @ weights["gate_up"].T, 2, axis=-1)
            x = x + (gate / (1.0 + np.exp(-gate)) * up) @ weights["down"].T
        return self._norm(x[-1], self.last_norm) @ self.embedding.T

    def _heads(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), -1, self.config.head_dim)

    def _norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.config.rms_norm_eps) * weight

    def _rotate(self, x: np.ndarray, start: int) -> np.ndarray:
        """Rotate the two halves of each head by an angle that grows with the position (rotary position vectors)."""
        half = self.config.head_dim // 2
        speeds = self.config.rope_theta ** (-np.arange(half) / half)
        angles = (start + np.arange(len(x)))[:, None, None] * speeds
        left, right = x[..., :half], x[..., half:]
        return np.concatenate([left * np.cos(angles) - right * np.sin(angles),
                               left * np.sin(angles) + right * np.cos(angles)], axis=-1)


class Teller(NumpyLlama):
    """A model that prints each new token that it is sent, and records how long each forward call took."""

    def __init__(self, loaded: LoadedModel, lab: ModuleType) -> None:
        super().__init__(loaded, lab)
        self._tokenizer = loaded.tokenizer
        self.token_ids: list[int] = []
        self.seconds: list[float] = []

    def forward(self, token_ids: Sequence[int], cache: Any = None) -> np.ndarray:
        if self.forward_lengths:
            self.tell(int(token_ids[-1]))
        started = time.perf_counter()
        logits = super().forward(token_ids, cache)
        self.seconds.append(time.perf_counter() - started)
        return logits

    def tell(self, token_id: int) -> None:
        before = self._tokenizer.decode(self.token_ids)
        self.token_ids.append(token_id)
        print(self._tokenizer.decode(self.token_ids)[len(before):], end="", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("starter.py"))
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS)
    arguments = parser.parse_args(argv)
    if not 2 <= arguments.tokens <= 1000:
        parser.error(f"--tokens is {arguments.tokens}, must be between 2 and 1000")
    lab, loaded = load_file(arguments.file), load(MODEL)
    prompt_ids = loaded.tokenizer.encode(PROMPT)
    tellers = [tell(lab, loaded, prompt_ids, arguments.tokens, has_cache) for has_cache in (False, True)]
    return compare(*tellers)


def tell(lab: ModuleType, loaded: LoadedModel, prompt_ids: list[int], num_tokens: int, has_cache: bool) -> Teller:
    teller = Teller(loaded, lab)
    print(f"{'With your cache' if has_cache else 'Without a cache'}\n\n{PROMPT}", end="", flush=True)
    if has_cache:
        config = loaded.config
        cache = lab.KVCache(config.num_layers, len(prompt_ids) + num_tokens - 1, config.num_kv_heads, config.head_dim)
        result = lab.decode_with_cache(teller, prompt_ids, num_tokens, cache)
    else:
        result = lab.decode_without_cache(teller, prompt_ids, num_tokens)
    teller.tell(int(result.token_ids[-1]))
    print(f" …\n\n  {sum(teller.forward_lengths):,} tokens went through the model, {sum(teller.seconds):.1f} s\n")
    return teller


def compare(without: Teller, cached: Teller) -> int:
    if without.token_ids != cached.token_ids:
        print("The two tales differ: your cache changes the output of the model. To find out why, run: course test 1.1")
        return 1
    print("milliseconds                 without    with")
    num_tokens = len(cached.seconds)
    for number in sorted({0, 1, num_tokens // 4, num_tokens // 2, 3 * num_tokens // 4, num_tokens - 1}):
        name = f"token {number + 1:>3}" + (", with the prompt" if number == 0 else "")
        print(f"  {name:<26} {1000 * without.seconds[number]:>8.1f} {1000 * cached.seconds[number]:>7.1f}")
    speedup = sum(without.seconds) / sum(cached.seconds)
    print(f"\nWith your cache, decoding the same {num_tokens} tokens was {speedup:.1f} times as fast. Without the "
          "cache,\neach token takes longer than the one before. (On a busy machine, single times are noisy.)")
    return 0


def _numpy(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32), dtype=np.float64)


if __name__ == "__main__":
    raise SystemExit(main())
