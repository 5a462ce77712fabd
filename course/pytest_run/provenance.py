"""Which code, tests and machine produced a result: part of every result, whoever grades."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course.core.result import Provenance
from course.lab.lab import Lab

#: The parts of the course's tree that can affect a score.
TREES = ("course", "mini_vllm", ":(glob)phase-*/**")


@dataclass(frozen=True)
class SandboxInfo:
    """The sandbox that a file ran in."""

    name: str
    has_network: bool
    not_defended: tuple[str, ...]


def make_provenance(root: Path, labs: Sequence[Lab], limits: Mapping[str, float], level: SandboxInfo,
                    hidden: Path | None = None) -> Provenance:
    """Collect the provenance. ``hidden`` is the folder of hidden tests, if there is one."""
    return Provenance(
        commit=commit_of(root), tests_sha256={lab.number: digest_of_tests(lab, hidden) for lab in labs},
        python=platform.python_version(), platform=platform.platform(), limits=dict(limits), sandbox=level.name,
        has_network=level.has_network, not_defended=level.not_defended)


def digest_of_tests(lab: Lab, hidden: Path | None) -> str:
    """Return the digest of the lab's tests and of everything in its folder of hidden tests."""
    digest = hashlib.sha256(lab.tests.read_bytes())
    if hidden is not None:
        for path in sorted((hidden / lab.number).glob("**/*.*")):
            if path.suffix == ".pyc" or not path.is_file():
                continue
            digest.update(b"\0" + path.relative_to(hidden).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def commit_of(root: Path) -> str:
    """Return the commit of the course's tree, with a digest of any uncommitted changes.

    If there is a file COMMIT, which a Gradescope package contains, return its content instead. Without that file and
    without git, return the version.
    """
    packed = root / "COMMIT"
    if packed.is_file():
        return packed.read_text(encoding="utf-8").strip()[:12]
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        import mini_vllm  # imported late: most trees have a commit
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
