"""An option of the engine: a running request gives way to a waiting request of better priority.

The scheduler's own rules preempt only when a running request needs a block. So as long as LOW requests hold every seat,
a HIGH request waits until one of them ends. With ``EngineConfig.preempt_for_priority`` this class extends the
scheduler, whoever wrote it, and makes room before a step is planned:

    running  LOW LOW LOW LOW     waiting  HIGH LOW            all 4 seats are taken
    running  LOW LOW LOW         waiting  HIGH LOW LOW        the LOW request that would be served last gives way
    running  LOW LOW LOW HIGH    waiting  LOW LOW             the plan admits as usual: from the front of the queue

 1. **Which request gives way.** A running request gives way to one of a better *base* priority that is also before it
    in the queue's order. A running request does not age: its age is the total time that it has waited. A running LOW
    request may have waited so long that it is before a HIGH request in this order. Then it keeps its seat: it would be
    admitted next anyway.
 2. **What it gives up.** Seats and blocks, if the better request lacks them. The request that would be served last
    leaves first, as in rule 5 of the scheduler; none leaves if all of them together would not be enough. And tokens of
    the step: a prompt gives way to a better prompt. It returns in the same step if there is a seat and budget left.
 3. **Chunks.** If worse requests decode in the same step, a prompt gets all tokens that the budget leaves. Rule 3 of
    the scheduler limits its chunks so that decoding requests do not wait; but here the decoding requests should wait.
 4. **Half of the seats are for age.** An old request can be admitted before a better request, or keep its seat, because
    of its age. This is allowed only while less than half of the seats are held by requests worse than the better one.
    Beyond that the better request is admitted first, and running requests give way to it, the youngest first. So an old
    backlog does not keep better requests waiting.

A request that gives way keeps its output, and its computed blocks stay findable; without prefix caching it is computed
again. Whenever a request gives way, a better one is computed. With an aging rate above 0 this ends: a request of base
priority p that has waited (p - q) / rate seconds in total no longer gives way to a new request of base priority q,
within the limits of rule 4. For LOW and HIGH, at rate 0.1, that is 20 s.

    scheduler  makes room before a step is planned
    ranking    which request gives way to which
    capacity   seats, blocks and tokens: what is available, what a request needs, what it frees when it leaves
"""

from __future__ import annotations

from mini_vllm.priority_preemption.scheduler import GivingWay


def with_priority_preemption(scheduler: type) -> type:
    """Return a subclass of ``scheduler`` whose running requests give way to better waiting ones."""
    return type(scheduler.__name__, (GivingWay, scheduler), {
        "__module__": scheduler.__module__, "__qualname__": scheduler.__qualname__, "__doc__": scheduler.__doc__})
