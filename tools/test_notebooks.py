"""The head of each notebook: badges and a cell that installs, both made from one repository variable."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import nbformat
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
    title, first, *others = sources(path)
    assert title.splitlines()[2] == tool.badges(path.name), "`python tools/notebooks.py --heads` writes them"
    assert first == tool.first_cell(path.name)
    named = set(re.findall(r"(?:/gh/|/github/|github\.com/)([\w.-]+/mini_vllm)", title + first))
    assert named == {tool.REPOSITORY}
    assert path.name in title and "untested" in title
    assert not [source for source in others if "pip install" in source], "it is installed in one place"


def test_the_readme_names_the_same_repository(tool):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"git clone https://github.com/{tool.REPOSITORY}.git" in readme


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


def test_where_the_course_is_installed_the_first_cell_only_draws(tool):
    """Remove ``%pip``, which only a kernel can read: the rest of the cell must do without it."""
    source = re.sub(r"^ *%pip .*\n", "", tool.first_cell("02-x.ipynb"), flags=re.M)
    names = {}
    exec(source, names)
    assert "site" not in names and "source" not in names


def test_a_notebook_without_a_place_for_its_head_is_refused(tool):
    cells = [nbformat.v4.new_markdown_cell("# Title"), nbformat.v4.new_code_cell("1")]
    with pytest.raises(ValueError, match=r"x\.ipynb: cell 1 must contain one line"):
        tool.write_head(nbformat.v4.new_notebook(cells=cells), "x.ipynb")
