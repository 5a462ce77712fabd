"""The options of every command, and the prompts. Nothing here needs MLX, so ``--help`` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TextIO

from mini_vllm.benchmark.workloads import WORKLOADS, add_arm_option, add_quick_option, add_result_options
from mini_vllm.cli.arguments import add_field_options, add_model_options, option_of
from mini_vllm.cli.sampling_options import add_sampling_options, add_structure_options
from mini_vllm.request import SamplingParams
from mini_vllm.speculation import add_draft_options

#: The other fields do not go with beams: a beam search does not sample, and does not stop at texts.
WITH_BEAMS = ("max_tokens", "ignore_eos", "structured_outputs")
MODELS = "tiny-tales, smollm2, a folder, a .gguf or a hub name"


def add_generate_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] [prompt ...]"
    parser.add_argument("prompts", nargs="*", metavar="prompt", help="text to continue (default: one prompt from "
                        "standard input)")
    parser.add_argument("--file", type=Path, help="read prompts from a file, one per line")
    parser.add_argument("--model", default="tiny-tales", help=f"{MODELS} (default: %(default)s)")
    add_field_options(parser, SamplingParams, ["n"])
    output = parser.add_argument_group("what is printed")
    output.add_argument("--json", action="store_true", help="print one JSON object per finished prompt")
    add_field_options(output, SamplingParams, ["logprobs", "prompt_logprobs"])
    _add_report_options(output)
    add_sampling_options(parser, max_tokens=128)
    add_structure_options(parser)
    beams = parser.add_argument_group("beam search")
    beams.add_argument("--beams", type=int, metavar="WIDTH", help="search for the likeliest continuations with "
                       "this number of beams instead of drawing, and print them, best first")
    beams.add_argument("--length-penalty", type=float, metavar="X",
                       help="rank beams by log-probability divided by length ** X (default: 1.0)")
    _add_engine_options(parser)


def _add_report_options(output: argparse._ArgumentGroup) -> None:
    output.add_argument("--stats", action="store_true", help="print statistics at the end: steps, blocks, cache hits")
    output.add_argument("--trace", type=Path, metavar="FILE", help="record every step: as a picture if FILE "
                        "ends in .svg or .png, otherwise as a trace that `mini-vllm trace FILE` draws")


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] [model]"
    add_model_options(parser, "smollm2", "smollm2, a folder, a .gguf or a hub name")
    parser.add_argument("--system", metavar="TEXT", help="system message: instructions or facts for the model")
    _add_report_options(parser.add_argument_group("what is printed"))
    add_sampling_options(parser, max_tokens=512)
    _add_engine_options(parser)


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{MODELS}; each is loaded on first use (default: "
                        "tiny-tales)")
    parser.add_argument("--model", action="append", dest="more_models", metavar="NAME", help="another model; may be "
                        "given several times")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; addresses that other machines can "
                        "reach need --keys (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port (default: %(default)s)")
    parser.add_argument("--keys", type=Path, metavar="FILE", help="a TOML file of API keys, each with its rate limit "
                        "and priority")
    parser.add_argument("--allow-host", action="append", metavar="NAME", help="a name under which clients may call "
                        "this server, in addition to --host, localhost and plain addresses; may be given several times")
    parser.add_argument("--max-waiting", type=int, default=256, metavar="N", help="how many texts per model may "
                        "wait; further requests are rejected with 429 (default: %(default)s)")
    parser.add_argument("--key-share", type=float, default=0.5, metavar="PART", help="fraction of a model's running "
                        "and waiting texts that one key may hold while other keys of its priority wait (default: "
                        "%(default)s)")
    parser.add_argument("--memory", metavar="SIZE", help="limit for all models together, such as 8GB: beyond it, "
                        "the least recently used model is unloaded (default: no limit)")
    parser.add_argument("--drain", type=float, default=30, metavar="SECONDS", help="how long running requests may "
                        "take to finish after SIGTERM or Ctrl-C (default: %(default)s)")
    parser.add_argument("--strict-fields", action="store_true", help="reject requests with fields that have no effect "
                        "here: user, metadata, safety_identifier, prompt_cache_key")
    replicas = parser.add_argument_group("replicas", "several servers behind one address; a request goes to the one "
                                         "that has its prefix cached")
    replicas.add_argument("--replicas", type=int, default=0, metavar="N", help="start N servers, which share the cores "
                          "of this machine (default: one server, without a router)")
    replicas.add_argument("--worker", action="append", metavar="URL", help="also use this server, on another machine "
                          "for example; may be given several times")
    replicas.add_argument("--router", choices=("own", "sglang", "vllm"), default="own", help="what chooses the replica "
                          "for a request: this project's router, sglang-router or vllm-router (default: %(default)s)")
    replicas.add_argument("--router-path", type=Path, metavar="FILE", help="the executable of the router (default: the "
                          "one next to Python, or on the PATH)")
    group = _add_engine_options(parser)
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="how many texts are computed at once (default: "
                       "64)")
    group.add_argument("--num-blocks", type=int, metavar="N", help="number of blocks, instead of --kv-memory")


def _add_engine_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add options for fields of EngineConfig, which has their defaults. Its module needs MLX, so their help is here."""
    group = parser.add_argument_group("the engine")
    group.add_argument("--kv-memory", metavar="SIZE", help="memory for keys and values (default: 512MB)")
    group.add_argument("--parts", type=Path, metavar="FILE", help="a Python file with your own parts: "
                       "parts = EngineParts(...), or classes with the engine's names, such as BlockPool or Scheduler")
    add_draft_options(group)
    _add_fast_option(group)
    group.add_argument("--no-prefix-caching", dest="enable_prefix_caching", action="store_const", const=False,
                       help="do not reuse cached prefixes: compute every prompt in full")
    return group


