"""Tests of lab 4.2, preemption. Each test checks one rule. If it fails, its message names the rule.

Many messages also draw the schedule. The model is a fake one (``mini_vllm.simulation``). It stores every token by
(block, offset), and reads the whole context of a request back before it generates the next token. So a block that was
lost, reused too early or never written is detected in the step in which it matters.

In the pictures a number is the number of tokens of a request in one step, ● is one token, ✕ is a preemption, and –
means that the request waits.
"""

import random
import textwrap

import pytest

from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.prefix_tree import PrefixTree
from mini_vllm.request import Priority, Request, RequestStatus, SamplingParams
from mini_vllm.request_queue import PriorityQueueWithAging
from mini_vllm.scheduler import SchedulerOutput
from mini_vllm.simulation import Clock, CostModel, FakeModel, Simulation, decode_alone

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW
#: The number of runs of random traffic per test.
NUM_SEEDS = 2
NO_CACHE, WHOLE_BLOCKS, TREE = "no cache", "whole blocks", "tree"


def check_plan(output, kv_cache):
    """Check that no request that was preempted in this step is in its plan."""
    preempted, num_scheduled_tokens = output.preempted, output.num_scheduled_tokens
    for request in preempted:
        name = request.request_id
        if name in num_scheduled_tokens:
            why = ("was preempted earlier in this step, and was planned after that: skip a request that no longer runs "
                   "(_schedule_running)" if kv_cache.get_block_ids(name) else
                   "was already planned when it was preempted: a victim must leave the plan (_take_back, Task 4)")
            raise AssertionError(f"{name} is preempted in this step, but it is also in the plan, which is "
                                 f"{num_scheduled_tokens}. {name} {why}")


class Model(FakeModel):
    """The fake model. Before it computes a step, it checks that the plan is possible."""

    def step(self, output, kv_cache):
        plan = SchedulerOutput(output.num_scheduled_tokens, output.requests, output.copies, output.preempted)
        check_plan(plan, kv_cache)
        return super().step(plan, kv_cache)


class Server(Simulation):
    """A simulation that checks after every step what must hold in any schedule. A step takes 10 ms."""

    def __init__(self, lab, num_blocks, *, block_size=4, cache=NO_CACHE, max_num_seqs=4, budget=32, watermark=0.0,
                 aging_rate=0.1):
        """Create a server with ``num_blocks`` usable blocks, not counting the null block."""
        kv_cache = KVCacheManager(num_blocks + 1, block_size, cache != NO_CACHE,
                                  tree_class=PrefixTree if cache == TREE else None)
        clock = Clock()
        queue = PriorityQueueWithAging(aging_rate, clock)
        super().__init__(lab.Scheduler(kv_cache, max_num_seqs, budget, queue, watermark), CostModel(0.010, 0.0), clock)
        self.kv_cache, self.model = kv_cache, Model(block_size)
        self.seats, self.budget = max_num_seqs, budget
        self.num_prompts = 0
        self.name = ""  # says which of many runs this is
        self.texts_differ = True  # no two prompts begin with the same token

    def arrive(self, request_id, prompt, max_tokens=8, priority=NORMAL, at_step=0, arrival_time=None):
        """Add a request. ``prompt`` contains its tokens, or is their number.

        Prompts that are given as numbers have no token in common.
        """
        if isinstance(prompt, int):
            self.num_prompts += 1
            prompt = range(1000 * self.num_prompts, 1000 * self.num_prompts + prompt)
        request = Request(request_id, prompt, SamplingParams(max_tokens=max_tokens), priority, arrival_time)
        return self.add(request, max(at_step * 0.010 - 0.005, 0.0))

    def step(self):
        scheduler, was_running = self.scheduler, list(self.scheduler.running)
        what = f"{self.name}step {len(self.timeline.steps)}"
        num_computed = {request.request_id: request.num_computed_tokens for request in was_running}
        try:
            step = super().step()
            self.kv_cache.check_integrity()
        except NotImplementedError:
            raise
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            told = AssertionError(f"{what}: {kind}{error}\n{self}")
            raise told.with_traceback(error.__traceback__) from error  # so the report can say where it was raised
        num_tokens = sum(step.num_scheduled_tokens.values())
        assert num_tokens <= self.budget, (
            f"{what} computes {num_tokens} tokens, but at most {self.budget} are allowed\n{self}")
        running = scheduler.running
        assert len(running) <= self.seats, f"{what}: {len(running)} requests run, but only {self.seats} may\n{self}"
        admitted = [request.request_id for request in running if request not in was_running]
        assert not (step.preempted and admitted), (
            f"{what} preempts {step.preempted} and admits {admitted}: a step that preempts a request admits "
            f"none\n{self}")
        self.check_who_is_where(what, running)
        for request_id, request in scheduler.requests.items() if step.preempted else ():
            if request_id in step.preempted:
                self.check_not_found(what, request, num_computed.get(request_id, 0))
        return step

    def check_who_is_where(self, what, running):
        for request in running:
            assert request.status is RequestStatus.RUNNING, (
                f"{what}: {request} is in running, but its status is {request.status.name}, expected RUNNING\n{self}")
        for request in self.scheduler.waiting:
            table = self.kv_cache.get_block_ids(request.request_id)
            assert request not in running and request.status is not RequestStatus.RUNNING, (
                f"{what}: {request} waits and runs at the same time\n{self}")
            assert (table, request.num_computed_tokens) == ([], 0), (
                f"{what}: {request} waits, but it holds the blocks {table}, and {request.num_computed_tokens} of its "
                f"tokens count as computed; expected no block and 0: a waiting request holds no block\n{self}")

    def check_not_found(self, what, request, num_computed):
        """Check that no more tokens of a request are cached than were computed, if no other request has its text."""
        probe = Request("probe", [*request.all_token_ids, 0], extra_keys=request.extra_keys)
        num_found = self.kv_cache.get_computed_blocks(probe)[1]
        assert num_found <= num_computed or not self.texts_differ, (
            f"{what} preempts {request.request_id}, of which {num_computed} tokens were computed before. But a request "
            f"with the same text now finds {num_found} of them in the cache: take the blocks that the victim was to "
            f"write in this step out of the index, because it does not write them\n{self}")

    def end(self, num_by_hand=0):
        """Run until all requests have ended, and check that nothing is left.

        ``num_by_hand`` is the number of preemptions that the test itself has made.
        """
        for _ in range(2_000):
            if self.is_done:
                break
            self.step()
        else:
            raise AssertionError(f"after 2,000 steps {list(self.scheduler.requests)} did not end\n{self}")
        scheduler = self.scheduler
        usage = self.kv_cache.block_pool.get_usage()
        assert usage == 0, f"all requests have ended, but {usage:.0%} of the pool is in use, expected 0%\n{self}"
        left = (list(scheduler.requests), list(scheduler.running), list(scheduler.waiting))
        assert left == ([], [], []), (f"all requests have ended, but (requests, running, waiting) is {left}, expected "
                                      f"all three to be empty\n{self}")
        num_preemptions = num_by_hand + sum(len(step.preempted) for step in self.timeline.steps)
        assert scheduler.num_preemptions == num_preemptions, (
            f"scheduler.num_preemptions is {scheduler.num_preemptions}, expected {num_preemptions}\n{self}")

    def __str__(self):
        num_steps = len(self.timeline.steps)
        return f"The schedule so far:\n{self.timeline.draw(max(num_steps - 20, 0), 20)}" if num_steps else ""


