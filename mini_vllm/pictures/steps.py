"""A recorded run, step by step: the pool and the tables as each step found them, and what it computed."""

from __future__ import annotations

from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.pool import LOOK_AT_TABLES, draw_state
from mini_vllm.pictures.pool_state import PoolState
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.slides import Slides
from mini_vllm.trace.files import TraceStep
from mini_vllm.trace.history import count
from mini_vllm.trace.recorder import StepTrace


def step_through(trace: StepTrace, *, first_step: int = 0, num_steps: int | None = None, every: int = 1,
                 look: str = LOOK_AT_TABLES, stills: tuple[int, ...] | None = None) -> Slides:
    """A frame for every ``every``-th step; ``stills``: which frames a page without scripts shows.

    Raises ValueError for steps that the trace does not have.
    """
    last = len(trace.steps) if num_steps is None else first_step + num_steps
    if not 0 <= first_step < last <= len(trace.steps):
        raise ValueError(f"steps {first_step} to {last - 1} are asked for, the trace has {len(trace.steps)}")
    if every < 1:
        raise ValueError(f"every is {every}, must be at least 1")
    cast, slides = Cast.of_trace(trace), Slides(look, stills=stills)
    for index in range(first_step, last, every):
        slides.add(f"step {index}: {tell_step(trace.steps[index], cast)}", draw_step(trace, index, look=look))
    return slides


def draw_step(trace: StepTrace, index: int, *, look: str = LOOK_AT_TABLES) -> Picture:
    """The pool and the tables as step ``index`` found them, after it was planned. Raises ValueError if there is no such
    step."""
    if not 0 <= index < len(trace.steps):
        raise ValueError(f"step {index} is asked for, the trace has {len(trace.steps)}")
    return draw_state(PoolState.of_step(trace, index), cast=Cast.of_trace(trace), look=look)


def tell_step(step: TraceStep, cast: Cast) -> str:
    """Who computed what, who was preempted, who ended, and what was copied."""
    parts = [f"{cast.letter(name)} {num_tokens}" for name, (_, num_tokens) in step["tokens"].items()]
    told = [f"tokens {', '.join(parts)}" if parts else "nothing to compute"]
    told += [f"{cast.letter(name)} is preempted" for name in step["preempted"]]
    told += [f"{count(len(step['copies']), 'block')} copied"] * bool(step["copies"])
    told += [f"{cast.letter(name)} ends" for name in step["finished"]]
    return "; ".join(told)
