"""Tests of lab 4.1, the scheduler. Each test checks one rule. If it fails, its message names the rule.

Many messages also draw the schedule. There is no real model here. ``mini_vllm.simulation`` has a fake one, in which the
K/V of a token is the token itself. It reads the whole context of a request back through its block table before it
generates the next token. A cost model says how long each step takes.
"""

import random
import re

import pytest

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Priority, Request, RequestStatus, SamplingParams
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.simulation import FakeModel, Simulation, Step, Timeline, decode_alone

#: The legend under the first picture of a run. Later pictures have none.
LEGENDS = ["(A column is a step. A number: tokens computed. ●: one token. –: waiting. Last row: the sum.)"]
MAX_STEPS_DRAWN = 20
#: The number of runs of random traffic per test.
NUM_SEEDS = 2


def ask(name, num_prompt, num_output=1, start=0, priority=Priority.NORMAL, num_sequences=1):
    """Return a request with ``num_prompt`` tokens, from token ``start`` on, that ends after ``num_output`` tokens."""
    request = Request(name, range(start, start + num_prompt), SamplingParams(max_tokens=num_output), priority)
    request.num_sequences = num_sequences
    return request


def with_output(request, num_said):
    """Append the first output tokens to ``request`` and return it; a preempted request that resumes looks like this."""
    for token_id in decode_alone(request.prompt_token_ids, num_said) if num_said else ():
        request.append_output_token(token_id)
    return request


def make_scheduler(lab, seats=4, budget=8, num_blocks=100, size=4, cache="off", watermark=0.0):
    """Return a scheduler and its KV cache, with ``num_blocks`` usable blocks of ``size`` tokens.

    ``cache``: off, blocks (whole ones) or tree.
    """
    kv_cache = KVCacheManager(num_blocks + 1, size, enable_caching=cache != "off",
                              tree_class=PrefixTree if cache == "tree" else None)
    return lab.Scheduler(kv_cache, seats, budget, watermark=watermark), kv_cache


class Model(FakeModel):
    """The fake model. Before it computes a step, it checks that the plan is possible."""

    def step(self, output, kv_cache):
        plan = SchedulerOutput(output.num_scheduled_tokens, output.requests, output.copies)  # read each field once
        for request in plan.requests:
            num_new = plan.num_scheduled_tokens[request.request_id]
            assert 0 < num_new <= request.num_computed_tokens <= request.num_tokens, (
                f"request {request.request_id!r} has {request.num_tokens} tokens. schedule() gave it {num_new}, and "
                f"its num_computed_tokens is now {request.num_computed_tokens}, its num_cached_tokens "
                f"{request.num_cached_tokens}. Count every token once: as cached, or as computed in one step")
        return super().step(plan, kv_cache)


def simulate(lab, *requests, **settings):
    """Return a simulation in which ``requests`` arrive at the start."""
    scheduler, kv_cache = make_scheduler(lab, **settings)
    simulation = Simulation(scheduler)
    simulation.kv_cache, simulation.model = kv_cache, Model(kv_cache.block_size)
    for request in requests:
        simulation.add(request)
    return simulation


class Bench:
    """A scheduler with running requests that were never admitted but added directly. It runs steps and draws them."""

    def __init__(self, lab, **settings):
        self.scheduler, self.kv_cache = make_scheduler(lab, **settings)
        self.model = Model(self.kv_cache.block_size)
        self.timeline = Timeline()

    def seat(self, request, num_computed=None):
        """Add a running request with ``num_computed`` computed tokens. If these are all its tokens, it decodes."""
        num_computed = num_computed or request.num_tokens
        self.kv_cache.allocate_slots(request, num_computed)
        request.num_computed_tokens, request.status, request.arrival_time = num_computed, RequestStatus.RUNNING, 0.0
        output = SchedulerOutput({request.request_id: num_computed}, [request])
        for token_id in self.model.step(output, self.kv_cache).values():
            request.append_output_token(token_id)
        self.kv_cache.finish_step()
        self.scheduler.running.append(request)
        self.scheduler.requests[request.request_id] = request
        self.timeline.request_ids.append(request.request_id)
        return request

    def step(self):
        """Run one step and return the tokens that it computed, by request id, in the order of the batch."""
        output = told_with_picture(self, self.scheduler.schedule)
        tokens = told_with_picture(self, self.model.step, output, self.kv_cache)
        told_with_picture(self, self.scheduler.update_from_output, output, tokens)
        self.timeline.steps.append(Step(0.0, 0.0, dict(output.num_scheduled_tokens), list(tokens), [], [], []))
        return dict(output.num_scheduled_tokens)


def picture(drawn, end=None):
    """Draw the last steps, or those before step ``end``. Do not draw idle steps at the end; say how many there are."""
    steps = drawn.timeline.steps[:end]
    num_drawn = max((i for i, step in enumerate(steps, 1) if step.num_scheduled_tokens), default=0)
    if num_drawn == 0:
        return ""
    timeline = Timeline(steps[:num_drawn], drawn.timeline.request_ids)
    lines = [timeline.draw(max(num_drawn - MAX_STEPS_DRAWN, 0), MAX_STEPS_DRAWN)]
    if num_drawn < len(steps):
        lines.append(f"… and {len(steps) - num_drawn} more in which no request computed a token")
    if LEGENDS:
        lines.append(LEGENDS.pop())
    return "\n" + "\n".join(lines)


def told_with_picture(drawn, function, *args):
    """Call ``function(*args)``. Report an error in it with the picture so far, unless its body is not written yet."""
    num_steps = len(drawn.timeline.steps)
    try:
        return function(*args)
    except NotImplementedError:
        raise
    except Exception as error:
        first_line = str(error).split("\n")[0]
        if len(drawn.timeline.steps) > num_steps:  # the step is over: the simulation reports that no request advances
            told = f"{first_line.rstrip(':')}. {memory(drawn)}"
        else:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            told = f"step {num_steps} failed. {kind}{first_line}"
        raise AssertionError(f"{told}{picture(drawn)}") from error


