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


def main() -> int:
    arguments = parse_arguments(make_parser(), sys.argv[1:])
    measurement = importlib.import_module(f"measure.{arguments.name}")
    if arguments.name in ("weight", "path"):
        measurement.run()
        return 0
    from mini_vllm.benchmark.results import Results
    from mini_vllm.models.catalogue import cached_model
    if arguments.name != "router" and not arguments.model:
        has_smollm2 = cached_model("smollm2") is not None and not arguments.quick
        arguments.model = ["tiny-tales", *(["smollm2"] if has_smollm2 else [])]
    try:
        with Results(arguments) as results:
            printed = io.StringIO()
            with contextlib.redirect_stdout(Tee(sys.stdout, printed)):
                if arguments.quick:
                    print(QUICK)
                measurement.run(arguments)
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
            target.flush()
        return len(text)


def make_parser() -> argparse.ArgumentParser:
    about = importlib.import_module("measure").__doc__
    parser = argparse.ArgumentParser(prog="python tools/measure", description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    names = parser.add_subparsers(dest="name", required=True, metavar="name")
    for name in ("seeds", "precision"):
        names.add_parser(name).add_argument("--model", action="append",
                                            help="default: tiny-tales, and smollm2 if it has been pulled")
    router = names.add_parser("router")
    how = router.add_mutually_exclusive_group()
    how.add_argument("--http", action="store_true", help="cached tokens and balance (this is the default)")
    how.add_argument("--kill", action="store_true", help="kill a server in the middle, and count what its clients get")
    for kind in ("sglang", "vllm"):
        router.add_argument(f"--{kind}-router", type=Path, metavar="FILE", help=f"also compare {kind}-router: its "
                            "executable")
    for benchmark in names.choices.values():
        benchmark.add_argument("--quick", action="store_true", help="only a smoke test: as little as possible")
        add_result_options(benchmark)
        benchmark.set_defaults(parser=benchmark)
    for name in ("weight", "path"):
        names.add_parser(name)
    return parser


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # Python put this folder on the path, not its parent
    sys.exit(main())
