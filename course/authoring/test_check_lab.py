"""``course check``: every kind of damage to a lab is found and named."""

import shutil

import pytest

from course.authoring.check_lab import broken_links, check_by_running, check_lab, read_lab
from course.lab.lab import PROJECT_ROOT, discover, find_lab
from course.lab.signatures import extends
from course.lab.starters import shipped_starter

pytestmark = pytest.mark.usefixtures("forked")


def replace(path, old, new):
    text = path.read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {path.name}"
    path.write_text(text.replace(old, new))


def rebuild(lab):
    lab.starter.write_text(shipped_starter(lab))


def test_a_lab_in_order_has_no_problems(lab1):
    problems, proved = check_lab(lab1)
    assert problems == []
    assert proved == ("3 tests pass on solution, starter, anything, nan, one and unwritten earn 0 of 6 points, "
                      "4 mutants die, 2 tasks have 6 hints, its file may use 0 names on the grader's side")


@pytest.mark.parametrize("file, old, new, complaint", [
    ("starter.py", "Task 2: double", "Task 2: treble", "starter.py differs from solution.py"),
    ("starter.py", "b: int = 1", "b: int = 2", "the signature of add is (a: int, b: int=2), in solution.py (a: int, b"),
    ("starter.py", "Twice ``a``.", "Thrice ``a``.", "the docstring of double is not that of solution.py"),
    ("starter.py", "def double", "def treble", "starter.py: double is missing"),
    ("starter.py", "def double", "def double(", "starter.py does not parse, line 9"),
    ("hints.md", "Hint 2 for doubles.", "", "hints.md: task 2 has no hint 2"),
    ("hints.md", "### Hint 1\nHint 1 for sums", "### Hint 1 Hint 1 for sums", "not in it: ### Hint 1 Hint 1 for sums."),
    ("hints.md", "## Task 2", "## Task 3", "hints.md: there is no task 3"),
    ("mutants.py", '"return a - b"', '"return a -"', "mutant subtracts: it does not parse"),
    ("mutants.py", '"return a + b", "return a - b"', '"return a / b", "c"', "subtracts: its 'replace' text occurs 0"),
    ("mutants.py", '"ignores-b"', '"halves"', "mutant halves: the name is used twice"),
    ("mutants.py", '"test_double_doubles"', '"test_nothing"', "its killer test_nothing is not a test of this lab"),
    ("mutants.py", '"ignores-b"', '"nan"', "mutant nan: the name is that of a file in which everything exists and is"),
    ("mutants.py", "MUTANTS = [", "MUTANTS = [][:1] and [", "0 mutants, must be at least 4"),
    ("test_lab.py", "@pytest.mark.points(3)\n", "", "test_double_doubles has no @pytest.mark.points(n)"),
    ("test_lab.py", "@pytest.mark.task(2)\n", "", "test_double_doubles belongs to no task"),
    ("test_lab.py", "@pytest.mark.task(2)\n", "@pytest.mark.inside\n",
     "double_doubles is marked inside without a reason"),
    ("test_lab.py", "@pytest.mark.task(2)\n", "@pytest.mark.inside(why)\n",
     "test_double_doubles is marked inside without a"),
    ("test_lab.py", "@pytest.mark.task(2)\n", "@pytest.mark.task(2)\n@pytest.mark.inside('memory')\n",
     "test_lab.py: 3 of 6 points are inside, at most 5 % may be"),
    ("test_lab.py", "lab.double(4)", "lab.quadruple(2)", "lab.quadruple is not declared in starter.py"),
    ("test_lab.py", "lab.double(4)", "lab.double(4)._secret", "._secret is private"),
    ("README.md", "(starter.py)", "(nowhere.py)", "README.md: the link to nowhere.py leads nowhere"),
    ("README.md", "## Done when\n", "## Done when\n\n4 tests, 6 points.\n", "says 4 tests, 6 points; there are 3"),
    ("README.md", "--bare", "", "README.md does not offer `course reset 1.1 --bare`"),
    ("lab.json", '["double: it is even"]', "[]", "lab.json has no `bare` list"),
    ("lab.json", "it is even", "it is odd", "bare: no task docstring of double says 'it is odd'"),
    ("lab.json", "double: it", "Double: it", "bare: no task docstring of Double says 'it is even'"),
    ("solution.py", "``a``. After:", "``a``.\n\n" + 6 * "    Long.\n" + "\n    After:",
     "solution.py: double has 7 lines of prose, at most 5 may be"),
    ("solution.py", "After: it", "\n\n    After:\n    - it", "double has a contract in lists, and no Example"),
    ("lab.json", "null", '"nothing.here"', "lab.json names the engine module nothing.here, but there is no"),
    ("lab.json", '"title"', '"name"', "lab.json must be JSON"),
    ("solution.py", "# END TASK", "", "solution.py:13: a marker inside the one opened at line 6"),
])
def test_damage_that_the_files_show_is_named(lab1, file, old, new, complaint):
    replace(lab1.folder / file, old, new)
    _, problems = read_lab(lab1)
    assert any(complaint in problem for problem in problems), problems


