"""Check that all commands follow the convention for options in mini_vllm/arguments.py."""

import argparse

import pytest
from measure.__main__ import make_parser as measure_parser

from course.cli import main as course
from course.cli import make_parser as course_parser
from mini_vllm.arguments import parse_arguments, wants_peer
from mini_vllm.cli import main as engine
from mini_vllm.cli import make_parser as engine_parser

#: ``course grade --out`` names a folder for many files.
NAMES_A_FOLDER = ["course grade"]


def parsers_below(parser):
    below = [each for action in parser._actions if isinstance(action, argparse._SubParsersAction)
             for each in action.choices.values()]
    return [parser, *(found for each in below for found in parsers_below(each))]


PARSERS = [each for parser in (engine_parser(), course_parser(), measure_parser()) for each in parsers_below(parser)]
COMMANDS = [parser for parser in PARSERS if parser.get_default("parser") is not None]
BENCHMARKS = [parser for parser in COMMANDS if parser.prog.startswith(("mini-vllm bench ", "python tools/measure "))]


def option(parser, name):
    return parser._option_string_actions.get(name)


def named(parser):
    return parser.prog


def test_there_are_as_many_commands_as_we_know_of():
    assert len(COMMANDS) > 35 and len(BENCHMARKS) > 13
    leaves = [parser for parser in PARSERS if len(parsers_below(parser)) == 1]
    assert {parser.prog for parser in leaves} <= {parser.prog for parser in COMMANDS}


@pytest.mark.parametrize("parser", PARSERS, ids=named)
def test_json_prints_and_output_writes(parser):
    as_json, out = option(parser, "--json"), option(parser, "--out")
    if as_json is not None:
        assert as_json.nargs == 0
    if out is not None and parser.prog not in NAMES_A_FOLDER:
        assert option(parser, "--output") is out, "--out is an alias"
    assert not {"--save", "--json-file", "--output-file"} & parser._option_string_actions.keys()


@pytest.mark.parametrize("parser", BENCHMARKS, ids=named)
def test_a_benchmark_has_json_output_and_quick(parser):
    assert option(parser, "--json") and option(parser, "--output").metavar == "FILE"
    assert option(parser, "--quick").help.startswith("only a smoke test")


@pytest.mark.parametrize("parser", [each for each in COMMANDS if each.prog in (
    "mini-vllm chat", "mini-vllm serve", *(f"mini-vllm bench {name}" for name in ("throughput", "serve", "gpu")))],
    ids=named)
def test_a_model_may_be_named_either_way(parser):
    positional = [action for action in parser._actions if not action.option_strings]
    assert [action.metavar for action in positional] == ["MODEL"] and option(parser, "--model").metavar == "NAME"


@pytest.mark.parametrize("parser", [each for each in BENCHMARKS if option(each, "--arm")], ids=named)
def test_an_arm_is_the_same_in_all_benchmarks(parser):
    arm = option(parser, "--arm")
    assert set(arm.choices) <= {"one", "ours", "mlx-lm", "vllm", "llama.cpp"}
    assert "may be given several times" in arm.help


@pytest.mark.parametrize("parser", COMMANDS, ids=named)
def test_a_wrong_option_shows_the_usage_of_its_own_command(parser, capsys):
    program, *words = parser.prog.removeprefix("python tools/").split()
    main = {"mini-vllm": engine, "course": course, "measure": lambda argv: parse_arguments(measure_parser(), argv)}
    needed = [word for action in parser._actions if action.required and action.nargs is None
              for word in [*action.option_strings[:1], "x"]]
    with pytest.raises(SystemExit) as end:
        main[program]([*words, *needed, "--no-such-option"])
    told = capsys.readouterr().err
    assert end.value.code == 2 and told.startswith(f"usage: {parser.prog} ") and "--no-such-option" in told


def test_a_misspelt_option_is_guessed(capsys):
    with pytest.raises(SystemExit):
        engine(["generate", "--max-tokenz", "3", "A fox"])
    assert "--max-tokenz (did you mean --max-tokens?)" in capsys.readouterr().err


def arguments_of(*words):
    return parse_arguments(engine_parser(), words)


@pytest.mark.parametrize("words, model", [((), "tiny-tales"), (("a",), "a"), (("--model", "a"), "a")])
def test_the_model_of_a_benchmark(words, model):
    assert arguments_of("bench", "throughput", *words).model == model


def test_two_models_are_refused(capsys):
    with pytest.raises(SystemExit):
        arguments_of("chat", "a", "--model", "b")
    assert "two models are given, a and --model b: give only one" in capsys.readouterr().err


@pytest.mark.parametrize("words, expected", [
    ((), True), (("--quick",), False), (("--quick", "--arm", "ours", "--arm", "mlx-lm"), True), (("--no-peer",), False),
    (("--arm", "ours"), False)])
def test_who_is_measured(words, expected):
    assert wants_peer(arguments_of("bench", "serve", *words)) is expected


def test_mlx_lm_alone_is_refused():
    with pytest.raises(ValueError, match="--arm mlx-lm needs --arm ours"):
        wants_peer(arguments_of("bench", "gpu", "--arm", "mlx-lm"))
