"""Lab 3.5, what to forget. Tasks 1 and 2 have exact results; each step of Task 3 is a separate test with a target."""

import contextlib
import itertools
import math
import random

import pytest

from course.eviction.remembered import num_kept, remembered_keys
from course.eviction.score import CONTEST, naive, optimum, reference
from course.eviction_arena import Block, IllegalEviction, PrefixCache, Trace, num_hits, play
from course.expecting import must_raise
from course.gauges import deferring, flush


def chain(*keys):
    """Make blocks with these keys, each the child of the block before it."""
    return [Block(key, keys[i - 1] if i else None, i) for i, key in enumerate(keys)]


def roots(*keys):
    """Make unrelated blocks with these keys."""
    return [Block(key, None, 0) for key in keys]


def evicted(policy, n, calls):
    """Evict ``n`` blocks and return their keys; ``calls`` describes the earlier calls to the policy."""
    keys = []
    for _ in range(n):
        try:
            block = policy.evict()
        except NotImplementedError:
            raise
        except RuntimeError as error:
            pytest.fail(f"{calls}; evicted {keys}; then evict() raised {error!r}, but a block may be evicted",
                        pytrace=False)
        assert isinstance(block, Block), f"{calls}; evicted {keys}; then evict() returned {block!r}, expected a Block"
        keys.append(block.key)
    return keys


def free_all(policy, blocks):
    for block in blocks:
        policy.freed(block)


EQUAL = "blocks are compared by ==, so an equal object is the same block"


def equal_to(block):
    """Return an equal block that is a different object."""
    return Block(*block)


def check_hears_only_its_own_calls(policy_class, name):
    """Check that two policies do not affect each other: both get the same block, and each evicts it."""
    policy = policy_class(4)
    free_all(policy, roots(7, 3, 9))
    other = policy_class(4)
    other.freed(Block(7, None, 0))
    calls = f"one {name}(4) got freed(7), freed(3), freed(9), then a second one got freed(7)"
    got = [evicted(policy, 1, calls), evicted(other, 1, f"{calls}; the first evicted 7"),
           evicted(policy, 2, f"{calls}; each evicted 7")]
    assert got == [[7], [7], [3, 9]], (
        f"{calls}: the first evicted {got[0]}, the second {got[1]}, the first {got[2]}, expected [7], [7] and [3, 9]: "
        "the answers of a policy depend only on its own calls")


@contextlib.contextmanager
def legal_answers():
    """Turn an illegal answer of the policy into a test failure with the same message."""
    try:
        yield
    except IllegalEviction as error:
        pytest.fail(str(error), pytrace=False)


def hits_of(policy_class, traced):
    with legal_answers():
        return num_hits(traced, policy_class)


def run_of(policy_class, traced, num_requests):
    """Play the first ``num_requests`` requests of a trace and return their results."""
    with legal_answers():
        return list(itertools.islice(play(traced, policy_class), num_requests))


def first_difference(number, one, other):
    """Describe where two lists of evicted blocks for the same request differ."""
    for i, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return f"Request {number + 1}, eviction {i + 1}: the first policy evicts {a}, the second {b}"
    return f"Request {number + 1}: the first policy evicts {len(one)} blocks, the second {len(other)}"


def small_traces(seed, num_traces):
    """Generate traces for caches of 1 to 6 blocks, each with 30 requests for paths in a small random tree."""
    rng = random.Random(seed)
    for number in range(num_traces):
        num_blocks = rng.randint(1, 6)
        tree = {}  # a path of letters → its block
        requests = []
        for _ in range(30):
            path, blocks = (), []
            for _ in range(rng.randint(1, num_blocks)):
                parent = tree.get(path)
                path += (rng.randint(0, 2),)
                tree.setdefault(path, Block(len(tree), parent.key if parent else None, len(path) - 1))
                blocks.append(tree[path])
            requests.append(tuple(blocks))
        yield Trace(f"small {number} (a cache of {num_blocks})", num_blocks, requests)


# ---- Task 1


