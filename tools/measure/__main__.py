"""``python tools/measure NAME``: run one measurement."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import sys
from pathlib import Path
from typing import IO, Any

from mini_vllm.arguments import QUICK, add_result_options, parse_arguments
from mini_vllm.benchmark.workloads import Drawing

#: Measurements that print times or ratios of times. On a busy machine they are meaningless, and a warning says so.
TIMED = ("single", "pool", "tree", "drafts", "structured", "prefix", "stall")


def main() -> int:
    arguments = parse_arguments(make_parser(), sys.argv[1:])
    from mini_vllm.benchmark.result_file import Results
    try:
        with Results(arguments) as results:
            printed = io.StringIO()
            with contextlib.redirect_stdout(Tee(sys.stdout, printed)):
                status = measure(arguments)
            results.save({"printed": printed.getvalue().splitlines()})
            return status
    except ValueError as error:  # a LoadError is a ValueError
        print(f"python tools/measure: {error}", file=sys.stderr)
        return 2


def measure(arguments: argparse.Namespace) -> int:
    if arguments.quick:
        shorten(arguments)
        run(arguments)
    elif arguments.name in TIMED:
        from mini_vllm.benchmark.machine_noise import told_if_loud
        with told_if_loud():
            run(arguments)
    else:
        run(arguments)
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
    single = names.add_parser("single")
    single.add_argument("--model", action="append", help="default: tiny-tales, and smollm2 if it has been pulled")
    single.add_argument("--rounds", type=at_least_one, default=5)
    Drawing.add_arguments(single)
    names.add_parser("pool")
    names.add_parser("tree")
    prefix = names.add_parser("prefix")
    prefix.add_argument("--model", default="tiny-tales")
    prefix.add_argument("--rounds", type=at_least_one, default=3)
    Drawing.add_arguments(prefix)
    drafts = names.add_parser("drafts")
    drafts.add_argument("--model", default="tiny-tales")
    drafts.add_argument("--rounds", type=at_least_one, default=5)
    drafts.add_argument("--requests", type=at_least_one, action="append", help="default: 1, 4, 16 and 64")
    structured = names.add_parser("structured")
    structured.add_argument("--model", default="tiny-tales")
    structured.add_argument("--rounds", type=at_least_one, default=7)
    seeds = names.add_parser("seeds")
    seeds.add_argument("--model", action="append", help="default: tiny-tales, and smollm2 if it has been pulled")
    seeds.add_argument("--num-tokens", type=at_least_one, default=400, help="of each request (default: %(default)s)")
    Drawing.add_arguments(seeds)
    seeds.set_defaults(temperature=0.8)
    precision = names.add_parser("precision")
    precision.add_argument("--model", action="append", help="default: tiny-tales, and smollm2 if it has been pulled")
    precision.add_argument("--texts", type=at_least_one, default=8, metavar="N", help="(default: %(default)s)")
    precision.add_argument("--num-tokens", type=at_least_one, default=300, help="of each text (default: %(default)s)")
    stall = names.add_parser("stall")
    stall.add_argument("--model", default="tiny-tales")
    router = names.add_parser("router")
    how = router.add_mutually_exclusive_group()
    how.add_argument("--http", action="store_true", help="cached tokens and balance (this is the default)")
    how.add_argument("--kill", action="store_true", help="kill a server in the middle, and count what its clients get")
    router.add_argument("--model", default="tiny-tales", help="(default: %(default)s)")
    for kind in ("sglang", "vllm"):
        router.add_argument(f"--{kind}-router", type=Path, metavar="FILE", help=f"also compare {kind}-router: its "
                            "executable")
    quiz = names.add_parser("quiz")
    quiz.add_argument("--model", default="smollm2", help="one that can chat (default: %(default)s)")
    quiz.add_argument("--questions", type=int, metavar="N", help="only this many, spread over the kinds")
    quiz.add_argument("--show", action="store_true", help="print every answer, with right or wrong")
    for benchmark in names.choices.values():
        benchmark.add_argument("--quick", action="store_true", help="only a smoke test: as little as possible")
        add_result_options(benchmark)
        benchmark.set_defaults(parser=benchmark)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Import the requested measurement and print its results."""
    def quick(**sizes: Any) -> dict[str, Any]:  # each value has its own type
        return sizes if arguments.quick else {}

    match arguments.name:
        case "single":
            from measure.single import print_single
            print_single(arguments.model, arguments.rounds, Drawing.from_arguments(arguments), **quick(num_tokens=4))
        case "pool":
            from measure.pool import print_pool
            print_pool(**quick(num_rounds=1))
        case "tree":
            from measure.tree import print_tree
            print_tree(**quick(all_num_prompts=(20, 100), rounds=1))
        case "prefix":
            from measure.prefix import SMALL, print_prefix
            print_prefix(arguments.model, arguments.rounds, Drawing.from_arguments(arguments), **quick(size=SMALL))
        case "drafts":
            from measure.drafts import NUM_REQUESTS, print_drafts
            all_num_requests = (1, 4) if arguments.quick else NUM_REQUESTS
            print_drafts(arguments.model, arguments.rounds, tuple(arguments.requests or all_num_requests),
                         **quick(num_steps=2))
        case "structured":
            from measure.structured import print_structured
            print_structured(arguments.model, arguments.rounds, **quick(num_steps=2))
        case "seeds":
            from measure.seeds import print_seeds
            print_seeds(arguments.model, arguments.num_tokens, Drawing.from_arguments(arguments),
                        **quick(num_requests=4))
        case "precision":
            from measure.precision import print_precision
            print_precision(arguments.model, 1 if arguments.quick else arguments.texts, arguments.num_tokens)
        case "stall":
            from measure.stall import print_stall
            print_stall(arguments.model, **quick(num_rounds=1, num_tokens=120))
        case "router":
            from measure.router_servers import SMOKE_TEST
            executables = {"sglang": arguments.sglang_router, "vllm": arguments.vllm_router}
            if arguments.kill:
                from measure.router_kill import print_router_kill
                print_router_kill(arguments.model, executables, **quick(num_rounds=1, workload=SMOKE_TEST))
            else:
                from measure.router_http import print_router_http
                print_router_http(arguments.model, executables, **quick(seeds=(0,), workload=SMOKE_TEST))
        case "quiz":
            from measure.quiz import print_quiz
            print_quiz(arguments.model, arguments.questions, arguments.show,
                       **quick(seeds=(0,), max_tokens=8, first_seeds=(0,)))


def shorten(arguments: argparse.Namespace) -> None:
    """Apply ``--quick`` by setting the options that exist to their smallest values."""
    least = {"rounds": 1, "num_tokens": 8, "questions": 1}
    for name, value in least.items():
        if hasattr(arguments, name):
            setattr(arguments, name, value)
    if getattr(arguments, "model", "") is None:
        arguments.model = ["tiny-tales"]
    print(QUICK)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # Python put this folder on the path, not its parent
    sys.exit(main())
