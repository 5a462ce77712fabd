"""Lab 6.3: the traces on which routers are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from course.replicas.arena import Arrival, Outage, Trace, answer
from mini_vllm.simulation import VOCAB_SIZE

SEED = 63


def _tokens(rng: np.random.Generator, num_tokens: int) -> tuple[int, ...]:
    return tuple(rng.integers(1, VOCAB_SIZE, num_tokens).tolist())


def _times(rng: np.random.Generator, num: int, gap_s: float) -> list[float]:
    return [round(at_s, 6) for at_s in np.cumsum(rng.exponential(gap_s, num)).tolist()]


def _prefixed(rng: np.random.Generator, prefixes: Sequence[int], num_shared: int, gap_s: float) -> tuple[Arrival, ...]:
    """Return one request for each entry of ``prefixes``, the number of its prefix."""
    texts = {prefix: _tokens(rng, num_shared) for prefix in sorted(set(prefixes))}
    return tuple(Arrival(at_s, texts[prefix] + _tokens(rng, 32), 16)
                 for at_s, prefix in zip(_times(rng, len(prefixes), gap_s), prefixes))


def prefixes(rng: np.random.Generator) -> Trace:
    """Make eight prefixes with ten requests each; a replica has room for six requests."""
    order = rng.permutation(np.repeat(np.arange(8), 10)).tolist()
    return Trace("prefixes", 2, 60, _prefixed(rng, order, 256, 0.1))


def popular(rng: np.random.Generator) -> Trace:
    """Make requests of which half have the same prefix, nearly more than one replica can serve, others one of 20."""
    order = np.where(rng.random(160) < 0.5, 0, rng.integers(1, 21, 160)).tolist()
    return Trace("popular", 4, 80, _prefixed(rng, order, 256, 0.035))


def chats(rng: np.random.Generator) -> Trace:
    """Make conversations of six turns that all begin with the same text; each turn repeats the conversation so far."""
    system, arrivals = _tokens(rng, 96), []
    for start_s in _times(rng, 30, 0.25):
        text, at_s = list(system), start_s
        for _ in range(6):
            text += _tokens(rng, int(rng.integers(20, 120)))
            num_new = int(rng.integers(10, 60))
            arrivals.append(Arrival(round(at_s, 6), tuple(text), num_new))
            text += answer(text, num_new)
            at_s += 1.0 + float(rng.exponential(1.5))
    return Trace("chats", 3, 110, tuple(sorted(arrivals)))


def documents(rng: np.random.Generator) -> Trace:
    """Make questions about documents of a thousand tokens, among short requests with a common beginning."""
    short = _tokens(rng, 64)
    arrivals = [Arrival(at_s, short + _tokens(rng, int(rng.integers(10, 60))), 12)
                for at_s in _times(rng, 100, 0.12)]
    for start_s in _times(rng, 10, 1.1):
        document = _tokens(rng, int(rng.integers(600, 1200)))
        for at_s in _times(rng, 5, 0.8):
            arrivals.append(Arrival(round(start_s + at_s, 6), document + _tokens(rng, 24), 20))
    return Trace("documents", 3, 130, tuple(sorted(arrivals)))


def outage(rng: np.random.Generator) -> Trace:
    """Make twelve prefixes with ten requests each; one replica leaves, and comes back with an empty cache."""
    order = rng.permutation(np.repeat(np.arange(12), 10)).tolist()
    return Trace("outage", 3, 60, _prefixed(rng, order, 256, 0.08), (Outage("replica-1", 3.0, 5.0),))


KINDS = {"prefixes": prefixes, "popular": popular, "chats": chats, "documents": documents, "outage": outage}


def make_trace(kind: str, seed: int | None = None) -> Trace:
    """Make the trace of the score of this kind, or with a seed another one: other prefixes, other times."""
    number = list(KINDS).index(kind)
    if seed is None:
        return KINDS[kind](np.random.default_rng((SEED, number)))
    trace = KINDS[kind](np.random.default_rng((SEED + 1, number, seed)))
    return dataclasses.replace(trace, name=f"{kind} of seed {seed}")


def fixed_traces() -> tuple[Trace, ...]:
    """Return the traces of the score."""
    return tuple(map(make_trace, KINDS))