def assert_picture(server, expected, rule):
    """Check that the schedule is exactly this one, apart from the line with the sums."""
    def plain(text):
        lines = [line.rstrip() for line in textwrap.dedent(text).strip("\n").splitlines()]
        return "\n".join(line for line in lines if line and not line.startswith("sum"))
    got, expected = plain(str(server.timeline)), plain(expected)
    assert got == expected, f"{rule}\nThe schedule is\n{got}\nexpected\n{expected}"


def assert_outputs(server, *requests):
    """Check that every request generated the output that it generates alone."""
    for request in requests:
        expected = decode_alone(request.prompt_token_ids, request.sampling_params.max_tokens)
        got = request.output_token_ids
        assert (got, request.status) == (expected, RequestStatus.FINISHED_LENGTH), (
            f"{request} ended as {request.status.name} with the output {got}; alone it generates {expected}: a "
            f"preemption must not change any token\n{server}")


def ids(requests):
    return [request.request_id for request in requests]


def plan(server):
    """Plan a step, and check that the plan is possible."""
    output = server.scheduler.schedule()
    check_plan(output, server.kv_cache)
    return output


def planned(output):
    return output.num_scheduled_tokens, ids(output.preempted), ids(output.finished)


def who_fits(output):
    """Return a sentence for each request that ended in a step in which no request has outgrown the pool."""
    return "".join(f". {request.request_id} ended (_end_outgrown), but the whole pool can hold its "
                   f"{request.num_tokens} tokens" for request in output.finished)


# ---- Task 1: a step


@pytest.mark.points(2)
def test_task_1_running_requests_come_first_with_one_budget_for_all(lab):
    server = Server(lab, 30, max_num_seqs=3, budget=6)
    requests = [server.arrive("a", 3, 4), server.arrive("long", 12, 3), server.arrive("c", 2, 3)]
    server.end()
    assert_picture(server, """
        step    0   1   2   3   4   5
        a       3   ●   ●   ●
        long    3   5   4   ●   ●
        c       –   –   ●   ●   ●   ●
        """, "3 seats, 6 tokens per step. a decodes from step 1 on, and long gets the rest. In step 2 one token is "
             "left for c, and in step 3 all decode: all requests share one budget, and running requests are served "
             "first")
    assert_outputs(server, *requests)


def seat(server, request, num_computed):
    """Add a running request that was not admitted, with ``num_computed`` tokens of its prompt computed."""
    kv_cache = server.kv_cache
    kv_cache.allocate_slots(request, num_computed)
    kv_cache.finish_step()
    request.num_computed_tokens, request.status, request.arrival_time = num_computed, RequestStatus.RUNNING, 0.0
    server.scheduler.running.append(request)
    server.scheduler.requests[request.request_id] = request
    return request


@pytest.mark.points(1)
def test_task_1_those_with_one_token_to_go_come_first(lab):
    server = Server(lab, 30, budget=6)
    seat(server, Request("long", range(20)), 8)  # admitted first
    for name in "ab":
        seat(server, Request(name, [ord(name), 1, 2]), 3).append_output_token(7)
    got = server.scheduler.schedule().num_scheduled_tokens
    assert got == {"a": 1, "b": 1, "long": 4}, (
        f"long (12 tokens to go), a and b (1 token to go each) run, and the budget is 6. The step computes {got}, "
        "expected one token each of a and b, and 4 of long: a request that decodes never waits for a prompt")


# ---- Task 2: preempt and resume


def server_with_one_running(lab, cache=NO_CACHE):
    """Return a server with one request: a has 7 prompt and 3 output tokens; 9 are computed, in blocks of 4."""
    server = Server(lab, 8, cache=cache)
    a = server.arrive("a", 7, max_tokens=6)
    for _ in range(3):
        server.step()
    return server, a


@pytest.mark.points(3)
def test_task_2_preempt_takes_the_blocks_and_leaves_the_output(lab):
    server, a = server_with_one_running(lab)
    scheduler, output = server.scheduler, list(a.output_token_ids)
    scheduler.preempt(a)
    usage = server.kv_cache.block_pool.get_usage()
    table = server.kv_cache.get_block_ids("a")
    assert (usage, table) == (0.0, []), (
        f"after preempt(a), the only request, a holds the blocks {table} and {usage:.0%} of the pool is in use, "
        "expected [] and 0%: a preempted request holds no block")
    assert a.output_token_ids == output and a.num_tokens == 10, (
        f"after preempt(a) its output is {a.output_token_ids} and it has {a.num_tokens} tokens; expected {output} and "
        "10: it keeps its output")
    assert a.num_computed_tokens == 0, (f"after preempt(a) num_computed_tokens is {a.num_computed_tokens}, expected 0: "
                                        "without blocks no token counts as computed")
    assert a.status is RequestStatus.PREEMPTED, f"after preempt(a) its status is {a.status.name}, expected PREEMPTED"
    got = (ids(scheduler.running), ids(scheduler.waiting), ids(scheduler.requests.values()))
    assert got == ([], ["a"], ["a"]), (f"after preempt(a) (running, waiting, requests) is {got}, expected ([], ['a'], "
                                       "['a']): it waits, and the scheduler still knows it")
    got = (a.num_preemptions, scheduler.num_preemptions)
    assert got == (1, 1), (f"after one preemption (a.num_preemptions, scheduler.num_preemptions) is {got}, "
                           "expected (1, 1)")


