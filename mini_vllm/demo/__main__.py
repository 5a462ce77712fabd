"""What ``make demo`` shows: a tale as it is decoded, then three requests that share a beginning.

    python -m mini_vllm.demo           real decoding
    python -m mini_vllm.demo blocks    the KV cache manager alone, every change of its state on the screen
"""

from __future__ import annotations

import time

STARTED_S = time.perf_counter()

import argparse  # noqa: E402  the clock runs from the first line, as a person's does
import sys  # noqa: E402

from rich.console import Console  # noqa: E402
from rich.text import Text  # noqa: E402

OPENING = "Once upon a time there was a poor woodcutter who lived with his wife and two children near a large forest."
SHARED = (OPENING + " One day, when there was nothing left in the house to eat, he said to his wife: What is to become "
          "of us? How shall we feed our poor children, when we have nothing more even for ourselves?")
ENDINGS = [" The wife", " But the elder child", " Just then a little bird"]


def tell_a_tale(console: Console) -> None:
    from mini_vllm.backend import blas
    from mini_vllm.engine import LLMEngine
    from mini_vllm.request import SamplingParams
    engine = LLMEngine()
    console.print(Text(f"{engine.loaded.name} tells a tale ({blas.name}):", style="bold"))
    console.print(OPENING, end="", style="dim")
    engine.add_request(OPENING, SamplingParams(max_tokens=160, temperature=0.7, top_p=0.95, seed=4))
    num_shown, first_s, output = 0, None, None
    while engine.has_unfinished_requests():
        for output in engine.step():
            first_s = first_s or time.perf_counter() - STARTED_S
            console.print(output.text[num_shown:], end="", markup=False)
            num_shown = len(output.text)
    seconds = time.perf_counter() - STARTED_S - first_s
    console.print(f"\n\nfirst token {first_s:.1f} s after the start, then "
                  f"{(output.usage.completion_tokens - 1) / seconds:.0f} tokens/s\n", style="dim")

    console.print(Text("Three requests with the same beginning, served together:", style="bold"))
    params = SamplingParams(max_tokens=40, temperature=0.7, top_p=0.95, seed=1)
    for i, ending in enumerate(ENDINGS):
        engine.add_request(SHARED + ending, params, request_id=f"request {i + 1}")
    results, tables = {}, {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            results[output.request_id] = output
        tables.update({name: ids for name in results if (ids := engine.kv_cache.get_block_ids(name))})
    for (name, output), ending in zip(results.items(), ENDINGS):
        cached = output.usage.prompt_tokens_details.cached_tokens
        console.print(Text.assemble((f"{name}: ", "bold"), f"{output.usage.prompt_tokens} prompt tokens, {cached} "
                                    f"found in the cache; blocks {tables[name]}"))
        console.print(f" …{ending}{output.text}".replace("\n", " "), markup=False, style="dim")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mini_vllm.demo", description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["tale", "blocks"], default="tale")
    console = Console(highlight=False, soft_wrap=True)
    if parser.parse_args().what == "blocks":
        from mini_vllm.demo.blocks import show_blocks
        show_blocks(console)
    else:
        tell_a_tale(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
