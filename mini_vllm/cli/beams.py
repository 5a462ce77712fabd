"""``mini-vllm generate --beams``: the likeliest continuations instead of sampled ones."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from mini_vllm import beam_search
from mini_vllm.beam_search import Beam
from mini_vllm.cli.exit_status import FAILED
from mini_vllm.cli.generate import engine_config, make_engine
from mini_vllm.cli.printing import JsonPrinter, title
from mini_vllm.request import PromptTokensDetails, SamplingParams, Usage


def run_beams(arguments: argparse.Namespace, prompts: Sequence[str], params: SamplingParams) -> int:
    """Search the beams of one prompt after the other, and print those of a prompt when its search is over."""
    engine = make_engine(arguments, engine_config(arguments))
    length_penalty = 1.0 if arguments.length_penalty is None else arguments.length_penalty
    ignore_eos = bool(arguments.ignore_eos)
    beam_search.check_arguments(engine, arguments.beams, arguments.max_tokens, length_penalty, ignore_eos)
    started_s, json_printer = time.perf_counter(), JsonPrinter(sys.stdout)
    num_refused = num_beams = num_tokens = 0
    for index, prompt in enumerate(prompts):
        before = engine.metrics()
        try:
            beams = beam_search.beam_search(engine, prompt, arguments.beams, arguments.max_tokens, length_penalty,
                                            ignore_eos, params.structured_outputs)
        except (ValueError, RuntimeError) as error:
            num_refused += 1
            print(f"mini-vllm: prompt {index + 1}: {error}", file=sys.stderr)
            if arguments.json:
                json_printer.refuse(f"prompt-{index}", prompt, str(error))
            continue
        after, completion = engine.metrics(), sum(len(beam.token_ids) for beam in beams)
        num_beams, num_tokens = num_beams + len(beams), num_tokens + completion
        if arguments.json:
            usage = Usage(after.num_prompt_tokens - before.num_prompt_tokens, completion,
                          PromptTokensDetails(after.num_saved_tokens - before.num_saved_tokens))
            outputs = [{"index": i, **asdict(beam)} for i, beam in enumerate(beams)]
            json_printer.write(f"prompt-{index}", prompt, outputs, usage)
        else:
            _print_texts(prompt, beams)
    metrics = engine.metrics()
    print(f"{metrics.num_prompt_tokens} prompt tokens ({metrics.num_saved_tokens} cached), {num_beams} beams of "
          f"{num_tokens} tokens in all, {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    if arguments.stats:
        print(metrics, file=sys.stderr)
    return FAILED if num_refused else 0


def _print_texts(prompt: str, beams: Sequence[Beam]) -> None:
    for number, beam in enumerate(beams, 1):
        print(f"--- {title(prompt, 50)} #{number}, score {beam.score:.3f}\n{prompt}{beam.text}", flush=True)