@pytest.mark.points(2)
def test_task_2_a_preempted_request_waits_in_front_of_its_equals_and_keeps_its_age(lab):
    server = Server(lab, 20, max_num_seqs=1)
    server.arrive("a", 4, arrival_time=0.0)
    server.arrive("b", 4, arrival_time=0.0)
    server.arrive("c", 4, arrival_time=0.0)
    server.arrive("urgent", 4, priority=HIGH, at_step=2)
    server.arrive("later", 4, at_step=2)
    for _ in range(4):
        server.step()
    scheduler, a = server.scheduler, server.scheduler.requests["a"]
    scheduler.preempt(a)
    assert a.arrival_time == 0.0, (f"after preempt(a) its arrival_time is {a.arrival_time}, expected 0.0: a preempted "
                                   "request keeps its arrival time")
    got = ids(scheduler.waiting)
    assert got == ["urgent", "a", "b", "c", "later"], (
        f"a, b and c have the same age and priority. a ran and was preempted; the queue is {got}, expected "
        "['urgent', 'a', 'b', 'c', 'later']: a is in front of requests with the same order (requeue, not put), and "
        "behind more urgent ones")


@pytest.mark.points(2)
def test_task_2_all_its_tokens_are_computed_again_and_it_goes_on(lab):
    server, a = server_with_one_running(lab)
    server.scheduler.preempt(a)
    server.end(num_by_hand=1)
    assert_picture(server, """
        step    0   1   2   3   4   5
        a       7   ●   ●  10   ●   ●
        """, "a was preempted after step 2, with 7 prompt tokens and 3 output tokens, and nothing is cached. Step 3 "
             "computes all 10 of them, 9 for the second time, and generates the next token")
    assert_outputs(server, a)


@pytest.mark.points(2)
@pytest.mark.parametrize("cache", [WHOLE_BLOCKS, TREE])
def test_task_2_it_finds_its_own_blocks_again(lab, cache):
    server, a = server_with_one_running(lab, cache)
    server.scheduler.preempt(a)
    server.end(num_by_hand=1)
    rule = "blocks 0 and 1 are full and are found again" if cache == WHOLE_BLOCKS else (
        "the tree finds all 9, even in the half-filled block, if kv_cache.free could read how many were computed")
    assert_picture(server, f"""
        step    0   1   2   3   4   5
        a       7   ●   ●   {"2" if cache == WHOLE_BLOCKS else "●"}   ●   ●
        """, f"a was preempted with 10 tokens, 9 of them computed. No request took its blocks; {rule}")
    assert a.num_cached_tokens == 0, (
        f"a computed its whole prompt, so its num_cached_tokens was 0. It was preempted, resumed and found its own "
        f"blocks. Now its num_cached_tokens is {a.num_cached_tokens}, expected 0, as before\n{server}")
    assert_outputs(server, a)


@pytest.mark.points(2)
@pytest.mark.parametrize("cache, num_cached", [(WHOLE_BLOCKS, 8), (TREE, 10)])
def test_task_2_what_it_finds_again_is_not_counted_again(lab, cache, num_cached):
    server = Server(lab, 12, cache=cache)
    server.texts_differ = False
    server.arrive("first", range(12), max_tokens=1)
    b = server.arrive("b", [*range(10), 500, 501, 502], max_tokens=6, at_step=2)
    for _ in range(5):
        server.step()
    kv_cache = server.kv_cache
    before = (b.num_cached_tokens, kv_cache.stats.num_queries, kv_cache.stats.num_hit_tokens)
    assert before == (num_cached, 2, num_cached), (
        f"b was admitted and found {num_cached} tokens of another request: (num_cached_tokens, queries, tokens found) "
        f"is {before}, expected {(num_cached, 2, num_cached)}")
    server.scheduler.preempt(b)
    server.step()
    got = (b.num_cached_tokens, kv_cache.stats.num_queries, kv_cache.stats.num_hit_tokens)
    assert b.num_computed_tokens == 17 and b.status is RequestStatus.RUNNING, (
        f"b has resumed: expected 17 computed tokens and RUNNING, but it is {b}")
    assert got == before, (
        f"b was preempted and resumed: (num_cached_tokens, queries, tokens found) changed from {before} to {got}. It "
        "found tokens that it had computed itself. They saved nothing, so do not report them as cached. "
        "(The KV cache recognizes a resumed request by its num_preemptions)")
    server.end(num_by_hand=1)
    assert_outputs(server, b)


@pytest.mark.points(1)
def test_task_2_a_request_may_be_preempted_again_and_again(lab):
    server, a = server_with_one_running(lab)
    for _ in range(3):
        server.scheduler.preempt(a)
        server.step()
    server.end(num_by_hand=3)
    assert a.num_preemptions == 3, f"a was preempted 3 times, but its num_preemptions is {a.num_preemptions}"
    assert_outputs(server, a)


@pytest.mark.points(1)
def test_task_2_a_request_without_room_is_unchanged(lab):
    server = Server(lab, 4)
    a, urgent = server.arrive("a", 7, 6), server.arrive("urgent", 9, 2, HIGH, at_step=3)
    for _ in range(3):
        server.step()
    a.num_cached_tokens = 4  # as if it had found these when it arrived
    server.scheduler.preempt(a)
    server.step()  # urgent is admitted and takes 3 of 4 blocks; a needs 3 for its 10 tokens
    got = (a.status, a.num_computed_tokens, a.num_cached_tokens, a.num_preemptions, ids(server.scheduler.waiting))
    assert got == (RequestStatus.PREEMPTED, 0, 4, 1, ["a"]), (
        f"a was preempted and finds no room to resume: its (status, num_computed_tokens, num_cached_tokens, "
        f"num_preemptions) and the waiting requests are {got}, expected PREEMPTED, 0, 4, 1 and ['a']: if there was no "
        f"room, nothing has changed\n{server}")
    server.end(num_by_hand=1)
    assert a.num_cached_tokens == 4, (
        f"a resumed later, and its num_cached_tokens changed from 4 to {a.num_cached_tokens}: keep this number, even "
        f"if the request finds no room at first\n{server}")
    assert_outputs(server, a, urgent)


# ---- Task 3: choose a victim and make room


