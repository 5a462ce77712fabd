"""Lab 6.3, a router that knows prefixes. Tasks 1 to 3 have exact results; the steps of Task 4 have targets."""

import random

import pytest

from course.expecting import must_answer, must_raise
from course.gauges import cheapest, num_objects
from course.replicas.score import CONTEST

LAW, ART = ["helpful", "law", "tort"], ["helpful", "art"]


def filled(lab, *records, max_blocks=1000):
    """Make a map with these (replica, blocks)."""
    prefixes = lab.PrefixMap(max_blocks)
    for replica, blocks in records:
        prefixes.touch(replica, list(blocks))
    return prefixes


def check_cached(prefixes, blocks, expected, told, rule):
    blocks = list(blocks)
    got = must_answer(f"{told}: num_cached({blocks})", prefixes.num_cached, blocks, rule=rule)
    assert got == expected, f"{told}: num_cached({blocks}) returned {got}, expected {expected}: {rule}"


def check_num_blocks(prefixes, expected, told, rule):
    """Compare num_blocks; a replica with 0 blocks may have no entry."""
    got = prefixes.num_blocks
    assert {replica: n for replica, n in got.items() if n} == expected, (
        f"{told}: num_blocks is {got}, expected {expected}: {rule}")


class Expected:
    """What a map should know: for each replica its prefixes, the one that was used longest ago first."""

    def __init__(self, max_blocks):
        self.max_blocks, self.prefixes = max_blocks, {}

    def touch(self, replica, blocks):
        known = self.prefixes.setdefault(replica, [])
        for end in range(len(blocks), 0, -1):
            if blocks[:end] in known:
                known.remove(blocks[:end])
            known.append(blocks[:end])

    def record(self, replica, blocks):
        self.touch(replica, blocks[:self.max_blocks])
        known = self.prefixes[replica]
        del known[:max(0, len(known) - self.max_blocks)]

    def num_cached(self, blocks):
        found = {replica: max((end for end in range(len(blocks) + 1) if blocks[:end] in known), default=0)
                 for replica, known in self.prefixes.items()}
        return {replica: n for replica, n in found.items() if n}

    def num_blocks(self):
        return {replica: len(known) for replica, known in self.prefixes.items() if known}


# ---- Task 1: one tree for all replicas


@pytest.mark.points(1)
def test_task_1_a_new_map_knows_nothing(lab):
    check_cached(filled(lab, ("A", ["x"])), ["x"], {"A": 1}, "after touch('A', ['x'])", "A has the block")
    prefixes = lab.PrefixMap(10)
    check_cached(prefixes, LAW, {}, "a new map", "nothing was recorded yet")
    check_num_blocks(prefixes, {}, "a new map", "nothing was recorded yet")


@pytest.mark.points(1)
def test_task_1_a_prompt_is_found_as_far_as_it_is_known(lab):
    prefixes = filled(lab, ("A", LAW))
    for blocks, expected in ((LAW, 3), (LAW[:2], 2), ([*LAW, "more"], 3), (["helpful", "art"], 1)):
        check_cached(prefixes, blocks, {"A": expected}, f"after touch('A', {LAW})",
                     f"the first {expected} blocks are those of the recorded prompt")


@pytest.mark.points(1)
def test_task_1_replicas_have_different_parts_of_a_prompt(lab):
    prefixes = filled(lab, ("A", LAW), ("B", ART), ("C", ["helpful"]))
    told = f"after touch of {LAW} at A, {ART} at B and ['helpful'] at C"
    check_cached(prefixes, LAW, {"A": 3, "B": 1, "C": 1}, told, "all three have the first block; only A has more")
    check_cached(prefixes, ART, {"A": 1, "B": 2, "C": 1}, told, "all three have the first block; only B has more")


@pytest.mark.points(1)
def test_task_1_replicas_without_the_first_block_have_no_entry(lab):
    prefixes = filled(lab, ("A", LAW), ("B", ["other"]))
    check_cached(prefixes, LAW, {"A": 3}, "B was only sent ['other']", "B has not even the first block, so it is "
                                                                       "left out")
    check_cached(prefixes, ["unknown"], {}, "no replica has the block", "no replica is named")


@pytest.mark.points(2)
def test_task_1_a_block_counts_after_the_blocks_before_it(lab):
    prefixes = filled(lab, ("A", ["x", "y", "z"]), ("B", ["y"]))
    told = "after touch of x y z at A and y at B"
    check_cached(prefixes, ["y", "z"], {"B": 1}, told, "A computed y after x: its keys and values are others")
    check_cached(prefixes, ["x", "z"], {"A": 1}, told, "A computed z after x y, not after x alone")
    check_cached(prefixes, ["z"], {}, told, "no replica has z at the beginning of a prompt")


@pytest.mark.points(1)
def test_task_1_the_count_ends_at_the_first_block_that_is_missing(lab):
    prefixes = filled(lab, ("A", ["a", "b", "c", "d"]), ("B", ["a", "b", "x", "d"]))
    told = "after touch of a b c d at A and a b x d at B"
    check_cached(prefixes, ["a", "b", "c", "d"], {"A": 4, "B": 2}, told, "B has d, but after other blocks")
    check_cached(prefixes, ["a", "new", "b"], {"A": 1, "B": 1}, told, "no replica has a block after a new one")


@pytest.mark.points(1)
def test_task_1_equal_blocks_in_a_row(lab):
    prefixes = filled(lab, ("A", ["x", "x", "x"]), ("B", ["x"]))
    told = "after touch of x x x at A and x at B"
    check_cached(prefixes, ["x"] * 5, {"A": 3, "B": 1}, told, "each x after another number of blocks is another block")
    check_num_blocks(prefixes, {"A": 3, "B": 1}, told, "x, x x and x x x are three blocks")


@pytest.mark.points(1)
def test_task_1_blocks_are_any_values_that_can_be_compared(lab):
    for blocks in ([1, 2], [(1, 2), (3, 4)], ["a", "b"], [("model", "text"), None]):
        prefixes = filled(lab, ("A", blocks))
        check_cached(prefixes, blocks, {"A": 2}, f"after touch('A', {blocks})",
                     "blocks are whole numbers, texts, tuples, or anything else that can be a key")


@pytest.mark.points(1)
def test_task_1_blocks_are_compared_not_their_hashes(lab):
    prefixes = filled(lab, ("A", [-1, 5]))
    check_cached(prefixes, [-1, 5], {"A": 2}, "after touch('A', [-1, 5])", "A has both blocks")
    check_cached(prefixes, [-2, 5], {}, "after touch('A', [-1, 5])", "-1 and -2 have the same hash, and are not equal")