@pytest.mark.points(2)
def test_task_1_the_first_that_came_goes_first(lab):
    policy = lab.Fifo(4)
    free_all(policy, roots(7, 3, 9))
    got = evicted(policy, 2, "freed 7, 3, 9")
    policy.freed(Block(1, None, 0))
    got += evicted(policy, 2, "freed 7, 3, 9; evicted two; freed 1")
    assert got == [7, 3, 9, 1], (f"freed 7, 3, 9; evicted two; freed 1; evicted two: {got}, expected [7, 3, 9, 1]: "
                                 "first in, first out")
    check_hears_only_its_own_calls(lab.Fifo, "Fifo")


@pytest.mark.points(2)
def test_task_1_a_block_in_use_does_not_go(lab):
    policy = lab.Fifo(4)
    blocks = roots(7, 3, 9)
    free_all(policy, blocks)
    policy.taken(blocks[0])
    got = evicted(policy, 1, "freed 7, 3, 9; took 7")
    assert got == [3], f"freed 7, 3, 9; took 7: evict() gives {got[0]}, expected 3: 7 entered first, but is in use"
    policy.freed(blocks[0])
    got = evicted(policy, 1, "freed 7, 3, 9; took 7; evicted 3; freed 7")
    assert got == [7], (f"freed 7, 3, 9; took 7; evicted 3; freed 7: evict() gives {got[0]}, expected 7: it may be "
                        "evicted again, and it entered before 9")
    policy.taken(equal_to(blocks[2]))
    with must_raise(RuntimeError, "evict() after 3 and 7 were evicted and 9 was taken, as another object", EQUAL):
        policy.evict()


@pytest.mark.points(2)
def test_task_1_a_hit_does_not_change_its_place(lab):
    policy = lab.Fifo(4)
    blocks = roots(7, 3, 9)
    free_all(policy, blocks)
    for block in (blocks[0], blocks[1], blocks[0]):
        policy.taken(block)
        policy.freed(block)
    calls = "freed 7, 3, 9; took and freed 7, 3, 7 again"
    got = evicted(policy, 3, calls)
    assert got == [7, 3, 9], (f"{calls}: evicted {got}, expected [7, 3, 9]: a block enters once, and using it again "
                              "does not make it new")


@pytest.mark.points(2)
def test_task_1_what_went_and_comes_back_is_new(lab):
    policy = lab.Fifo(4)
    blocks = roots(7, 3, 9)
    free_all(policy, blocks)
    first = evicted(policy, 1, "freed 7, 3, 9")
    policy.freed(blocks[0])
    got = first + evicted(policy, 3, "freed 7, 3, 9; evicted one; freed 7")
    assert got == [7, 3, 9, 7], (f"freed 7, 3, 9; evicted one; freed 7; evicted three: {got}, expected [7, 3, 9, 7]: "
                                 "forget an evicted block together with its old place")


@pytest.mark.points(1)
def test_task_1_with_nothing_to_forget_evict_is_refused(lab):
    policy = lab.Fifo(4)
    with must_raise(RuntimeError, "Fifo(4).evict() before any block was freed"):
        policy.evict()
    block = Block(7, None, 0)
    policy.freed(block)
    policy.taken(block)
    with must_raise(RuntimeError, "evict() after freed(7) and taken(7)"):
        policy.evict()


@pytest.mark.points(2)
def test_task_1_it_has_the_hits_of_the_naive_policy(lab):
    for each in [CONTEST.trace("scan"), *small_traces(seed=1, num_traces=20)]:
        got, expected = hits_of(lab.Fifo, each), naive(each)
        assert got == expected, (f"num_hits(trace {each.name!r}, Fifo) is {got}, but first in, first out has "
                                 f"{expected} hits (course.eviction.score.naive)")


# ---- Task 2


@pytest.mark.points(2)
def test_task_2_the_tail_of_a_request_goes_first(lab):
    policy = lab.LeastRecentlyFreed(4)
    free_all(policy, reversed(chain(1, 2, 3)))
    calls = "the request 1 ─ 2 ─ 3 ended, so 3, 2, 1 were freed in this order"
    got = evicted(policy, 3, calls)
    assert got == [3, 2, 1], (
        f"{calls}: evicted {got}, expected [3, 2, 1]: evict the block that was freed longest ago")
    check_hears_only_its_own_calls(lab.LeastRecentlyFreed, "LeastRecentlyFreed")