SCORE = '"score": {"module": "%s", "name": "add", "meaning": "more is better"}, "title"'


@pytest.mark.parametrize("module, keepers, complaints", [
    ("course.eviction.score", (), ["test_lab.py: one test must keep the score (the fixture keep_score); here none: 0"]),
    ("course.eviction.score", ("test_double_doubles",), []),
    ("course.eviction.score", ("test_double_doubles", "test_task_1_add_counts_by_default"),
     ["here test_task_1_add_counts_by_default, test_double_doubles: 2"]),
    ("course.nothing", ("test_double_doubles",), ["lab.json: score: No module named 'course.nothing'"]),
    ("course.eviction.arena", ("test_double_doubles",),
     [f"lab.json: score: course.eviction.arena has no function {name}" for name in
      ("score", "table", "total", "landmarks")]),
    (None, ("test_double_doubles",), ["test_lab.py: test_double_doubles keeps a score or is a step of it, but"]),
])
def test_a_score_has_a_module_and_one_test_that_keeps_it(lab1, module, keepers, complaints):
    if module is not None:
        replace(lab1.folder / "lab.json", '"title"', SCORE % module)
    for name in keepers:
        replace(lab1.tests, f"{name}(lab", f"{name}(lab, keep_score")
    _, problems = read_lab(lab1)
    assert len(problems) == len(complaints) and all(map(str.__contains__, problems, complaints)), problems


def test_a_step_belongs_to_a_score_and_does_not_keep_it(lab1, lab2):
    for lab in (lab1, lab2):
        replace(lab.tests, "@pytest.mark.points(3)", "@pytest.mark.points(3)\n@pytest.mark.step")
    (problem,) = read_lab(lab2)[1]
    assert "test_double_doubles keeps a score or is a step of it, but lab.json names none" in problem
    replace(lab1.folder / "lab.json", '"title"', SCORE % "course.eviction.score")
    replace(lab1.tests, "test_task_1_add_counts_by_default(lab", "test_task_1_add_counts_by_default(lab, keep_score")
    assert read_lab(lab1)[1] == []
    replace(lab1.tests, "test_task_1_add_counts_by_default(lab, keep_score", "test_task_1_add_counts_by_default(lab")
    replace(lab1.tests, "test_double_doubles(lab", "test_double_doubles(lab, keep_score")
    (problem,) = read_lab(lab1)[1]
    assert "test_double_doubles keeps the score and cannot be a step of it" in problem


