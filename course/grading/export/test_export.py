"""The files for gradebooks and for students: they exist, validate, and reveal nothing that they must not."""

import csv
import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.core.failure_messages import BROKEN_FILE
from course.core.result import LabResult, Mark, Outcome, Override, StudentResult
from course.grading import export
from course.grading.export import output_files, tables
from course.grading.export.class_report import ClassReport
from course.grading.export.conftest import SECRET, a_lab, a_student, a_test, without_score
from course.grading.export.student_view import alias_of
from course.grading.export.test_text import NASTY, Tags
from course.grading.intake.platforms import Unclear

FORMATS = Path(__file__).parents[3] / "docs/grading-formats.md"
FOR_STUDENTS = ("results.json", "junit.xml", "feedback.md", "feedback.html")
FOR_INSTRUCTORS = ("grades.csv", "nbgrader.csv", "canvas.csv", "report.md", "report.html", "unclear.json")


@pytest.fixture(scope="module")
def out(tmp_path_factory, students, provenance):
    out = tmp_path_factory.mktemp("out")
    assert export.write_all(out, students, provenance) == []
    return out


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def of_student(out, student, name):
    return (out / "students" / student / name).read_text(encoding="utf-8")


def test_everything_is_written_and_nothing_else(out, students):
    expected = {*FOR_INSTRUCTORS, *(f"students/{s.student}/{name}" for s in students for name in FOR_STUDENTS)}
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == expected


def test_grades_has_a_row_for_each_student_and_says_why(out):
    rows = {row["student"]: row for row in rows_of(out / "grades.csv")}
    assert list(rows) == ["anna", "ben", "cora", "dan", "eve", "finn"]
    assert (rows["anna"]["total"], rows["anna"]["percent"]) == ("30", "100")
    ben = rows["ben"]
    assert (ben["2.1 points"], ben["2.1 max"], ben["notes"]) == ("4", "15", "conftest.py was left out")
    assert (rows["cora"]["2.1 points"], rows["cora"]["2.1 outcome"]) == ("0", "unreadable")
    assert rows["eve"]["submitted"] == "no" and rows["eve"]["2.1 outcome"] == "missing"
    finn = rows["finn"]
    assert (finn["2.1 points"], finn["2.1 computed"], finn["2.1 override"]) == ("12.5", "4", "12.5")
    assert finn["2.1 override_reason"] == "shown in the oral exam"
    assert finn["2.2 flags"] == "a canary passed" and finn["total"] == "27.5"
    assert {row["commit"] for row in rows.values()} == {"abc1234"} and finn["sandbox"] == "landlock"


def test_what_must_be_graded_again_has_no_number_anywhere(out):
    (row,) = [row for row in rows_of(out / "grades.csv") if row["student"] == "dan"]
    assert (row["2.1 points"], row["total"], row["percent"], row["2.1 outcome"]) == ("", "", "", "grade again")
    scores = {(row["assignment"], row["student_id"]): row["score"] for row in rows_of(out / "nbgrader.csv")}
    assert scores["lab-2.1", "dan"] == "" and scores["lab-2.1", "eve"] == "0" and scores["lab-2.2", "dan"] == "15"
    (dan,) = [row for row in rows_of(out / "canvas.csv") if row["SIS Login ID"] == "dan"]
    assert [dan[name] for name in dan if "2.1" in name] == [""]
    assert "no score yet" in of_student(out, "dan", "feedback.md")
    results = json.loads(of_student(out, "dan", "results.json"))
    again = [test for test in results["tests"] if test["visibility"] == "hidden"]
    assert again == [{"name": "Grade again: lab 2.1", "status": "failed", "visibility": "hidden",
                      "output": "the machine was too busy"}]
    assert "does not mean zero" in results["output"] and "busy" not in results["output"]


def test_an_override_counts_even_where_it_must_be_graded_again(tmp_path, students, provenance):
    dan = replace(students[3], overrides=students[5].overrides)
    assert export.write_all(tmp_path, [dan], provenance) == []
    assert rows_of(tmp_path / "grades.csv")[0]["total"] == "27.5"
    assert json.loads(of_student(tmp_path, "dan", "results.json"))["score"] == 27.5


