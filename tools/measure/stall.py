"""How much a caller with a huge prompt delays the others: the longest time between two tokens of decoding streams.

    nobody      no such caller, for comparison
    5 MB        text far longer than the context: it is rejected without being tokenized
    longest     the longest text that must be tokenized to know that it is too long
"""

from __future__ import annotations

import asyncio
import statistics
import time

from mini_vllm.async_engine import AsyncLLMEngine
from mini_vllm.engine_config import EngineConfig
from mini_vllm.request import SamplingParams

NUM_STREAMS, NUM_TOKENS = 4, 200
ROUNDS = 3
WORD = "the king said "


async def worst_gap_s(engine: AsyncLLMEngine, text: str | None, num_tokens: int = NUM_TOKENS) -> tuple[float, float]:
    """Return the longest gap between two tokens of any stream while ``text`` arrives, and its caller's waiting time."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    has_begun, worst, answered_s, num_ended = asyncio.Event(), 0.0, 0.0, 0

    async def stream(seed: int) -> None:
        nonlocal worst, num_ended
        last_s = None
        async for output in engine.generate([seed + 1, 5, 9], params):
            now_s = time.perf_counter()
            if last_s is not None:
                worst = max(worst, now_s - last_s)
            last_s = now_s
            if len(output.token_ids) > 20:
                has_begun.set()
        num_ended += 1

    async def interrupt(text: str) -> None:
        nonlocal answered_s
        await has_begun.wait()
        start_s = time.perf_counter()
        try:
            async for _ in engine.generate(text, params):
                pass
        except ValueError:
            answered_s = time.perf_counter() - start_s
        if num_ended:
            raise RuntimeError(f"{num_ended} of {NUM_STREAMS} streams had ended before the prompt was rejected: no "
                               "stream was left to be delayed")

    await asyncio.gather(*(stream(seed) for seed in range(NUM_STREAMS)), *([interrupt(text)] if text else []))
    return worst, answered_s


async def _measure(model: str, num_rounds: int, num_tokens: int) -> None:
    async with AsyncLLMEngine(EngineConfig(model=model)) as engine:
        await engine.wait_until_ready()
        await worst_gap_s(engine, None, num_tokens)  # a warm-up
        prompts = await engine.call(lambda engine: engine.prompts)
        num_chars = 10_000 * len(WORD)
        at_least = prompts.tokenizer.min_num_tokens(WORD * 10_000)
        longest = (WORD * 100_000)[:prompts.max_model_len * (num_chars // at_least) - 1] if at_least else None
        texts = {"nobody": None, "5 MB": WORD * (5_000_000 // len(WORD)), "longest": longest}
        rounds = [{name: await worst_gap_s(engine, text, num_tokens) for name, text in texts.items()}
                  for _ in range(num_rounds)]
        print(f"{model}: {NUM_STREAMS} streams decode; the longest time between two tokens while another "
              "request arrives, with")
        for name, text in texts.items():
            worst_s, answered_s = map(statistics.median, zip(*(of_round[name] for of_round in rounds)))
            what = f"{len(text):,} characters, rejected after {answered_s * 1000:.0f} ms" if text else ""
            print(f"{name:<8} {worst_s * 1000:6.0f} ms   {what}")
        print(f"Medians of {num_rounds} rounds.")
        ratio = statistics.median(of_round["5 MB"][0] / of_round["nobody"][0] for of_round in rounds)
        refused_s = statistics.median(of_round["5 MB"][1] for of_round in rounds)
        print(f"In short: while {NUM_STREAMS} streams decode, a prompt of 5 MB is rejected after "
              f"{refused_s * 1000:.0f} ms; the longest time between two of their tokens is {ratio:.1f} times as long "
              "as without that prompt")


def print_stall(model: str, num_rounds: int = ROUNDS, num_tokens: int = NUM_TOKENS) -> None:
    asyncio.run(_measure(model, num_rounds, num_tokens))
