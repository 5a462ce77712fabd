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
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

#: Counts whose name begins so are listed at the end, one per line.
REFUSED = "refused: "

RunCase = Callable[[int, int], "dict[str, int]"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tools/fuzz", description=importlib.import_module("fuzz").__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("models", "speculation"))
    parser.add_argument("--transformers", metavar="PYTHON", help="models: also compare random configs with "
                        "transformers 5, in this interpreter, which must have torch")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other cases (default: 0)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=60.0, help="begin no case after this time (default: 60)")
    length.add_argument("--cases", type=int, help="run this many")
    length.add_argument("--case", type=int, help="run this one only")
    arguments = parser.parse_args(argv)
    name, run_case = arguments.name, importlib.import_module(f"fuzz.{arguments.name}").run_case
    if arguments.transformers is not None:
        from fuzz import with_transformers
        try:
            run_case = partial(with_transformers.run_both, with_transformers.Transformers(arguments.transformers))
        except ValueError as error:
            parser.error(str(error))
        name += f" --transformers {arguments.transformers}"
    if arguments.case is not None:
        return fuzz(name, run_case, arguments.seed, [arguments.case])
    if arguments.cases is not None:
        return fuzz(name, run_case, arguments.seed, range(arguments.cases))
    return fuzz(name, run_case, arguments.seed, itertools.count(), arguments.seconds)


def fuzz(name: str, run_case: RunCase, seed: int, cases: Iterable[int], seconds: float = math.inf) -> int:
    """Run ``cases`` until ``seconds`` are over, and return the exit status.

    Print what was tried, and how to repeat a failure.
    """
    tried: Counter[str] = Counter()
    num_cases, start_s, status = 0, time.monotonic(), 0
    for case in itertools.takewhile(lambda _: time.monotonic() - start_s < seconds, cases):
        try:
            tried.update(run_case(seed, case))
        except Exception as error:
            print(error if isinstance(error, AssertionError) else "".join(traceback.format_exception(error)),
                  f"case {case} failed; to repeat it: python tools/fuzz {name} --seed {seed} --case {case}",
                  sep="\n", file=sys.stderr)
            status = 1
            break
        num_cases += 1
    counts = [f"{count:,} {what}" for what, count in tried.items() if not what.startswith(REFUSED)]
    print(f"{name}, seed {seed}: {num_cases} cases in {time.monotonic() - start_s:.1f} s, "
          f"{'1 failure' if status else 'no failure'}; {', '.join(counts) or 'nothing was tried'}")
    for what in sorted(what for what in tried if what.startswith(REFUSED)):
        print(f"{tried[what]:6,} × {what}")
    return status


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # Python put this folder on the path, not its parent
    sys.exit(main())
