"""Proof that a lab is in order: starter, tests, engine, mutants, hints and links fit together."""

from __future__ import annotations

import ast
import difflib
import importlib
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from course.authoring import empty_files
from course.authoring.check_surface import check_names
from course.core.failure_messages import NOT_RUN
from course.lab.answers import parse_answers, questions_of
from course.lab.bare_starter import bare_starter
from course.lab.contract import contract_of, parts_of, task_docstrings
from course.lab.graded_tests import GradedTest, graded_tests
from course.lab.hints import LEVELS, parse_hints
from course.lab.lab import Lab, LabError
from course.lab.mutants import Mutant, mutants_of, unobservable_in
from course.lab.signatures import extends
from course.lab.starters import Stub, declarations, declared_names, make_starter
from course.pytest_run.listeners import OnPoll, Verdicts
from course.pytest_run.run_lab import LabRunFailed, run_lab_together

#: For our own files: a mutant that loops is stopped sooner than a student's file would be.
TIME_LIMIT_S = 5.0
MIN_MUTANTS = 4
#: The limit on a task's docstring, apart from its first line, its lists and its code. Longer prose must become a list.
MAX_PROSE_LINES = 5
#: The counts of tests and points on a lab's page.
_COUNTS = re.compile(r"\d+ tests, \d+ points")
#: The largest share of a lab's points that may depend on measurements made where the file runs.
MAX_INSIDE_PERCENT = 5


def check_lab(lab: Lab, on_poll: OnPoll = lambda: None) -> tuple[list[str], str]:
    """Check a lab, and return its problems and a line that says what was proved.

    Each problem names the file, test, mutant or task. ``on_poll`` is called many times per second while tests run; if
    it raises, the tests end.
    """
    contents, problems = read_lab(lab)
    if contents is None:
        return problems, ""
    try:
        problems += check_by_running(contents, on_poll)
    except LabRunFailed as failure:
        return [*problems, f"the tests could not be run:\n{failure}"], ""
    num_tasks = len({stub.number for stub in contents.stubs})
    joint = " and ".join(["solution", *lab.engine])
    return problems, (f"{len(contents.tests)} tests pass on {joint}, {contents.earn_nothing}, "
                      f"{len(contents.mutants)} mutants die, {num_tasks} tasks have {num_tasks * len(LEVELS)} hints, "
                      f"{_surface_of(lab)}")


def _surface_of(lab: Lab) -> str:
    """Say how many names on the grader's side the lab's file may use; ``course check --surface`` lists them."""
    num_names = sum(len(words.split()) for words in lab.surface.values())
    return f"its file may use {num_names} names on the grader's side"


@dataclass(frozen=True)
class Contents:
    """The contents of a lab's files."""

    lab: Lab
    solution: str
    stubs: list[Stub]
    tests: list[GradedTest]
    #: The mutants that can be made from the solution.
    mutants: list[Mutant]

    @property
    def earn_nothing(self) -> str:
        """The line that says what was proved about files in which nothing is written."""
        num_points = sum(test.points or 0 for test in self.tests)
        *names, last = "starter", *empty_files.FILES
        return f"{', '.join(names)} and {last} earn 0 of {num_points} points"


