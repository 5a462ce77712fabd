"""Tests of lab 3.5's arena, its traces, the hit rates with which a policy is compared, and the score."""

import itertools
import random
import sys
from collections import OrderedDict
from contextlib import suppress
from functools import cache
from types import SimpleNamespace

import pytest

from course.eviction import arena
from course.eviction.arena import Block, IllegalEviction, Trace, num_hits
from course.eviction.remembered import num_kept, remembered_keys
from course.eviction.score import CONTEST, optimum, reference, score, table, total
from course.eviction.traces import make_trace
from course.lab.graded_tests import graded_tests
from course.lab.lab import discover, find_lab
from course.lab.load_module import load_file

LAB = find_lab("3.5", discover())
A, B, C, D = Block(1, None, 0), Block(2, 1, 1), Block(3, 2, 2), Block(4, None, 0)


class Lru:
    """Evicts the least recently freed block, and logs its calls and evictions."""

    def __init__(self, num_blocks):
        self.queue, self.log = OrderedDict(), []

    def freed(self, block):
        self.log.append(("freed", block.key))
        self.queue[block] = None

    def taken(self, block):
        self.log.append(("taken", block.key))
        del self.queue[block]

    def evict(self):
        block = self.queue.popitem(last=False)[0]
        self.log.append(("evict", block.key))
        return block


class RootsFirst(Lru):
    def evict(self):
        block = min(self.queue, key=lambda each: each.depth)
        del self.queue[block]
        return block


def made(policy, answer=None):
    """Return a policy class whose only instance is ``policy``; ``answer``, if given, replaces its ``evict``."""
    if answer is not None:
        policy.evict = answer
    return lambda num_blocks: policy


def random_traces(num_traces, max_blocks, num_requests, seed):
    """Yield traces of paths in small random trees."""
    rng = random.Random(seed)
    for number in range(num_traces):
        num_blocks, tree, requests = rng.randint(1, max_blocks), {}, []
        for _ in range(num_requests):
            path, chain = (), []
            for _ in range(rng.randint(1, num_blocks)):
                parent = tree.get(path)
                path += (rng.randint(0, 2),)
                chain.append(tree.setdefault(path, Block(len(tree) + 1, parent and parent.key, len(path) - 1)))
            requests.append(tuple(chain))
        yield Trace(f"tree {number}", num_blocks, requests)


# ---- the arena


def test_a_policy_is_told_of_hits_from_the_root_and_of_ends_from_the_tail():
    policy = Lru(3)
    hits = num_hits(Trace("t", 3, [(A, B, C), (A, B), (D,), (A, B, C)]), made(policy))
    assert policy.log == [("freed", 3), ("freed", 2), ("freed", 1), ("taken", 1), ("taken", 2), ("freed", 2),
                          ("freed", 1), ("evict", 3), ("freed", 4), ("taken", 1), ("taken", 2), ("evict", 4),
                          ("freed", 3), ("freed", 2), ("freed", 1)]
    assert hits == 4, "2 in the second request, 2 in the last"


def test_what_has_lost_its_parent_is_no_hit_and_is_computed_in_its_place():
    policy = RootsFirst(3)
    hits = num_hits(Trace("t", 3, [(A, B, C), (D,), (A, B, C)]), made(policy))
    assert hits == 0, "A was evicted for D, so neither B nor C can be found"
    assert policy.log[-5:] == [("taken", 2), ("taken", 3), ("freed", 3), ("freed", 2), ("freed", 1)]


@pytest.mark.parametrize("answer, words", [
    (lambda: None, "returned None, expected a Block"),
    (lambda: 1, "returned 1, expected a Block"),
    (lambda: A, r"returned Block\(key=1, parent=None, depth=0\), which the running request uses"),
    (lambda: D, r"key=4.* which is not in the cache"),
])
def test_an_illegal_answer_is_refused_by_name(answer, words):
    trace = Trace("small", 2, [(A, B), (A, B), (A, Block(9, 1, 1))])
    with pytest.raises(IllegalEviction, match=words) as error:
        num_hits(trace, made(Lru(2), answer))
    assert "request 3 of 'small' needs room, but evict()" in str(error.value)


def test_a_block_cannot_go_twice():
    with pytest.raises(IllegalEviction, match="not in the cache: it was evicted before"):
        num_hits(Trace("t", 2, [(A, B), (D,), (Block(5, None, 0),)]), made(Lru(2), lambda: B))


