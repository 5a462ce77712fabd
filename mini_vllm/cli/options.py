"""The options of every command, and how their values are read. Nothing here needs MLX, so ``--help`` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from mini_vllm.arguments import add_arm_option, add_model_options, add_quick_option, add_result_options
from mini_vllm.benchmark.drawing import Drawing
from mini_vllm.benchmark.workloads import WORKLOADS
from mini_vllm.cli.sampling_options import FIELDS, add_choice_options, add_end_options, option_of

#: A beam search does not sample, does not stop at texts, and cannot be recorded.
NOT_WITH_BEAMS = ("n", *(name for name in FIELDS if name not in ("n", "max_tokens", "ignore_eos")), "trace")
MODELS = "tiny-tales, smollm2, a folder, a .gguf or a hub name"


def add_generate_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] [prompt ...]"
    parser.add_argument("prompts", nargs="*", metavar="prompt", help="default: one prompt from standard input")
    parser.add_argument("--file", type=Path, help="one prompt per line")
    parser.add_argument("--model", default="tiny-tales", help=f"{MODELS} (default: %(default)s)")
    parser.add_argument("--n", type=int, metavar="N", help="continuations of each prompt (default: 1)")
    _add_output_options(parser)
    add_choice_options(parser)
    add_end_options(parser, max_tokens=128)
    beams = parser.add_argument_group("beam search")
    beams.add_argument("--beams", type=int, metavar="WIDTH", help="instead of drawing, search for the likeliest "
                       "continuations with this many beams, and print them, best first")
    beams.add_argument("--length-penalty", type=float, metavar="X",
                       help="beams are ranked by log-probability over length ** X (default: 1.0)")
    _add_engine_options(parser)


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("what is printed")
    output.add_argument("--json", action="store_true", help="one JSON object per prompt, when it is finished")
    output.add_argument("--logprobs", type=int, metavar="K", help="with --json: the log-probability of every token, "
                        "and of the K likeliest at its position")
    output.add_argument("--prompt-logprobs", type=int, metavar="K", help="the same for the tokens of the prompt")
    _add_report_options(output)


def _add_report_options(output: argparse._ArgumentGroup) -> None:
    output.add_argument("--stats", action="store_true", help="print statistics at the end: steps, blocks, cache hits")
    output.add_argument("--trace", type=Path, metavar="FILE", help="record every step: as a picture if FILE "
                        "ends in .svg or .png, else for `mini-vllm trace FILE`")


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] [model]"
    add_model_options(parser, "smollm2", "smollm2, a folder, a .gguf or a hub name")
    parser.add_argument("--system", metavar="TEXT", help="system message: what the model should know or be")
    _add_report_options(parser.add_argument_group("what is printed"))
    add_choice_options(parser)
    add_end_options(parser, max_tokens=512)
    _add_engine_options(parser)


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{MODELS}; each is loaded when it is first asked "
                        "for (default: tiny-tales)")
    parser.add_argument("--model", action="append", metavar="NAME", help="one more model; may be given several times")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; beyond this machine only with "
                        "--keys (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free port (default: %(default)s)")
    parser.add_argument("--keys", type=Path, metavar="FILE", help="a TOML file of API keys, each with its rate limit "
                        "and priority")
    parser.add_argument("--allow-host", action="append", metavar="NAME", help="a name under which clients may call "
                        "this server, besides --host, localhost and plain addresses; may be given several times")
    parser.add_argument("--max-waiting", type=int, default=256, metavar="N", help="how many texts per model may "
                        "wait for a seat; further requests are rejected with 429 (default: %(default)s)")
    parser.add_argument("--key-share", type=float, default=0.5, metavar="PART", help="fraction of a model's running "
                        "and waiting texts that one key may hold while other keys of its priority wait (default: "
                        "%(default)s)")
    parser.add_argument("--memory", metavar="SIZE", help="limit for all models together, such as 8GB: beyond it, "
                        "the least recently used model is unloaded (default: no limit)")
    parser.add_argument("--drain", type=float, default=30, metavar="SECONDS", help="how long running requests may "
                        "take to finish after SIGTERM or Ctrl-C (default: %(default)s)")
    group = _add_engine_options(parser)
    group.add_argument("--max-num-seqs", type=int, default=64, metavar="N", help="seats: texts that are computed at "
                       "once (default: %(default)s)")
    group.add_argument("--num-blocks", type=int, metavar="N", help="blocks of the KV cache, instead of --kv-memory")


def _add_engine_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("the engine")
    group.add_argument("--kv-memory", default="512MB", metavar="SIZE", help="memory for keys and values (default: "
                       "%(default)s)")
    group.add_argument("--parts", type=Path, metavar="FILE", help="a Python file with your own parts: "
                       "parts = EngineParts(...), or classes named as the engine's, BlockPool or Scheduler")
    group.add_argument("--no-prefix-caching", action="store_true", help="compute every prompt in full")
    return group


def add_throughput_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", choices=[*WORKLOADS, "all"], metavar="NAME",
                        help="may be given several times (default: decode-16, nano-16, mixed-64, long-arrival)")
    add_model_options(parser, "tiny-tales", MODELS)
    parser.add_argument("--random", metavar="SHAPE", help="instead of a model, random weights of this shape: qwen3-27m")
    add_arm_option(parser, "one", "ours", "mlx-lm")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds, for medians (default: 3 if a round of the "
                        "workload takes less than 20 s, else 1)")
    Drawing.add_arguments(parser)
    add_result_options(parser)
    add_quick_option(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the results (.png, .svg or .pdf)")


def add_bench_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traffic", action="append", choices=["mixed", "shared", "shared-512", "short"], help="may be "
                        "given several times (default: mixed and shared)")
    parser.add_argument("--part", action="append", choices=["rates", "goodput", "priority"], help="what to measure; "
                        "may be given several times (default: all)")
    parser.add_argument("--rate", action="append", type=float, metavar="R", help="requests per second in the tables; "
                        "may be given several times; the search for the goodput starts at the first (default: 4 and 8)")
    parser.add_argument("--requests", type=int, metavar="N", help="requests per run (default: those of 20 s, at least "
                        "40)")
    add_model_options(parser, "tiny-tales", MODELS)
    _add_pair_of_arms(parser)
    add_result_options(parser)
    add_quick_option(parser)


def add_bench_gpu_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, "qwen3-0.6b", "the shape of a model, whose weights are random: qwen3-0.6b, llama-3.2-1b "
                      "or qwen3-27m", "--shape", choices=["qwen3-0.6b", "llama-3.2-1b", "qwen3-27m"])
    parser.add_argument("--workload", action="append", choices=["nano-16", "nano-32", "nano-64", "nano-256"],
                        help="may be given several times (default: nano-64 and nano-256)")
    parser.add_argument("--only", action="append", choices=("steps", "packed", "workloads"),
                        help="may be given several times (default: all three)")
    parser.add_argument("--bandwidth", type=float, metavar="GB/S", help="of the GPU's memory, if it is not known here")
    _add_pair_of_arms(parser)
    add_result_options(parser)
    add_quick_option(parser)


def _add_pair_of_arms(parser: argparse.ArgumentParser) -> None:
    add_arm_option(parser, "ours", "mlx-lm")
    parser.add_argument("--no-peer", action="append_const", dest="arm", const="ours", help="the same as --arm ours")


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="written by generate --trace or StepTrace.save")
    parser.add_argument("-o", "--output", "--out", type=Path, metavar="FILE", help="an .svg, or a .png, which needs "
                        "resvg-py (default: the trace's name with .svg)")
    parser.add_argument("--width", type=int, metavar="PIXELS", help="480 to 10000 (default: as the steps need, about "
                        "960)")
    parser.add_argument("--first-step", type=int, default=0, metavar="N", help="default: %(default)s")
    parser.add_argument("--num-steps", type=int, metavar="N", help="default: to the end")


# ---- reading the values


def check_together(arguments: argparse.Namespace) -> None:
    """Raise ValueError if options of ``generate`` cannot be combined; the message names all of them."""
    if arguments.beams is not None:
        given = _given(arguments, NOT_WITH_BEAMS)
        if given:
            raise ValueError(f"{_names(given)} {'do' if len(given) > 1 else 'does'} not go with --beams")
        return
    if arguments.length_penalty is not None:
        raise ValueError("--length-penalty goes only with --beams")
    given = _given(arguments, ("logprobs", "prompt_logprobs"))
    if given and not arguments.json:
        raise ValueError(f"{_names(given)} {'go' if len(given) > 1 else 'goes'} only with --json")


def _given(arguments: argparse.Namespace, names: Iterable[str]) -> list[str]:
    return [option_of(name) for name in names if getattr(arguments, name) is not None]


def _names(options: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(options[:-1]), options[-1]) if part)


def read_prompts(arguments: argparse.Namespace, stdin: TextIO) -> Iterator[str]:
    """Yield the prompts from the arguments and the file; if there are neither, from standard input."""
    yield from map(_read_as_utf8, arguments.prompts)
    if arguments.file is not None:
        yield from _prompts_of_file(arguments.file)
    if not arguments.prompts and arguments.file is None:
        if stdin.isatty():
            raise ValueError("no prompt: give one as an argument, with --file, or on standard input")
        yield _prompt_of_stream(stdin)


def _read_as_utf8(argument: str) -> str:
    """Decode an argument as UTF-8. In an ASCII locale Python keeps the bytes of other characters as surrogates."""
    try:
        return argument.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # other surrogates, which the tokenizer rejects
        return argument


def _prompt_of_stream(stdin: TextIO) -> str:
    try:
        return stdin.read().rstrip("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is not UTF-8: {error}") from None


def _prompts_of_file(file: Path) -> list[str]:
    """Return the lines that are not blank.

    Raise OSError if the file cannot be read, and ValueError if it contains no prompt or a line that is not UTF-8; the
    message names the file and the line.
    """
    prompts = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            prompts.append(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            at = error.start
            raise ValueError(f"{file}, line {number}: not UTF-8: byte {line[at]:#x} at {at}") from None
    if not any(prompt.strip() for prompt in prompts):
        raise ValueError(f"{file} holds no prompt: one a line is expected")
    return [prompt for prompt in prompts if prompt.strip()]
