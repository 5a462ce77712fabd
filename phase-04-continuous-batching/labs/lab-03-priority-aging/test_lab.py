"""Tests of lab 4.3, priority with aging. Each test checks one rule. If it fails, its message names the rule.

No test sleeps: the queue gets a clock that the test sets. Rates and times are multiples of 1/8, which floats represent
exactly, so numbers that should be equal are equal. The tests count work instead of timing it. They count how often an
arrival time, or any number computed from it, is compared. They also count the lines of Python that a call runs, and the
memory that it allocates.
"""

import contextlib
import math
import random
import statistics

import pytest

from course.gauges import cheapest, deferring, flush, listed, num_lines, num_objects
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Priority, Request, SamplingParams
from mini_vllm.scheduler import Scheduler
from mini_vllm.simulation import Clock, CostModel, Simulation

HIGH, NORMAL, LOW = PRIORITIES = list(Priority)


def make_queue(lab, rate=0.25, now_s=0.0):
    """Return a queue and its clock."""
    clock = Clock()
    clock.now_s = now_s
    return lab.PriorityQueueWithAging(rate, clock), clock


def request(name, priority=NORMAL, arrival_s=None):
    return Request(name, [1], priority=priority, arrival_time=arrival_s)


def put_all(queue, *requests):
    for each in requests:
        queue.put(each)
    return requests


def put_many(queue, requests):
    """Put all requests, like ``put_all``. In the sandbox, where each call is a message, send only one message."""
    quick = deferring(queue, "put")
    for each in requests:
        quick.put(each)
    quick.peek()


def drain(queue):
    """Empty the queue with get(), and return the ids."""
    names = []
    while len(queue):
        assert len(names) < 10_000, "get() was called 10,000 times, and len(queue) is still not 0"
        names.append(queue.get().request_id)
    return names


@contextlib.contextmanager
def must_raise(error, call, *words):
    """Check that the call raises ``error``, with these words in its message. Pass NotImplementedError on."""
    refusals = []
    try:
        yield refusals
    except NotImplementedError:
        raise
    except error as refusal:
        missing = [word for word in words if word not in str(refusal)]
        assert not missing, (f"{call} raised {error.__name__}({str(refusal)!r}), which does not contain {missing}: the "
                             "message must name the wrong value")
        refusals.append(str(refusal))
        return
    except Exception as other:
        got = f"{type(other).__name__}({str(other)!r})"
        raise AssertionError(f"{call} raised {got}, expected {error.__name__}") from other
    pytest.fail(f"{call} was accepted, expected {error.__name__}", pytrace=False)


# ---- Task 1: effective priority and order


@pytest.mark.points(1)
@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf, -math.inf])
def test_task_1_a_rate_that_is_negative_or_not_finite_is_refused(lab, rate):
    with must_raise(ValueError, f"PriorityQueueWithAging({rate})", str(rate)) as refusals:
        lab.PriorityQueueWithAging(rate)
    rest = refusals[0].replace(str(rate), "")
    assert any(word in rest for word in ("0", "negative", "finite")), (
        f"PriorityQueueWithAging({rate}) raised ValueError({refusals[0]!r}), which names the value but not the bound: "
        "say that a rate must be 0 or more, and finite")


@pytest.mark.points(1)
@pytest.mark.parametrize("rate", [0, 0.25, 2.0, 1000])
def test_task_1_rate_and_clock_are_attributes(lab, rate):
    clock = Clock()
    try:
        queue = lab.PriorityQueueWithAging(rate, clock)
    except ValueError as error:
        raise AssertionError(f"PriorityQueueWithAging({rate}, clock) was refused: {error}. Every finite rate that is 0 "
                             "or more is valid") from error
    got = queue.aging_rate, queue.clock
    assert got == (rate, clock), (f"PriorityQueueWithAging({rate}, clock) has (aging_rate, clock) {got}, expected "
                                  f"{(rate, clock)}: both exactly as given")


@pytest.mark.points(2)
def test_task_1_effective_priority_falls_while_a_request_waits(lab):
    queue, clock = make_queue(lab, rate=0.25, now_s=100.0)
    low = request("low", LOW, arrival_s=100.0)
    for now_s, expected in ((100.0, 2.0), (104.0, 1.0), (108.0, 0.0), (120.0, -3.0)):
        clock.now_s = now_s
        got = queue.effective_priority(low)
        assert got == expected, (f"LOW (2) arrived at 100 s, rate 0.25: at {now_s:.0f} s its effective priority is "
                                 f"{got}, expected {expected}: base - waited * rate, with the current time of the "
                                 "clock")
    clock.now_s = 8.0
    got = queue.effective_priority(request("came at 0.0 s", LOW, 0.0))
    assert got == 0, (f"LOW (2) arrived at 0.0 s, rate 0.25: at 8 s its effective priority is {got}, expected 2 - 8 * "
                      "0.25 = 0. 0.0 is a valid time; only None means that there is no arrival time")
    new = request("not put in yet", LOW)
    got = queue.effective_priority(new), new.arrival_time
    assert got == (2, None), (
        f"a request without arrival_time has not waited: after effective_priority(request) (the result, the request's "
        f"arrival_time) is {got}, expected its base, 2, and None: the call must not store anything")