def memory(drawn):
    """Return a sentence that says how many blocks are free, and how many the first request in the queue needs."""
    kv_cache, waiting, told = drawn.kv_cache, drawn.scheduler.waiting, ""
    if len(waiting):
        first = waiting.peek()
        num_blocks = -(-first.num_tokens // kv_cache.block_size)
        told = f"; {first.request_id} is first in the queue, with {first.num_tokens} tokens ({num_blocks} blocks)"
    num_free, num_all = kv_cache.block_pool.get_num_free_blocks(), kv_cache.block_pool.num_blocks - 1
    return f"{num_free} of {num_all} blocks of {kv_cache.block_size} tokens are free{told}"


def run(simulation, num_steps=None):
    """Run the simulation to the end, or for ``num_steps`` steps."""
    for _ in range(2000 if num_steps is None else num_steps):
        if num_steps is None and simulation.is_done:
            return simulation.timeline
        told_with_picture(simulation, simulation.step)
    assert num_steps is not None, (
        f"after 2000 steps {', '.join(simulation.scheduler.requests)} did not finish{picture(simulation)}")
    return simulation.timeline


def rows(timeline):
    """Return the tokens that each request computed in each step (0 for none), by request id."""
    return {name: [step.num_scheduled_tokens.get(name, 0) for step in timeline.steps] for name in timeline.request_ids}


def names(requests):
    return [request.request_id for request in requests]


def num_used(kv_cache):
    pool = kv_cache.block_pool
    return pool.num_blocks - 1 - pool.get_num_free_blocks()


def assert_all_home(drawn):
    """Check that no request is left and that every block is free."""
    scheduler, kv_cache = drawn.scheduler, drawn.kv_cache
    left = names(scheduler.waiting), names(scheduler.running), list(scheduler.requests)
    assert left == ([], [], []), f"all requests ended, but (waiting, running, requests) is {left}{picture(drawn)}"
    assert num_used(kv_cache) == 0, f"all requests ended, but {num_used(kv_cache)} blocks are in use{picture(drawn)}"
    kv_cache.check_integrity()


def assert_outputs(requests, drawn):
    """Check that every request generated the output that it generates alone."""
    for request in requests:
        expected = decode_alone(request.prompt_token_ids, request.sampling_params.max_tokens)
        assert request.output_token_ids == expected, (
            f"request {request.request_id!r} generated {request.output_token_ids}, but alone it generates {expected}: "
            f"a schedule must not change the output{picture(drawn)}")


def must_refuse(scheduler, request, value, bound, rule, moral="check first, then change"):
    """Check that add_request changes nothing and raises a ValueError.

    Its message must name one element of ``value`` and one of ``bound``; an empty list allows any message.
    """
    call = f"add_request of {request!r}"
    before = (names(scheduler.waiting), list(scheduler.requests.values()), scheduler.running[:])
    was = f"{request.status.name}, {request.arrival_time}"
    try:
        scheduler.add_request(request)
    except ValueError as error:
        message = str(error)
    else:
        raise AssertionError(f"{call} raised nothing, expected a ValueError: {rule}")
    now = (names(scheduler.waiting), list(scheduler.requests.values()), scheduler.running[:])
    assert now == before, (f"{call} was refused, but (waiting, requests, running) went from {before} to {now}: "
                           f"{moral}")
    now = f"{request.status.name}, {request.arrival_time}"
    assert now == was, (f"{call} was refused, but the request's (status, arrival_time) went from {was} to {now}: "
                        "a refused call must change nothing, neither in the scheduler nor in the request")
    found = re.findall(r"\w+", message)
    for what, numbers in (("value", value), ("bound", bound)):
        assert not numbers or any(str(number) in found for number in numbers), (
            f"{call} was refused with {message!r}, which does not name the {what} ({' or '.join(map(str, numbers))}): "
            "an error message must name the wrong value and the limit")


def must_take(scheduler, request, why):
    """Check that add_request puts the request into the queue and raises nothing."""
    try:
        scheduler.add_request(request)
    except ValueError as error:
        raise AssertionError(f"add_request of {request!r} was refused: {error}. {why}") from error
    assert names(scheduler.waiting) == [request.request_id], (
        f"after add_request of {request!r} waiting is {names(scheduler.waiting)}, expected [{request.request_id!r}]. "
        f"{why}")


# ---- Task 1: a request arrives


@pytest.mark.points(1)
def test_task_1_a_request_that_came_waits(lab):
    scheduler, kv_cache = make_scheduler(lab)
    assert scheduler.has_unfinished_requests() is False, "no request yet, but has_unfinished_requests() is not False"
    a, b = ask("a", 5), ask("b", 3)
    scheduler.add_request(a)
    scheduler.add_request(b)
    got = names(scheduler.waiting), names(scheduler.running), scheduler.requests
    assert got == (["a", "b"], [], {"a": a, "b": b}), (
        f"after add_request of a and b, (waiting, running, requests) is {got}, expected a and b to wait, in that "
        "order, and both to be in requests under their ids")
    assert (a.status, num_used(kv_cache)) == (RequestStatus.WAITING, 0), (
        f"a arrived and waits: its status is {a.status.name} and {num_used(kv_cache)} blocks are in use, expected "
        "WAITING and 0. Blocks are allocated only when a request is admitted")
    assert scheduler.has_unfinished_requests() is True, "a and b wait, but has_unfinished_requests() is not True"


@pytest.mark.points(1)
def test_task_1_an_id_in_use_is_refused(lab):
    bench = Bench(lab)
    bench.seat(ask("runs", 5))
    assert bench.scheduler.has_unfinished_requests() is True, (
        "one request runs and none waits, but has_unfinished_requests() is not True: a running request is unfinished")
    bench.scheduler.add_request(ask("waits", 5))
    for name in ("waits", "runs"):
        must_refuse(bench.scheduler, ask(name, 3), [name], [],
                    f"a request with the id {name!r} already {name}, so the two answers could not be told apart")


@pytest.mark.points(2)
def test_task_1_a_prompt_larger_than_the_pool_is_refused(lab):
    scheduler, _ = make_scheduler(lab, num_blocks=6)
    must_refuse(scheduler, ask("r", 25), [25, 7], [6, 24],
                "25 tokens need 7 blocks of 4, and the pool has 6. The request would block the queue forever")
    must_take(scheduler, ask("fits", 24), "24 tokens fill the 6 blocks of 4 exactly, so the request must be accepted. "
              "Block 0, the null block, is not one of the 6 (num_blocks)")
    must_refuse(scheduler, with_output(ask("said", 20), 5), [25, 7], [6, 24],
                "20 prompt tokens and 5 output tokens are 25 (num_tokens). They need 7 blocks of 4; the pool has 6")


@pytest.mark.points(1)
def test_task_1_more_sequences_than_seats_are_refused(lab):
    scheduler, _ = make_scheduler(lab, seats=3, num_blocks=4)
    must_refuse(scheduler, ask("r", 6, num_sequences=5), [5], [3], "5 samples need 5 seats, and there are 3")
    must_take(scheduler, ask("fits", 6, num_sequences=3), "Its num_sequences is 3, and there are 3 seats. Its 6 tokens "
              "need 2 of 4 blocks. Samples share their prompt, so count the prompt's blocks only once")


@pytest.mark.points(1)
def test_task_1_what_the_queue_refuses_is_not_in_the_books(lab):
    scheduler, _ = make_scheduler(lab)
    request = ask("r", 3)
    request.arrival_time = float("nan")
    must_refuse(scheduler, request, ["nan"], [], "its arrival_time is NaN. The queue's put raises a ValueError for "
                "that, and the caller must see it",
                moral="put may also refuse a request, so call put first, and write into requests afterwards")
    assert not scheduler.has_unfinished_requests(), (
        f"add_request of {request!r} raised what the queue's put raised. No request waits or runs, but "
        "has_unfinished_requests() is true")


# ---- Task 2: a request ends


@pytest.mark.points(2)
def test_task_2_a_finished_request_gives_seat_and_blocks_back(lab):
    bench = Bench(lab)
    a, b = bench.seat(ask("a", 10)), bench.seat(ask("b", 6, start=50))
    scheduler = bench.scheduler
    scheduler.finish(a, RequestStatus.FINISHED_LENGTH)
    got = a.status, names(scheduler.running), list(scheduler.requests), num_used(bench.kv_cache)
    assert got == (RequestStatus.FINISHED_LENGTH, ["b"], ["b"], 2), (
        f"a (3 blocks) and b (2 blocks) ran. After finish(a, FINISHED_LENGTH), (a's status, running, "
        f"requests, blocks in use) is {got}, expected FINISHED_LENGTH, ['b'], ['b'], 2")
    scheduler.finish(b, RequestStatus.FINISHED_STOPPED)
    assert_all_home(bench)
    scheduler.add_request(ask("a", 10))
    assert names(scheduler.waiting) == ["a"], "a is finished, so its id is free, but a new request 'a' does not wait"


@pytest.mark.points(1)
def test_task_2_abort_takes_a_waiting_request_out_of_the_queue(lab):
    scheduler, _ = make_scheduler(lab)
    requests = [ask(name, 5) for name in "abc"]
    for request in requests:
        scheduler.add_request(request)
    returned = scheduler.abort_request("b")
    got = names(scheduler.waiting), list(scheduler.requests), requests[1].status
    assert got == (["a", "c"], ["a", "c"], RequestStatus.FINISHED_ABORTED), (
        f"a, b, c waited, and b was aborted: (waiting, requests, b's status) is {got}, expected ['a', 'c'], ['a', "
        "'c'], FINISHED_ABORTED")
    assert returned is requests[1], f"abort_request('b') returned {returned!r}, expected the aborted request"


@pytest.mark.points(2)
@pytest.mark.parametrize("num_computed", [4, 10], ids=["mid-prompt", "decoding"])
def test_task_2_abort_takes_a_running_request_out_of_the_batch(lab, num_computed):
    bench = Bench(lab)
    scheduler = bench.scheduler
    a, b = bench.seat(ask("a", 10), num_computed), bench.seat(ask("b", 6, start=50))
    returned = scheduler.abort_request("a")
    got = names(scheduler.running), list(scheduler.requests), a.status, num_used(bench.kv_cache)
    assert got == (["b"], ["b"], RequestStatus.FINISHED_ABORTED, 2), (
        f"a ran with {num_computed} of 10 prompt tokens computed, and b holds 2 blocks. a was aborted: (running, "
        f"requests, a's status, blocks in use) is {got}, expected ['b'], ['b'], FINISHED_ABORTED, 2")
    assert returned is a, f"abort_request('a') returned {returned!r}, expected the aborted request"
    assert b.status is RequestStatus.RUNNING, f"a was aborted, and b's status is {b.status.name}, expected RUNNING"


@pytest.mark.points(1)
def test_task_2_a_request_that_does_not_run_waits_whatever_its_status(lab):
    scheduler, _ = make_scheduler(lab)
    a = ask("a", 5)
    scheduler.add_request(a)
    a.status = RequestStatus.PREEMPTED  # in lab 4.2 and in the engine: it ran, lost its blocks and waits again
    scheduler.abort_request("a")
    got = names(scheduler.waiting), list(scheduler.requests), a.status
    assert got == ([], [], RequestStatus.FINISHED_ABORTED), (
        f"a waits, and its status is PREEMPTED; after abort_request('a') (waiting, requests, a's status) is {got}, "
        "expected [], [], FINISHED_ABORTED. A request with the status RUNNING is in running. With any other status it "
        "is in the queue")


@pytest.mark.points(1)
def test_task_2_abort_of_an_unknown_id_returns_none(lab):
    scheduler, _ = make_scheduler(lab)
    scheduler.add_request(ask("a", 5))
    got = scheduler.abort_request("nobody"), scheduler.abort_request("a") is not None, scheduler.abort_request("a")
    assert got == (None, True, None), (
        f"abort_request was called for an unknown id, for a, and for a again. (first result, whether the second result "
        f"was a request, third result) is {got}, expected (None, True, None): a client may disconnect twice or too "
        "late")
    assert not scheduler.has_unfinished_requests(), "the only request was aborted, but one is unfinished"


# ---- Task 3: a step for the running requests


@pytest.mark.points(1)
def test_task_3_a_decoding_request_computes_one_token(lab):
    bench = Bench(lab)
    requests = [bench.seat(ask("a", 5)), bench.seat(ask("b", 8, start=50)), bench.seat(ask("c", 2, start=90))]
    output = bench.scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 1, "b": 1, "c": 1}, (
        f"a, b and c decode; schedule() gave them {output.num_scheduled_tokens}, expected one token each. An empty "
        "list of new blocks is not None: allocate_slots returns one for a and c, which have room in their last block")
    assert output.requests == requests, (f"requests is {names(output.requests)}, expected a, b, c: the same requests "
                                         "as in num_scheduled_tokens, in the same order")
    got = [request.num_computed_tokens for request in requests]
    assert got == [6, 9, 3], (f"5, 8 and 2 tokens were computed, and one more is planned for each request. "
                              f"num_computed_tokens is {got}, expected [6, 9, 3]: schedule() advances it exactly once, "
                              "by the number of tokens that the step computes")
    got = output.copies, output.preempted, output.finished
    assert got == ([], [], []), f"expected (copies, preempted, finished) to be empty here, but got {got}"


