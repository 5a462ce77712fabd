"""``mini-vllm trace``: a recorded run as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from mini_vllm.checks import writable_file
from mini_vllm.pictures.picture import check_suffix
from mini_vllm.pictures.timeline import check_width, draw_trace
from mini_vllm.trace.recorder import StepTrace


def run_trace(arguments: argparse.Namespace) -> int:
    """Draw a trace. The picture's path and width are checked before anything is read."""
    out: Path = arguments.output or arguments.file.with_suffix(".svg")
    check_target(out, arguments.file)
    check_width(arguments.width)
    picture = draw_trace(StepTrace.load(arguments.file), first_step=arguments.first_step, num_steps=arguments.num_steps,
                         width=arguments.width)
    picture.save(out)
    print(out)
    return 0


def check_target(out: Path, trace: Path) -> None:
    """Raise ValueError, with the reason, if the picture cannot or should not be written to ``out``."""
    writable_file(out)
    check_suffix(out)
    if out.resolve() == trace.resolve():
        raise ValueError(f"{out} is the trace itself; name the picture with --output")
