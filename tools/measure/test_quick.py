"""Every measurement has a quick mode. The test of the README runs all of them; this file tests three."""

import json

import pytest

from measure.__main__ import main, make_parser
from mini_vllm.native.build import problem

native = pytest.mark.skipif(bool(problem()), reason=problem())


@pytest.mark.parametrize("name, told", [("tree", "replace  half a block"), ("seeds", "4 of 4 texts are the same"),
                                        ("drafts", "share of a plain step"),
                                        ("structured", "times as long as one of free text"),
                                        ("pool", "8 decoding"),
                                        pytest.param("precision", "perplexity", marks=native),
                                        ("router --http", "cache-aware")])
def test_a_quick_run_prints_what_a_whole_one_does_and_says_that_it_is_none(name, told, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["benchmark", *name.split(), "--quick"])
    assert main() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("quick: ") and told in printed and "DIFFERENT" not in printed


def test_what_is_printed_is_saved_with_where_it_comes_from(tmp_path, capsys, monkeypatch):
    path = tmp_path / "drafts.json"
    monkeypatch.setattr("sys.argv", ["benchmark", "drafts", "--quick", "--output", str(path)])
    assert main() == 0
    saved = json.loads(path.read_text())
    assert saved["printed"] == capsys.readouterr().out.splitlines()
    assert "share of a plain step" in "".join(saved["printed"])
    assert saved["command"] == f"python tools/measure drafts --quick --output {path}"
    monkeypatch.setattr("sys.argv", ["benchmark", "drafts", "--quick", "--output", str(tmp_path / "no" / "where")])
    assert main() == 2


def test_every_measurement_can_be_quick():
    names = make_parser()._subparsers._group_actions[0].choices
    assert all("--quick" in parser.format_help() for parser in names.values())


@pytest.mark.parametrize("words", [["single", "--rounds", "0"], ["prefix", "--rounds", "-1"],
                                   ["seeds", "--num-tokens", "0"]])
def test_a_number_that_cannot_be_is_refused_before_the_work(words, capsys):
    with pytest.raises(SystemExit):
        make_parser().parse_args(words)
    assert f"argument {words[1]}: {words[2]}, must be at least 1" in capsys.readouterr().err
