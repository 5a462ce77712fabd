"""The engine at work: a tale streamed token by token, then three requests that share the blocks of their beginning."""

from __future__ import annotations

import time

from rich.console import Console
from rich.text import Text

from mini_vllm.backend import blas
from mini_vllm.engine import LLMEngine
from mini_vllm.request import RequestOutput, SamplingParams

OPENING = "Once upon a time there was a poor woodcutter who lived with his wife and two children near a large forest."
SHARED = (OPENING + " One day, when there was nothing left in the house to eat, he said to his wife: What is to become "
          "of us? How shall we feed our poor children, when we have nothing more even for ourselves?")
ENDINGS = [" The wife", " But the elder child", " Just then a little bird"]


def tell_a_tale(console: Console, started_s: float) -> None:
    """``started_s``: when the program began, by ``time.perf_counter``."""
    engine = LLMEngine()
    stream_one(engine, console, started_s)
    serve_three(engine, console)


def stream_one(engine: LLMEngine, console: Console, started_s: float) -> None:
    console.print(Text(f"{engine.loaded.name} tells a tale ({blas.name}):", style="bold"))
    console.print(OPENING, end="", style="dim")
    engine.add_request(OPENING, SamplingParams(max_tokens=160, temperature=0.7, top_p=0.95, seed=4))
    num_shown, num_tokens, first_s = 0, 0, 0.0
    while engine.has_unfinished_requests():
        for output in engine.step():
            first_s = first_s or time.perf_counter() - started_s
            console.print(output.text[num_shown:], end="", markup=False)
            num_shown, num_tokens = len(output.text), output.usage.completion_tokens
    seconds = time.perf_counter() - started_s - first_s
    console.print(f"\n\nfirst token {first_s:.1f} s after the start, then {(num_tokens - 1) / seconds:.0f} tokens/s\n",
                  style="dim")


def serve_three(engine: LLMEngine, console: Console) -> None:
    console.print(Text("Three requests with the same beginning, served together:", style="bold"))
    params = SamplingParams(max_tokens=40, temperature=0.7, top_p=0.95, seed=1)
    for i, ending in enumerate(ENDINGS):
        engine.add_request(SHARED + ending, params, request_id=f"request {i + 1}")
    results: dict[str, RequestOutput] = {}
    tables: dict[str, list[int]] = {}  # of blocks, as long as a request holds any
    while engine.has_unfinished_requests():
        for output in engine.step():
            results[output.request_id] = output
        tables.update({name: ids for name in results if (ids := engine.kv_cache.get_block_ids(name))})
    for (name, output), ending in zip(results.items(), ENDINGS):
        cached = output.usage.prompt_tokens_details.cached_tokens
        console.print(Text.assemble((f"{name}: ", "bold"), f"{output.usage.prompt_tokens} prompt tokens, {cached} "
                                    f"found in the cache; blocks {tables[name]}"))
        console.print(f" …{ending}{output.text}".replace("\n", " "), markup=False, style="dim")