@pytest.mark.points(2)
@pytest.mark.parametrize("num_said", [0, 10])
def test_task_3_those_with_one_token_to_go_come_first(lab, num_said):
    bench = Bench(lab, seats=4, budget=8)
    bench.seat(with_output(ask("long", 40 - num_said), num_said), num_computed=8)  # admitted first, 32 tokens to go
    bench.seat(ask("a", 3, start=50))
    bench.seat(ask("b", 3, start=60))
    got = bench.step()
    said = f", the last {num_said} of them are output" if num_said else ""
    assert got == {"a": 1, "b": 1, "long": 6}, (
        f"long (32 of 40 tokens to go{said}), a and b (1 token to go each) run, and the budget is 8. The step "
        f"computed {got}, expected one token each of a and b, and 6 of long. A request that decodes never waits for a "
        f"prompt; a request with more tokens to go gets the rest of the budget{picture(bench)}")
    assert list(got) == ["a", "b", "long"], f"the batch order is {list(got)}, expected a, b, long: single tokens first"
    got = names(bench.scheduler.running)
    assert got == ["long", "a", "b"], (
        f"after that step running is {got}, expected ['long', 'a', 'b'], as before the step: running keeps the order "
        "of admission. Sort a copy of it")


@pytest.mark.points(1)
def test_task_3_a_chunk_of_one_token_stands_with_the_single_tokens(lab):
    bench = Bench(lab, budget=8)
    bench.seat(ask("p", 10), num_computed=4)  # 6 tokens to go
    bench.seat(ask("q", 9, start=50), num_computed=4)  # 5 tokens to go
    bench.seat(ask("a", 3, start=90))
    output = bench.scheduler.schedule()
    got = list(output.num_scheduled_tokens.items()), names(output.requests)
    assert got == ([("a", 1), ("q", 1), ("p", 6)], ["a", "q", "p"]), (
        f"the budget is 8. a decodes, p has 6 tokens to go, and 1 token is left for q, which has 5 to go. schedule() "
        f"gave (num_scheduled_tokens, requests) {got}, expected a: 1, q: 1, p: 6, in this order in both. Requests that "
        "compute one token in this step are first, regardless of the number of tokens that they have to go")


@pytest.mark.points(2)
def test_task_3_a_long_prompt_is_computed_in_chunks(lab):
    bench = Bench(lab, budget=8)
    bench.seat(ask("a", 3, start=50))
    long = bench.seat(ask("long", 22), num_computed=4)
    for _ in range(5):
        bench.step()
    got, expected = rows(bench.timeline), {"a": [1, 1, 1, 1, 1], "long": [7, 7, 4, 1, 1]}
    assert got == expected, (
        f"the budget is 8, a decodes, and long has 18 of 22 prompt tokens to go. Five steps computed {got}, expected "
        f"{expected}. A chunk uses the rest of the budget; the last chunk is the rest of the prompt{picture(bench)}")
    sampled = [i for i, step in enumerate(bench.timeline.steps) if "long" in step.sampled]
    assert sampled == [2, 3, 4] and len(long.output_token_ids) == 3, (
        f"long got a token in the steps {sampled}, and has {len(long.output_token_ids)} tokens. Expected steps 2, 3, "
        f"4: no token before its prompt is complete, then one per step{picture(bench)}")


@pytest.mark.points(2)
def test_task_3_the_budget_is_one_for_all(lab):
    bench = Bench(lab, budget=8)
    for i, name in enumerate(("p", "q", "r")):
        bench.seat(ask(name, 9, start=100 * i), num_computed=4)  # 5 tokens to go
    got = [bench.step(), bench.step()]
    assert got == [{"p": 5, "q": 3}, {"p": 1, "q": 2, "r": 5}], (
        f"the budget is 8, and p, q, r have 5 prompt tokens to go each. Two steps computed {got}. Expected in the "
        "first step: 5 tokens of p and 3 of q. Expected in the second step: 1 of p, which decodes, 2 of q and 5 of r. "
        f"A request that gets nothing is not in the plan{picture(bench)}")


@pytest.mark.points(1)
def test_task_3_prompts_stand_in_the_order_of_admission(lab):
    for budget, expected in ((6, {"x": 6}), (20, {"x": 12, "y": 8})):
        bench = Bench(lab, budget=budget)
        bench.seat(ask("x", 16), num_computed=4)  # 12 tokens to go
        bench.seat(ask("y", 12, start=50), num_computed=4)  # 8 tokens to go
        got = bench.step()
        assert got == expected, (
            f"x was admitted first and has 12 tokens to go, y has 8, and the budget is {budget}. The step computed "
            f"{got}, expected {expected}. Only requests with one token to go are served first. The others keep the "
            f"order of admission, and a shorter prompt does not overtake{picture(bench)}")
        assert list(got) == list(expected), (
            f"x (12 tokens) was admitted and planned before y (8 tokens). The batch order is {list(got)}, expected "
            f"{list(expected)}. Single tokens are first; the rest keeps the order of the plan and is not sorted by "
            "size")


