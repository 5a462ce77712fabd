"""Lab 2.4, tests that find bugs. Your tests run on right pools and on wrong pools, and must catch each wrong pool."""

import random
import re
import traceback
from pathlib import Path

import pytest

from course import gauges
from course.lab.load_module import load_file

POOLS = load_file(Path(__file__).with_name("wrong_pools.py"))
#: The order is the same each time, so that a student can study a failure. The grader uses another order.
SALT = gauges.salt()
#: In the grader, a wrong pool counts as caught only if it is caught again in this number of further orders. Two of six
#: runs use the wrong pool, so a test that fails in two random runs picks exactly these two once in fifteen times.
NUM_FURTHER_ORDERS = 4 if SALT else 0
#: The number of rounds per test on the right pools, to show that the test keeps no state. A round runs the test twice
#: on each of the two right pools, so there are forty runs in total.
NUM_TIMES_ON_RIGHT = 10
#: The message of a test that is not written yet.
STUB = re.compile(r"Task (\d+): ")
#: For a task's first survivor, the message explains for at most this number of tests why they do not count. The tests
#: of task 5 explain it for all.
MAX_COMPLAINTS = 2


class Outcomes:
    """The results of one of the student's tests, which runs ``num_times`` on both right pools and on one wrong pool.

    Without a wrong pool, the test runs twice as often on the right pools instead.
    """

    def __init__(self, test, name, wrong=None, turn=0, num_times=2):
        self.test, self.name, self.stub = test, name, None
        #: For each run on the wrong pool, whether the test failed.
        self.on_wrong = []
        #: A right pool → for each run on it, why the test did not pass, or "" if it passed.
        self.on_right = {}
        order = [*POOLS.RIGHT, *([wrong] if wrong else POOLS.RIGHT)] * num_times
        seed = f"{name} {wrong and wrong.name} {SALT} {turn}"
        random.Random(seed).shuffle(order)  # a test cannot know which pool it gets
        for kind in order:
            why, has_failed = self.run(kind)
            if kind in POOLS.RIGHT:
                self.on_right.setdefault(kind, []).append(why)
            else:
                self.on_wrong.append(has_failed)

    def run(self, kind):
        """Return why the test did not pass on a fresh pool, or "" if it passed; and whether that is a failure."""
        try:
            self.test(POOLS.hand_out(kind))
        except pytest.skip.Exception as error:
            return f"it was skipped ({error})", False
        except (Exception, SystemExit, pytest.fail.Exception) as error:
            if isinstance(error, NotImplementedError) and STUB.match(str(error)):
                self.stub = error
            return reason(error), True
        return "", False

    @property
    def counts(self):
        return self.stub is None and not any(why for whys in self.on_right.values() for why in whys)

    @property
    def catches(self):
        return self.counts and all(self.on_wrong)

    def catches_again(self, wrong):
        return all(Outcomes(self.test, self.name, wrong, turn + 1).catches for turn in range(NUM_FURTHER_ORDERS))

    @property
    def complaint(self):
        """The reason why the test does not count."""
        failed = {kind: [why for why in whys if why] for kind, whys in self.on_right.items() if any(whys)}
        kind, whys = next(iter(failed.items()))
        if len(whys) < len(self.on_right[kind]):
            return (f"{self.name} sometimes passes and sometimes fails on the same right pool, which {kind.story}: "
                    f"{whys[0]}. A test must give the same result every time, and keep no state between runs")
        if len(failed) < len(POOLS.RIGHT):
            return (f"{self.name} fails on one right pool, which {kind.story}, but not on the other: {whys[0]}. "
                    "It requires something that is not promised")
        return f"{self.name} fails on every right pool: {whys[0]}"


def reason(error):
    """Describe what was raised, and where in the student's file. An assert there may have no message."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    mine = [frame for frame in frames if frame.filename == frames[0].filename] if frames else []
    text = str(error).strip().split("\n")[0] or (mine[-1].line if mine else "")
    place = f" ({Path(mine[-1].filename).name}:{mine[-1].lineno})" if mine else ""
    return f"{type(error).__name__}: {text}{place}"


def outcomes(lab, wrong=None, num_times=2):
    """Yield the outcomes of all tests in the student's file. Fail if there are none."""
    names = [name for name in dir(lab) if name.startswith("test_") and callable(getattr(lab, name))]
    assert names, "there is no function test_…(pools) in your file"
    for name in names:
        yield Outcomes(getattr(lab, name), name, wrong, num_times=num_times)


def raise_stub(all_outcomes, *tasks):
    """Raise the NotImplementedError of a test of these tasks, if one is not written yet."""
    stubs = [each.stub for each in all_outcomes if each.stub and int(STUB.match(str(each.stub))[1]) in tasks]
    if stubs:
        raise min(stubs, key=str).with_traceback(None)


def is_caught(lab, wrong):
    return any(each.catches for each in outcomes(lab, wrong))


def assert_caught(lab, name):
    """Check that a test that counts fails on the wrong pool with this name."""
    __tracebackhide__ = True  # the message is enough
    wrong = POOLS.WRONG[name]
    seen = []
    for each in outcomes(lab, wrong):
        if each.catches and each.catches_again(wrong):
            return
        seen.append(each)
    raise_stub(seen, wrong.task)
    num_counted = sum(each.counts for each in seen)
    advice = f"\nIs there a promise in the docstring of task {wrong.task} that none of your tests tries?"
    raise AssertionError(f"survives: {wrong}.\nYou have {len(seen)} tests, {num_counted} of them count, and none of "
                         "these catches the pool." + who_does_not_count(lab, wrong, seen)
                         + (advice if wrong.is_sealed else ""))


