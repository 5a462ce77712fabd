"""The command that starts a sandbox's Python, for each level."""

from __future__ import annotations

import shutil
from pathlib import Path

from course.grading.sandbox.spec import Level, SandboxError
from course.grading.sandbox.visible_paths import View, interpreter

_HERE = Path(__file__).resolve().parent
_INSIDE = str(_HERE / "inside")
#: Files that macOS reads for every program that it starts.
_MACOS_FILES = ("/dev", "/private/var/db/dyld", "/private/var/db/timezone", "/private/etc/localtime", "/Library/Apple")
#: Isolated, without site-packages, without writing bytecode: the same Python whatever the environment.
_FLAGS = ("-I", "-S", "-B", "-X", "utf8")
_ENTRY = "import sys; sys.path.insert(0, sys.argv[1]); from inside.bootstrap import main; main()"


def command_of(level: Level, view: View, home: Path) -> list[str]:
    """Return the command to start. ``home`` is the empty folder; ``view`` contains the sandbox's own folders."""
    python = [interpreter(), *_FLAGS, "-c", _ENTRY, str(_HERE)]
    if level is Level.BUBBLEWRAP:
        return [_program("bwrap"), *bubblewrap_options(view, home), "--", *python]
    if level is Level.SEATBELT:
        return [_program("sandbox-exec"), "-p", seatbelt_profile(view), *python]
    return python


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SandboxError(f"{name} is not installed")
    return path


def bubblewrap_options(view: View, home: Path) -> list[str]:
    """Return the bwrap options for what inside/namespaces.py does. Later options are mounted over earlier ones."""
    options = ["--unshare-all", "--die-with-parent", "--as-pid-1"]
    for tree in view.trees:
        options += ["--dev-bind" if tree.startswith("/dev/") else "--ro-bind", tree, tree]
    for hole in view.holes:
        options += ["--tmpfs", hole]
    for path in (*view.packages, _INSIDE):  # these may be in a hole
        options += ["--ro-bind", path, path]
    for name, target in view.links:
        options += ["--symlink", target, name]
    for folder in (*view.holes, "/"):
        options += ["--remount-ro", folder]
    return [*options, "--chdir", str(home)]


def seatbelt_profile(view: View) -> str:
    """Return a profile for macOS's sandbox-exec. If several rules match, the last one counts."""
    python = interpreter()
    rules = ["(version 1)", "(allow default)", "(deny network*)", "(deny file-write*)", "(deny process-fork)",
             "(deny process-exec*)", "(deny signal)", "(allow signal (target self))", "(deny process-info*)",
             "(allow process-info* (target self))", "(deny file-read-data)",
             "(allow file-read-data (literal \"/\"))"]
    rules += [f"(allow file-read-data (subpath {_quoted(tree)}))" for tree in (*view.trees, *_MACOS_FILES)]
    rules += [f"(deny file-read-data (subpath {_quoted(hole)}))" for hole in view.holes]
    rules += [f"(allow file-read-data (subpath {_quoted(path)}))" for path in (*view.packages, _INSIDE)]
    # A framework build of Python starts a second program next to it.
    rules.append(f"(allow process-exec* (subpath {_quoted(str(Path(python).parents[1]))}))")
    return "\n".join(rules)


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