def read_lab(lab: Lab) -> tuple[Contents | None, list[str]]:
    """Read a lab, and find the problems that are visible in its files without running anything.

    Return None as contents if nothing of the lab could run.
    """
    missing = [lab.relative(path) for path in (lab.solution, lab.starter, lab.tests, lab.hints, lab.mutants, lab.readme)
               if not path.is_file()]
    if missing:
        return None, [f"{path} is missing" for path in missing]
    try:
        _ = lab.title
        solution = lab.solution.read_text(encoding="utf-8")
        starter, stubs = make_starter(solution, lab.relative(lab.solution))
        mutants = mutants_of(lab)
    except (LabError, AttributeError, SyntaxError, TypeError) as error:
        return None, [str(error)]
    tests = graded_tests(lab)
    problems = _check_starter(lab, starter) + _check_tests(lab, tests, stubs, starter) + _check_hints(lab, stubs)
    problems += _check_engine_signatures(lab, solution) + _check_answers(lab) + check_names(lab)
    problems += _check_score(lab, tests) + _check_counts(lab, tests)
    problems += _check_docstrings(lab, solution) + _check_bare(lab, solution)
    problems += [problem for path in (lab.readme, lab.hints) for problem in broken_links(path, lab.root)]
    usable, mutant_problems = _check_mutants(mutants, solution, tests)
    problems += mutant_problems + _check_promises(lab, solution, mutants)
    return Contents(lab, solution, stubs, tests, usable), problems


def check_by_running(contents: Contents, on_poll: OnPoll = lambda: None) -> list[str]:
    """Run the lab's tests, and return the problems that they show.

    They run on the solution, the starter, the engine, the mutants and files in which nothing is written. Raise
    LabRunFailed if they cannot run.
    """
    lab = contents.lab
    with tempfile.TemporaryDirectory() as folder:
        impls = ["solution", "starter", *(["engine"] if lab.engine else [])]
        paths = [mutant.write(contents.solution, Path(folder)) for mutant in contents.mutants]
        paths += empty_files.write_files(contents.solution, Path(folder))
        killers = {mutant.name: mutant.killed_by for mutant in contents.mutants}
        verdicts = run_lab_together(lab, [*impls, *paths], TIME_LIMIT_S, killers, on_poll)
    return check_verdicts(contents, verdicts)