@pytest.mark.points(1)
def test_task_1_a_rate_of_0_is_strict_priority(lab):
    queue, clock = make_queue(lab, rate=0)
    low = request("low", LOW, arrival_s=0.0)
    clock.now_s = 1e6
    got = queue.effective_priority(low), queue.order(low) > queue.order(request("high", HIGH, arrival_s=1e6))
    assert got == (2, True), (f"rate 0, LOW has waited 10^6 s: (effective priority, whether its order is larger than "
                              f"that of a new HIGH) is {got}, expected (2, True): 0 is a valid rate, not 'no rate "
                              "given'")
    default = lab.PriorityQueueWithAging().aging_rate
    assert default == 0.1, f"PriorityQueueWithAging().aging_rate is {default}, expected 0.1"


@pytest.mark.points(3)
def test_task_1_order_agrees_with_effective_priority_and_never_changes(lab):
    rng = random.Random(43)
    queue, clock = make_queue(lab, rate=0.25)
    for _ in range(60):
        a, b = (request(name, rng.choice(PRIORITIES), rng.randrange(80) / 4) for name in "ab")
        clock.now_s = 20.0
        before = queue.order(a), queue.order(b)
        for now_s in (20.0, 20.25, 77.5, 4000.0, 5.0):
            clock.now_s = now_s
            effective = queue.effective_priority(a), queue.effective_priority(b)
            for each, got in zip((a, b), effective):
                expected = each.priority - (now_s - each.arrival_time) * 0.25
                moral = ". 0.0 is a valid time" if each.arrival_time == 0 else ""
                if now_s < each.arrival_time:
                    moral = ". Its arrival is in the future, so it has waited less than 0 seconds"
                assert got == expected, (
                    f"{each.request_id} (base {each.priority:d}) has the arrival_time {each.arrival_time}: at {now_s} "
                    f"s its effective priority is {got}, expected {expected}: base - waited * 0.25{moral}")
            assert (queue.order(a), queue.order(b)) == before, (
                f"order() was {before} at 20 s and is {(queue.order(a), queue.order(b))} at {now_s} s: the sort key of "
                "a heap must not change")
            if effective[0] != effective[1]:
                assert (before[0] < before[1]) == (effective[0] < effective[1]), (
                    f"a (base {a.priority:d}) arrived at {a.arrival_time} s, b (base {b.priority:d}) at "
                    f"{b.arrival_time} s. At {now_s} s their effective priorities are {effective}, but their orders "
                    f"are {before}: the smaller effective priority must have the smaller order")


@pytest.mark.points(2)
def test_task_1_of_equal_effective_priorities_the_first_come_goes_first(lab):
    queue, clock = make_queue(lab, rate=0.25)
    low, normal, high = request("low", LOW, 0.0), request("normal", NORMAL, 4.0), request("high", HIGH, 8.0)
    clock.now_s = 8.0
    got = [queue.effective_priority(each) for each in (low, normal, high)]
    assert got == [0, 0, 0], (f"rate 0.25, at 8 s: LOW from 0 s, NORMAL from 4 s and HIGH from 8 s have the effective "
                              f"priorities {got}, expected [0, 0, 0]: base - waited * rate")
    orders = [queue.order(each) for each in (low, normal, high)]
    assert orders[0] < orders[1] < orders[2], (f"LOW from 0 s, NORMAL from 4 s and HIGH from 8 s have orders {orders}. "
                                               "Their effective priorities are equal, so the first to arrive is first")
    sooner = request("high, a moment earlier", HIGH, 8.0 - 1 / 1024)
    assert queue.order(sooner) < queue.order(low), (
        f"HIGH arrived 1/1024 s before the bound of LOW, so it must be served before LOW. Their orders are "
        f"{queue.order(sooner)} and {queue.order(low)}. Do not round")


# ---- Task 2: put and get


@pytest.mark.points(1)
def test_task_2_the_smaller_number_is_served_first(lab):
    queue, _ = make_queue(lab)
    put_all(queue, request("low", LOW), request("high", HIGH), request("normal", NORMAL))
    got = len(queue), drain(queue), len(queue)
    assert got == (3, ["high", "normal", "low"], 0), (
        f"LOW, HIGH and NORMAL arrived together: (length, order of get(), length) is {got}, expected "
        "(3, ['high', 'normal', 'low'], 0)")


@pytest.mark.points(2)
def test_task_2_a_request_that_waited_long_enough_goes_before_a_new_high(lab):
    queue, clock = make_queue(lab, rate=0.25)
    queue.put(request("low", LOW))
    clock.now_s = 6.0
    queue.put(request("high at 6 s", HIGH))
    clock.now_s = 9.0
    queue.put(request("high at 9 s", HIGH))
    got = drain(queue)
    assert got == ["high at 6 s", "low", "high at 9 s"], (
        f"rate 0.25, LOW has waited since 0 s: get() returned {got}. At 6 s LOW is at 0.5, so a HIGH (0) that arrives "
        "then is served before it. At 9 s LOW is at -0.25, before a HIGH that has just arrived")


