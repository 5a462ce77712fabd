"""The exercises of notebook 04, continuous batching: seats, the budget of a step, who gives way."""

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
    """Each group of requests, told by how many tokens they say, comes when the one before has ended."""
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
    """Five decode when a prompt of 120 tokens comes, and its first token comes within six steps."""
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
    """Four requests with a block each, full, when all four want a second one, and later a third."""
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
        why="A static batch takes as many steps as its longest request: 8 + 6 + 3. In the continuous one the request "
            "of 6 tokens gets its seat in step 6, and step 11 is the last.",
        hint="Draw three rows, one a seat, and write each request into the row that is free first. A request of n "
             "tokens takes n steps: the step of its prompt brings the first.",
        slips={(17, 10): "29 tokens on three seats would be 10 steps if no seat were ever empty. But the request of 6 "
                         "tokens begins late, and nobody can help it.",
               (17, 8): "8 steps are what the longest request takes. After it has begun, there are others to come.",
               (17, 11): "The last step has the number 11, and the first one the number 0.",
               (29, 12): "29 would be one request at a time. Three of a batch share their steps.",
               (12, 17): "The other way round: first the static batches, then the continuous one."}),
    Exercise(
        answer=25, proof=smallest_budget,
        why="Those who decode take 5 tokens of every step. 6 steps with 20 tokens for the prompt make 120, and the "
            "sixth brings the first token.",
        hint="Which part of the budget is left for the prompt, when five have had their token? And how many tokens of "
             "it must a step compute?",
        slips={20: "20 tokens of the prompt in each step are right. But the five who decode are served first, out of "
                   "the same budget.",
               29: "24 tokens of the prompt in each step would be 5 steps. Six are allowed: the step that computes the "
                   "last of the prompt brings the first token.",
               125: "That is one step for the whole prompt. It may take six.",
               120: "Without those who decode, that is one step for the whole prompt. It may take six."}),
    Exercise(
        answer="bac", proof=who_gives_way,
        why="Who would be served last gives way first. At 30 s the effective priorities are -0.5 for b, -1.0 for a, "
            "-1.2 for c and -1.5 for d: the largest goes first, and d stays.",
        hint="Work out the effective priority of each at 30 s, or priority + arrival × 0.1, which orders them alike. "
             "The largest number is served last.",
        slips={"acb": "That would be strict priority. a has waited 30 s, which is worth 3 levels.",
               "bdc": "That would be the order of arrival from the end. d came late, but it is HIGH: 0 + 1.5 is less "
                      "than a's 2 + 0.",
               "dca": "That is the order in which they would be served. Who is served last gives way first.",
               "abc": "b came at 25 s: 0 + 2.5 is more than a's 2 + 0, so b is behind a."}),
)