@pytest.mark.parametrize("chain, words", [
    ((), "has 0 blocks, must have between 1 and 2"),
    ((A, B, C), "has 3 blocks, must have between 1 and 2"),
    ((B,), "is at depth 0"),
    ((A, D), "is at depth 1 of its request, after the block with key 1"),
])
def test_a_request_that_cannot_be_served_is_no_trace(chain, words):
    with pytest.raises(ValueError, match=words):
        Trace("t", 2, [chain])


def test_what_calls_a_policy_in_the_arena_has_no_variable_with_the_requests():
    requests = [(A, B, C), (A, B), (D,)]
    num_seen = 0

    class Looks(Lru):
        def look(self):
            nonlocal num_seen
            frame = sys._getframe(1)
            while frame:
                if frame.f_code.co_filename == arena.__file__:
                    num_seen += 1
                    for name, value in frame.f_locals.items():
                        assert not isinstance(value, Trace) and value is not requests, f"{frame.f_code}: {name}"
                frame = frame.f_back

        def __init__(self, num_blocks):
            super().__init__(num_blocks)
            self.look()

        def evict(self):
            self.look()
            return super().evict()

    num_hits(Trace("t", 3, requests), Looks)
    assert num_seen >= 6, "the policy is created once and called once, each time below num_hits, play and the cache"


FORGETS_NOTHING = """
from collections import OrderedDict
from functools import cache

everything = []

def noted(block, keys=[]):
    keys.append(block.key)

def closed_over():
    texts = set()
    return lambda block: texts.add(f"block {block.key}")

add_text = closed_over()

@cache
def depth(key):
    return key * 0

class EvictionPolicy:
    of_all = {}

    def freed(self, block):
        {note}

    def evict(self):
        pass
"""


@pytest.mark.parametrize("note", [
    "everything.append(block)", "noted(block)", "add_text(block)", "depth(block.key)", "self.of_all[block.key] = 1",
    "self.__dict__.setdefault('own', []).append([float(block.key)])",
    "self.last = (block.key, getattr(self, 'last', None))"])
def test_what_a_policy_keeps_is_found_beside_it_too(tmp_path, note):
    (tmp_path / "policy.py").write_text(FORGETS_NOTHING.replace("{note}", note), "utf-8")
    policy = load_file(tmp_path / "policy.py").EvictionPolicy()
    keys = range(10**9, 10**9 + 100)
    before = num_kept(policy)
    for key in keys:
        policy.freed(Block(key, None, 0))
    assert remembered_keys(policy, set(keys)) == set(keys)
    assert before + 100 <= num_kept(policy) < 2000


def test_remembered_keys_are_found_wherever_they_are_kept():
    keys = set(range(10**9, 10**9 + 6))
    policy = Lru(3)
    policy.freed(Block(10**9, 10**9 + 1, 1))
    policy.nested = {"a": [{10**9 + 2}], "b": {10**9 + 3: 7}}
    policy.log.clear()
    assert remembered_keys(policy, keys) == {10**9, 10**9 + 2, 10**9 + 3}, "a parent's key does not count"


# ---- the traces


@cache
def scored():
    """Score lab 3.5's solution."""
    return score(load_file(LAB.solution).EvictionPolicy)


def test_traces_are_the_same_every_time_and_of_the_promised_size():
    for name in CONTEST.names:
        trace = make_trace(name)
        assert trace == make_trace(name) and trace.name == name
        assert 100 <= trace.num_blocks <= 400 and 250 <= len(trace.requests) <= 3000, trace.name
        assert trace.num_asked < 10_000, f"{trace.name}: a policy that takes O(num_blocks) per call would be too slow"
        assert make_trace(name, 7) == make_trace(name, 7) != make_trace(name, 8)
        assert make_trace(name, 7).requests != trace.requests and make_trace(name, 7).name == f"{name} of seed 7"


def test_the_engine_is_clearly_below_the_optimum_where_thinking_pays():
    for line in scored():
        if line.trace.name in ("scan", "few-shot"):
            assert line.reference + 0.1 * line.trace.num_asked < line.bound


# ---- naive, reference, optimum


def test_the_engine_has_the_hits_of_least_recently_freed():
    for line in scored():
        assert line.reference == num_hits(line.trace, Lru), line.trace.name
    for trace in random_traces(60, max_blocks=6, num_requests=25, seed=1):
        assert reference(trace) == num_hits(trace, Lru), trace


def test_nobody_is_above_the_optimum():
    for line in scored():
        assert line.naive < line.reference < line.bound, line.trace.name


