"""Options that all commands share: the model, results as JSON, and the usage that a wrong option prints.

    --json              print the result as JSON, and everything else on standard error
    --output FILE       write the result to a file
    --json=FILE         the older spelling of --output FILE; ``--json FILE`` is rejected
    MODEL, --model NAME the model, as a positional argument or as an option
    --quick             only a smoke test
    --arm NAME          what is measured
    --draft NAME        guess tokens
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_vllm.checks import nearest

#: With the newest token, 8 tokens per request: as many as attention handles together (``MAX_SPLIT_QUERIES``).
NUM_SPECULATIVE_TOKENS = 7
QUICK = "quick: only a smoke test; these numbers mean nothing"


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse like ``parser.parse_args``, but show the usage of the subcommand that was given an unknown option.

    Each subcommand's parser registers itself: ``command.set_defaults(parser=command)``. ``typed`` of the result is the
    whole command.
    """
    arguments, unknown = parser.parse_known_args(argv)
    arguments.typed = f"{parser.prog} {shlex.join(argv)}"
    chosen: argparse.ArgumentParser = getattr(arguments, "parser", parser)
    if unknown:
        guesses = [f"{word} (did you mean {near}?)" if (near := _nearest_option(chosen, word)) else word
                   for word in unknown]
        chosen.error(f"unrecognized arguments: {' '.join(guesses)}")
    if isinstance(getattr(arguments, "json", None), str):
        _take_json_file(chosen, arguments, argv)
    if hasattr(arguments, "model_option"):
        _take_model_option(chosen, arguments)
    return arguments


def _nearest_option(parser: argparse.ArgumentParser, word: str) -> str | None:
    if not word.startswith("--"):
        return None
    names = [name.removeprefix("--") for name in parser._option_string_actions if name.startswith("--")]
    near = nearest(word.partition("=")[0].removeprefix("--"), names)
    return f"--{near}" if near else None


def _take_json_file(parser: argparse.ArgumentParser, arguments: argparse.Namespace, argv: Sequence[str]) -> None:
    """Treat ``--json=FILE`` as ``--output FILE``."""
    if f"--json={arguments.json}" not in argv:
        parser.error(f"--json takes no file: it prints JSON. To write {arguments.json}: --output {arguments.json}")
    if arguments.output is not None:
        parser.error(f"--output {arguments.output} and --json={arguments.json} both name a file")
    arguments.output, arguments.json = Path(arguments.json), False


def _take_model_option(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.model is not None and arguments.model_option is not None:
        parser.error(f"two models are given, {arguments.model} and --model {arguments.model_option}: give only one")
    arguments.model = arguments.model or arguments.model_option or arguments.default_model


def add_model_options(parser: argparse.ArgumentParser, default: str, about: str, *aliases: str,
                      choices: Sequence[str] | None = None) -> None:
    """Add ``arguments.model``, which can be given as a positional argument or as an option."""
    parser.add_argument("model", nargs="?", choices=choices, metavar="MODEL", help=f"{about} (default: {default})")
    parser.add_argument("--model", *aliases, dest="model_option", choices=choices, metavar="NAME",
                        help="the same as MODEL")
    parser.set_defaults(default_model=default)


def add_result_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", nargs="?", const=True, default=False, metavar="",
                        help="print the results as JSON, and the tables on standard error")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results to a file, as JSON")


def add_quick_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="only a smoke test: the shortest possible run, without "
                        "mlx-lm unless --arm names it")


def add_arm_option(parser: argparse.ArgumentParser, *arms: str, others: Sequence[str] = ()) -> None:
    parser.add_argument("--arm", action="append", choices=(*arms, *others),
                        help=f"what to measure; may be given several times (default: {', '.join(arms)})")


def chosen_arms(arguments: argparse.Namespace, *arms: str) -> list[str]:
    """Return the arms that the user named. The default is all arms, or only ours with ``--quick``."""
    return list(dict.fromkeys(arguments.arm or (["ours"] if arguments.quick else arms)))


def add_draft_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--draft", metavar="ngram|MODEL", help="guess tokens and check several per step; the texts are "
                        "the same. ngram: from the request's own text; MODEL: by a smaller model of the same "
                        "vocabulary")
    parser.add_argument("--num-speculative-tokens", type=int, metavar="N", help="tokens to guess per step, with "
                        f"--draft (default: {NUM_SPECULATIVE_TOKENS})")


def draft_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of EngineConfig for ``--draft``. Raise ValueError for a number without ``--draft``."""
    if arguments.draft is None:
        if arguments.num_speculative_tokens is not None:
            raise ValueError("--num-speculative-tokens needs --draft")
        return {}
    number = arguments.num_speculative_tokens
    return {"draft": arguments.draft, "num_speculative_tokens": NUM_SPECULATIVE_TOKENS if number is None else number}


def wants_peer(arguments: argparse.Namespace) -> bool:
    """Check whether mlx-lm is measured next to our engine. Raise ValueError if our engine is not measured."""
    arms = chosen_arms(arguments, "ours", "mlx-lm")
    if "ours" not in arms:
        raise ValueError("--arm mlx-lm needs --arm ours: this benchmark only compares the two")
    return "mlx-lm" in arms
