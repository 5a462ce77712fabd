"""Compiled once, loaded by every process: a grading starts two or more, and each would compile a hundred modules.

The tests' process and the sandbox write no files, so they would never have what Python keeps in ``__pycache__``.
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

#: In a compiled file: known by the hash of its source, which nobody checks.
_UNCHECKED = (1).to_bytes(4, "little")


@functools.cache
def compile_packages() -> None:
    """Compile what is not compiled yet. Where files cannot be written, everything works, slower."""
    for folder in (PROJECT_ROOT / "course", Path(mini_vllm.__file__ or "").parent):
        compileall.compile_dir(folder, quiet=2)


@functools.lru_cache(maxsize=512)
def compiled(path: Path, source: bytes) -> bytes:
    """A module as it lies in ``__pycache__``, for a copy of it. ``source`` is what the file holds now."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    return MAGIC_NUMBER + _UNCHECKED + source_hash(source) + marshal.dumps(code)


def cached_name(name: str) -> str:
    """``course/a.py`` → ``course/__pycache__/a.cpython-311.pyc``"""
    return cache_from_source(name)