@pytest.mark.points(2)
def test_task_2_a_hit_moves_it_to_the_end(lab):
    policy = lab.LeastRecentlyFreed(4)
    blocks = roots(7, 3, 9)
    free_all(policy, blocks)
    policy.taken(blocks[0])
    policy.freed(blocks[0])
    calls = "freed 7, 3, 9; took 7 and freed it again"
    got = evicted(policy, 3, calls)
    assert got == [3, 9, 7], f"{calls}: evicted {got}, expected [3, 9, 7]: 7 was freed last"


@pytest.mark.points(2)
def test_task_2_a_block_in_use_does_not_go(lab):
    policy = lab.LeastRecentlyFreed(4)
    blocks = roots(7, 3, 9)
    free_all(policy, blocks)
    policy.taken(blocks[1])
    calls = "freed 7, 3, 9; took 3"
    got = evicted(policy, 2, calls)
    assert got == [7, 9], f"{calls}: evicted {got}, expected [7, 9]: 3 is in use, and the others keep their order"
    with must_raise(RuntimeError, f"{calls}; evicted 7 and 9: evict()", "3 is still in use"):
        policy.evict()
    policy.freed(blocks[1])
    policy.taken(equal_to(blocks[1]))
    with must_raise(RuntimeError, "evict() after 3 was freed and then taken, as another object", EQUAL):
        policy.evict()


@pytest.mark.points(1)
def test_task_2_with_nothing_to_forget_evict_is_refused(lab):
    policy = lab.LeastRecentlyFreed(4)
    with must_raise(RuntimeError, "LeastRecentlyFreed(4).evict() before any block was freed"):
        policy.evict()
    policy.freed(Block(7, None, 0))
    first = evicted(policy, 1, "freed 7")
    assert first == [7], f"freed 7: evict() gives {first[0]}, expected 7"
    with must_raise(RuntimeError, "the second evict() after freed(7)"):
        policy.evict()


@pytest.mark.points(4)
def test_task_2_it_has_exactly_the_hits_of_the_engine(lab):
    for each in [*small_traces(seed=2, num_traces=20), CONTEST.trace("scan")]:
        got, expected = hits_of(lab.LeastRecentlyFreed, each), reference(each)
        assert got == expected, (f"num_hits(trace {each.name!r}, LeastRecentlyFreed) is {got}, but the engine has "
                                 f"{expected} hits on the same requests (course.eviction.score.reference)")


# ---- Task 3: legal answers


@pytest.mark.points(2)
def test_task_3_every_block_that_may_go_goes_once(lab):
    policy = lab.EvictionPolicy(8)
    blocks = chain(1, 2, 3) + roots(7, 8, 9)
    free_all(policy, reversed(blocks))
    for block in (blocks[0], blocks[1], blocks[3]):
        policy.taken(block)
    free_all(policy, [blocks[3], blocks[1], blocks[0]])
    calls = "freed 9, 8, 7, 3, 2, 1; took 1, 2, 7; freed 7, 2, 1"
    got = evicted(policy, 6, calls)
    assert sorted(got) == [1, 2, 3, 7, 8, 9], f"{calls}: six calls of evict() gave {got}, expected each block once"


@pytest.mark.points(1)
def test_task_3_a_block_in_use_does_not_go(lab):
    policy = lab.EvictionPolicy(6)
    blocks = roots(1, 2, 3, 4, 5, 6)
    free_all(policy, blocks)
    for block in (blocks[0], equal_to(blocks[5])):
        policy.taken(block)
    calls = "freed 1, 2, 3, 4, 5, 6; took 1 and 6 (6 as another object, Block(6, None, 0))"
    got = evicted(policy, 4, calls)
    assert sorted(got) == [2, 3, 4, 5], (f"{calls}: four calls of evict() gave {got}, expected 2, 3, 4, 5 in any "
                                         "order: 1 and 6 are in use")
    with must_raise(RuntimeError, f"{calls}; evicted {got}: evict()", EQUAL):
        policy.evict()


