"""Watch your router at work: which replica serves which request, with round robin and with your router.

    course run --lab 6.3
    python see.py --trace popular

Each row is a prefix, each letter a request with this prefix, in the order of their arrival. You wrote
``CacheAwareRouter``.
"""

from __future__ import annotations

import argparse
import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from course.lab.load_module import load_file
from course.replicas.arena import BLOCK_SIZE, MakeRouter, Served, Trace, play
from course.replicas.score import round_robin
from course.replicas.traces import KINDS, make_trace

NUM_ROWS = 12


def picture(trace: Trace, served: Sequence[Served]) -> list[Text]:
    """Draw the most frequent prefixes: one row each, with a letter per request for its replica."""
    letters = dict(zip(trace.replicas, string.ascii_uppercase))
    rows: dict[tuple[int, ...], Text] = {}
    for arrival, request in zip(trace.arrivals, served):
        row = rows.setdefault(prefix_of(trace, arrival.token_ids), Text())
        is_hit = 2 * request.num_cached_tokens > request.num_prompt_tokens
        letter = letters[request.replica]
        row.append(letter if is_hit else letter.lower(), "green" if is_hit else "red")
    longest = sorted(rows.values(), key=len, reverse=True)
    more = [Text(f"  … and {len(rows) - NUM_ROWS} more rows")] if len(rows) > NUM_ROWS else []
    return [Text("  ").append_text(row) for row in longest[:NUM_ROWS]] + more


def prefix_of(trace: Trace, token_ids: Sequence[int]) -> tuple[int, ...]:
    """Return as many first blocks as tell the prompts apart: 4 where all begin alike, otherwise 1."""
    firsts = {arrival.token_ids[:BLOCK_SIZE] for arrival in trace.arrivals}
    return tuple(token_ids[:BLOCK_SIZE if len(firsts) > 2 else 4 * BLOCK_SIZE])


def summary(served: Sequence[Served]) -> str:
    num_served = Counter(request.replica for request in served)
    cached = (sum(request.num_cached_tokens for request in served)
              / sum(request.num_prompt_tokens for request in served))
    wait_s = sum(request.first_token_s for request in served) / len(served)
    return (f"{cached:>6.1%} of prompt tokens cached, busiest replica {max(num_served.values()) / len(served):.1%}, "
            f"first token after {wait_s:.3f} s")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("starter.py"))
    parser.add_argument("--trace", choices=list(KINDS), default="prefixes")
    arguments = parser.parse_args(argv)
    trace = make_trace(arguments.trace)
    routers: dict[str, MakeRouter] = {"round robin": round_robin,
                                      "your router": load_file(arguments.file).CacheAwareRouter}
    played = {name: play(trace, make_router) for name, make_router in routers.items()}
    console = Console(highlight=False)
    for name, served in played.items():
        console.print(f"[bold]{trace.name}, {name}[/]   A, B, …: the replica   a, b, …: less than half was cached",
                      soft_wrap=True)
        for row in picture(trace, served):
            console.print(row, soft_wrap=True)
        console.print()
    for name, served in played.items():
        console.print(f"{name:<13}{summary(served)}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
