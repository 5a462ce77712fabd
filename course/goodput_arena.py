"""Lab 4.4: the calls between the arena and a scheduling policy.

Student files import this path; the code is in ``course.goodput.arena``.
"""

from course.goodput.arena import (
    Arrival,
    IllegalPlan,
    Limits,
    Machine,
    Outcome,
    PolicyClass,
    RequestState,
    Step,
    Trace,
    num_good,
    play,
    serve,
)

__all__ = ["Arrival", "IllegalPlan", "Limits", "Machine", "Outcome", "PolicyClass", "RequestState",
           "Step", "Trace", "num_good", "play", "serve"]