@pytest.mark.parametrize("file, old, new, complaint", [
    ("mutants.py", '"return a - b"', '"return b + a"', "mutant subtracts survives test_task_1_add_adds"),
    ("test_lab.py", "got = lab.double(4)", "got = 8", "test_double_doubles passes on the untouched starter"),
    ("test_lab.py", "== 8,", "== 9,", "test_double_doubles fails on the solution: double(4) gave 8"),
    ("test_lab.py", "got = lab.double(4)", "got = lab.double(4) if lab.add.nothing else 8",
     "test_double_doubles fails on the starter, but not at the stub of a task: AttributeError"),
    ("test_lab.py", "lab.add(3) == 4", "lab.double(2) == 4",
     "test_task_1_add_counts_by_default belongs to task 1, but on the starter it stops at 'Task 2: double'"),
    ("test_lab.py", "got == 8", "got != 9", "test_double_doubles passes on a file in which everything exists and "
     "nothing is done (course/authoring/anything.py), so it gives away 3 points: first assert what must exist"),
    ("test_lab.py", "got == 8", "not got > 8", "test_double_doubles passes on a file in which everything exists and is "
     "NaN (course/authoring/anything.py), so it gives away 3 points"),
    ("test_lab.py", "got == 8", "got in (None, 8)", "test_double_doubles passes on a starter whose unwritten bodies "
     "return None, so it gives away 3 points"),
])
def test_damage_that_the_tests_show_is_named(lab1, file, old, new, complaint):
    replace(lab1.folder / file, old, new)
    problems = check_by_running(read_lab(lab1)[0])
    assert any(complaint in problem for problem in problems), problems


def test_a_lab_with_many_kinds_of_damage_is_run_all_the_same(lab1):
    """Check that problems in the files and in the test results are reported together; none hides another."""
    for file, old, new in [("hints.md", "Hint 2 for doubles.", ""), ("starter.py", "def double", "def treble"),
                           ("mutants.py", '"test_double_doubles"', '"test_nothing"'),
                           ("mutants.py", '"ignores-b"', '"halves"'), ("mutants.py", '"return a - b"', '"return a -"'),
                           ("test_lab.py", "@pytest.mark.points(3)\n", ""), ("lab.json", "null", '"nothing.here"'),
                           ("test_lab.py", "== 8,", "== 9,")]:
        replace(lab1.folder / file, old, new)
    problems, _ = check_lab(discover(lab1.root)[0])
    for complaint in ("hints.md: task 2 has no hint 2", "starter.py: double is missing", "its killer test_nothing is",
                      "mutant halves: the name is used twice", "mutant subtracts: it does not parse",
                      "test_double_doubles has no @pytest.mark.points(n)", "names the engine module nothing.here",
                      "test_double_doubles fails on the solution: double(4) gave 8",
                      "test_double_doubles fails on the engine: ",
                      "test_double_doubles fails on the starter, but not at the stub of a task: AttributeError"):
        assert any(complaint in problem for problem in problems), (complaint, problems)


def test_of_a_lab_whose_tests_cannot_run_nothing_is_proved(lab1):
    lab1.starter.write_text("def add(a, b:\n")
    replace(lab1.tests, "import pytest\n", "import pytest, nothing_of_that_name\n")
    problems, proved = check_lab(lab1)
    assert "starter.py does not parse, line 1" in problems[0] and proved == ""
    assert problems[-1].startswith("the tests could not be run:\n") and "nothing_of_that_name" in problems[-1]


@pytest.mark.parametrize("file", ["hints.md", "mutants.py", "README.md", "solution.py", "starter.py"])
def test_a_missing_file_is_named(lab1, file):
    (lab1.folder / file).unlink()
    assert check_lab(lab1)[0] == [f"phase-01-sums/labs/lab-01-adder/{file} is missing"]


def test_a_weakened_test_lets_a_mutant_live(lab1):
    replace(lab1.tests, "assert got == 3 + b", "assert got")
    problems, _ = check_lab(lab1)
    assert [problem for problem in problems if "survives" in problem] == [
        "mutant subtracts survives test_task_1_add_adds, which should have caught it",
        "mutant ignores-b survives test_task_1_add_adds, which should have caught it"]


def test_a_killer_that_was_not_run_is_no_kill(lab1):
    """Test a mutant that ends the process, so that its killer has no verdict."""
    mutant = ('Mutant("exits", "Gives up.", "return add(a, a)", "import os; os._exit(0)", "test_double_doubles",\n'
              '               "double: Twice"),\n    ]')
    replace(lab1.mutants, "]\n", mutant + "\n")
    problems, _ = check_lab(lab1)
    assert "mutant exits: its killer test_double_doubles says nothing about it: it did not run" in problems


