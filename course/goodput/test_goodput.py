"""Tests of lab 4.4's arena, its traces, the policies with which a policy is compared, the bound, and the score."""

import itertools
import json
import random
import sys
from functools import cache
from types import SimpleNamespace

import pytest

from course.core.failure_messages import why_failed
from course.goodput import arena, record
from course.goodput.arena import Arrival, IllegalPlan, Limits, Trace, num_attended, num_good, play, serve
from course.goodput.bound import most_good, window
from course.goodput.engine import EngineScheduler
from course.goodput.score import CONTEST, StaticBatches, score, table, total
from course.goodput.traces import make_trace, recorded
from course.lab.bare_starter import bare_starter
from course.lab.lab import discover, find_lab
from course.lab.load_module import load_file
from mini_vllm.kv_cache import KVCacheManager
from mini_vllm.request import Request, SamplingParams
from mini_vllm.scheduler import Scheduler
from mini_vllm.simulation import Simulation

LAB = find_lab("4.4", discover())
LIMITS = Limits(num_blocks=6, block_size=4, max_num_seqs=2, max_num_batched_tokens=8, step_us=1000, token_us=100,
                attended_per_us=1, max_overtaking_us=5000)
SHORT, LONG = Arrival(0, 3, 2, 4, 9000, 3000), Arrival(0, 10, 2, 4, 9000, 3000)


def machine(**changes):
    return Limits(**{**LIMITS._asdict(), **changes})


class Script:
    """Returns prepared plans, one per call, and notes what it was told."""

    def __init__(self, *plans):
        self.plans, self.told = list(plans), []

    def plan(self, now_us, requests):
        self.told.append((now_us, requests))
        return self.plans.pop(0)


def run(arrivals, *plans, limits=LIMITS):
    """Run the plans and return what the policy was told, and the outcomes as far as there are any."""
    script = Script(*plans)
    steps = play(Trace("t", limits, tuple(arrivals)), lambda limits: script)
    return list(itertools.islice(steps, len(plans))), script.told


# ---- the arena


def test_a_step_takes_its_time_and_makes_tokens():
    steps, told = run([SHORT], ({0: 2}, []), ({0: 1}, []), ({0: 1}, []))
    # 3 tokens in two chunks attend to 1 + 2 and to 3 tokens, the fourth to 4.
    assert [(step.start_us, step.end_us) for step in steps] == [(0, 1203), (1203, 2306), (2306, 3410)]
    assert [(state.num_tokens, state.num_computed_tokens, state.num_blocks, state.first_token_at_us)
            for _, (state,) in told] == [(3, 0, 0, -1), (3, 2, 1, -1), (4, 3, 1, 2306)]
    assert steps[-1].ended == [0]
    outcome, = serve(Trace("t", LIMITS, (SHORT,)), lambda limits: Script(({0: 2}, []), ({0: 1}, []), ({0: 1}, [])))
    assert (outcome.first_token_at_us, outcome.last_token_at_us) == (2306, 3410)


@pytest.mark.parametrize("first_us, more_us, is_good", [(2306, 1104, True), (2305, 1104, False), (2306, 1103, False)])
def test_a_request_is_good_if_it_meets_both_times(first_us, more_us, is_good):
    arrival = Arrival(0, 3, 2, 4, first_us, more_us)
    plans = ({0: 2}, []), ({0: 1}, []), ({0: 1}, [])
    assert num_good(Trace("t", LIMITS, (arrival,)), lambda limits: Script(*plans)) == is_good


def test_a_policy_hears_of_a_request_when_it_has_arrived_and_an_idle_machine_waits():
    arrivals = [SHORT, SHORT._replace(arrival_us=1), SHORT._replace(arrival_us=9999)]
    steps, told = run(arrivals, ({0: 3}, []), ({0: 1, 1: 3}, []), ({1: 1}, []), ({2: 1}, []))
    assert [(now_us, [state.request_id for state in states]) for now_us, states in told] == [
        (0, [0]), (1306, [0, 1]), (1306 + 1400 + 10, [1]), (9999, [2])]


