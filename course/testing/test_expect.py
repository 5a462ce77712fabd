"""The helpers of ``expect``: a failure is a sentence, and an unwritten body reports itself."""

import pytest

from course.lab.lab import find_root
from course.testing.expect import must_answer, must_raise
from course.testing.measure import num_lines


def refuse(error):
    raise error


def test_a_refusal_is_handed_out():
    with must_raise(ValueError, "f(1)") as caught:
        refuse(ValueError("1 is too small"))
    assert str(caught.error) == "1 is too small"


@pytest.mark.parametrize("what, sentence", [
    (None, "f(1) was accepted, expected a RuntimeError: 1 is free"),
    (ValueError("no"), "f(1) raised ValueError('no'), expected a RuntimeError: 1 is free"),
])
def test_no_refusal_and_another_one_are_told(what, sentence):
    with pytest.raises(pytest.fail.Exception) as failed, must_raise(RuntimeError, "f(1)", "1 is free"):
        if what is not None:
            refuse(what)
    assert str(failed.value) == sentence


def test_an_unwritten_body_is_no_refusal_and_no_answer():
    with pytest.raises(NotImplementedError, match="Task 1"), must_raise(RuntimeError, "f(1)"):
        refuse(NotImplementedError("Task 1: f"))
    with pytest.raises(NotImplementedError, match="Task 1"):
        must_answer("f(1)", refuse, NotImplementedError("Task 1: f"), rule="it must")


def test_an_answer_is_handed_on_and_an_error_told():
    assert must_answer("max(1, 2)", max, 1, 2, rule="it must") == 2
    with pytest.raises(AssertionError, match=r"f\(1\) raised KeyError\('x'\), expected no error: it must"):
        must_answer("f(1)", refuse, KeyError("x"), rule="it must")


def test_lines_are_counted_outside_of_the_tests_file():
    def of_the_test():
        return sum(number for number in range(100))

    assert num_lines(of_the_test) == 0
    assert num_lines(find_root) > 5
