"""The part of ``course check`` about a lab's surface: whether each listed name exists, and whether it is harmless."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

from course.core.child_process import ONE_THREAD, ChildProcess
from course.grading.remote_lab.surface import Surface, surface_of
from course.lab.lab import Lab, LabError
from course.pytest_run.listeners import OnPoll


def lines_of(lab: Lab) -> list[str]:
    """Return a lab's list, one line per class and function."""
    return [f"{name}: {words}".rstrip(": ") for name, words in sorted(lab.surface.items())]


def check_names(lab: Lab) -> list[str]:
    """Return complaints about listed names that do not exist."""
    try:
        surface = surface_of(lab)
    except LabError as error:
        return [str(error)]
    return [problem for name in surface.imports_flat() if (problem := _problem(surface, name))]


def _problem(surface: Surface, name: str) -> str:
    module, _, short = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), short)
    except (ImportError, AttributeError):
        return f"surface: there is no {name}"
    offer = surface.offers[name]
    if not isinstance(found, type) and (offer.reads or offer.can_be_called != callable(found)):
        return f"surface: {name} is not a class, so it cannot be listed like one"
    own_name = f"{getattr(found, '__module__', module)}.{getattr(found, '__qualname__', short)}"
    if own_name not in surface.offers:
        return f"surface: {name} is defined as {own_name}: also list that name, otherwise no file may use it"
    return ""


def call_everything(lab: Lab, on_poll: OnPoll = lambda: None) -> tuple[list[str], int]:
    """Call every entry with the solution's arguments and with hostile values.

    Return the complaints and the number of calls. The calls are made in a separate process; see ``call_surface``.
    """
    if not lab.surface:
        return [], 0
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider",
                   "-p", "course.plugin", "-p", "course.authoring.call_surface", "--rootdir", str(lab.root),
                   "-c", str(lab.root / "pyproject.toml"), "--impl", "solution", "--sandbox-level", "none",
                   "--time-limit", "60", str(lab.tests)]
        environment = {**os.environ, **ONE_THREAD, "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COURSE_SURFACE_COMPLAINTS": str(report)}
        child = ChildProcess(command, lab.root, environment, Path(folder) / "output.txt")
        child.watch(on_poll)
        if child.status or not report.is_file():
            return [f"surface: the tests could not be run on the solution:\n{child.printed()}"], 0
        found = json.loads(report.read_text(encoding="utf-8"))
    complaints = [f"surface: {each}" for each in found["complaints"]]
    complaints += [f"surface: {each} was never used by the solution: remove it" for each in found["unseen"]]
    return complaints, found["num_calls"]
