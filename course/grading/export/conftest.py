"""A made-up class: a perfect student, one who is half right, and everything that can go wrong with the others."""

from dataclasses import replace

import pytest

from course.core.result import LabResult, Outcome, Override, Provenance, StudentResult, TestResult

SECRET = "SECRET-of-the-hidden-test"


def a_test(name, points=2, passed=True, task=1, **more):
    return TestResult(passed, name=name, points=points, task=task, **more)


def a_lab(number="2.1", half=False, message="remove(2) left [1, 2], expected [1]", printed="", **more):
    error = "AssertionError" if half else None
    return LabResult(number, Outcome.GRADED, (
        a_test("test_task_1_append_links_both_ways", 4, cpu_s=0.25),
        a_test("test_task_2_remove_keeps_order", 3, not half, 2, error=error, message=message if half else "",
               printed=printed if half else ""),
        a_test("test_task_3_popleft_takes_the_oldest", 3, not half, 3, error="NotImplementedError" if half else None,
               message="Task 3: popleft" if half else ""),
        a_test("test_stress_under_load", 5, not half, None, error=error, message=SECRET, printed=SECRET,
               is_hidden=True, cpu_s=0.125 if half else 0.5),
    ), **{"wall_s": 1.5, "cpu_s": 1.0, "sandbox": "landlock", "has_network": False, **more})


def without_score(lab, outcome, reason=""):
    tests = tuple(replace(test, passed=False, error=None, message="", printed="") for test in lab.tests)
    return replace(lab, outcome=outcome, tests=tests, reason=reason, wall_s=0.0)


def a_student(name, *labs, **more):
    return StudentResult(name, f"{name.title()} Example", {lab.lab: lab for lab in labs}, **more)


@pytest.fixture(scope="module")
def provenance():
    return Provenance("abc1234", {"2.1": "ab" * 32, "2.2": "cd" * 32}, "3.12.1", "Linux x86_64", {"cpu_s": 10.0},
                      "landlock", False, ("A file may burn all of its CPU time.",))


@pytest.fixture(scope="module")
def students():
    full, half = a_lab(), a_lab(half=True)
    second = a_lab("2.2")
    return [
        a_student("anna", full, second),
        a_student("ben", half, a_lab("2.2", half=True), notes=("conftest.py was left out",)),
        a_student("cora", without_score(full, Outcome.UNREADABLE, "starter.py is a Jupyter notebook"), second),
        a_student("dan", without_score(full, Outcome.GRADE_AGAIN, "the machine was too busy"), second),
        a_student("eve", without_score(full, Outcome.MISSING), without_score(second, Outcome.MISSING),
                  is_submitted=False),
        a_student("finn", half, replace(second, flags=("a canary passed",)),
                  overrides={"2.1": Override(12.5, "shown in the oral exam")}),
    ]
