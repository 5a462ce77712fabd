"""The comparison of routers: its counts agree with the caches, and it can tell a good router from a bad one."""

import statistics

import pytest

from mini_vllm.benchmark.routing import SMOKE_TEST, Fleet, Workload, print_routing, run
from mini_vllm.router import CacheAwareRouter
from mini_vllm.routing.simple import RoundRobinRouter


def test_the_bound_is_reached_by_one_replica_with_room_for_all():
    """Keep everything in one pool: each prefix is computed once, and the score is the bound exactly."""
    roomy = Workload(num_replicas=1, num_prefixes=4, requests_per_prefix=5, num_shared=64, num_own=32, num_new=4,
                     num_seats=50)
    score = run(RoundRobinRouter, roomy, seed=0)
    assert score.cached == pytest.approx(roomy.bound) == pytest.approx(0.8 * 64 / 96) and score.busiest == 1


def test_the_caches_agree_with_the_score_and_the_router_is_idle_at_the_end():
    fleet = Fleet(CacheAwareRouter("ab"), SMOKE_TEST)
    for at_s, request in SMOKE_TEST.requests(3):
        fleet.serve(request, at_s)
    fleet.run_until()
    stats = [each.kv_cache.stats for each in fleet.replicas.values()]
    assert sum(each.num_queries for each in stats) == 16 == len(fleet.requests)
    assert fleet.score().cached == pytest.approx(
        sum(each.num_hit_tokens for each in stats) / sum(each.num_query_tokens for each in stats))
    assert fleet.router.loads == {"a": 0, "b": 0}
    assert all(len(request.output_token_ids) == 4 for request in fleet.requests)
    for each in fleet.replicas.values():
        each.kv_cache.check_integrity()


def test_the_same_seed_gives_the_same_score_and_another_seed_another():
    def arrivals(seed):
        return [(at_s, request.prompt_token_ids) for at_s, request in SMOKE_TEST.requests(seed)]
    assert arrivals(1) == arrivals(1) != arrivals(2)
    assert run(CacheAwareRouter, SMOKE_TEST, 1) == run(CacheAwareRouter, SMOKE_TEST, 1)


def test_a_router_that_knows_prefixes_beats_one_that_does_not():
    cached = {kind: statistics.fmean(run(kind, SMOKE_TEST, seed).cached for seed in range(4))
              for kind in (CacheAwareRouter, RoundRobinRouter)}
    assert SMOKE_TEST.bound >= cached[CacheAwareRouter] > cached[RoundRobinRouter] + 0.05


def test_what_is_printed(capsys):
    print_routing(seeds=range(2), workload=SMOKE_TEST)
    printed = capsys.readouterr().out
    for name in ("round robin", "first block", "cache-aware", "bound"):
        assert name in printed
    assert "In short: " in printed and f"{SMOKE_TEST.bound:.1%}" in printed