@pytest.mark.points(2)
def test_task_2_put_sets_the_arrival_time_only_if_there_is_none(lab):
    queue, clock = make_queue(lab, now_s=50.0)
    requests = [request("new"), request("came at 30 s", NORMAL, 30.0), request("came at 0 s", NORMAL, 0.0),
                request("came at -4 s", NORMAL, -4.0)]
    for each in requests:
        try:
            queue.put(each)
        except ValueError as error:
            raise AssertionError(f"put({each!r}) at 50 s, with arrival_time {each.arrival_time}, was refused: {error}. "
                                 "Every finite time is a valid arrival time") from error
    got = [each.arrival_time for each in requests]
    assert got == [50.0, 30.0, 0.0, -4.0], (
        f"put at 50 s of requests with arrival_time None, 30.0, 0.0 and -4.0: the times are {got}, expected [50.0, "
        "30.0, 0.0, -4.0]. 0.0 is a valid time")
    got = drain(queue)
    assert got == ["came at -4 s", "came at 0 s", "came at 30 s", "new"], (
        f"the request that arrived first must be served first, whenever it was put; get() returned {got}")


@pytest.mark.points(2)
def test_task_2_equals_are_served_in_the_order_in_which_they_were_put(lab):
    queue, clock = make_queue(lab)
    names = ["d", "b", "e", "a", "c", "g", "f"]
    for name in names:
        queue.put(request(name))
    clock.now_s = 5.0
    got = drain(queue)
    assert got == names, (f"equal priority, equal arrival time, put in the order {names}: get() returned {got}. "
                          "Compare neither ids nor requests: tickets must decide")


@pytest.mark.points(2)
def test_task_2_what_cannot_wait_here_is_refused_and_changes_nothing(lab):
    queue, _ = make_queue(lab)
    put_all(queue, request("story-1"), request("story-2"))
    twin = request("story-1", HIGH)
    with must_raise(ValueError, "put(a second request with id 'story-1')", "story-1"):
        queue.put(twin)
    assert twin.arrival_time is None, "a refused put has set an arrival time: check first, then change"
    for value in (math.nan, math.inf, -math.inf):
        with must_raise(ValueError, f"put(a request with arrival_time {value})", str(value)):
            queue.put(request("story-3", HIGH, value))
    got = len(queue), drain(queue)
    assert got == (2, ["story-1", "story-2"]), (f"after four refused calls (length, requests) is {got}, expected "
                                                "(2, ['story-1', 'story-2'])")


@pytest.mark.points(1)
def test_task_2_peek_shows_what_get_will_take(lab):
    queue, _ = make_queue(lab)
    low, high = put_all(queue, request("low", LOW), request("high", HIGH))
    got = [queue.peek().request_id, queue.peek().request_id, len(queue)]
    assert got == ["high", "high", 2], (f"LOW and HIGH wait: (peek, peek, len) is {got}, expected ['high', 'high', 2]: "
                                        "peek must not remove the request")
    got = [queue.get(), queue.peek(), queue.get(), len(queue)]
    assert got == [high, low, low, 0], f"HIGH and LOW wait: (get, peek, get, len) is {got}, expected high, low, low, 0"


@pytest.mark.points(1)
def test_task_2_an_empty_queue_says_so(lab):
    queue, _ = make_queue(lab)
    for moment in ("a new queue", "a queue that was emptied"):
        for name, call in (("peek", queue.peek), ("get", queue.get)):
            with must_raise(IndexError, f"{name}() of {moment}"):
                call()
        assert len(queue) == 0, f"len of {moment} is {len(queue)}"
        queue.put(request("a"))
        queue.get()


class Counting(float):
    """A time that counts how often it, or any number computed from it, is compared."""

    num_comparisons = 0


def _counted(name):
    def method(self, other):
        Counting.num_comparisons += 1
        return getattr(float, name)(self, other)
    return method


def _kept(name):
    def method(self, other):
        result = getattr(float, name)(self, other)
        return result if result is NotImplemented else Counting(result)
    return method


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(Counting, _name, _counted(_name))
for _name in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"):
    setattr(Counting, _name, _kept(_name))
Counting.__neg__ = lambda self: Counting(float.__neg__(self))
Counting.__hash__ = float.__hash__

NUM_WAITING = 300
MAX_COMPARISONS = 80  # 10 times log2(300); a call that looks at all waiting requests needs about 300
MAX_LINES = 250
NUM_MANY = 2000
MAX_BYTES = 10_000  # a list of 2000 is 16,000 bytes long


def counted(name, call, arguments, clock, moral):
    """Call ``call`` with each argument, 1/8 s apart, and check that it makes about log n comparisons on average."""
    Counting.num_comparisons = 0
    for num_calls, argument in enumerate(arguments, 1):
        clock.now_s += 0.125
        call(*argument)
        if num_calls % 50 == 0:  # not only at the end: a call that looks at every request each time is slow
            average = Counting.num_comparisons / num_calls
            assert average <= MAX_COMPARISONS, (
                f"up to {NUM_WAITING} requests wait. {num_calls} calls of {name} made {average:.0f} comparisons each "
                f"on average, but at most {MAX_COMPARISONS} are allowed, 10 times log2({NUM_WAITING}): {moral}")


