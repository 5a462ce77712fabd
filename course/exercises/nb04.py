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
    """Each group of requests, given by their numbers of output tokens, arrives when the one before has ended."""
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
    """Five requests decode when a prompt of 120 tokens arrives, and its first token is due within six steps."""
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
    """Four requests with one full block each, when all four need a second one, and later a third."""
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
        why="A static batch takes as many steps as its longest request: 8 + 6 + 3. In the continuous batch the "
            "request of 6 tokens gets its seat in step 6, and step 11 is the last.",
        hint="Draw three rows, one per seat, and write each request into the row that is free first. A request of n "
             "tokens takes n steps: the step of its prompt gives the first.",
        slips={(17, 10): "29 tokens on three seats would be 10 steps if no seat were ever empty. But the request of 6 "
                         "tokens begins late, and no other request can share its work.",
               (17, 8): "The longest request takes 8 steps. Other requests begin after it and end later.",
               (17, 11): "The last step has the number 11, but the first one has the number 0.",
               (29, 12): "29 would be one request at a time. The three requests of a batch share their steps.",
               (12, 17): "It is the other way round: first the static batches, then the continuous one."}),
    Exercise(
        answer=25, proof=smallest_budget,
        why="The decoding requests take 5 tokens of every step. 6 steps with 20 tokens for the prompt make 120, and "
            "the sixth gives the first token.",
        hint="What part of the budget is left for the prompt when five requests have their token? How many tokens of "
             "the prompt must a step compute?",
        slips={20: "20 tokens of the prompt in each step are right. But the five decoding requests are served first, "
                   "from the same budget.",
               29: "24 tokens of the prompt in each step would be 5 steps. Six are allowed: the step that computes the "
                   "last part of the prompt gives the first token.",
               125: "That budget computes the whole prompt in one step. It may take six.",
               120: "Without the decoding requests, that is one step for the whole prompt. It may take six."}),
    Exercise(
        answer="bac", proof=who_gives_way,
        why="The request that would be served last is preempted first. At 30 s the effective priorities are -0.5 for "
            "b, -1.0 for a, -1.2 for c and -1.5 for d: the largest is preempted first, and d stays.",
        hint="Compute the effective priority of each request at 30 s, or priority + arrival × 0.1, which gives the "
             "same order. The largest number is served last.",
        slips={"acb": "That would be strict priority. a has waited 30 s, which is worth 3 levels.",
               "bdc": "That would be the reversed order of arrival. d arrived late, but it is HIGH: 0 + 1.5 is less "
                      "than a's 2 + 0.",
               "dca": "That is the order in which they would be served. The request served last is preempted first.",
               "abc": "b arrived at 25 s: 0 + 2.5 is more than a's 2 + 0, so b is after a."}),
)
