"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522
_CAPSET = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def call(what: str, result: int) -> int:
    """Return the ``result`` of a call. If it is negative, raise an OSError that says what was tried."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(what: str, number: int, *arguments: object) -> int:
    return call(what, _libc.syscall(ctypes.c_long(number), *arguments))


def prctl(what: str, option: int, *arguments: int) -> int:
    padded = [*arguments, 0, 0, 0, 0][:4]
    return call(what, _libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(value) for value in padded)))


def unshare(flags: int) -> None:
    call("unshare", _libc.unshare(ctypes.c_int(flags)))


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    call(f"mount {target}", _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]))


def unmount(target: str, flags: int) -> None:
    call(f"umount {target}", _libc.umount2(os.fsencode(target), ctypes.c_int(flags)))


def drop_capabilities() -> None:
    """Give up the rights that root has beyond other users. Without privileges there is nothing to give up."""
    number = _CAPSET.get(os.uname().machine)
    if number is not None:
        header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        syscall("capset", number, header, nothing)
