"""The head of each notebook: badges and a cell that installs, both made from one repository variable."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("notebooks_tool", ROOT / "tools/notebooks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["notebooks_tool"] = module
    spec.loader.exec_module(module)
    return module


def sources(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_badges_and_first_cell_are_those_of_the_variable(path, tool):
    assert f"git clone https://github.com/{tool.REPOSITORY}.git" in (ROOT / "README.md").read_text(encoding="utf-8")
    title, first, *others = sources(path)
    assert title.splitlines()[2] == tool.badges(path.name), "`python tools/notebooks.py --heads` writes them"
    assert first == tool.first_cell(path.name)
    named = set(re.findall(r"(?:/gh/|/github/|github\.com/)([\w.-]+/mini_vllm)", title + first))
    assert named == {tool.REPOSITORY}
    assert not [source for source in others if "pip install" in source], "it is installed in one place"


def test_a_fork_changes_one_line_and_runs_one_command(tool, tmp_path, monkeypatch, capsys):
    for path in PATHS[:2]:
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    monkeypatch.setattr(tool, "REPOSITORY", "ada/her_course")
    assert tool.main(["--heads"]) == 0 and capsys.readouterr().out.count(" kB") == 2
    for path in PATHS[:2]:
        text = (tmp_path / path.name).read_text(encoding="utf-8")
        assert "YOUR-ACCOUNT" not in text and text.count("ada/her_course") == 3
        before, after = json.loads(path.read_text(encoding="utf-8"))["cells"], json.loads(text)["cells"]
        assert after[2:] == before[2:] and after[1]["outputs"] == before[1]["outputs"], "nothing else has changed"