NOTHING_TO_SORT = "time passes, but no two requests change places, so nothing has to be sorted or searched again"


def assert_holds(queue, num_requests):
    """Check that the queue really contains the requests; an empty queue would be fast and small."""
    assert len(queue) == num_requests, f"{num_requests} requests wait, but len(queue) is {len(queue)}"


def counted_queue(lab):
    """Return a queue with 300 waiting requests whose comparisons are counted, its clock, and the requests."""
    rng = random.Random(44)
    queue, clock = make_queue(lab, rate=0.125, now_s=1000.0)
    requests = [request(f"r{i}", rng.choice(PRIORITIES), Counting(rng.randrange(8000) / 8)) for i in range(NUM_WAITING)]
    counted("put(request)", queue.put, [(each,) for each in requests], clock, NOTHING_TO_SORT)
    assert_holds(queue, NUM_WAITING)
    return queue, clock, requests


def assert_looks_at_few(name, call, arguments):
    """Check that most of the calls run few lines. Some calls may have to reorganize the queue."""
    got = statistics.median(num_lines(lambda argument=argument: call(*argument)) for argument in arguments)
    assert got <= MAX_LINES, (
        f"about {NUM_WAITING} requests wait. The median of {len(arguments)} calls of {name} ran {got} lines of Python, "
        f"but at most {MAX_LINES} are allowed: a call must look at only a few requests, however many wait")