def broken_links(page: Path, root: Path) -> list[str]:
    """Return the relative links of a Markdown file that lead nowhere."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    problems = []
    for with_spaces, plain in re.findall(r"\]\((?:<([^>]+)>|([^)\s]+))\)", text):
        target = with_spaces or plain
        path = target.split("#")[0]
        if path and not re.match(r"[a-z]+:", path) and not (page.parent / path).exists():
            problems.append(f"{page.relative_to(root).as_posix()}: the link to {target} leads nowhere")
    return problems


def _check_starter(lab: Lab, expected: str) -> list[str]:
    name = lab.relative(lab.starter)
    actual = lab.starter.read_text(encoding="utf-8")
    if actual == expected:
        return []
    remedy = "`course sync` generates it again from solution.py (if it contains your own work on the lab, ignore this)"
    try:
        have = declarations(actual)
    except SyntaxError as error:
        return [f"{name} does not parse, line {error.lineno}: {error.msg}; {remedy}"]
    want = declarations(expected)
    problems = [f"{name}: {symbol} is missing" for symbol in want if symbol not in have]
    problems += [f"{name}: {symbol} is not in solution.py" for symbol in have if symbol not in want]
    for symbol in want.keys() & have.keys():
        if want[symbol][0] != have[symbol][0]:
            problems.append(f"{name}: the signature of {symbol} is {have[symbol][0]}, in solution.py {want[symbol][0]}")
        if want[symbol][1] != have[symbol][1]:
            problems.append(f"{name}: the docstring of {symbol} is not that of solution.py")
    changed = [line for line in difflib.unified_diff(expected.splitlines(), actual.splitlines(), lineterm="", n=0)
               if not line.startswith(("---", "+++", "@@"))]
    return problems + [f"{name} differs from solution.py, first at {changed[0]!r}; {remedy}"]


def _check_engine_signatures(lab: Lab, solution: str) -> list[str]:
    """Check that one of the engine modules has every public name of the lab, with its parameters and defaults first.

    A class may inherit a method from a class that an earlier module, or the same one, defines before it.
    """
    if not lab.engine:
        return []
    engine: dict[str, tuple[str, str]] = {}  # symbol → the file that defines it, and its signature
    bases: dict[str, list[str]] = {}
    for module in lab.engine:
        path = lab.module_path(module)
        if not path.is_file():
            return [f"lab.json names the engine module {module}, but there is no {lab.relative(path)}"]
        source = path.read_text(encoding="utf-8")
        for symbol, (signature, _) in declarations(source).items():
            engine[symbol] = lab.relative(path), signature
        bases |= {node.name: [ast.unparse(base) for base in node.bases] for node in ast.parse(source).body
                  if isinstance(node, ast.ClassDef)}
    for kind, parents in bases.items():
        for symbol, found in list(engine.items()):
            parent, _, method = symbol.partition(".")
            if method and parent in parents:
                engine.setdefault(f"{kind}.{method}", found)
    files = " and ".join(lab.relative(lab.module_path(module)) for module in lab.engine)
    problems = []
    for symbol, (signature, _) in declarations(solution).items():
        file, engine_signature = engine.get(symbol, (files, None))
        if engine_signature is None:
            problems.append(f"{file}: {symbol}, which the lab teaches, is missing")
        elif not extends(engine_signature, signature):
            problems.append(f"{file}: the signature of {symbol} is {engine_signature}, "
                            f"in {lab.relative(lab.solution)} {signature}")
    return problems


def _check_tests(lab: Lab, tests: list[GradedTest], stubs: list[Stub], starter: str) -> list[str]:
    name = lab.relative(lab.tests)
    tasks = {stub.number for stub in stubs}
    problems = []
    for test in tests:
        if test.points is None or test.points < 1:
            problems.append(f"{name}: {test.name} has no @pytest.mark.points(n)")
        if test.task not in tasks:
            problems.append(f"{name}: {test.name} belongs to no task of solution.py (it says {test.task})")
        if not test.takes_lab:
            problems.append(f"{name}: {test.name} does not take the fixture `lab`")
    problems += _check_inside(name, tests)
    problems += [f"{name}: task {task} has no test" for task in sorted(tasks - {test.task for test in tests})]
    declared = declared_names(starter)
    for node in ast.walk(ast.parse(lab.tests.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Attribute):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "lab" and node.attr not in declared:
            problems.append(f"{name}:{node.lineno}: lab.{node.attr} is not declared in starter.py")
        elif node.attr.startswith("_") and not node.attr.startswith("__"):
            problems.append(f"{name}:{node.lineno}: .{node.attr} is private; a right solution need not have it")
    return problems


def _check_inside(name: str, tests: list[GradedTest]) -> list[str]:
    """Check that tests that trust the file's own process are worth few points, and that each gives a reason."""
    inside = [test for test in tests if test.is_inside]
    problems = [f"{name}: {test.name} is marked inside without a reason: @pytest.mark.inside(\"why\")"
                for test in inside if not test.why_inside]
    num_inside, num_points = (sum(test.points or 0 for test in some) for some in (inside, tests))
    if 100 * num_inside > MAX_INSIDE_PERCENT * num_points:
        problems.append(f"{name}: {num_inside} of {num_points} points are inside, at most {MAX_INSIDE_PERCENT} % may "
                        "be")
    return problems


def _check_score(lab: Lab, tests: list[GradedTest]) -> list[str]:
    """Check that one test of an open lab keeps its score, and that its module has what ``course board`` calls."""
    keepers = [test.name for test in tests if test.keeps_score]
    steps = [test.name for test in tests if test.is_step]
    if lab.score is None:
        return [f"{lab.relative(lab.tests)}: {name} keeps a score or is a step of it, but lab.json names none"
                for name in dict.fromkeys(keepers + steps)]
    problems = [] if len(keepers) == 1 else [
        f"{lab.relative(lab.tests)}: one test must keep the score (the fixture keep_score); here "
        f"{', '.join(keepers) or 'none'}: {len(keepers)}"]
    problems += [f"{lab.relative(lab.tests)}: {name} keeps the score and cannot be a step of it"
                 for name in keepers if name in steps]
    name = lab.relative(lab.folder / "lab.json")
    try:
        module = importlib.import_module(lab.score.module)
    except ImportError as error:
        return [*problems, f"{name}: score: {error}"]
    return problems + [f"{name}: score: {lab.score.module} has no function {function}"
                       for function in ("score", "table", "total", "landmarks") if not hasattr(module, function)]


