"""``mini-vllm demo``, in three versions.

``tale`` shows real decoding, like ``make demo``. ``blocks`` shows only the KV cache manager. ``live`` opens the
server's page with a small pool.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from mini_vllm.checks import check_installed

TRY_NEXT = (
    ("mini-vllm demo blocks", "sharing, step by step"),
    ("mini-vllm demo live", "sharing, in your browser"),
    ("mini-vllm demo --trace run.svg", "this run as a picture"),
    ('mini-vllm generate "The king said"', "your own prompt"),
    ("course", "the first lab"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=["tale", "blocks", "live"], default="tale",
                        help="tale: real decoding (default); blocks: the KV cache blocks, one change at a time; live: "
                        "a page in your browser that shows the engine at work")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="record every step of the tale: as a picture if "
                        "FILE ends in .svg or .png, otherwise as a trace that `mini-vllm trace FILE` draws")
    parser.add_argument("--port", type=int, metavar="N", help="port of the live page (default: any free one)")
    parser.add_argument("--no-open", action="store_true", help="only print the address of the live page")


def run_demo(arguments: argparse.Namespace, started_s: float) -> int:
    """Run a demo. Raise ValueError, with the reason, for options that do not belong to this demo or cannot be used."""
    if arguments.trace is not None and arguments.what != "tale":
        raise ValueError(f"--trace {arguments.trace}: only the tale can be recorded")
    if arguments.what != "live" and (arguments.port is not None or arguments.no_open):
        option = "--no-open" if arguments.port is None else f"--port {arguments.port}"
        raise ValueError(f"{option}: only `demo live` starts a server")
    if arguments.what == "live":
        from mini_vllm.demo.live import show_live
        show_live(arguments.port or 0, is_opened=not arguments.no_open)
        return 0
    check_installed("cli", "the demo")
    from rich.console import Console
    console = Console(highlight=False, soft_wrap=True)
    if arguments.what == "blocks":
        from mini_vllm.demo.blocks import show_blocks
        show_blocks(console)
        return 0
    from mini_vllm.demo.tale import tell_a_tale
    tell_a_tale(console, started_s, arguments.trace)
    activate = "" if os.environ.get("VIRTUAL_ENV") else ", after [bold]source .venv/bin/activate[/bold]"
    console.print(f"\n[bold]Try next[/bold]{activate}:")
    for command, about in TRY_NEXT:
        console.print(f"  {command:<35} {about}", markup=False)
    return 0