@pytest.mark.points(2)
def test_task_3_the_later_one_gives_way_and_comes_back(lab):
    server = Server(lab, 4)
    a, b = server.arrive("a", 7, max_tokens=6), server.arrive("b", 5, max_tokens=6)
    server.end()
    assert_picture(server, """
        step    0   1   2   3   4   5   6   7   8   9
        a       7   ●   ●   ●   ●   ●
        b       5   ●   ✕   –   –   –   7   ●   ●   ●
        """, "4 blocks of 4 tokens: a and b hold two each. In step 2 a's ninth token needs a third block. a and b "
             "arrived at the same time; b was admitted last and is preempted. When a has ended, b computes all its 7 "
             "tokens, 6 of them for the second time, and continues")
    assert_outputs(server, a, b)


@pytest.mark.points(1)
def test_task_3_the_plan_lists_preempted_requests(lab):
    server = Server(lab, 4)
    server.arrive("a", 7)
    server.arrive("b", 5)
    for _ in range(2):
        server.step()
    output = plan(server)
    got = (ids(output.preempted), output.num_scheduled_tokens, ids(output.requests), ids(output.finished))
    assert got == (["b"], {"a": 1}, ["a"], []), (
        f"4 blocks of 4 tokens, all in use; a needs one more. a and b arrived at the same time, and b was admitted "
        f"last: b must be preempted. (preempted, num_scheduled_tokens, requests, finished) is {got}, expected (['b'], "
        f"{{'a': 1}}, ['a'], []){who_fits(output)}")


@pytest.mark.points(2)
def test_task_3_the_lowest_priority_gives_way_not_the_latest(lab):
    server = Server(lab, 6)
    requests = [server.arrive("high", 7, 4, HIGH), server.arrive("low", 5, 4, LOW),
                server.arrive("normal", 5, 4, NORMAL, at_step=1)]
    server.end()
    assert_picture(server, """
        step      0   1   2   3   4   5
        high      7   ●   ●   ●
        low       5   ●   ✕   –   7   ●
        normal        5   ●   ●   ●
        """, "in step 2 high needs a block. low arrived before normal, but is served after it, so low is preempted")
    assert_outputs(server, *requests)


@pytest.mark.points(2)
def test_task_3_an_old_low_one_is_served_before_a_new_normal_one(lab):
    server = Server(lab, 6)
    requests = [server.arrive("high", 7, 4, HIGH, arrival_time=0.0), server.arrive("old", 5, 4, LOW, arrival_time=0.0),
                server.arrive("new", 5, 4, NORMAL, arrival_time=20.0)]
    server.end()
    assert_picture(server, """
        step    0   1   2   3   4   5
        high    7   ●   ●   ●
        old     5   ●   ●   ●
        new     5   ●   ✕   –   7   ●
        """, "old (LOW) arrived 20 s before new (NORMAL); at 0.1 levels per second that is two levels. waiting.order "
             "says which request is served last: it is 2 + 0 for old and 1 + 2 for new")
    assert_outputs(server, *requests)


@pytest.mark.points(2)
def test_task_3_of_equals_the_one_admitted_last_gives_way(lab):
    server = Server(lab, 6)
    requests = [server.arrive(name, 7, 4) for name in "abc"]
    server.end()
    assert_picture(server, """
        step    0   1   2   3   4   5
        a       7   ●   ●   ●
        b       7   ●   ●   ●
        c       7   ●   ✕   –   9   ●
        """, "a, b and c arrived at the same time and have the same priority. In step 2 a needs a block, then b: c was "
             "admitted last and is preempted, and its two blocks are enough for both")
    assert_outputs(server, *requests)


@pytest.mark.points(2)
def test_task_3_the_request_that_asks_may_be_the_victim(lab):
    server = Server(lab, 5)
    a, b = server.arrive("a", 7), server.arrive("b", 6)
    server.end()
    assert_picture(server, """
        step    0   1   2   3   4   5   6   7   8   9  10  11  12
        a       7   ●   ●   ●   ●   ●   ●   ●
        b       6   ●   ●   ✕   –   –   –   –   9   ●   ●   ●   ●
        """, "a and b arrived at the same time, and b was admitted last. In step 2 a took the last block. In step 3 b "
             "needs one. b itself would be served last, so b is preempted and computes nothing, instead of taking a's "
             "blocks")
    assert_outputs(server, a, b)


@pytest.mark.points(1)
def test_task_3_on_the_same_level_the_one_that_came_later_gives_way(lab):
    server = Server(lab, 2)
    for name, priority, arrival_time in (("new", NORMAL, 10.0), ("old", LOW, 0.0)):
        request = seat(server, Request(name, range(100 * priority, 100 * priority + 4), priority=priority), 4)
        request.append_output_token(7)
        request.arrival_time = arrival_time
    orders = [server.scheduler.waiting.order(request) for request in server.scheduler.running]
    output = plan(server)
    got = planned(output)
    assert got == ({"old": 1}, ["new"], []), (
        f"new (NORMAL, arrived at 10 s) and old (LOW, arrived at 0 s) run. Their waiting.order is {orders}: the same "
        f"level, and old arrived first. Both need a block, and none is free. (num_scheduled_tokens, preempted, "
        f"finished) is {got}, expected ({{'old': 1}}, ['new'], []): compare the whole order, not only its first number"
        f"{who_fits(output)}")


def all_in_full_blocks(server, *requests):
    """Add running requests, each (id, priority, prompt tokens), with 4 computed tokens: one full block."""
    for i, (name, priority, num_prompt) in enumerate(requests):
        seat(server, Request(name, range(100 * i, 100 * i + num_prompt), SamplingParams(max_tokens=4), priority), 4)


@pytest.mark.points(1)
def test_task_3_all_victims_are_skipped(lab):
    server = Server(lab, 3)
    all_in_full_blocks(server, ("high", HIGH, 12), ("low 1", LOW, 6), ("low 2", LOW, 6))
    output = plan(server)
    got = planned(output)
    assert got == ({"high": 8}, ["low 2", "low 1"], []), (
        f"3 blocks of 4, all full: high, low 1 and low 2 hold one each. high has 8 tokens to go and needs two blocks: "
        f"low 2 is preempted, then low 1. (num_scheduled_tokens, preempted, finished) is {got}, expected "
        f"({{'high': 8}}, ['low 2', 'low 1'], []): neither was planned yet, and neither runs any "
        f"more{who_fits(output)}")


