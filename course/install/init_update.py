"""``course init`` and ``course update``: the course in a student's folder, from an installed package, without git.

    the package's files ──▶ course_files() ──▶ init: a new folder
                                           └─▶ update: tests, texts and untouched starters are replaced,
                                                       an edited starter stays, and the new one is put next to it
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

import mini_vllm
from course.core.atomic_files import write_whole
from course.install.course_files import course_files
from course.lab.bare_starter import bare_starter, is_as_shipped, is_bare
from course.lab.lab import MARKER, Lab, LabError, discover
from course.lab.starters import declarations, shipped_starter
from course.pytest_run.run_lab import has_pytest

#: The name of a new starter next to an edited one.
BESIDE = "starter.new.py"
#: Modules that labs import → where their names are now. Edited starters are changed accordingly.
MOVED = {
    "mini_vllm.caching.block_index": "mini_vllm.prefix_tree",
    "mini_vllm.caching.slot_checks": "mini_vllm.kv_cache",
    "mini_vllm.engine_room.executor": "mini_vllm.executor",
    "mini_vllm.engine_room.frame": "mini_vllm.engine_frame",
    "mini_vllm.engine_room.idle": "mini_vllm.metrics",
    "mini_vllm.engine_room.prompt_logprobs": "mini_vllm.executor",
    "mini_vllm.sampling.row": "mini_vllm.logit_rules",
}
_IMPORT = re.compile(rf"^(\s*(?:from|import) )({'|'.join(map(re.escape, MOVED))})\b", re.M)


def lay_down(folder: Path) -> int:
    """Create ``folder`` and copy the course into it. Raise LabError if it already exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LabError(f"{folder} exists and is not empty. Choose another folder. "
                       "To update a course, use `course update`.")
    files = course_files()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".course-") as parent:
        new = Path(parent) / "new"
        for name, content in files.items():
            write_whole(new / name, content, is_lasting=False)
        _write_marker(new, files)
        if folder.exists():
            folder.rmdir()
        new.rename(folder)
    print(f"The course, version {mini_vllm.__version__}, is in {folder}: {len(discover(folder))} labs. Now:\n"
          f"  cd {folder}" + ("" if has_pytest() else "\n  pip install pytest   (the labs' tests need it)")
          + "\n  course next")
    return 0


class _Marker(TypedDict):
    """The contents of ``.course/course.json``."""

    version: str
    #: A file of the course → the digest of its content when it was copied.
    files: dict[str, str]


@dataclass
class _Changes:
    """The changes that an update made."""

    #: Files that now equal those of the installed version.
    brought: list[str] = field(default_factory=list)
    #: Edited starters that stayed, and the changes in the signatures of the new ones.
    stayed: dict[str, list[str]] = field(default_factory=dict)
    #: Edited starters whose imports were changed: how many, with the old content kept as a backup.
    moved: dict[str, int] = field(default_factory=dict)
    #: Other files that had been edited: replaced, with the old content kept as a backup.
    saved: list[str] = field(default_factory=list)


def update(root: Path) -> int:
    """Update the course at ``root`` to the installed version's files.

    An edited starter stays. If the shipped starter has changed, the new one is put next to it, and the changes in its
    signatures are printed. Imports of modules that have moved are changed, and the file as it was is kept among the
    backups. Any other edited file is kept there too. Raise LabError for a folder that ``course init`` did not make.
    """
    before = _read_marker(root)
    files = course_files()
    backups = root / ".course" / "backups" / f"update-{time.strftime('%Y-%m-%d-%H%M%S')}"
    changes = _Changes()
    labs = [lab for lab in discover(root) if lab.starter.is_file()]
    edited = {lab.relative(lab.starter): lab for lab in labs if not _holds(is_as_shipped, lab)}
    bare = {lab.relative(lab.starter): lab for lab in labs if _holds(is_bare, lab)}
    for name, lab in edited.items():  # first: the solution, from which the old starter is made, is replaced below
        _put_beside(lab, files.get(name, b""), changes)
        _move_imports(lab, backups / name, changes)
    for name, content in files.items():
        path = root / name
        old = path.read_bytes() if path.is_file() else None
        if name in edited or name in bare or old == content:
            continue
        if old is not None and path.name != "starter.py" and _digest(old) != before["files"].get(name):
            write_whole(backups / name, old)
            changes.saved.append(name)
        write_whole(path, content, is_lasting=False)
        changes.brought.append(name)
    for lab in bare.values():  # from the new solution
        write_whole(lab.starter, bare_starter(lab).encode())
    _write_marker(root, files)
    _report(before["version"], changes, backups.relative_to(root))
    return 0


