"""Lab 4.4, goodput. Tasks 1 and 2 have exact results; each step of Task 3 is a separate test with a target."""

import contextlib
import itertools
import random

import pytest

from course.goodput.bound import most_good
from course.goodput.score import CONTEST
from course.goodput.score import StaticBatches as Naive
from course.goodput_arena import Arrival, IllegalPlan, Limits, RequestState, Trace, num_good, play, serve


def machine(num_blocks=40, max_num_seqs=4, attended_per_us=2, max_overtaking_us=20_000_000):
    return Limits(num_blocks, 16, max_num_seqs, max_num_batched_tokens=64, step_us=5_000, token_us=500,
                  attended_per_us=attended_per_us, max_overtaking_us=max_overtaking_us)


LIMITS = machine()


def asked(request_id, num_prompt_tokens, max_tokens=32, num_computed_tokens=0, num_output_tokens=0, num_blocks=None,
          arrival_us=0, first_token_at_us=None, max_first_token_us=1_000_000, max_token_us=40_000):
    """Make the state of a request. By default it waits; a request with output got its first token at 100,000 us."""
    if num_blocks is None:
        num_blocks = -(-num_computed_tokens // LIMITS.block_size)
    if first_token_at_us is None:
        first_token_at_us = 100_000 if num_output_tokens else -1
    return RequestState(request_id, arrival_us, num_prompt_tokens, num_prompt_tokens + num_output_tokens,
                        num_computed_tokens, num_blocks, max_tokens, max_first_token_us, max_token_us,
                        first_token_at_us)


def after(request, n, makes_token=True):
    """Return the state of a request after a step that computed ``n`` more of its tokens."""
    num_computed = request.num_computed_tokens + n
    num_tokens = request.num_tokens + (makes_token and num_computed == request.num_tokens)
    return asked(request.request_id, request.num_prompt_tokens, request.max_tokens, num_computed,
                 num_tokens - request.num_prompt_tokens)


def planned(policy, requests, now_us=0):
    """Return the plan as a dict and a list. Fail with a sentence if it is anything else."""
    got = policy.plan(now_us, tuple(requests))
    assert isinstance(got, (tuple, list)) and len(got) == 2 and isinstance(got[0], dict), (
        f"plan() returned {got!r}, expected a pair: a dict, request id → number of tokens, and a list of ids")
    return dict(got[0]), list(got[1])


def check_plan(policy, requests, expected, why, now_us=0):
    got, preempted = planned(policy, requests, now_us)
    told = ", ".join(f"{each.request_id}: {each.num_computed_tokens} of {each.num_tokens} tokens computed"
                     for each in requests)
    assert list(got.items()) == list(expected.items()) and preempted == [], (
        f"plan() for the requests {{{told}}} returned {got} and preempts {preempted}, expected {expected} and no "
        f"preemption: {why}")


@contextlib.contextmanager
def legal_plans(limits=None):
    """Turn an illegal plan into a test failure with the same message, followed by the limits."""
    try:
        yield
    except IllegalPlan as error:
        pytest.fail(f"{error}. The machine: {limits}" if limits else str(error), pytrace=False)


def good_of(policy_class, traced):
    with legal_plans(traced.limits):
        return num_good(traced, policy_class)


def small_traces(seed, num_traces, num_requests=16, max_overtaking_us=None):
    """Generate traces for small machines: a pool that is hardly larger than a request, few seats, a small budget."""
    rng = random.Random(seed)
    for number in range(num_traces):
        limits = Limits(num_blocks=rng.randint(8, 16), block_size=rng.choice((1, 4, 16)),
                        max_num_seqs=rng.randint(1, 6),
                        max_num_batched_tokens=rng.choice((4, 16, 64)), step_us=5_000, token_us=500,
                        attended_per_us=2, max_overtaking_us=max_overtaking_us or rng.choice((0, 100_000, 400_000)))
        room = limits.num_blocks * limits.block_size
        now_us, arrivals = 0, []
        for _ in range(num_requests):
            now_us += rng.choice((0, rng.randint(0, 100_000)))
            num_prompt = rng.randint(1, rng.choice((room // 4, room - 1)))
            most = min(room - num_prompt, 20)
            arrivals.append(Arrival(now_us, num_prompt, rng.randint(1, most), most,
                                    rng.choice((30_000, 300_000, 3_000_000)), rng.choice((6_000, 15_000, 60_000))))
        yield Trace(f"small {number} of seed {seed}", limits, tuple(arrivals))


# ---- Task 1


@pytest.mark.points(2)
def test_task_1_a_batch_is_the_first_requests(lab):
    requests = [asked(i, 10) for i in range(3, 9)]
    check_plan(lab.StaticBatches(LIMITS), requests, {3: 10, 4: 10, 5: 10, 6: 10},
               "the first four in the order of arrival, because max_num_seqs is 4")


@pytest.mark.points(2)
def test_task_1_a_request_reserves_blocks_for_its_longest_output(lab):
    limits = machine(num_blocks=12)
    check_plan(lab.StaticBatches(limits), [asked(0, 20, 60), asked(1, 16, 80), asked(2, 1, 1)], {0: 20, 1: 16, 2: 1},
               "80, 96 and 2 tokens reserve 5, 6 and 1 blocks of 16, and the pool has 12")
    check_plan(lab.StaticBatches(limits), [asked(0, 20, 60), asked(1, 16, 81), asked(2, 1, 1)], {0: 20, 1: 16},
               "80 and 97 tokens reserve 5 and 7 of the 12 blocks, and nothing is left for request 2")


@pytest.mark.points(2)
def test_task_1_the_first_that_does_not_fit_ends_the_batch(lab):
    limits = machine(num_blocks=12)
    requests = [asked(0, 10, 90), asked(1, 60, 40), asked(2, 1, 1)]
    check_plan(lab.StaticBatches(limits), requests, {0: 10},
               "request 0 reserves 7 of 12 blocks and request 1 needs 7; request 2 would fit, but comes after it")


@pytest.mark.points(2)
def test_task_1_the_budget_is_given_out_in_the_order_of_arrival(lab):
    policy = lab.StaticBatches(LIMITS)
    requests = [asked(0, 40), asked(1, 50), asked(2, 5)]
    check_plan(policy, requests, {0: 40, 1: 24}, "the budget of 64 tokens ends inside the second prompt")
    requests = [after(requests[0], 40), after(requests[1], 24), requests[2]]
    check_plan(policy, requests, {0: 1, 1: 26, 2: 5}, "request 0 has one uncomputed token now, and request 1 has 26")


@pytest.mark.points(2)
def test_task_1_the_next_batch_waits_for_the_last_of_this_one(lab):
    policy = lab.StaticBatches(LIMITS)
    first = [asked(i, 5) for i in range(4)]
    check_plan(policy, [*first, asked(4, 7)], {0: 5, 1: 5, 2: 5, 3: 5}, "the first four are the batch")
    left = after(first[2], 5)
    waiting = [asked(4, 7), asked(5, 9)]
    check_plan(policy, [left, *waiting], {2: 1}, "request 2 has not ended, so requests 4 and 5 wait, although seats "
               "are free")
    check_plan(policy, waiting, {4: 7, 5: 9}, "all requests of the first batch have ended, so the next batch begins")


@pytest.mark.points(1)
def test_task_1_two_policies_have_two_batches(lab):
    policy = lab.StaticBatches(LIMITS)
    requests = [asked(0, 5), asked(1, 6)]
    check_plan(policy, requests[:1], {0: 5}, "request 0 is the batch")
    check_plan(lab.StaticBatches(LIMITS), requests, {0: 5, 1: 6}, "a new policy has no batch yet")
    check_plan(policy, [after(requests[0], 5), requests[1]], {0: 1}, "the first policy still serves request 0")


@pytest.mark.points(2)
def test_task_1_it_plans_what_the_naive_policy_plans(lab):
    # This test shows when the requests end, so it plays no unseen trace.
    for each in [CONTEST.trace("overload", 1), *small_traces(seed=1, num_traces=20, max_overtaking_us=1 << 40)]:
        with legal_plans():
            got = [(step.num_scheduled_tokens, step.preempted) for step in play(each, lab.StaticBatches)]
        expected = [(step.num_scheduled_tokens, step.preempted) for step in play(each, Naive)]
        for number, (one, other) in enumerate(itertools.zip_longest(got, expected)):
            assert one == other, (f"step {number + 1} of trace {each.name!r}: StaticBatches plans {one}, the naive "
                                  f"policy of the arena {other} (course.goodput.score.StaticBatches)")


# ---- Task 2


@pytest.mark.points(1)
@pytest.mark.parametrize("num_computed, num_blocks, n, expected", [
    (0, 0, 1, 1), (0, 0, 16, 1), (0, 0, 17, 2), (30, 2, 2, 0), (30, 2, 3, 1), (32, 2, 1, 1), (32, 2, 40, 3)])
def test_task_2_blocks_beyond_those_that_it_holds(lab, num_computed, num_blocks, n, expected):
    request = asked(0, 100, num_computed_tokens=num_computed, num_blocks=num_blocks)
    got = lab.num_new_blocks(LIMITS, request, n)
    assert got == expected, (f"num_new_blocks for {n} tokens of a request with {num_computed} computed ones in "
                             f"{num_blocks} blocks of 16 is {got}, expected {expected}")


@pytest.mark.points(2)
def test_task_2_the_time_of_a_step(lab):
    decoding = asked(0, 30, num_computed_tokens=30, num_output_tokens=1)
    prompt = asked(1, 60, num_computed_tokens=10)
    for parts, expected, why in (
            ([(decoding, 1)], 5516, "5000 + 500, and the token attends to 31 tokens: 15.5 us, rounded up"),
            ([(prompt, 3)], 6518, "5000 + 3 * 500, and the tokens attend to 11 + 12 + 13 = 36 tokens: 18 us"),
            ([], 5000, "a step without tokens takes step_us")):
        got = lab.step_time_us(LIMITS, parts)
        assert got == expected, f"step_time_us is {got}, expected {expected}: {why}"


@pytest.mark.points(2)
def test_task_2_the_attention_is_rounded_once_per_step(lab):
    parts = [(asked(i, 31, num_computed_tokens=30), 1) for i in range(3)]
    got = lab.step_time_us(LIMITS, parts)
    assert got == 6547, (f"step_time_us of three tokens that attend to 31 tokens each is {got}, expected 5000 + 3 * "
                         "500 + 47: 93 tokens take 46.5 us, rounded up once")


@pytest.mark.points(2)
def test_task_2_it_is_the_time_of_the_machine(lab):
    states = []

    class Notes(Naive):
        def plan(self, now_us, requests):
            states.append({request.request_id: request for request in requests})
            return super().plan(now_us, requests)

    for each in small_traces(seed=5, num_traces=6, max_overtaking_us=1 << 40):
        states.clear()
        for step, requests in zip(list(play(each, Notes)), states):
            parts = [(requests[request_id], n) for request_id, n in step.num_scheduled_tokens.items()]
            got = lab.step_time_us(each.limits, parts)
            assert got == step.end_us - step.start_us, (
                f"step_time_us of {step.num_scheduled_tokens} is {got}; on the machine of trace {each.name!r} that "
                f"step takes {step.end_us - step.start_us}")


@pytest.mark.points(1)
def test_task_2_the_first_token_is_due_after_the_arrival(lab):
    for num_computed in (0, 7):
        request = asked(0, 50, num_computed_tokens=num_computed, arrival_us=300, max_first_token_us=2_000)
        got = lab.due_us(request)
        assert got == 2_300, (f"due_us is {got} for a request that arrived at 300 and may wait 2000 for its first "
                              "token, expected 2300")


@pytest.mark.points(2)
def test_task_2_later_tokens_are_due_after_the_first(lab):
    for num_output, expected in ((1, 120_000), (2, 140_000), (7, 240_000)):
        request = asked(0, 50, num_computed_tokens=49 + num_output, num_output_tokens=num_output, max_token_us=20_000)
        got = lab.due_us(request)
        assert got == expected, (f"due_us is {got} for a request with {num_output} output tokens, the first at "
                                 f"100,000, and 20,000 per token, expected {expected}: the mean time between tokens "
                                 "counts, wherever the first token was early or late")


@pytest.mark.points(2)
def test_task_2_slack_is_what_is_left_when_it_runs_alone(lab):
    prompt = asked(0, 20, max_first_token_us=50_000)
    decoding = asked(1, 30, num_computed_tokens=30, num_output_tokens=1)
    for request, now_us, expected, why in (
            (prompt, 10_000, 24_895, "due at 50,000; alone it takes 5000 + 20 * 500 + 210 / 2"),
            (decoding, 120_000, 14_484, "due at 140,000; its next token takes 5516"),
            (decoding, 140_000, -5_516, "the token is due now")):
        got = lab.slack_us(LIMITS, request, now_us)
        assert got == expected, f"slack_us at {now_us} is {got}, expected {expected}: {why}"


@pytest.mark.points(2)
def test_task_2_a_long_prompt_takes_several_steps(lab):
    limits = machine(attended_per_us=1000)
    request = asked(0, 150, num_computed_tokens=10, max_first_token_us=100_000)
    got = lab.slack_us(limits, request, 0)
    # Steps of 64, 64 and 12 tokens, which attend to 2720, 6816 and 1734 tokens.
    expected = 100_000 - (3 * 5_000 + 140 * 500 + 3 + 7 + 2)
    assert got == expected, (f"slack_us of a request with 140 uncomputed tokens is {got}, expected {expected}: alone "
                             "it takes three steps, of 64, 64 and 12 tokens, and the attention of each is rounded up")


# ---- Task 3: legal plans


@pytest.mark.points(3)
def test_task_3_every_plan_is_legal_on_small_machines(lab):
    for each in small_traces(seed=3, num_traces=40):
        got, most = good_of(lab.SchedulingPolicy, each), most_good(each)
        assert got <= most, f"{got} requests of trace {each.name!r} are good, above the bound of {most}"


@pytest.mark.points(1)
def test_task_3_a_request_that_fills_the_pool_ends(lab):
    limits = machine(num_blocks=8, max_num_seqs=2)
    arrivals = [Arrival(0, 120, 8, 8, 100_000, 10_000), Arrival(0, 1, 127, 127, 50_000, 10_000),
                Arrival(10_000, 128 - 20, 20, 20, 500_000, 30_000)]
    with legal_plans():
        outcomes = serve(Trace("the whole pool", limits, tuple(arrivals)), lab.SchedulingPolicy)
    assert [each.arrival for each in outcomes] == arrivals, "three requests, each of which may fill the pool, must end"


@pytest.mark.points(2)
def test_task_3_no_request_waits_for_ever(lab):
    """Check an overload of short requests; the first request is long, and late from the start."""
    limits = machine(max_overtaking_us=1_000_000)
    rng = random.Random(4)
    arrivals = [Arrival(0, 400, 20, 20, 10_000, 10_000)]
    arrivals += [Arrival(20_000 * i + rng.randrange(5_000), rng.randint(20, 60), 4, 8, 400_000, 40_000)
                 for i in range(1, 250)]
    with legal_plans():
        outcomes = serve(Trace("a stream", limits, tuple(arrivals)), lab.SchedulingPolicy)
    num_before = sum(each.last_token_at_us < outcomes[0].first_token_at_us for each in outcomes)
    late = max((each.arrival.arrival_us for each in outcomes
                if each.first_token_at_us <= outcomes[0].first_token_at_us - 1_000_000), default=0)
    assert num_before < len(arrivals) - 50, (
        f"a request with a prompt of 400 tokens got its first token after {outcomes[0].first_token_us} us, when "
        f"{num_before} of {len(arrivals) - 1} later requests had ended, one of which arrived at {late} us: a request "
        "that is late already must be served, too")


@pytest.mark.points(2)
def test_task_3_the_same_calls_get_the_same_plans(lab):
    one = CONTEST.trace("deadlines", 1)
    one = Trace("the first 40 of deadlines", one.limits, one.arrivals[:40])
    with legal_plans():
        expected = list(play(one, lab.SchedulingPolicy))
    other_trace = CONTEST.trace("overload", 1)
    other = play(Trace("the first 40 of overload", other_trace.limits, other_trace.arrivals[:40]), lab.SchedulingPolicy)
    with legal_plans():
        for number, got in enumerate(play(one, lab.SchedulingPolicy)):
            next(other, None)
            assert got == expected[number], (
                f"two policies got the same calls, from the first 40 requests of a trace. Step {number + 1}: the "
                f"first policy planned {expected[number].num_scheduled_tokens}, the second {got.num_scheduled_tokens}. "
                "The first ran alone. Between the calls to the second, another policy was called. The plans of a "
                "policy must depend only on its own calls: not on random numbers, nor on data shared between policies")


def check_same_until(lab, one, other, until_us, what):
    """Check that two traces get the same plans in all steps that begin before ``until_us``."""
    with legal_plans():
        runs = [itertools.takewhile(lambda step: step.start_us < until_us, play(each, lab.SchedulingPolicy))
                for each in (one, other)]
        for number, (expected, got) in enumerate(itertools.zip_longest(*runs)):
            plans = [step and (step.start_us, step.num_scheduled_tokens, step.preempted) for step in (expected, got)]
            assert plans[0] == plans[1], (
                f"{what}. Step {number + 1}: one policy plans {plans[0]}, the other {plans[1]} (start, tokens, "
                "preempted). The plans differ although the calls were the same so far: the policy uses something "
                "else, for example random numbers, data shared between policies, or knowledge of the future")


@pytest.mark.points(2)
def test_task_3_the_requests_to_come_change_nothing(lab):
    one, num_same = CONTEST.trace("overload"), 45
    until_us = one.arrivals[num_same].arrival_us
    later = [Arrival(until_us + 700_000 * i, 900 - i, 3, *each[3:])
             for i, each in enumerate(one.arrivals[num_same:num_same + 10])]
    other = Trace(one.name, one.limits, one.arrivals[:num_same] + tuple(later))
    check_same_until(lab, one, other, until_us, f"two traces begin with the same {num_same} requests of overload, and "
                     "then continue differently")


@pytest.mark.points(2)
def test_task_3_the_lengths_of_outputs_change_nothing(lab):
    limits, arrivals = CONTEST.trace("overload").limits, CONTEST.trace("overload").arrivals
    one, other = (Trace("overload, with longer outputs", limits, tuple(
        Arrival(*each[:2], num_output, *each[3:]) for each, num_output in zip(arrivals, lengths)))
        for lengths in ([60 + 37 * i % 100 for i in range(len(arrivals))], [each.max_tokens for each in arrivals]))
    with legal_plans():
        first_end_us = min(step.end_us for step in play(one, lab.SchedulingPolicy) if step.ended)
    check_same_until(lab, one, other, first_end_us, "two traces differ only in the number of output tokens, and no "
                     "request has ended yet")


# ---- Task 3: goodput


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_documents_better_than_the_engine(lab):
    CONTEST.check_step(lab, ["documents"], 0, "Better than the reference")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_documents_half_of_the_way(lab):
    CONTEST.check_step(lab, ["documents"], 0.5, "Half of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_documents_three_quarters_of_the_way(lab):
    CONTEST.check_step(lab, ["documents"], 0.75, "Three quarters of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_deadlines_better_than_the_engine(lab):
    CONTEST.check_step(lab, ["deadlines"], 0, "Better than the reference")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_deadlines_half_of_the_way(lab):
    CONTEST.check_step(lab, ["deadlines"], 0.5, "Half of the gap")


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_deadlines_three_quarters_of_the_way(lab):
    CONTEST.check_step(lab, ["deadlines"], 0.75, "Three quarters of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_overload_a_quarter_of_the_way(lab):
    CONTEST.check_step(lab, ["overload"], 0.25, "A quarter of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_overload_half_of_the_way(lab):
    CONTEST.check_step(lab, ["overload"], 0.5, "Half of the gap")


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_overload_three_quarters_of_the_way(lab):
    CONTEST.check_step(lab, ["overload"], 0.75, "Three quarters of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_the_recorded_traces_better_than_the_engine(lab):
    for name in ("chats", "mixed"):
        CONTEST.check_step(lab, [name], 0, "Better than the reference")


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_the_recorded_traces_half_of_the_way(lab):
    CONTEST.check_step(lab, ["chats", "mixed"], 0.5, "Half of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_bursts_better_than_the_engine(lab):
    CONTEST.check_step(lab, ["bursts"], 0, "Better than the reference")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_bursts_half_of_the_way(lab):
    CONTEST.check_step(lab, ["bursts"], 0.5, "Half of the gap")


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_random_traces_half_of_the_way(lab):
    CONTEST.check_step(lab, ["random 0", "random 1", "random 2"], 0.5, "Half of the gap")


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_random_traces_three_quarters_of_the_way(lab):
    CONTEST.check_step(lab, ["random 0", "random 1", "random 2"], 0.75, "Three quarters of the gap")


@pytest.mark.points(1)
def test_task_3_traces_that_no_file_has_seen(lab, keep_score):
    keep_score(CONTEST.checked_total(lab))
