"""``mini-vllm generate | chat | bench | trace | pull | doctor``: the engine from a terminal.

A command is imported when it runs: ``mini-vllm --help`` loads neither MLX nor numpy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from mini_vllm import __version__
from mini_vllm.benchmark.workloads import WORKLOADS
from mini_vllm.cli import options, sampling_options
from mini_vllm.cli.exit_status import BAD_ARGUMENTS, INTERRUPTED
from mini_vllm.models.catalogue import KNOWN, PullError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status; what is wrong is told in one line, without a traceback."""
    arguments = make_parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except (ValueError, PullError, OSError) as error:  # LoadError and TokenizerError are ValueErrors
        print(f"mini-vllm: {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mini-vllm", description="A small vLLM on MLX.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    generate = commands.add_parser("generate", help="continue prompts", description="Continue prompts, streaming.")
    options.add_generate_options(generate)
    generate.set_defaults(run=_generate)

    chat = commands.add_parser("chat", help="talk to a model", description="Talk to a model that has a chat template.")
    options.add_chat_options(chat)
    chat.set_defaults(run=_chat)

    bench = commands.add_parser("bench", help="measure", description="Measure, and print ratios taken in one run.")
    workloads = "\n".join(f"  {name:<14} {about}" for name, (about, _) in WORKLOADS.items())
    throughput = bench.add_subparsers(required=True, metavar="what").add_parser(
        "throughput", help="one request at a time, our batching, mlx-lm's",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Serve the same requests one at a time, batched, and by mlx-lm's BatchGenerator, in turns.\n\n"
                    f"workloads:\n{workloads}")
    options.add_throughput_options(throughput)
    throughput.set_defaults(run=_throughput)

    trace = commands.add_parser("trace", help="draw a step trace",
                                description="Draw a trace of steps: requests over steps, how long each took, and the "
                                "block pool.")
    options.add_trace_options(trace)
    trace.set_defaults(run=_trace)

    pull = commands.add_parser("pull", help="fetch a model", description="Fetch a model that does not ship.")
    pull.add_argument("model", help=f"one of {', '.join(KNOWN)}")
    pull.set_defaults(run=_pull)

    doctor = commands.add_parser("doctor", help="what this machine offers", description="What this machine offers.")
    doctor.set_defaults(run=_doctor)
    return parser


# ---- the commands, each imported when it runs


def _generate(arguments: argparse.Namespace) -> int:
    options.check_together(arguments)
    prompts = list(options.read_prompts(arguments, sys.stdin))
    if arguments.beams is not None:
        from mini_vllm.cli.beams import run_beams
        return run_beams(arguments, prompts)
    params = sampling_options.sampling_params(arguments)
    from mini_vllm.cli.generate import run_generate
    return run_generate(arguments, prompts, params)


def _chat(arguments: argparse.Namespace) -> int:
    params = sampling_options.sampling_params(arguments)
    from mini_vllm.cli.chat import run_chat
    return run_chat(arguments, params)


def _throughput(arguments: argparse.Namespace) -> int:
    from mini_vllm.cli.bench import run_throughput
    return run_throughput(arguments)


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

    from mini_vllm.cli.doctor import run_doctor
    return run_doctor(Console(highlight=False, soft_wrap=True))