def _check_counts(lab: Lab, tests: list[GradedTest]) -> list[str]:
    """Check the counts that the page gives under "Done when"."""
    right = f"{len(tests)} tests, {sum(test.points or 0 for test in tests)} points"
    told = _COUNTS.findall(lab.readme.read_text(encoding="utf-8"))
    return [f"{lab.relative(lab.readme)} says {each}; there are {right}" for each in told if each != right]


def _check_docstrings(lab: Lab, solution: str) -> list[str]:
    """Check that each contract can be read at a glance: little prose, otherwise lists with an example."""
    name, problems = lab.relative(lab.solution), []
    for place, docstring in task_docstrings(solution).items():
        prose, lists = parts_of(docstring)
        num_lines = sum(bool(line.strip()) for line in prose.splitlines()[1:])
        if num_lines > MAX_PROSE_LINES:
            problems.append(f"{name}: {place} has {num_lines} lines of prose, at most {MAX_PROSE_LINES} may be: write "
                            f"lists (Before, After, Returns, Raises)")
        if lists and "Example" not in docstring:
            problems.append(f"{name}: {place} has a contract in lists, and no Example")
    return problems


def _check_bare(lab: Lab, solution: str) -> list[str]:
    """Check that a second pass without the recipe is possible, and that the page offers it."""
    name, problems = lab.relative(lab.folder / "lab.json"), []
    if not lab.bare:
        problems.append(f"{name} has no `bare` list: which sentences does a bare starter keep?")
    texts = {place: re.sub(r"\s+", " ", docstring) for place, docstring in task_docstrings(solution).items()}
    bare = re.sub(r"\s+", " ", bare_starter(lab)).lower()
    for quote in lab.bare:
        place, _, words = quote.partition(": ")
        if words not in texts.get(place, ""):
            problems.append(f"{name}: bare: no task docstring of {place} says {words!r}")
        elif words.lower() not in bare:
            problems.append(f"{name}: bare: {quote!r} keeps nothing: {place} is not in the bare starter")
    command = f"course reset {lab.number} --bare"
    if command not in lab.readme.read_text(encoding="utf-8"):
        problems.append(f"{lab.relative(lab.readme)} does not offer `{command}`")
    return problems


def _check_hints(lab: Lab, stubs: list[Stub]) -> list[str]:
    text = lab.hints.read_text(encoding="utf-8")
    hints = parse_hints(text)
    name = lab.relative(lab.hints)
    problems = [f"{name}: a hint begins on the line after its heading, not in it: {heading}"
                for heading in re.findall(r"^### Hint \d+ .*$", text, flags=re.M)]
    for task in sorted({stub.number for stub in stubs}):
        for level in LEVELS:
            if not hints.get(task, {}).get(level):
                problems.append(f"{name}: task {task} has no hint {level}")
    return problems + [f"{name}: there is no task {task}" for task in sorted(hints.keys() - {s.number for s in stubs})]


def _check_answers(lab: Lab) -> list[str]:
    """Check that every question that the lab's page leaves open has an answer."""
    questions = [question.name for question in questions_of(lab.readme.read_text(encoding="utf-8"))]
    answers = parse_answers(lab.answers.read_text(encoding="utf-8")) if lab.answers.is_file() else {}
    name = lab.relative(lab.answers)
    return ([f"{name}: question {question} of README.md has no answer"
             for question in questions if not answers.get(question)]
            + [f"{name}: README.md has no question {answer}" for answer in answers if answer not in questions])


