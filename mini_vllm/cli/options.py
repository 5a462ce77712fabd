"""The options of every command, and what their values come to. Nothing here needs MLX, so ``--help`` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from mini_vllm.benchmark.drawing import Drawing
from mini_vllm.benchmark.workloads import WORKLOADS
from mini_vllm.request import SamplingParams

TEMPERATURE = 0.8
#: A beam search draws nothing, stops at no text, and cannot be recorded.
NOT_WITH_BEAMS = ("n", "temperature", "top_p", "top_k", "seed", "stop", "trace")


def add_generate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompts", nargs="*", metavar="prompt", help="default: one prompt from standard input")
    parser.add_argument("--file", type=Path, help="one prompt a line")
    parser.add_argument("--model", default="tiny-tales", help="tiny-tales, smollm2, a folder, a .gguf or a hub name")
    parser.add_argument("--n", type=int, help="continuations of each prompt (default: 1)")
    parser.add_argument("--beams", type=int, metavar="WIDTH", help="instead of drawing, search for the likeliest "
                        "continuations with this many beams, and print them, best first")
    parser.add_argument("--length-penalty", type=float, metavar="P",
                        help="beams are ranked by log-probability over length ** P (default: 1.0)")
    parser.add_argument("--stats", action="store_true", help="close with what sharing has saved")
    parser.add_argument("--no-prefix-caching", action="store_true", help="compute every prompt whole")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="record every step: as a picture if FILE "
                        "ends in .svg or .png, else for `mini-vllm trace FILE`")
    parser.add_argument("--json", action="store_true", help="one JSON object a prompt, when it is finished")
    _add_sampling_options(parser, max_tokens=128)


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--system", help="what the model should know or be")
    _add_sampling_options(parser, max_tokens=512)


def _add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    parser.add_argument("--max-tokens", type=int, default=max_tokens, help="default: %(default)s")
    # No defaults here: whether an option was given matters to --beams.
    parser.add_argument("--temperature", type=float, help=f"0 is greedy (default: {TEMPERATURE})")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int, help="the same seed gives the same text")
    parser.add_argument("--stop", action="append", help="text that ends the output; may be given several times")
    parser.add_argument("--kv-memory", default="512MB", help="memory for keys and values (default: %(default)s)")
    parser.add_argument("--parts", type=Path, metavar="FILE", help="a Python file with parts of one's own: "
                        "parts = EngineParts(...), or classes named as the engine's, BlockPool or Scheduler")


def add_throughput_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", choices=[*WORKLOADS, "all"], metavar="NAME",
                        help="may be given several times (default: decode-16, nano-16, mixed-64, long-arrival)")
    parser.add_argument("--model", default="tiny-tales", help="default: %(default)s")
    parser.add_argument("--random", metavar="SHAPE", help="instead of a model, random weights: qwen3-27m")
    parser.add_argument("--arm", action="append", choices=["one", "ours", "mlx-lm"], help="default: all three")
    parser.add_argument("--rounds", type=int, default=1, help="default: %(default)s")
    Drawing.add_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (.png, .svg or .pdf)")


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="written by generate --trace or StepTrace.save")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="an .svg, or a .png, which needs resvg-py "
                        "(default: the trace's name with .svg)")
    parser.add_argument("--width", type=int, metavar="PIXELS", help="480 to 10000 (default: as the steps need, about "
                        "960)")
    parser.add_argument("--first-step", type=int, default=0, metavar="N", help="default: %(default)s")
    parser.add_argument("--num-steps", type=int, metavar="N", help="default: to the end")


# ---- what the values come to


def sampling_params(arguments: argparse.Namespace, n: int = 1) -> SamplingParams:
    """Raises ValueError naming the option that cannot be."""
    given = {name: value for name in ("temperature", "top_p", "top_k")
             if (value := getattr(arguments, name)) is not None}
    return SamplingParams(max_tokens=arguments.max_tokens, seed=arguments.seed, stop=arguments.stop, n=n,
                          **{"temperature": TEMPERATURE, **given})


def check_beam_options(arguments: argparse.Namespace) -> None:
    """Raises ValueError naming all options that do not go together."""
    if arguments.beams is None:
        if arguments.length_penalty is not None:
            raise ValueError("--length-penalty goes only with --beams")
        return
    given = [f"--{name.replace('_', '-')}" for name in NOT_WITH_BEAMS if getattr(arguments, name) is not None]
    if given:
        names = " and ".join(part for part in (", ".join(given[:-1]), given[-1]) if part)
        raise ValueError(f"{names} {'do' if len(given) > 1 else 'does'} not go with --beams")


def read_prompts(arguments: argparse.Namespace, stdin: TextIO) -> Iterator[str]:
    """Prompts from the arguments and the file; from standard input if there are neither."""
    yield from arguments.prompts
    if arguments.file is not None:
        yield from (line.rstrip("\n") for line in arguments.file.open(encoding="utf-8") if line.strip())
    if not arguments.prompts and arguments.file is None:
        if stdin.isatty():
            raise ValueError("no prompt: give one as an argument, with --file, or on standard input")
        yield stdin.read().rstrip("\n")
