"""The files for gradebooks and for students: they exist, validate, and reveal nothing that they must not."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.core.failure_messages import BROKEN_FILE
from course.core.result import LabResult, Outcome, StudentResult
from course.grading import export
from course.grading.export import output_files, tables
from course.grading.export.conftest import SECRET, a_lab, a_student, a_test
from course.grading.export.test_text import NASTY, Tags
from course.grading.intake.unclear import Kind, Unclear

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
    assert "not a zero" in results["output"] and "busy" not in results["output"]


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
    properties = {node.get("name"): node.get("value") for node in case.iter("property")}
    assert properties == {"points": "3", "earned": "0", "task": "2", "lab": "2.1"}
    cora = ElementTree.fromstring(of_student(out, "cora", "junit.xml"))
    assert cora.find("testsuite[@name='lab 2.1']/testcase/error").text == "starter.py is a Jupyter notebook"


def test_feedback_says_what_to_mend_first(out):
    text = of_student(out, "ben", "feedback.md")
    assert "**Mend task 2 first**" in text and "`course hint 2.1 --task 2`" in text
    assert text.index("remove(2) left") < text.index("still to do: Task 3: popleft")
    assert "✓ Task 1" in text and "conftest.py was left out" in text and "abc1234" in text
    assert "in place of the tests' 4: shown in the oral exam" in of_student(out, "finn", "feedback.md")
    assert "Every test that you can see passes." in of_student(out, "anna", "feedback.md")
    assert "a canary passed" not in "".join(of_student(out, "finn", name) for name in FOR_STUDENTS)


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
                 "Could not be read (1)", "Handed in nothing (1)", "Eve Example (eve)", "40 files a minute",
                 "A file may burn all of its CPU time.", "remove keeps order",
                 "stress under load (hidden)", "abc1234", "12.5 in place of 4"):
        assert part in text, part
    assert "<svg" in (out / "report.html").read_text(encoding="utf-8")


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


UNCLEAR = [
    Unclear("ann/lab 21 <b>.py", Kind.MISNAMED, "lab 21 <b>.py is not graded.",
            "mv -n -- 'ann/lab 21 <b>.py' ann/2.1.py", "ann", "2.1"),
    Unclear("new\nline\x1b[2J", Kind.NAME, "It has '\\n'.", "mv -n -- $'new\\x0aline' new-line"),
    Unclear("\udcff", Kind.UNKNOWN, "? is not on the roster.", is_open=False)]


def test_unclear_files_are_in_the_report_and_in_a_list_that_validates(tmp_path, students, provenance):
    assert export.write_all(tmp_path, students, provenance, UNCLEAR) == []
    listed = json.loads((tmp_path / "unclear.json").read_text())
    jsonschema.validate(listed, documented("unclear.json"))
    assert [one["path"] for one in listed] == [one.path for one in UNCLEAR]
    kinds = documented("unclear.json")["items"]["properties"]["kind"]["enum"]
    assert kinds == [kind.value for kind in Kind]
    text = (tmp_path / "report.md").read_text()
    assert "To decide (2)" in text and "Further files (1)" in text
    assert "misnamed (likely ann, lab 2.1)" in text and "`mv -n -- 'ann/lab 21 <b>.py' ann/2.1.py`" in text
    page = (tmp_path / "report.html").read_text()
    assert "<b>" not in page and "\x1b" not in page and "\x1b" not in text


@pytest.mark.parametrize("name", ["grades.csv", "nbgrader.csv", "canvas.csv"])
def test_tables_have_their_documented_columns(out, name):
    with open(out / name, newline="", encoding="utf-8") as file:
        head = next(csv.reader(file))
    columns = [name.replace("2.1", "LAB") for name in head if "2.2" not in name]
    if name == "canvas.csv":
        columns = [re.sub("^Lab LAB.*", "Lab LAB: TITLE", column) for column in columns]
    assert columns == documented(name)