@pytest.mark.points(1)
def test_task_1_a_prompt_is_read_during_the_call(lab):
    """Change a list after the call, as a caller may, and pass other kinds of sequences."""
    prefixes, prompt = lab.PrefixMap(1000), ["x"]
    prefixes.touch("A", prompt)
    prompt.append("y")
    check_cached(prefixes, ["x", "y"], {"A": 1}, "touch('A', prompt) of ['x'], then prompt.append('y')",
                 "the prompt was ['x'] when it was passed")
    prefixes.touch("A", prompt)
    check_cached(prefixes, ["x", "y"], {"A": 2}, "then touch('A', prompt) again", "the prompt is ['x', 'y'] now")
    prefixes.touch("B", ("x", "y"))
    got = must_answer("num_cached(('x', 'y'))", prefixes.num_cached, ("x", "y"), rule="blocks are a sequence")
    assert got == {"A": 2, "B": 2}, (
        f"touch('B', ('x', 'y')), num_cached(('x', 'y')) returned {got}, expected 2 for A and B: a tuple is a sequence")


@pytest.mark.points(1)
def test_task_1_a_very_long_prompt(lab):
    prompt = list(range(3000))
    prefixes = lab.PrefixMap(10_000)
    must_answer("touch('A', …) of 3,000 blocks", prefixes.touch, "A", prompt, rule="a prompt may be long")
    got = must_answer("num_cached of 3,000 blocks", prefixes.num_cached, prompt, rule="a prompt may be long")
    assert got == {"A": 3000}, f"num_cached of 3,000 blocks that A was sent returned {got}, expected {{'A': 3000}}"


@pytest.mark.points(1)
def test_task_1_a_prompt_without_blocks(lab):
    prefixes = filled(lab, ("A", ["x"]), ("A", []))
    check_cached(prefixes, [], {}, "a prompt shorter than a block", "there is no block that a replica could have")
    check_cached(prefixes, ["x"], {"A": 1}, "after touch('A', [])", "a prompt without blocks changes nothing")


@pytest.mark.points(1)
def test_task_1_blocks_are_counted_once_per_replica(lab):
    prefixes = filled(lab, ("A", LAW), ("A", LAW), ("A", ART), ("B", LAW))
    check_num_blocks(prefixes, {"A": 4, "B": 3}, f"after touch of {LAW} twice and {ART} at A, and {LAW} at B",
                     "A has helpful, helpful law, helpful law tort and helpful art")


@pytest.mark.points(1)
def test_task_1_asking_changes_nothing(lab):
    prefixes = filled(lab, ("A", LAW), ("B", ART))
    for blocks in (ART, LAW, ["new", "blocks"], []):
        prefixes.num_cached(list(blocks))
    told = "after four calls of num_cached"
    check_num_blocks(prefixes, {"A": 3, "B": 2}, told, "num_cached() only asks")
    check_cached(prefixes, ["new", "blocks"], {}, told, "num_cached() only asks: no replica was sent these blocks")


@pytest.mark.points(1)
def test_task_1_an_answer_is_the_callers_own(lab):
    prefixes = filled(lab, ("A", LAW))
    answer = prefixes.num_cached(LAW)
    answer["B"] = 7
    prefixes.num_blocks["A"] = 99
    check_cached(prefixes, LAW, {"A": 3}, "a caller has changed what it got", "each call makes a new dict")
    check_num_blocks(prefixes, {"A": 3}, "a caller has changed what it got", "num_blocks is a new dict each time")


@pytest.mark.points(2)
def test_task_1_random_prompts(lab):
    rng = random.Random(63)
    for case in range(12):
        prefixes, expected = lab.PrefixMap(10_000), Expected(10_000)
        for _ in range(25):
            replica, blocks = rng.choice("ABC"), [rng.randrange(3) for _ in range(rng.randrange(6))]
            prefixes.touch(replica, list(blocks))
            expected.touch(replica, blocks)
        for _ in range(10):
            blocks = [rng.randrange(3) for _ in range(6)]
            check_cached(prefixes, blocks, expected.num_cached(blocks), f"case {case}, after 25 calls of touch()",
                         "the number of first blocks that each replica was sent")
        check_num_blocks(prefixes, expected.num_blocks(), f"case {case}", "the different beginnings that it was sent")


@pytest.mark.points(1)
@pytest.mark.inside("lines can be counted only in the process that runs them")
def test_task_1_a_call_does_not_look_at_all_that_is_remembered(lab):
    def lines(num_prompts):
        prefixes = filled(lab, *(("A", [number, "x", "y"]) for number in range(num_prompts)))
        touching, _ = cheapest(prefixes.touch, [("A", [number, "x", "z"]) for number in range(3)])
        asking, _ = cheapest(prefixes.num_cached, [([number, "x", "z"],) for number in range(3)])
        return touching, asking

    assert filled(lab, ("A", LAW)).num_cached(LAW) == {"A": 3}, "num_cached of a recorded prompt counts its blocks"
    few, many = lines(10), lines(400)
    prefixes = lab.PrefixMap(10_000)
    _, short = cheapest(prefixes.touch, [("A", list(range(number, number + 100))) for number in (0, 1000, 2000)])
    _, long = cheapest(prefixes.touch, [("A", list(range(number, number + 400))) for number in (5000, 6000, 7000)])
    assert long <= 8 * short, (f"touch() of 100 new blocks takes {short} bytes, of 400 new blocks {long}; expected "
                               "about "
                               "four times as many: the key of a block is the block alone, not all blocks before it")
    for name, before, after in zip(("touch", "num_cached"), few, many):
        assert after <= 2 * before + 20, (
            f"{name}() of three blocks runs {before} lines of Python if 30 blocks are remembered, and {after} if 1,200 "
            "are; expected about as many: walk down the tree, from block to block")


# ---- Task 2: forgetting


@pytest.mark.points(1)
def test_task_2_the_end_of_a_prompt_is_forgotten_first(lab):
    prefixes = filled(lab, ("A", LAW))
    for left in (2, 1, 0):
        prefixes.forget_oldest("A")
        check_cached(prefixes, LAW, {"A": left} if left else {}, f"{LAW} at A, calls of forget_oldest(): {3 - left}",
                     "the last block is the first to go: without the blocks before it, it would be useless")
        check_num_blocks(prefixes, {"A": left} if left else {}, f"forget_oldest() {3 - left} times", "one block less "
                                                                                                     "each")


