"""The API: a page for every module and every room, in the groups and the order of the engine's map."""

from __future__ import annotations

import re
from pathlib import Path

from course_site.markdown import sections, shifted

#: Its section "The modules" has a table for each group; the first column names what lies in the package.
MAP = "docs/engine.md"
MODULES = "The modules"
PACKAGE = "mini_vllm"
#: The scheme of a link to a page with the source of a file.
SOURCE = "source:"
#: Rooms that hold commands and suites, nothing that anybody imports.
_NOT_CALLED = ("cli", "demo", "benchmark", "fuzz", "tests")
_NAME = re.compile(r"`(\w+)(\.py|/)`")


def _rows(text: str) -> list[str]:
    """The lines of all tables in a text, without the head of each."""
    return [line for line in text.splitlines() if line.startswith("| `")]


def _first_column(row: str) -> str:
    return row.split("|")[1]


def modules_of_the_map(text: str) -> list[str]:
    """Modules and rooms as the map's tables name them, from top to bottom: ``request``, ``block_pool``, …"""
    names = [name for row in _rows(sections(text)[MODULES]) for name, _ in _NAME.findall(_first_column(row))]
    return [name for name in names if name not in _NOT_CALLED]


def index_page(text: str) -> str:
    """The map's tables, where the name of a module leads to its page."""

    def linked(row: str) -> str:
        column = _first_column(row)
        names = _NAME.sub(lambda found: found[0] if found[1] in _NOT_CALLED else f"[{found[0]}]({found[1]}.md)", column)
        return row.replace(column, names, 1)

    section = sections(text)[MODULES]
    for row in _rows(section):
        section = section.replace(row, linked(row), 1)
    return shifted(section, -1).replace(f"# {MODULES}", "# The API", 1)


def modules_of(root: Path, name: str) -> list[str]:
    """The dotted names of what the page of a module or room shows: the module, or the room and then its modules."""
    folder = root / PACKAGE / name
    if not folder.is_dir():
        return [f"{PACKAGE}.{name}"]
    inner = [path.stem for path in sorted(folder.glob("*.py")) if not path.name.startswith(("test_", "conftest", "__"))]
    return [f"{PACKAGE}.{name}", *(f"{PACKAGE}.{name}.{each}" for each in inner)]


def module_page(root: Path, name: str) -> str:
    """What the docstrings of a module say, or of all modules of a room."""
    parts = [f"# {name}"]
    for module in modules_of(root, name):
        inner = module.removeprefix(f"{PACKAGE}.{name}").lstrip(".")
        parts += [f"## {inner}"] if inner else []
        parts += [f"[`{_file(root, module)}`]({SOURCE}{_file(root, module)})",
                  f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```"]
    return "\n\n".join(parts) + "\n"


def _file(root: Path, module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if (root / path).is_dir() else f"{path}.py"