@pytest.mark.points(3)
def test_task_2_put_and_get_cost_log_n(lab):
    queue, clock, _ = counted_queue(lab)
    assert_looks_at_few("put(request)", queue.put, [(request(f"new {i}"),) for i in range(9)])
    assert_looks_at_few("peek()", queue.peek, [()] * 3)
    assert_looks_at_few("len(queue)", lambda: len(queue), [()] * 3)
    assert_looks_at_few("get()", queue.get, [()] * 9)
    counted("get()", queue.get, [()] * (NUM_WAITING // 2), clock, NOTHING_TO_SORT)


@pytest.mark.points(1)
@pytest.mark.inside("the lines and the memory of a call can be counted only in the process that runs it")
def test_task_2_no_call_goes_through_all_that_wait(lab):
    queue, _ = make_queue(lab, rate=0.125)
    requests = [request(f"r{i}", PRIORITIES[i % 3], i / 8) for i in range(NUM_MANY)]
    put_many(queue, requests)
    assert_holds(queue, NUM_MANY)
    new = [request(f"new {i}", NORMAL, 100.0) for i in range(9)]
    for name, call, arguments in (("put(request)", queue.put, [(each,) for each in new]),
                                  ("peek()", queue.peek, [()] * 3), ("len(queue)", queue.__len__, [()] * 3),
                                  ("`request in queue`", queue.__contains__, [(each,) for each in requests[500:509]]),
                                  ("remove(request)", queue.remove, [(each,) for each in requests[500:509]]),
                                  ("get()", queue.get, [()] * 9),
                                  ("requeue(request)", queue.requeue, [(each,) for each in requests[500:509]])):
        for what, got, bound in zip(("lines of Python", "bytes of memory"), cheapest(call, arguments),
                                    (MAX_LINES, MAX_BYTES)):
            assert got <= bound, (
                f"about {NUM_MANY} requests wait. The cheapest of {len(arguments)} calls of {name} took {got} {what}, "
                f"but at most {bound} are allowed: a call must look at only a few requests, however many wait, and "
                "copy none")


def stream(lab, rate, high_every_s, num_high):
    """Simulate HIGH requests of one token at even intervals, and LOW at 0 s; one seat, one step per second."""
    clock = Clock()
    scheduler = Scheduler(KVCacheManager(num_blocks=9, block_size=4), max_num_seqs=1, max_num_batched_tokens=8,
                          queue=lab.PriorityQueueWithAging(rate, clock))
    simulation = Simulation(scheduler, CostModel(step_s=1.0, token_s=0.0), clock)
    simulation.add(Request("LOW", [1, 2], SamplingParams(max_tokens=1), LOW))
    for i in range(num_high):
        simulation.add(Request(f"high{i}", [3 + i], SamplingParams(max_tokens=1), HIGH), at_s=i * high_every_s)
    return simulation.run()


@pytest.mark.points(3)
@pytest.mark.parametrize("high_every_s, num_overtaking", [(1.0, 8), (0.5, 16), (4.0, 1)])
def test_task_2_low_is_overtaken_only_by_requests_that_arrive_within_the_bound(lab, high_every_s, num_overtaking):
    timeline = stream(lab, rate=0.25, high_every_s=high_every_s, num_high=24)
    served = [step.finished[0] for step in timeline.steps]
    got = served.index("LOW")
    assert got == num_overtaking, (
        f"a HIGH arrives every {high_every_s} s and takes 1 s; LOW (2) arrived at 0 s, rate 0.25. {got} HIGH "
        f"requests were served before it, expected {num_overtaking}: a request that arrives at 0 + 2 / 0.25 = 8 s or "
        f"later is served after LOW (and when no other request waits, LOW is served at once)\n{timeline}")


@pytest.mark.points(1)
def test_task_2_with_rate_0_low_starves_until_the_stream_ends(lab):
    timeline = stream(lab, rate=0, high_every_s=0.5, num_high=24)
    served = [step.finished[0] for step in timeline.steps]
    assert served.index("LOW") == 24, (f"rate 0 is strict priority, and a HIGH always waits: LOW was served after "
                                       f"{served.index('LOW')} of 24 HIGH requests, expected after all 24\n{timeline}")


# ---- Task 3: requeue


@pytest.mark.points(2)
def test_task_3_a_requeued_request_is_as_old_as_ever(lab):
    queue, clock = make_queue(lab, rate=0.25)
    low = request("low", LOW)
    queue.put(low)
    queue.get()
    clock.now_s = 12.0
    queue.put(request("high at 12 s", HIGH))
    queue.requeue(low)
    got = low.arrival_time, queue.effective_priority(low), drain(queue)
    assert got == (0.0, -1.0, ["low", "high at 12 s"]), (
        f"LOW arrived at 0 s, was served at once, and came back at 12 s: (arrival_time, effective priority, order of "
        f"get) is {got}, expected (0.0, -1.0, ['low', 'high at 12 s']): all the time since its arrival counts")


@pytest.mark.points(2)
def test_task_3_a_requeued_request_goes_before_its_equals(lab):
    queue, _ = make_queue(lab)
    a, b, c, d = put_all(queue, *(request(name) for name in "abcd"))
    queue.get()
    queue.requeue(a)
    got = queue.peek().request_id
    assert got == "a", f"a, b, c, d are equals; a was served and came back: peek() returned {got}, expected 'a'"
    for _ in range(3):
        queue.get()
    for each in (c, b, a):
        queue.requeue(each)
    got = drain(queue)
    assert got == ["a", "b", "c", "d"], (
        f"a, b, c, d are equals; a, b, c were served and came back in the order c, b, a (a scheduler preempts the last "
        f"one first): get() returned {got}, expected a, b, c, d")


@pytest.mark.points(2)
def test_task_3_a_requeued_request_does_not_go_before_its_betters(lab):
    queue, clock = make_queue(lab, rate=0.25)
    low, first = put_all(queue, request("low", LOW), request("came first", NORMAL))
    assert [queue.get(), queue.get()] == [first, low], "NORMAL must be served before LOW"
    clock.now_s = 2.0
    queue.put(request("high", HIGH))
    queue.put(request("same level as low, arrived later", HIGH, 8.0))
    queue.requeue(low)
    got = drain(queue)
    assert got == ["high", "low", "same level as low, arrived later"], (
        f"LOW (arrived at 0 s, rate 0.25) comes back at 2 s; get() returned {got}: a HIGH of 2 s has a smaller order "
        "and is served first. A request that comes back does not overtake more urgent ones")
    queue.put(request("high at 8 s", HIGH, 8.0))
    high = queue.get()
    queue.put(request("low at 0 s", LOW, 0.0))
    queue.requeue(high)
    got = drain(queue)
    assert got == ["low at 0 s", "high at 8 s"], (
        f"HIGH of 8 s was served and comes back. LOW of 0 s waits, is level with it at rate 0.25, and arrived first: "
        f"get() returned {got}, expected ['low at 0 s', 'high at 8 s']. Equals have the same order, in both numbers")


@pytest.mark.points(1)
def test_task_3_what_never_waited_cannot_come_back(lab):
    queue, _ = make_queue(lab)
    _, second = put_all(queue, request("story-1"), request("story-2"))
    never = request("story-3")
    with must_raise(ValueError, "requeue(a request that was never in a queue)", "story-3"):
        queue.requeue(never)
    assert never.arrival_time is None, (
        f"requeue(a request that was never in a queue) was refused, but now its arrival_time is {never.arrival_time}, "
        "expected None: a call that raises must change nothing")
    with must_raise(ValueError, "requeue(a request that is waiting)", "story-2"):
        queue.requeue(second)
    got = len(queue), drain(queue)
    assert got == (2, ["story-1", "story-2"]), (f"after two refused calls (length, requests) is {got}, expected "
                                                "(2, ['story-1', 'story-2'])")


@pytest.mark.points(1)
def test_task_3_requeue_costs_log_n(lab):
    queue, clock, _ = counted_queue(lab)
    served = [(queue.get(),) for _ in range(109)]
    assert_looks_at_few("requeue(request)", queue.requeue, served[:9])
    counted("requeue(request)", queue.requeue, served[9:], clock, "push a request that comes back like any other")


@pytest.mark.points(3)
def test_task_3_a_preempted_request_runs_again_before_its_equals(lab):
    clock = Clock()
    scheduler = Scheduler(KVCacheManager(num_blocks=9, block_size=2, enable_caching=False), max_num_seqs=2,
                          max_num_batched_tokens=16, queue=lab.PriorityQueueWithAging(0.25, clock))
    simulation = Simulation(scheduler, CostModel(step_s=1.0, token_s=0.0), clock)
    for i, name in enumerate("abcd"):  # four equals: same priority, same arrival
        simulation.add(Request(name, [10 * i + j for j in range(4)], SamplingParams(max_tokens=8)))
    timeline = simulation.run()
    assert scheduler.num_preemptions > 0, f"8 blocks cannot hold two requests of 11 tokens each\n{timeline}"
    got = [name for step in timeline.steps for name in step.finished]
    assert got == ["a", "b", "c", "d"], (
        f"a, b, c, d arrived together and must end in this order; they ended in the order {got}. ✕ is a request that "
        f"is preempted: it must run again before requests that have not started\n{timeline}")


# ---- Task 4: remove


@pytest.mark.points(1)
@pytest.mark.parametrize("which", ["a", "b", "c", "d"])
def test_task_4_remove_takes_out_one_and_only_that(lab, which):
    queue, _ = make_queue(lab)
    requests = {each.request_id: each for each in put_all(queue, *(request(name) for name in "abcd"))}
    queue.remove(requests[which])
    left = [name for name in "abcd" if name != which]
    got = len(queue), requests[which] in queue, queue.peek().request_id
    assert got == (3, False, left[0]), (f"a, b, c, d, then remove({which}): (length, is {which} in it, peek) is {got}, "
                                        f"expected (3, False, {left[0]!r}): a removed request is never served")
    got = drain(queue)
    assert got == left, f"a, b, c, d, then remove({which}): get() returned {got}, expected {left}"
    with must_raise(IndexError, "get() when all have left"):
        queue.get()


@pytest.mark.points(1)
def test_task_4_contains_and_remove_mean_this_very_request(lab):
    queue, _ = make_queue(lab)
    (waiting,) = put_all(queue, request("story-1"))
    stranger = request("story-1", NORMAL, 0.0)
    got = waiting in queue, stranger in queue
    assert got == (True, False), (f"'story-1' waits; (whether it is in the queue, whether another request with that id "
                                  f"is) is {got}, expected (True, False)")
    for what, each in (("another request with the same id", stranger), ("one that never waited", request("story-2"))):
        with must_raise(ValueError, f"remove({what})", each.request_id):
            queue.remove(each)
    got = drain(queue)
    assert got == ["story-1"], f"'story-1' waits, and two removals were refused: {got} wait, expected ['story-1']"
    with must_raise(ValueError, "remove(a request that was served)", "story-1"):
        queue.remove(waiting)


@pytest.mark.points(2)
def test_task_4_a_new_request_of_a_removed_id_stands_at_its_own_place(lab):
    queue, clock = make_queue(lab, rate=0.25)
    old, _ = put_all(queue, request("a", HIGH), request("b", NORMAL))
    queue.remove(old)
    clock.now_s = 1.0
    new = request("a", LOW)
    queue.put(new)
    got = [each.request_id for each in (queue.get(), queue.peek())], len(queue)
    assert got == (["b", "a"], 1), (f"a (HIGH) was removed, and another a (LOW) was put, behind b (NORMAL): ([get(), "
                                    f"peek()], len) is {got}, expected (['b', 'a'], 1). A dead entry must not count")
    assert queue.get() is new, "get() must return the new request with id 'a', which is the one that waits"
    assert len(queue) == 0 and new not in queue, "all requests have left, but the queue is not empty"


@pytest.mark.points(1)
def test_task_4_a_removed_request_can_be_put_again_or_come_back(lab):
    queue, clock = make_queue(lab, rate=0.25)
    a, b, c = put_all(queue, request("a"), request("b"), request("c"))
    for again in (queue.put, queue.requeue, queue.put):
        queue.remove(a)
        again(a)
    got = len(queue), drain(queue)
    assert got == (3, ["b", "c", "a"]), (f"a, b, c are equals; a was removed and put, removed and requeued, removed "
                                         f"and put: (length, order of get()) is {got}, expected (3, ['b', 'c', 'a'])")
    put_all(queue, *(request(name, NORMAL, 0.0) for name in "abc"))
    queue.requeue(queue.get())
    quick = deferring(queue, "put", "remove")
    for i in range(40):
        each = request(f"gone {i}", LOW, 0.0)
        quick.put(each)
        quick.remove(each)
    flush(quick)
    got = drain(queue)
    assert got == ["a", "b", "c"], (
        f"a, b, c are equals; a was served and came back, before its equals. Then 40 others were put and removed, one "
        f"by one: get() returned {got}, expected ['a', 'b', 'c']. When the heap is rebuilt, each request keeps its "
        "place")


def assert_empty_again_and_again(lab):
    """Check that few dead entries are left of requests that were put and removed while no other request waited."""
    queue, _ = make_queue(lab)
    before = num_objects(queue, but=(Request,))
    quick = deferring(queue, "put", "remove")
    for i in range(150):
        each = request(f"aborted {i}", LOW, i / 8)
        quick.put(each)
        quick.remove(each)
    flush(quick)
    after = num_objects(queue, but=(Request,))
    assert after <= before + 300, (
        f"150 requests were put and removed, one by one, and no other request waited. The queue consisted of {before} "
        f"objects before, and of {after} after. An entry is 4 or 5 objects. Rebuild the heap when there are more than "
        "8 more dead entries than live ones (up to 16 is fine), even when none is live")
    assert len(queue) == 0, f"150 requests were put and removed, but len(queue) is {len(queue)}"


@pytest.mark.points(1)
@pytest.mark.inside("the objects of a queue can be counted only in the process of the queue")
def test_task_4_dead_entries_do_not_pile_up(lab):
    assert_empty_again_and_again(lab)
    queue, clock = make_queue(lab)
    put_all(queue, *(request(f"first {i}", HIGH) for i in range(3)))  # these stay in front of the dead entries
    before = num_objects(queue, but=(Request,))
    quick = deferring(queue, "put", "remove")
    for i in range(420):
        clock.now_s += 0.125
        each = request(f"aborted {i}", LOW, clock.now_s)
        quick.put(each)
        quick.remove(each)
        if i < 300 or i % 5:
            continue
        quick.peek()
        after = num_objects(queue, but=(Request,))
        assert after <= before + 300, (
            f"3 requests wait, and {i + 1} others were put and removed, one by one. The queue consisted of {before} "
            f"objects before, and of {after} after. An entry is 4 or 5 objects. Entries behind the first three never "
            "reach the front, so rebuild the heap when there are more than 8 more dead entries than live ones (up to "
            "16 is fine)")
    assert drain(queue) == ["first 0", "first 1", "first 2"], "the remaining requests must keep their order"


@pytest.mark.points(1)
@pytest.mark.inside("the objects of a queue can be counted only in the process of the queue")
def test_task_4_no_more_are_dead_than_wait(lab):
    queue, _ = make_queue(lab)
    requests = [request(f"r{i}", NORMAL, i / 8) for i in range(400)]
    put_many(queue, requests)
    assert_holds(queue, 400)
    while len(requests) > 100:
        quick = deferring(queue, "remove")
        for each in requests[-30:]:  # from behind the others, so no dead entry ever reaches the front
            quick.remove(each)
        quick.peek()
        del requests[-30:]
        assert_holds(queue, len(requests))
        fresh, _ = make_queue(lab)
        put_many(fresh, [request(each.request_id, NORMAL, each.arrival_time) for each in requests])
        worn, expected = num_objects(queue, but=(Request,)), num_objects(fresh, but=(Request,))
        assert worn <= 2 * expected + 100, (
            f"{len(requests)} requests wait. A queue into which only they were put consists of {expected} objects. A "
            f"queue into which 400 were put, and from which {400 - len(requests)} were removed, consists of {worn} "
            "objects, expected at most twice that number plus 100: when there are more than 8 more dead entries than "
            "live ones (up to 16 is fine), rebuild the heap from the live ones")


@pytest.mark.points(3)
def test_task_4_remove_does_not_search_and_keeps_the_order(lab):
    queue, clock, requests = counted_queue(lab)
    leaving = random.Random(45).sample(range(NUM_WAITING), NUM_WAITING * 3 // 4)
    assert_looks_at_few("`request in queue`", lambda each: each in queue, [(requests[i],) for i in leaving[:9]])
    assert_looks_at_few("remove(request)", queue.remove, [(requests[i],) for i in leaving[:9]])
    counted("remove(request)", queue.remove, [(requests[i],) for i in leaving[9:]], clock,
            "do not search for the entry, leave it dead, and rebuild the heap only when half of it is dead")
    staying = [each for i, each in enumerate(requests) if i not in leaving]
    expected = sorted(staying, key=lambda each: (each.priority + each.arrival_time * 0.125, each.arrival_time))
    got = drain(queue)
    wrong = next((i for i, each in enumerate(expected) if got[i:i + 1] != [each.request_id]), None)
    assert wrong is None and len(got) == len(expected), (
        f"{len(leaving)} of {NUM_WAITING} requests were removed, and {len(expected)} stay. get() returned {len(got)} "
        f"requests, and the first wrong one has index {wrong}. After entries were taken out, "
        "heapify the list again")


# ---- Task 5: iterate


@pytest.mark.points(3)
def test_task_5_iteration_is_in_the_order_of_service(lab):
    rng = random.Random(46)
    queue, clock = make_queue(lab)
    requests = [request(f"r{i}", rng.choice(PRIORITIES), rng.randrange(40) / 4) for i in range(30)]
    put_all(queue, *requests)
    for each in requests[:8]:
        queue.remove(each)
    clock.now_s = 10.0
    names = [each.request_id for each in queue]
    assert len(queue) == 22, f"22 requests waited, and after iterating {len(queue)} do: iterating must remove nothing"
    served = drain(queue)
    assert names == served, (f"iterating over the queue gave {names}, then get() returned {served}. A heap's list is "
                             "not sorted, only its first entry is sure to be in place; and dead entries must not "
                             "appear")


@pytest.mark.points(1)
def test_task_5_the_queue_may_change_during_an_iteration(lab):
    queue, _ = make_queue(lab)
    put_all(queue, *(request(f"r{i:02}") for i in range(20)))
    seen = []
    for each in queue:
        seen.append(each.request_id)
        queue.remove(each)
        if len(seen) % 5 == 0:
            queue.put(request(f"new {len(seen)}"))
    assert seen == [f"r{i:02}" for i in range(20)], (f"each of 20 requests was removed when the loop reached it; the "
                                                     f"loop saw {seen}. It must go over the requests that waited at "
                                                     "its start")
    got = drain(queue)
    expected = ["new 5", "new 10", "new 15", "new 20"]
    assert got == expected, f"four requests were put during the loop; now {got} wait, expected {expected}"


@pytest.mark.points(1)
def test_task_5_an_iterator_shows_the_requests_that_waited_when_it_was_made(lab):
    queue, _ = make_queue(lab)
    a, b, c = put_all(queue, *(request(name) for name in "abc"))
    before_the_first = iter(queue)
    queue.remove(b)
    queue.put(request("d", HIGH))
    got = [each.request_id for each in before_the_first]
    assert got == ["a", "b", "c"], (
        f"a, b, c waited when iter(queue) was called. Then b was removed and d was put, and only then the loop "
        f"started. It saw {got}, expected ['a', 'b', 'c']: the requests at the moment of the call. A generator looks "
        "at the queue only when its first element is asked for")
    half_way = iter(queue)
    first = next(half_way).request_id
    queue.remove(c)
    got = [first, *(each.request_id for each in half_way)]
    assert got == ["d", "a", "c"], (
        f"d, a, c waited when iter(queue) was called, and c was removed after d was seen: the loop saw {got}, expected "
        "['d', 'a', 'c']: the call decides which requests are seen")


class NaiveQueue:
    """A naive model of the queue. It computes all effective priorities again at every get: slow but clearly correct."""

    def __init__(self, rate, clock):
        self.rate, self.clock, self.requests = rate, clock, []

    def ranked(self):
        def rank(each):
            waited_s = self.clock() - each.arrival_time
            return each.priority - waited_s * self.rate, each.arrival_time
        return sorted(self.requests, key=rank)  # sorted is stable: equals keep the order of the list


@pytest.mark.points(5)
@pytest.mark.parametrize("rate", [0.0, 0.125, 0.5])
def test_task_5_random_traffic_as_the_naive_queue_has_it_and_within_the_bound(lab, rate):
    for seed in range(5):
        rng = random.Random(seed)
        queue, clock = make_queue(lab, rate)
        naive, served, removed, num_new = NaiveQueue(rate, clock), [], [], 0
        for step in range(120):
            where = f"rate {rate}, seed {seed}, step {step}, {clock.now_s} s"
            dice = rng.random()
            if dice < 0.5:
                each = removed.pop(rng.randrange(len(removed))) if removed and rng.random() < 0.5 else None
                if each is None:
                    each = request(f"r{num_new}", rng.choice(PRIORITIES))
                    num_new += 1
                elif rng.random() < 0.5:  # put its id again, with another request; otherwise put the same request
                    each = request(each.request_id, rng.choice(PRIORITIES))
                queue.put(each)
                naive.requests.append(each)
            elif dice < 0.75 and naive.requests:
                expected = naive.ranked()[0]
                got = queue.get()
                assert got is expected, (
                    f"{where}: get() returned {got.request_id}, but base - waited * rate of all waiting requests is "
                    f"{[(r.request_id, r.priority - (clock.now_s - r.arrival_time) * rate) for r in naive.ranked()]}")
                naive.requests.remove(got)
                overtaken = [other for other in naive.requests if other.arrival_time < got.arrival_time]
                for other in overtaken if rate else ():
                    until_s = other.arrival_time + other.priority / rate
                    assert got.arrival_time < until_s, (
                        f"{where}: {got.request_id} arrived at {got.arrival_time} s and was served before "
                        f"{other.request_id}, base {other.priority:d}, which arrived at {other.arrival_time} s: only "
                        f"requests that arrive before {until_s} s may overtake it")
                served.append(got)
            elif dice < 0.85 and served:
                back = served.pop(rng.randrange(len(served)))
                queue.requeue(back)
                naive.requests.insert(0, back)
            elif naive.requests:
                gone = rng.choice(naive.requests)
                queue.remove(gone)
                naive.requests.remove(gone)
                removed.append(gone)
            clock.now_s += rng.choice([0, 0, 0.25, 1.5])
            got, expected = [each.request_id for each in listed(queue)], [each.request_id for each in naive.ranked()]
            assert got == expected, f"{where}: the queue contains {got}, the naive one {expected}"
            assert len(queue) == len(expected), f"{where}: len is {len(queue)}, but {len(expected)} requests wait"
