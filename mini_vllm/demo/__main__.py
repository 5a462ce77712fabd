"""What ``make demo`` shows: a tale as it is decoded, then three requests that share a beginning.

    python -m mini_vllm.demo           real decoding
    python -m mini_vllm.demo blocks    the KV cache manager alone, every change of its state on the screen
"""

from __future__ import annotations

import time

STARTED_S = time.perf_counter()

import argparse  # noqa: E402  the clock runs from the first line, as a person's does
import sys  # noqa: E402

from rich.console import Console  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mini_vllm.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["tale", "blocks"], default="tale")
    console = Console(highlight=False, soft_wrap=True)
    if parser.parse_args().what == "blocks":
        from mini_vllm.demo.blocks import show_blocks
        show_blocks(console)
    else:
        from mini_vllm.demo.tale import tell_a_tale
        tell_a_tale(console, STARTED_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
