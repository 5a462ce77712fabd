"""``mini-vllm trace``: a recorded run as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from mini_vllm.pictures.timeline import draw_trace
from mini_vllm.trace.recorder import StepTrace


def run_trace(arguments: argparse.Namespace) -> int:
    picture = draw_trace(StepTrace.load(arguments.file), first_step=arguments.first_step, num_steps=arguments.num_steps)
    out: Path = arguments.out or arguments.file.with_suffix(".svg")
    out.write_text(picture, encoding="utf-8")
    print(out)
    return 0
