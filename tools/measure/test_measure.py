"""Every measurement has a quick mode. The test of the README runs some of them; this file tests three."""

import json

import pytest

from measure import path, weight
from measure.__main__ import main, make_parser


@pytest.fixture
def measure(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr("sys.argv", ["measure", *words])
        return main(), capsys.readouterr()

    return run


@pytest.mark.parametrize("name, told", [("seeds", "4 of 4 texts are the same"), ("pool", "8 decoding"),
                                        ("router", "cache-aware, bound 3")])
def test_a_quick_run_prints_what_a_whole_one_does_and_says_that_it_is_none(name, told, measure):
    status, printed = measure(name, "--quick")
    assert status == 0 and printed.out.startswith("quick: ") and told in printed.out


def test_what_is_printed_is_saved_with_where_it_comes_from(tmp_path, measure):
    output = tmp_path / "drafts.json"
    status, printed = measure("drafts", "--quick", "--output", str(output))
    saved = json.loads(output.read_text())
    assert status == 0 and saved["printed"] == printed.out.splitlines()
    assert "share of a plain step" in saved["printed"][-1]
    assert saved["command"] == f"python tools/measure drafts --quick --output {output}"
    assert measure("drafts", "--quick", "--output", str(tmp_path / "no" / "where"))[0] == 2


def test_a_number_that_cannot_be_is_refused_before_the_work(capsys):
    with pytest.raises(SystemExit):
        make_parser().parse_args(["seeds", "--num-tokens", "0"])
    assert "argument --num-tokens: 0, must be at least 1" in capsys.readouterr().err


def test_the_weight_is_that_of_the_tracked_files(measure):
    lines = weight.tracked(weight.ROOT)
    status, printed = measure("weight")
    total = f"all code that git tracks: {sum(lines.values()):,} lines in {len(lines):,} files"
    assert status == 0 and total in printed.out
    named = {found.name for found in lines}
    assert {"scheduler.py", "pyproject.toml"} < named and not {"CHANGELOG.md", "tokenizer.json"} & named
    engine = {found: count for found, count in lines.items() if found.parts[0] == "mini_vllm" and found.suffix == ".py"}
    num_tests = sum(count for found, count in engine.items() if found.name.startswith("test_"))
    row = weight.package_table(lines, "mini_vllm")[-1].replace(",", "").split()
    assert row[0] == "all" and int(row[1]) + int(row[4]) == sum(engine.values()) and int(row[4]) > num_tests


def test_the_path_of_a_request_goes_through_the_engine():
    _, counts = path.traced()
    files = {name.rpartition("mini_vllm/")[2]: found for name, found in counts.items()}
    assert {"llm.py", "engine.py", "scheduler.py", "models/loader.py"} <= set(files)
    num_functions, num_lines = files["scheduler.py"]
    assert num_functions > 5 and num_lines > 3 * num_functions, "lines, and not only where functions end"
    assert sum(name.endswith("__init__.py") for name in files) < 4, "what an import runs is not counted"
