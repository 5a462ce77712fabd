"""The examples in a lab's contracts agree with its solution."""

import doctest

import pytest

from course.lab.lab import discover
from course.lab.load_module import load_file


@pytest.mark.parametrize("lab", discover(), ids=str)
def test_the_examples_of_a_lab_are_true(lab):
    module = load_file(lab.solution)
    told: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    for examples in doctest.DocTestFinder().find(module, lab.number, module):
        runner.run(examples, out=told.append)
    assert not told, "\n".join(told)
