"""Lab 4.4: traces of requests, recorded from the project's own engine (``record``) or generated from a seed.

The costs were chosen to resemble ``tiny-tales`` on two CPU cores: a step in which 1, 16 or 64 requests decode, each at
position 256, takes 5.6, 15.0 or 45.2 ms. A prompt token after 1000 others costs twice as much as the first
(``CONTEXT_THAT_DOUBLES_COST``).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from course.goodput.arena import Arrival, Limits, Trace

NUM_REQUESTS = 100
#: 200 blocks of 16 tokens hold 3200 tokens.
LIMITS = Limits(num_blocks=200, block_size=16, max_num_seqs=8, max_num_batched_tokens=256, step_us=5_000, token_us=500,
                attended_per_us=2, max_overtaking_us=30_000_000)
RECORDED = Path(__file__).parent / "recorded"
SECOND_US = 1_000_000
MAX_TOKENS = 256
BURST_EVERY = 40


class Level(NamedTuple):
    """A service level: the longest time to the first token, and the longest mean time per output token."""

    max_first_token_us: int
    max_token_us: int


TIGHT, USUAL, LOOSE = Level(400_000, 25_000), Level(1_000_000, 40_000), Level(4_000_000, 80_000)

#: Draws a request: prompt tokens, output tokens, and the service level.
Draw = Callable[[random.Random], tuple[int, int, Level]]


# ---------------------------------------------------------------------------------------------- recorded


def recorded(name: str, num_requests: int = NUM_REQUESTS) -> list[tuple[int, int, int, int]]:
    """Return the first requests of a recording: arrival, prompt tokens, output tokens and ``max_tokens``."""
    rows = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))["requests"]
    return [(row[0], row[1], row[2], row[3]) for row in rows[:num_requests]]


def _like_recorded(rows: list[tuple[int, int, int, int]], rng: random.Random) -> list[tuple[int, int, int, int]]:
    """Return as many requests that resemble these: other times and other lengths, but about the same load.

    The times between arrivals, the prompts and the outputs are shuffled separately, and lengths change by up to a
    quarter. An output has the length, relative to its ``max_tokens``, of one with the same ``max_tokens``, or of any if
    there are many different ones.
    """
    gaps_us = [row[0] - before[0] for before, row in zip([(0,), *rows], rows)]
    prompts, outputs = [row[1] for row in rows], [row[2:] for row in rows]
    for values in (gaps_us, prompts, outputs):
        rng.shuffle(values)
    shares = [num_output / most for num_output, most in outputs]
    if len({most for _, most in outputs}) > 10:
        rng.shuffle(shares)
    made = []
    for arrival_us, num_prompt, (_, most), share in zip(itertools.accumulate(gaps_us), prompts, outputs, shares):
        num_output = most if share == 1 else min(round(share * most * rng.uniform(0.8, 1.25)), most)
        made.append((arrival_us, round(num_prompt * rng.uniform(0.8, 1.25)), max(num_output, 1), most))
    return made


def _from_recording(name: str, speed: float, seed: int | None) -> Trace:
    """Make a trace of a recording, ``speed`` times as fast; with a seed, of requests like those of the recording."""
    rng = random.Random(f"lab 4.4, {name}, {seed}")
    rows = recorded(name) if seed is None else _like_recorded(recorded(name), rng)
    return Trace(name, LIMITS, tuple(
        Arrival(round(arrival_us / speed), num_prompt, num_output, most,
                *rng.choices((TIGHT, USUAL, LOOSE), (3, 5, 2))[0])
        for arrival_us, num_prompt, num_output, most in rows))


# ---------------------------------------------------------------------------------------------- generated


def chat(rng: random.Random) -> tuple[int, int, Level]:
    """Draw a short prompt with an answer of any length; most users wait for it."""
    return rng.randint(20, 200), min(1 + round(rng.expovariate(1 / 50)), 200), rng.choices((TIGHT, USUAL), (1, 2))[0]


def document(rng: random.Random) -> tuple[int, int, Level]:
    """Draw a long text with a short summary, for which nobody sits and waits."""
    return rng.randint(600, 1600), rng.randint(10, 60), LOOSE


def anything(rng: random.Random) -> tuple[int, int, Level]:
    """Draw any length at any level."""
    return (min(20 + round(rng.expovariate(1 / 250)), 1200), min(1 + round(rng.expovariate(1 / 40)), 200),
            rng.choice((TIGHT, USUAL, LOOSE)))


def mixed(draws: Sequence[Draw], weights: Sequence[float]) -> Draw:
    return lambda rng: rng.choices(draws, weights)[0](rng)


def generated(name: str, seed: int | None, draw: Draw, rate: float, burst: float = 1.0,
              limits: Limits = LIMITS) -> Trace:
    """Generate requests, ``rate`` per second on average.

    In every fourth part of the trace they arrive ``burst`` times as often as in the others.
    """
    rng = random.Random(f"lab 4.4, {name}, {seed}")
    usual_us = SECOND_US / rate * (1 + (1 / burst - 1) / 4) ** -1
    now_us, arrivals = 0.0, []
    for number in range(NUM_REQUESTS):
        is_burst = number % BURST_EVERY < BURST_EVERY // 4
        now_us += rng.expovariate(1.0) * (usual_us / burst if is_burst else usual_us)
        num_prompt, num_output, level = draw(rng)
        arrivals.append(Arrival(round(now_us), num_prompt, num_output, MAX_TOKENS, *level))
    return Trace(name, limits, tuple(arrivals))


# ---------------------------------------------------------------------------------------------- the traces

FIXED = ("chats", "mixed", "bursts", "documents", "deadlines", "overload")


def make_trace(name: str, seed: int | None = None) -> Trace:
    """Make the trace ``bursts`` or ``random 3``; with a seed, another one of its kind."""
    match name.split():
        case ["chats" | "mixed"]:
            trace = _from_recording(name, 2.5 if name == "chats" else 1.0, seed)
        case ["bursts"]:
            trace = generated(name, seed, chat, rate=10.0, burst=5.0)
        case ["documents"]:
            trace = generated(name, seed, mixed([chat, document], [5, 1]), rate=4.5)
        case ["deadlines"]:
            trace = generated(name, seed, anything, rate=5.0)
        case ["overload"]:
            trace = generated(name, seed, anything, rate=8.0)
        case ["random", number]:
            trace = _random_trace(name, int(number), seed)
        case _:
            raise ValueError(f"there is no trace {name!r}")
    return trace if seed is None else dataclasses.replace(trace, name=f"{name} of seed {seed}")


def _random_trace(name: str, number: int, seed: int | None) -> Trace:
    """Draw which requests there are, how often and how evenly they come, and the pool."""
    rng = random.Random(f"lab 4.4, trace {number}" if seed is None else f"lab 4.4, trace {number}, {seed}")
    draw = mixed([chat, document, anything], [rng.uniform(1, 4), rng.uniform(0, 0.6), rng.uniform(1, 3)])
    return generated(name, number if seed is None else seed, draw, rng.uniform(4.5, 8.0), rng.choice((1.0, 3.0, 6.0)),
                     LIMITS._replace(num_blocks=rng.randint(130, 250)))
