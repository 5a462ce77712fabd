"""How options are parsed, options made of the fields of settings, and the model's option.

Options with one meaning have one name in all commands:

    --output FILE       write the result to a file
    MODEL, --model NAME the model, as a positional argument or as an option
    --quick             only a smoke test
    --arm NAME          what is measured
    --draft NAME        guess tokens
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any

from mini_vllm.checks import nearest

#: The type of a field → arguments of ``add_argument``.
_KINDS: dict[str, dict[str, Any]] = {"int": {"type": int, "metavar": "N"}, "float": {"type": float, "metavar": "X"}}


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
    if hasattr(arguments, "model_option"):
        _take_model_option(chosen, arguments)
    return arguments


def _nearest_option(parser: argparse.ArgumentParser, word: str) -> str | None:
    if not word.startswith("--"):
        return None
    names = [name.removeprefix("--") for name in parser._option_string_actions if name.startswith("--")]
    near = nearest(word.partition("=")[0].removeprefix("--"), names)
    return f"--{near}" if near else None


def _take_model_option(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.model is not None and arguments.model_option is not None:
        parser.error(f"two models are given, {arguments.model} and --model {arguments.model_option}: give only one")
    arguments.model = arguments.model or arguments.model_option or arguments.default_model


def add_field_options(parser: argparse._ActionsContainer, settings: type, names: Sequence[str],
                      how: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Add an option for each of these fields of a dataclass, which ``checks.setting`` declared.

    The option's value is None if it is not given; see ``given_fields``. ``how`` has arguments of ``add_argument`` for
    fields that are neither a flag nor one number or text, and ``shown``, the default that the help shows.
    """
    declared = {field.name: field for field in fields(settings)}
    for name in names:
        field, kind = declared[name], str(declared[name].type).removesuffix(" | None")
        options: dict[str, Any] = {"metavar": "TEXT", "shown": field.default, **_KINDS.get(kind, {})}
        if kind == "bool":
            options = {"action": "store_const", "const": not field.default}
        options.update((how or {}).get(name, {}))
        about, shown = field.metadata["help"], options.pop("shown", None)
        if options.get("action") == "append":
            about += "; may be given several times"
        if shown not in (None, ()):
            about += f" (default: {shown})"
        parser.add_argument(option_of(field), dest=name, help=about, **options)


def option_of(field: Field[Any]) -> str:
    return field.metadata["option"] or f"--{field.name.replace('_', '-')}"


def given_fields(arguments: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Return the fields of ``settings`` that the command line sets."""
    return {field.name: value for field in fields(settings)
            if (value := getattr(arguments, field.name, None)) is not None}


def add_model_options(parser: argparse.ArgumentParser, default: str, about: str, *aliases: str,
                      choices: Sequence[str] | None = None) -> None:
    """Add ``arguments.model``, which can be given as a positional argument or as an option."""
    parser.add_argument("model", nargs="?", choices=choices, metavar="MODEL", help=f"{about} (default: {default})")
    parser.add_argument("--model", *aliases, dest="model_option", choices=choices, metavar="NAME",
                        help="the same as MODEL")
    parser.set_defaults(default_model=default)