def test_canvas_has_the_row_of_points_and_only_columns_it_knows(out):
    rows = rows_of(out / "canvas.csv")
    assert rows[0]["Student"] == "Points Possible"
    assert {value for name, value in rows[0].items() if name.startswith("Lab")} == {"15"}
    assert list(rows[0])[:5] == list(tables.CANVAS) and all(row["ID"] == "" for row in rows)


# ---- open labs


def an_open_lab(passes=True, score=64.938, **more):
    tests = (a_test("test_task_3_every_answer_is_legal", score=score), a_test("test_task_3_half", passed=passes))
    return LabResult("3.5", Outcome.GRADED, tests, file_sha256="ab" * 32, sandbox="landlock", **more)


def test_a_score_counts_without_its_steps(tmp_path, provenance):
    lab = an_open_lab(passes=False)
    steps = replace(lab, tests=(lab.tests[0], replace(lab.tests[1], is_step=True)))
    assert (lab.score, steps.score) == (None, 64.938) and LabResult.from_json(steps.to_json()) == steps


def test_a_score_counts_if_every_test_passes_and_is_in_the_table_and_the_feedback(tmp_path, provenance):
    anna, ben = a_student("anna", an_open_lab()), a_student("ben", an_open_lab(passes=False))
    cora = a_student("cora", an_open_lab(score=None), overrides={"3.5": Override(4, "by hand")})
    assert export.write_all(tmp_path, [anna, ben, cora], provenance) == []
    assert [row["3.5 score"] for row in rows_of(tmp_path / "grades.csv")] == ["64.94", "", ""]
    pages = [of_student(tmp_path, name, "feedback.md") for name in ("anna", "ben", "cora")]
    told = "Your score: **64.9** (the naive policy scores 0, the optimum 100). "
    alias = alias_of("ab" * 32)
    assert f"{told}On a class's board without names, your row is `{alias}`." in pages[0].replace("\\", "")
    later = "It counts, on the class's board too, once all tests pass that are not steps of the score."
    assert f"{told}{later}" in pages[1] and alias not in pages[1]
    assert "Your score" not in pages[2]


def test_only_a_graded_file_has_a_score_and_a_hidden_test_keeps_none():
    lab = an_open_lab()
    assert (lab.score, lab.kept_score) == (64.938, 64.938) and LabResult.from_json(lab.to_json()) == lab
    assert replace(lab, outcome=Outcome.GRADE_AGAIN).kept_score is None
    failed = replace(lab, tests=(replace(lab.tests[0], passed=False), *lab.tests[1:]))
    assert failed.kept_score is None
    hidden = a_test("test_stress", is_hidden=True)
    assert replace(lab, tests=(*lab.tests, replace(hidden, passed=False))).score is None
    assert replace(lab, tests=(replace(hidden, score=1.0), *lab.tests[1:])).kept_score is None


def test_a_result_from_before_there_were_scores_can_be_read():
    fields = an_open_lab().to_json()
    for test in fields["tests"]:
        del test["score"]
    assert LabResult.from_json(fields).score is None


# ---- what students see


@pytest.mark.parametrize("name", FOR_STUDENTS)
@pytest.mark.parametrize("student", ["anna", "ben"])
def test_a_hidden_test_shows_its_name_and_a_sentence_only(out, student, name):
    text = of_student(out, student, name)
    assert SECRET not in text
    assert "This test is hidden." in text and re.search("stress.under.load", text)


def test_whether_a_hidden_test_passed_cannot_be_told(out):
    """Compare only the case itself. The student's score includes the hidden tests, so it may differ."""
    def hidden(student):
        tests = json.loads(of_student(out, student, "results.json"))["tests"]
        return [test for test in tests if "stress" in test["name"]]

    def case(student):
        tree = ElementTree.fromstring(of_student(out, student, "junit.xml"))
        return [ElementTree.tostring(node) for node in tree.iter("testcase") if "stress" in node.get("name")]

    assert hidden("anna") == hidden("ben") and case("anna") == case("ben")


