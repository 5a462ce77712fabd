"""``python tools/measure NAME``: run one measurement."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import sys
from pathlib import Path
from typing import IO

from mini_vllm.benchmark.workloads import QUICK, add_result_options
from mini_vllm.cli.arguments import parse_arguments

#: Measurements that print times or ratios of times. On a busy machine they are meaningless, and a warning says so.
TIMED = ("drafts", "pool")


def main() -> int:
    arguments = parse_arguments(make_parser(), sys.argv[1:])
    if arguments.name in ("weight", "path"):
        importlib.import_module(f"measure.{arguments.name}").run()
        return 0
    from mini_vllm.benchmark.machine import warn_if_busy
    from mini_vllm.benchmark.results import Results
    try:
        with Results(arguments) as results:
            printed = io.StringIO()
            with contextlib.redirect_stdout(Tee(sys.stdout, printed)):
                if arguments.quick:
                    print(QUICK)
                is_timed = arguments.name in TIMED and not arguments.quick
                if is_timed:
                    warn_if_busy()
                importlib.import_module(f"measure.{arguments.name}").run(arguments)
                if is_timed:
                    print(results.noise().warning(), end="")
            results.save({"printed": printed.getvalue().splitlines()})
    except ValueError as error:  # a LoadError is a ValueError
        print(f"python tools/measure: {error}", file=sys.stderr)
        return 2
    return 0


class Tee(io.TextIOBase):
    """Writes to several targets."""

    def __init__(self, *targets: IO[str]) -> None:
        self._targets = targets

    def write(self, text: str) -> int:
        for target in self._targets:
            target.write(text)
        return len(text)

    def flush(self) -> None:
        for target in self._targets:
            target.flush()


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}, must be at least 1")
    return number


def make_parser() -> argparse.ArgumentParser:
    about = importlib.import_module("measure").__doc__
    parser = argparse.ArgumentParser(prog="python tools/measure", description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    names = parser.add_subparsers(dest="name", required=True, metavar="name")
    seeds = names.add_parser("seeds")
    seeds.add_argument("--model", action="append", help="default: tiny-tales, and smollm2 if it has been pulled")
    seeds.add_argument("--num-tokens", type=at_least_one, default=400, help="of each request (default: %(default)s)")
    seeds.add_argument("--temperature", type=float, default=0.8, help="default: %(default)s")
    drafts = names.add_parser("drafts")
    drafts.add_argument("--model", default="tiny-tales")
    drafts.add_argument("--rounds", type=at_least_one, default=5)
    drafts.add_argument("--requests", type=at_least_one, action="append", help="default: 1, 4, 16 and 64")
    names.add_parser("pool")
    precision = names.add_parser("precision")
    precision.add_argument("--model", action="append", help="default: tiny-tales, and smollm2 if it has been pulled")
    precision.add_argument("--texts", type=at_least_one, default=8, metavar="N", help="(default: %(default)s)")
    precision.add_argument("--num-tokens", type=at_least_one, default=300, help="of each text (default: %(default)s)")
    router = names.add_parser("router")
    how = router.add_mutually_exclusive_group()
    how.add_argument("--http", action="store_true", help="cached tokens and balance (this is the default)")
    how.add_argument("--kill", action="store_true", help="kill a server in the middle, and count what its clients get")
    router.add_argument("--model", default="tiny-tales", help="(default: %(default)s)")
    for kind in ("sglang", "vllm"):
        router.add_argument(f"--{kind}-router", type=Path, metavar="FILE", help=f"also compare {kind}-router: its "
                            "executable")
    for benchmark in names.choices.values():
        benchmark.add_argument("--quick", action="store_true", help="only a smoke test: as little as possible")
        add_result_options(benchmark)
        benchmark.set_defaults(parser=benchmark)
    for name, what in (("weight", "lines of code by package"), ("path", "the files and lines that one request runs")):
        names.add_parser(name, help=what, description=what)
    return parser


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # Python put this folder on the path, not its parent
    sys.exit(main())
