"""The queue with aging, against a naive one that computes every effective priority again; and the bound on waiting."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.conftest import examples
from mini_vllm.request import Priority, Request
from mini_vllm.request_queue import PriorityQueueWithAging
from mini_vllm.simulation import Clock


def make(name, priority=Priority.NORMAL, arrival_time=None):
    return Request(name, [1], priority=priority, arrival_time=arrival_time)


def drain(queue):
    return [queue.get().request_id for _ in range(len(queue))]


def test_a_request_gains_by_waiting():
    clock = Clock()
    queue = PriorityQueueWithAging(aging_rate=0.1, clock=clock)
    low = make("low", Priority.LOW)
    queue.put(low)
    clock.now_s = 19.0
    queue.put(make("high at 19", Priority.HIGH))
    clock.now_s = 21.0
    queue.put(make("high at 21", Priority.HIGH))
    assert queue.effective_priority(low) == pytest.approx(2 - 2.1)
    assert drain(queue) == ["high at 19", "low", "high at 21"]


def test_who_comes_back_keeps_its_age_and_goes_before_its_equals():
    clock = Clock()
    queue = PriorityQueueWithAging(clock=clock)
    for name in ("a", "b", "c"):
        queue.put(make(name))
    a, b = queue.get(), queue.get()
    clock.now_s = 5.0
    queue.put(make("d"))
    queue.requeue(b)  # the later one is preempted first
    queue.requeue(a)
    assert (a.arrival_time, b.arrival_time) == (0.0, 0.0)
    assert drain(queue) == ["a", "b", "c", "d"]


def test_what_is_refused_changes_nothing():
    queue = PriorityQueueWithAging(clock=Clock())
    with pytest.raises(IndexError, match="the queue is empty"):
        queue.get()
    with pytest.raises(IndexError, match="the queue is empty"):
        queue.peek()
    queue.put(make("a"))
    for call, argument, message in ((queue.put, make("a"), "'a' is in the queue already"),
                                    (queue.requeue, make("a"), "'a' is in the queue already"),
                                    (queue.requeue, make("b"), "'b' has no arrival time"),
                                    (queue.remove, make("b"), "'b' is not in the queue"),
                                    (queue.remove, make("a"), "'a' is not in the queue"),
                                    (queue.put, make("c", arrival_time=math.nan), "arrival_time is nan"),
                                    (queue.requeue, make("c", arrival_time=math.inf), "arrival_time is inf")):
        with pytest.raises(ValueError, match=message):
            call(argument)
    assert drain(queue) == ["a"]


@pytest.mark.parametrize("rate", [-0.1, math.inf, math.nan, "fast", None, True])
def test_a_rate_that_cannot_be_is_refused(rate):
    with pytest.raises(ValueError, match="aging_rate is .* must be priority levels per second"):
        PriorityQueueWithAging(aging_rate=rate)


# ---- random streams

OPERATIONS = st.lists(st.tuples(st.sampled_from(["put", "put", "get", "requeue", "remove"]), st.sampled_from(Priority),
                                st.integers(0, 40), st.integers(0, 10**6)), max_size=80)


@settings(max_examples=examples(100))
@given(OPERATIONS, st.sampled_from([0.0, 0.125, 0.25, 1.0]))
def test_it_serves_as_the_naive_queue_does(operations, rate):
    """Compare with the naive queue, with times and rates that are exact in binary, so that equal means equal."""
    clock = Clock()
    queue = PriorityQueueWithAging(rate, clock)
    naive: list[Request] = []  # in the order of equals
    served: list[Request] = []
    for number, (operation, priority, waited_s, pick) in enumerate(operations):
        clock.now_s += waited_s
        if operation == "put":
            request = make(str(number), priority)
            queue.put(request)
            naive.append(request)
        elif operation == "requeue" and served:
            request = served.pop(pick % len(served))
            queue.requeue(request)
            naive.insert(0, request)
        elif operation == "remove" and naive:
            request = naive.pop(pick % len(naive))
            queue.remove(request)
        elif operation == "get" and naive:
            first = min(naive, key=lambda request: (request.priority - (clock.now_s - request.arrival_time) * rate,
                                                    request.arrival_time))
            assert queue.peek() is first and queue.get() is first
            naive.remove(first)
            served.append(first)
        assert len(queue) == len(naive) and set(queue) == set(naive)
    assert len(queue._heap) <= 2 * len(queue) + 9


@settings(max_examples=examples(60))
@given(st.data())
def test_nobody_is_overtaken_by_who_comes_later_than_the_bound(data):
    """Check any stream: a request that arrives after ``priority / rate`` seconds is served later."""
    rate = data.draw(st.sampled_from([0.125, 0.5, 2.0]))
    clock = Clock()
    queue = PriorityQueueWithAging(rate, clock)
    watched = make("watched", data.draw(st.sampled_from(Priority)))
    bound_s = watched.priority / rate
    for i in range(data.draw(st.integers(0, 5))):
        queue.put(make(f"before {i}", data.draw(st.sampled_from(Priority))))
    num_allowed = len(queue)
    queue.put(watched)
    num_before = 0
    while True:
        clock.now_s += data.draw(st.sampled_from([0.25, 1.0, 3.0]))
        for _ in range(data.draw(st.integers(1, 3))):  # they arrive faster than they are served
            queue.put(make(f"{clock.now_s} {len(queue)} {num_before}", Priority.HIGH))
            num_allowed += clock.now_s < bound_s
        served = queue.get()
        if served is watched:
            break
        assert served.arrival_time < bound_s or served.arrival_time == 0, f"{served} overtook after {bound_s} s"
        num_before += 1
    assert num_before <= num_allowed
