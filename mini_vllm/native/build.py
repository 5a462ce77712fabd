"""Compiles ``step.c`` for this machine when it is first used, and keeps the library for the next process."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

SWITCH = "MINI_VLLM_NATIVE"
SOURCES = [Path(__file__).with_name(name) for name in ("step.c", "team.h", "amx.h", "choose.h")]
FLAGS = ["-O3", "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native", "-pthread", "-shared",
         "-fPIC"]
COMPILERS = ("cc", "gcc", "clang")
#: Seconds after which a compiler is stopped. It needs three on an idle core.
TIMEOUT = 120


class NotBuilt(Exception):
    """Why there is no library."""


def library() -> ctypes.CDLL:
    """Return the compiled functions. Call it only where ``problem`` is empty."""
    found = _built()
    assert isinstance(found, ctypes.CDLL), found
    return found


def problem() -> str:
    """Return why the functions cannot be compiled here; empty if they can."""
    found = _built()
    return found if isinstance(found, str) else ""


@cache
def _built() -> ctypes.CDLL | str:
    """Return the compiled functions, or why there are none. A failure is reported once."""
    if sys.platform != "linux":
        return "it was tested on Linux only"
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return f"no C compiler was found ({', '.join(COMPILERS)})"
    key = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)
                         + " ".join([compiler, *FLAGS, platform.machine(), _processor()]).encode()).hexdigest()[:16]
    try:
        folder, name = _private(), f"step-{key}.so"
        if folder is not None and (_is_whole(folder / name) or os.access(folder, os.W_OK)):
            with suppress(OSError):  # a full disk, or one from which no code may be loaded
                return _load(compiler, folder / name)
        with tempfile.TemporaryDirectory() as scratch:
            return _load(compiler, Path(scratch) / "step.so")
    except (OSError, NotBuilt) as error:
        why = f"it could not be compiled: {error}"
    print(f"mini-vllm: the native step is not used: {why}. Continuing without it, at lower speed.", file=sys.stderr,
          flush=True)
    return why


def _load(compiler: str, file: Path) -> ctypes.CDLL:
    if not _is_whole(file):
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            _compile(compiler, part := Path(scratch) / "step.so")
            part.replace(file)  # another process may be compiling it too
    return ctypes.CDLL(str(file))


def _compile(compiler: str, file: Path) -> None:
    """Write the library, and its checksum behind it."""
    try:
        done = subprocess.run([compiler, *FLAGS, "-o", file, SOURCES[0], "-lm"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace", timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise NotBuilt(f"{compiler} did not finish within {TIMEOUT} seconds") from None
    if done.returncode:
        raise NotBuilt(f"{compiler}: {(done.stderr.strip() or 'it says nothing').splitlines()[0]}")
    code = file.read_bytes()
    file.write_bytes(code + hashlib.sha256(code).digest())
    file.chmod(0o700)


def _is_whole(file: Path) -> bool:
    """Check that a library can be read, and that nothing of it is missing: loading half a library ends the process."""
    try:
        code = file.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(code[:-32]).digest() == code[-32:]


def _cache_folder() -> Path:
    """Return the folder of the virtual environment, or else of the user, in which libraries are kept."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "var" / "mini_vllm"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mini_vllm" / "native"


def _private() -> Path | None:
    """Create the folder for libraries. Return None if that fails, or if another user could put one there."""
    try:
        folder = _cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        parents = [folder, *folder.parents]
        for one in parents:
            found = one.stat()
            others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
            if found.st_uid not in (0, os.getuid()) or others_write:
                return None
        return folder
    except (OSError, RuntimeError):
        return None


def _processor() -> str:
    """Return what the code is compiled for: a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
