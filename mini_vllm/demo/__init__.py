"""What ``make demo`` shows: ``tale``, real decoding; and ``blocks``, the KV cache manager alone."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

TRY_NEXT = (
    ("mini-vllm demo blocks", "sharing, step by step"),
    ("mini-vllm demo --trace run.svg", "this run as a picture"),
    ('mini-vllm generate "The king said"', "a prompt of yours"),
    ("course", "the first lab"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=["tale", "blocks"], default="tale",
                        help="tale: real decoding (default); blocks: where tokens live, one change at a time")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="record every step of the tale: as a picture if "
                        "FILE ends in .svg or .png, else for `mini-vllm trace FILE`")


def run_demo(arguments: argparse.Namespace, started_s: float) -> int:
    """Raises ValueError, which says why, if the run cannot be recorded where ``--trace`` says."""
    from rich.console import Console
    console = Console(highlight=False, soft_wrap=True)
    if arguments.what == "blocks":
        if arguments.trace is not None:
            raise ValueError(f"--trace {arguments.trace}: only the tale is computed in steps that can be recorded")
        from mini_vllm.demo.blocks import show_blocks
        show_blocks(console)
        return 0
    from mini_vllm.demo.tale import tell_a_tale
    tell_a_tale(console, started_s, arguments.trace)
    console.print("\n[bold]To try next[/bold]" + ("" if os.environ.get("VIRTUAL_ENV") else
                                                 ", after [bold]source .venv/bin/activate[/bold]") + ":")
    for command, about in TRY_NEXT:
        console.print(f"  {command:<35} {about}", markup=False)
    return 0
