"""The CPU time that another process has used, in all its threads together."""

from __future__ import annotations

import ctypes
import struct
import sys
import time

_PROCESS_CLOCK = 2
_RUSAGE_BYTES = 96  # rusage_info_v0: a 16-byte id, then user and system time


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process. Raise ProcessLookupError if the process no longer exists."""
    if sys.platform == "darwin":
        return _cpu_s_on_macos(pid)
    try:
        return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)
    except OSError:
        raise ProcessLookupError(f"process {pid} has ended") from None


def _cpu_s_on_macos(pid: int) -> float:
    libc, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(_RUSAGE_BYTES)
    if libc.proc_pid_rusage(ctypes.c_int(pid), ctypes.c_int(0), buffer) != 0:
        raise ProcessLookupError(f"process {pid} has ended")
    user_ticks, system_ticks = struct.unpack_from("=QQ", buffer.raw, 16)
    timebase = (ctypes.c_uint32 * 2)()
    libc.mach_timebase_info(timebase)
    return float(user_ticks + system_ticks) * timebase[0] / timebase[1] / 1e9