def test_a_mutant_is_run_on_its_killer_only(lab1):
    """Test a mutant that hangs in every test except the one that must catch it."""
    mutant = ('Mutant("hangs", "Never adds.", "return a + b", "while b < 3: pass", "test_double_doubles",\n'
              '               "add: The sum"),\n    ]')
    replace(lab1.mutants, "]\n", mutant + "\n")
    assert check_lab(lab1)[0] == []


def test_the_engine_must_have_the_labs_signatures(lab1):
    (lab1.folder / "lab.json").write_text('{"title": "x", "engine": "sums"}')
    (lab1.root / "sums.py").write_text("def add(a: int, b: int = 2) -> int:\n    return a + b\n")
    replace(lab1.root / "pyproject.toml", "addopts", 'pythonpath = ["."]\naddopts')
    problems, _ = check_lab(discover(lab1.root)[0])
    assert "sums.py: double, which the lab teaches, is missing" in problems
    assert any("sums.py: the signature of add is (a: int, b: int=2), in phase-01-sums" in p for p in problems)
    assert any("test_task_1_add_counts_by_default fails on the engine" in p for p in problems)


def test_the_engines_counterpart_may_be_several_modules(lab1):
    (lab1.folder / "lab.json").write_text('{"title": "x", "engine": ["sums", "twice"], "bare": ["double: it is even"]}')
    (lab1.root / "sums.py").write_text("def add(a: int, b: int = 1) -> int:\n    return a + b\n")
    (lab1.root / "twice.py").write_text("def double(a: int) -> int:\n    return 2 * a\n")
    replace(lab1.root / "pyproject.toml", "addopts", 'pythonpath = ["."]\naddopts')
    lab = discover(lab1.root)[0]
    problems, proved = check_lab(lab)
    assert problems == [] and "3 tests pass on solution and sums and twice, starter" in proved
    (lab1.root / "twice.py").write_text("def double(b: int) -> int:\n    return 2 * b\n\n\n"
                                        "def add(a: int, b: int) -> int:\n    return a + b + 1\n")
    problems, _ = check_lab(lab)
    assert any("twice.py: the signature of double is (b: int), in phase-01-sums" in p for p in problems)
    assert any("twice.py: the signature of add is (a: int, b: int), in phase-01-sums" in p for p in problems)
    assert any(p.startswith("test_task_1_add_adds fails on the engine: add(3, 0) gave 4") for p in problems), problems
    (lab1.root / "twice.py").write_text("")
    assert "sums.py and twice.py: double, which the lab teaches, is missing" in read_lab(lab)[1]
    (lab1.root / "twice.py").unlink()
    assert "lab.json names the engine module twice, but there is no twice.py" in read_lab(lab)[1]


@pytest.mark.parametrize("engine, lab, expected", [
    ("(a: int, b: int=1)", "(a: int, b: int=1)", True),
    ("(a: int, b: int=2)", "(a: int, b: int=1)", False),
    ("(a: int, b: int=1)", "(a: int)", True),
    ("(a: int, b: int)", "(a: int)", False),
    ("(a: int, b: int=1)", "(a: int, b: int)", True),
    ("(a: int, b: int)", "(a: int, b: int=1)", False),
    ("(a: int, bb: int=1)", "(a: int, b: int)", False),
    ("(a, *, b=1)", "(a, *, b)", True),
    ("(a, *, b)", "(a, *, b=1)", False),
    ("(a: int)", "(a: int, b: int=1)", False),
    ("(b: int=1, a: int=1)", "(a: int=1)", False),
    ("(a, *, b=1, c=None)", "(a, *, b=1)", True),
    ("(a, *, c=None)", "(a, *, b=1)", False),
    ("(a, **more)", "(a)", False),
    ("(a: int = 0; b: float = 0.0)", "(a: int = 0)", True),
    ("(a: int = 0; b: float)", "(a: int = 0)", False),
    ("()", "()", True),
])
def test_the_engine_may_take_more_if_it_may_be_left_out(engine, lab, expected):
    assert extends(engine, lab) is expected


