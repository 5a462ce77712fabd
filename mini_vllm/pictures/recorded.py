"""Save a recorded run: as a picture if the file name ends in .svg or .png, otherwise as a trace to draw later."""

from __future__ import annotations

from pathlib import Path

from mini_vllm.checks import writable_file
from mini_vllm.pictures.picture import SUFFIXES, check_suffix
from mini_vllm.pictures.timeline import draw_trace
from mini_vllm.trace.recorder import StepTrace


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def check_run_target(path: Path) -> None:
    """Raise ValueError, with the reason, if a run cannot be saved there. Call this before the run."""
    writable_file(path)
    if is_picture(path):
        check_suffix(path)


def save_run(trace: StepTrace, path: Path) -> None:
    """Save the run. Raise ValueError if no step was recorded."""
    if is_picture(path):
        draw_trace(trace).save(path)
    else:
        trace.save(path)
