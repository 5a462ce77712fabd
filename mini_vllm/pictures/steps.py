"""A recorded run, step by step: the pool and the tables at the start of each step, and what the step computed."""

from __future__ import annotations

from mini_vllm.pictures.picture import Picture
from mini_vllm.pictures.pool import LOOK_AT_TABLES, draw_state
from mini_vllm.pictures.pool_state import PoolState
from mini_vllm.pictures.request_colours import Cast
from mini_vllm.pictures.slides import Slides
from mini_vllm.trace.files import TraceStep, allowed_of, draft_of
from mini_vllm.trace.history import count
from mini_vllm.trace.recorder import StepTrace


def step_through(trace: StepTrace, *, first_step: int = 0, num_steps: int | None = None, every: int = 1,
                 look: str = LOOK_AT_TABLES, stills: tuple[int, ...] | None = None) -> Slides:
    """Draw a frame for every ``every``-th step. ``stills`` are the frames that a page without scripts shows.

    Raise ValueError for steps that are not in the trace.
    """
    last = len(trace.steps) if num_steps is None else first_step + num_steps
    if not 0 <= first_step < last <= len(trace.steps):
        raise ValueError(f"steps {first_step} to {last - 1} are not all in the trace, which has {len(trace.steps)}")
    if every < 1:
        raise ValueError(f"every is {every}, must be at least 1")
    cast, slides = Cast.of_trace(trace), Slides(look, stills=stills)
    for index in range(first_step, last, every):
        slides.add(f"step {index}: {tell_step(trace.steps[index], cast)}", draw_step(trace, index, look=look))
    return slides


def draw_step(trace: StepTrace, index: int, *, look: str = LOOK_AT_TABLES) -> Picture:
    """Draw the pool and the tables after step ``index`` was planned. Raise ValueError if there is no such step."""
    if not 0 <= index < len(trace.steps):
        raise ValueError(f"index is {index}, the trace has {len(trace.steps)} steps")
    return draw_state(PoolState.of_step(trace, index), cast=Cast.of_trace(trace), look=look)


def tell_step(step: TraceStep, cast: Cast) -> str:
    """Describe a step: the tokens each request computed, preempted and finished requests, and copies.

    For a request whose output must match, also the number of tokens that were allowed for each token that it got.
    """
    parts = [f"{cast.letter(name)} {num_tokens}{_tell_draft(*draft_of(step, name))}"
             f"{_tell_allowed(allowed_of(step, name))}" for name, (_, num_tokens) in step["tokens"].items()]
    told = [f"tokens {', '.join(parts)}" if parts else "nothing to compute"]
    told += [f"{cast.letter(name)} is preempted" for name in step["preempted"]]
    told += [f"{count(len(step['copies']), 'block')} copied"] * bool(step["copies"])
    told += [f"{cast.letter(name)} ends" for name in step["finished"]]
    return "; ".join(told)


def _tell_allowed(nums: list[int]) -> str:
    return f" ({', '.join(f'{num:,}' for num in nums)} allowed)" if nums else ""


def _tell_draft(num_drafted: int, num_accepted: int) -> str:
    return f" ({num_drafted} drafted, {num_accepted} accepted)" if num_drafted else ""