@pytest.mark.points(1)
def test_task_3_a_request_that_preempts_itself_does_not_hold_up_the_others(lab):
    server = Server(lab, 3)
    all_in_full_blocks(server, ("low", LOW, 12), ("high", HIGH, 6))
    output = plan(server)
    got = planned(output)
    assert got == ({"high": 2}, ["low"], []), (
        f"3 blocks of 4: low and high hold one each, and 1 is free. low is first, has 8 tokens to go and needs two. It "
        f"would be served last, so it is preempted itself. (num_scheduled_tokens, preempted, finished) is {got}, "
        f"expected ({{'high': 2}}, ['low'], []): requests behind it are still served{who_fits(output)}")


@pytest.mark.points(3)
def test_task_3_a_step_that_preempted_admits_no_request(lab):
    server = Server(lab, 6, budget=16)
    requests = [server.arrive("a", 7, 6), server.arrive("b", 13, 6, LOW), server.arrive("c", 3, 3, HIGH, at_step=2)]
    server.end()
    assert_picture(server, """
        step    0   1   2   3   4   5   6   7   8   9  10
        a       7   ●   ●   ●   ●   ●
        b       9   4   ✕   –   –   –  14   ●   ●   ●   ●
        c               –   3   ●   ●
        """, "in step 2 b is preempted and frees 4 blocks, and a takes one. c has just arrived and needs one, but it "
             "must wait for step 3: a step that preempts a request admits none")
    assert_outputs(server, *requests)


def two_samples_in_one_block(lab, num_prompt):
    """Let a and its sample c share the only block, with the whole prompt; each has generated one token."""
    server = Server(lab, 1)
    scheduler = server.scheduler
    a = Request("a", range(num_prompt), SamplingParams(max_tokens=9), arrival_time=0.0)
    c = Request("c", range(num_prompt), SamplingParams(max_tokens=9))
    a.num_sequences = 2
    scheduler.add_request(a)
    output = scheduler.schedule()
    scheduler.update_from_output(output, server.model.step(output, server.kv_cache))
    scheduler.fork(a, c)
    c.append_output_token(500)
    return server


@pytest.mark.points(1)
@pytest.mark.parametrize("num_prompt", [2, 3])
def test_task_3_room_may_be_made_without_a_new_block(lab, num_prompt):
    server = two_samples_in_one_block(lab, num_prompt)
    output = plan(server)
    got = planned(output)
    assert got == ({"a": 1}, ["c"], []), (
        f"the pool is one block of 4 tokens, in which a and its sample c share {num_prompt} prompt tokens. a's next "
        f"token would need a copy of it, so c is preempted. Now only a holds the block, and allocate_slots returns an "
        f"empty list: a needs no new block, and an empty list is not None. (num_scheduled_tokens, preempted, finished) "
        f"is {got}, expected ({{'a': 1}}, ['c'], []){who_fits(output)}")


# ---- Task 4: a victim that was already planned


@pytest.mark.points(3)
def test_task_4_a_victim_that_was_planned_leaves_the_plan(lab):
    server = Server(lab, 5)
    low, high = server.arrive("low", 6, 6, LOW), server.arrive("high", 7, 6, HIGH, at_step=1)
    server.end()
    assert_picture(server, """
        step    0   1   2   3   4   5   6   7   8   9
        low     6   ●   ●   ✕   –   –   –   9   ●   ●
        high        7   ●   ●   ●   ●   ●
        """, "low was admitted first, so in step 3 it is planned first and takes the last block. Then high asks for a "
             "block: low is preempted although it was already planned, and computes nothing in this step")
    assert_outputs(server, low, high)


@pytest.mark.points(2)
def test_task_4_the_victims_tokens_return_to_the_budget(lab):
    server = Server(lab, 4, max_num_seqs=3, budget=4)
    requests = [server.arrive("low", 2, 6, LOW), server.arrive("high", 3, 6, HIGH, at_step=1),
                server.arrive("prompt", 6, 3, NORMAL, at_step=2)]
    server.end()
    assert_picture(server, """
        step      0   1   2   3   4   5   6   7   8   9  10
        low       2   ●   ●   ✕   –   –   –   4   ●   ●   ●
        high          3   ●   ●   ●   ●   ●
        prompt            2   3   ●   ●   ●
        """, "4 tokens per step. In step 3 low is given one token, then high asks for a block: low is preempted and "
             "its token returns to the budget. high takes one token, and 'prompt' takes the other 3")
    assert_outputs(server, *requests)


@pytest.mark.points(1)
def test_task_4_all_of_a_chunk_returns_to_the_budget(lab):
    server = Server(lab, 6, budget=13)
    all_in_full_blocks(server, ("low", LOW, 16), ("high", HIGH, 6), ("more", NORMAL, 10))
    output = plan(server)
    got = planned(output)
    assert got == ({"high": 1, "more": 6}, ["low"], []), (
        f"6 blocks of 4, a budget of 13. low is given 12 tokens and the 3 free blocks. high gets the one token that is "
        f"left, and needs a block for it: low is preempted, and its 12 tokens return. 'more' has 6 tokens to go. "
        f"(num_scheduled_tokens, preempted, finished) is {got}, expected ({{'high': 1, 'more': 6}}, ['low'], [])"
        f"{who_fits(output)}")


@pytest.mark.points(2)
@pytest.mark.parametrize("num_low_blocks", [1, 2])
def test_task_4_a_request_that_made_room_computes_what_it_asked_for(lab, num_low_blocks):
    server = Server(lab, 2 + num_low_blocks, budget=6)
    for name, priority, num_prompt in (("x", HIGH, 2), ("low", LOW, 4 * num_low_blocks - 2)):
        prompt = range(ord(name[0]) * 100, ord(name[0]) * 100 + num_prompt)
        seat(server, Request(name, prompt, SamplingParams(max_tokens=4), priority), num_prompt).append_output_token(7)
    long = seat(server, Request("long", range(100, 110), SamplingParams(max_tokens=4)), 4)
    output = plan(server)
    got = (*planned(output), len(server.kv_cache.get_block_ids("long")))
    assert got == ({"x": 1, "long": 4}, ["low"], [], 2), (
        f"{2 + num_low_blocks} blocks of 4, all in use: x and long hold one each, low holds {num_low_blocks}. The "
        f"budget is 6: x and low are given one token each, and long, with 6 of 10 tokens to go, may have 4. They need "
        f"a block, so low is preempted, and its token returns to the budget. (num_scheduled_tokens, preempted, "
        f"finished, blocks of long) is {got}, expected ({{'x': 1, 'long': 4}}, ['low'], [], 2): slots were allocated "
        f"for the 4 tokens that long asked for. The tokens and blocks that returned are for the requests after "
        f"it{who_fits(output)}")
    assert long.num_computed_tokens == 8, (
        f"4 tokens of long were computed, and 4 more are planned. Its num_computed_tokens is "
        f"{long.num_computed_tokens}, expected 8")


