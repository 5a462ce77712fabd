"""``mini-vllm demo | generate | chat | serve | bench | trace | pull | doctor``: the engine from a terminal.

A command is imported when it runs: ``mini-vllm --help`` loads neither MLX nor numpy.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from mini_vllm import __version__, demo
from mini_vllm.benchmark.workloads import WORKLOADS
from mini_vllm.checks import nearest, writable_file
from mini_vllm.cli import options, sampling_options
from mini_vllm.cli.arguments import parse_arguments
from mini_vllm.cli.messages import BAD_ARGUMENTS, INTERRUPTED, run_command
from mini_vllm.models.catalogue import KNOWN, SHIPPED, PullError

COMMANDS = ("demo", "generate", "chat", "serve", "bench", "trace", "pull", "doctor")
#: The end of the help text.
EXAMPLES = """\
try first:
  mini-vllm demo blocks                      see the blocks
  mini-vllm demo live                        see a live page
  mini-vllm generate "Once upon a time"      continue a text
  mini-vllm pull smollm2 && mini-vllm chat   talk to a model
  mini-vllm doctor                           check the setup
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status. Print an error as one line, without a traceback."""
    return run_command(partial(_main, list(sys.argv[1:] if argv is None else argv)))


def _main(argv: list[str]) -> int:
    try:
        _check_command(argv)
        arguments = parse_arguments(make_parser(), argv)
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except (ValueError, PullError, OSError, ImportError) as error:  # LoadError and TokenizerError are ValueErrors
        print(f"mini-vllm: {what_is_wrong(error)}", file=sys.stderr)
        return BAD_ARGUMENTS
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED


def _check_command(argv: list[str]) -> None:
    """Raise ValueError for a command that does not exist, and suggest the most similar one."""
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        near = nearest(argv[0], COMMANDS)
        guess = f"did you mean `mini-vllm {near}`?" if near else f"the commands are {', '.join(COMMANDS)}"
        raise ValueError(f"there is no command {argv[0]!r}; {guess}")


def what_is_wrong(error: Exception) -> str:
    """Describe an error in one line: name the file, or say how to install the missing package.

    Raise the error itself if a module of mini_vllm is missing: that is a bug.
    """
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.split(".")[0]
        if package == "mini_vllm":
            raise error
        return f"{package} is missing: pip install {package}"
    return str(error)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mini-vllm", description="A small vLLM on MLX.", epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.set_defaults(run=partial(_help, parser))
    commands = parser.add_subparsers(metavar="command")

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str, description: str
                ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=description)
        made.set_defaults(run=run, parser=made)
        return made

    demo.add_options(command(
        "demo", _demo, "see the engine at work", "See the engine at work: it decodes a tale and serves three requests "
        "that begin alike (tale), shows block tables step by step (blocks), or opens a page in your browser (live)."))
    options.add_generate_options(command(
        "generate", _generate, "continue prompts", "Continue prompts. The text appears as it is generated."))
    options.add_chat_options(command("chat", _chat, "talk to a model", "Talk to a model that has a chat template."))
    options.add_serve_options(command(
        "serve", _serve, "run an OpenAI-compatible server", "Serve models over HTTP with OpenAI's API; see "
        "docs/serving.md."))

    bench = commands.add_parser("bench", help="measure the speed",
                                description="Measure the speed. Every ratio compares two results of the same run.")
    bench.set_defaults(run=partial(_help, bench), parser=bench)
    workloads = "\n".join(f"  {name:<14} {about}" for name, (about, _) in WORKLOADS.items())
    benches = bench.add_subparsers(metavar="what")
    throughput = benches.add_parser(
        "throughput", help="our batching compared with one at a time, mlx-lm, vLLM and llama.cpp",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Serve the same requests one at a time, in our batches, and with mlx-lm's BatchGenerator.\n"
                    "--arm vllm (in float32 and in bfloat16) and --arm llama.cpp (for a model in a .gguf) run\n"
                    "those engines, each with the Python of its own environment.\n"
                    "With --draft, our batches are served twice, without and with drafts, and the ratios\n"
                    "say how many times as fast they are with drafts.\n\n"
                    f"workloads:\n{workloads}")
    options.add_throughput_options(throughput)
    throughput.set_defaults(run=_throughput, parser=throughput)
    served = benches.add_parser(
        "serve", help="our server and mlx-lm's, over HTTP",
        description="Send requests to our server and to mlx-lm's at random times, and measure the latencies at given "
        "rates, the highest rate that each server can sustain, and high priority under overload. "
        "With --draft, our server drafts, and mlx-lm's does not.")
    options.add_bench_serve_options(served)
    served.set_defaults(run=_bench_serve, parser=served)
    gpu = benches.add_parser(
        "gpu", help="correctness and speed on a GPU",
        description="Test the kernels and compare our tokens with mlx-lm's. Then time decode steps of 1, 16, 64 and "
        "256 requests, a packed model and whole workloads, compared with mlx-lm and with the time that reading the "
        "memory takes.")
    options.add_bench_gpu_options(gpu)
    gpu.set_defaults(run=_bench_gpu, parser=gpu)

    speculation = benches.add_parser(
        "speculation", help="decoding with and without drafts",
        description="Decode the same requests with and without drafts, by kind of text, drafted tokens per step and "
        "batch size.")
    options.add_bench_speculation_options(speculation)
    speculation.set_defaults(run=_bench_speculation, parser=speculation)

    options.add_trace_options(command(
        "trace", _trace, "draw a recorded run", "Draw a trace: what each request did in each step, how long the steps "
        "took, and the block pool."))
    command("pull", _pull, "download a model", "Download a model that does not ship with mini_vllm.").add_argument(
        "model", help=f"{', '.join(KNOWN)} ({', '.join(SHIPPED)} ships with mini_vllm)")
    command("doctor", _doctor, "check this machine", "Show what this machine offers, and how to make it faster.")
    return parser


# ---- the commands, each of which is imported when it runs


def _help(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    parser.print_help()
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    return demo.run_demo(arguments, time.perf_counter())


def _generate(arguments: argparse.Namespace) -> int:
    options.check_together(arguments)
    prompts = list(options.read_prompts(arguments, sys.stdin))
    params = sampling_options.sampling_params(arguments)
    from mini_vllm.cli.generate import run_beams, run_generate
    return (run_generate if arguments.beams is None else run_beams)(arguments, prompts, params)


def _chat(arguments: argparse.Namespace) -> int:
    params = sampling_options.sampling_params(arguments)
    from mini_vllm.cli.chat import run_chat
    return run_chat(arguments, params)


def _serve(arguments: argparse.Namespace) -> int:
    from mini_vllm.cli.serve import run_serve
    return run_serve(arguments)


def _throughput(arguments: argparse.Namespace) -> int:
    from mini_vllm.benchmark.throughput import run_throughput
    return run_throughput(arguments)


def _bench_gpu(arguments: argparse.Namespace) -> int:
    from mini_vllm.benchmark.gpu.command import run_gpu_benchmark
    return run_gpu_benchmark(arguments)


def _bench_speculation(arguments: argparse.Namespace) -> int:
    from mini_vllm.benchmark.speculation import run_speculation_benchmark
    return run_speculation_benchmark(arguments)


def _bench_serve(arguments: argparse.Namespace) -> int:
    from mini_vllm.benchmark.serving import run_serve_benchmark
    return run_serve_benchmark(arguments)


def _trace(arguments: argparse.Namespace) -> int:
    """Draw a trace. The picture's path and width are checked before anything is read."""
    from mini_vllm.pictures.picture import check_suffix
    from mini_vllm.pictures.timeline import check_width, draw_trace
    from mini_vllm.trace.recorder import StepTrace
    out = writable_file(arguments.output or arguments.file.with_suffix(".svg"))
    check_suffix(out)
    if out.resolve() == arguments.file.resolve():
        raise ValueError(f"{out} is the trace itself; name the picture with --output")
    check_width(arguments.width)
    draw_trace(StepTrace.load(arguments.file), first_step=arguments.first_step, num_steps=arguments.num_steps,
               width=arguments.width).save(out)
    print(out)
    return 0


def _pull(arguments: argparse.Namespace) -> int:
    from mini_vllm.models.pull import pull
    print(pull(arguments.model))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    """Describe the machine, even if ``MINI_VLLM_BLAS`` names an unusable library, with which no command starts."""
    complaint = None
    try:
        importlib.import_module("mini_vllm.backend")
    except ValueError as error:
        complaint = str(error)
        del os.environ["MINI_VLLM_BLAS"]  # no library was preloaded yet, so the search starts as in a new process
    from mini_vllm.cli.doctor import run_doctor
    return run_doctor(complaint)