@pytest.mark.points(1)
def test_task_3_a_request_without_a_block_does_not_hold_up_the_others(lab):
    bench = Bench(lab, num_blocks=4)
    bench.seat(ask("x", 8, priority=Priority.LOW))  # 2 full blocks: the next token needs a third
    bench.seat(ask("y", 5, start=50))  # 2 blocks, and 3 slots are free in the second
    got = bench.step()
    assert got == {"y": 1}, (
        f"4 of 4 blocks are in use. x is first, needs one more and gets nothing; y has room in its last block. The "
        f"step computed {got}, expected {{'y': 1}}: skip a request that gets nothing, and serve the next one"
        f"{picture(bench)}")


@pytest.mark.points(1)
def test_task_3_a_request_without_a_block_gets_nothing_and_costs_nothing(lab):
    bench = Bench(lab, num_blocks=5, budget=9)
    bench.seat(ask("x", 20, priority=Priority.LOW), num_computed=8)  # 2 full blocks, 12 tokens to go
    bench.seat(ask("y", 8, start=50), num_computed=5)  # 2 blocks, 3 tokens to go, for which there is room
    got = bench.step()
    assert got == {"y": 3}, (
        f"the budget is 9, and 1 of 5 blocks is free. x is first. It may compute 9 of its 12 tokens, which need 3 "
        f"blocks. y has 3 tokens to go, which fit into its last block. The step computed {got}, expected {{'y': 3}}. x "
        f"gets the whole rest of the budget or nothing: no smaller chunk is tried. The 9 tokens that it did not get "
        f"are available for y{picture(bench)}")


@pytest.mark.points(2)
def test_task_3_a_step_takes_no_more_blocks_than_its_tokens_need(lab):
    bench = Bench(lab, budget=8)
    running = [bench.seat(ask("a", 6)), bench.seat(ask("long", 27, start=50), num_computed=1)]
    allocate_slots, seen = bench.kv_cache.allocate_slots, []

    def watched(request, *args, **kwargs):
        seen.append((request.request_id, [other.num_computed_tokens for other in running]))
        return allocate_slots(request, *args, **kwargs)

    bench.kv_cache.allocate_slots = watched
    planned, got = [], []
    for _ in range(3):
        before = [other.num_computed_tokens for other in running]
        planned.append(bench.step())
        got.append(tuple(len(bench.kv_cache.get_block_ids(name)) for name in ("a", "long")))
        moved = [name for name, numbers in seen if numbers != before]
        assert not moved, (
            f"before step {len(got) - 1} the num_computed_tokens of (a, long) were {before}. In that step "
            f"the calls of allocate_slots were {seen}, each with its request and the two num_computed_tokens during "
            f"the call. Expected {before} during every call: only _complete advances num_computed_tokens, when the "
            f"plan is complete{picture(bench)}")
        seen.clear()
    assert planned == [{"a": 1, "long": 7}] * 3, (
        f"a decodes, long has 26 tokens to go, the budget is 8, and enough blocks are free. Three steps computed "
        f"{planned}, expected one token of a and 7 of long in each. If no new block is needed, allocate_slots returns "
        f"an empty list, which is not None{picture(bench)}")
    assert got == [(2, 2), (2, 4), (3, 6)], (
        f"the block size is 4. a has 6 computed tokens and computes 1 per step, long has 1 and computes 7 per step. "
        f"The numbers of blocks of (a, long) after each step are {got}, expected [(2, 2), (2, 4), (3, 6)]. "
        f"allocate_slots counts from num_computed_tokens, so do not advance it before the call{picture(bench)}")


@pytest.mark.points(1)
def test_task_3_a_token_is_appended_only_where_one_was_sampled(lab):
    bench = Bench(lab)
    a, b = bench.seat(ask("a", 4)), bench.seat(ask("b", 20, start=50), num_computed=4)
    output = bench.scheduler.schedule()
    before = list(a.output_token_ids)
    bench.scheduler.update_from_output(output, {"a": 0})
    got = a.output_token_ids, b.output_token_ids
    assert got == (before + [0], []), (
        f"a decoded and b computed a chunk; update_from_output(output, {{'a': 0}}) left their outputs at {got}, "
        f"expected {(before + [0], [])}: b is in the middle of its prompt, so no token was sampled for it. For a it "
        "was token 0, which is a valid token id")


@pytest.mark.points(1)
def test_task_3_a_token_belongs_to_the_request_that_was_planned(lab):
    bench = Bench(lab)
    scheduler = bench.scheduler
    old, b = bench.seat(ask("a", 4)), bench.seat(ask("b", 4, start=50))
    output = scheduler.schedule()
    said = list(old.output_token_ids), list(b.output_token_ids)
    scheduler.abort_request("a")  # during the step the client disconnects; then a new request has the same id
    new = ask("a", 6, start=90)
    scheduler.add_request(new)
    told_with_picture(bench, scheduler.update_from_output, output, {"a": 7, "b": 8})
    got = old.output_token_ids, b.output_token_ids, new.output_token_ids
    assert got == (said[0] + [7], said[1] + [8], []), (
        f"a and b were planned. Then a was aborted, and another request arrived with the id 'a'. "
        f"update_from_output(output, {{'a': 7, 'b': 8}}) left the outputs of (old a, b, new a) at {got}, expected "
        f"{(said[0] + [7], said[1] + [8], [])}: the tokens belong to the requests in output.requests")


@pytest.mark.points(2)
@pytest.mark.parametrize("is_sampled", [True, False])
def test_task_3_copies_are_planned_and_then_done_with(lab, is_sampled):
    bench = Bench(lab)
    scheduler, pool = bench.scheduler, bench.kv_cache.block_pool
    parent, child = bench.seat(ask("parent", 6, num_sequences=2)), ask("child", 6)
    scheduler.fork(parent, child)
    child.append_output_token(999)
    shared = bench.kv_cache.get_block_ids("parent")[1]
    output = scheduler.schedule()
    now = {name: bench.kv_cache.get_block_ids(name)[1] for name in ("parent", "child")}
    copy = now["parent"] if now["child"] == shared else now["child"]
    assert output.copies == [(shared, copy)], (
        f"parent and child share the half-filled block {shared}, and each is to write into it. Their tables now "
        f"contain {now}; copies is {output.copies}, expected [({shared}, {copy})]: the pairs of "
        "block_pool.pending_copies, as ids")
    tokens = bench.model.step(output, bench.kv_cache) if is_sampled else {}
    scheduler.update_from_output(output, tokens)
    assert list(pool.pending_copies) == [], (
        f"the step has run and update_from_output(output, {tokens}) was called, but the copy is still pending: "
        "call kv_cache.finish_step() after every step, even if no token was sampled. If the copy were made twice, it "
        "would overwrite what was written since")
    assert_copies_without_requests(bench)


def assert_copies_without_requests(bench):
    """Check that a pending copy is planned even if no request is left, and that it is not pending after the step."""
    scheduler, pool = bench.scheduler, bench.kv_cache.block_pool
    parent, child = bench.seat(ask("parent 2", 6, start=50, num_sequences=2)), ask("child 2", 6, start=50)
    scheduler.fork(parent, child)
    bench.kv_cache.allocate_slots(child, 1)  # as in a step that was planned but did not run
    pending = [(source.block_id, copy.block_id) for source, copy in pool.pending_copies]
    for name in list(scheduler.requests):
        scheduler.abort_request(name)
    output = scheduler.schedule()
    got = output.num_scheduled_tokens, output.copies
    assert got == ({}, pending), (
        f"block_pool.pending_copies contains the pairs {pending}, and all requests were aborted. "
        f"(num_scheduled_tokens, copies) of the plan is {got}, expected {({}, pending)}: all pending copies, even if "
        "no request is planned")
    scheduler.update_from_output(output, {})
    assert list(pool.pending_copies) == [], (
        f"a step with the copies {pending} and no request has run, and update_from_output(output, {{}}) was called, "
        "but the copies are still pending: call kv_cache.finish_step() after every step")