@pytest.mark.points(3)
def test_task_4_blocks_that_will_not_be_written_are_not_findable(lab):
    server = Server(lab, 7, cache=WHOLE_BLOCKS, budget=11)
    requests = [server.arrive("x", 3, 6, HIGH), server.arrive("y", 3, 6, HIGH), server.arrive("low", 2, 6, LOW),
                server.arrive("prompt", 16, 2, NORMAL, at_step=1)]
    low = requests[2]
    for _ in range(3):
        server.step()  # in step 2 x and y take the last blocks; low fills its block; then prompt asks for two
    requests.append(server.arrive("same", [*low.all_token_ids, 9], 4, HIGH, at_step=3))
    server.end()
    assert_picture(server, """
        step      0   1   2   3   4   5   6   7   8   9  10
        x         3   ●   ●   ●   ●   ●
        y         3   ●   ●   ●   ●   ●
        low       2   ●   ✕   –   –   –   –   4   ●   ●   ●
        prompt        8   ✕   –   –   –  10   2   ●
        same                  5   ●   ●   ●
        """, "in step 2 low was to compute its fourth token and fill its block, which was therefore already in the "
             "index. Then 'prompt' asks for two blocks. low is preempted and frees one, which is not enough, so "
             "'prompt' itself is also preempted. In step 3 a request with low's four tokens and one more arrives. It "
             "must compute all 5, because low's block was never written")
    assert_outputs(server, *requests)


@pytest.mark.points(2)
def test_task_4_of_a_chunk_no_block_is_findable(lab):
    server = Server(lab, 5, cache=WHOLE_BLOCKS)
    kv_cache = server.kv_cache
    low = seat(server, Request("low", range(16), SamplingParams(max_tokens=4), LOW), 4)
    seat(server, Request("high", range(100, 106), SamplingParams(max_tokens=4), HIGH), 4)
    written = kv_cache.get_block_ids("low") + kv_cache.get_block_ids("high")
    output = plan(server)
    got = planned(output)
    assert got == ({"high": 2}, ["low"], []), (
        f"5 blocks; low and high hold one each. low is given 12 tokens, in the 3 free blocks, and then high needs a "
        f"block: (num_scheduled_tokens, preempted, finished) is {got}, expected ({{'high': 2}}, ['low'], [])"
        f"{who_fits(output)}")
    num_found = kv_cache.get_computed_blocks(Request("same", [*low.all_token_ids, 9]))[1]
    assert num_found == 4, (
        f"low was preempted in the step in which it was to fill 3 blocks. A request with the same text now finds "
        f"{num_found} tokens in the cache, expected 4, which were computed before. All blocks from the block of "
        "position num_computed_tokens on are unwritten, not only the last")
    indexed = [block.block_id for block in kv_cache.block_pool.blocks if block.block_hash is not None]
    assert indexed == written, (
        f"low was preempted in the step in which it was to fill 3 blocks. The index contains the blocks {indexed}, "
        f"expected {written}, the only full blocks that are written: low's first and high's first. An unwritten block "
        "in the index is found as soon as another request has computed the blocks before it")


@pytest.mark.points(2)
def test_task_4_what_the_victim_had_computed_stays_findable(lab):
    for cache in (WHOLE_BLOCKS, TREE):
        server = Server(lab, 5, cache=cache)
        low, high = server.arrive("low", 6, 6, LOW), server.arrive("high", 7, 6, HIGH, at_step=1)
        server.end()
        assert_picture(server, """
            step    0   1   2   3   4   5   6   7   8   9
            low     6   ●   ●   ✕   –   –   –   ●   ●   ●
            high        7   ●   ●   ●   ●   ●
            """, f"cache: {cache}. low was preempted in step 3, with 8 tokens computed in 2 blocks, and high needed "
                 "only its third block. In step 7 low finds the two again and computes one token, not 9: evict only "
                 "the blocks that were to be written in step 3")
        assert_outputs(server, low, high)


@pytest.mark.points(2)
def test_task_4_several_may_have_to_give_way_to_one(lab):
    server = Server(lab, 8, max_num_seqs=5, budget=12)
    requests = [server.arrive("x", 3, 6, HIGH), server.arrive("y", 3, 6, HIGH), server.arrive("low 1", 2, 6, LOW),
                server.arrive("low 2", 2, 6, LOW), server.arrive("prompt", 16, 1, NORMAL, at_step=1)]
    server.end()
    assert_picture(server, """
        step      0   1   2   3   4   5   6
        x         3   ●   ●   ●   ●   ●
        y         3   ●   ●   ●   ●   ●
        low 1     2   ●   ✕   4   ●   ●   ●
        low 2     2   ●   ✕   4   ●   ●   ●
        prompt        8   8
        """, "in step 2 x and y take the last blocks, then 'prompt' asks for two. low 2 is preempted and frees one, "
             "which is not enough, so low 1 is also preempted. Both were already planned")
    assert_outputs(server, *requests)


