"""The description of a sandbox: what it can see, what it may use up, and how tightly it is isolated."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class SandboxError(Exception):
    """A sandbox could not be set up as asked. This says nothing about the student's file."""


class Level(str, enum.Enum):
    """The levels of isolation, the tightest first. The value appears in results."""

    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    SEATBELT = "sandbox-exec"
    PLAIN = "none"


@dataclass(frozen=True)
class SandboxFiles:
    """Everything that the sandbox can see besides Python's standard library."""

    #: Relative name → content. They are written into a fresh folder, where they can be read but not changed.
    files: Mapping[str, bytes]
    #: Installed packages that can be imported, each with its dependencies: "numpy", "mlx", "pytest".
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """The limits on what the process may use in its whole life."""

    #: The process is ended soon after this time, never before: the kernel counts roughly, in whole seconds.
    #: ``Sandbox.cpu_s`` is exact.
    cpu_s: float
    #: Address space, not resident memory: MLX and NumPy together need half a gigabyte of it.
    memory_bytes: int
    #: The size of any one file that it writes. What it prints goes to one file.
    file_bytes: int
    open_files: int
