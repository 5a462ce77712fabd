"""The exercises of notebook 04, continuous batching: seats, the budget of a step, which request is preempted."""

from __future__ import annotations

from collections.abc import Sequence

from course.exercises import Exercise
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Priority, Request, SamplingParams
from mini_vllm.request_queue import PriorityQueueWithAging
from mini_vllm.scheduler import Scheduler
from mini_vllm.simulation import Clock, Simulation


def _request(name: str, num_prompt_tokens: int, num_tokens: int) -> Request:
    return Request(name, [ord(name)] * num_prompt_tokens, SamplingParams(max_tokens=num_tokens))


def count_steps(groups: Sequence[Sequence[int]], seats: int) -> int:
    """Count the steps for groups of requests, given by output lengths; a group arrives when the previous one ends."""
    simulation = Simulation(Scheduler(KVCacheManager(100, 4), seats, max_num_batched_tokens=64))
    names = iter("abcdefg")
    for group in groups:
        for num_tokens in group:
            simulation.add(_request(next(names), 4, num_tokens), at_s=simulation.clock.now_s)
        simulation.run()
    return len(simulation.timeline.steps)


def static_and_continuous() -> tuple[int, int]:
    says = [5, 2, 8, 4, 1, 6, 3]
    return count_steps([says[:3], says[3:6], says[6:]], 3), count_steps([says], 3)


def smallest_budget() -> int:
    """Find the smallest budget that serves a 120-token prompt within six steps while five requests decode."""
    return next(budget for budget in range(6, 200) if _num_steps_of_prompt(budget) <= 6)


def _num_steps_of_prompt(budget: int) -> int:
    simulation = Simulation(Scheduler(KVCacheManager(500, 4), 6, budget))
    for name in "abcde":
        simulation.add(_request(name, 1, 200))
    simulation.step()
    simulation.add(_request("p", 120, 1), at_s=simulation.clock.now_s)
    num_steps = 1
    while "p" not in simulation.step().sampled:
        num_steps += 1
    return num_steps


def who_gives_way() -> str:
    """Name the preempted requests when four requests with one full block each need a second block, then a third."""
    clock = Clock()
    clock.now_s = 30.0
    scheduler = Scheduler(KVCacheManager(5, 4, enable_caching=False), 4, 64, PriorityQueueWithAging(0.1, clock),
                          watermark=0.0)
    simulation = Simulation(scheduler, clock=clock)
    for name, priority, came_s in (("a", Priority.LOW, 0.0), ("b", Priority.HIGH, 25.0), ("c", Priority.NORMAL, 8.0),
                                   ("d", Priority.HIGH, 15.0)):
        request = Request(name, [ord(name)] * 4, SamplingParams(max_tokens=10), priority, arrival_time=came_s)
        simulation.add(request, at_s=30.0)
    victims = ""
    while len(victims) < 3:
        victims += "".join(simulation.step().preempted)
    return victims


EXERCISES = (
    Exercise(
        answer=(17, 12), proof=static_and_continuous,
        why="A static batch takes as many steps as its longest request has tokens: 8 + 6 + 3 = 17. In the continuous "
            "batch, the request of 6 tokens gets its seat in step 6 and ends in step 11. The steps 0 to 11 are 12 "
            "steps.",
        hint="Draw three rows, one per seat. Write each request into the row that is free first. A request of n tokens "
             "takes n steps, because the step that computes its prompt also gives its first token.",
        slips={(17, 10): "29 tokens in three seats would take 10 steps if no seat were ever empty. But the request of "
                         "6 tokens begins late, and then it needs 6 more steps, whatever the other seats do.",
               (17, 8): "The longest request takes 8 steps. But other requests begin later and end after it.",
               (17, 11): "The last step is step 11, but the first step is step 0.",
               (29, 12): "29 steps would be one request at a time. The three requests of a batch share their steps.",
               (12, 17): "The two numbers are swapped: the static batches are first, then the continuous batch."}),
    Exercise(
        answer=25, proof=smallest_budget,
        why="The decoding requests take 5 tokens of every step, so 20 are left for the prompt. 6 steps of 20 tokens "
            "make 120, and the sixth step gives the first token.",
        hint="How much of the budget is left for the prompt when each of the five requests has its token? How many "
             "prompt tokens must each step compute?",
        slips={20: "It is right that each step must compute 20 prompt tokens. But the five decoding requests are "
                   "served first, from the same budget.",
               29: "With 24 prompt tokens per step the prompt takes 5 steps. But 6 steps are allowed, because the step "
                   "that computes the last part of the prompt also gives the first token.",
               125: "This budget computes the whole prompt in one step, but six steps are allowed.",
               120: "Without the decoding requests, this budget computes the whole prompt in one step. But six steps "
                    "are allowed."}),
    Exercise(
        answer="bac", proof=who_gives_way,
        why="The request that would be served last is preempted first. At 30 s the effective priorities are -0.5 for "
            "b, -1.0 for a, -1.2 for c and -1.5 for d. The request with the largest value is preempted first, and d is "
            "left.",
        hint="Compute the effective priority of each request at 30 s. (Or compute priority + arrival × 0.1, which "
             "gives the same order.) The request with the largest number is served last.",
        slips={"acb": "This would be the order with strict priority. But a has waited 30 s, which is worth 3 levels.",
               "bdc": "This is the reverse order of arrival. d arrived late, but it is HIGH: its 0 + 1.5 is less than "
                      "a's 2 + 0.",
               "dca": "This is the order in which the requests would be served. The request that would be served last "
                      "is preempted first.",
               "abc": "b arrived at 25 s. Its 0 + 2.5 is more than a's 2 + 0, so b would be served after a."}),
)
