"""The paths of this machine that a sandbox must be able to read: Python, the system's libraries, requested packages.

Site-packages is left out as a whole: the engine may be installed there, and it is the answer to some labs. The folder
is often within the standard library's folder, so a view consists of trees and of holes in them.
"""

from __future__ import annotations

import functools
import glob
import importlib.machinery
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from course.grading.sandbox.spec import SandboxError

_LINUX_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
_MACOS_LIBRARIES = ("/System", "/usr/lib", "/usr/share", "/opt/homebrew", "/usr/local/opt", "/usr/local/Cellar")
_SINGLE_FILES = ("/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SITE_NAMES = ("site-packages", "dist-packages")
#: The requirements of a package besides itself and its own ``.libs`` folder.
_COMPANIONS = {"pytest": ("_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli",
                          "typing_extensions")}


def interpreter() -> str:
    """Return the path of the running Python, bypassing any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@dataclass(frozen=True)
class View:
    """Paths that can be read. A hole is empty, except for the packages in it."""

    trees: tuple[str, ...]
    holes: tuple[str, ...]
    #: Name at the root → its link target: ``/lib`` → ``usr/lib``.
    links: tuple[tuple[str, str], ...]
    packages: tuple[str, ...]


@functools.cache
def view_of(packages: tuple[str, ...]) -> View:
    """Return the paths of this machine that a sandbox with these packages needs."""
    libraries = _library_folders()
    links = tuple((path, os.readlink(path)) for path in libraries if os.path.islink(path))
    if "mkl" in packages:
        links += (("/proc/self/exe", interpreter()),)  # MKL ends the process if it cannot read this link
    folders = _without_nested(os.path.realpath(path) for path in libraries)
    holes = {os.path.realpath(hole) for folder in folders for hole in _site_folders(folder)}
    files = [path for path in (*_SINGLE_FILES, interpreter()) if os.path.exists(path)]
    return View(trees=(*folders, *_without_nested(files, folders)), holes=tuple(sorted(holes)), links=links,
                packages=tuple(sorted({path for name in packages for path in package_paths(name)})))


def _library_folders() -> list[str]:
    candidates: tuple[str, ...]
    if sys.platform == "darwin":
        candidates = (*_MACOS_LIBRARIES, sys.base_prefix)
    else:
        # In a private prefix these two folders contain the standard library, and perhaps libpython.
        prefixes = (sys.base_prefix, sys.base_exec_prefix)
        own = (os.path.join(prefix, name) for prefix in prefixes for name in ("lib", "lib64"))
        candidates = (*_LINUX_LIBRARIES, *own)
    return list(dict.fromkeys(path for path in (*candidates, os.path.dirname(os.__file__)) if os.path.isdir(path)))


def _site_folders(folder: str) -> list[str]:
    patterns = ("*-packages", "python*/*-packages", "lib/python*/*-packages")
    return [path for pattern in patterns for path in glob.glob(os.path.join(glob.escape(folder), pattern))
            if os.path.basename(path) in _SITE_NAMES]


def _without_nested(paths: Iterable[str], within: tuple[str, ...] = ()) -> tuple[str, ...]:
    kept: list[str] = []
    for path in sorted(set(paths)):  # a folder sorts before its contents
        if not any(path == other or path.startswith(other + "/") for other in (*within, *kept)):
            kept.append(path)
    return tuple(kept)


def installed_blas() -> tuple[str, ...]:
    """Return the packages with a fast BLAS that are installed: MLX for the CPU on Linux multiplies with one."""
    return (*(("nvpl",) if _package_path("nvpl") is not None else ()), *(("mkl",) if mkl_library() else ()))


def mkl_library() -> str | None:
    """Return the library through which MKL is loaded, the latest version; None if MKL is not installed."""
    found = sorted(glob.glob(os.path.join(glob.escape(sys.prefix), "lib", "libmkl_rt.so*")), key=len)
    return os.path.realpath(found[-1]) if found else None


def package_paths(name: str) -> tuple[str, ...]:
    """Return the folders and files of an installed package, its companions and its bundled libraries. Raise
    SandboxError if it is not installed."""
    if name == "mkl" and (library := mkl_library()):  # not a package of Python: libraries next to each other
        return tuple(glob.glob(os.path.join(glob.escape(os.path.dirname(library)), "libmkl_*.so*")))
    top = _package_path(name)
    if top is None:
        raise SandboxError(f"package {name!r} is not installed; the sandbox cannot offer it")
    bundled = glob.glob(os.path.join(glob.escape(str(top.parent)), f"{glob.escape(name)}*.libs"))
    companions = [_package_path(companion) for companion in _COMPANIONS.get(name, ())]
    return (str(top), *bundled, *(str(path) for path in companions if path is not None))


def _package_path(name: str) -> Path | None:
    # Not all of sys.path: the current folder may contain something of the same name.
    installed = [path for path in sys.path if os.path.basename(path) in _SITE_NAMES]
    spec = importlib.machinery.PathFinder.find_spec(name, installed)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(os.path.realpath(next(iter(spec.submodule_search_locations))))
    return Path(os.path.realpath(spec.origin)) if spec.origin and os.path.exists(spec.origin) else None