@pytest.mark.points(2)
def test_task_2_what_was_used_longest_ago_is_forgotten_first(lab):
    prefixes = filled(lab, ("A", ["a", "b"]), ("A", ["c", "d"]))
    for told, left in (("once", (1, 2)), ("twice", (0, 2)), ("three times", (0, 1))):
        prefixes.forget_oldest("A")
        got = tuple(prefixes.num_cached(blocks).get("A", 0) for blocks in (["a", "b"], ["c", "d"]))
        assert got == left, (f"touch a b, touch c d, forget_oldest() {told}: of a b and c d the replica has {got} "
                             "blocks, "
                             f"expected {left}: b and a were used before d and c")


@pytest.mark.points(2)
def test_task_2_using_a_block_again_makes_it_newer(lab):
    prefixes = filled(lab, ("A", ["a", "b"]), ("A", ["c", "d"]), ("A", ["a", "b"]))
    prefixes.forget_oldest("A")
    check_cached(prefixes, ["a", "b"], {"A": 2}, "touch a b, touch c d, touch a b, forget_oldest()",
                 "a b was used again, so d is the oldest")
    check_cached(prefixes, ["c", "d"], {"A": 1}, "touch a b, touch c d, touch a b, forget_oldest()",
                 "a b was used again, so d is the oldest")


@pytest.mark.points(2)
def test_task_2_a_longer_prompt_renews_the_blocks_before_it(lab):
    prefixes = filled(lab, ("A", ["a", "b"]), ("A", ["x"]), ("A", ["a", "c"]))
    prefixes.forget_oldest("A")
    told = "touch a b, touch x, touch a c, forget_oldest()"
    check_cached(prefixes, ["a", "b"], {"A": 1}, told, "b is the oldest: a was used again before c")
    check_cached(prefixes, ["a", "c"], {"A": 2}, told, "a must not be forgotten while c is there")
    again = filled(lab, ("A", ["a", "b"]), ("A", ["a", "c"]), ("A", ["a", "b"]))
    again.forget_oldest("A")
    check_cached(again, ["a", "b"], {"A": 2}, "touch a b, touch a c, touch a b, forget_oldest()", "c is the oldest")
    check_cached(again, ["a", "c"], {"A": 1}, "touch a b, touch a c, touch a b, forget_oldest()", "c is the oldest")
    prefixes.forget_oldest("A")
    check_cached(prefixes, ["x"], {}, told + " twice", "x is the next: a was used after it")
    check_cached(prefixes, ["a", "c"], {"A": 2}, told + " twice", "x is the next: a was used after it")


@pytest.mark.points(1)
def test_task_2_the_others_keep_what_one_replica_forgets(lab):
    prefixes = filled(lab, ("A", LAW), ("B", LAW), ("B", ART))
    prefixes.forget_oldest("A")
    prefixes.forget_oldest("A")
    told = f"A and B were sent {LAW}, A forgets two blocks"
    check_cached(prefixes, LAW, {"A": 1, "B": 3}, told, "B still has all three")
    prefixes.forget_oldest("A")
    check_cached(prefixes, LAW, {"B": 3}, f"{told}, and then the last one", "B still has all three")
    check_num_blocks(prefixes, {"B": 4}, told, "B has forgotten nothing")


@pytest.mark.points(1)
def test_task_2_forget_a_replica(lab):
    prefixes = filled(lab, ("A", LAW), ("B", ART), ("A", ["other"]))
    prefixes.forget("A")
    check_cached(prefixes, LAW, {"B": 1}, "after forget('A')", "A has nothing, B has what it had")
    check_cached(prefixes, ["other"], {}, "after forget('A')", "A has nothing")
    check_num_blocks(prefixes, {"B": 2}, "after forget('A')", "A has no block, B has its two")
    prefixes.touch("A", ["other", "again"])
    check_cached(prefixes, ["other", "again"], {"A": 2}, "forget('A'), touch('A', ['other', 'again'])",
                 "a replica that comes back begins with an empty cache")
    check_num_blocks(prefixes, {"A": 2, "B": 2}, "forget('A'), touch('A', ['other', 'again'])", "only the new blocks")


@pytest.mark.points(1)
def test_task_2_forget_an_unknown_replica(lab):
    prefixes = filled(lab, ("A", LAW))
    must_answer("forget('B'), of which nothing is remembered", prefixes.forget, "B", rule="it is harmless")
    check_cached(prefixes, LAW, {"A": 3}, "after forget('B')", "A keeps its blocks")


@pytest.mark.points(2)
def test_task_2_a_replica_has_at_most_max_blocks(lab):
    prefixes = lab.PrefixMap(4)
    for number, blocks in enumerate((["a", "b"], ["c", "d"], ["e", "f", "g"])):
        prefixes.record("A", blocks)
        check_num_blocks(prefixes, {"A": (2, 4, 4)[number]}, f"max_blocks is 4, record() number {number + 1}",
                         "at most 4 blocks are remembered")
    told = "max_blocks is 4; record a b, record c d, record e f g"
    check_cached(prefixes, ["a", "b"], {}, told, "b, a and d are the oldest of seven blocks")
    check_cached(prefixes, ["c", "d"], {"A": 1}, told, "b, a and d are the oldest of seven blocks")
    check_cached(prefixes, ["e", "f", "g"], {"A": 3}, told, "these are the newest blocks")
    prefixes.record("B", ["c", "d", "f", "g"])
    check_num_blocks(prefixes, {"A": 4, "B": 4}, told + ", record c d f g at B", "each replica has its own limit")


@pytest.mark.points(2)
def test_task_2_a_prompt_longer_than_the_limit(lab):
    prefixes = lab.PrefixMap(3)
    prefixes.record("A", ["old"])
    prefixes.record("A", list(range(50)))
    told = "max_blocks is 3; record old, then a prompt of 50 blocks"
    check_cached(prefixes, list(range(50)), {"A": 3}, told, "the first 3 blocks are remembered")
    check_cached(prefixes, ["old"], {}, told, "the limit is reached, and old is the oldest")
    check_num_blocks(prefixes, {"A": 3}, told, "at most 3 blocks are remembered")


