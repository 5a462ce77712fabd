"""Right and wrong answers, put into the cells of the notebooks as a reader would."""

import contextlib
import io
import json
import re

import pytest

from course.exercises import Exercise, check, exercises_of, is_same, verdict
from course.lab.lab import PROJECT_ROOT

NOTEBOOKS = sorted((PROJECT_ROOT / "notebooks").glob("[0-9]*.ipynb"))
NUMBERS = [path.name[:2] for path in NOTEBOOKS]
#: The last notebook has three parts: two with three exercises each, and one with two.
COUNTS = {number: 8 if number == "06" else 3 for number in NUMBERS}
ALL = [(notebook, number) for notebook in NUMBERS for number in range(1, COUNTS[notebook] + 1)]


def cell(notebook, number):
    """Return the source of the cell that checks one exercise, and its committed output."""
    (path,) = (path for path in NOTEBOOKS if path.name.startswith(notebook))
    cells = [each for each in json.loads(path.read_text(encoding="utf-8"))["cells"]
             if each["cell_type"] == "code" and f'check("{notebook}", {number},' in "".join(each["source"])]
    assert len(cells) == 1, f"{path.name} must contain one cell with check(\"{notebook}\", {number}, …)"
    return "".join(cells[0]["source"]), "".join("".join(each.get("text", "")) for each in cells[0]["outputs"])


def run(source, answer):
    """Run the cell alone, with this answer, and return the printed text."""
    source, times = re.subn(r"^answer = None\b", f"answer = {answer!r}", source, flags=re.M)
    assert times == 1, f"the cell must contain one line `answer = None`:\n{source}"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(source, {})
    return printed.getvalue()


def test_every_notebook_has_its_number_of_exercises():
    assert NUMBERS == ["00", "01", "02", "03", "04", "05", "06"]
    assert {notebook: len(exercises_of(notebook)) for notebook in NUMBERS} == COUNTS


@pytest.mark.parametrize("notebook, number", ALL)
def test_as_committed_it_is_not_answered(notebook, number):
    source, printed = cell(notebook, number)
    assert printed == f"Exercise {number}: not answered yet.\n"
    assert run(source, None) == printed


@pytest.mark.parametrize("notebook, number", ALL)
def test_right_and_wrong_answers_are_told_apart(notebook, number):
    source, _ = cell(notebook, number)
    exercise = exercises_of(notebook)[number - 1]
    assert run(source, exercise.answer) == f"Exercise {number}: right. {exercise.why}\n"
    assert len(exercise.slips) >= 2, "an exercise needs at least two common wrong answers"
    for wrong, told in exercise.slips.items():
        assert run(source, wrong) == f"Exercise {number}: not yet. {told}\n"
    assert run(source, "no idea") == f"Exercise {number}: not yet. {exercise.hint}\n"


@pytest.mark.parametrize("notebook, number", ALL)
def test_the_engine_itself_gives_the_answer(notebook, number):
    exercise = exercises_of(notebook)[number - 1]
    assert is_same(exercise.proof(), exercise.answer)


EXERCISE = Exercise(12, lambda: 12, "Because.", "Count again.", {11: "One more."})


@pytest.mark.parametrize("answer, told", [
    (None, "not answered yet."), (..., "not answered yet."), (12, "right. Because."), (12.05, "right. Because."),
    (11, "not yet. One more."), (13, "not yet. Count again."), ("12", "not yet. Count again."),
    (True, "not yet. Count again."), ([12], "not yet. Count again.")])
def test_an_answer_is_judged(answer, told):
    assert verdict(EXERCISE, answer) == told


@pytest.mark.parametrize("given, right, same", [
    ([1, 2], (1, 2), True), ((1, 3), [1, 2], False), ([1], [1, 2], False), ({2, 1}, {1, 2}, True),
    ([2, 1], {1, 2}, True), (" Yes", "yes", True), (1, "1", False), (True, True, True), (1, True, False),
    (0, False, False), (None, "x", False)])
def test_answers_are_compared_as_people_mean_them(given, right, same):
    assert is_same(given, right) is same


def test_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no notebook '77'"):
        check("77", 1, None)
    with pytest.raises(ValueError, match="exercises 1 to 3, not 4"):
        check("02", 4, None)
