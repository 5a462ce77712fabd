"""Measurements in their quick mode, and the two that count lines."""

import json

import pytest

from measure import path, weight
from measure.__main__ import main


@pytest.fixture
def measure(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr("sys.argv", ["measure", *words])
        return main(), capsys.readouterr()

    return run


def test_a_quick_run_says_that_it_is_none_and_is_saved_with_where_it_comes_from(tmp_path, measure):
    status, printed = measure("router", "--quick")
    assert status == 0 and printed.out.startswith("quick: ") and "cache-aware, bound 3" in printed.out
    output = tmp_path / "seeds.json"
    status, printed = measure("seeds", "--quick", "--output", str(output))
    saved = json.loads(output.read_text())
    assert status == 0 and "4 of 4 texts are the same" in printed.out
    assert saved["printed"] == printed.out.splitlines()
    assert saved["command"] == f"python tools/measure seeds --quick --output {output}"
    assert measure("seeds", "--quick", "--output", str(tmp_path / "no" / "where"))[0] == 2


def test_the_weight_is_that_of_the_tracked_files(measure):
    lines = weight.tracked(weight.ROOT)
    status, printed = measure("weight")
    total = f"all code that git tracks: {sum(lines.values()):,} lines in {len(lines):,} files"
    assert status == 0 and total in printed.out
    named = {found.name for found in lines}
    assert {"scheduler.py", "pyproject.toml"} < named and not {"CHANGELOG.md", "tokenizer.json"} & named


def test_the_path_of_a_request_goes_through_the_engine():
    _, counts = path.traced()
    files = {name.rpartition("mini_vllm/")[2]: found for name, found in counts.items()}
    assert {"llm.py", "engine.py", "scheduler.py", "models/loader.py"} <= set(files)
    num_functions, num_lines = files["scheduler.py"]
    assert num_functions > 5 and num_lines > 3 * num_functions, "lines, and not only where functions end"
    assert sum(name.endswith("__init__.py") for name in files) < 4, "what an import runs is not counted"