@pytest.mark.points(1)
def test_task_3_with_nothing_to_forget_evict_is_refused(lab):
    policy = lab.EvictionPolicy(4)
    with must_raise(RuntimeError, "EvictionPolicy(4).evict() before any block was freed"):
        policy.evict()
    blocks = roots(7, 8)
    free_all(policy, blocks)
    policy.taken(blocks[0])
    first = evicted(policy, 1, "freed 7, 8; took 7")
    assert first == [8], f"freed 7, 8; took 7: evict() gives {first[0]}, expected 8"
    with must_raise(RuntimeError, "evict() with 7 in use and 8 evicted"):
        policy.evict()


@pytest.mark.points(1)
def test_task_3_every_answer_is_legal_in_small_caches(lab):
    for each in small_traces(seed=3, num_traces=40):
        hits, best = hits_of(lab.EvictionPolicy, each), optimum(each)
        assert hits <= best, f"num_hits(trace {each.name!r}, EvictionPolicy) is {hits}, above the optimum of {best}"


@pytest.mark.points(1)
def test_task_3_every_answer_is_legal_in_the_traces_of_the_score(lab, keep_score):
    for line in (CONTEST.played(lab, name) for name in CONTEST.names):
        assert line.yours <= line.bound, (f"num_hits(trace {line.trace.name!r}, EvictionPolicy) is {line.yours}, above "
                                          f"the optimum of {line.bound}")
    keep_score(CONTEST.checked_total(lab))


@pytest.mark.points(2)
def test_task_3_the_same_calls_get_the_same_answers(lab):
    requests = CONTEST.trace("mixture").requests[:150]
    alone = PrefixCache("mixture", 60, lab.EvictionPolicy)
    with legal_answers():
        expected = [alone.serve(chain).gone for chain in requests]
    in_company = PrefixCache("mixture, with other policies at work", 60, lab.EvictionPolicy)
    for number, request in enumerate(requests):
        with legal_answers():
            if number % 10 == 0:
                other = PrefixCache("mixture, backwards", 60, lab.EvictionPolicy)
            other.serve(requests[-1 - number])
            got = in_company.serve(request).gone
        assert got == expected[number], (
            f"two policies, EvictionPolicy(60), got the same calls, from the first 150 requests of the mixture. "
            f"{first_difference(number, expected[number], got)}. The first policy ran alone. Between the calls to the "
            "second, other policies were called. The answers of a policy must depend only on its own calls")


@pytest.mark.points(2)
def test_task_3_the_requests_to_come_change_nothing(lab):
    one, num_same = CONTEST.trace("scan"), 150
    other = Trace(one.name, one.num_blocks, [*one.requests[:num_same], *reversed(one.requests[:num_same])])
    runs = [run_of(lab.EvictionPolicy, each, num_same) for each in (one, other)]
    for number, (expected, got) in enumerate(zip(*runs)):
        assert got.gone == expected.gone, (
            f"two traces begin with the same {num_same} requests of the scan, and then continue differently. "
            f"{first_difference(number, expected.gone, got.gone)}. Until then the two policies, EvictionPolicy"
            f"({one.num_blocks}), had got the same calls. A policy must not know future requests")


def assert_evicts(lab):
    """Check that the policy evicts at all: a policy that ignores its calls would also remember little."""
    policy = lab.EvictionPolicy(4)
    free_all(policy, roots(7, 9))
    got = evicted(policy, 2, "freed 7, 9")
    assert sorted(got) == [7, 9], f"freed 7, 9; evicted two: {got}, expected both, in either order"


def pairs_of_blocks(policy, keys, num_blocks, num_cached=0):
    """Request new blocks with these keys, two at a time; repeat every third request at once."""
    policy = deferring(policy, "freed", "taken", "evict")
    for key in keys[::2]:
        parent, child = chain(key, key + 1)
        while num_cached + 2 > num_blocks:
            policy.evict()
            num_cached -= 1
        num_cached += 2
        free_all(policy, [child, parent])
        if key % 3 == 0:
            policy.taken(parent)
            policy.taken(child)
            free_all(policy, [child, parent])
    flush(policy)
    return num_cached


