"""``course init`` and ``course update``: a course without git, whose owner never loses any work."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

import course.install.course_files
from course.authoring.check_lab import broken_links
from course.cli import main
from course.install.course_files import course_files
from course.install.init_update import BESIDE, MOVED, lay_down, update
from course.lab.bare_starter import bare_starter, is_bare
from course.lab.lab import MARKER, LabError, discover, find_root
from course.pytest_run.test_run_lab import write_starter

ROOT = Path(__file__).parents[2]
NEW_SIGNATURE = ("def add(a: int, b: int = 1) -> int:", "def add(a: int, b: int = 1, c: int = 0) -> int:")


@pytest.fixture
def package(project, monkeypatch):
    """Return the small project as if it were packed in a wheel."""
    (project / "README.md").write_text("# Sums\n\n## The course\n\n[one](phase-01-sums/labs/lab-01-adder/README.md), "
                                       "[gone](NOWHERE.md)\n\n## Layout\n\nx\n\n## For students\n\ny\n")
    monkeypatch.setattr(course.install.course_files, "PACKED", project)
    return project


@pytest.fixture
def mine(package, tmp_path, capsys):
    folder = tmp_path / "my course"
    lay_down(folder)
    capsys.readouterr()
    return folder


def labs_of(folder):
    return {lab.number: lab for lab in discover(folder)}


def test_init_lays_the_course_down_and_says_how_to_go_on(package, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "sums/mine"]) == 0
    assert "2 labs. Now:\n  cd sums/mine\n  course next" in capsys.readouterr().out
    folder = tmp_path / "sums" / "mine"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".course", "README.md", "conftest.py", "phase-01-sums", "pyproject.toml"]
    assert (folder / "README.md").read_text() == ("# Your mini_vllm\n\nBegin with `course next`.\n\n## The course\n\n"
                                                  "[one](phase-01-sums/labs/lab-01-adder/README.md), gone\n\n"
                                                  "## For students\n\ny\n")
    assert not list(tmp_path.glob("sums/.course-*"))


def test_one_works_where_one_stands(mine, monkeypatch, capsys):
    monkeypatch.chdir(labs_of(mine)["1.2"].folder)
    assert find_root() == mine
    assert main(["test"]) == 1
    assert "Not started" in capsys.readouterr().out
    write_starter(labs_of(mine)["1.2"])
    assert main(["test"]) == 0
    assert "Passed." in capsys.readouterr().out


def test_a_starter_is_laid_down_as_shipped_whatever_the_checkout_holds(package, tmp_path):
    write_starter(labs_of(package)["1.1"])
    lay_down(tmp_path / "fresh")
    assert "NotImplementedError" in labs_of(tmp_path / "fresh")["1.1"].starter.read_text()


def test_init_refuses_a_folder_that_is_not_empty(package, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "work.py").write_text("mine")
    assert main(["init", str(tmp_path / "there")]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["work.py"]
    (tmp_path / "there" / "work.py").unlink()
    assert main(["init", str(tmp_path / "there")]) == 0


def test_update_brings_tests_and_texts_and_keeps_edited_starters(package, mine, capsys):
    write_starter(labs_of(mine)["1.1"])
    work = labs_of(mine)["1.1"].starter.read_text()
    for lab in discover(package):
        lab.tests.write_text(lab.tests.read_text() + "\n# more\n")
        lab.solution.write_text(lab.solution.read_text().replace(*NEW_SIGNATURE))
    assert update(mine) == 0
    said = capsys.readouterr().out
    one, two = labs_of(mine).values()
    assert one.starter.read_text() == work
    assert NEW_SIGNATURE[1] in one.starter.with_name(BESIDE).read_text()
    assert NEW_SIGNATURE[1] in two.starter.read_text() and not two.starter.with_name(BESIDE).exists()
    assert one.tests.read_text().endswith("# more\n") and two.tests.read_text().endswith("# more\n")
    assert "5 files updated" in said and "lab-01-adder/starter.py: your code is unchanged" in said
    assert "    add(a: int, b: int=1) is add(a: int, b: int=1, c: int=0) now\n" in said
    update(mine)
    assert capsys.readouterr().out.startswith("The course is up to date")
    assert one.starter.read_text() == work


def test_update_changes_imports_of_modules_that_have_moved_and_keeps_the_file_as_it_was(mine, capsys):
    lab = labs_of(mine)["1.1"]
    write_starter(lab)
    moved = "".join(f"    from {old} import name\n    import {old} as it\n" for old in MOVED)
    work = lab.starter.read_text() + f"\n\ndef mine():\n{moved}    # from mini_vllm.sampling.rows import x\n"
    lab.starter.write_text(work)
    assert update(mine) == 0
    said, now = capsys.readouterr().out, lab.starter.read_text()
    assert f"so {2 * len(MOVED)} of your imports were changed; your file as it was is in .course/backups" in said
    assert all(f"from {new} import name\n    import {new} as it\n" in now for new in MOVED.values())
    assert not any(f" {old} " in now for old in MOVED) and "mini_vllm.sampling.rows" in now
    (kept,) = (mine / ".course" / "backups").rglob("starter.py")
    assert kept.read_text() == work
    update(mine)
    assert capsys.readouterr().out.startswith("The course is up to date")


def test_a_module_that_has_moved_is_where_it_is_said_to_be():
    for lab in discover(ROOT):
        for name in re.findall(r"^from (mini_vllm[\w.]*) import", lab.starter.read_text(), re.M):
            assert name not in MOVED
    assert all(importlib.util.find_spec(new) for new in MOVED.values())


def test_update_names_what_is_new_and_what_is_gone(package, mine, capsys):
    write_starter(labs_of(mine)["1.1"])
    solution = labs_of(package)["1.1"].solution
    solution.write_text(solution.read_text().replace("def double(a: int)", "def treble(a: int)"))
    update(mine)
    said = capsys.readouterr().out
    assert "    treble(a: int) is new\n" in said and "    double is gone\n" in said


def test_update_keeps_what_else_one_has_changed(package, mine, capsys):
    lab = labs_of(mine)["1.1"]
    lab.tests.write_text("# my own tests\n")
    lab.hints.unlink()
    (lab.folder / "notes.txt").write_text("mine")
    update(mine)
    assert lab.tests.read_text() == labs_of(package)["1.1"].tests.read_text()
    (kept,) = (mine / ".course" / "backups").rglob("test_lab.py")
    assert kept.read_text() == "# my own tests\n" and lab.hints.is_file() and (lab.folder / "notes.txt").is_file()
    assert "You had changed phase-01-sums/labs/lab-01-adder/test_lab.py; your versions are kept in .course/backups" in \
        capsys.readouterr().out


def test_a_bare_starter_stays_bare(package, mine):
    lab = labs_of(mine)["1.1"]
    lab.starter.write_text(bare_starter(lab))
    solution = labs_of(package)["1.1"].solution
    solution.write_text(solution.read_text().replace(*NEW_SIGNATURE))
    update(mine)
    assert NEW_SIGNATURE[1] in lab.starter.read_text() and is_bare(lab) and not lab.starter.with_name(BESIDE).exists()


def test_update_mends_a_damaged_solution_and_leaves_the_starter(package, mine):
    lab = labs_of(mine)["1.1"]
    write_starter(lab)
    work = lab.starter.read_text()
    lab.solution.write_text(lab.solution.read_text().replace("# END TASK", "", 1))
    assert update(mine) == 0
    assert lab.starter.read_text() == work and lab.solution.read_text() == labs_of(package)["1.1"].solution.read_text()


def test_update_leaves_results_and_backups_alone(package, mine):
    (mine / ".course" / "results.json").write_text("{}")
    update(mine)
    assert (mine / ".course" / "results.json").read_text() == "{}"
    assert json.loads((mine / MARKER).read_text())["version"]


@pytest.mark.parametrize("marker", ["{", "[]", '{"version": "0.1"}', '{"version": "0.1", "files": []}'])
def test_a_damaged_note_of_what_was_laid_down_is_named(mine, marker):
    (mine / MARKER).write_text(marker)
    with pytest.raises(LabError, match="course.json is damaged: .*`course init` creates a new course"):
        update(mine)


@pytest.mark.parametrize("has_it", [True, False])
def test_init_says_that_tests_need_pytest(package, tmp_path, monkeypatch, capsys, has_it):
    if not has_it:
        monkeypatch.setitem(sys.modules, "pytest", None)
    lay_down(tmp_path / "new")
    assert ("  pip install pytest" in capsys.readouterr().out) == (not has_it)


def test_a_clone_is_updated_by_git(project):
    with pytest.raises(LabError, match="is a clone of the repository: `git pull`"):
        update(project)


def test_of_the_real_course_every_link_leads_somewhere(tmp_path):
    lay_down(tmp_path / "mine")
    pages = sorted((tmp_path / "mine").rglob("*.md"))
    assert len(pages) > 20
    assert [problem for page in pages for problem in broken_links(page, tmp_path / "mine")] == []
    names = course_files().keys()
    assert {"pyproject.toml", "conftest.py", "README.md", "docs/engine.md", "notebooks/00-tour.ipynb"} <= names
    assert not {name for name in names if name.endswith((".cfg", "/conftest.py"))}, "what only tests need stays here"
    assert not [name for name in names if "__pycache__" in name or name.startswith(("mini_vllm/", "course/"))]
