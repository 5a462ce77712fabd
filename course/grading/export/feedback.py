"""The feedback for a student: the points earned, what to fix first, and why each test failed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from course.core.result import Exact, Outcome, Points, Provenance, StudentResult
from course.grading.export import html, markdown, output_files
from course.grading.export.escape import number
from course.grading.export.page import (
    Block,
    Heading,
    Items,
    Line,
    Page,
    Paragraph,
    Table,
    Verbatim,
    bad,
    code,
    good,
    strong,
)
from course.grading.export.provenance import small_print
from course.grading.export.student_view import HIDDEN, NOT_YET, SeenLab, SeenStudent, SeenTest, seen_by
from course.grading.export.titles import Titles, course_titles


class Feedback:
    """``feedback.md`` and ``feedback.html`` in each student's folder."""

    name = "feedback"

    def write(self, out: Path, students: Sequence[StudentResult], provenance: Provenance) -> None:
        titles = course_titles()
        for student in students:
            page = feedback_page(seen_by(student), provenance, titles)
            folder = output_files.student_folder(out, student.student)
            output_files.write(folder / "feedback.md", markdown.render(page))
            output_files.write(folder / "feedback.html", html.render(page))


def feedback_page(student: SeenStudent, provenance: Provenance, titles: Titles) -> Page:
    page = Page(f"Feedback for {student.name or student.student}")
    page.add(*_overview(student, titles))
    for lab in student.labs:
        if lab.outcome is not Outcome.MISSING or lab.has_override or lab.comment or lab.steps:
            page.add(*_lab(lab, titles))
    page.add(small_print(provenance, tuple(lab.number for lab in student.labs)))
    return page


def _overview(student: SeenStudent, titles: Titles) -> list[Block]:
    blocks: list[Block] = []
    if not student.is_submitted:
        blocks.append(Paragraph(("Nothing was handed in.",), "note"))
    if student.points is None:
        blocks.append(Paragraph((NOT_YET,), "note"))
    elif student.max_points:
        percent = float(100 * student.points / student.max_points)
        blocks.append(Paragraph((strong(_of(student.points, student.max_points)), f", {percent:.0f} %.")))
    blocks += [Paragraph((note,), "note") for note in student.notes]
    blocks += _comment(student.comment)
    if len(student.labs) > 1:
        rows = tuple(((titles.lab(lab.number),), (_number(None if lab.is_excused else lab.points),),
                      (number(lab.max_points),), _in_short(lab))
                     for lab in student.labs)
        blocks.append(Table(("lab", "points", "of", "next"), rows, frozenset({1, 2})))
    return blocks


def _in_short(lab: SeenLab) -> Line:
    if lab.is_excused:
        return ("excused",)
    if lab.outcome is Outcome.GRADED:
        if lab.broken:
            return (bad("the file cannot be loaded"),)
        if lab.first_task is not None:
            return (f"fix task {lab.first_task} first",)
        return (good("every test that you can see passes" if lab.hidden else "every test passes"),) if not lab.failed \
            else ("see below",)
    return ({Outcome.MISSING: "not handed in", Outcome.UNREADABLE: "could not be read",
             Outcome.GRADE_AGAIN: "will be graded again"}[lab.outcome],)


def _lab(lab: SeenLab, titles: Titles) -> list[Block]:
    points = _of(lab.points, lab.max_points) if lab.points is not None else "no score yet"
    points = "excused" if lab.is_excused else points
    blocks: list[Block] = [Heading(2, (f"{titles.lab(lab.number)} ({points})",))]
    if lab.has_override:
        blocks.append(Paragraph((f"Your instructor set {number(lab.points or 0)} points instead of the "
                                 f"{number(lab.computed_points)} from the tests: {lab.override_reason}",), "note"))
    if lab.steps:
        blocks.append(Items(tuple((f"{step[:1].upper()}{step[1:]}.",) for step in lab.steps)))
    if lab.outcome is Outcome.GRADE_AGAIN and not lab.has_override:
        blocks.append(Paragraph((NOT_YET,), "note"))
    if lab.reason and lab.outcome is not Outcome.GRADE_AGAIN:
        blocks.append(Paragraph((lab.reason,), "note"))
    blocks += _comment(lab.comment)
    blocks += _score(lab, titles)
    if lab.outcome is Outcome.GRADED:
        blocks += _tests(lab, titles)
    return blocks