def _check_mutants(mutants: list[Mutant], solution: str, tests: list[GradedTest]) -> tuple[list[Mutant], list[str]]:
    usable, problems, names = [], [], {test.name for test in tests}
    for mutant in mutants:
        if mutant.name in empty_files.FILES:
            problems.append(f"mutant {mutant.name}: the name is that of {empty_files.FILES[mutant.name]}")
            continue
        try:
            mutant.apply(solution)
            usable.append(mutant)
        except LabError as error:
            problems.append(str(error))
        if mutant.killed_by not in names:
            problems.append(f"mutant {mutant.name}: its killer {mutant.killed_by} is not a test of this lab")
    duplicates = {mutant.name for mutant in mutants if sum(mutant.name == other.name for other in mutants) > 1}
    problems += [f"mutant {name}: the name is used twice" for name in sorted(duplicates)]
    if len(mutants) < MIN_MUTANTS:
        problems.append(f"{len(mutants)} mutants, must be at least {MIN_MUTANTS}")
    return usable, problems


def _check_promises(lab: Lab, solution: str, mutants: list[Mutant]) -> list[str]:
    """Check that every promise of the contract has a mutant that breaks it, or a reason why no test could see that."""
    contract = contract_of(solution, lab.readme.read_text(encoding="utf-8"))
    name = lab.relative(lab.mutants)
    problems, broken, unseen = [], set(), set()
    for mutant in mutants:
        if not mutant.quotes:
            problems.append(f"mutant {mutant.name}: no breaks='place: words of the contract'")
        for quote in mutant.quotes:
            try:
                broken.update(contract.kept_by(quote))
            except ValueError as error:
                problems.append(f"mutant {mutant.name}: breaks: {error}")
    for quote, reason in unobservable_in(lab).items():
        try:
            unseen.update(contract.kept_by(quote))
        except ValueError as error:
            problems.append(f"{name}: UNOBSERVABLE: {error}")
        if not reason.strip():
            problems.append(f"{name}: UNOBSERVABLE says no reason for {quote!r}")
    problems += [f"{name}: UNOBSERVABLE, but a mutant breaks it: {promise}"
                 for promise in contract.promises if promise in broken and promise in unseen]
    return problems + [f"no mutant breaks this promise: {promise}"
                       for promise in contract.promises if promise not in broken | unseen]


def check_verdicts(contents: Contents, verdicts: Verdicts) -> list[str]:
    """Return what is wrong: tests that fail on the solution or pass on unwritten files, and mutants that survive."""
    problems = []
    for label in ("solution", "engine"):
        for name, verdict in verdicts.get(label, {}).items():
            if not verdict.passed:
                problems.append(f"{name} fails on the {label}: {verdict.message}")
    task_of = {stub.message: stub.number for stub in contents.stubs}
    for test in contents.tests:
        verdict = verdicts["starter"][test.name]
        if verdict.passed:
            problems.append(f"{test.name} passes on the untouched starter: it gives away {test.points} points")
        elif verdict.error != "NotImplementedError" or verdict.message not in task_of:
            problems.append(f"{test.name} fails on the starter, but not at the stub of a task: {verdict.message}")
        elif test.task is not None and task_of[verdict.message] > test.task:
            problems.append(f"{test.name} belongs to task {test.task}, but on the starter it stops "
                            f"at {verdict.message!r}")
    problems += empty_files.points_for_nothing(contents.tests, verdicts)
    for mutant in contents.mutants:
        of_killer = verdicts[mutant.name].get(mutant.killed_by)
        if of_killer is not None and of_killer.passed:
            problems.append(f"mutant {mutant.name} survives {mutant.killed_by}, which should have caught it")
        elif of_killer is not None and of_killer.error == NOT_RUN:
            problems.append(f"mutant {mutant.name}: its killer {mutant.killed_by} says nothing about it: "
                            f"{of_killer.message}")
    return problems
