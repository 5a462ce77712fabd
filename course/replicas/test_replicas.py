"""The simulated fleet: every request is served, wrong routers are told so, and no router beats the bound."""

import pytest

from course.lab.lab import discover, find_lab
from course.replicas.arena import BLOCK_SIZE, Arrival, BadRouter, Outage, Trace, answer, play, serve
from course.replicas.score import CONTEST, bound_s, round_robin, score, table, total
from course.replicas.traces import KINDS, fixed_traces, make_trace
from mini_vllm.router import CacheAwareRouter, FirstBlockRouter, RoundRobinRouter


def prompt(first, num_tokens=64):
    return tuple((first + 7 * number) % 900 + 1 for number in range(num_tokens))


def made(*arrivals, num_replicas=2, num_blocks=20, outages=()):
    return Trace("made", num_replicas, num_blocks, tuple(Arrival(*each) for each in arrivals), outages)


def first_block(replicas=(), *, max_blocks):
    return FirstBlockRouter(replicas)


def test_a_request_alone_takes_the_time_of_its_steps():
    (request,) = play(made((1.0, prompt(0), 3)), round_robin)
    assert request.first_token_s == pytest.approx(0.010 + 64 * 0.001) and request.num_cached_tokens == 0
    assert request.replica == "replica-0" and request.num_prompt_tokens == 64


def test_a_prefix_is_cached_where_it_was_computed():
    trace = made((0.0, prompt(0) + prompt(5, 8), 2), (1.0, prompt(0) + prompt(9, 8), 2), (2.0, prompt(0) + (7,), 2))
    assert [request.num_cached_tokens for request in play(trace, round_robin)] == [0, 0, 64]
    assert [request.num_cached_tokens for request in play(trace, first_block)] == [0, 64, 64]


def test_requests_wait_for_each_other():
    alone, waiting = play(made((0.0, prompt(0, 640), 1), (0.001, prompt(300, 640), 1), num_replicas=1, num_blocks=40),
                          round_robin)
    assert alone.first_token_s == pytest.approx(0.650) and waiting.first_token_s == pytest.approx(0.649 + 0.650)


def test_the_router_is_told_what_ended_and_not_before():
    loads = []

    class Watching(RoundRobinRouter):
        def __init__(self, replicas=(), *, max_blocks):
            super().__init__(replicas)

        def route(self, request_id, blocks):
            loads.append(dict(self.loads))
            return super().route(request_id, blocks)

    # The first request ends at 0.074 s + 0.011 s.
    serve(made((0.0, prompt(0), 2), (0.084, prompt(1), 2), (0.086, prompt(2), 2), num_replicas=1), Watching)
    assert loads == [{"replica-0": 0}, {"replica-0": 1}, {"replica-0": 1}]


def test_requests_of_a_replica_that_leaves_start_again_elsewhere():
    trace = made((0.0, prompt(0, 320), 40), (0.1, prompt(300, 320), 2), outages=(Outage("replica-0", 0.2, 0.3),))
    first, second = play(trace, round_robin)
    assert first.replica == second.replica == "replica-1"
    assert first.first_token_s > 0.2 + 0.330, "it starts again at 0.2 s"


def test_a_first_token_that_came_before_the_outage_counts():
    trace = made((0.0, prompt(0), 100), outages=(Outage("replica-0", 0.5, 0.6),))
    (request,) = play(trace, round_robin)
    assert request.replica == "replica-1" and request.first_token_s == pytest.approx(0.074)


def test_a_replica_comes_back_with_an_empty_cache():
    trace = made((0.0, prompt(0), 1), (2.0, prompt(0) + (5,), 1), num_replicas=2,
                 outages=(Outage("replica-0", 1.0, 1.5), Outage("replica-1", 1.6, 3.0)))
    assert [(request.replica, request.num_cached_tokens) for request in play(trace, round_robin)] == [
        ("replica-0", 0), ("replica-0", 0)]