# ---- Task 4: admission


@pytest.mark.points(3)
def test_task_4_a_small_mixed_case_step_by_step(lab):
    requests = [ask("a", 5, 4), ask("b", 12, 3, start=20), ask("c", 3, 2, start=40), ask("d", 4, 2, start=60)]
    simulation = simulate(lab, *requests, seats=3, budget=8)
    got = rows(run(simulation))
    expected = {"a": [5, 1, 1, 1, 0, 0], "b": [3, 7, 2, 1, 1, 0], "c": [0, 0, 3, 1, 0, 0], "d": [0, 0, 0, 0, 4, 1]}
    assert got == expected, (
        f"3 seats, a budget of 8, prompts of 5, 12, 3, 4 tokens, outputs of 4, 3, 2, 2. Tokens per step:\n     got "
        f"{got}\nexpected {expected}\nStep 0 has 3 tokens left for b. In step 1 a decodes first and b gets 7. Step 2 "
        "finishes b's prompt and has room for c. d waits for a seat: the seats of a and c are free after step 3"
        f"{picture(simulation)}")
    assert_outputs(requests, simulation)
    assert_all_home(simulation)


@pytest.mark.points(2)
def test_task_4_a_late_request_joins_the_batch_at_once(lab):
    old = [ask("a", 4, 20), ask("b", 4, 20, start=20)]
    simulation = simulate(lab, *old, seats=4, budget=16)
    late = simulation.add(ask("late", 6, 3, start=50), at_s=0.05)
    run(simulation)
    longest_s = 2 * simulation.cost.seconds(16)
    waited_s = simulation.timeline.first_token_s("late")
    assert waited_s <= longest_s, (
        f"'late' arrived while a and b decoded. Seats, budget and blocks were free, but it waited "
        f"{waited_s * 1000:.0f} ms for its first token, expected at most {longest_s * 1000:.0f} ms (the step that ran "
        f"when it arrived, and the step that computes it). A request can join a batch in any step{picture(simulation)}")
    got = rows(simulation.timeline)
    assert all(got["a"][:20]) and all(got["b"][:20]), (
        f"a and b decode, and each must compute a token in every step, even while 'late' computes its prompt; got {got}"
        f"{picture(simulation)}")
    assert_outputs([*old, late], simulation)


@pytest.mark.points(3)
def test_task_4_a_long_prompt_never_stalls_decoding_requests(lab):
    budget = 64
    decoders = [ask(name, 10, 60, start=i * 20) for i, name in enumerate("abc")]
    simulation = simulate(lab, *decoders, seats=8, budget=budget, num_blocks=400, size=16)
    long = simulation.add(ask("long", 2000, 4, start=100), at_s=0.2)
    timeline = run(simulation)
    got = rows(timeline)
    bound_s = simulation.cost.seconds(budget)
    for name in "abc":
        gaps_s = timeline.gaps_s(name)
        worst_s = max(gaps_s)
        late_s = timeline.token_times_s(name)[gaps_s.index(worst_s) + 1]
        late = next(i for i, step in enumerate(timeline.steps) if step.end_s == late_s)
        assert worst_s <= bound_s + 1e-9, (
            f"a prompt of 2000 tokens arrived while {name} decoded. Then {name} waited {worst_s * 1000:.0f} ms between "
            f"two tokens, until step {late}; expected at most {bound_s * 1000:.0f} ms, the time of a step with "
            f"{budget} tokens{picture(simulation, late + 1)}")
    chunks = [n for n in got["long"] if n > 1]
    assert chunks == [61] * 32 + [48], (
        f"three requests decode, so 61 of the budget of 64 are left per step. 2000 tokens are 32 chunks of 61 and one "
        f"of 48, but the prompt was computed in chunks of {chunks}. Use the whole rest of the "
        f"budget{picture(simulation)}")
    assert_outputs([*decoders, long], simulation)


@pytest.mark.points(1)
def test_task_4_there_are_only_so_many_seats(lab):
    requests = [ask(name, 2, 3 + i, start=10 * i) for i, name in enumerate("abcd")]
    simulation = simulate(lab, *requests, seats=2, budget=16)
    got = rows(run(simulation))
    expected = {"a": [2, 1, 1, 0, 0, 0, 0, 0, 0, 0], "b": [2, 1, 1, 1, 0, 0, 0, 0, 0, 0],
                "c": [0, 0, 0, 2, 1, 1, 1, 1, 0, 0], "d": [0, 0, 0, 0, 2, 1, 1, 1, 1, 1]}
    assert got == expected, (
        f"2 seats, four requests, outputs of 3, 4, 5, 6 tokens. Tokens per step:\n     got {got}\nexpected {expected}\n"
        f"c takes a's seat in the step after a ended, and d takes b's seat{picture(simulation)}")


@pytest.mark.points(1)
def test_task_4_every_sequence_of_a_request_takes_a_seat(lab):
    simulation = simulate(lab, ask("a", 2, 3), ask("three", 2, 2, start=20, num_sequences=3), ask("b", 2, 2, start=40),
                          seats=4, budget=16)
    run(simulation, 1)
    got = names(simulation.scheduler.running), names(simulation.scheduler.waiting)
    assert got == (["a", "three"], ["b"]), (
        f"4 seats: a is one sequence, 'three' will be forked into 3. (running, waiting) is {got}, expected a and "
        f"'three' to run, and b to wait: count num_sequences, not requests{picture(simulation)}")
    run(simulation)
    assert_all_home(simulation)


@pytest.mark.points(2)
def test_task_4_no_request_is_passed_over(lab):
    simulation = simulate(lab, ask("a", 2, 5), ask("b", 2, 3, start=20),
                          ask("three", 2, 2, start=40, num_sequences=3), ask("small", 2, 1, start=60),
                          seats=4, budget=16)
    got = rows(run(simulation))
    expected = {"a": [2, 1, 1, 1, 1, 0], "b": [2, 1, 1, 0, 0, 0], "three": [0, 0, 0, 2, 1, 0],
                "small": [0, 0, 0, 0, 0, 2]}
    num_seqs = {i: sum(3 if name == "three" else 1 for name, row in got.items() if row[i])
                for i in range(len(simulation.timeline.steps))}
    full = next((i for i, num in num_seqs.items() if num > 4), None)
    why = ("If 'small' overtook 'three', a stream of small requests could block 'three' forever" if full is None else
           f"There are 4 seats, and step {full} has {num_seqs[full]} sequences: 'three' alone takes 3 of them")
    assert got == expected, (
        f"4 seats. a and b run; 'three' needs 3 seats and waits for b to end (after step 2). 'small' would fit at "
        f"once, but it is behind 'three', and then it waits for a seat. Tokens per step:\n     got {got}\n"
        f"expected {expected}\n{why}{picture(simulation)}")


@pytest.mark.points(1)
def test_task_4_the_queue_decides_which_request_is_next(lab):
    requests = [ask("low", 2, 2, priority=Priority.LOW), ask("normal", 2, 2, start=20),
                ask("high", 2, 2, start=40, priority=Priority.HIGH)]
    simulation = simulate(lab, *requests, seats=1, budget=8)
    got = rows(run(simulation))
    expected = {"low": [0, 0, 0, 0, 2, 1], "normal": [0, 0, 2, 1, 0, 0], "high": [2, 1, 0, 0, 0, 0]}
    assert got == expected, (
        f"one seat. low, normal and high arrived together, and the queue puts high first. Tokens per step: {got}, "
        f"expected {expected}: admit the request that waiting.peek() returns{picture(simulation)}")


