"""A small project with two labs, for the tests of the classroom itself."""

import io
import textwrap
from multiprocessing import forkserver
from pathlib import Path

import pytest
from hypothesis import settings
from rich.console import Console

from course.commands import Course
from course.lab.lab import MARKER, discover
from course.lab.starters import shipped_starter

settings.register_profile("repeatable", deadline=None, derandomize=True)  # a busy machine must not fail a test
settings.load_profile("repeatable")

SOLUTION = '''
    """Sums."""


    def add(a: int, b: int = 1) -> int:
        """The sum of ``a`` and ``b``."""
        # TASK 1: add
        return a + b
        # END TASK


    def double(a: int) -> int:
        """Twice ``a``. After: it is even; ``a`` is what it was."""
        # TASK 2: double
        return add(a, a)
        # END TASK
'''

TESTS = '''
    import pytest


    @pytest.mark.points(2)
    @pytest.mark.parametrize("b", [0, 2])
    def test_task_1_add_adds(lab, b):
        got = lab.add(3, b)
        assert got == 3 + b, f"add(3, {b}) gave {got}, expected {3 + b}: it must add"


    @pytest.mark.points(1)
    def test_task_1_add_counts_by_default(lab):
        assert lab.add(3) == 4, "add(3) must be 4"


    @pytest.mark.points(3)
    @pytest.mark.task(2)
    def test_double_doubles(lab):
        got = lab.double(4)
        assert got == 8, f"double(4) gave {got}, expected 8"
'''

MUTANTS = '''
    from course.lab.mutants import Mutant

    MUTANTS = [
        Mutant("subtracts", "Takes away.", "return a + b", "return a - b", "test_task_1_add_adds", "add: The sum"),
        Mutant("ignores-b", "Forgets the second.", "return a + b", "return a", "test_task_1_add_adds",
               ("add: ``a`` and ``b``", "invariant 1: Nothing is lost")),
        Mutant("multiplies", "Two and two are four.", "return a + b", "return a * b", "test_task_1_add_adds",
               "README: Edit the"),
        Mutant("halves", "Adds nothing.", "return add(a, a)", "return add(a, 0)", "test_double_doubles",
               "double: After: it is even"),
    ]
    UNOBSERVABLE = {"double: ``a`` is what it was": "a number cannot change"}
'''

README = """# A lab

Edit the [starter](starter.py), a second time after `course reset {number} --bare`.

## The invariants

1. **Nothing** is lost.

## Done when
"""

HINTS = "# Hints\n" + "".join(
    f"\n## Task {task}: {name}\n" + "".join(f"\n### Hint {level}\nHint {level} for {name}.\n" for level in (1, 2, 3))
    for task, name in ((1, "sums"), (2, "doubles")))


def pytest_unconfigure() -> None:
    """Wait for the fork server of ``test_forked.py``, so that measurements of this process include its CPU time."""
    forkserver._forkserver._stop()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "a course"  # a path with a space
    for number, name in ((1, "adder"), (2, "again")):
        folder = root / "phase-01-sums" / "labs" / f"lab-0{number}-{name}"
        folder.mkdir(parents=True)
        (folder / "lab.json").write_text(f'{{"title": "The {name}", "engine": null, "bare": ["double: it is even"]}}')
        (folder / "solution.py").write_text(textwrap.dedent(SOLUTION).lstrip())
        (folder / "test_lab.py").write_text(textwrap.dedent(TESTS).lstrip())
        (folder / "mutants.py").write_text(textwrap.dedent(MUTANTS).lstrip())
        (folder / "hints.md").write_text(HINTS)
        (folder / "README.md").write_text(README.format(number=f"1.{number}"))
    (root / "conftest.py").write_text('pytest_plugins = ["course.plugin"]\n')
    (root / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "-p course.plugin --import-mode=importlib --strict-markers"\n')
    for lab in discover(root):
        lab.starter.write_text(shipped_starter(lab))
    return root


@pytest.fixture
def lab1(project):
    return discover(project)[0]


@pytest.fixture
def lab2(project):
    return discover(project)[1]


@pytest.fixture
def terminal():
    """Collect the output of the ``course`` commands."""
    return io.StringIO()


@pytest.fixture
def course(project, terminal, monkeypatch):
    monkeypatch.chdir(project)
    return Course(project, Console(file=terminal, width=120, highlight=False, soft_wrap=True))


@pytest.fixture
def elsewhere(project):
    """Create the course as ``course init`` does, in its own folder, so that the command finds it."""
    (project / MARKER).parent.mkdir()
    (project / MARKER).write_text("{}")
    return project


@pytest.fixture
def forked(monkeypatch):
    """Run the labs' tests and engines in processes that start with the imports done, which is most of the work."""
    from course.test_forked import STAND_IN
    monkeypatch.setattr("course.core.child_process.subprocess", STAND_IN)
