"""The course inside the package: the files that ``course init`` writes into the student's folder.

In a wheel the phases are inside this package (setup.py puts them there); in a checkout they are next to it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import mini_vllm
from course.lab.lab import PROJECT_ROOT, LabError, discover
from course.lab.starters import shipped_starter

PACKED = Path(__file__).resolve().parents[1] / "_course"

_PYTEST = """\
# This file tells pytest and `course` where the labs are.
[tool.pytest.ini_options]
addopts = "-p course.plugin --import-mode=importlib --strict-markers"
testpaths = ["phase-*/labs", "phase-*/capstone"]
"""
_CONFTEST = '''\
"""Load the course's pytest plugin: --impl, the ``lab`` fixture, points."""

pytest_plugins = ["course.plugin"]
'''
#: The suffixes of the files that are copied from these folders; the rest is for the site and for the tests.
_SUFFIXES = {"docs": (".md", ".svg"), "notebooks": (".ipynb",)}
#: The sections of the project's README that a student needs.
_FRONT_PAGE = ("## The course", "## For students")


def course_files() -> dict[str, bytes]:
    """Return all files of the installed version's course: relative path → content. Raise LabError if there are none."""
    source = PACKED if PACKED.is_dir() else PROJECT_ROOT
    labs = discover(source)
    if not labs:
        raise LabError("This installation contains no labs: reinstall the package.")
    files = {"pyproject.toml": _PYTEST.encode(), "conftest.py": _CONFTEST.encode(),
             "README.md": _front_page((source / "README.md").read_text(encoding="utf-8")).encode()}
    for folder in [*sorted(source.glob("phase-*")), *map(source.joinpath, _SUFFIXES)]:
        files |= {path.relative_to(source).as_posix(): path.read_bytes() for path in _files_of(folder)
                  if path.suffix in _SUFFIXES.get(folder.name, (path.suffix,))}
    for lab in labs:  # a checkout may contain a student's work
        files[lab.relative(lab.starter)] = shipped_starter(lab).encode()
    pages = {name: _with_links(content.decode(), name, files) for name, content in files.items()
             if name.endswith(".md")}
    pages |= {name: _notebook_with_links(content.decode(), name, files) for name, content in files.items()
              if name.endswith(".ipynb")}
    return files | {name: text.encode() for name, text in pages.items()}


def _files_of(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):  # docs/site is the frame of the site, which is built in a checkout
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")) and name != "site")
        yield from (Path(parent) / name for name in sorted(names)
                    if not name.endswith((".pyc", ".partial", ".new.py")) and not name.startswith("."))


def _front_page(readme: str) -> str:
    sections = re.split(r"^(?=## )", readme, flags=re.M)
    text = "# Your mini_vllm\n\nBegin with `course next`.\n\n"
    text += "".join(section for section in sections if section.startswith(_FRONT_PAGE))
    return re.sub(r"^source \.venv/bin/activate\n", "", text, flags=re.M)


def _notebook_with_links(text: str, page: str, files: dict[str, bytes]) -> str:
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _with_links("".join(cell["source"]), page, files).splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _with_links(text: str, page: str, files: dict[str, bytes]) -> str:
    """Redirect links from ``page`` to files that are not copied.

    They lead to the installed package; if the file is also missing there, the link becomes plain text.
    """
    package = Path(mini_vllm.__file__).resolve().parent.parent

    def lead(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = os.path.normpath(PurePosixPath(page).parent / target)
        if re.match(r"[a-z]+:", target) or path in files or any(name.startswith(f"{path}/") for name in files):
            return match[0]
        installed = package / path
        return f"[{label}](<{installed.as_posix()}{anchor}>)" if installed.exists() and path[0] != "." else label

    return re.sub(r"\[([^\]\n]*)\]\(([^)\s#]+)(#[^)\s]*)?\)", lead, text)