def _add_fast_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--fast", dest="precision", action="store_const", const="fast", default="exact",
                        help="on a CPU, keep keys and values in 16 bits, and multiply by AMX where there is one; a "
                        "token may then depend on rounding")


def add_throughput_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", action="append", choices=[*WORKLOADS, "all"], metavar="NAME",
                        help="what to serve; may be given several times (default: decode-16, nano-16, mixed-64, "
                        "long-arrival)")
    add_model_options(parser, "tiny-tales", MODELS)
    add_arm_option(parser, "one", "ours", "mlx-lm", others=("vllm", "llama.cpp"))
    parser.add_argument("--vllm-python", type=Path, metavar="PATH", help="for --arm vllm: the Python of an environment "
                        "with vLLM; see docs/benchmarks.md")
    parser.add_argument("--llama-python", type=Path, metavar="PATH", help="for --arm llama.cpp: the Python of an "
                        "environment with xllamacpp")
    parser.add_argument("--rounds", type=int, metavar="N", help="number of rounds; the results are medians (default: 3 "
                        "if a round of the workload takes less than 20 s, else 1; with --draft 5)")
    _add_fast_option(parser)
    add_draft_options(parser)
    add_result_options(parser)
    add_quick_option(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the results (.png, .svg or .pdf)")


def add_bench_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traffic", action="append", choices=["mixed", "shared", "short"],
                        help="what to send; may be given several times (default: mixed and shared)")
    parser.add_argument("--part", action="append", choices=["rates", "goodput", "priority"], help="what to measure; "
                        "may be given several times (default: all)")
    parser.add_argument("--rate", action="append", type=float, metavar="R", help="requests per second, with a table "
                        "for each rate; may be given several times; the search for the goodput starts at the first "
                        "(default: 4 and 8)")
    parser.add_argument("--requests", type=int, metavar="N", help="requests per run (default: 20 s of traffic, at "
                        "least 40)")
    add_model_options(parser, "tiny-tales", MODELS)
    add_draft_options(parser)
    _add_pair_of_arms(parser)
    add_result_options(parser)
    add_quick_option(parser)


