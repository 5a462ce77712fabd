"""Show a tale as it is decoded, then three requests that begin alike; ``make demo`` runs this.

    python -m mini_vllm.demo           real decoding
    python -m mini_vllm.demo blocks    the KV cache manager alone, with every change of its state
    python -m mini_vllm.demo live      the server's page in a browser, with a pool that fits on the screen
"""

from __future__ import annotations

import time

STARTED_S = time.perf_counter()

import argparse  # noqa: E402  the clock starts at the first line, because imports are part of the wait
import sys  # noqa: E402

from mini_vllm.demo import add_options, run_demo  # noqa: E402
from mini_vllm.terminal import run_command  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mini_vllm.demo", description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    try:
        return run_demo(parser.parse_args(), STARTED_S)
    except (ValueError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(run_command(main))
