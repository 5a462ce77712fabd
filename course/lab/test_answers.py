"""``course answer``: the questions of a lab's page, and their hidden answers."""


import pytest

from course.authoring.check_lab import check_lab, read_lab
from course.lab.answers import Question, parse_answers, questions_of
from course.lab.lab import LabError

pytestmark = pytest.mark.usefixtures("forked")

PAGE = """
## Stretch

- Add three
  numbers.
- And four.

Answers: `course answer 1.1`.

## The interview question

> Why is a sum
> a sum?

Answer: `course answer 1.1`.
"""
ANSWERS = "# Answers\n\n## Stretch 1\n\nTwice.\n\n## Stretch 2\n\nThrice, `add(1, 2)`.\n\n## Interview\n\nIt adds up.\n"


@pytest.fixture
def asked(lab1):
    lab1.readme.write_text(lab1.readme.read_text() + PAGE)
    lab1.answers.write_text(ANSWERS)
    return lab1


def test_questions_and_answers_are_found_by_their_headings():
    assert questions_of(PAGE) == [Question("1", "Add three numbers."), Question("2", "And four."),
                                  Question("interview", "Why is a sum a sum?")]
    assert parse_answers(ANSWERS) == {"1": "Twice.", "2": "Thrice, `add(1, 2)`.", "interview": "It adds up."}


def test_without_a_question_the_questions_are_listed_and_no_answer(asked, course, terminal):
    assert course.answer("1.1", None) == 0
    text = terminal.getvalue()
    assert "Add three numbers." in text and "course answer 1.1 interview" in text
    assert "Twice" not in text and "adds up" not in text


@pytest.mark.parametrize("name, question, answer", [
    ("1.1", "1", "Twice."), ("1.1", "interview", "It adds up."), ("2", None, "Thrice, `add(1, 2)`."),
    ("interview", None, "adds up")])
def test_an_answer_comes_with_its_question(asked, course, terminal, name, question, answer):
    assert course.answer(name, question) == 0
    assert answer in terminal.getvalue() and ("Add" in terminal.getvalue()) == (answer == "Twice.")


def test_what_is_not_asked_has_no_answer(asked, course):
    with pytest.raises(LabError, match="has no question '7'; its questions are 1, 2, interview"):
        course.answer("1.1", "7")
    with pytest.raises(LabError, match=r"Lab 1\.2 again has no questions with answers"):
        course.answer("1.2", None)


def test_course_check_wants_an_answer_for_every_question(asked):
    assert check_lab(asked)[0] == []
    asked.answers.write_text(ANSWERS.replace("## Stretch 2", "## Stretch 3"))
    _, problems = read_lab(asked)
    assert problems == ["phase-01-sums/labs/lab-01-adder/answers.md: question 2 of README.md has no answer",
                        "phase-01-sums/labs/lab-01-adder/answers.md: README.md has no question 3"]
    asked.answers.unlink()
    assert len(read_lab(asked)[1]) == 3
