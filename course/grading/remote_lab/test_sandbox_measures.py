"""Measurements of a file in a sandbox, tested without a sandbox."""

import pytest

from course.grading.remote_lab.sandbox_measures import SandboxMeasures
from course.testing import measure


class Asking:
    """A file that asks questions about objects that were handed in."""

    num_asked = 0

    def num_questions(self):
        return self.num_asked

    def ask(self, num_times):
        self.num_asked += num_times

    def measure(self, name, *args):
        return [name, *args]


@pytest.fixture
def asking(monkeypatch):
    lab = Asking()
    monkeypatch.setattr(measure, "where", SandboxMeasures(lab))
    return lab


def test_a_question_counts_for_five_lines(asking):
    assert measure.num_lines(lambda: asking.ask(3)) == 15, "the lines of the test's own file do not count"
    assert measure.lines_of_questions(2) == 10


def test_here_nobody_has_to_ask():
    lab = Asking()
    assert measure.num_lines(lambda: lab.ask(3)) == 0 and measure.lines_of_questions(2) == 0


def test_the_sandbox_is_asked_for_what_only_it_can_see(asking):
    assert measure.listed((1, 2)) == ["listed", (1, 2)]
    assert measure.extendable(Asking, object) is object, "a class of the sandbox cannot be derived from here"