def add_bench_gpu_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, "qwen3-0.6b", "the shape of a model with random weights: qwen3-0.6b, llama-3.2-1b or "
                      "qwen3-27m", "--shape", choices=["qwen3-0.6b", "llama-3.2-1b", "qwen3-27m"])
    parser.add_argument("--workload", action="append", choices=["nano-16", "nano-32", "nano-64", "nano-256"],
                        help="what to serve; may be given several times (default: nano-64 and nano-256)")
    parser.add_argument("--only", action="append", choices=("steps", "packed", "workloads"),
                        help="what to measure; may be given several times (default: all three)")
    parser.add_argument("--bandwidth", type=float, metavar="GB/S", help="memory bandwidth of a GPU that the "
                        "benchmark does not know")
    _add_pair_of_arms(parser)
    add_result_options(parser)
    add_quick_option(parser)


def add_bench_speculation_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, "tiny-tales", MODELS)
    parser.add_argument("--draft", default="ngram", metavar="ngram|MODEL", help="what guesses the tokens (default: "
                        "%(default)s)")
    parser.add_argument("--kind", action="append", choices=["quoting", "editing", "summarising", "free"],
                        help="kind of text; may be given several times (default: all)")
    parser.add_argument("--num-speculative-tokens", action="append", type=int, metavar="K", help="tokens to guess per "
                        "step; may be given several times (default: 2, 4 and 7)")
    parser.add_argument("--batch", action="append", type=int, metavar="N", help="requests at once; may be given "
                        "several times (default: 1 and 8)")
    parser.add_argument("--tokens", type=int, default=100, metavar="N",
                        help="tokens per request (default: %(default)s)")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of both sides (default: 5)")
    parser.add_argument("--temperature", type=float, default=0.0,
                        help="above 0: draw tokens at random (default: greedy)")
    add_result_options(parser)
    add_quick_option(parser)


def _add_pair_of_arms(parser: argparse.ArgumentParser) -> None:
    add_arm_option(parser, "ours", "mlx-lm")
    parser.add_argument("--no-peer", action="append_const", dest="arm", const="ours", help="the same as --arm ours")


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a trace, written by generate --trace or StepTrace.save")
    parser.add_argument("-o", "--output", "--out", type=Path, metavar="FILE", help="the picture, an .svg or .png; a "
                        ".png needs resvg-py (default: the trace's name with .svg)")
    parser.add_argument("--width", type=int, metavar="PIXELS", help="width of the picture, 480 to 10000 (default: "
                        "about 960, depending on the steps)")
    parser.add_argument("--first-step", type=int, default=0, metavar="N", help="first step to draw (default: "
                        "%(default)s)")
    parser.add_argument("--num-steps", type=int, metavar="N", help="number of steps to draw (default: up to the end)")


# ---- reading the values


def check_together(arguments: argparse.Namespace) -> None:
    """Raise ValueError if options of ``generate`` cannot be combined; the message names all of them."""
    given = {field.name: option_of(field) for field in fields(SamplingParams)
             if getattr(arguments, field.name, None) is not None}
    if arguments.beams is not None:
        options = [option for name, option in given.items() if name not in WITH_BEAMS]
        options += ["--trace"] if arguments.trace is not None else []
        if options:
            raise ValueError(f"{' and '.join(options)} cannot be combined with --beams")
    elif arguments.length_penalty is not None:
        raise ValueError("--length-penalty needs --beams")
    elif not arguments.json:
        options = [option for name, option in given.items() if name in ("logprobs", "prompt_logprobs")]
        if options:
            raise ValueError(f"{' and '.join(options)} {'need' if len(options) > 1 else 'needs'} --json")


def read_prompts(arguments: argparse.Namespace, stdin: TextIO) -> Iterator[str]:
    """Yield the prompts from the arguments and the file; if there are neither, from standard input."""
    yield from arguments.prompts
    if arguments.file is not None:
        yield from _prompts_of_file(arguments.file)
    elif not arguments.prompts:
        if stdin.isatty():
            raise ValueError("no prompt: give one as an argument, with --file, or on standard input")
        try:
            yield stdin.read().rstrip("\n")
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
        raise ValueError(f"{file} contains no prompt; write one prompt per line")
    return [prompt for prompt in prompts if prompt.strip()]