def test_junit_has_one_case_a_test_with_its_points(out):
    tree = ElementTree.fromstring(of_student(out, "ben", "junit.xml"))
    suite = tree.find("testsuite[@name='lab 2.1']")
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "time")] == ["4", "2", "1", "1.500"]
    case = suite.find("testcase[@name='test_task_2_remove_keeps_order']")
    assert case.get("classname") == "lab-2.1" and case.find("failure").get("message").startswith("remove(2) left")
    assert {node.get("name"): node.get("time") for node in suite.iter("testcase")} == {
        "test_task_1_append_links_both_ways": "0.250", "test_task_2_remove_keeps_order": "0",
        "test_task_3_popleft_takes_the_oldest": "0", "test_stress_under_load": "0"}  # not told, and not known: 0
    properties = {node.get("name"): node.get("value") for node in case.iter("property")}
    assert properties == {"points": "3", "earned": "0", "task": "2", "lab": "2.1"}
    cora = ElementTree.fromstring(of_student(out, "cora", "junit.xml"))
    assert cora.find("testsuite[@name='lab 2.1']/testcase/error").text == "starter.py is a Jupyter notebook"


def test_feedback_says_what_to_mend_first(out):
    text = of_student(out, "ben", "feedback.md")
    assert "**Fix task 2 first**" in text and "`course hint 2.1 --task 2`" in text
    assert text.index("remove(2) left") < text.index("still to do: Task 3: popleft")
    assert "✓ Task 1" in text and "conftest.py was left out" in text and "abc1234" in text
    assert "instead of the 4 from the tests: shown in the oral exam" in of_student(out, "finn", "feedback.md")
    assert "Every test that you can see passes." in of_student(out, "anna", "feedback.md")
    assert "a canary passed" not in "".join(of_student(out, "finn", name) for name in FOR_STUDENTS)


COMMENT = "Well *done*, <b>Ann</b>.\n\nSee \x1b[31mtask 2 | `x`"


def test_an_instructors_comments_are_above_the_tests(tmp_path, provenance):
    missing = without_score(a_lab("2.2"), Outcome.MISSING)
    student = a_student("ann", a_lab(half=True), missing, comments={"2.1": COMMENT, "2.2": "Hand it in."},
                        comment="A good start.")
    assert export.write_all(tmp_path, [student, a_student("bob", a_lab())], provenance) == []
    text = of_student(tmp_path, "ann", "feedback.md")
    assert "> **Your instructor's comment:**\n\n> A good start." in text
    assert "> Well \\*done\\*, \\<b\\>Ann\\</b\\>.\n\n> See task 2 \\| \\`x\\`\n" in text
    assert text.index("A good start") < text.index("Well") < text.index("Fix task 2 first") < text.index("Hand it in")
    page = of_student(tmp_path, "ann", "feedback.html")
    assert '<p class="note">Well *done*, &lt;b&gt;Ann&lt;/b&gt;.</p>' in page and "<b>" not in page
    output = json.loads(of_student(tmp_path, "ann", "results.json"))["output"].split("\n")
    assert output[:2] == ["Your instructor's comment: A good start.",
                          "Lab 2.1: your instructor's comment: Well *done*, <b>Ann</b>."]
    assert "See task 2 | `x`" in output and "Lab 2.2: your instructor's comment: Hand it in." in output
    for name in ("feedback.md", "feedback.html", "results.json"):
        assert "comment" not in of_student(tmp_path, "bob", name)


def test_feedback_tells_a_broken_file_once(tmp_path, provenance):
    broken = "starter.py does not parse, line 3: invalid syntax"
    lab = LabResult("2.1", Outcome.GRADED, tuple(a_test(f"test_task_{i}_x", passed=False, task=i, error=BROKEN_FILE,
                                                        message=broken) for i in (1, 2, 3)))
    export.write_all(tmp_path, [a_student("ida", lab)], provenance)
    text = of_student(tmp_path, "ida", "feedback.md")
    assert text.count(broken) == 1 and "No test could run" in text