def best_by_trying(trace):
    """Return the most hits that any policy can have, by trying every set of blocks that may be evicted."""

    @cache
    def best(number, cached):
        if number == len(trace.requests):
            return 0
        chain = trace.requests[number]
        keys = {block.key for block in chain}
        hits = next((i for i, block in enumerate(chain) if block.key not in cached), len(chain))
        num_gone = max(len(cached | keys) - trace.num_blocks, 0)
        return hits + max(best(number + 1, cached.difference(gone) | keys)
                          for gone in itertools.combinations(sorted(cached - keys), num_gone))

    return best(0, frozenset())


def test_no_policy_is_better_than_the_optimum():
    num_interesting = 0
    for trace in random_traces(120, max_blocks=5, num_requests=10, seed=2):
        best = best_by_trying(trace)
        assert optimum(trace) == best, f"{trace}: trying all choices finds {best} hits"
        num_interesting += best > reference(trace)
    assert num_interesting > 20, "on too few of these traces does the policy matter"


# ---- the score


def test_the_score_has_a_line_for_every_trace_and_the_solution_beats_the_engine():
    lines = scored()
    assert [line.trace.name for line in lines] == ["chats", "few-shot", "scan", "agents", "mixture", *(
        f"random {i}" for i in range(5))]
    assert CONTEST.landmarks(lines)["reference"] + 20 < total(lines) < 100
    readme = LAB.readme.read_text(encoding="utf-8")
    assert table(lines) in readme, f"the table on the lab's page is out of date:\n{table(lines)}"


# ---- the lab's tests


class Belady(Lru):
    """Follows Belady's rule for requests that it knows."""

    def __init__(self, requests):
        super().__init__(0)
        self.number, self.end, self.uses = 0, len(requests), {}
        for number in reversed(range(len(requests))):
            for block in requests[number]:
                self.uses.setdefault(block, []).append(number)

    def freed(self, block):
        super().freed(block)
        self.number += block.depth == 0  # the root is the last block of a request to be freed

    def evict(self):
        block = max(self.queue, key=lambda each: (self._next_use(each), each.depth))
        del self.queue[block]
        return block

    def _next_use(self, block):
        uses = self.uses.get(block, [])
        while uses and uses[-1] < self.number:
            uses.pop()
        return uses[-1] if uses else self.end


def cheat(names=()):
    """Return a module whose policy knows the published traces with these names, and remembers all that it is asked
    for. What it has met before, it plays with Belady's rule, and anything else like the engine."""
    known = {}  # the calls before the first evict() → the requests of the whole trace

    class Cheat:
        def __init__(self, num_blocks):
            self.policy, self.calls, self.requests, self.chain = None, [], [], []

        def freed(self, block):
            self.call("freed", block)
            self.chain.insert(0, block)
            if block.depth == 0:
                self.requests.append(tuple(self.chain))
                self.chain = []

        def taken(self, block):
            self.call("taken", block)

        def call(self, name, block):
            self.calls.append((name, block))
            if self.policy:
                getattr(self.policy, name)(block)

        def evict(self):
            if self.policy is None:
                requests = known.setdefault(tuple(self.calls), self.requests)
                self.policy = Lru(0) if requests is self.requests else Belady(list(requests))
                for name, block in self.calls:
                    getattr(self.policy, name)(block)
            return self.policy.evict()

    for name in names:
        num_hits(make_trace(name), Cheat)
    return SimpleNamespace(EvictionPolicy=Cheat)


def steps_passed(module, monkeypatch):
    """Return the points that a module gets for its hit rates, and whether it keeps a score."""
    for name, value in (("_played", {}), ("unseen_seeds", [1000]), ("names", ["scan", "mixture"])):
        monkeypatch.setattr(CONTEST, name, value, raising=False)
    tests, points, kept = load_file(LAB.tests), 0, []
    for test in graded_tests(LAB):
        if test.is_step:
            with suppress(AssertionError):
                getattr(tests, test.name)(module)
                points += test.points
    with suppress(AssertionError):
        tests.test_task_3_every_answer_is_legal_in_the_traces_of_the_score(module, kept.append)
    return points, kept


def test_who_knows_or_remembers_traces_earns_what_it_earns_honestly(monkeypatch):
    honest = steps_passed(SimpleNamespace(EvictionPolicy=Lru), monkeypatch)
    assert honest == (3, [pytest.approx(25.0, abs=0.1)]), "the engine's policy loses nothing on chats and agents"
    assert steps_passed(cheat(), monkeypatch) == honest, "it remembers"
    assert steps_passed(cheat(CONTEST.names), monkeypatch) == (3, []), "it knows: Belady's rule on published traces"
    good, kept = steps_passed(load_file(LAB.solution), monkeypatch)
    assert good == 35 and kept