@pytest.mark.points(2)
def test_task_4_samples_that_share_all_their_blocks_give_way_together(lab):
    server = Server(lab, 6, cache=WHOLE_BLOCKS)
    scheduler, kv_cache = server.scheduler, server.kv_cache
    high = Request("high", range(100, 108), SamplingParams(max_tokens=4), HIGH, arrival_time=0.0)
    leader = Request("sample 0", range(8), SamplingParams(max_tokens=4), LOW, arrival_time=0.0)
    samples = [Request(f"sample {i}", range(8), SamplingParams(max_tokens=4), LOW) for i in (1, 2)]
    leader.num_sequences = 3
    scheduler.add_request(high)
    scheduler.add_request(leader)
    plans, first_tokens = [], {}
    while scheduler.has_unfinished_requests() and len(plans) < 40:
        output = scheduler.schedule()
        plans.append((output.num_scheduled_tokens, ids(output.preempted)))
        tokens = server.model.step(output, kv_cache)  # reads every context back
        scheduler.update_from_output(output, tokens)
        if len(plans) == 1:  # the prompt is computed: each sample has a different first token, and shares the rest
            for token, sample in enumerate(samples):
                scheduler.fork(leader, sample)
                sample.append_output_token(token)
        for request in list(scheduler.requests.values()):
            first_tokens.setdefault(request.request_id, request.output_token_ids[:1])
            if len(request.output_token_ids) >= 4:
                scheduler.finish(request, RequestStatus.FINISHED_LENGTH)
        kv_cache.check_integrity()
    expected = ({"high": 1, "sample 0": 1}, ["sample 2", "sample 1"])
    assert plans[1] == expected, (
        f"6 blocks: high holds 2, three samples share 2. In step 1 each of them needs one more; high and sample 0 take "
        f"the last two. (num_scheduled_tokens, preempted) of that step is {plans[1]}, expected {expected}: sample 2 is "
        "preempted and frees nothing, because the other samples still use its blocks; so sample 1, which asks for a "
        "block, is preempted next")
    for request in (high, leader, *samples):
        first = first_tokens[request.request_id]
        alone = first + decode_alone(request.prompt_token_ids + first, 3)
        got = request.output_token_ids
        assert got == alone, f"{request} generated {got}, alone it generates {alone}; the steps were {plans}"
    assert kv_cache.block_pool.get_usage() == 0, f"all have ended, but blocks are in use; the steps were {plans}"


# ---- Task 5: requests that cannot fit, and aborted requests


@pytest.mark.points(3)
def test_task_5_a_request_that_outgrows_the_pool_keeps_its_output_and_preempts_none(lab):
    server = Server(lab, 5)
    big, small = server.arrive("big", 10, 100), server.arrive("small", 12, 3, at_step=1)
    finished = []
    while not big.status.is_finished:
        step = server.step()
        finished = step.finished
    server.end()
    assert_picture(server, """
        step     0   1   2   3   4   5   6   7   8   9  10  11  12  13
        big     10   ●   ●   ●   ●   ●   ●   ●   ●   ●   ●
        small        –   –   –   –   –   –   –   –   –   –  12   ●   ●
        """, "5 blocks of 4 tokens. After step 10 big has 21 tokens, but there are only 20 slots. In step 11 big ends. "
             "No request is preempted, not even big itself, so small is admitted in the same step")
    assert big.status is RequestStatus.FINISHED_KV_CACHE_FULL, (
        f"big outgrew the pool and ended as {big.status.name}, expected FINISHED_KV_CACHE_FULL")
    expected = decode_alone(big.prompt_token_ids, 11)
    assert big.output_token_ids == expected, (f"big ended with the output {big.output_token_ids}, expected {expected}: "
                                              "a request that ends keeps its output")
    assert finished == ["big"], f"big ended in a step that reports {finished} as finished, expected ['big']"
    assert_outputs(server, small)


@pytest.mark.points(1)
def test_task_5_the_plan_lists_requests_that_outgrew_the_pool(lab):
    for waits in (False, True):
        server = Server(lab, 2)
        a = server.arrive("a", 7, 100)
        for _ in range(2):
            server.step()
        if waits:
            server.scheduler.preempt(a)
        output = server.scheduler.schedule()
        got = (ids(output.finished), ids(output.preempted), output.num_scheduled_tokens)
        where = "waits after a preemption" if waits else "runs"
        assert got == (["a"], [], {}), (
            f"a {where} and has 9 tokens, but the pool has 8 slots: (finished, preempted, num_scheduled_tokens) of the "
            f"plan is {got}, expected (['a'], [], {{}})")
        got = (server.scheduler.has_unfinished_requests(), server.kv_cache.block_pool.get_usage(), a.status.name)
        assert got == (False, 0.0, "FINISHED_KV_CACHE_FULL"), (
            f"(has_unfinished_requests, usage of the pool, status of a) is {got}, expected (False, 0.0, "
            "'FINISHED_KV_CACHE_FULL')")


@pytest.mark.points(2)
def test_task_5_a_request_inside_its_prompt_has_not_outgrown_the_pool(lab):
    server = Server(lab, 5, budget=9)
    a, long = server.arrive("a", 4, 6), server.arrive("long", 16, 3)
    server.end()
    assert_picture(server, """
        step    0   1   2   3   4   5   6   7   8   9
        a       4   ●   ●   ●   ●   ●
        long    5   ✕   –   –   –   –   9   7   ●   ●
        """, "5 blocks of 4 tokens. In step 1 a takes its second block, and one is free. long has 5 of 16 tokens "
             "computed, in 2 blocks, and asks for slots for 8 more: two blocks. Alone it would get them, so it is "
             "preempted and resumes later. The pool can hold all its 16 tokens (num_tokens), which include the 8 new "
             "ones")
    assert_outputs(server, a, long)


@pytest.mark.points(1)
def test_task_5_samples_that_share_the_pool_outgrow_it_together(lab):
    server = two_samples_in_one_block(lab, num_prompt=4)
    output = server.scheduler.schedule()
    got = (ids(output.finished), ids(output.preempted), output.num_scheduled_tokens)
    assert got == (["a", "c"], [], {}), (
        f"the pool is one block of 4 tokens, which a and its sample c share; both have 5 tokens. (finished, preempted, "
        f"num_scheduled_tokens) is {got}, expected (['a', 'c'], [], {{}}): 5 tokens need 2 blocks, even if no other "
        "request runs, so no request is preempted for a")


@pytest.mark.points(3)
def test_task_5_a_preempted_request_with_a_token_too_many_does_not_block_the_queue(lab):
    server = Server(lab, 4)
    a, b = server.arrive("a", 14, 100), server.arrive("b", 4, 2, at_step=1)
    for _ in range(3):
        server.step()
    server.scheduler.preempt(a)  # 16 of its 17 tokens were computed; the engine does this when a step has failed
    step = server.step()
    got = (a.status.name, step.finished, step.num_scheduled_tokens)
    assert got == ("FINISHED_KV_CACHE_FULL", ["a"], {"b": 4}), (
        f"a waits with 17 tokens, for which 4 blocks of 4 are too few, and b is behind it. After a step (status of a, "
        f"finished, num_scheduled_tokens) is {got}, expected ('FINISHED_KV_CACHE_FULL', ['a'], {{'b': 4}}): a request "
        f"that can never be admitted ends, and the next one gets its turn\n{server}")
    expected = decode_alone(a.prompt_token_ids, 3)
    assert a.output_token_ids == expected, f"a ended with the output {a.output_token_ids}, expected {expected}"
    server.end(num_by_hand=1)
    assert_outputs(server, b)


