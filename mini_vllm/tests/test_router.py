"""The routers: against a model that keeps a list of prefixes per replica, and each promise in a small example."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mini_vllm.conftest import examples
from mini_vllm.router import CacheAwareRouter, FirstBlockRouter, NoReplicaError, RoundRobinRouter

ROUTERS = [CacheAwareRouter, RoundRobinRouter, FirstBlockRouter]
NAMES = st.sampled_from(["a", "b", "c"])


class Model(RuleBasedStateMachine):
    """A router next to one list of prefixes per replica, the least recently used first."""

    @initialize(max_blocks=st.integers(1, 6), max_imbalance=st.integers(1, 3), weight=st.sampled_from([0, 0.5, 1, 5]))
    def start(self, max_blocks, max_imbalance, weight):
        self.router = CacheAwareRouter(max_blocks=max_blocks, max_imbalance=max_imbalance, load_weight=weight)
        self.prefixes, self.running, self.count = {}, {}, 0

    @rule(replica=NAMES)
    def add(self, replica):
        if replica in self.prefixes:
            with pytest.raises(ValueError, match="is there already"):
                self.router.add_replica(replica)
        else:
            self.router.add_replica(replica)
            self.prefixes[replica] = []

    @rule(replica=NAMES)
    def remove(self, replica):
        if replica not in self.prefixes:
            with pytest.raises(ValueError, match="there is no replica"):
                self.router.remove_replica(replica)
            return
        orphans = [name for name, where in self.running.items() if where == replica]
        assert self.router.remove_replica(replica) == orphans
        del self.prefixes[replica]
        for name in orphans:
            del self.running[name]

    def num_cached(self, replica, blocks):
        return max((len(prefix) for prefix in self.prefixes[replica] if prefix == blocks[:len(prefix)]), default=0)

    @rule(blocks=st.lists(st.integers(0, 2), max_size=8).map(tuple))
    def route(self, blocks):
        name, self.count = f"r{self.count}", self.count + 1
        if not self.prefixes:
            with pytest.raises(NoReplicaError, match=f"no replica can serve request '{name}'"):
                self.router.route(name, blocks)
            return
        loads, most = self.router.loads, self.router.max_blocks
        cached = {replica: self.num_cached(replica, blocks[:most]) for replica in self.prefixes}
        assert self.router.num_cached(blocks) == cached
        replica = self.router.route(name, blocks)
        assert replica in self.prefixes and loads[replica] < min(loads.values()) + self.router.max_imbalance
        score = {each: cached[each] - self.router.load_weight * loads[each] for each in loads
                 if loads[each] < min(loads.values()) + self.router.max_imbalance}
        assert score[replica] == max(score.values())
        self.running[name] = replica
        for end in range(min(len(blocks), most), 0, -1):
            if blocks[:end] in self.prefixes[replica]:
                self.prefixes[replica].remove(blocks[:end])
            self.prefixes[replica].append(blocks[:end])
        del self.prefixes[replica][:-most]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.router.finished(name)
        del self.running[name]
        with pytest.raises(ValueError, match="is not in flight"):
            self.router.finished(name)

    @invariant()
    def agree(self):
        self.router.check_integrity()
        assert self.router.loads == {replica: list(self.running.values()).count(replica) for replica in self.prefixes}
        assert self.router.num_blocks == {replica: len(prefixes) for replica, prefixes in self.prefixes.items()}
        assert max(self.router.num_blocks.values(), default=0) <= self.router.max_blocks


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


# ---- the decision


@pytest.mark.parametrize("load_weight, wanted", [(1, "aaab"), (2, "aab"), (0.5, "aaaaaab")])
def test_hits_are_weighed_against_load(load_weight, wanted):
    """Weigh three cached blocks: they are worth 3 / load_weight requests in flight."""
    router = CacheAwareRouter("ab", load_weight=load_weight, max_imbalance=100)
    assert "".join(router.route(str(number), "xyz") for number in range(len(wanted))) == wanted


# ---- replicas that leave and come back


@pytest.mark.parametrize("kind", ROUTERS)
def test_a_replica_that_left_gets_no_request(kind):
    router = kind("abc")
    for number in range(9):
        router.route(f"old {number}", [number % 3])
    orphans = router.remove_replica("b")
    assert orphans and all(router.replica_of(name) is None for name in orphans)
    assert {router.route(f"new {number}", [number % 3]) for number in range(9)} <= {"a", "c"}
    assert "b" not in router.loads
    with pytest.raises(ValueError, match="is not in flight"):
        router.finished(orphans[0])
    router.check_integrity()


@pytest.mark.parametrize("kind", ROUTERS)
def test_without_a_replica_there_is_a_clear_error(kind):
    router = kind()
    with pytest.raises(NoReplicaError, match="no replica can serve request 'r': none was added, or all have left"):
        router.route("r", "xyz")
    router.add_replica("a")
    assert router.route("r", "xyz") == "a" and router.loads == {"a": 1}


# ---- errors change nothing


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("call, message", [
    (lambda router: router.route("1", "xyz"), "request '1' is in flight at 'a' already"),
    (lambda router: router.route("2", [1, [2]]), r"blocks is \(1, \[2\]\), must be a sequence of hashable values"),
    (lambda router: router.finished("2"), "request '2' is not in flight"),
    (lambda router: router.add_replica("a"), "replica 'a' is there already"),
    (lambda router: router.add_replica(""), "replica is '', must be a name"),
    (lambda router: router.remove_replica("z"), "there is no replica 'z'; known are a"),
])
def test_an_error_changes_nothing(kind, call, message):
    router = kind("a")
    router.route("1", "xyz")
    with pytest.raises(ValueError, match=message):
        call(router)
    router.check_integrity()
    assert router.loads == {"a": 1} and router.replica_of("1") == "a"
    if kind is CacheAwareRouter:
        assert router.num_blocks == {"a": 3} and router.num_cached([1]) == {"a": 0}


@pytest.mark.parametrize("name, value, bound", [
    ("max_blocks", 0, "a whole number, at least 1"), ("max_imbalance", 0, "a whole number, at least 1"),
    ("load_weight", -1, "a finite number, at least 0"), ("max_blocks", 1.5, "a whole number"),
    ("load_weight", float("nan"), "a finite number")])
def test_settings_that_cannot_work_are_refused(name, value, bound):
    with pytest.raises(ValueError, match=f"{name} is .*, must be {bound}"):
        CacheAwareRouter("ab", **{name: value})


# ---- the simple routers


def test_round_robin_takes_turns():
    router = RoundRobinRouter("abc")
    assert [router.route(str(number), "same") for number in range(5)] == list("abcab")


def test_the_first_block_decides_and_only_the_prefixes_of_a_lost_replica_move():
    router = FirstBlockRouter("abc")
    before = {block: router.route(f"before {block}", [block, 1]) for block in range(60)}
    assert all(router.route(f"again {block}", [block, 2]) == before[block] for block in range(60))
    assert set(before.values()) == set("abc")
    router.remove_replica("b")
    after = {block: router.route(f"after {block}", [block]) for block in range(60)}
    assert all(after[block] == before[block] for block in range(60) if before[block] != "b")
