"""What a sandbox is made of: what it can see, what it may use up, and how tightly it is shut."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class SandboxError(Exception):
    """A sandbox could not be set up as asked. Says nothing about the student's file."""


class Level(str, enum.Enum):
    """How a file is kept in, the tightest first. The value is what stands in a result."""

    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    SEATBELT = "sandbox-exec"
    PLAIN = "none"


@dataclass(frozen=True)
class SandboxFiles:
    """All that the sandbox can see beside Python's standard library."""

    #: Relative name → content. They are laid into a fresh folder, readable and not writable.
    files: Mapping[str, bytes]
    #: Installed packages that can be imported, each with what it needs: "numpy", "mlx", "pytest".
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What the process may use up in its whole life."""

    #: Never ended before, and soon after: the kernel counts roughly, in whole seconds. ``Sandbox.cpu_s`` is exact.
    cpu_s: float
    #: Address space, not resident memory: MLX and NumPy together need half a gigabyte of it.
    memory_bytes: int
    #: Of any one file that it writes; what it prints goes to one.
    file_bytes: int
    open_files: int
