"""An import never runs upwards: the engine's modules lie in layers, and each knows only what lies below it."""

import ast
import functools
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]

#: The units of the package, bottom up. A unit is a module that lies flat in the package, or a room (a folder).
LAYERS = (
    "checks", "extras", "terminal", "typewriter", "backend", "request", "request_queue", "block_pool", "caching",
    "prefix_tree", "kv_cache", "scheduler", "giving_way", "stopping", "attention", "fast", "models", "sampling",
    "sampler", "model_runner", "gpu", "sequences", "trace", "pictures", "engine_config", "joints", "lookahead",
    "engine_room", "recovery", "engine", "simulation", "beams", "beam_search", "llm", "output_stream", "engine_thread",
    "async_engine", "server", "benchmark", "fuzz", "demo", "cli", "__main__", "__init__", "tests",
)
#: What ``mini_vllm/__init__.py`` defines itself. Its other names come from all over the package, so it counts as the
#: top; this one may be imported from everywhere.
OWN_NAMES = ("__version__",)
RULE = "an import may only go to a unit further down (the order is LAYERS in test_layers.py)"


@dataclass(frozen=True)
class Import:
    """One import statement's target, as it stands in the text of ``importer``; both with all their dots."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.imported}"


def module_name(path: Path, package: Path) -> str:
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if len(parts) > 2 and parts[-1] == "__init__" else parts)


def modules_of(package: Path) -> dict[str, str]:
    """Name → text of every module that is no test. A room's name stands for its ``__init__``."""
    paths = [path for path in sorted(package.rglob("*.py")) if not path.name.startswith("test_")
             and path.name != "conftest.py" and "tests" not in path.relative_to(package).parts]
    return {module_name(path, package): path.read_text(encoding="utf-8") for path in paths}


@functools.cache
def import_statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(modules: dict[str, str]) -> list[Import]:
    """Every import of every module, wherever it stands: at the top, in a function, for the type checker only."""
    found = []
    for importer, text in modules.items():
        for node in import_statements(text):
            if isinstance(node, ast.Import):
                found += [Import(importer, alias.name, node.lineno) for alias in node.names]
            else:
                base = _absolute(node, importer, modules)
                found += [Import(importer, f"{base}.{alias.name}", node.lineno) for alias in node.names]
    return found


def _absolute(node: ast.ImportFrom, importer: str, modules: dict[str, str]) -> str:
    if not node.level:
        return node.module or ""
    is_package = any(name.startswith(f"{importer}.") for name in modules)
    parts = importer.removesuffix(".__init__").split(".")
    parts = parts[:len(parts) - node.level + (is_package or importer.endswith(".__init__"))]
    return ".".join([*parts, *([node.module] if node.module else [])])


def unit_of(name: str, modules: dict[str, str]) -> str | None:
    """The unit that a dotted name of the package belongs to. None for what the package itself defines."""
    parts = name.split(".")
    if len(parts) > 1 and parts[1] in OWN_NAMES:
        return None
    units = {module.split(".")[1] for module in modules} | set(LAYERS)
    return parts[1] if len(parts) > 1 and parts[1] in units else "__init__"


def upward_imports(modules: dict[str, str]) -> list[str]:
    """A sentence for every import that breaks the rule."""
    (package,) = {name.split(".")[0] for name in modules}
    layer_of = {unit: layer for layer, unit in enumerate(LAYERS)}
    problems = []
    for found in imports_of(modules):
        if found.imported.split(".")[0] != package:
            continue
        importer, imported = unit_of(found.importer, modules), unit_of(found.imported, modules)
        if layer_of.get(imported, -1) > layer_of.get(importer, len(LAYERS)):
            problems.append(f"{found}: {imported} (layer {layer_of[imported]}) lies above {importer} "
                            f"(layer {layer_of[importer]}); {RULE}")
    return problems


