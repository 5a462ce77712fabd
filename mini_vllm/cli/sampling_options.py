"""The options of ``generate`` and ``chat`` that say how to sample and when to stop.

Each is a field of SamplingParams, and its ``dest`` is the name of the field. Only ``--max-tokens`` has a default: an
option that was not given takes the model's value, and ``--beams`` must know which options were given.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mini_vllm.request import SamplingParams

#: Used if neither the command line nor the model sets one.
TEMPERATURE = 0.8
FIELDS = tuple(field.name for field in fields(SamplingParams))
#: Options whose name differs from their field's.
_OPTIONS = {"bad_words": "--bad-word", "stop_token_ids": "--stop-token-id",
            "skip_special_tokens": "--keep-special-tokens", "structured_outputs": "--choice, --regex or --json-schema"}
#: Fields of StructuredOutputsParams → the attribute of their option.
_STRUCTURES = {"choice": "choice", "regex": "regex", "json": "json_schema"}


def option_of(name: str) -> str:
    """Return the option that sets a field of SamplingParams."""
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def add_choice_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how a token is chosen")
    group.add_argument("--temperature", type=float, metavar="T", help="0: always the likeliest token; above 1: more "
                       f"random than the model (default: the model's recommended value, else {TEMPERATURE})")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the smallest set of likeliest tokens "
                       "whose probabilities add up to P (default: the model's, else 1)")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens (default: the model's, "
                       "else all)")
    group.add_argument("--min-p", type=float, metavar="P", help="draw from tokens at least P times as likely as the "
                       "likeliest (default: the model's, else 0)")
    group.add_argument("--repetition-penalty", type=float, metavar="X", help="above 1: tokens of prompt and output are "
                       "less likely to appear again (default: the model's, else 1)")
    group.add_argument("--presence-penalty", type=float, metavar="X", help="-2 to 2, subtracted from the logits of "
                       "tokens that the output contains (default: 0)")
    group.add_argument("--frequency-penalty", type=float, metavar="X", help="like --presence-penalty, but "
                       "subtracted once per occurrence of the token (default: 0)")
    group.add_argument("--logit-bias", type=_bias, action="append", metavar="ID=X", help="add X to the logit of this "
                       "token id; may be given several times")
    group.add_argument("--allowed-token-ids", type=_token_ids, metavar="ID,ID,...", help="draw only these tokens")
    group.add_argument("--bad-word", dest="bad_words", action="append", metavar="TEXT", help="text that must not "
                       "appear in the output; may be given several times")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text (default: a different "
                       "text each time)")


def add_end_options(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    group = parser.add_argument_group("where the output ends, and what is shown")
    group.add_argument("--max-tokens", type=int, default=max_tokens, metavar="N", help="end the output after N tokens "
                       "(default: %(default)s)")
    group.add_argument("--min-tokens", type=int, metavar="N", help="do not end the output before N tokens (default: 0)")
    group.add_argument("--stop", action="append", metavar="TEXT", help="text that ends the output; may be given "
                       "several times")
    group.add_argument("--stop-token-id", dest="stop_token_ids", type=int, action="append", metavar="ID",
                       help="token id that ends the output; may be given several times")
    group.add_argument("--include-stop-str-in-output", action="store_const", const=True, help="show the stop "
                       "text or token that ended the output")
    group.add_argument("--ignore-eos", action="store_const", const=True, help="do not stop at the model's end of text")
    group.add_argument("--keep-special-tokens", dest="skip_special_tokens", action="store_const", const=False,
                       help="also show special tokens")


def add_structure_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the output must match").add_mutually_exclusive_group()
    group.add_argument("--choice", action="append", metavar="TEXT", help="the output is one of these texts; give it "
                       "once per text")
    group.add_argument("--regex", metavar="PATTERN", help="the output matches this regular expression")
    group.add_argument("--json-schema", type=_schema, metavar="FILE", help="the output is JSON that follows the schema "
                       "in this file")


def _schema(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise argparse.ArgumentTypeError(f"{name} cannot be read: {reason}") from None


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a token id and a number, such as 42=-5, not {text!r}") from None


def _token_ids(text: str) -> list[int]:
    try:
        return [int(token_id) for token_id in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be token ids separated by commas, such as 5,42, not {text!r}") from None


# ---- reading the values


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of SamplingParams that the command line sets."""
    values = {name: value for name in FIELDS if (value := getattr(arguments, name, None)) is not None}
    if "logit_bias" in values:
        values["logit_bias"] = dict(values["logit_bias"])
    structure = {name: value for name, option in _STRUCTURES.items()
                 if (value := getattr(arguments, option, None)) is not None}
    return {**values, "structured_outputs": structure} if structure else values


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """Return the parameters of the command line, before a model is loaded.

    Raise ValueError if a value is invalid; the message names the field.
    """
    return SamplingParams(**given(arguments))


def with_defaults(params: SamplingParams, arguments: argparse.Namespace, of_model: Mapping[str, Any]) -> SamplingParams:
    """Return the parameters with the model's values for the fields that the command line does not set."""
    left_open = {"temperature": TEMPERATURE, **of_model}
    return replace(params, **{name: value for name, value in left_open.items() if name not in given(arguments)})
