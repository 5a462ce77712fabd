"""Writes results as JSON, with what a reader needs to trust them.

    command    what was run
    tree       git's tree id of the source that was measured. Another commit of the same files has the same id
    modified   the files that differed from that tree
    machine    the device and the versions
    noise      cores that other programs used, how much the machine's own speed varied, and the cause if it was loud
    sha256     of everything else, so that nothing in the file changes later

A file in ``benchmarks/`` is written only if the tree is unmodified. ``tools/tables.py`` refuses one that breaks this
rule. Any other file is scratch.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_vllm.arguments import QUICK
from mini_vllm.benchmark.machine import ROOT, provenance, source
from mini_vllm.benchmark.machine_noise import Noise, NoiseWatch, warn_if_busy
from mini_vllm.checks import writable_file
from mini_vllm.native.advice import tell_slow_blas

KEPT = ROOT / "benchmarks"


class Results:
    """Writes the results of a benchmark to the file that ``--output`` names, if any, and watches the machine."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Raise ValueError, before any work is done, if the output file cannot be written."""
        self._command: str = arguments.typed
        self._path: Path | None = arguments.output
        self._watch, self._watching = NoiseWatch(), contextlib.ExitStack()
        if self._path is None:
            return
        writable_file(self._path)
        self._source = source()
        self._is_kept = self._path.resolve().parent == KEPT
        if self._is_kept and (fault := self._fault(arguments.quick)):
            raise ValueError(f"{self._path}: {fault}; to try something, write to a file outside of {KEPT.name}/")

    def _fault(self, is_quick: bool) -> str:
        """Say why this source cannot give a result that is kept; empty if it can."""
        if is_quick:
            return "--quick is only a smoke test"
        if self._source["tree"] is None:
            return "a result names the source that was measured, and this is no git checkout"
        if modified := self._source["modified"]:
            more = f" and {len(modified) - 1} more" if len(modified) > 1 else ""
            return f"a result comes from an unmodified tree, but {modified[0]}{more} differs from the last commit"
        return ""

    def __enter__(self) -> Results:
        self._watching.enter_context(self._watch.over())
        return self

    def __exit__(self, *_: object) -> None:
        self._watching.close()

    def noise(self) -> Noise:
        """Return the noise so far."""
        self._watching.close()
        self._watching.enter_context(self._watch.over())
        return self._watch.noise()

    def save(self, data: Mapping[str, Any]) -> None:
        """Write the results so far. A long run calls this repeatedly, so that it keeps what it has if it is stopped."""
        if self._path is None:
            return
        if self._is_kept and source() != self._source:
            raise ValueError(f"{self._path} is not written: the source has changed since the run began")
        record = {"command": self._command, **self._source, "machine": provenance(), "noise": self.noise().to_dict(),
                  **data}
        text = json.dumps({**record, "sha256": digest(record)}, indent=2, ensure_ascii=False)
        self._path.write_text(f"{text}\n", encoding="utf-8")


def digest(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record's content without its own ``sha256``."""
    content = json.loads(json.dumps(record))
    content.pop("sha256", None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def announce(arguments: argparse.Namespace, *lines: str) -> None:
    """Print what is measured, and warn if the machine is slower than it could be, or busy."""
    print("\n".join([QUICK] * arguments.quick + list(lines)), flush=True)
    tell_slow_blas()
    warn_if_busy()