@pytest.mark.points(1)
def test_task_2_record_forgets_all_that_is_too_much(lab):
    prefixes = lab.PrefixMap(3)
    prefixes.touch("A", list(range(10)))
    prefixes.record("A", ["x"])
    told = "max_blocks is 3; touch of ten blocks, which may exceed it, then record x"
    check_num_blocks(prefixes, {"A": 3}, told, "after record(), at most max_blocks are left")
    check_cached(prefixes, ["x"], {"A": 1}, told, "x is the newest")
    check_cached(prefixes, list(range(10)), {"A": 2}, told, "of the ten, the first two are the newest")


@pytest.mark.points(1)
def test_task_2_the_callers_prompt_stays_as_it_is(lab):
    prefixes, prompt = lab.PrefixMap(2), ["a", "b", "c"]
    prefixes.record("A", prompt)
    assert prompt == ["a", "b", "c"], f"record('A', prompt) with max_blocks 2 made the caller's prompt {prompt}"
    must_answer("record('B', ('a', 'b', 'c'))", prefixes.record, "B", ("a", "b", "c"), rule="a tuple is a sequence")
    check_num_blocks(prefixes, {"A": 2, "B": 2}, "record of a list and of a tuple of three blocks", "max_blocks is 2")


@pytest.mark.points(1)
def test_task_2_recording_within_the_limit_forgets_nothing(lab):
    prefixes = lab.PrefixMap(4)
    for _ in range(3):
        prefixes.record("A", ["a", "b", "c", "d"])
    check_cached(prefixes, ["a", "b", "c", "d"], {"A": 4}, "max_blocks is 4; record a b c d three times",
                 "4 blocks are not more than 4")
    prefixes.record("A", [])
    check_num_blocks(prefixes, {"A": 4}, "then record of no blocks", "nothing is too much")


@pytest.mark.points(1)
def test_task_2_recording_no_blocks_of_a_new_replica(lab):
    prefixes = lab.PrefixMap(4)
    must_answer("record('A', []) as the first call", prefixes.record, "A", [], rule="a prompt can be shorter than a "
                                                                                    "block")
    prefixes.record("A", ["a"])
    check_num_blocks(prefixes, {"A": 1}, "record('A', []), record('A', ['a'])", "one block was recorded")


@pytest.mark.points(3)
def test_task_2_random_prompts_with_a_limit(lab):
    rng = random.Random(632)
    for _ in range(15):
        limit, calls = rng.randrange(1, 9), []
        prefixes, expected = lab.PrefixMap(limit), Expected(limit)
        for number in range(40):
            replica, blocks = rng.choice("AB"), [rng.randrange(3) for _ in range(rng.randrange(6))]
            if rng.random() < 0.05:
                prefixes.forget(replica)
                expected.prefixes.pop(replica, None)
                calls.append(f"forget({replica!r})")
            prefixes.record(replica, list(blocks))
            expected.record(replica, blocks)
            calls.append(f"record({replica!r}, {blocks})")
            if number < 12 or number % 4 == 3:
                told = f"PrefixMap({limit}), {'… ' if len(calls) > 12 else ''}{', '.join(calls[-12:])}"
                asked = [rng.randrange(3) for _ in range(5)]
                check_cached(prefixes, asked, expected.num_cached(asked), told,
                             "record() forgets the oldest blocks, forget() all of a replica")
                check_num_blocks(prefixes, expected.num_blocks(), told, "at most max_blocks per replica")


@pytest.mark.points(2)
@pytest.mark.inside("the objects of a map can be counted only in the process of the map")
def test_task_2_what_no_replica_has_takes_no_memory(lab):
    prefixes = filled(lab, ("A", LAW), ("B", LAW), max_blocks=20)
    for number in range(20):
        prefixes.record("A", [f"{number} {end}" for end in range(20)])
    check_num_blocks(prefixes, {"A": 20, "B": 3}, "max_blocks is 20, after 20 prompts of 20 blocks", "20 for A, 3 "
                                                                                                     "for B")
    before = num_objects(prefixes)
    for number in range(20, 60):
        prefixes.record("A", [f"{number} {end}" for end in range(20)])
    after = num_objects(prefixes)
    assert after <= before + 30, (
        f"a map with max_blocks=20 has {before} objects after 20 prompts, and {after} after 60: blocks that no replica "
        "has must leave the tree")
    for number in range(200):
        prefixes.num_cached([f"unknown {number}", "x"])
        prefixes.record("B", LAW)
    asked = num_objects(prefixes)
    assert asked <= after + 30, (f"after 200 calls of num_cached() with unknown prompts, and of record() with the same "
                                 f"prompt, the map has {asked} objects, {after} before")
    for number in range(20):
        prefixes.record(f"replica {number}", [f"{number}", "x", "y"])
        prefixes.forget(f"replica {number}")
    at_last = num_objects(prefixes)
    assert at_last <= after + 30, (f"after record() and forget() of 20 further replicas the map has {at_last} objects, "
                                   f"{after} before: nothing of a forgotten replica may stay")


@pytest.mark.points(1)
@pytest.mark.inside("lines can be counted only in the process that runs them")
def test_task_2_forgetting_does_not_search(lab):
    def cost(num_prompts):
        prefixes = filled(lab, *(("A", [number, "x"]) for number in range(num_prompts)), max_blocks=10_000)
        cheap = cheapest(prefixes.forget_oldest, [("A",)] * 3)
        check_num_blocks(prefixes, {"A": 2 * num_prompts - 3}, "after three calls of forget_oldest()", "one less each")
        return cheap

    (few, few_bytes), (many, many_bytes) = cost(10), cost(400)
    assert many_bytes <= few_bytes + 1500, (
        f"forget_oldest() takes {few_bytes} bytes if 20 blocks are remembered, and {many_bytes} if 800 are: it must "
        "not "
        "copy what is remembered")
    assert many <= 2 * few + 20, (
        f"forget_oldest() runs {few} lines of Python if 20 blocks are remembered, and {many} if 800 are; expected "
        "about "
        "as many: keep the blocks of a replica in the order in which they were used")


# ---- Task 3: requests in flight


def flying(lab, *started, replicas="AB"):
    """Make the record of these replicas with requests in flight, given as (request, replica)."""
    in_flight = lab.RequestsInFlight()
    for replica in replicas:
        in_flight.add_replica(replica)
    for request_id, replica in started:
        in_flight.started(request_id, replica)
    return in_flight


def check_loads(router, expected, told, rule):
    got = router.loads
    assert got == expected, f"{told}: loads is {got}, expected {expected}: {rule}"


