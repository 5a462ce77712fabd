"""A lower layer never imports a higher one: the engine's modules are in layers, and each knows only those below it."""

from pathlib import Path

import pytest

from mini_vllm.tests import layers
from mini_vllm.tests.layers import RULE, cycles, imports_of, modules_of

PACKAGE = Path(__file__).parents[1]

#: The units of the package, bottom up. A unit is a module directly in the package, or a folder.
LAYERS = (
    "checks", "arguments", "extras", "terminal", "backend", "structured", "request", "request_queue", "block_pool",
    "prefix_tree", "kv_cache", "scheduler", "attention", "fast", "models", "logit_rules", "sampler", "model_runner",
    "parts", "metrics", "native", "gpu", "speculation", "sequences", "trace", "pictures", "engine_config",
    "lookahead", "executor", "input_processor", "engine_frame", "recovery", "engine", "simulation", "beam_search",
    "llm", "engine_thread", "async_engine", "router", "server", "benchmark", "demo", "cli", "__main__", "__init__",
    "tests",
)
#: What ``mini_vllm/__init__.py`` defines itself. Its other names come from all over the package, so it counts as the
#: top layer; this name may be imported everywhere.
OWN_NAMES = ("__version__",)


def unit_of(name: str, modules: dict[str, str]) -> str | None:
    """Return the unit that a dotted name of the package belongs to; None for what the package itself defines."""
    parts = name.split(".")
    if len(parts) > 1 and parts[1] in OWN_NAMES:
        return None
    units = {module.split(".")[1] for module in modules} | set(LAYERS)
    return parts[1] if len(parts) > 1 and parts[1] in units else "__init__"


def upward_imports(modules: dict[str, str]) -> list[str]:
    return layers.upward_imports(modules, LAYERS, unit_of)


def foreign_imports(modules: dict[str, str]) -> list[str]:
    """Return a sentence for every import of the course or of a lab: the engine knows nothing of them."""
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


def test_there_is_no_cycle(modules):
    problems = cycles(modules)
    assert not problems, "\n".join(problems)


def test_the_engine_knows_nothing_of_the_course(modules):
    problems = foreign_imports(modules)
    assert not problems, "\n".join(problems)


# ---- the tests of these functions, on invented packages


def made_up(**texts: str) -> dict[str, str]:
    """Return modules of ``mini_vllm`` with these sources; two underscores stand for a dot: ``models__network``."""
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
    numbers = [LAYERS.index(unit) for unit in ("engine", "scheduler")]
    assert "engine (layer {}) is above scheduler (layer {})".format(*numbers) in problem and RULE in problem


@pytest.mark.parametrize("statement", [
    "from mini_vllm.scheduler import Scheduler", "from mini_vllm import scheduler, __version__", "import mlx.core",
    "from .scheduler import Scheduler", "from collections import engine",
])
def test_a_downward_import_is_none(statement):
    assert upward_imports(made_up(engine=statement, scheduler="")) == []


def test_a_cycle_is_found():
    two = made_up(models="", models__network="from mini_vllm.models import rope",
                  models__rope="def f():\n    from mini_vllm.models.network import Network")
    (problem,) = cycles(two)
    assert problem.startswith("modules import each other in a circle: mini_vllm.models.")
    assert problem.count("mini_vllm.models.rope") >= 1 and problem.count("mini_vllm.models.network") >= 1
    assert cycles(made_up(models="from .network import Network", models__network="from .rope import Rope",
                          models__rope="")) == []
