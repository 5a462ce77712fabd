"""The content of a sandbox: the student's file, what its starter imports, and nothing else of the course.

The names that the lab lists from the course's modules (``surface``) stay in the grader and are served: ``from
mini_vllm.block_pool import BlockPool`` gives a stand-in. A class that a lab extends, from its base or from the engine,
must be in the sandbox itself; ``lab.json`` names such modules under ``given``. Names that these modules import but the
lab does not list are placeholders there: calling one raises an error.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
from dataclasses import dataclass
from pathlib import Path

from course.grading.remote_lab.bytecode import cached_name, compiled
from course.grading.remote_lab.surface import Surface, surface_of
from course.grading.sandbox import Level, Limits, SandboxFiles
from course.grading.sandbox.visible_paths import installed_blas, mkl_library
from course.lab.lab import PROJECT_ROOT, Lab, LabError, discover, find_lab

#: The modules of the sandbox's side, and those that measure where the file runs.
SANDBOX_MODULES = (
    "course.grading.remote_lab.sandbox_main",
    *(f"course.grading.protocol.{name}" for name in (
        "access_rules", "bounds", "class_info", "connection", "decode", "encode", "exceptions", "expanded_size",
        "handles", "interface", "message_bytes", "perform", "proxies", "shared_containers", "socket_messages", "tags")),
    "course.testing.measure", "course.testing.measure_mlx", "course.eviction.remembered",
    "course.faster_step.driver")
#: In the sandbox ``from mini_vllm.backend import mx`` is MLX itself, unless the lab gives the engine's own backend.
BACKEND = b"import mlx.core as mx\n"
BACKEND_MODULE = "mini_vllm.backend"
PACKAGES = ("numpy", "mlx", "pytest")


@dataclass(frozen=True)
class SandboxSettings:
    """The settings for running one file of one lab."""

    lab: Lab
    #: The student's file, as it was read once. It is not read again.
    source: bytes
    level: Level
    limits: Limits
    #: The folders of hidden tests.
    hidden: tuple[Path, ...] = ()
    #: Whether ``source`` is the lab's reference instead, with all the modules that it imports.
    is_reference: bool = False

    @functools.cached_property
    def _imports(self) -> Imports:
        imports = imports_of(self.lab)
        if not self.is_reference:
            return imports
        return dataclasses.replace(imports, wanted={}, bases={},
                                   given=(*imports.given, *_with_imports(self.lab, self.lab.reference)))

    @functools.cached_property
    def surface(self) -> Surface:
        return surface_of(self.lab, self.hidden)

    def of_reference(self) -> SandboxSettings:
        """Return the settings for the lab's reference: the same level, limits and packages."""
        source = self.lab.module_path(self.lab.reference).read_bytes()
        return dataclasses.replace(self, source=source, is_reference=True)

    def files(self) -> SandboxFiles:
        imports = self._imports
        sources = {_path_of(module): PROJECT_ROOT / _path_of(module) for module in SANDBOX_MODULES}
        sources |= {_path_of(module): self.lab.module_path(module) for module in imports.given}
        files = {name: path.read_bytes() for name, path in sources.items()}
        files |= {cached_name(name): compiled(path, files[name]) for name, path in sources.items()}
        files["work/starter.py"] = self.source
        files |= {f"bases/{number}.py": path.read_bytes() for number, path in imports.bases.items()}
        for module in (*SANDBOX_MODULES, *imports.given):
            for package in _parents(module):
                files.setdefault(f"{package.replace('.', '/')}/__init__.py", b"")
        packages, environment = imports.packages, {}
        if BACKEND_MODULE in imports.given:
            packages, environment = (*packages, *installed_blas()), _choice_of_blas()
        elif "mlx" in packages:
            files |= {"mini_vllm/__init__.py": b"", "mini_vllm/backend.py": BACKEND}
        served = self.surface.imports()
        absent = {module: sorted(set(names) - set(served.get(module, ()))) for module, names in imports.wanted.items()}
        files["settings.json"] = json.dumps({"served": served, "absent": absent, "bases": list(imports.bases),
                                             "environment": environment}).encode()
        return SandboxFiles(files, packages)


@dataclass(frozen=True)
class Imports:
    """The imports of a lab's starter, and where they are found."""

    #: Module that is not in the sandbox → the names that are imported from it.
    wanted: dict[str, list[str]]
    #: Modules of the course that are in the sandbox.
    given: tuple[str, ...]
    #: Number of a lab that this one extends → the file that is used for it.
    bases: dict[str, Path]
    packages: tuple[str, ...]


def imports_of(lab: Lab) -> Imports:
    """Find the imports of a lab's solution, which are those of its starter. Raise LabError if a file is damaged."""
    labs = discover(lab.root)
    bases: dict[str, Path] = {}
    number = lab.base
    while number is not None:
        below = find_lab(number, labs)
        bases[number] = below.solution
        number = below.base
    wanted: dict[str, list[str]] = {}
    packages: list[str] = []
    to_read = [lab.solution, *bases.values(), *(lab.module_path(module) for module in lab.given)]
    for path in to_read:
        for module, names in _imported(path):
            package = module.split(".")[0]
            if module == "mini_vllm.backend":
                package = "mlx"
            elif package in ("mini_vllm", "course") and module != "course.base" and module not in lab.given:
                not_given = [name for name in names if f"{module}.{name}" not in lab.given]
                if not_given or not names:
                    wanted[module] = sorted({*wanted.get(module, ()), *not_given})
            if package in PACKAGES and package not in packages:
                packages.append(package)
    if "numpy" not in packages:  # it comes with the course, and MLX arrays cross as NumPy arrays
        packages.append("numpy")
    return Imports(wanted, lab.given, bases, tuple(packages))


def _with_imports(lab: Lab, module: str) -> tuple[str, ...]:
    """Return a module of the course and the modules of the course that it imports, directly or not."""
    found: dict[str, None] = {}
    todo = [module]
    while todo:
        each = todo.pop()
        path = lab.module_path(each)
        if each in found or not path.is_file() or path.name == "__init__.py":
            continue
        found[each] = None
        for other, names in _imported(path):
            if other.split(".")[0] in ("mini_vllm", "course"):
                todo += [other, *(f"{other}.{name}" for name in names)]
    return tuple(found)


def _choice_of_blas() -> dict[str, str]:
    """Return environment variables that select MKL for ``mini_vllm.backend``, if it is installed. That module looks for
    MKL where Python is installed, which is not where the sandbox has it. One thread: see ``launch``."""
    library = mkl_library()
    return {} if library is None else {"MINI_VLLM_BLAS": library, "MKL_THREADING_LAYER": "SEQUENTIAL"}


def _imported(path: Path) -> list[tuple[str, list[str]]]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise LabError(f"{path} cannot be read: {error}") from None
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.module, [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
    return found


def _path_of(module: str) -> str:
    return module.replace(".", "/") + ".py"


def _parents(module: str) -> list[str]:
    parts = module.split(".")[:-1]
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


