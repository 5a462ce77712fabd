"""An option of the engine: a running request gives way to a better one that waits.

The scheduler's own rules preempt only when a running request needs a block. So as long as LOW requests hold every seat,
a HIGH one waits until one of them ends. With ``EngineConfig.preempt_for_priority`` this class is put over the
scheduler, whoever wrote it, and makes way before a step is planned:

    running  LOW LOW LOW LOW     waiting  HIGH LOW            all 4 seats are held
    running  LOW LOW LOW         waiting  HIGH LOW LOW        the LOW one that would be served last gives way
    running  LOW LOW LOW HIGH    waiting  LOW LOW             the plan admits as ever: from the front of the queue

 1. **Who gives way to whom.** A running request gives way to one of a better *base* priority that also stands before it
    in the queue's order. Who runs does not age: the age of a request is the time that it has waited, in all. A LOW one
    that has waited past a HIGH one keeps its place: it would be next anyway.
 2. **For what.** Seats and blocks, if the better one lacks them: the one that would be served last goes first, as in
    rule 5 of the scheduler, and nobody goes if all of them were not enough. And tokens of the step: a prompt gives way
    to a better prompt. It comes back in the same step if there is a seat and something left for it.
 3. **Chunks.** A prompt beside worse requests that decode gets all that the budget leaves: rule 3 of the scheduler
    spares those that decode, and here they are the ones to wait.

 4. **Age has half of the seats.** A request that is older than a better one goes before it, or keeps its seat, only
    while requests worse than the better one hold less than half of the seats. Beyond that the better one goes first,
    and running ones give way to it, the youngest first. So a backlog that has grown old keeps no better request
    waiting.

Whoever gives way keeps its output, and what was computed of it stays findable; without prefix caching it is computed
again. Whenever somebody gives way, a better one is computed. With an aging rate above 0 there is an end to it: a
request of base p that has waited (p - q) / rate seconds, in all, gives way to nobody of base q who has just come, as
far as rule 4 goes. For LOW and HIGH, at rate 0.1, that is 20 s.

    scheduler  makes way before a step is planned
    standing   who gives way to whom
    room       seats, blocks and tokens: what there is, what a request needs, what it gives back when it goes
"""

from __future__ import annotations

from mini_vllm.priority_preemption.scheduler import GivingWay


def with_priority_preemption(scheduler: type) -> type:
    """The same scheduler, whose running requests give way to better ones that wait."""
    return type(scheduler.__name__, (GivingWay, scheduler), {
        "__module__": scheduler.__module__, "__qualname__": scheduler.__qualname__, "__doc__": scheduler.__doc__})
