"""A result in ``benchmarks/`` names its source, its command, its machine and its noise, and cannot change unnoticed."""

import argparse
import json
import subprocess

import pytest

from mini_vllm.benchmark import results as results_module
from mini_vllm.benchmark.machine import source
from mini_vllm.benchmark.results import Results, digest

CLEAN = {"tree": "a" * 40, "modified": []}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return a file in a folder that is treated as ``benchmarks/``."""
    monkeypatch.setattr(results_module, "KEPT", tmp_path)
    return tmp_path / "r.json"


def arguments(path, quick=False):
    return argparse.Namespace(output=path, quick=quick, typed="mini-vllm bench gpu --only steps")


def test_a_source_is_its_tree_and_the_files_that_differ_from_it(tmp_path):
    def git(*command):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.org", *command], cwd=tmp_path, check=True)

    assert source(tmp_path) == {"tree": None, "modified": []}, "there is no history"
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "a.py").write_text("1")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    tree = source(tmp_path)
    assert len(tree["tree"]) == 40 and tree["modified"] == []
    git("commit", "-q", "--amend", "-m", "other")
    assert source(tmp_path) == tree, "another commit of the same files"
    (tmp_path / "benchmarks/r.json").write_text("{}")
    assert source(tmp_path) == tree, "a result is not a source"
    (tmp_path / "a.py").write_text("2")
    (tmp_path / "new.py").write_text("3")
    assert source(tmp_path) == {**tree, "modified": ["a.py", "new.py"]}


def test_a_file_says_where_its_numbers_come_from_and_keeps_them_if_the_run_is_ended(kept, monkeypatch):
    monkeypatch.setattr(results_module, "source", lambda: CLEAN)
    with pytest.raises(KeyboardInterrupt), Results(arguments(kept)) as results:
        results.save({"speed": 1})
        results.save({"speed": {1: 2.5}})
        raise KeyboardInterrupt
    saved = json.loads(kept.read_text())
    assert {name: saved[name] for name in ("command", "tree", "modified", "speed")} == {
        "command": "mini-vllm bench gpu --only steps", **CLEAN, "speed": {"1": 2.5}}
    assert {"device", "cores", "blas", "mlx"} <= saved["machine"].keys()
    assert saved["noise"].keys() == {"others_cores", "num_cores", "slowdown", "cause"}
    assert saved["sha256"] == digest(saved) != digest({**saved, "speed": {"1": 2.6}})


@pytest.mark.parametrize("found, quick, complaint", [
    (CLEAN, True, "--quick is only a smoke test"),
    ({"tree": None, "modified": []}, False, "this is no git checkout"),
    ({**CLEAN, "modified": ["a.py"]}, False, "unmodified tree, but a.py differs"),
    ({**CLEAN, "modified": ["a.py", "b.py", "c.py"]}, False, "unmodified tree, but a.py and 2 more differs"),
])
def test_only_a_result_with_a_source_is_kept(kept, monkeypatch, tmp_path_factory, found, quick, complaint):
    monkeypatch.setattr(results_module, "source", lambda: found)
    with pytest.raises(ValueError, match=complaint):
        Results(arguments(kept, quick))
    scratch = tmp_path_factory.mktemp("scratch") / "r.json"
    with Results(arguments(scratch, quick)) as results:
        results.save({})
    assert json.loads(scratch.read_text())["modified"] == found["modified"]


def test_a_source_that_changes_during_the_run_gives_no_result(kept, monkeypatch):
    found = dict(CLEAN)
    monkeypatch.setattr(results_module, "source", lambda: dict(found))
    with pytest.raises(ValueError, match="has changed since"), Results(arguments(kept)) as results:
        found["modified"] = ["a.py"]
        results.save({})
    assert not kept.exists()