def test_a_preempted_request_keeps_its_output_and_computes_everything_again():
    _, told = run([SHORT], ({0: 3}, []), ({0: 1}, []), limits=machine())
    steps, told = run([SHORT, LONG], ({0: 3}, []), ({1: 5}, [0]), ({0: 4}, [1]))
    assert told[2][1][0][2:6] == (3, 4, 0, 0), "num_prompt_tokens, num_tokens, num_computed_tokens, num_blocks"
    assert steps[2].ended == [0] and steps[1].preempted == [0]


@pytest.mark.parametrize("plan, words", [
    (None, "returned None, expected a pair"),
    ({0: 1}, "expected a pair"),
    (({0: 1}, 7), "expected a pair"),
    (({7: 1}, []), "names request 7, which has not arrived or has ended; only the ids in requests may be named"),
    (({"0": 1}, []), "names request '0'"),
    (({True: 1}, []), "names request True"),
    (({0: 1}, [9]), "names request 9"),
    (({1: 0}, []), "gives request 1 0 tokens, must be a whole number from 1 to 10"),
    (({1: 11}, []), "gives request 1 11 tokens, must be a whole number from 1 to 10"),
    (({1: 1.0}, []), "gives request 1 1.0 tokens"),
    (({1: True}, []), "gives request 1 True tokens"),
    (({1: "1"}, []), "gives request 1 '1' tokens"),
    (({}, []), "computes 0 tokens, must be 1 to 8"),
    (({0: 1, 1: 8}, []), "computes 9 tokens, must be 1 to 8"),
    (({2: 1}, [1]), "preempts request 1, which holds 0 blocks"),
    (({2: 1}, [0, 0]), "preempts request 0 twice"),
    (({0: 1}, [0]), "preempts request 0 and gives it 1 tokens in the same step"),
    (({0: 1, 1: 1, 2: 1}, []), r"lets 3 requests run, at most 2 may \(max_num_seqs\)"),
])
def test_an_illegal_plan_is_refused_with_the_value_and_the_bound(plan, words):
    script = Script(({0: 3}, []), plan)
    steps = play(Trace("small", LIMITS, (SHORT, LONG, SHORT)), lambda limits: script)
    next(steps)
    with pytest.raises(IllegalPlan, match=words) as error:
        next(steps)
    assert "step 2 of 'small', at 1306 us: plan()" in str(error.value)


def test_a_request_with_one_token_left_gets_one():
    with pytest.raises(IllegalPlan, match="gives request 0 2 tokens, must be 1: it has 1 uncomputed token"):
        run([SHORT], ({0: 3}, []), ({0: 2}, []))


def test_an_error_of_a_policy_says_in_which_step_and_where_in_the_file(tmp_path):
    path = tmp_path / "starter.py"
    path.write_text("class SchedulingPolicy:\n    def __init__(self, limits):\n        pass\n\n"
                    "    def plan(self, now_us, requests):\n        return {0: 3 if now_us == 0 else {}['a']}, []\n")
    with pytest.raises(KeyError) as error:
        num_good(Trace("small", LIMITS, (SHORT,)), load_file(path).SchedulingPolicy)
    assert why_failed(error.value, path) == "KeyError: 'a' (starter.py:6 in plan), in step 2 of 'small', at 1306 us"


def test_an_error_that_takes_no_note_is_passed_on():
    def plan(now_us, requests):
        error = ValueError("odd")
        error.__notes__ = 3
        raise error

    with pytest.raises(ValueError) as error:
        num_good(Trace("small", LIMITS, (SHORT,)), lambda limits: SimpleNamespace(plan=plan))
    assert why_failed(error.value, LAB.starter) == "ValueError: odd"


def test_a_plan_must_fit_into_the_pool():
    limits = machine(num_blocks=4)
    with pytest.raises(IllegalPlan, match="needs 6 blocks, the pool has 4"):
        run([LONG, LONG], ({0: 8}, []), ({1: 8}, []), ({0: 2, 1: 1}, []), limits=limits)