def test_the_report_names_what_needs_a_person(out):
    text = (out / "report.md").read_text(encoding="utf-8")
    for part in ("To be graded again (1)", "the machine was too busy", "Flags (1)", "a canary passed",
                 "Could not be read (1)", "Handed in nothing (1)", "Eve Example (eve)", "40 files per minute",
                 "A file may burn all of its CPU time.", "remove keeps order",
                 "stress under load (hidden)", "abc1234", "12.5 points instead of 4"):
        assert part in text, part
    assert "<svg" in (out / "report.html").read_text(encoding="utf-8")


def test_the_numbers_of_the_report_are_of_files(tmp_path, provenance):
    """Check two graded students, one who has only an override, and two who are excused, one of them with a file."""
    def a_row(student, points, outcome=Outcome.GRADED, is_excused=False, **more):
        points = Fraction(points)
        tests = (a_test("test_task_1_a", 100, False),)
        return StudentResult(student, labs={"2.1": LabResult("2.1", outcome, tests)}, is_submitted=outcome is
                             Outcome.GRADED, marks={"2.1": Mark(points, Fraction(100), is_excused=is_excused)}, **more)

    rows = [a_row("ann", "55.4"), a_row("bob", "55.5"), a_row("cy", 100, Outcome.MISSING,
                                                              overrides={"2.1": Override(100, "oral exam")}),
            a_row("dan", 0, Outcome.MISSING, is_excused=True), a_row("eve", 0, is_excused=True)]
    ClassReport().write(tmp_path, rows, provenance)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| graded | missing | unreadable | grade again | excused | median | mean | of |" in text
    # The mean of 55.4 and 55.5 is 55.45; a half is rounded up.
    assert "| 3 | 1 | · | · | 1 | 55.45 | 55.5 | 100 |" in text
    assert "50– %  ██████████████████████████████ 2" in text and "100 %  1" not in text
    assert "1 student handed in nothing" in text
    rows = [replace(row, marks={}) for row in rows]
    ClassReport().write(tmp_path, rows, provenance)
    assert "excused |" not in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["report.html", "students/ben/feedback.html"])
def test_pages_load_nothing(out, name):
    text = (out / name).read_text(encoding="utf-8")
    tags = {tag for tag, _ in Tags(text).tags}
    assert not tags & {"script", "link", "img", "iframe", "a", "object"}
    assert "url(" not in text and "@import" not in text


def test_an_exporter_that_fails_stops_no_other(tmp_path, students, provenance, monkeypatch):
    class Broken:
        name = "broken.txt"

        def write(self, out, students, provenance):
            raise OSError("no space left")

    class Entry:
        name = "mine"

        def __init__(self, loaded):
            self.loaded = loaded

        def load(self):
            if self.loaded is None:
                raise ImportError("no such module")
            return self.loaded

    monkeypatch.setattr(export, "entry_points", lambda group: [Entry(Broken), Entry(None)])
    problems = export.write_all(tmp_path, students, provenance)
    assert problems == ["the exporter mine could not be loaded: ImportError: no such module",
                        "broken.txt was not written: OSError: no space left"]
    assert (tmp_path / "grades.csv").is_file()
    assert len(export.write_each([Broken(), tables.Grades()], tmp_path / "again", students, provenance)) == 1
    assert (tmp_path / "again/grades.csv").is_file()


def test_a_file_is_there_in_whole_or_as_it_was(tmp_path):
    path = tmp_path / "a/b.txt"
    output_files.write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        output_files.write(path, "x" * 100_000 + "\ud800")
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("student", ["../../etc", "a/b", ".hidden", "", "x" * 300, "a\x00b", "anna ", "é", "a.",
                                     "\ud800"])
