"""Tests of lab 3.5's arena, its traces, the hit rates with which a policy is compared, and the score."""

import itertools
import random
import sys
from collections import OrderedDict
from functools import cache

import pytest

from course.eviction import arena
from course.eviction.arena import Block, IllegalEviction, Trace, num_hits
from course.eviction.remembered import num_kept, remembered_keys
from course.eviction.score import ScoreLine, main, optimum, reference, score, table, total
from course.eviction.traces import fixed_traces, random_trace
from course.lab.lab import discover, find_lab
from course.lab.load_module import load_file

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
def all_traces():
    return fixed_traces() + [random_trace(seed) for seed in range(5)]


@cache
def scored():
    """Score lab 3.5's solution: one line for each of ``all_traces``."""
    return score(load_file(find_lab("3.5", discover()).solution).EvictionPolicy)


def test_traces_are_the_same_every_time_and_of_the_promised_size():
    again = fixed_traces() + [random_trace(seed) for seed in range(5)]
    for trace, other in zip(all_traces(), again):
        assert trace == other
        assert 100 <= trace.num_blocks <= 400 and 250 <= len(trace.requests) <= 3000, trace.name
        assert trace.num_asked < 10_000, f"{trace.name}: a policy that takes O(num_blocks) per call would be too slow"
    assert random_trace(1).requests != random_trace(2).requests


def test_the_engine_is_clearly_below_the_optimum_where_thinking_pays():
    for line in scored():
        if line.trace in ("scan", "few-shot"):
            assert line.reference + 0.1 < line.optimum


# ---- naive, reference, optimum


def test_the_engine_has_the_hits_of_least_recently_freed():
    for trace, line in zip(all_traces(), scored()):
        assert line.reference == num_hits(trace, Lru) / trace.num_asked, trace.name
    for trace in random_traces(60, max_blocks=6, num_requests=25, seed=1):
        assert reference(trace) == num_hits(trace, Lru), trace


def test_nobody_is_above_the_optimum():
    for line in scored():
        assert line.naive < line.reference < line.optimum, line.trace


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


def test_the_total_is_the_part_of_the_way():
    lines = [ScoreLine("a", 0.5, naive=0.2, reference=0.3, optimum=0.8), ScoreLine("b", 0.1, 0.2, 0.3, 0.4),
             ScoreLine("c", 0.4, 0.4, 0.4, 0.4)]
    assert total(lines[:1]) == pytest.approx(50.0)
    assert total(lines[1:2]) == pytest.approx(-50.0)
    assert total(lines[2:]) == 100.0, "if naive and optimum are equal, the gap counts as closed"
    assert total(lines) == pytest.approx(100 / 3)
    with pytest.raises(ValueError, match="'a' has no hit rate of a policy"):
        total([ScoreLine("a", None, 0.2, 0.3, 0.8)])


def test_the_score_has_a_line_for_every_trace_and_the_solution_beats_the_engine():
    lines = scored()
    assert [line.trace for line in lines] == ["chats", "few-shot", "scan", "agents", "mixture", *(
        f"random {i}" for i in range(5))]
    of_engine = [ScoreLine(line.trace, line.reference, line.naive, line.reference, line.optimum) for line in lines]
    assert total(of_engine) + 20 < total(lines) < 100
    assert f"{total(lines):.1f}" in table(lines).splitlines()[-1]
    readme = find_lab("3.5", discover()).readme.read_text(encoding="utf-8")
    assert table(lines) in readme, f"the table on the lab's page is out of date:\n{table(lines)}"


def test_another_seed_brings_other_random_traces(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["eviction", "--seed", "2"])
    monkeypatch.setattr("course.eviction.score.fixed_traces", lambda: [])
    main()
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("  ")[0] for row in rows[1:6]] == [f"random {i}" for i in range(10, 15)]
    assert rows[-1].split() == ["total", "0.0", rows[-1].split()[2], "100.0", "–"]
