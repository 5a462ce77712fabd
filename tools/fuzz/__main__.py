"""``python tools/fuzz NAME``: run case after case until the time is over or a case fails."""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

#: Name → module. (A module cannot be called ``async``, which is a keyword.)
FUZZERS = {"engine": "engine", "models": "models", "sampler": "sampler", "async": "async_engine",
           "speculation": "speculation", "structured": "structured"}
DEFAULT_SECONDS = 60.0
#: Counts whose name begins so are listed at the end, one per line.
REFUSED = "refused: "
FAILED, BAD_ARGUMENTS, INTERRUPTED = 1, 2, 130

RunCase = Callable[[int, int], "dict[str, int]"]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        run_case, cases, seconds = _plan(arguments)
    except ValueError as error:
        print(f"fuzz: {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    peer = f" --transformers {arguments.transformers}" if arguments.transformers else ""
    return fuzz(arguments.name + peer, run_case, arguments.seed, cases, seconds)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tools/fuzz", description=importlib.import_module("fuzz").__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help=", ".join(FUZZERS))
    parser.add_argument("--transformers", metavar="PYTHON", help="models: also compare random configs with "
                        "transformers 5, in this interpreter, which must have torch")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other cases (default: 0)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help=f"begin no case after this time (default: {DEFAULT_SECONDS:g})")
    length.add_argument("--cases", type=int, help="run this many")
    length.add_argument("--case", type=int, help="run this one only")
    return parser


def _plan(arguments: argparse.Namespace) -> tuple[RunCase, range | itertools.count[int], float]:
    """Return the fuzzer, the numbers of its cases, and the time limit. Raise ValueError for invalid arguments."""
    if arguments.name not in FUZZERS:
        raise ValueError(f"there is no fuzzer {arguments.name!r}, only {', '.join(FUZZERS)}")
    for name, least in (("seed", 0), ("case", 0), ("cases", 1)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} is {value}, must be at least {least}")
    if arguments.seconds is not None and not 0 < arguments.seconds < math.inf:
        raise ValueError(f"--seconds is {arguments.seconds:g}, must be more than 0 and finite")
    run_case = importlib.import_module(f"fuzz.{FUZZERS[arguments.name]}").run_case
    if arguments.transformers is not None:
        if arguments.name != "models":
            raise ValueError(f"--transformers is for models, not for {arguments.name}")
        from fuzz import with_transformers
        run_case = partial(with_transformers.run_both, with_transformers.Transformers(arguments.transformers))
    if arguments.case is not None:
        return run_case, range(arguments.case, arguments.case + 1), math.inf
    if arguments.cases is not None:
        return run_case, range(arguments.cases), math.inf
    return run_case, itertools.count(), DEFAULT_SECONDS if arguments.seconds is None else arguments.seconds


def fuzz(name: str, run_case: RunCase, seed: int, cases: range | itertools.count[int], seconds: float,
         clock: Callable[[], float] = time.monotonic) -> int:
    """Run ``cases`` until ``seconds`` are over, and return the exit status.

    Print what was tried, and how to repeat a failure.
    """
    from rich.console import Console
    tried: Counter[str] = Counter()
    num_cases, start, status = 0, clock(), 0
    with Console(stderr=True).status("") as progress:  # shown only on a terminal
        for case in cases:
            if clock() - start >= seconds:
                break
            progress.update(f"case {case}: {_list(tried)}")
            try:
                tried.update(run_case(seed, case))
            except KeyboardInterrupt:
                status = INTERRUPTED
                break
            except Exception as error:
                progress.stop()
                print(_failure(error), file=sys.stderr)
                print(f"case {case} failed; to repeat it: python tools/fuzz {name} --seed {seed} --case {case}",
                      file=sys.stderr)
                status = FAILED
                break
            num_cases += 1
    print(f"{name}, seed {seed}: {num_cases} {'case' if num_cases == 1 else 'cases'} in "
          f"{clock() - start:.1f} s{' until Ctrl-C' if status == INTERRUPTED else ''}, "
          f"{'1 failure' if status == FAILED else 'no failure'}; {_list(tried)}")
    for what, count in sorted(tried.items()):
        if what.startswith(REFUSED):
            print(f"{count:6,} × {what}")
    return status


def _failure(error: Exception) -> str:
    """Return the message of a failed case; for an unexpected error, with its traceback."""
    if not isinstance(error, AssertionError) or not str(error):
        return "".join(traceback.format_exception(error)).rstrip()
    where = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ is not None else ""
    return where + str(error)


def _list(tried: Counter[str]) -> str:
    counts = ((what, count) for what, count in tried.items() if not what.startswith(REFUSED))
    return ", ".join(f"{count:,} {what}" for what, count in counts) or "nothing was tried"


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # Python put this folder on the path, not its parent
    sys.exit(main())
