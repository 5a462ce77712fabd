"""The CPU time that this machine has used so far, and the parts of this process and of other programs."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

#: Fields of a line of /proc/stat, after its name: user, nice, system, irq, softirq, and what another virtual machine
#: took.
STOLEN_FIELD = 7
BUSY_FIELDS = (0, 1, 2, 5, 6, STOLEN_FIELD)
STAT = Path("/proc/stat")
#: The files that contain a container's share of the machine: cgroup 2, and cgroup 1 in two files.
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
CFS_QUOTA, CFS_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


@dataclass(frozen=True)
class CpuReading:
    """The clocks at one moment."""

    at_s: float
    #: CPU time of this process, and of its children that have ended.
    own_s: float
    #: CPU time of all processes, on the cores that this process may use. None: the system does not tell.
    all_s: float | None
    #: Programs that wanted a core, on average over the last minute. Read only if ``all_s`` is None.
    load: float | None = None
    #: The part of ``all_s`` in which a program here wanted a core, but the host gave it to another virtual machine.
    stolen_s: float = 0.0


def read_cpu() -> CpuReading:
    at_s, own_s = time.perf_counter(), sum(os.times()[:4])
    try:
        stat, cores, ticks_per_s = STAT.read_text(), my_cores(), os.sysconf("SC_CLK_TCK")
        return CpuReading(at_s, own_s, busy_s(stat, cores, ticks_per_s),
                          stolen_s=busy_s(stat, cores, ticks_per_s, fields=(STOLEN_FIELD,)))
    except (OSError, ValueError, AttributeError):  # no such file, or not as on Linux
        return CpuReading(at_s, own_s, None, os.getloadavg()[0])


def busy_s(stat: str, cores: Collection[int], ticks_per_s: int, fields: Collection[int] = BUSY_FIELDS) -> float:
    """Return the seconds that these cores were busy, or in the states of ``fields``, by the text of /proc/stat.

    Raise ValueError if it does not tell.
    """
    lines = [line.split() for line in stat.splitlines()]
    ticks = [[int(tick) for tick in line[1:]] for line in lines if line and line[0] in {f"cpu{core}" for core in cores}]
    if not any(map(any, ticks)):  # some sandboxes show zeros
        raise ValueError("/proc/stat does not list these cores")
    return sum(of_core[field] for of_core in ticks for field in fields if field < len(of_core)) / ticks_per_s


def others_cores(earlier: CpuReading, later: CpuReading) -> float:
    """Return how many cores other programs kept busy between two readings; by the load average it is a guess."""
    seconds = max(later.at_s - earlier.at_s, 1e-9)
    own = (later.own_s - earlier.own_s) / seconds
    if earlier.all_s is not None and later.all_s is not None:
        return max((later.all_s - earlier.all_s) / seconds - own, 0.0)
    return max((later.load or 0.0) - own, 0.0)


def stolen_share(earlier: CpuReading, later: CpuReading) -> float:
    """Return the fraction of all cores' time between two readings that the host gave to others; 0 on a physical
    machine."""
    seconds = max(later.at_s - earlier.at_s, 1e-9) * max(len(my_cores()), 1)
    return max(later.stolen_s - earlier.stolen_s, 0.0) / seconds


def process_cpu_s(process_id: int) -> float | None:
    """Return the CPU time that a process has used so far; None if the system does not tell."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def my_cores() -> Collection[int]:
    """Return the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def quota_cores() -> float | None:
    """Return how many cores' time a container may use at most; None without such a limit."""
    try:
        if CPU_MAX.is_file():
            quota, period = CPU_MAX.read_text().split()
        else:
            quota, period = CFS_QUOTA.read_text().strip(), CFS_PERIOD.read_text().strip()
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError):
        return None