def test_a_request_may_not_be_overtaken_for_ever():
    arrivals = [LONG, SHORT._replace(arrival_us=5000), SHORT._replace(arrival_us=5001)]
    steps, _ = run([SHORT, *arrivals], ({0: 1}, []), ({0: 1}, []), ({0: 1}, []), ({0: 1}, []), ({2: 1}, []),
                   limits=machine(token_us=3000))
    assert steps[-1].num_scheduled_tokens == {2: 1}, "5000 us later is allowed"
    with pytest.raises(IllegalPlan, match="admits request 3 while request 1 waits, which arrived 5001 us earlier; at "
                                          "most 5000 us are allowed"):
        run([SHORT, *arrivals], ({0: 1}, []), ({0: 1}, []), ({0: 1}, []), ({0: 1}, []), ({3: 1}, []),
            limits=machine(token_us=3000))


def test_requests_that_are_preempted_over_and_over_end_the_run():
    class Swings:
        def __init__(self, limits):
            pass

        def plan(self, now_us, requests):
            running = [state.request_id for state in requests if state.num_blocks]
            return {(running or [1])[0] ^ 1: 1}, running

    with pytest.raises(IllegalPlan, match="after 136 steps not all requests have ended: 4 steps per token"):
        num_good(Trace("t", LIMITS, (LONG, LONG, SHORT, SHORT)), Swings)


@pytest.mark.parametrize("changes, arrival, words", [
    ({}, SHORT._replace(num_prompt_tokens=0), "0 prompt tokens"),
    ({}, SHORT._replace(num_output_tokens=5), "5 output tokens.*at most 4"),
    ({"num_blocks": 1}, SHORT, "it may need 2 blocks, the pool has 1"),
    ({"num_blocks": 0}, SHORT, "num_blocks is 0, which is too small"),
    ({"step_us": 0, "token_us": 0}, SHORT, "the clock would hardly move"),
    ({}, SHORT._replace(arrival_us=-1), "arrival_us is -1, must be at least 0"),
])
def test_a_trace_that_cannot_be_served_is_refused(changes, arrival, words):
    with pytest.raises(ValueError, match=words):
        Trace("t", machine(**changes), (arrival,))


def test_what_calls_a_policy_has_no_variable_with_the_trace():
    seen = []

    class Looks(StaticBatches):
        def plan(self, now_us, requests):
            frame = sys._getframe(1)
            while frame:
                if frame.f_code.co_filename == arena.__file__:
                    seen.append(frame.f_code.co_name)
                    assert not any(isinstance(value, Trace) or value == (SHORT, LONG)
                                   for value in frame.f_locals.values())
                frame = frame.f_back
            return super().plan(now_us, requests)

    num_good(Trace("t", LIMITS, (SHORT, LONG)), Looks)
    assert set(seen) == {"step", "_steps", "_outcomes", "num_good"}


# ---- the engine as a policy


def test_the_engine_makes_its_own_plans():
    """Compare with the project's simulation, whose clock is set to the arena's for requests that all arrive at once."""
    limits = machine(num_blocks=9, max_num_seqs=3)
    rng = random.Random(1)
    num_preempted = 0
    for _ in range(30):
        arrivals = tuple(Arrival(0, rng.randint(1, 14), rng.randint(1, 12), 12, 1000, 1000) for _ in range(6))
        steps = list(play(Trace("t", limits, arrivals), EngineScheduler))
        kv_cache = KVCacheManager(limits.num_blocks + 1, limits.block_size, enable_caching=False)
        simulation = Simulation(Scheduler(kv_cache, limits.max_num_seqs, limits.max_num_batched_tokens))
        for number, each in enumerate(arrivals):
            simulation.add(Request(str(number), [number] * each.num_prompt_tokens,
                                   SamplingParams(max_tokens=each.num_output_tokens)))
        expected = simulation.run().steps
        assert [({str(key): n for key, n in step.num_scheduled_tokens.items()}, [str(key) for key in step.preempted])
                for step in steps] == [(step.num_scheduled_tokens, step.preempted) for step in expected]
        num_preempted += sum(len(step.preempted) for step in steps)
    assert num_preempted > 10, "these pools are too large"