def _holds(question: Callable[[Lab], bool], lab: Lab) -> bool:
    """Check whether ``question`` holds for the lab.

    Return False for a damaged lab: the update then fixes the lab, and the student's file stays.
    """
    try:
        return question(lab)
    except (OSError, LabError, SyntaxError):
        return False


def _put_beside(lab: Lab, new: bytes, changes: _Changes) -> None:
    """Put the new starter next to the student's, unless the student began with the same one."""
    try:
        old = shipped_starter(lab)
    except (OSError, LabError):  # the student has changed the solution
        old = lab.starter.read_text(encoding="utf-8", errors="replace")
    if not new or old.encode() == new:
        return
    write_whole(lab.starter.with_name(BESIDE), new)
    changes.stayed[lab.relative(lab.starter)] = _changed_signatures(old, new.decode())


def _move_imports(lab: Lab, backup: Path, changes: _Changes) -> None:
    """Let the student's file import from where the names are now."""
    old = lab.starter.read_bytes()
    text = old.decode("utf-8", errors="surrogateescape")
    new, num_moved = _IMPORT.subn(lambda found: found[1] + MOVED[found[2]], text)
    if num_moved:
        write_whole(backup, old)
        write_whole(lab.starter, new.encode("utf-8", errors="surrogateescape"))
        changes.moved[lab.relative(lab.starter)] = num_moved


def _changed_signatures(old: str, new: str) -> list[str]:
    try:
        before = {name: signature for name, (signature, _) in declarations(old).items()}
    except SyntaxError:
        return []
    now = {name: signature for name, (signature, _) in declarations(new).items()}
    return ([f"{name}{before[name]} is {name}{now[name]} now" for name in before
             if name in now and before[name] != now[name]]
            + [f"{name}{now[name]} is new" for name in now if name not in before]
            + [f"{name} is gone" for name in before if name not in now])


def _report(version_before: str, changes: _Changes, backups: Path) -> None:
    if not changes.brought and not changes.stayed and not changes.moved:
        print(f"The course is up to date: version {mini_vllm.__version__}.")
        return
    now = mini_vllm.__version__
    versions = now if version_before == now else f"{version_before} → {now}"
    print(f"Version {versions}: {len(changes.brought)} files updated.")
    for name, num_moved in changes.moved.items():
        print(f"  {name}: modules of the engine have moved, so {num_moved} of your imports "
              f"{'was' if num_moved == 1 else 'were'} changed; your file as it was is in {backups}")
    for name, signatures in changes.stayed.items():
        print(f"  {name}: your code is unchanged; the new version is next to it, as {BESIDE}")
        print("".join(f"    {line}\n" for line in signatures), end="")
    if changes.saved:
        print(f"  You had changed {', '.join(changes.saved)}; your versions are kept in {backups}")


def _read_marker(root: Path) -> _Marker:
    try:
        marker: _Marker = json.loads((root / MARKER).read_text(encoding="utf-8"))
        if not isinstance(marker, dict) or not isinstance(marker.get("files"), dict) or "version" not in marker:
            raise ValueError("it must contain version and files")
        return marker
    except ValueError as error:
        raise LabError(f"{root / MARKER} is damaged: {error}. `course init` creates a new course in another "
                       "folder; copy your starters there.") from None
    except FileNotFoundError:
        raise LabError(f"{root} is a clone of the repository: `git pull` brings it up to date. `course update` is for "
                       "a folder that `course init` made.") from None


def _write_marker(root: Path, files: dict[str, bytes]) -> None:
    """Record the installed version and the digests of its files."""
    digests = {name: _digest(content) for name, content in files.items()}
    write_whole(root / MARKER, json.dumps({"version": mini_vllm.__version__, "files": digests}).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