@pytest.mark.points(2)
def test_task_4_a_request_without_room_stays_in_front_of_the_queue(lab):
    a, b, c = ask("a", 10, 3), ask("b", 12, 2, start=20), ask("c", 2, 2, start=40)
    simulation = simulate(lab, a, b, c, num_blocks=5, budget=32)
    run(simulation, 1)
    got = names(simulation.scheduler.running), names(simulation.scheduler.waiting)
    assert got == (["a"], ["b", "c"]), (
        f"a holds 3 of 5 blocks, b needs 3, and c is behind b: (running, waiting) is {got}, expected ['a'], ['b', "
        f"'c']{picture(simulation)}")
    got = b.status, b.num_computed_tokens, num_used(simulation.kv_cache)
    assert got == (RequestStatus.WAITING, 0, 3), (
        f"b was not admitted: its (status, num_computed_tokens) and the blocks in use are {got}, expected WAITING, 0 "
        f"and a's 3. A request that was not admitted must not change{picture(simulation)}")
    run(simulation)
    assert_outputs([a, b, c], simulation)
    assert_all_home(simulation)


@pytest.mark.points(2)
@pytest.mark.parametrize("cache, num_prompt", [("blocks", 9), ("tree", 9), ("tree", 12)])
def test_task_4_a_cached_prompt_computes_one_token(lab, cache, num_prompt):
    simulation = simulate(lab, ask("first", num_prompt, 4), cache=cache, budget=16)
    again = simulation.add(ask("again", num_prompt, 4), at_s=10.0)
    run(simulation)
    got, expected = rows(simulation.timeline)["again"], [0] * 4 + [1] * 4
    assert got == expected, (
        f"the same {num_prompt} tokens arrived twice. The second time, all but the last token are cached. Tokens per "
        f"step of the second request: {got}, expected {expected}: it must compute one token, for the logits"
        f"{picture(simulation)}")
    assert again.num_cached_tokens == num_prompt - 1, (
        f"{num_prompt - 1} of {num_prompt} tokens were found in the cache, but num_cached_tokens is "
        f"{again.num_cached_tokens}{picture(simulation)}")
    assert_outputs([again], simulation)
    assert_all_home(simulation)


@pytest.mark.points(2)
@pytest.mark.parametrize("cache", ["blocks", "tree"])
def test_task_4_the_same_prompt_twice_in_one_step_is_computed_once(lab, cache):
    a, b = ask("a", 9, 5), ask("b", 9, 5)
    simulation = simulate(lab, a, b, cache=cache, budget=16)
    run(simulation, 1)
    step = simulation.timeline.steps[0].num_scheduled_tokens
    assert step == {"a": 9, "b": 1}, (
        f"a and b have the same 9 tokens and arrived together. Step 0 computed {step}, expected 9 of a and 1 of b: a's "
        f"full blocks are in the prefix cache as soon as its slots are allocated{picture(simulation)}")
    assert list(step) == ["b", "a"], (
        f"the batch order is {list(step)}, expected b (one token) before a (nine), although a was admitted first"
        f"{picture(simulation)}")
    tables = [simulation.kv_cache.get_block_ids(name) for name in "ab"]
    assert tables[0][:2] == tables[1][:2], (
        f"the tables of a and b are {tables}, expected the first two blocks to be the same: pass the hits to "
        f"allocate_slots, which adopts them{picture(simulation)}")
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 8), (
        f"num_cached_tokens of a and b are {a.num_cached_tokens} and {b.num_cached_tokens}, expected 0 and 8"
        f"{picture(simulation)}")
    run(simulation)
    assert_outputs([a, b], simulation)
    assert_all_home(simulation)


@pytest.mark.points(2)
def test_task_4_cached_tokens_cost_no_budget(lab):
    simulation = simulate(lab, ask("first", 21), cache="blocks", budget=24)
    later = [ask("again", 21, 2), ask("other", 30, 2, start=100)]
    for request in later:
        simulation.add(request, at_s=10.0)
    run(simulation)
    got, expected = rows(simulation.timeline), {"first": [21, 0, 0], "again": [0, 1, 1], "other": [0, 23, 7]}
    got = {name: row[:3] for name, row in got.items()}
    assert got == expected, (
        f"the budget is 24. For 'again' 20 of 21 tokens are in the cache, for 'other' none of 30. Tokens per step: "
        f"{got}, expected {expected}: cached tokens are not computed, so they use no budget{picture(simulation)}")


@pytest.mark.points(1)
def test_task_4_a_chunk_after_a_hit_has_the_whole_budget(lab):
    simulation = simulate(lab, ask("first", 21), cache="blocks", budget=16)
    simulation.add(ask("longer", 45, 2), at_s=10.0)
    got = rows(run(simulation))["longer"]
    assert got == [0, 0, 16, 9, 1], (
        f"the budget is 16. 'longer' has 45 tokens, and the first 20 of them are cached. Tokens per step: {got}, "
        f"expected [0, 0, 16, 9, 1]. Only computed tokens count against the budget, so the first chunk has 16 of the "
        f"25 remaining tokens{picture(simulation)}")


@pytest.mark.points(2)
def test_task_4_abort_whether_waiting_mid_prompt_or_decoding(lab):
    requests = [ask("decodes", 3, 9), ask("prompt", 30, 9, start=20), ask("waits", 5, 9, start=60),
                ask("stays", 5, 6, start=80)]
    simulation = simulate(lab, *requests, seats=3, budget=8, cache="tree")
    run(simulation, 2)
    got = [(request.status.value, request.num_computed_tokens) for request in requests]
    assert got == [("running", 4), ("running", 12), ("waiting", 0), ("waiting", 0)], (
        f"after two steps (status, num_computed_tokens) of {names(requests)} are {got}. Expected: 'decodes' runs with "
        f"4 computed tokens, 'prompt' runs with 12 (5 and 7), and the others wait{picture(simulation)}")
    for name in ("waits", "prompt", "decodes"):
        simulation.abort(name)
        simulation.kv_cache.check_integrity()
    assert num_used(simulation.kv_cache) == 0, (
        f"all running requests were aborted, but {num_used(simulation.kv_cache)} blocks are in "
        f"use{picture(simulation)}")
    run(simulation)
    got = rows(simulation.timeline)["stays"]
    assert got == [0, 0, 5, 1, 1, 1, 1, 1], (
        f"three requests were aborted after step 1. 'stays' is alone and computes {got}, expected its 5 tokens in step "
        f"2, then one per step{picture(simulation)}")
    assert_outputs(requests[3:], simulation)
    assert_all_home(simulation)


@pytest.mark.points(3)
@pytest.mark.parametrize("cache", ["off", "blocks", "tree"])
def test_task_4_random_traffic_keeps_the_limits_and_says_the_right_thing(lab, cache):
    num_mixed = 0
    for seed in range(NUM_SEEDS):
        rng = random.Random(seed)
        seats = rng.randint(1, 6)
        budget = seats + rng.randint(0, 12)
        simulation = simulate(lab, seats=seats, budget=budget, num_blocks=160, size=rng.randint(2, 5), cache=cache,
                              watermark=0.01)
        scheduler, requests, aborted = simulation.scheduler, [], []
        for i in range(14):
            request = ask(f"r{i}", rng.choice([1, 2, 5, 17, 40]), rng.randint(1, 8), start=rng.choice([0, 0, 3]),
                          num_sequences=rng.choice([1, 1, 1, rng.randint(1, seats)]))
            requests.append(simulation.add(request, at_s=rng.choice([0, rng.random()])))
        while not simulation.is_done:
            run(simulation, 1)
            planned = simulation.timeline.steps[-1].num_scheduled_tokens
            where = f"seed {seed}, step {len(simulation.timeline.steps) - 1}, budget {budget}, {seats} seats"
            assert sum(planned.values()) <= budget, (
                f"{where}: the step computed {sum(planned.values())} tokens, more than the budget: "
                f"{planned}{picture(simulation)}")
            num_seqs = sum(request.num_sequences for request in requests if request.request_id in planned)
            assert num_seqs <= seats, (
                f"{where}: the step had {num_seqs} sequences, more than the seats: {planned}{picture(simulation)}")
            num_mixed += len(set(planned.values())) > 1 and 1 in planned.values()
            if len(simulation.timeline.steps) % 8 == 0:
                simulation.kv_cache.check_integrity()
            if scheduler.requests and rng.random() < 0.05:
                aborted.append(rng.choice(list(scheduler.requests)))
                simulation.abort(aborted[-1])
        assert_outputs([request for request in requests if request.request_id not in aborted], simulation)
        assert_all_home(simulation)
    assert num_mixed > 0, (f"in {NUM_SEEDS} runs of random traffic no step had both single tokens and chunks: decodes "
                           "and prompts were never mixed")