# ---- the traces


def test_traces_are_the_same_every_time_and_of_the_promised_size():
    for name in CONTEST.names:
        for seed in (None, 7):
            trace = make_trace(name, seed)
            assert trace == make_trace(name, seed) and len(trace.arrivals) == 100, name
        assert trace.arrivals != make_trace(name, 8).arrivals and trace.arrivals != make_trace(name).arrivals
        assert trace.name == f"{name} of seed 7" and make_trace(name).name == name
        assert trace.limits == make_trace(name).limits or name.startswith("random")
    with pytest.raises(ValueError, match="no trace 'nobody'"):
        make_trace("nobody")


@pytest.mark.parametrize("name", ["chats", "mixed"])
def test_what_is_published_of_a_recording_tells_nothing_of_the_outputs_of_unseen_traces(name):
    """Guess the output of an unseen request from the published ones with the same prompt, or the same max_tokens."""
    published = make_trace(name).arrivals
    loads = []
    for seed in range(5):
        unseen = make_trace(name, seed).arrivals
        for field in ("num_prompt_tokens", "max_tokens"):
            known = {getattr(each, field): each.num_output_tokens for each in published}
            num_right = sum(known.get(getattr(each, field)) == each.num_output_tokens < each.max_tokens
                            for each in unseen)
            assert num_right <= 10, f"{num_right} of 100 output lengths follow from {field}"
        assert not {each.arrival_us for each in unseen[:-1]} & {each.arrival_us for each in published[20:-1]}
        loads.append(sum(each.num_prompt_tokens + each.num_output_tokens for each in unseen))
    load = sum(each.num_prompt_tokens + each.num_output_tokens for each in published)
    assert 0.9 * load < min(loads) and max(loads) < 1.1 * load, "about the same load"


def test_recordings_are_of_the_engine_and_as_long_as_the_traces():
    for name in ("chats", "mixed"):
        rows = recorded(name)
        assert len(rows) == 100 and rows == sorted(rows) and all(row[2] <= row[3] for row in rows)
        text = json.loads((record.Path(arena.__file__).parent / "recorded" / f"{name}.json").read_text("utf-8"))
        assert text["command"].startswith(f"python -m course.goodput.record {name}") and text["model"] == "tiny-tales"


@pytest.mark.parametrize("kind", ["chats", "mixed"])
def test_a_recording_can_be_made(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "BEGIN_S", 0.0)
    monkeypatch.setattr(record, "THINK_S", 0.0)
    monkeypatch.setattr(record, "WISHES", {"a word": ([], 3)})
    record.main([kind, str(tmp_path / "a.json"), "--requests", "3", "--users", "2", "--rate", "900", "--seed", "3"])
    found = json.loads((tmp_path / "a.json").read_text("utf-8"))
    assert len(found["requests"]) == 3 and found["columns"][0] == "arrival_us"
    assert all(1 <= output <= most for _, _, output, most in found["requests"])


@pytest.mark.parametrize("option", ["--requests", "--users", "--rate"])
def test_a_recording_of_nothing_is_refused(option, tmp_path, capsys):
    with pytest.raises(SystemExit):
        record.main(["chats", str(tmp_path / "a.json"), option, "0"])
    assert f"{option} is 0" in capsys.readouterr().err


# ---- the bound


