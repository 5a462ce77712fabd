"""What results are made by and with: it stands in every one of them, and decides which of them still hold."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mini_vllm
from course.core.result import Provenance, TestResult
from course.grading.limits import Settings
from course.lab.graded_tests import graded_tests
from course.lab.lab import Lab, LabError

#: What decides about a score, as far as it lies in the course's tree.
TREES = ("course", "mini_vllm", ":(glob)phase-*/**")


@dataclass(frozen=True)
class Level:
    """The sandbox that this machine offers."""

    name: str
    has_network: bool
    not_defended: tuple[str, ...]


@dataclass(frozen=True)
class _HiddenLab(Lab):
    """The hidden half of a lab, so that its tests can be read like those of the other."""

    @property
    def tests(self) -> Path:
        return self.folder / "test_hidden.py"


def make_provenance(root: Path, labs: Sequence[Lab], settings: Settings, level: Level) -> Provenance:
    return Provenance(
        commit=commit_of(root), tests_sha256={lab.number: digest_of_tests(lab, settings.hidden) for lab in labs},
        python=platform.python_version(), platform=platform.platform(),
        limits={"time_limit_s": settings.time_limit_s}, sandbox=level.name, has_network=level.has_network,
        not_defended=level.not_defended)


def key_of(lab: str, file_sha256: str, provenance: Provenance, settings: Settings) -> str:
    """A digest of all that a score depends on, the same on every machine that grades the same course: of the sandbox
    counts what was asked for, of Python the version without its last number."""
    parts = [lab, file_sha256, provenance.tests_sha256[lab], provenance.commit, mini_vllm.__version__,
             settings.sandbox, settings.time_limit_s, sys.version_info[:2]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def hidden_tests(lab: Lab, hidden: Path | None) -> Path | None:
    path = hidden / lab.number / "test_hidden.py" if hidden else None
    return path if path is not None and path.is_file() else None


def digest_of_tests(lab: Lab, hidden: Path | None) -> str:
    """Of the lab's tests, and of everything in its folder of hidden ones."""
    digest = hashlib.sha256(lab.tests.read_bytes())
    if hidden is not None:
        for path in sorted((hidden / lab.number).glob("**/*.py")):
            digest.update(b"\0" + path.relative_to(hidden).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def unearned(lab: Lab, hidden: Path | None) -> tuple[TestResult, ...]:
    """Every graded test of a lab, failed: what there was to earn, where nothing could be run."""
    tests = [TestResult(test.name, test.points or 0, False, test.task) for test in graded_tests(lab)]
    path = hidden_tests(lab, hidden)
    if path is not None:
        tests += [TestResult(test.name, test.points or 0, False, test.task, is_hidden=True)
                  for test in graded_tests(_HiddenLab(path.parent, path.parent, lab.number))]
    return tuple(tests)


def check_hidden(hidden: Path, labs: Sequence[Lab]) -> None:
    """Raises LabError for a folder of hidden tests that is not there, is empty, or names labs that are not."""
    if not hidden.is_dir():
        raise LabError(f"--hidden {hidden} is no folder; it has one for each lab, as in 2.1/test_hidden.py.")
    numbers = [lab.number for lab in labs]
    folders = sorted(path.parent.name for path in hidden.glob("*/test_hidden.py"))
    if not folders:
        raise LabError(f"--hidden {hidden} holds no hidden tests; they are called 2.1/test_hidden.py.")
    unknown = [folder for folder in folders if folder not in numbers]
    if unknown:
        raise LabError(f"--hidden {hidden}: there is no lab {', '.join(unknown)}.")


def commit_of(root: Path) -> str:
    """The commit of the course's tree, with a digest of what was changed since; without git what the file COMMIT says,
    which a package for Gradescope brings along, else the version."""
    packed = root / "COMMIT"
    if packed.is_file():
        return packed.read_text(encoding="utf-8").strip()[:12]
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return f"version {mini_vllm.__version__}"
    changed = (_git(root, "status", "--porcelain", "--", *TREES) or b"") + (
        _git(root, "diff", "HEAD", "--", *TREES) or b"")
    name = commit.decode().strip()
    return f"{name}-dirty-{hashlib.sha256(changed).hexdigest()[:8]}" if changed else name


def _git(root: Path, *words: str) -> bytes | None:
    try:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
