"""Every measurement can be quick. That each runs, the test of the README shows, which names them; here are three."""

import pytest

from mini_vllm.benchmark.__main__ import main, make_parser


@pytest.mark.parametrize("name, told", [("allocator", "In a pool 10 times larger"), ("tree", "replace  half a block"),
                                        ("seeds", "4 of 4 texts are the same")])
def test_a_quick_run_prints_what_a_whole_one_does_and_says_that_it_is_none(name, told, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["benchmark", name, "--quick"])
    assert main() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("quick: ") and told in printed and "DIFFERENT" not in printed


def test_every_measurement_can_be_quick():
    names = make_parser()._subparsers._group_actions[0].choices
    assert all("--quick" in parser.format_help() for parser in names.values())


@pytest.mark.parametrize("words", [["single", "--rounds", "0"], ["prefix", "--rounds", "-1"],
                                   ["seeds", "--num-tokens", "0"]])
def test_a_number_that_cannot_be_is_refused_before_the_work(words, capsys):
    with pytest.raises(SystemExit):
        make_parser().parse_args(words)
    assert f"argument {words[1]}: {words[2]}, must be at least 1" in capsys.readouterr().err
