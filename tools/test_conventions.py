"""Check that all commands follow the convention for options in mini_vllm/cli/arguments.py."""

import argparse

import pytest
from measure.__main__ import make_parser as measure_parser

from mini_vllm.cli import main as engine
from mini_vllm.cli import make_parser as engine_parser
from mini_vllm.cli.arguments import parse_arguments


def parsers_below(parser):
    below = [each for action in parser._actions if isinstance(action, argparse._SubParsersAction)
             for each in action.choices.values()]
    return [parser, *(found for each in below for found in parsers_below(each))]


def test_a_benchmark_writes_output_and_has_a_smoke_test():
    for parser in [*parsers_below(engine_parser()), *parsers_below(measure_parser())]:
        options = parser._option_string_actions
        if parser.prog.startswith("mini-vllm bench ") or "--quick" in options:
            assert options["--output"].metavar == "FILE", parser.prog
            assert options["--quick"].help.startswith("only a smoke test"), parser.prog


def test_a_misspelt_option_is_guessed_below_the_usage_of_its_own_command(capsys):
    with pytest.raises(SystemExit) as end:
        engine(["generate", "--max-tokenz", "3", "A fox"])
    told = capsys.readouterr().err
    assert end.value.code == 2 and told.startswith("usage: mini-vllm generate ")
    assert "--max-tokenz (did you mean --max-tokens?)" in told


@pytest.mark.parametrize("words, model", [((), "tiny-tales"), (("a",), "a"), (("--model", "a"), "a")])
def test_a_model_may_be_named_either_way(words, model, capsys):
    assert parse_arguments(engine_parser(), ["bench", "throughput", *words]).model == model
    with pytest.raises(SystemExit):
        parse_arguments(engine_parser(), ["chat", "a", "--model", "b"])
    assert "two models are given, a and --model b: give only one" in capsys.readouterr().err