def test_an_id_that_is_no_folders_name_stays_inside(tmp_path, student):
    folder = output_files.student_folder(tmp_path, student)
    assert folder.parent == tmp_path / "students" and re.fullmatch(r"[A-Za-z0-9-]{1,60}", folder.name)
    assert output_files.folder_name("anna") == "anna" != output_files.folder_name("anna ")


def test_a_class_of_none_is_written_too(tmp_path, provenance):
    assert export.write_all(tmp_path, [], provenance) == []
    assert rows_of(tmp_path / "grades.csv") == [] and "0 students" in (tmp_path / "report.md").read_text()


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(NASTY), max_size=6).map("".join))
def test_hostile_text_breaks_no_file(tmp_path, provenance, text):
    lab = replace(a_lab(half=True, message=text, printed=text), reason=text, flags=(text,))
    assert export.write_all(tmp_path, [StudentResult("id", text, {"2.1": lab}, notes=(text,))], provenance) == []
    (row,) = rows_of(tmp_path / "grades.csv")
    assert None not in row and None not in row.values()
    ElementTree.fromstring(of_student(tmp_path, "id", "junit.xml"))
    json.loads(of_student(tmp_path, "id", "results.json"))


def documented(title):
    """Return the schema or the columns that docs/grading-formats.md gives under a heading."""
    section = FORMATS.read_text(encoding="utf-8").split(f"\n## `{title}`\n")[1].split("\n## ")[0]
    if fenced := re.search(r"```json\n(.*?)```", section, re.S):
        return json.loads(fenced[1])
    return re.findall(r"^\| `([^`]+)` \|", section, re.M)


@pytest.mark.parametrize("student", ["anna", "ben", "cora", "dan", "eve", "finn"])
def test_results_json_validates_against_its_documented_schema(out, student):
    jsonschema.validate(json.loads(of_student(out, student, "results.json")), documented("results.json"))


def test_the_schema_refuses_what_gradescope_does_not_know(out):
    results = json.loads(of_student(out, "ben", "results.json"))
    for wrong in ({**results, "visibility": "never"}, {**results, "score": "4"}, {**results, "grade": 4},
                  {**results, "tests": [{"name": "x", "status": "ok"}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, documented("results.json"))


UNCLEAR = [Unclear("ann/lab 21 <b>.py", "lab 21 <b>.py is not named like a lab's file.", "ann"),
           Unclear("new\nline\x1b[2J", "It has '\\n'."), Unclear("\udcff", "? is not on the roster."),
           Unclear("ben/2.1.py", "2.1.py is empty.", "ben", "2.1", False)]


def test_what_is_not_graded_is_in_the_report_and_in_a_list_that_validates(tmp_path, students, provenance):
    assert export.write_all(tmp_path, students, provenance, UNCLEAR) == []
    listed = json.loads((tmp_path / "unclear.json").read_text())
    jsonschema.validate(listed, documented("unclear.json"))
    assert [one["path"] for one in listed] == [one.path for one in UNCLEAR]
    text = (tmp_path / "report.md").read_text()
    assert "Handed in, but not graded (3)" in text and "Not graded, and decided (1)" in text
    assert "`ben/2.1.py`, ben 2.1: 2.1.py is empty." in text.replace("\\", "")
    page = (tmp_path / "report.html").read_text()
    assert "<b>" not in page and "\x1b" not in page and "\x1b" not in text


@pytest.mark.parametrize("name", ["grades.csv", "nbgrader.csv", "canvas.csv"])
def test_tables_have_their_documented_columns(tmp_path, provenance, name):
    export.write_all(tmp_path, [a_student("anna", a_lab("2.1"), an_open_lab())], provenance)
    with open(tmp_path / name, newline="", encoding="utf-8") as file:
        head = next(csv.reader(file))
    assert "2.1 score" not in head, "only labs with a score have the column"
    columns = [name.replace("3.5", "LAB") for name in head if "2.1" not in name]
    if name == "canvas.csv":
        columns = [re.sub("^Lab LAB.*", "Lab LAB: TITLE", column) for column in columns]
    assert columns == documented(name)
