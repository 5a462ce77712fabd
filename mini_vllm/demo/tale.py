"""The engine at work: a tale streamed token by token, then three requests that share the blocks of their beginning."""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mini_vllm.engine import LLMEngine
from mini_vllm.native.advice import tell_slow_blas
from mini_vllm.pictures.recorded import check_run_target, save_run
from mini_vllm.request import RequestOutput, SamplingParams
from mini_vllm.trace.recorder import StepTrace

OPENING = "Once upon a time there was a poor woodcutter who lived with his wife and two children near a large forest."
SHARED = (OPENING + " One day, when there was nothing left in the house to eat, he said to his wife: What is to become "
          "of us? How shall we feed our poor children, when we have nothing more even for ourselves?")
ENDINGS = [" The wife", " But the elder child", " Just then a little bird"]


def tell_a_tale(console: Console, started_s: float, trace_file: Path | None = None) -> None:
    """Tell a tale, then serve three requests, and record or draw the run in ``trace_file`` if given.

    ``started_s`` is the start of the program by ``time.perf_counter``. Raise ValueError, before anything is shown, if
    ``trace_file`` cannot be written.
    """
    if trace_file is not None:
        check_run_target(trace_file)
    trace = StepTrace() if trace_file is not None else None
    with console.status("Loading tiny-tales …"):  # shown only on a terminal
        engine = LLMEngine(trace=trace)
    tell_slow_blas()
    stream_one(engine, console, started_s)
    serve_three(engine, console)
    if trace is not None and trace_file is not None:
        save_run(trace, trace_file)
        console.print(f"\nThe run is recorded in {trace_file}.")


def stream_one(engine: LLMEngine, console: Console, started_s: float) -> None:
    """Show a tale as it is decoded."""
    console.print(Text(f"{engine.loaded.name}, the small model that ships with the course, tells a tale:",
                       style="bold"), soft_wrap=False)
    engine.add_request(OPENING, SamplingParams(max_tokens=160, temperature=0.7, top_p=0.95, seed=4))
    num_tokens, first_s = 0, 0.0
    with Live(_wrapped(OPENING), console=console, refresh_per_second=20) as screen:
        while engine.has_unfinished_requests():
            for output in engine.step():
                first_s = first_s or time.perf_counter() - started_s
                num_tokens = output.usage.completion_tokens
                screen.update(_wrapped(OPENING + output.text))
    seconds = time.perf_counter() - started_s - first_s
    console.print(f"\nfirst token after {first_s:.1f} s, including loading; then "
                  f"{(num_tokens - 1) / seconds:.0f} tokens/s\n", style="dim", soft_wrap=False)


def _wrapped(text: str) -> Text:
    return Text(text, no_wrap=False, overflow="fold")


@dataclass(frozen=True)
class Served:
    """One of the three requests: its output, and its blocks."""

    name: str
    ending: str
    output: RequestOutput
    block_ids: list[int]


def serve_three(engine: LLMEngine, console: Console) -> None:
    console.print(Text("Three requests that begin alike, served together:", style="bold"))
    served = _serve(engine)
    shared = set.intersection(*(set(each.block_ids) for each in served))
    size = engine.kv_cache.block_size
    for number, each in enumerate(served):
        cached = each.output.num_cached_tokens
        why = ("the tale above began with the same words" if number == 0 else
               f"{cached // size} blocks of {size} tokens that request 1 fills")
        blocks = " ".join(f"{block_id}*" if block_id in shared else str(block_id) for block_id in each.block_ids)
        console.print(Text.assemble((f"{each.name}: ", "bold"), f"{each.output.usage.prompt_tokens} prompt tokens, "
                                    f"{cached} found in the cache: {why}. Block table: {blocks}"), soft_wrap=False)
        text = f"…{each.ending}{each.output.text}".replace("\n", " ")
        console.print(textwrap.fill(text, console.width, initial_indent="  ", subsequent_indent="  "), style="dim",
                      markup=False)
    prompt_tokens = sum(each.output.usage.prompt_tokens for each in served)
    found = sum(each.output.num_cached_tokens for each in served)
    console.print(f"\nThe blocks with a * hold the keys and values of the common beginning. They are in memory once, "
                  f"and all three requests read them. Only {prompt_tokens - found} of {prompt_tokens} prompt tokens "
                  "were computed.",
                  style="dim", soft_wrap=False)


def _serve(engine: LLMEngine) -> list[Served]:
    params = SamplingParams(max_tokens=40, temperature=0.7, top_p=0.95, seed=1)
    names = [f"request {number}" for number in range(1, len(ENDINGS) + 1)]
    for name, ending in zip(names, ENDINGS):
        engine.add_request(SHARED + ending, params, request_id=name)
    outputs: dict[str, RequestOutput] = {}
    tables: dict[str, list[int]] = {}  # block ids, updated as long as a request holds blocks
    while engine.has_unfinished_requests():
        outputs.update({output.request_id: output for output in engine.step()})
        tables.update({name: ids for name in outputs if (ids := engine.kv_cache.get_block_ids(name))})
    return [Served(name, ending, outputs[name], tables[name]) for name, ending in zip(names, ENDINGS)]
