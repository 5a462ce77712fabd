"""One request at a time: our engine against ``mlx_lm.stream_generate``, same weights, same BLAS, interleaved.

Both compute in the float type that our loader chose (float32 on a CPU, where the half-precision types are slower), and
both convert tokens to text as they go.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from mini_vllm.backend import nn
from mini_vllm.benchmark.peers import load_peer
from mini_vllm.benchmark.workloads import Drawing
from mini_vllm.engine import LLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.models.catalogue import cached_model
from mini_vllm.models.loader import load

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

PROMPT = "Once upon a time there was a little girl who lived with her grandmother at the edge of the forest, and"
NUM_TOKENS = 128


def _ours(engine: LLMEngine, prompt: list[int], drawing: Drawing, num_tokens: int) -> tuple[float, list[int]]:
    engine.kv_cache.reset_prefix_cache()
    start = time.perf_counter()
    engine.add_request(prompt, drawing.params(num_tokens, seed=0))
    outputs = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return time.perf_counter() - start, outputs[0].token_ids


def _theirs(model: nn.Module, tokenizer: TokenizerWrapper, prompt: list[int], drawing: Drawing, num_tokens: int
            ) -> tuple[float, list[int]]:
    from mlx_lm import stream_generate
    start = time.perf_counter()
    token_ids = [response.token for response in stream_generate(model, tokenizer, prompt, max_tokens=num_tokens,
                                                                sampler=drawing.peer_sampler())]
    return time.perf_counter() - start, token_ids


def print_single(names: list[str] | None, rounds: int, drawing: Drawing, num_tokens: int = NUM_TOKENS) -> None:
    names = names or ["tiny-tales", *(["smollm2"] if cached_model("smollm2") else [])]
    print(f"one request, {num_tokens} tokens, {drawing}; tokens/s, median of {rounds} interleaved rounds")
    print(f"{'model':<12} {'mini_vllm':>10} {'mlx-lm':>8} {'ratio':>7}   tokens")
    in_short = []
    for name in names:
        loaded = load(name)
        engine = LLMEngine(EngineConfig(num_blocks=64), loaded=loaded)
        model, tokenizer = load_peer(loaded)
        prompt = loaded.tokenizer.encode(PROMPT)
        _, ours = _ours(engine, prompt, drawing, num_tokens)  # a warm-up of both, and a check of equal work
        _, theirs = _theirs(model, tokenizer, prompt, drawing, num_tokens)
        pairs = [(_ours(engine, prompt, drawing, num_tokens)[0],
                  _theirs(model, tokenizer, prompt, drawing, num_tokens)[0]) for _ in range(rounds)]
        ours_s, theirs_s = (statistics.median(column) for column in zip(*pairs))
        ratio = statistics.median(b / a for a, b in pairs)
        same = "drawn" if not drawing.is_greedy else "equal" if ours == theirs else "DIFFERENT"
        print(f"{name:<12} {num_tokens / ours_s:>10.1f} {num_tokens / theirs_s:>8.1f} {ratio:>6.2f}x   {same}")
        in_short.append(f"{ratio:.2f} times on `{name}` ({num_tokens / ours_s:.0f} tokens/s)")
    print(f"In short: one request at a time, against mlx-lm: {', '.join(in_short)}")