PROMISES = [
    ("mutants.py", '"add: The sum"', "()", "mutant subtracts: no breaks='place: words of the contract'"),
    ("mutants.py", '"add: The sum"', '"The sum"', "mutant subtracts: breaks: 'The sum' must begin with a place"),
    ("mutants.py", '"add: The sum"', '"add: The product"', "subtracts: breaks: add does not say 'The product'"),
    ("mutants.py", '"add: The sum"', '"add: "', "mutant subtracts: breaks: add does not say ''"),
    ("mutants.py", ', "invariant 1: Nothing is lost"', "", "breaks this promise: invariant 1: Nothing is lost."),
    ("mutants.py", "double: After: it is even", "double: Twice", "breaks this promise: double: After: it is even"),
    ("mutants.py", "UNOBSERVABLE", "OTHER", "no mutant breaks this promise: double: a is what it was"),
    ("mutants.py", '"a number cannot change"', '" "', "UNOBSERVABLE says no reason for 'double: ``a`` is what it was'"),
    ("mutants.py", '"double: ``a`` is what it was"', '"double: ``b``"', "UNOBSERVABLE: double does not say 'b'"),
    ("mutants.py", "After: it is even", "it is even; a is what it was",
     "UNOBSERVABLE, but a mutant breaks it: double: a is what it was"),
    ("README.md", "## Done when", "2. Nothing comes twice.\n\n## Done when", "invariant 2: Nothing comes twice."),
    ("solution.py", "of ``a`` and ``b``.", "of ``a`` and ``b``. ValueError if ``a`` is odd.",
     "no mutant breaks this promise: add: ValueError if a is odd"),
    ("solution.py", "of ``a`` and ``b``.", "of both.\n\n    Returns:\n    - an int,\n      not a float\n    ",
     "no mutant breaks this promise: add: an int, not a float"),
    ("solution.py", "of ``a`` and ``b``.", "of both.\n\n    Before:\n    - x\n    Raises:\n    - never; nowhere\n    ",
     "no mutant breaks this promise: add: never; nowhere"),
]


@pytest.mark.parametrize("file, old, new, complaint", PROMISES)
def test_a_promise_that_nothing_breaks_is_named(lab1, file, old, new, complaint):
    replace(lab1.folder / file, old, new)
    _, problems = read_lab(lab1)
    assert any(complaint in problem for problem in problems), problems


def test_links_in_code_and_to_the_web_are_not_followed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[a](https://example.org/x) [b](#here) [c](page.md#part) [d](no.md)\n```\n[e](not/a/link)\n```\n"
                    "[f](<page.md#part>) [g](<not here.md>)\n")
    assert broken_links(page, tmp_path) == ["page.md: the link to no.md leads nowhere",
                                            "page.md: the link to not here.md leads nowhere"]


def test_a_real_lab_with_a_broken_starter_is_named(tmp_path):
    """Check such damage once in a copy of a real lab of the course."""
    lab = find_lab("2.1", discover())
    folder = tmp_path / lab.relative(lab.folder)
    shutil.copytree(lab.folder, folder)
    (tmp_path / "mini_vllm").symlink_to(PROJECT_ROOT / "mini_vllm")
    copy = find_lab("2.1", discover(tmp_path))
    replace(copy.starter, "def touch(self, blocks: Sequence[KVCacheBlock])", "def touch(self, block: KVCacheBlock)")
    _, problems = read_lab(copy)
    assert "the signature of BlockPool.touch is (self, block: KVCacheBlock)" in problems[0]


def test_a_bare_quote_of_a_helper_that_the_bare_starter_drops_is_named(lab1):
    replace(lab1.solution, "def double", "def _double")
    replace(lab1.folder / "lab.json", "double", "_double")
    _, problems = read_lab(lab1)
    assert any("'_double: it is even' keeps nothing: _double is not in the bare" in problem for problem in problems)
