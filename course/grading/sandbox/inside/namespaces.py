"""Namespaces: a separate root folder with read-only views of what is needed, no network, no other processes."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from .system import mount, syscall, unmount, unshare

_NEW_MOUNTS, _NEW_HOSTNAME, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PIDS, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_DETACH = 2
_MOUNT_SETATTR = 442  # the same on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY_NOSUID = 0b11
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
#: The user id in the namespace. Not root, so that the process cannot become root by starting a program.
_USER_INSIDE = 1000


def leave_the_others() -> None:
    """Enter new namespaces. The next child will be the first process of its PID namespace."""
    user, group = os.getuid(), os.getgid()
    unshare(_NEW_USER | _NEW_MOUNTS | _NEW_PIDS | _NEW_NETWORK | _NEW_IPC | _NEW_HOSTNAME)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_USER_INSIDE} {user} 1"),
                       ("gid_map", f"{_USER_INSIDE} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def change_root(root: str, trees: Iterable[str], holes: Iterable[str], links: Iterable[tuple[str, str]],
                packages: Iterable[str]) -> None:
    """Make ``root``, an empty folder, the root folder. It contains these paths, read-only, under their old names."""
    mount(None, "/", None, _REC | _PRIVATE)
    _mount_memory(root)
    for tree in trees:
        _show(tree, root)
    hollow = [root + hole for hole in holes]
    for hole in hollow:
        _mount_memory(hole)
    for package in packages:
        _show(package, root)
    for name, target in links:
        if not os.path.lexists(root + name):
            os.makedirs(os.path.dirname(root + name), exist_ok=True)
            os.symlink(target, root + name)
    for folder in (*hollow, root):
        mount(None, folder, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(root)
    syscall("pivot_root", _PIVOT_ROOT[os.uname().machine], b".", b".")
    unmount(".", _DETACH)  # the old root, which now covers the new one
    os.chdir("/")


def _mount_memory(folder: str) -> None:
    mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")


def _show(path: str, root: str) -> None:
    target = root + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "x").close()
    mount(path, target, None, _BIND | _REC)
    attributes = struct.pack("=QQQQ", _ATTR_RDONLY_NOSUID, 0, 0, 0)
    syscall(f"mount_setattr {path}", _MOUNT_SETATTR, ctypes.c_int(_AT_FDCWD), os.fsencode(target),
            ctypes.c_uint(_AT_RECURSIVE), attributes, ctypes.c_size_t(len(attributes)))
