"""Modules that are compiled once and loaded by every process. Each grading starts two or more processes.

The tests' process and the sandbox write no files, so they would never have what Python keeps in ``__pycache__``, and
each would compile a hundred modules.
"""

from __future__ import annotations

import compileall
import functools
import marshal
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path

import mini_vllm
from course.lab.lab import PROJECT_ROOT

#: The flags of a compiled file that is identified by the hash of its source, which is not checked.
_UNCHECKED = (1).to_bytes(4, "little")


@functools.cache
def compile_packages() -> None:
    """Compile every module that is not compiled yet. Where files cannot be written, everything works, but slower."""
    for folder in (PROJECT_ROOT / "course", Path(mini_vllm.__file__ or "").parent):
        compileall.compile_dir(folder, quiet=2)


@functools.lru_cache(maxsize=512)
def compiled(path: Path, source: bytes) -> bytes:
    """Return a module as it is stored in ``__pycache__``, for a copy of it. ``source`` is its current content."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    return MAGIC_NUMBER + _UNCHECKED + source_hash(source) + marshal.dumps(code)


def cached_name(name: str) -> str:
    """Return the path of the compiled file: ``course/a.py`` → ``course/__pycache__/a.cpython-311.pyc``."""
    return cache_from_source(name)
