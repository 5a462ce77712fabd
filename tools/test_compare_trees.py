"""Test the comparison of two trees, here a tree with itself."""

import json
from pathlib import Path

import compare_trees
import pytest

ROOT = Path(__file__).parents[1]


def test_a_tree_beside_itself(tmp_path, capsys):
    path = tmp_path / "trees.json"
    words = [str(ROOT), str(ROOT), "--workload", "single", "--rounds", "2", "--output", str(path)]
    assert compare_trees.main(words) == 0
    saved = json.loads(path.read_text())
    taken = saved["workloads"]["single"]
    assert len(taken["before"]) == len(taken["after"]) == 2 and taken["ratio"] > 0 and "MLX" in saved["machine"]
    assert "single" in capsys.readouterr().out


@pytest.mark.parametrize("words, complaint", [(["/nowhere", "."], "/nowhere is not a source tree"),
                                              ([str(ROOT), str(ROOT), "--rounds", "0"], "must be at least 1")])
def test_what_cannot_be_is_refused_at_once(words, complaint, capsys):
    with pytest.raises(SystemExit):
        compare_trees.main(words)
    assert complaint in capsys.readouterr().err