def cycles(modules: dict[str, str]) -> list[str]:
    """A sentence for every room whose modules import each other in a circle."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for found in imports_of(modules):
        room = ".".join(found.importer.split(".")[:2])
        target = found.imported if found.imported in modules else found.imported.rpartition(".")[0]
        if target in modules and target.split(".")[:2] == room.split(".") and target != found.importer:
            graphs.setdefault(room, {}).setdefault(found.importer, set()).add(target)
    problems = []
    for room, graph in graphs.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            problems.append(f"the modules of {room} import each other in a circle: {' → '.join(error.args[1][::-1])}")
    return problems


def foreign_imports(modules: dict[str, str]) -> list[str]:
    """A sentence for every import of the classroom or of a lab: the engine knows nothing of them."""
    return [f"{found}: the engine imports neither the course nor a lab" for found in imports_of(modules)
            if found.imported.split(".")[0] in ("course", "conftest", "starter", "solution", "test_lab")
            or found.imported.startswith("phase")]


@pytest.fixture(scope="module")
def modules():
    return modules_of(PACKAGE)


def test_every_unit_has_its_layer(modules):
    units = {name.split(".")[1] for name in modules}
    assert units <= set(LAYERS), f"{sorted(units - set(LAYERS))}: in which layer? LAYERS in test_layers.py does not say"
    assert len(LAYERS) == len(set(LAYERS))


def test_no_import_runs_upwards(modules):
    problems = upward_imports(modules)
    assert not problems, "\n".join(problems)


def test_no_room_has_a_cycle(modules):
    problems = cycles(modules)
    assert not problems, "\n".join(problems)


def test_the_engine_knows_nothing_of_the_course(modules):
    problems = foreign_imports(modules)
    assert not problems, "\n".join(problems)


# ---- the test of the tests: made-up packages


def made_up(**texts: str) -> dict[str, str]:
    """Modules of ``mini_vllm`` with these texts; two underscores stand for a dot: ``models__network``."""
    return {"mini_vllm." + name.replace("__", "."): text for name, text in {"engine": "", "llm": "", **texts}.items()}


@pytest.mark.parametrize("statement, line", [
    ("from mini_vllm.engine import LLMEngine", 1),
    ("import mini_vllm.engine", 1),
    ("import mini_vllm.engine as engine, os", 1),
    ("from mini_vllm import engine", 1),
    ("from . import engine", 1),
    ("from .engine import LLMEngine", 1),
    ("def f():\n    from mini_vllm.engine import LLMEngine", 2),
    ("if TYPE_CHECKING:\n    from mini_vllm.engine import LLMEngine", 2),
    ("try:\n    import json\nexcept ImportError:\n    import mini_vllm.engine", 4),
])
def test_an_upward_import_is_found_wherever_it_stands(statement, line):
    (problem,) = upward_imports(made_up(scheduler=statement))
    assert problem.startswith(f"mini_vllm.scheduler, line {line}, imports mini_vllm.engine")
    layers = [LAYERS.index(unit) for unit in ("engine", "scheduler")]
    assert "engine (layer {}) lies above scheduler (layer {})".format(*layers) in problem and RULE in problem


@pytest.mark.parametrize("statement", ["from mini_vllm import LLM", "import mini_vllm"])
def test_the_names_of_the_package_are_for_others(statement):
    (problem,) = upward_imports(made_up(scheduler=statement))
    assert f"__init__ (layer {LAYERS.index('__init__')}) lies above scheduler" in problem


@pytest.mark.parametrize("statement", [
    "from mini_vllm.scheduler import Scheduler", "from mini_vllm import scheduler, __version__", "import mlx.core",
    "from .scheduler import Scheduler", "from collections import engine",
])
def test_a_downward_import_is_none(statement):
    assert upward_imports(made_up(engine=statement, scheduler="")) == []


@pytest.mark.parametrize("statement", ["from ..engine import LLMEngine", "from mini_vllm.engine import LLMEngine"])
def test_a_room_lies_in_one_layer(statement):
    (problem,) = upward_imports(made_up(models="", models__network=statement))
    assert problem.startswith("mini_vllm.models.network, line 1, imports mini_vllm.engine.LLMEngine: engine")
    assert upward_imports(made_up(models="from .network import Network", models__network="from . import rope",
                                  models__rope="from ..request import Request")) == []


def test_a_cycle_in_a_room_is_found():
    two = made_up(models="", models__network="from mini_vllm.models import rope",
                  models__rope="def f():\n    from mini_vllm.models.network import Network")
    (problem,) = cycles(two)
    assert problem.startswith("the modules of mini_vllm.models import each other in a circle: mini_vllm.models.")
    assert problem.count("mini_vllm.models.rope") >= 1 and problem.count("mini_vllm.models.network") >= 1
    assert cycles(made_up(models="from .network import Network", models__network="from .rope import Rope",
                          models__rope="")) == []


@pytest.mark.parametrize("statement", ["import course", "from course.labs import discover", "from solution import add"])
def test_an_import_of_the_course_is_found(statement):
    (problem,) = foreign_imports(made_up(llm=statement))
    assert "mini_vllm.llm, line 1" in problem and "neither the course nor a lab" in problem


def test_a_unit_without_a_layer_is_found(tmp_path):
    (tmp_path / "attic").mkdir()
    for path in ("attic/old.py", "attic/test_old.py", "attic/conftest.py", "__init__.py"):
        (tmp_path / path).write_text("")
    modules = modules_of(tmp_path)
    assert list(modules) == [f"{tmp_path.name}.__init__", f"{tmp_path.name}.attic.old"]
    with pytest.raises(AssertionError, match=r"\['attic'\]: in which layer"):
        test_every_unit_has_its_layer(modules)