@pytest.mark.parametrize("wrong", ["replica-9", None, 0, "replica-1"])
def test_a_router_that_names_no_replica_is_told(wrong):
    class Wrong(RoundRobinRouter):
        def __init__(self, replicas=(), *, max_blocks):
            super().__init__(replicas)

        def route(self, request_id, blocks):
            return wrong

    with pytest.raises(BadRouter, match=r"route\('r0', …\) returned .*, must be one of replica-0$"):
        serve(made((1.0, prompt(0), 1), outages=(Outage("replica-1", 0.5, 2.0),)), Wrong)


@pytest.mark.parametrize("returned", [None, [], ["r1", "r0"], ["r0"], ("r0", "r1")])
def test_a_router_that_loses_requests_is_told(returned):
    class Wrong(RoundRobinRouter):
        def __init__(self, replicas=(), *, max_blocks):
            super().__init__(replicas)

        def remove_replica(self, replica):
            super().remove_replica(replica)
            return returned

    trace = made((0.0, prompt(0), 90), (0.1, prompt(1), 90), num_replicas=1, outages=(Outage("replica-0", 0.5, 2.0),))
    with pytest.raises(BadRouter, match=r"remove_replica\('replica-0'\) returned .*, must be \['r0', 'r1'\]"):
        serve(trace, Wrong)


def test_an_answer_is_what_the_model_computes():
    """Hit the blocks of the answer with a later turn that repeats it, except the block of its last token, which is
    never computed."""
    text = prompt(0, 3 * BLOCK_SIZE - 60)
    longer = (*text, *answer(text, 60), 3)
    first, second = play(made((0.0, text, 60), (9.0, longer, 1), num_replicas=1), round_robin)
    assert second.num_cached_tokens == 2 * BLOCK_SIZE


# ---- bound and score


def test_the_bound_of_a_small_trace_by_hand():
    """Check: the first computes 64 tokens; the second finds them and computes 10; the third shares 32 with both."""
    trace = made((0.0, prompt(0), 1), (1.0, prompt(0) + prompt(500, 10), 1), (2.0, prompt(0, 32) + prompt(600, 20), 1))
    assert bound_s(trace) == pytest.approx((0.074 + 0.020 + 0.030) / 3)


def test_a_bound_never_counts_what_comes_later_or_the_whole_prompt():
    trace = made((0.0, prompt(0), 1), (1.0, prompt(0), 1))
    assert bound_s(trace) == pytest.approx((0.074 + 0.011) / 2), "the last token is always computed"


def test_requests_of_an_outage_may_find_what_arrived_before_it():
    arrivals = (0.0, prompt(0), 1), (1.0, prompt(0), 1)
    assert bound_s(made(*arrivals, outages=(Outage("replica-0", 2.0, 3.0),))) == pytest.approx(0.011)


@pytest.mark.parametrize("kind", KINDS)
def test_no_router_beats_the_bound(kind):
    for seed in range(2):
        trace = make_trace(kind, seed)
        for router in (round_robin, first_block, CacheAwareRouter):
            assert serve(trace, router).first_token_s > bound_s(trace)


def test_the_traces_are_the_same_every_time_and_the_seeds_differ():
    assert [trace.name for trace in fixed_traces()] == list(KINDS)
    for kind, trace in zip(KINDS, fixed_traces()):
        assert make_trace(kind, 5) == make_trace(kind, 5) and make_trace(kind, 5).name == f"{kind} of seed 5"
        assert make_trace(kind, 5).arrivals != make_trace(kind, 6).arrivals != trace.arrivals
        assert list(trace.arrivals) == sorted(trace.arrivals, key=lambda arrival: arrival.at_s)


def test_the_total_is_a_way_from_round_robin_to_the_bound():
    lines = score(round_robin)
    assert total(lines) == 0.0 and CONTEST.landmarks(lines)["naive"] == 0.0
    assert total(score(CacheAwareRouter)) == CONTEST.landmarks(lines)["reference"] > 75
    perfect = lines[0].naive._replace(first_token_s=lines[0].bound)
    assert CONTEST.way(lines[0], perfect) == 1.0


def test_the_table_of_the_page_is_that_of_the_command():
    readme = find_lab("6.3", discover()).readme.read_text(encoding="utf-8")
    assert table(score(None)) in readme, f"the table on the lab's page is out of date:\n{table(score(None))}"
