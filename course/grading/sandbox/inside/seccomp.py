"""Seccomp: a small program that the kernel runs before each system call of this process, to allow or refuse it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from .syscalls import FIRST_NEWER, MACHINES, REFUSED, UNKNOWN, Check, conditions
from .system import PR_SET_SECCOMP, prctl, syscall

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_GET_ACTION_AVAIL = 2
_MODE_FILTER = 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_REFUSE, _NOT_THERE = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
_X32_BIT = 0x40000000
# The data of a call: its number, the architecture, and six arguments of eight bytes each, the low half first.
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN, _JUMP = 0x20, 0x15, 0x35, 0x54, 0x06, 0x05

#: code, jump if true, jump if false, value
Instruction = tuple[int, int, int, int]


def is_available() -> bool:
    """Return whether this kernel accepts such a program, and the system calls of this architecture are known here."""
    number = _SECCOMP.get(os.uname().machine) if os.uname().sysname == "Linux" else None
    if number is None:
        return False
    try:
        syscall("seccomp", number, ctypes.c_uint(_GET_ACTION_AVAIL), ctypes.c_uint(0), struct.pack("=I", _ERRNO))
    except OSError:
        return False
    return True


def restrict() -> None:
    """Install the filter for this thread and all threads that it will start. Needs no_new_privs."""
    program = compile_filter(os.uname().machine, os.getpid())
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(buffer)))
    prctl("seccomp", PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(header))


def compile_filter(machine: str, own_pid: int) -> list[Instruction]:
    """Compile the program for a machine. Calls for another architecture have other numbers, so they are refused."""
    column = MACHINES.index(machine)
    program: list[Instruction] = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
                                  (_RETURN, 0, 0, _REFUSE), (_LOAD, 0, 0, _NUMBER_AT),
                                  (_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _REFUSE),
                                  (_AT_LEAST, 0, 1, FIRST_NEWER), (_RETURN, 0, 0, _NOT_THERE)]
    for numbers, checks in conditions(own_pid).values():
        program += _on_number(numbers[column], _allow_if(checks))
    for refused in REFUSED.values():
        program += _on_number(refused[column], [(_RETURN, 0, 0, _REFUSE)])
    for unknown in UNKNOWN.values():
        program += _on_number(unknown[column], [(_RETURN, 0, 0, _NOT_THERE)])
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _on_number(number: int | None, block: list[Instruction]) -> list[Instruction]:
    """Return instructions that run ``block``, which ends in an answer, for this call; none if the machine lacks it."""
    return [] if number is None else [(_EQUAL, 0, len(block), number), *block]


def _allow_if(checks: tuple[Check, ...]) -> list[Instruction]:
    block: list[Instruction] = []
    for check in checks:
        block += [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * check.argument), (_AND, 0, 0, check.mask)]
        num_values = len(check.values)
        # On a hit, jump over the remaining values and the answer after them.
        hits: list[Instruction] = [(_EQUAL, num_values - index, 0, value)
                                   for index, value in enumerate(check.values)]
        if check.is_refused:
            block += [*hits, (_JUMP, 0, 0, 1), (_RETURN, 0, 0, _REFUSE)]
        else:
            block += [*hits, (_RETURN, 0, 0, _REFUSE)]
    return [*block, (_RETURN, 0, 0, _ALLOW)]
