"""``course test`` for a lab that extends an earlier one: the student's own pieces are combined, without points."""

import io

import pytest
from rich.console import Console

from course.commands import Course
from course.lab.lab import discover
from course.lab.starters import shipped_starter
from course.plugin import bases_given

LATER = '''"""Sums, on the sums of lab 1.1."""

from course.base import lab_1_1 as base


def add(a: int, b: int = 1) -> int:
    """The sum of ``a`` and ``b``."""
    # TASK 1: add
    return base.add(a, b)
    # END TASK


def double(a: int) -> int:
    """Twice ``a``. After: it is even; ``a`` is what it was."""
    # TASK 2: double
    return base.add(a, a)
    # END TASK
'''
#: Passes the tests of lab 1.1, which never add a number to itself.
SUBTLY_WRONG = "def add(a, b=1):\n    return a + b if a != b else a\n\n\ndef double(a):\n    return 2 * a\n"


@pytest.fixture
def labs(project):
    earlier, later = discover(project)
    (later.folder / "lab.json").write_text('{"title": "Again", "engine": null, "base": "1.1"}')
    later.solution.write_text(LATER)
    later.starter.write_text(shipped_starter(later))
    return discover(project)


def course_test(labs, number):
    console = Console(file=io.StringIO(), width=200, highlight=False)
    status = Course(labs[0].root, console).test([number])
    return status, console.file.getvalue()


def test_a_later_lab_is_tested_on_the_reference_while_the_earlier_one_does_not_pass(labs):
    labs[1].starter.write_text(LATER)
    status, told = course_test(labs, "1.2")
    assert status == 0 and "With your own" not in told


def test_where_both_pass_they_meet(labs):
    labs[0].starter.write_text(labs[0].solution.read_text())
    labs[1].starter.write_text(LATER)
    status, told = course_test(labs, "1.2")
    assert status == 0 and "  With your own lab 1.1 instead of the reference's, all 3 tests pass." in told


def test_what_fails_only_where_they_meet_is_told_and_costs_nothing(labs):
    labs[0].starter.write_text(SUBTLY_WRONG)
    labs[1].starter.write_text(LATER)
    status, told = course_test(labs, "1.2")
    assert status == 0 and "6 of 6 points" in told
    assert "With your own lab 1.1 instead of the reference's, 1 of 3 tests fail. This costs no points" in told
    assert "test_double_doubles: double(4) gave 4, expected 8" in told


def test_a_lab_that_fails_is_not_tried_on_others(labs):
    labs[0].starter.write_text(labs[0].solution.read_text())
    labs[1].starter.write_text(LATER.replace("base.add(a, a)", "base.add(a, 0)"))
    status, told = course_test(labs, "1.2")
    assert status == 1 and "With your own" not in told


@pytest.mark.parametrize("option, complaint", [
    ("1.1", "must be LAB=FILE"), ("1.1=nowhere.py", "there is no file 'nowhere.py'"),
    ("9.9=conftest.py", "There is no lab '9.9'")])
def test_a_base_that_makes_no_sense_is_refused(labs, option, complaint):
    with pytest.raises(pytest.UsageError, match=complaint):
        bases_given([option], labs, labs[0].root)
