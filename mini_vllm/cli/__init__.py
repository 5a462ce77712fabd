"""``mini-vllm demo | generate | chat | serve | bench | trace | pull | doctor``: the engine from a terminal.

A command is imported when it runs: ``mini-vllm --help`` loads neither MLX nor numpy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from mini_vllm import __version__, demo
from mini_vllm.arguments import parse_arguments
from mini_vllm.benchmark.workloads import WORKLOADS
from mini_vllm.checks import nearest
from mini_vllm.cli import options, sampling_options
from mini_vllm.cli.exit_status import BAD_ARGUMENTS, INTERRUPTED
from mini_vllm.models.catalogue import KNOWN, SHIPPED, PullError
from mini_vllm.terminal import run_command

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

    show = commands.add_parser("demo", help="see the engine at work",
                               description="See the engine at work: it decodes a tale and serves three requests that "
                               "begin alike (tale), shows block tables step by step (blocks), or opens a page in your "
                               "browser (live).")
    demo.add_options(show)
    show.set_defaults(run=_demo, parser=show)

    generate = commands.add_parser("generate", help="continue prompts",
                                   description="Continue prompts. The text appears as it is generated.")
    options.add_generate_options(generate)
    generate.set_defaults(run=_generate, parser=generate)

    chat = commands.add_parser("chat", help="talk to a model", description="Talk to a model that has a chat template.")
    options.add_chat_options(chat)
    chat.set_defaults(run=_chat, parser=chat)

    serve = commands.add_parser("serve", help="run an OpenAI-compatible server",
                                description="Serve models over HTTP with OpenAI's API; see docs/serving.md.")
    options.add_serve_options(serve)
    serve.set_defaults(run=_serve, parser=serve)

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
        "batch size. With --draft MODEL also with mlx-lm's speculative generation, for one request.")
    options.add_bench_speculation_options(speculation)
    speculation.set_defaults(run=_bench_speculation, parser=speculation)

    trace = commands.add_parser("trace", help="draw a recorded run",
                                description="Draw a trace: what each request did in each step, how long the steps "
                                "took, and the block pool.")
    options.add_trace_options(trace)
    trace.set_defaults(run=_trace, parser=trace)

    pull = commands.add_parser("pull", help="download a model",
                               description="Download a model that does not ship with mini_vllm.")
    pull.add_argument("model", help=f"{', '.join(KNOWN)} ({', '.join(SHIPPED)} ships with mini_vllm)")
    pull.set_defaults(run=_pull, parser=pull)

    doctor = commands.add_parser("doctor", help="check this machine",
                                 description="Show what this machine offers, and how to make it faster.")
    doctor.set_defaults(run=_doctor, parser=doctor)
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
    if arguments.beams is not None:
        from mini_vllm.cli.beams import run_beams
        return run_beams(arguments, prompts, params)
    from mini_vllm.cli.generate import run_generate
    return run_generate(arguments, prompts, params)


def _chat(arguments: argparse.Namespace) -> int:
    params = sampling_options.sampling_params(arguments)
    from mini_vllm.cli.chat import run_chat
    return run_chat(arguments, params)


def _serve(arguments: argparse.Namespace) -> int:
    from mini_vllm.cli.serve import run_serve
    return run_serve(arguments)


def _throughput(arguments: argparse.Namespace) -> int:
    from mini_vllm.benchmark.throughput_command import run_throughput
    return run_throughput(arguments)


def _bench_gpu(arguments: argparse.Namespace) -> int:
    from mini_vllm.benchmark.gpu.command import run_gpu_benchmark
    return run_gpu_benchmark(arguments)


def _bench_speculation(arguments: argparse.Namespace) -> int:
    from mini_vllm.benchmark.speculation import run_speculation_benchmark
    return run_speculation_benchmark(arguments)


def _bench_serve(arguments: argparse.Namespace) -> int:
    from mini_vllm.benchmark.serving.command import run_serve_benchmark
    return run_serve_benchmark(arguments)


def _trace(arguments: argparse.Namespace) -> int:
    from mini_vllm.cli.trace import run_trace
    return run_trace(arguments)


def _pull(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from mini_vllm.models.pull import pull
    print(pull(arguments.model, Console(stderr=True)))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from mini_vllm.cli.first_aid import import_backend
    complaint = import_backend()
    from mini_vllm.cli.doctor import run_doctor
    return run_doctor(Console(highlight=False, soft_wrap=True), complaint)
