"""The levels that this machine offers, found by starting a process at each, and the gaps in each level's defence."""

from __future__ import annotations

import functools
import sys
import tempfile

from course.grading.sandbox.inside import landlock, seccomp
from course.grading.sandbox.launch import start
from course.grading.sandbox.spec import Level, Limits, SandboxError, SandboxFiles

WANTED = ("auto", "require", "none")
#: The levels that a platform may have, the tightest first.
_CANDIDATES = {"linux": (Level.BUBBLEWRAP, Level.NAMESPACES, Level.LANDLOCK), "darwin": (Level.SEATBELT,)}
_PROBE_LIMITS = Limits(cpu_s=10, memory_bytes=1 << 30, file_bytes=1 << 16, open_files=32)
_PROBE = b"""
import os, sys
try:
    open(sys.argv[2]).close()
except OSError:
    os.write(int(sys.argv[1]), b"shut")
else:
    os.write(int(sys.argv[1]), b"open")
"""
#: The first ABI of Landlock with this feature.
_ABI_WITH_TCP, _ABI_WITH_SCOPES = 4, 6


def choose_level(wanted: str) -> Level:
    """Return the tightest level that works here.

    If there is none, "require" raises SandboxError and "auto" falls back to PLAIN. "none" always means PLAIN.
    """
    if wanted not in WANTED:
        raise SandboxError(f"sandbox is {wanted!r}, must be one of {', '.join(WANTED)}")
    if wanted == "none":
        return Level.PLAIN
    reasons = []
    for level in _CANDIDATES.get(sys.platform, ()):
        reason = why_not(level)
        if reason is None:
            return level
        reasons.append(f"{level.value}: {reason}")
    if wanted == "require":
        found = "; ".join(reasons) or f"none is known for {sys.platform}"
        raise SandboxError(f"no sandbox works here ({found}). Install bubblewrap, or grade with --sandbox none")
    return Level.PLAIN


@functools.cache
def why_not(level: Level) -> str | None:
    """Return why this level does not work on this machine, or None if it works.

    A level works if a probe that runs at this level cannot read a file outside the sandbox.
    """
    if level is Level.LANDLOCK and landlock.abi() == 0:
        return "the kernel has no Landlock"
    try:
        with tempfile.NamedTemporaryFile() as outside, \
                start(level, SandboxFiles({"probe.py": _PROBE}), "probe.py", [outside.name], _PROBE_LIMITS) as sandbox:
            sandbox.connection.settimeout(_PROBE_LIMITS.cpu_s)
            answer = sandbox.connection.recv(4)
            return None if answer == b"shut" else f"a probe answered {answer!r}: it could read a file outside"
    except (SandboxError, OSError) as error:
        return str(error)


def describe(level: Level) -> tuple[bool, tuple[str, ...]]:
    """Return whether the student's file can reach the network, and sentences about what is not defended."""
    has_filter = sys.platform == "linux" and seccomp.is_available()
    has_network = level in (Level.PLAIN, Level.LANDLOCK) and not has_filter
    sentences = list(_SENTENCES[level])
    if level is Level.LANDLOCK and not has_filter:
        sentences += _landlock_gaps(landlock.abi())
    if level is Level.PLAIN:
        sentences += _PLAIN_WITH_FILTER if has_filter else _PLAIN_WITHOUT_FILTER
    elif sys.platform == "linux" and not has_filter:
        sentences.append("This machine does not filter system calls: only the level's own restrictions apply.")
    return has_network, tuple(sentences)


_KERNEL = "A flaw in the kernel is a way out: for an exam, grade in a separate container or virtual machine."
_SENTENCES = {
    Level.BUBBLEWRAP: (_KERNEL,),
    Level.NAMESPACES: (_KERNEL,),
    Level.LANDLOCK: (_KERNEL, "The file can find out which paths exist, how large they are and which processes run, "
                              "but cannot open or signal them."),
    Level.SEATBELT: (_KERNEL, "Memory is not limited: macOS does not enforce it.",
                     "The file can find out which paths exist."),
    Level.PLAIN: ("The file can read whatever you can read: solutions, other submissions, your home folder, and "
                  "where the system lets it, the grader's memory.",),
}
_PLAIN_WITH_FILTER = ("Writing, new processes and the network are refused, but by a single filter of system calls.",)
_PLAIN_WITHOUT_FILTER = (
    "The file can write and delete whatever you can: tests, results, other submissions.",
    "The file can use the network, and stop or kill the grader.",
    "A process that the file starts may leave its process group and keep running.",
)


def _landlock_gaps(abi: int) -> list[str]:
    """Return the gaps of Landlock when there is no filter of system calls in addition."""
    gaps = ["The file can use the network, except over TCP, and change the permissions of your files."]
    if abi < _ABI_WITH_TCP:
        gaps.append("The file can use TCP.")
    if abi < _ABI_WITH_SCOPES:
        gaps.append("The file can stop or kill the grader.")
    return gaps