@pytest.mark.points(1)
def test_task_3_requests_are_counted(lab):
    in_flight = flying(lab, ("1", "A"), ("2", "B"), ("3", "A"))
    check_loads(in_flight, {"A": 2, "B": 1}, "1 and 3 started at A, 2 at B", "each counts at its replica")
    in_flight.finished("1")
    check_loads(in_flight, {"A": 1, "B": 1}, "then 1 finished", "it does not count any more")
    got = {name: in_flight.replica_of(name) for name in ("1", "2", "3", "4")}
    assert got == {"1": None, "2": "B", "3": "A", "4": None}, (
        f"1 finished, 2 is in flight at B, 3 at A, 4 never started: replica_of() gives {got}")


@pytest.mark.points(1)
def test_task_3_loads_are_in_the_order_in_which_replicas_were_added(lab):
    in_flight = flying(lab, ("1", "B"), replicas="CAB")
    assert list(in_flight.loads) == ["C", "A", "B"], (
        f"add_replica C, A, B: loads names {list(in_flight.loads)}, expected C, A, B")
    in_flight.remove_replica("C")
    in_flight.add_replica("C")
    assert list(in_flight.loads) == ["A", "B", "C"], (
        f"C was removed and added again: loads names {list(in_flight.loads)}, expected A, B, C: it was added last")


@pytest.mark.points(1)
def test_task_3_a_caller_may_change_what_it_got(lab):
    in_flight = flying(lab, ("1", "A"))
    in_flight.loads["A"] = 100
    in_flight.loads.pop("B")
    check_loads(in_flight, {"A": 1, "B": 0}, "a caller changed the dict that it got", "each call returns a new dict")
    mine, theirs = in_flight.loads, in_flight.loads
    mine["A"] = 9
    assert theirs == {"A": 1, "B": 0}, (
        f"one caller changed the dict that it got, and another one's is now {theirs}: each call returns a new dict")
    before = in_flight.loads
    in_flight.started("2", "B")
    assert before == {"A": 1, "B": 0} and in_flight.loads == {"A": 1, "B": 1}, (
        f"loads was {{'A': 1, 'B': 0}}; after started('2', 'B') the dict that was returned before is {before}, and "
        "loads "
        f"is {in_flight.loads}: each call returns a new dict, which stays as it is")


@pytest.mark.points(2)
def test_task_3_a_replica_leaves(lab):
    in_flight = flying(lab, ("3", "A"), ("1", "B"), ("2", "A"), ("5", "A"))
    in_flight.finished("2")
    got = in_flight.remove_replica("A")
    assert got == ["3", "5"], (f"3, 2 and 5 started at A, 2 has finished: remove_replica('A') returned {got}, expected "
                               "['3', '5']: the requests in flight there, in the order in which they started")
    check_loads(in_flight, {"B": 1}, "after remove_replica('A')", "A is not there any more, 1 is still at B")
    where = in_flight.replica_of("3")
    assert where is None, f"after remove_replica('A'), replica_of('3') returned {where!r}, expected None"
    in_flight.started("3", "B")
    check_loads(in_flight, {"B": 2}, "then 3 starts again, at B", "a request of a replica that left can start again")


@pytest.mark.points(1)
def test_task_3_a_replica_comes_back(lab):
    in_flight = flying(lab, ("1", "A"))
    in_flight.remove_replica("A")
    in_flight.add_replica("A")
    check_loads(in_flight, {"B": 0, "A": 0}, "A left with a request, and came back", "it comes back without requests")
    got = in_flight.remove_replica("A")
    assert got == [], f"A came back without requests, remove_replica('A') returned {got}, expected []"


@pytest.mark.points(1)
def test_task_3_a_finished_request_may_start_again(lab):
    in_flight = flying(lab, ("1", "A"))
    in_flight.finished("1")
    in_flight.started("1", "B")
    check_loads(in_flight, {"A": 0, "B": 1}, "1 started at A, finished, and started at B", "its id is free again")


@pytest.mark.points(1)
def test_task_3_a_request_that_starts_again_is_the_newest(lab):
    in_flight = flying(lab, ("1", "A"), ("2", "A"))
    in_flight.finished("1")
    in_flight.started("1", "A")
    got = in_flight.remove_replica("A")
    assert got == ["2", "1"], ("1 and 2 started at A, 1 finished and started there again: remove_replica('A') "
                               "returned "
                               f"{got}, expected ['2', '1']: each once, in the order in which they started")


WRONG = {
    "an idle replica that is there already": (lambda it: it.add_replica("C"), "add_replica('C') a second time"),
    "a replica that is there already": (lambda it: it.add_replica("A"), "add_replica('A') a second time"),
    "removing an unknown replica": (lambda it: it.remove_replica("X"), "remove_replica('X')"),
    "starting a request twice": (lambda it: it.started("1", "B"), "started('1', 'B') while 1 is in flight at A"),
    "starting at an unknown replica": (lambda it: it.started("9", "X"), "started('9', 'X')"),
    "finishing an unknown request": (lambda it: it.finished("9"), "finished('9')"),
    "finishing a request twice": (lambda it: it.finished("2"), "finished('2') a second time"),
}


@pytest.mark.points(3)
@pytest.mark.parametrize("what", WRONG)
def test_task_3_wrong_calls_change_nothing(lab, what):
    wrong, call = WRONG[what]
    in_flight = flying(lab, ("1", "A"), ("2", "A"), ("3", "B"), replicas="ABC")
    in_flight.finished("2")
    with must_raise(ValueError, call, what):
        wrong(in_flight)
    check_loads(in_flight, {"A": 1, "B": 1, "C": 0}, f"after {call}, which was refused", "nothing may have changed")
    got = [in_flight.replica_of(name) for name in ("1", "2", "3", "9")]
    assert got == ["A", None, "B", None], (
        f"after {call}, which was refused: requests 1, 2, 3 and 9 are at {got}, expected A, None, B, None")
    assert in_flight.remove_replica("A") == ["1"], f"after {call}, which was refused, A still computes request 1 alone"


@pytest.mark.points(1)
def test_task_3_finishing_a_request_of_a_replica_that_left(lab):
    in_flight = flying(lab, ("1", "A"), ("2", "B"))
    in_flight.remove_replica("A")
    with must_raise(ValueError, "finished('1') after its replica left", "1 is not in flight any more"):
        in_flight.finished("1")
    check_loads(in_flight, {"B": 1}, "after that call", "B still computes request 2")


