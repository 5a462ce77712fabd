"""Finding labs and making starters from solutions."""

import math

import pytest

from course.lab.bare_starter import is_as_shipped
from course.lab.lab import PROJECT_ROOT, LabError, discover, find_lab
from course.lab.starters import clean_solution, declarations, make_starter


def test_labs_come_in_the_order_of_the_course(project):
    assert [str(lab) for lab in discover(project)] == ["1.1 adder", "1.2 again"]
    assert discover(project)[0].title == "The adder"


def test_the_real_course_begins_with_these_labs():
    assert [str(lab) for lab in discover()][:5] == [
        "1.0 next-token", "1.1 kv-cache", "1.2 fragmentation", "2.1 block-allocator", "2.2 kv-cache-manager"]


def test_a_lab_that_gives_the_engine_a_piece_says_what_one_has_now():
    for lab in discover():
        assert len(lab.now) < 240, f"lab {lab.number}: \"now\" has {len(lab.now)} characters: it is a sentence or two"
        if lab.parts:
            assert lab.now.endswith("."), f"lab {lab.number} fills a slot, and its \"now\" is {lab.now!r}"


@pytest.mark.parametrize("name", ["1.1", "01.01", "adder", "Adder", "lab-01-adder", "phase-01-sums/labs/lab-01-adder",
                                  "phase-01-sums/labs/lab-01-adder/", "1.1 adder"])
def test_a_lab_has_many_names(project, name):
    assert find_lab(name, discover(project)).number == "1.1"


def test_a_lab_can_be_named_by_a_path_from_where_one_stands(project, monkeypatch):
    monkeypatch.chdir(project / "phase-01-sums")
    assert find_lab("labs/lab-02-again", discover(project)).number == "1.2"


@pytest.mark.parametrize("name", ["addr", "lab-01-ader"])
def test_an_unknown_lab_gets_the_list_and_the_nearest_match(project, name):
    with pytest.raises(LabError) as error:
        find_lab(name, discover(project))
    assert f"no lab '{name}'" in str(error.value) and "Did you mean 1.1 adder?" in str(error.value)
    assert "1.2  again" in str(error.value)


@pytest.mark.parametrize("name", ["1.9", "1.11", "01.3", "1", "1."])
def test_an_unknown_number_gets_the_labs_of_its_phase(project, name):
    with pytest.raises(LabError) as error:
        find_lab(name, discover(project))
    assert str(error.value) == f"There is no lab {name!r}. Phase 1 has:\n  1.1  adder\n  1.2  again"


def test_a_number_of_no_phase_gets_all_labs(project):
    with pytest.raises(LabError, match=r"There is no lab '7\.1'\.\nThe labs are:\n  1\.1  adder"):
        find_lab("7.1", discover(project))


def test_an_unknown_lab_that_is_near_nothing_gets_the_list(project):
    with pytest.raises(LabError, match="The labs are") as error:
        find_lab("zzzz", discover(project))
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize("text", ['{"title": 1', '{"title": "x"}', "[]"])
def test_a_broken_lab_json_is_named(lab1, text):
    (lab1.folder / "lab.json").write_text(text)
    with pytest.raises(LabError, match=r"phase-01-sums/labs/lab-01-adder/lab\.json must be JSON"):
        _ = discover(lab1.root)[0].title


def test_the_starter_is_the_solution_without_the_bodies(lab1):
    starter, stubs = make_starter(lab1.solution.read_text())
    assert 'raise NotImplementedError("Task 1: add")' in starter and "return a + b" not in starter
    assert [(stub.number, stub.label) for stub in stubs] == [(1, "add"), (2, "double")]
    assert declarations(starter) == declarations(lab1.solution.read_text())


def test_what_only_the_solution_needs_is_left_out():
    text = ("def f():\n    # TASK 1: f\n    return g()\n    # END TASK\n"
            "# SOLUTION ONLY\ndef g(): ...\n# END SOLUTION ONLY\n")
    assert make_starter(text)[0] == 'def f():\n    raise NotImplementedError("Task 1: f")\n'
    assert clean_solution(text) == "def f():\n    return g()\ndef g(): ...\n"


@pytest.mark.parametrize("text, complaint", [
    ("# TASK 1: f\nx = 1\n", "opened at line 1 is never closed"),
    ("# END TASK\n", "solution.py:1: an end marker without its beginning"),
    ("# TASK 1: f\n# TASK 2: g\n# END TASK\n", "solution.py:2: a marker inside the one opened at line 1"),
    ("x = 1\n", "there is no '# TASK n: label' marker"),
])
def test_markers_that_do_not_pair_up_are_named(text, complaint):
    with pytest.raises(LabError, match=complaint):
        make_starter(text)


def test_a_starter_is_as_shipped_until_it_is_edited(lab1):
    assert is_as_shipped(lab1)
    lab1.starter.write_text(lab1.starter.read_text() + "# mine\n")
    assert not is_as_shipped(lab1)
    lab1.starter.write_bytes(b"\xff\xfe")
    assert not is_as_shipped(lab1)


def test_the_hours_of_the_readme_are_those_of_the_labs():
    labs = discover()
    readme = (PROJECT_ROOT / "README.md").read_text()
    assert all(lab.minutes for lab in labs)
    for phase in sorted({lab.phase for lab in labs}):
        hours = round(sum(lab.minutes for lab in labs if lab.phase == phase) / 30) / 2
        row = next(line for line in readme.splitlines() if line.startswith(f"| [0{phase} "))
        assert f" | {hours:g} | " in row, f"phase {phase} takes {hours:g} hours by lab.json"
    assert f"{math.ceil(sum(lab.minutes for lab in labs) / 60)} hours of labs" in readme
    for lab in labs:
        assert f"[{lab.number} " in readme, f"the map leaves lab {lab} out"
        assert f"About {lab.minutes} minutes" in lab.readme.read_text(), f"lab {lab}: the page and lab.json differ"
