"""Landlock: the process gives up access to the file system, except for a list of paths. No privilege is needed."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from .system import syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION_FLAG = 1
_PATH_BENEATH = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
#: How many kinds of file access each ABI knows: the lowest bits of the mask.
_NUM_FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
_NUM_FILE_BITS_SINCE_5 = 16
_ALL_TCP = 0b11
#: Abstract Unix sockets of, and signals to, processes outside.
_ALL_SCOPES = 0b11


def abi() -> int:
    """Return the version of the kernel's Landlock; 0 if it has none."""
    try:
        return syscall("landlock", _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def restrict(trees: Iterable[str], holes: Iterable[str], packages: Iterable[str]) -> None:
    """Restrict this process for good: it can read only these paths, write none, and reach no TCP port."""
    ruleset = _create_ruleset()
    hollow = frozenset(holes)
    for tree in trees:
        _grant(ruleset, tree, hollow)
    for package in packages:
        _grant(ruleset, package, frozenset())
    syscall("landlock_restrict_self", _RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def _create_ruleset() -> int:
    version = abi()
    attributes = struct.pack("=Q", (1 << _NUM_FILE_BITS.get(version, _NUM_FILE_BITS_SINCE_5)) - 1)
    if version >= 4:
        attributes += struct.pack("=Q", _ALL_TCP)
    if version >= 6:
        attributes += struct.pack("=Q", _ALL_SCOPES)
    return syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)),
                   ctypes.c_uint32(0))


def _grant(ruleset: int, path: str, holes: frozenset[str]) -> None:
    """Allow reading below ``path``, except in ``holes``. A rule cannot be revoked further down, so around a hole
    each neighbour gets its own rule."""
    if not any(hole.startswith(path + "/") for hole in holes):
        _add_rule(ruleset, path, READ_FILE | READ_DIR if os.path.isdir(path) else READ_FILE)
        return
    _add_rule(ruleset, path, READ_DIR)
    for entry in os.scandir(path):
        if entry.path not in holes and not entry.is_symlink():  # a link's target needs its own rule
            _grant(ruleset, entry.path, holes)


def _add_rule(ruleset: int, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        syscall(f"landlock_add_rule {path}", _ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH),
                struct.pack("=Qi", access, descriptor), ctypes.c_uint32(0))
    finally:
        os.close(descriptor)