@pytest.mark.points(1)
@pytest.mark.inside("objects can be counted only in the process that has them")
def test_task_3_what_has_ended_takes_no_memory(lab):
    in_flight, router = flying(lab), lab.CacheAwareRouter(["A"], max_blocks=20)

    def serve_some(first):
        for number in range(first, first + 40):
            in_flight.started(f"{number}", "A")
            in_flight.finished(f"{number}")
            router.add_replica(f"replica {number}")
            router.route(f"{number}", [number, "x", "y"])
            router.finished(f"{number}")
            router.remove_replica(f"replica {number}")
        return num_objects(in_flight), num_objects(router)

    before, after = serve_some(0), serve_some(40)
    check_loads(in_flight, {"A": 0, "B": 0}, "80 requests started and finished", "none is in flight")
    for name, few, many in zip(("RequestsInFlight", "CacheAwareRouter"), before, after):
        assert many <= few + 30, (f"after 40 requests, each of which has finished, {name} has {few} objects, and "
                                  "after 80 "
                                  f"{many}: requests that have finished and replicas that have left take no memory")


# ---- Task 4: the decision


def sent(router, request_id, blocks):
    """Route a request and return its replica, after checking that it is one."""
    loads = router.loads
    got = router.route(request_id, list(blocks))
    assert type(got) is str and got in loads, (
        f"route({request_id!r}, {list(blocks)[:6]}) returned {got!r}, must be one of the replicas {', '.join(loads)}")
    return got


def routed(lab, *prompts, replicas="AB", **options):
    """Make a router and route these prompts, as requests 0, 1, …; return it and the replicas."""
    router = lab.CacheAwareRouter(list(replicas), **options)
    return router, [sent(router, str(number), blocks) for number, blocks in enumerate(prompts)]


@pytest.mark.points(1)
def test_task_4_a_new_router_knows_its_replicas(lab):
    router = lab.CacheAwareRouter(["B", "A"])
    assert list(router.loads.items()) == [("B", 0), ("A", 0)], f"CacheAwareRouter(['B', 'A']).loads is {router.loads}"
    assert router.num_cached(LAW) == {"B": 0, "A": 0}, (
        f"num_cached() of a new router is {router.num_cached(LAW)}, expected 0 for every replica")
    assert router.num_blocks == {"B": 0, "A": 0}, (
        f"num_blocks of a new router is {router.num_blocks}, expected 0 for every replica")
    once = lab.CacheAwareRouter(name for name in ("B", "A"))
    assert list(once.loads) == ["B", "A"], (
        f"replicas may be any iterable, also one that can be read only once: loads names {list(once.loads)}")
    router.add_replica("C")
    assert router.num_cached([]) == router.loads == {"B": 0, "A": 0, "C": 0}, "add_replica('C') adds a third one"


@pytest.mark.points(2)
def test_task_4_a_request_goes_where_its_prefix_is(lab):
    router, (law, art) = routed(lab, "xyl", "uva")
    assert {law, art} == {"A", "B"}, f"two prompts with nothing in common were sent to {law} and {art}"
    for name in ("0", "1"):
        router.finished(name)
    for name, blocks, expected in (("2", "xyz", law), ("3", "uvb", art)):
        got = sent(router, name, list(blocks))
        assert got == expected, (f"x y l was sent to {law}, u v a to {art}, and no request is in flight: a prompt "
                                 f"{' '.join(blocks)} was sent to {got}, expected {expected}, which has two blocks "
                                 "of it")
        router.finished(name)


@pytest.mark.points(2)
def test_task_4_without_hits_the_load_decides(lab):
    router, got = routed(lab, "a", "b", "c", replicas="ABC")
    assert sorted(got) == ["A", "B", "C"], (
        f"three prompts with nothing in common were sent to {got}, expected three different replicas: nothing is "
        "cached, "
        "so each goes to one with the lowest load")
    router.finished(str(got.index("B")))
    where = sent(router, "4", ["d"])
    assert where == "B", f"A and C compute a request, B none: a new prompt was sent to {where}, expected 'B'"


@pytest.mark.points(2)
def test_task_4_equal_hits_and_the_load_decides(lab):
    router, got = routed(lab, "xy", "xy", "xy", max_imbalance=2)
    assert set(got) == {"A", "B"}, f"max_imbalance is 2: three equal prompts were sent to {got}, so not all to one"
    for name in "012":
        router.finished(name)
    busy = sent(router, "new", "u")
    for name, last, expected in (("3", "z", "AB".replace(busy, "")), ("4", "w", busy)):
        loads, cached = router.loads, router.num_cached(["x", "y", last])
        where = sent(router, name, ["x", "y", last])
        assert where == expected, (
            f"the loads are {loads}, and of x y {last} {cached} blocks are cached: it was sent to {where}, expected "
            f"{expected}: if all have equally many blocks, the lowest load decides")
        router.finished("new" if name == "3" else name)


@pytest.mark.points(2)
def test_task_4_loads_are_requests_whatever_work_they_are(lab):
    """Check both rules of route() when one replica has one long request and the other one two short ones."""
    router, (long, short) = routed(lab, [f"long {number}" for number in range(100)], "s")
    assert {long, short} == {"A", "B"}, f"two prompts with nothing in common were sent to {long} and {short}"
    where = sent(router, "2", ["long 0", "other"])
    assert where == long, (f"both replicas compute one request, {long} one of 100 blocks. A prompt whose first block "
                           "is "
                           f"cached at {long} was sent to {where}: if all loads are equal, the hits decide")
    router.finished("2")
    where = sent(router, "3", ["s", "t"])
    assert where == short, (f"both replicas compute one request. A prompt whose first block is cached at {short} was "
                            f"sent to {where}: if all loads are equal, the hits decide")
    loads = router.loads
    where = sent(router, "4", ["new"])
    assert where == long, (f"the loads are {loads}, and nothing of a new prompt is cached: it was sent to {where}, "
                           f"expected {long}: the lowest load decides, although its one request has 100 blocks")


@pytest.mark.points(1)
def test_task_4_a_request_is_in_flight_at_its_replica(lab):
    router, got = routed(lab, "ab", "cd", "ef")
    loads = {replica: got.count(replica) for replica in "AB"}
    check_loads(router, loads, f"requests sent to {got}", "each counts at its replica")
    where = [router.replica_of(str(number)) for number in range(4)]
    assert where == [*got, None], f"requests 0 to 2 were sent to {got}; replica_of() of 0 to 3 gives {where}"
    router.finished("0")
    assert router.replica_of("0") is None and sum(router.loads.values()) == 2, (
        f"after finished('0'): replica_of('0') is {router.replica_of('0')!r}, loads is {router.loads}")


