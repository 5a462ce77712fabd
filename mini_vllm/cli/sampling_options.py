"""The options of ``generate`` and ``chat`` that say how to sample and when to stop: the fields of SamplingParams.

Only ``--max-tokens`` has a default: an option that was not given takes the model's value, and ``--beams`` must know
which options were given.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mini_vllm.cli.arguments import add_field_options, given_fields
from mini_vllm.request import SamplingParams

#: Used if neither the command line nor the model sets one.
TEMPERATURE = 0.8
#: Fields for which a model may recommend a value, and the value without one.
RECOMMENDED = {"temperature": TEMPERATURE, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
CHOICE = (*RECOMMENDED, "presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids", "bad_words", "seed")
END = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
       "skip_special_tokens")
#: Fields of StructuredOutputsParams → the attribute of their option.
_STRUCTURES = {"choice": "choice", "regex": "regex", "json": "json_schema"}


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    how: dict[str, dict[str, Any]] = {
        **{name: {"shown": f"the model's recommended value, else {value}"} for name, value in RECOMMENDED.items()},
        "logit_bias": {"type": _bias, "action": "append", "metavar": "ID=X"},
        "allowed_token_ids": {"type": _token_ids, "metavar": "ID,ID,..."},
        "bad_words": {"action": "append"}, "stop": {"action": "append"},
        "stop_token_ids": {"type": int, "action": "append", "metavar": "ID"},
        "max_tokens": {"default": max_tokens, "shown": max_tokens}}
    add_field_options(parser.add_argument_group("how a token is chosen"), SamplingParams, CHOICE, how)
    add_field_options(parser.add_argument_group("where the output ends, and what is shown"), SamplingParams, END, how)


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


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of SamplingParams that the command line sets."""
    values = given_fields(arguments, SamplingParams)
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