# ---- Task 5: room for a whole request


@pytest.mark.points(1)
@pytest.mark.parametrize("num_prompt, num_running", [(24, 0), (8, 15)], ids=["alone", "next to another"])
def test_task_5_what_just_fits_is_admitted(lab, num_prompt, num_running):
    simulation = simulate(lab, *([ask("runs", num_running)] if num_running else []), ask("fits", num_prompt, start=50),
                          num_blocks=6, budget=32)
    run(simulation, 1)
    got, expected = simulation.timeline.steps[0].num_scheduled_tokens, {"fits": num_prompt}
    beside = f"'runs' was just given 4 of them for its {num_running} tokens" if num_running else "no request runs"
    assert got == ({"runs": num_running} if num_running else {}) | expected, (
        f"6 blocks of 4 tokens, and {beside}. 'fits' has {num_prompt} tokens and needs {num_prompt // 4} blocks; "
        f"{num_prompt // 4} are free, and none are set aside. Step 0 computed {got}, expected all {num_prompt} "
        f"tokens of 'fits'. It is admitted if there are exactly as many blocks as it needs{picture(simulation)}")


@pytest.mark.points(3)
@pytest.mark.parametrize("num_said", [0, 4])
def test_task_5_a_prompt_is_admitted_whole_or_not_at_all(lab, num_said):
    a, b = ask("a", 9, 4), with_output(ask("b", 24 - num_said, 2 + num_said, start=20), num_said)
    simulation = simulate(lab, a, b, num_blocks=8, budget=12)
    run(simulation, 2)
    got = names(simulation.scheduler.running), names(simulation.scheduler.waiting)
    said = f", {num_said} of them are output" if num_said else ""
    assert got == (["a"], ["b"]), (
        f"a holds 3 of 8 blocks. b has 24 tokens{said}. Its first chunk would need 1 to 3 blocks, but the whole "
        f"request needs 6, and 5 are free. (running, waiting) is {got}, expected ['a'], ['b']: a half-computed prompt "
        f"is useless, and its blocks are not available to other requests{picture(simulation)}")
    got = rows(run(simulation))
    assert got["b"] == [0, 0, 0, 0, 12, 12, 1], (
        f"a ends after step 3, and then b has the whole pool. It computes {got['b']} tokens per step, expected [0, 0, "
        f"0, 0, 12, 12, 1]{picture(simulation)}")
    assert_outputs([a, b], simulation)


def free_block_ids(drawn):
    """Return the ids of the free blocks, in the order in which they will be allocated."""
    return [block.block_id for block in drawn.kv_cache.block_pool.free_block_queue.get_all_free_blocks()]


def assert_long_waits(lab, num_cached, cache, why):
    """Check that `long` waits; free blocks hold `num_cached` of its 26 tokens, and `runs` holds 2 of 7 blocks."""
    first, runs, long = ask("first", num_cached), ask("runs", 4, 8, start=50), ask("long", 26)
    simulation = simulate(lab, first, num_blocks=7, budget=6, cache=cache)
    run(simulation)
    simulation.add(ask("then", 2, start=90))  # its block is freed after the blocks of first
    run(simulation)
    simulation.add(runs)
    run(simulation, 2)
    free = free_block_ids(simulation)
    simulation.add(long)
    run(simulation, 1)
    got = names(simulation.scheduler.running), names(simulation.scheduler.waiting)
    assert got == (["runs"], ["long"]), (
        f"'runs' holds 2 of 7 blocks; 5 are free, and {-(-num_cached // 4)} of them hold the first {num_cached} tokens "
        f"of 'long'. {why} (running, waiting) is {got}, expected ['runs'], ['long']{picture(simulation)}")
    got = long.status, long.num_computed_tokens, long.num_cached_tokens
    assert got == (RequestStatus.WAITING, 0, 0), (
        f"'long' was not admitted, but its (status, num_computed_tokens, num_cached_tokens) are {got}, expected "
        f"WAITING, 0 and 0: a request that finds no room must not change, even if the cache contains a prefix of it"
        f"{picture(simulation)}")
    got = free_block_ids(simulation)
    assert got == free, (
        f"'long' was not admitted, and 'runs' needed no block, but the free blocks, oldest first, changed from {free} "
        f"to {got}, expected no change: hits that are not adopted keep their place in the free queue; otherwise they "
        f"would be reused at a different time{picture(simulation)}")
    run(simulation)
    assert_outputs([first, runs, long], simulation)
    assert_all_home(simulation)


@pytest.mark.points(2)
def test_task_5_cached_blocks_that_are_free_are_no_room(lab):
    assert_long_waits(lab, 12, "blocks", "'long' adopts these 3 and needs 4 new ones, but then only 2 free ones "
                      "are left: a hit in the free queue is about to leave it.")


@pytest.mark.points(1)
def test_task_5_blocks_that_are_shared_need_no_room(lab):
    runs, same = ask("runs", 17, 4), ask("same", 18, 2)
    simulation = simulate(lab, runs, num_blocks=6, budget=32, cache="blocks")
    run(simulation, 1)
    simulation.add(same)
    run(simulation, 1)
    got = names(simulation.scheduler.running)
    assert got == ["runs", "same"], (
        f"'runs' holds 5 of 6 blocks. 'same' has 18 tokens, 16 of them in the 4 full blocks of 'runs': it needs 1 new "
        f"block, and 1 is free. The running requests are {got}, expected both: a hit needs no new "
        f"block{picture(simulation)}")
    run(simulation)
    assert_outputs([runs, same], simulation)


@pytest.mark.points(2)
@pytest.mark.parametrize("num_said", [0, 8])
def test_task_5_blocks_that_a_running_prompt_still_needs_are_not_given_away(lab, num_said):
    for half_is_first in (False, True):
        bench = Bench(lab, num_blocks=7, budget=8)
        half = with_output(ask("half", 20 - num_said, start=50, priority=Priority.LOW), num_said)
        for request in (half, ask("grows", 9)) if half_is_first else (ask("grows", 9), half):
            bench.seat(request, num_computed=12 if request is half else None)
        bench.scheduler.add_request(ask("small", 2, start=90))  # half needs 2 blocks for its last 8; 1 is free
        output = bench.scheduler.schedule()
        got = output.num_scheduled_tokens.get("grows")
        assert got == 1, (
            f"'grows' runs, and its block has room for one more token: schedule() gave it {got}, expected 1")
        said = f" (the last {num_said} are output)" if num_said else ""
        running = "'half' and 'grows'" if half_is_first else "'grows' and 'half'"
        assert "small" not in output.num_scheduled_tokens, (
            f"{running} run, in this order; 1 of 7 blocks is free. 'half' has 8 of its 20 tokens to go{said} and needs "
            f"2 blocks for them, so it gets nothing in this step. 'small' waited, and was given the last block: "
            f"{output.num_scheduled_tokens}. Keep the blocks that *all* running requests need for the tokens they "
            "have; a new request must not take them")