@pytest.mark.points(1)
def test_task_4_what_a_finished_request_has_cached_stays(lab):
    router, (where,) = routed(lab, LAW)
    router.finished("0")
    got = router.num_cached(LAW)
    assert got[where] == 3, f"{LAW} was sent to {where} and answered: num_cached() is {got}, expected 3 there"


@pytest.mark.points(1)
def test_task_4_every_replica_has_an_entry(lab):
    router, (where,) = routed(lab, LAW, replicas="ABC")
    expected = {replica: 3 * (replica == where) for replica in "ABC"}
    for name, got in (("num_cached()", router.num_cached(LAW)), ("num_blocks", router.num_blocks)):
        assert got == expected, f"three blocks were sent to {where}: {name} is {got}, expected {expected}"


@pytest.mark.points(3)
@pytest.mark.parametrize("max_imbalance", [1, 2, 5])
def test_task_4_hits_never_unbalance_more_than_allowed(lab, max_imbalance):
    router, rng = lab.CacheAwareRouter(["A", "B", "C"], max_imbalance=max_imbalance), random.Random(max_imbalance)
    running = []
    for number in range(60):
        before = router.loads
        where = sent(router, str(number), ["the same", "prompt"] if rng.random() < 0.8 else [f"other {number}"])
        running.append(str(number))
        assert before[where] < min(before.values()) + max_imbalance, (
            f"max_imbalance is {max_imbalance}, the loads are {before}: request {number} was sent to {where}, whose "
            "load "
            "must be less than max_imbalance above the lowest load")
        if rng.random() < 0.3:
            router.finished(running.pop(rng.randrange(len(running))))


@pytest.mark.points(2)
def test_task_4_equal_loads_and_the_hits_decide(lab):
    """Check that nothing but hits counts if no replica is busier than another."""
    rng = random.Random(64)
    for case in range(15):
        router = lab.CacheAwareRouter(["A", "B", "C"], max_blocks=20)
        for number in range(15):
            blocks = [rng.randrange(2) for _ in range(rng.randrange(1, 6))]
            cached = router.num_cached(blocks)
            where = sent(router, str(number), blocks)
            assert cached[where] == max(cached.values()), (
                f"case {case}: no request is in flight, and of the blocks {blocks} {cached} are cached: the request "
                "was "
                f"sent to {where}, expected a replica with the most")
            router.finished(str(number))


@pytest.mark.points(2)
def test_task_4_equal_hits_and_the_lowest_load(lab):
    rng = random.Random(65)
    for case in range(15):
        router = lab.CacheAwareRouter(["A", "B", "C"])
        for number in range(12):
            loads = router.loads
            where = sent(router, str(number), [f"{case} {number}"])
            assert loads[where] == min(loads.values()), (
                f"case {case}: the prompt is new, so nothing of it is cached. The loads are {loads}, and it was sent "
                "to "
                f"{where}, expected a replica with the lowest load")
            if rng.random() < 0.4:
                router.finished(str(number))


@pytest.mark.points(1)
def test_task_4_a_prompt_without_a_whole_block(lab):
    _, got = routed(lab, "", "", "", "")
    assert sorted(got) == ["A", "A", "B", "B"], (
        f"four prompts shorter than a block were sent to {got}, expected two to each: nothing of them can be cached")


@pytest.mark.points(1)
def test_task_4_the_router_remembers_max_blocks_of_each_replica(lab):
    router, _ = routed(lab, "abcdef", replicas="A", max_blocks=4)
    assert router.num_cached(list("abcdef")) == {"A": 4} and router.num_blocks == {"A": 4}, (
        f"max_blocks is 4, and six blocks were sent to A: num_cached is {router.num_cached(list('abcdef'))}, "
        "num_blocks "
        f"{router.num_blocks}, expected 4 each")
    router.route("1", ["x"])
    assert router.num_cached(list("abcdef")) == {"A": 3} and router.num_blocks == {"A": 4}, (
        f"then x was sent to A: num_cached is {router.num_cached(list('abcdef'))}, num_blocks {router.num_blocks}, "
        "expected 3 and 4: the block that was used longest ago is forgotten")


@pytest.mark.points(2)
def test_task_4_a_replica_leaves_with_all_that_is_known(lab):
    router, got = routed(lab, "xy", "uv", "xyz")
    leaving, staying = got[0], "AB".replace(got[0], "")
    expected = [str(number) for number, where in enumerate(got) if where == leaving]
    orphans = router.remove_replica(leaving)
    assert orphans == expected, (f"requests 0, 1 and 2 were sent to {got}: remove_replica({leaving!r}) returned "
                                 f"{orphans}, "
                                 f"expected {expected}, in the order in which they were routed")
    assert set(router.num_cached(list("xy"))) == {staying} == set(router.num_blocks) == set(router.loads), (
        f"{leaving} has left: num_cached() names {list(router.num_cached(list('xy')))}, expected {staying} alone")
    for name in orphans:
        where = sent(router, name, list("xy"))
        assert where == staying, f"only {staying} is there: request {name}, routed again, was sent to {where}"
    check_loads(router, {staying: 3}, "all three requests are in flight again", "they count at their new replica")


@pytest.mark.points(2)
def test_task_4_a_replica_that_comes_back_has_nothing_cached(lab):
    router, (where,) = routed(lab, LAW)
    other = "AB".replace(where, "")
    router.remove_replica(where)
    router.add_replica(where)
    assert router.num_cached(LAW) == {other: 0, where: 0} and router.num_blocks == {other: 0, where: 0}, (
        f"{where} left and came back: num_cached() is {router.num_cached(LAW)}, num_blocks {router.num_blocks}, "
        "expected "
        "0 everywhere: its process was started again, so its cache is empty")
    check_loads(router, {other: 0, where: 0}, f"{where} left and came back", "it comes back without requests")


@pytest.mark.points(1)
def test_task_4_a_prefix_moves_with_its_replica(lab):
    router, (where,) = routed(lab, LAW)
    other = "AB".replace(where, "")
    for name in router.remove_replica(where):
        assert sent(router, name, LAW) == other, f"only {other} is there"
        router.finished(name)
    router.add_replica(where)
    got = sent(router, "again", LAW)
    assert got == other, (f"{where} served {LAW} and left, {other} served it then, and {where} came back empty: the "
                          "prompt "
                          f"was sent to {got}, expected {other}, which has all of it")


