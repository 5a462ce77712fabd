"""A lower layer never imports a higher one: the course's folders form layers, and each uses only those below."""

from pathlib import Path

import pytest

from mini_vllm.tests import layers
from mini_vllm.tests.layers import RULE, cycles, modules_of

PACKAGE = Path(__file__).parent

#: The units of the package, bottom up. A unit is a folder, or a module at the top level of the package. Units inside
#: ``grading`` are named with it, as in ``grading.sandbox``.
LAYERS = (
    "grading.sandbox.inside", "grading.sandbox", "grading.protocol", "testing", "core", "lab", "eviction",
    "faster_step", "goodput", "replicas", "base", "mutants", "expecting", "gauges", "eviction_arena", "goodput_arena",
    "exercises", "pytest_run", "grading", "grading.intake", "grading.gradebook", "grading.similarity",
    "grading.export", "grading.remote_lab", "install", "own_engine", "student", "mine", "grading.grade_file",
    "authoring", "grading.class_run", "grading.hostile", "plugin", "commands", "cli", "__init__",
)
#: The most entries of a folder that can still be read like a table of contents.
MAX_ENTRIES = 20


def unit_of(name: str, modules: dict[str, str]) -> str:
    """Return the unit that a dotted name of the package belongs to: the longest one listed."""
    parts = name.split(".")[1:]
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in LAYERS:
            return ".".join(parts[:end])
    return "__init__"


@pytest.fixture(scope="module")
def modules():
    return modules_of(PACKAGE)


def test_every_module_has_its_layer(modules):
    lost = [name for name in modules if unit_of(name, modules) == "__init__" and name != "course.__init__"]
    assert not lost, f"{lost}: in which layer? LAYERS in test_layers.py does not say"
    assert len(LAYERS) == len(set(LAYERS))


def test_no_import_runs_upwards(modules):
    problems = layers.upward_imports(modules, LAYERS, unit_of)
    assert not problems, "\n".join(problems)


def test_there_is_no_cycle(modules):
    problems = cycles(modules)
    assert not problems, "\n".join(problems)


def test_a_folder_reads_like_a_table_of_contents(modules):
    """Count the modules except ``__init__``, the paths that students and labs import, and tests."""
    folders: dict[str, list[str]] = {}
    for name, text in modules.items():
        folder, _, entry = name.rpartition(".")
        if entry != "__init__" and " import this path; " not in text:
            folders.setdefault(folder, []).append(entry)
    too_full = {folder: len(entries) for folder, entries in folders.items() if len(entries) > MAX_ENTRIES}
    assert not too_full


def test_every_folder_says_what_it_holds():
    silent = [str(path) for path in PACKAGE.rglob("__init__.py") if not path.read_text().startswith('"""')]
    assert not silent


# ---- tests of these checks


def made_up(**texts: str) -> dict[str, str]:
    return {"course." + name.replace("__", "."): text for name, text in texts.items()}


@pytest.mark.parametrize("statement", [
    "from course.student.progress import Progress", "def f():\n    import course.student.progress",
    "if TYPE_CHECKING:\n    from course.student import progress"])
def test_an_upward_import_is_found(statement):
    (problem,) = layers.upward_imports(made_up(lab__hints=statement, student__progress=""), LAYERS, unit_of)
    assert problem.startswith("course.lab.hints, line") and "student (layer" in problem and RULE in problem
    assert not layers.upward_imports(made_up(student__progress="import course.lab.hints", lab__hints=""), LAYERS,
                                     unit_of)


def test_a_folder_of_grading_has_a_layer_of_its_own():
    wrong = made_up(grading__protocol__tags="import course.grading.remote_lab.broker", grading__remote_lab__broker="")
    (problem,) = layers.upward_imports(wrong, LAYERS, unit_of)
    assert "grading.remote_lab (layer" in problem and "is above grading.protocol" in problem