@pytest.mark.points(1)
def test_task_5_what_one_holds_too_many_is_no_block_for_another(lab):
    bench = Bench(lab, num_blocks=8, budget=8)
    long = bench.seat(ask("long table", 3))
    bench.kv_cache.allocate_slots(long, 13)  # 4 blocks, for tokens that it does not have
    bench.seat(ask("half", 20, start=50), num_computed=12)  # its last 8 tokens need 2 blocks, and 1 is free
    bench.scheduler.add_request(ask("small", 2, start=90))
    output = bench.scheduler.schedule()
    got = output.num_scheduled_tokens.get("long table")
    assert got == 1, f"'long table' runs, and its blocks have room: schedule() gave it {got} tokens, expected 1"
    assert "small" not in output.num_scheduled_tokens, (
        f"1 of 8 blocks is free. 'half' runs and needs 2 for its last 8 tokens. 'long table' has 4 tokens and holds 4 "
        f"blocks, 3 more than it needs. 'small' was given the last block: {output.num_scheduled_tokens}. The promise "
        "is 2 + 0: no request's promise is negative, so surplus blocks of one request do not reduce another's promise")


@pytest.mark.points(2)
def test_task_5_a_hit_inside_a_block_is_given_up_if_its_copy_does_not_fit(lab):
    assert_cached(lab, 12, num_tokens=16, num_blocks=4, why=(
        "the pool has 4 blocks. 'other' has 16 tokens, and 13 of them are cached: three blocks and one token of a "
        "fourth. To keep that token, the fourth block would have to be copied into a fifth, which does not exist. So "
        "give it up"))


def assert_cached(lab, expected, num_tokens, num_blocks, why):
    """Check that ``other`` (13 cached tokens) is admitted while no request runs, and keeps `expected` of them."""
    first, other = ask("first", 16), Request("other", [*range(13), *range(80, 67 + num_tokens)],
                                             SamplingParams(max_tokens=1))
    simulation = simulate(lab, first, num_blocks=num_blocks, budget=16, cache="tree")
    simulation.add(other, at_s=1.0)
    run(simulation, 2)
    is_in = "other" in simulation.timeline.steps[1].num_scheduled_tokens
    got = f"admitted, with num_cached_tokens {other.num_cached_tokens}" if is_in else "not admitted"
    assert is_in and other.num_cached_tokens == expected, (
        f"{why}. In step 1 'other' was {got}, expected admitted, with num_cached_tokens "
        f"{expected}{picture(simulation)}")
    got, to_go = rows(simulation.timeline)["other"], num_tokens - expected
    moral = ". Count the tokens to compute after giving up the half block, not before" if expected == 12 else ""
    assert got == [0, to_go], (
        f"{why}. {expected} of its {num_tokens} tokens count as cached, so {to_go} must be computed, and the budget "
        f"is 16. Tokens per step: {got}, expected {[0, to_go]}{moral}{picture(simulation)}")
    run(simulation)
    assert_outputs([first, other], simulation)
    assert_all_home(simulation)


@pytest.mark.points(1)
def test_task_5_a_hit_inside_a_block_is_kept_if_its_copy_just_fits(lab):
    assert_cached(lab, 13, num_tokens=16, num_blocks=5, why=(
        "the pool has 5 blocks, and no request runs. 'other' has 16 tokens (4 blocks), and 13 of them are cached in 4 "
        "blocks. The fifth block is for a copy of the fourth, and the last 3 tokens are written into that copy. All "
        "tokens fit, so nothing is given up"))


@pytest.mark.points(1)
def test_task_5_tokens_after_half_a_block_may_need_a_block_more(lab):
    assert_cached(lab, 12, num_tokens=17, num_blocks=5, why=(
        "the pool has 5 blocks. 'other' has 17 tokens (5 blocks), and 13 of them are cached in 4 blocks. The 4 "
        "remaining tokens would fill one block, but 3 of them are in the copy of the fourth block and 1 in the next "
        "block. The 4 hits, the copy and the next block are 6 blocks, so the half block is given up"))


@pytest.mark.points(1)
def test_task_5_there_must_be_room_without_the_half_block_too(lab):
    assert_long_waits(lab, 14, "tree", "'long' needs 7 blocks. With all 4 hits it needs 4 new blocks (one for the "
                      "copy), and 1 is free. Without the half block it needs 4 new blocks, and 2 are free: ask "
                      "_has_room again after giving up the half block.")


@pytest.mark.points(1)
def test_task_5_a_table_longer_than_needed_promises_nothing(lab):
    bench = Bench(lab, num_blocks=5, budget=4)
    a = bench.seat(ask("a", 3))
    bench.kv_cache.allocate_slots(a, 13)  # slots for tokens that it does not have, as in speculative decoding
    bench.scheduler.add_request(ask("b", 8, start=50))
    output = bench.scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 1}, (
        f"a has 4 tokens and holds 4 of 5 blocks, 3 more than it needs. b has 8 tokens and needs 2 blocks; 1 is free. "
        f"The step computes {output.num_scheduled_tokens}, expected {{'a': 1}}. The surplus blocks of a do not make "
        "room: its promise is 0, not -3")


@pytest.mark.points(1)
def test_task_5_some_blocks_are_set_aside_while_a_request_runs(lab):
    simulation = simulate(lab, ask("a", 4, 3), ask("b", 36, 2, start=50), num_blocks=10, budget=64, watermark=0.2)
    got = rows(run(simulation))
    expected = {"a": [4, 1, 1, 0, 0], "b": [0, 0, 0, 36, 1]}
    assert got == expected, (
        f"10 blocks; 2 are set aside while any request runs. a holds 1, 9 are free, and b needs 9. Tokens per step: "
        f"{got}, expected {expected}: 9 + 2 is more than 9, so b waits until a ends. Then b is alone, and none are "
        f"set aside (call _num_blocks_set_aside, which handles both cases){picture(simulation)}")


@pytest.mark.points(1)
def test_task_5_samples_of_a_prompt_need_a_block_each_for_their_copy(lab):
    got = []
    for num_free in (4, 3):
        simulation = simulate(lab, ask("a", 16, 3), ask("b", 3, 2, start=50, num_sequences=3), num_blocks=4 + num_free,
                              budget=32, watermark=0.1)
        run(simulation, 1)
        got.append("b" in names(simulation.scheduler.running))
    why = ("exactly 4 blocks are enough" if not got[0] else "3 blocks are not enough: _num_blocks_set_aside(request) "
           "includes more than the watermark")
    assert got == [True, False], (
        f"a runs and holds 4 blocks. b has 3 tokens and will be 3 samples. It needs 1 block; 2 are set aside for the "
        f"samples' copies of it and 1 as the watermark, 4 in all. Whether b was admitted with 4 free blocks, and with "
        f"3: {got}, expected [True, False]: {why}")


@pytest.mark.points(2)
@pytest.mark.parametrize("cache", ["off", "blocks", "tree"])
def test_task_5_random_prompts_in_a_small_pool_all_end(lab, cache):
    """Check that requests that were admitted whole never lack a block; with one output token they never grow."""
    for seed in range(NUM_SEEDS):
        rng = random.Random(seed)
        size, num_blocks, budget = rng.randint(1, 4), rng.randint(4, 12), rng.randint(4, 12)
        simulation = simulate(lab, budget=budget, num_blocks=num_blocks, size=size, cache=cache)
        requests = [simulation.add(ask(f"r{i}", rng.randint(1, num_blocks * size), 1, start=rng.choice([0, 0, 1, 50])),
                                   at_s=rng.random()) for i in range(12)]
        while not simulation.is_done:
            run(simulation, 1)
            planned = simulation.timeline.steps[-1].num_scheduled_tokens
            idle = [name for name in names(simulation.scheduler.running) if name not in planned]
            assert not idle or sum(planned.values()) == budget, (
                f"seed {seed}, {num_blocks} blocks of {size}, budget {budget}: {idle} ran, but got nothing in step "
                f"{len(simulation.timeline.steps) - 1} because no block was free. No request grows here, so some "
                f"request was admitted although it does not fit as a whole{picture(simulation)}")
            simulation.kv_cache.check_integrity()
        assert_outputs(requests, simulation)
        assert_all_home(simulation)