@pytest.mark.points(1)
def test_task_4_the_end_of_a_request_is_no_use_of_its_blocks(lab):
    router, _ = routed(lab, "x", "y", "z", replicas="A", max_blocks=2)
    router.finished("0")
    got = [router.num_cached([block])["A"] for block in "xyz"]
    assert got == [0, 1, 1], ("max_blocks is 2; x, y and z were routed, then the request of x finished: num_cached "
                              "of x, "
                              f"y and z is {got}, expected [0, 1, 1]: blocks are used when a request is routed")


@pytest.mark.points(1)
def test_task_4_a_prompt_that_is_all_cached_is_used_again(lab):
    router, _ = routed(lab, "x", "y", "x", "z", replicas="A", max_blocks=2)
    got = [router.num_cached([block])["A"] for block in "xyz"]
    assert got == [1, 0, 1], (f"max_blocks is 2; x, y, x and z were routed: num_cached of x, y and z is {got}, "
                              "expected "
                              "[1, 0, 1]: x was used again, so y is the oldest")


@pytest.mark.points(1)
def test_task_4_no_replica(lab):
    router = lab.CacheAwareRouter()
    with must_raise(lab.NoReplicaError, "route() of a router without replicas", "no replica can serve the request"):
        router.route("1", ["a"])
    assert router.replica_of("1") is None, "route() was refused, so the request is not in flight"
    router.add_replica("A")
    got = sent(router, "1", ["a"])
    assert got == "A", f"after add_replica('A'), the refused request was routed again, to {got}, expected 'A'"


ROUTER_WRONG = {
    "the request is in flight already": (lambda it: it.route("1", ["new"]), "route('1', ['new'])"),
    "the request is not in flight": (lambda it: it.finished("9"), "finished('9')"),
    "the replica is there already": (lambda it: it.add_replica("A"), "add_replica('A')"),
    "there is no such replica": (lambda it: it.remove_replica("C"), "remove_replica('C')"),
}


@pytest.mark.points(2)
@pytest.mark.parametrize("why", ROUTER_WRONG)
def test_task_4_refused_calls_change_nothing(lab, why):
    wrong, call = ROUTER_WRONG[why]
    router, got = routed(lab, LAW, ART, "x")
    before = router.loads, router.num_cached(LAW), router.num_blocks, [router.replica_of(name) for name in "0129"]
    assert sum(router.loads.values()) == 3, f"three requests are in flight, loads is {router.loads}"
    with must_raise(ValueError, call, why):
        wrong(router)
    after = router.loads, router.num_cached(LAW), router.num_blocks, [router.replica_of(name) for name in "0129"]
    assert after == before, (f"{call} was refused because {why}; loads, num_cached, num_blocks and the places of the "
                             f"requests were {before} and are now {after}: nothing may change")
    assert router.num_cached(["new"]) == {"A": 0, "B": 0}, f"{call} was refused, but its blocks were recorded"


@pytest.mark.points(1)
def test_task_4_two_routers_know_nothing_of_each_other(lab):
    one, got = routed(lab, LAW)
    other = lab.CacheAwareRouter(["A", "B"])
    assert one.num_cached(LAW)[got[0]] == 3, "a router remembers what it sent"
    assert other.num_cached(LAW) == other.loads == {"A": 0, "B": 0}, (
        f"another router was made: its num_cached is {other.num_cached(LAW)} and its loads are {other.loads}")


@pytest.mark.points(2)
def test_task_4_the_same_calls_give_the_same_answers(lab):
    def answers():
        router, rng = lab.CacheAwareRouter(["A", "B", "C"], max_blocks=30), random.Random(66)
        given, running = [], []
        for number in range(80):
            blocks = [rng.randrange(3) for _ in range(rng.randrange(5))]
            given.append(sent(router, str(number), blocks))
            running.append(str(number))
            if rng.random() < 0.6:
                router.finished(running.pop(rng.randrange(len(running))))
        return given

    def after_refusals(num_refusals):
        router = lab.CacheAwareRouter(["A", "B", "C"])
        router.route("first", ["x"])
        for _ in range(num_refusals):
            with must_raise(ValueError, "route('first', …) while it is in flight"):
                router.route("first", ["y"])
        return [sent(router, str(number), [f"new {number}"]) for number in range(9)]

    plain, refused = after_refusals(0), after_refusals(1)
    assert plain == refused, (f"nine new prompts were sent to {plain}, and after a refused call to {refused}: a call "
                              "that "
                              "raises an error changes nothing, and so no later answer")
    first = answers()
    assert set(first) == {"A", "B", "C"}, f"80 requests were sent to {sorted(set(first))} only, expected all replicas"
    second = answers()
    differing = [number for number, pair in enumerate(zip(first, second)) if pair[0] != pair[1]]
    assert not differing, (f"two routers were given the same 80 requests. The answers differ first at request "
                           f"{differing[0]}: {first[differing[0]]} and {second[differing[0]]}. A router has no clock "
                           "and "
                           "no random numbers, and knows nothing of other routers")


# ---- Task 4: a simulated fleet


@pytest.mark.points(2)
@pytest.mark.step
def test_task_4_prefixes_half_of_the_way(lab):
    CONTEST.check_step(lab, ["prefixes"], 0.5, "Half of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_4_popular_half_of_the_way(lab):
    CONTEST.check_step(lab, ["popular"], 0.5, "Half of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_4_chats_half_of_the_way(lab):
    CONTEST.check_step(lab, ["chats"], 0.5, "Half of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_4_documents_half_of_the_way(lab):
    CONTEST.check_step(lab, ["documents"], 0.5, "Half of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_4_outage_half_of_the_way(lab):
    CONTEST.check_step(lab, ["outage"], 0.5, "Half of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_4_popular_three_quarters_of_the_way(lab):
    CONTEST.check_step(lab, ["popular"], 0.75, "Three quarters of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_4_chats_three_quarters_of_the_way(lab):
    CONTEST.check_step(lab, ["chats"], 0.75, "Three quarters of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_4_documents_three_quarters_of_the_way(lab):
    CONTEST.check_step(lab, ["documents"], 0.75, "Three quarters of the gap")


@pytest.mark.points(2)
@pytest.mark.step
def test_task_4_outage_three_quarters_of_the_way(lab):
    CONTEST.check_step(lab, ["outage"], 0.75, "Three quarters of the gap")


@pytest.mark.points(1)
def test_task_4_traces_that_no_file_has_seen(lab, keep_score):
    keep_score(CONTEST.checked_total(lab))