@pytest.mark.points(1)
def test_task_5_a_request_that_can_never_fit_ends_although_others_are_before_it(lab):
    server = Server(lab, 4)
    a, b = server.arrive("a", 14, 100), server.arrive("b", 4, 2, at_step=1)
    c = server.arrive("c", 4, 2, HIGH, at_step=3)
    for _ in range(3):
        server.step()
    server.scheduler.preempt(a)
    step = server.step()
    got = (a.status.name, step.finished, step.num_scheduled_tokens)
    assert got == ("FINISHED_KV_CACHE_FULL", ["a"], {"c": 4, "b": 4}), (
        f"the queue is c, a, b; a has 17 tokens, for which 4 blocks of 4 are too few. After a step (status of a, "
        f"finished, num_scheduled_tokens) is {got}, expected ('FINISHED_KV_CACHE_FULL', ['a'], {{'c': 4, 'b': 4}}): c "
        f"is admitted, then a is first and ends, then b is admitted\n{server}")
    server.end(num_by_hand=1)
    assert_outputs(server, b, c)


@pytest.mark.points(1)
def test_task_5_a_request_that_just_fits_is_resumed(lab):
    server = Server(lab, 4)
    a, urgent = server.arrive("a", 14, 3), server.arrive("urgent", 4, 2, HIGH, at_step=2)
    for _ in range(2):
        server.step()
    server.scheduler.preempt(a)
    server.end(num_by_hand=1)
    assert_picture(server, """
        step      0   1   2   3   4
        a        14   ●   –   –  16
        urgent            4   ●
        """, "a was preempted after step 1 with 16 tokens, which fill the 4 blocks of 4 to the last slot. While urgent "
             "runs, there is no room for a. But a has not outgrown the pool: it waits, and resumes later")
    assert_outputs(server, a, urgent)


@pytest.mark.points(2)
def test_task_5_a_preempted_request_can_be_aborted(lab):
    server = Server(lab, 4)
    a, b = server.arrive("a", 7, 6), server.arrive("b", 5, 6)
    for _ in range(4):
        server.step()
    got = server.scheduler.abort_request("b")
    server.abort("b")
    assert got is b and b.status is RequestStatus.FINISHED_ABORTED, (
        f"b had been preempted and waited; abort_request('b') returned {got}, expected b itself, with "
        "the status FINISHED_ABORTED")
    assert b not in server.scheduler.waiting and "b" not in server.scheduler.requests, (
        f"b was aborted while it waited, but it is still in the queue ({ids(server.scheduler.waiting)}) or in requests "
        f"({list(server.scheduler.requests)})")
    server.end()
    assert_picture(server, """
        step    0   1   2   3   4   5
        a       7   ●   ●   ●   ●   ●
        b       5   ●   ✕   –
        """, "b was preempted in step 2 and aborted after step 3: it must not resume")
    assert_outputs(server, a)
    got = server.scheduler.abort_request("b")
    assert got is None, f"abort_request of a request that has ended returned {got}, expected None"


# ---- All rules together


def run_traffic(lab, seed, cache):
    """Run random requests in a tiny pool; some share a prefix, some are aborted, and some outgrow the pool."""
    rng = random.Random(f"{seed} {cache}")
    num_blocks, block_size, max_num_seqs = rng.randint(5, 9), rng.choice((2, 3, 4)), rng.randint(3, 5)
    server = Server(lab, num_blocks, block_size=block_size, cache=cache, max_num_seqs=max_num_seqs,
                    budget=max_num_seqs + rng.randint(0, 8), watermark=rng.choice((0.0, 0.01, 0.3)),
                    aging_rate=rng.choice((0.0, 0.1, 20.0)))
    server.name, server.texts_differ = f"seed {seed}, {cache}: ", False
    num_slots, requests, aborted = num_blocks * block_size, [], set()
    for i in range(rng.randint(4, 8)):
        prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, max(num_slots // 3, 1)))]
        if requests and rng.random() < 0.4:
            other = rng.choice(requests).prompt_token_ids
            prompt = (other[:rng.randint(1, len(other))] + prompt)[:num_slots]
        max_tokens = rng.randint(3, num_slots)
        if rng.random() < 0.9:
            max_tokens = max(min(max_tokens, num_slots - len(prompt)), 1)  # otherwise it may outgrow the pool
        requests.append(server.arrive(f"r{i}", prompt, max_tokens, rng.choice(list(Priority)), rng.randint(0, 4)))
    num_steps = 0
    while not server.is_done:
        assert num_steps < 1_000, f"{server.name}after 1,000 steps some requests have not ended\n{server}"
        live = sorted(server.scheduler.requests)
        if live and rng.random() < 0.02:
            aborted.add(rng.choice(live))
            for request_id in aborted.intersection(live):
                server.abort(request_id)
        server.step()
        num_steps += 1
    server.end()
    for request in requests:
        expected = decode_alone(request.prompt_token_ids, request.sampling_params.max_tokens)
        got = request.output_token_ids
        if request.request_id in aborted or request.status is RequestStatus.FINISHED_KV_CACHE_FULL:
            expected = expected[:len(got)]
        assert got == expected, (f"{server.name}{request} generated {got}, alone it generates {expected}: a schedule "
                                 f"must not change any token\n{server}")
    return server


@pytest.mark.points(5)
@pytest.mark.parametrize("cache", [NO_CACHE, WHOLE_BLOCKS, TREE])
def test_task_5_random_traffic_generates_what_each_request_generates_alone(lab, cache):
    num_preemptions = sum(run_traffic(lab, seed, cache).scheduler.num_preemptions for seed in range(NUM_SEEDS))
    assert num_preemptions >= 5, (f"{NUM_SEEDS} runs in tiny pools: {num_preemptions} preemptions, expected at least "
                                  "5. Without preemptions this test checks nothing")
