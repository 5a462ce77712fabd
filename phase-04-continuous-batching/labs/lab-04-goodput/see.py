"""Watch your policy at work: which requests of a trace are in time with static batches, and which with your policy.

    course run --lab 4.4
    python see.py --trace overload --first 40

Each row is a request, each column a moment. You wrote ``SchedulingPolicy``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from course.goodput.score import StaticBatches
from course.goodput.traces import FIXED, make_trace
from course.goodput_arena import Outcome, PolicyClass, Step, Trace, play, serve
from course.lab.load_module import load_file

NUM_COLUMNS, NUM_ROWS = 64, 20


def picture(trace: Trace, policy_class: PolicyClass, first: int, column_us: int) -> list[Text]:
    """Draw ``NUM_ROWS`` requests from number ``first`` on: one row each, with the reason if it is not in time."""
    steps, outcomes = list(play(trace, policy_class)), serve(trace, policy_class)
    start_us = trace.arrivals[first].arrival_us
    rows = []
    for request_id in range(first, min(first + NUM_ROWS, len(trace.arrivals))):
        outcome = outcomes[request_id]
        cells = [_cell(request_id, outcome, steps, start_us + i * column_us, start_us + (i + 1) * column_us)
                 for i in range(NUM_COLUMNS)]
        row = Text(f"{request_id:>4} ")
        for cell in cells:
            row.append(cell, "green" if outcome.is_good else "red")
        row.append(f" {_remark(outcome)}")
        rows.append(row)
    return rows


def _cell(request_id: int, outcome: Outcome, steps: Sequence[Step], start_us: int, end_us: int) -> str:
    arrival = outcome.arrival
    if end_us <= arrival.arrival_us or start_us >= outcome.last_token_at_us:
        return " "
    if start_us <= arrival.arrival_us + arrival.max_first_token_us < end_us <= outcome.first_token_at_us:
        return "|"
    is_computed = any(request_id in step.num_scheduled_tokens for step in steps
                      if step.start_us < end_us and step.end_us > start_us)
    if not is_computed:
        return "·"
    return "▒" if start_us < outcome.first_token_at_us else "█"


def _remark(outcome: Outcome) -> str:
    if not outcome.has_first_token_in_time:
        late_us = outcome.first_token_us - outcome.arrival.max_first_token_us
        return f"✗ first token {late_us / 1e6:.1f} s late"
    if not outcome.has_tokens_in_time:
        mean_us = ((outcome.last_token_at_us - outcome.first_token_at_us)
                   / max(outcome.arrival.num_output_tokens - 1, 1))
        return f"✗ {mean_us / 1e3:.0f} ms per token, not {outcome.arrival.max_token_us / 1e3:.0f}"
    return "✓"


def summary(outcomes: Sequence[Outcome]) -> str:
    num_first = sum(not outcome.has_first_token_in_time for outcome in outcomes)
    num_slow = sum(outcome.has_first_token_in_time and not outcome.has_tokens_in_time for outcome in outcomes)
    return (f"{sum(outcome.is_good for outcome in outcomes):>4} of {len(outcomes)} in time, {num_first} with a late "
            f"first token, {num_slow} too slow after it")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("starter.py"))
    parser.add_argument("--trace", choices=[*FIXED, "random 0"], default="deadlines")
    parser.add_argument("--first", type=int, default=20, help="the first request to show (default: 20)")
    parser.add_argument("--seconds", type=float, default=8.0, help="how many seconds to show (default: 8)")
    arguments = parser.parse_args(argv)
    trace = make_trace(arguments.trace)
    if not 0 <= arguments.first < len(trace.arrivals):
        parser.error(f"--first is {arguments.first}, must be from 0 to {len(trace.arrivals) - 1}")
    if not 0.1 <= arguments.seconds <= 1000:
        parser.error(f"--seconds is {arguments.seconds}, must be from 0.1 to 1000")
    policies: dict[str, PolicyClass] = {"static batches": StaticBatches,
                                        "your policy": load_file(arguments.file).SchedulingPolicy}
    console = Console(highlight=False)
    for name, policy_class in policies.items():
        console.print(f"[bold]{trace.name}, {name}[/]   · waits   ▒ prompt   █ output   | first token was due",
                      soft_wrap=True)
        for row in picture(trace, policy_class, arguments.first, round(arguments.seconds * 1e6 / NUM_COLUMNS)):
            console.print(row, soft_wrap=True)
        console.print()
    for name, policy_class in policies.items():
        console.print(f"{name:<16}{summary(serve(trace, policy_class))}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