def _score(lab: SeenLab, titles: Titles) -> list[Block]:
    """Show the score of an open lab, and how to find it on the class's board."""
    settings = titles.scores.get(lab.number)
    if settings is None or lab.score is None:
        return []
    line: Line = ("Your score: ", strong(settings.text(lab.score)), f" ({settings.meaning}). ")
    if not lab.score_counts:
        return [Paragraph((*line, "It counts, on the class's board too, once all tests pass that are not "
                                   "steps of the score."))]
    return [Paragraph((*line, "On a class's board without names, your row is ", code(lab.alias), "."))]


def _comment(text: str) -> list[Block]:
    """Show an instructor's comment, a paragraph per line."""
    lines = [line for line in text.split("\n") if line.strip()]
    return [Paragraph((strong("Your instructor's comment:"),), "note"),
            *(Paragraph((line,), "note") for line in lines)] if lines else []


def _tests(lab: SeenLab, titles: Titles) -> list[Block]:
    """Show what to do first, then the failed tests in the order of the tasks, then the hidden ones."""
    if lab.broken:
        return [Paragraph(("No test could run. Fix this first:",)), Verbatim(lab.broken), *_hidden(lab)]
    shown = [test for test in lab.tests if not test.is_hidden]
    blocks: list[Block] = []
    if lab.first_task is not None:
        of_first = [test for test in lab.failed if test.task == lab.first_task]
        verb = "Write" if all(test.is_to_do for test in of_first) else "Fix"
        blocks += [Paragraph((strong(f"{verb} task {lab.first_task} first"), ": a later task often fails because of "
                              "an earlier one.")),
                   Paragraph((code(f"course test {lab.number} --task {lab.first_task}"), " runs its tests, ",
                              code(f"course hint {lab.number} --task {lab.first_task}"), " gives a nudge."))]
    elif shown and not lab.failed:
        blocks.append(Paragraph((good("Every test that you can see passes." if lab.hidden else "Every test passes."),)))
    for task, of_task in groupby(shown, key=lambda test: test.task):
        blocks += _task(titles.task(lab.number, task), list(of_task), task == lab.first_task)
    return blocks + _hidden(lab)


def _task(title: str, tests: list[SeenTest], is_first: bool) -> list[Block]:
    """Show the tests of a task. Output is shown only for the task to fix first: later output says little until then."""
    failed = [test for test in tests if not test.passed]
    earned = sum(test.points or 0 for test in tests if test.passed)
    worth = sum(test.points or 0 for test in tests)
    if not failed:
        return [Paragraph((good("✓ "), f"{title}: all {_count(len(tests), 'test')}, {_count(worth, 'point')}."))]
    blocks: list[Block] = [Heading(3, (f"{title}: {number(earned)} of {_count(worth, 'point')}",))]
    for message, same in _by_message(failed):
        blocks += _told(message, same)
        blocks += _printed(same) if is_first else []
    return blocks


def _by_message(failed: list[SeenTest]) -> list[tuple[str, list[SeenTest]]]:
    """Group tests that failed for the same reason. Each group takes the place of its first test."""
    groups: dict[str, list[SeenTest]] = {}
    for test in failed:
        groups.setdefault(test.message, []).append(test)
    return list(groups.items())


def _told(message: str, tests: list[SeenTest]) -> list[Block]:
    blocks: list[Block] = [Items(tuple((bad("✗ "), test.sentence, f" ({_count(test.points or 0, 'point')})")
                                       for test in tests))]
    if message:
        is_to_do = all(test.is_to_do for test in tests)
        blocks.append(Verbatim(f"still to do: {message}" if is_to_do else message))
    return blocks


def _printed(tests: list[SeenTest]) -> list[Block]:
    """Return the output of the first of these tests that printed something."""
    title = "Output of this test:" if len(tests) == 1 else "Output of one of these tests:"
    told: list[Block] = [Verbatim(test.printed, title) for test in tests if test.printed.strip() and not test.is_to_do]
    return told[:1]


def _hidden(lab: SeenLab) -> list[Block]:
    if not lab.hidden:
        return []
    return [Heading(3, ("Hidden tests",)), Items(tuple((f"{test.sentence}. {HIDDEN}",) for test in lab.hidden))]


def _count(count: Exact, noun: str) -> str:
    return f"{number(count)} {noun}" + ("" if count == 1 else "s")


def _of(points: Points, max_points: Exact) -> str:
    return f"{number(points)} of {_count(max_points, 'point')}"


def _number(points: Points | None) -> str:
    return "–" if points is None else number(points)