def tiny_traces(num_traces, seed):
    """Generate traces of two or three tiny requests on tiny machines, on which every choice can be tried."""
    rng = random.Random(seed)
    for number in range(num_traces):
        limits = Limits(num_blocks=rng.randint(3, 6), block_size=2, max_num_seqs=rng.randint(1, 3),
                        max_num_batched_tokens=3, step_us=60, token_us=30, attended_per_us=1,
                        max_overtaking_us=1 << 40)
        now_us, arrivals = 0, []
        for _ in range(rng.randint(2, 3)):
            now_us += rng.choice((0, 0, 50))
            num_prompt, num_output = rng.randint(1, 3), rng.randint(1, 2)
            arrivals.append(Arrival(now_us, num_prompt, num_output, num_output, rng.randint(100, 300),
                                    rng.randint(90, 150)))
        yield Trace(f"tiny {number}", limits, tuple(arrivals))


def best_by_trying(trace):
    """Return the most good requests of any policy that knows the future: try every plan, and to wait for an arrival."""
    limits, arrivals = trace.limits, trace.arrivals
    horizon_us = max(each.arrival_us + each.max_first_token_us + (each.num_output_tokens - 1) * each.max_token_us
                     for each in arrivals)

    @cache
    def best(now_us, states):
        """Return the most from now on. A state: computed tokens, tokens, first token at; None if it has ended."""
        if now_us > horizon_us or not any(states):
            return 0
        there = [i for i, state in enumerate(states) if state and arrivals[i].arrival_us <= now_us]
        later = [each.arrival_us for each in arrivals if each.arrival_us > now_us]
        found = best(min(later), states) if later else 0
        for kept in itertools.product((True, False), repeat=sum(states[i][0] > 0 for i in there)):
            marks = iter(kept)
            computed = {i: states[i][0] if states[i][0] > 0 and next(marks) else 0 for i in there}
            for counts in itertools.product(*(range(states[i][1] - computed[i] + 1) for i in there)):
                found = max(found, after(now_us, states, computed, dict(zip(there, counts))))
        return found

    def after(now_us, states, computed, counts):
        total = sum(counts.values())
        ends = {i: computed[i] + counts[i] for i in counts}
        if not 1 <= total <= limits.max_num_batched_tokens:
            return 0
        if sum(end > 0 for end in ends.values()) > limits.max_num_seqs:
            return 0
        if sum(-(-end // limits.block_size) for end in ends.values()) > limits.num_blocks:
            return 0
        now_us += limits.step_us + limits.token_us * total
        now_us += sum(num_attended(computed[i], n) for i, n in counts.items()) // limits.attended_per_us
        new, num_good = list(states), 0
        for i, end in ends.items():
            _, num_tokens, first_us = states[i]
            if counts[i] and end == num_tokens:
                num_tokens, first_us = num_tokens + 1, now_us if first_us < 0 else first_us
            new[i] = end, num_tokens, first_us
            if num_tokens == arrivals[i].num_prompt_tokens + arrivals[i].num_output_tokens:
                new[i] = None
                num_good += arena.Outcome(arrivals[i], first_us, now_us).is_good
        return num_good + best(now_us, tuple(new))

    return best(0, tuple((0, each.num_prompt_tokens, -1) for each in arrivals))


def test_no_policy_is_better_than_the_bound_even_if_it_knows_the_future():
    num_exact = num_interesting = 0
    for trace in tiny_traces(30, seed=3):
        best, bound = best_by_trying(trace), most_good(trace)
        assert best <= bound, f"{trace}: trying all choices finds {best} good requests, the bound is {bound}"
        for policy_class in (StaticBatches, EngineScheduler):
            assert num_good(trace, policy_class) <= best
        num_exact += best == bound
        num_interesting += bound < len(trace.arrivals)
    assert num_exact > 15 and num_interesting > 8, f"{num_exact} and {num_interesting} of 30: the bound says too little"


def test_the_bound_adds_up_misses_of_disjoint_intervals():
    """Check two rushes, far apart: in each, two of four requests fit."""
    limits = machine(num_blocks=40, max_num_seqs=1, attended_per_us=1000)
    rush = [Arrival(0, 8, 1, 4, 3700, 1000)] * 4  # a prompt of 8 tokens takes 1801 us
    later = [each._replace(arrival_us=90_000) for each in rush]
    assert most_good(Trace("one", limits, tuple(rush))) == 2
    assert most_good(Trace("two", limits, tuple([*rush, *later]))) == 4
    hopeless = rush[0]._replace(arrival_us=99_000, max_first_token_us=1799)
    assert most_good(Trace("three", limits, tuple([*rush, *later, hopeless]))) == 4


def test_a_request_is_charged_no_more_than_the_steps_that_it_is_in():
    """Play traces, and compare the charges of each request with those of all steps of the run."""
    for trace in map(make_trace, ("chats", "mixed", "random 3")):
        steps = list(play(trace, EngineScheduler))
        for is_per_token in (False, True):
            charged = sum(window(each, trace.limits, is_per_token).all_us for each in trace.arrivals)
            assert charged <= sum(step.end_us - step.start_us for step in steps)


# ---- the score


@cache
def scored():
    """Score lab 4.4's solution: one line per trace."""
    return score(load_file(LAB.solution).SchedulingPolicy)


def test_nobody_is_above_the_bound():
    for line in scored():
        assert line.naive < line.reference < line.yours <= line.bound <= 100, line.trace.name


def test_the_score_has_a_line_for_every_trace_and_the_page_shows_it():
    lines = scored()
    assert [line.trace.name for line in lines] == ["chats", "mixed", "bursts", "documents", "deadlines", "overload", *(
        f"random {i}" for i in range(4))]
    assert CONTEST.landmarks(lines)["reference"] + 40 < total(lines) < 100
    readme = LAB.readme.read_text(encoding="utf-8")
    assert table(lines) in readme, f"the table on the lab's page is out of date:\n{table(lines)}"


def test_the_page_shows_the_timelines(capsys):
    see = load_file(LAB.see)
    assert see.main([str(LAB.solution)]) == 0
    shown = capsys.readouterr().out
    readme = LAB.readme.read_text(encoding="utf-8")
    block = readme.partition("deadlines, static batches")[2].partition("```")[0]
    rows = [row for row in block.splitlines()[1:] if row and row != "…"]
    assert len(rows) > 30 and all(row.rstrip() in shown for row in rows), "the pictures on the page are out of date"


def test_the_bare_starter_says_when_each_token_is_due():
    text = " ".join(bare_starter(LAB).split())
    assert "The first one is due ``max_first_token_us`` after the arrival. The one after k output tokens is due" in text


# ---- the lab's tests


def knows_by_heart(published):
    """Return the module of a policy that is the course's own on this trace, known by its first request, else naive."""
    good, first = load_file(LAB.solution).SchedulingPolicy, published.arrivals[0]

    class KnowsByHeart:
        def __init__(self, limits):
            self.limits, self.policy = limits, None

        def plan(self, now_us, requests):
            if self.policy is None:
                is_known = (requests[0].arrival_us, requests[0].num_prompt_tokens) == first[:2]
                self.policy = (good if is_known else StaticBatches)(self.limits)
            return self.policy.plan(now_us, requests)

    return SimpleNamespace(SchedulingPolicy=KnowsByHeart)


def test_a_policy_that_knows_the_published_traces_by_heart_passes_no_step_and_keeps_no_score(monkeypatch):
    tests, published, kept = load_file(LAB.tests), make_trace("bursts"), []
    heart = knows_by_heart(published)
    honest = SimpleNamespace(SchedulingPolicy=load_file(LAB.solution).SchedulingPolicy)
    for name, value in (("_played", {}), ("unseen_seeds", [1000]), ("names", ["bursts"])):
        monkeypatch.setattr(tests.CONTEST, name, value, raising=False)
    for check in (tests.test_task_3_bursts_half_of_the_way,
                  lambda lab: tests.test_task_3_traces_that_no_file_has_seen(lab, kept.append)):
        with pytest.raises(AssertionError, match="tuned to the published traces does not count"):
            check(heart)
        assert tests.CONTEST.played(heart, "bursts") == tests.CONTEST.played(honest, "bursts") and kept == []
        check(honest)
    assert len(kept) == 1