def who_does_not_count(lab, wrong, seen):
    """Name the tests that do not count, and for the first survivor of a task also say why."""
    others = [each for each in seen if not each.counts and not each.stub]
    siblings = [kind for kind in POOLS.WRONG.values() if kind.task == wrong.task]
    if not others:
        return ""
    if not all(is_caught(lab, kind) for kind in siblings[:siblings.index(wrong)]):
        return (f"\nDoes not count: {', '.join(each.name for each in others)}. "
                f"The message of the first survivor of task {wrong.task} says why.")
    return ("".join(f"\nDoes not count: {each.complaint}." for each in others[:MAX_COMPLAINTS])
            + (f"\n{len(others) - MAX_COMPLAINTS} more do not count." if others[MAX_COMPLAINTS:] else ""))


# ---- Task 1


@pytest.mark.points(2)
def test_task_1_lowest_number_first_is_caught(lab):
    assert_caught(lab, "LowestNumberFirst")


@pytest.mark.points(2)
def test_task_1_keeping_the_last_block_is_caught(lab):
    assert_caught(lab, "KeepsTheLastOne")


@pytest.mark.points(2)
def test_task_1_less_than_nothing_is_caught(lab):
    assert_caught(lab, "LessThanNothing")


# ---- Task 2


@pytest.mark.points(2)
def test_task_2_queueing_backwards_is_caught(lab):
    assert_caught(lab, "Backwards")


@pytest.mark.points(2)
def test_task_2_a_double_free_is_caught(lab):
    assert_caught(lab, "ShrugsAtADoubleFree")


@pytest.mark.points(2)
def test_task_2_a_double_free_with_another_error_is_caught(lab):
    assert_caught(lab, "AnotherError")


@pytest.mark.points(2)
def test_task_2_a_double_free_in_one_call_is_caught(lab):
    assert_caught(lab, "LooksAtEachBlockAlone")


@pytest.mark.points(3)
def test_task_2_the_sealed_pool_is_caught(lab):
    assert_caught(lab, "EveryBlockOnce")


# ---- Task 3


@pytest.mark.points(2)
def test_task_3_an_owned_block_among_the_free_is_caught(lab):
    assert_caught(lab, "LeavesItAmongTheFree")


@pytest.mark.points(2)
def test_task_3_the_first_to_leave_is_caught(lab):
    assert_caught(lab, "FirstToLeaveTakesAll")


@pytest.mark.points(3)
def test_task_3_the_sealed_pool_is_caught(lab):
    assert_caught(lab, "TakesAnotherOut")


# ---- Task 4


@pytest.mark.points(2)
def test_task_4_forgetting_too_early_is_caught(lab):
    assert_caught(lab, "ForgetsWhatIsFree")


@pytest.mark.points(2)
def test_task_4_forgetting_too_late_is_caught(lab):
    assert_caught(lab, "FindsWhatIsGone")


@pytest.mark.points(2)
def test_task_4_the_lost_twin_is_caught(lab):
    assert_caught(lab, "OneTwinGoesBothGo")


@pytest.mark.points(2)
def test_task_4_looking_that_owns_is_caught(lab):
    assert_caught(lab, "LookingIsOwning")


@pytest.mark.points(3)
def test_task_4_the_sealed_pool_is_caught(lab):
    assert_caught(lab, "AHitIsForgotten")


# ---- Task 5


@pytest.mark.points(2)
def test_task_5_freeing_half_of_it_is_caught(lab):
    assert_caught(lab, "FreesUntilItStumbles")


@pytest.mark.points(2)
def test_task_5_caching_half_of_it_is_caught(lab):
    assert_caught(lab, "CachesUntilItStumbles")


@pytest.mark.points(3)
def test_task_5_the_sealed_pool_is_caught(lab):
    assert_caught(lab, "PutsBackInAnotherOrder")


# ---- Task 5, your tests themselves


@pytest.mark.points(2)
def test_task_5_your_tests_pass_on_right_pools(lab):
    seen = list(outcomes(lab, num_times=NUM_TIMES_ON_RIGHT))
    raise_stub(seen, 1, 2, 3, 4, 5)
    bad = [each.complaint for each in seen if not each.counts]
    assert not bad, ("a test that does not pass on every right pool every time does not count:\n"
                     + "\n".join(bad))
    assert any(is_caught(lab, wrong) for wrong in POOLS.WRONG.values() if wrong.task), (
        f"your tests pass on the right pools, but also on all {len(POOLS.WRONG)} wrong pools: a test that checks "
        "nothing finds nothing")


@pytest.mark.points(2)
def test_task_5_each_of_your_tests_catches_something(lab):
    seen = list(outcomes(lab))
    raise_stub(seen, 1, 2, 3, 4, 5)
    idle = [each.name for each in seen if each.counts
            and not any(Outcomes(each.test, each.name, wrong).catches for wrong in POOLS.WRONG.values())]
    assert not idle, (f"these tests fail on none of the {len(POOLS.WRONG)} wrong pools, so they are worth nothing "
                      f"here: {', '.join(idle)}. What would a pool have to do to make them fail?")
    bad = [each.name for each in seen if not each.counts]
    assert not bad, f"these tests do not count, so they catch nothing: {', '.join(bad)}"