@pytest.mark.points(2)
@pytest.mark.inside("the data of a policy can be counted only in the policy's own process")
def test_task_3_it_remembers_a_bounded_number_of_blocks(lab):
    assert_evicts(lab)
    num_blocks, keys = 25, range(10**9, 10**9 + 2000)
    policy = lab.EvictionPolicy(num_blocks)
    pairs_of_blocks(policy, keys, num_blocks)
    num_remembered = len(remembered_keys(policy, set(keys)))
    assert num_remembered <= 4 * num_blocks, (
        f"EvictionPolicy({num_blocks}) got 1000 requests of two blocks each. It remembers {num_remembered} of the 2000 "
        f"blocks, in its own variables or those of its file; at most {4 * num_blocks} are allowed, including evicted "
        "blocks: a server runs for weeks")


@pytest.mark.points(1)
@pytest.mark.inside("the data of a policy can be counted only in the policy's own process")
def test_task_3_what_it_keeps_does_not_grow(lab):
    assert_evicts(lab)
    num_blocks, keys = 10, range(10**9, 10**9 + 5000)
    policy = lab.EvictionPolicy(num_blocks)
    num_cached = pairs_of_blocks(policy, keys[:1000], num_blocks)
    before = num_kept(policy)
    pairs_of_blocks(policy, keys[1000:], num_blocks, num_cached)
    after = num_kept(policy)
    # One number per block would add 4000 references. With 40 remembered blocks, 1000 references are 25 per block.
    assert after <= before + 1000, (
        f"EvictionPolicy({num_blocks}) got 500 requests of two blocks each: its own variables and those of its file "
        f"held {before} references. After 2000 more requests they hold {after}: this number must not grow with the "
        "number of requests, because a server runs for weeks")


# ---- Task 3: hit rate


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_the_scan_better_than_the_engine(lab):
    CONTEST.check_step(lab, ["scan"], 0, "Better than the engine")


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_the_scan_a_quarter_of_the_way(lab):
    CONTEST.check_step(lab, ["scan"], 0.25, "A quarter of the gap")


@pytest.mark.points(4)
@pytest.mark.step
def test_task_3_the_scan_half_of_the_way(lab):
    CONTEST.check_step(lab, ["scan"], 0.5, "Half of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_few_shot_better_than_the_engine(lab):
    CONTEST.check_step(lab, ["few-shot"], 0, "Better than the engine")


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_few_shot_a_third_of_the_way(lab):
    CONTEST.check_step(lab, ["few-shot"], 1 / 3, "A third of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_3_the_mixture_better_than_the_engine(lab):
    CONTEST.check_step(lab, ["mixture"], 0, "Better than the engine")


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_the_mixture_a_quarter_of_the_way(lab):
    CONTEST.check_step(lab, ["mixture"], 0.25, "A quarter of the gap")


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_chats_and_agents_lose_little(lab):
    for name, seed in itertools.product(("chats", "agents"), (None, *CONTEST.unseen_seeds)):
        line = CONTEST.played(lab, name, seed)
        needed = math.ceil((0.98 if seed is None else 0.95) * line.reference)
        assert line.yours >= needed, (
            f"num_hits of EvictionPolicy on trace {line.trace.name!r} is {line.yours}. The engine has "
            f"{line.reference}, and {needed} are needed: a gain on other traces must not cost hits here")


@pytest.mark.points(3)
@pytest.mark.step
def test_task_3_random_traces_better_than_the_engine(lab):
    for name in ("random 0", "random 1", "random 2"):
        CONTEST.check_step(lab, [name], 0, "Better than the engine")


@pytest.mark.points(4)
@pytest.mark.step
def test_task_3_random_traces_a_quarter_of_the_way(lab):
    CONTEST.check_step(lab, ["random 0", "random 1", "random 2"], 0.25, "A quarter of the gap")


@pytest.mark.points(5)
@pytest.mark.step
def test_task_3_random_traces_half_of_the_way(lab):
    CONTEST.check_step(lab, ["random 0", "random 1", "random 2"], 0.5, "Half of the gap")
