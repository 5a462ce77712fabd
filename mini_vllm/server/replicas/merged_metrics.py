"""The metrics of all replicas as one page: each sample gets the label ``replica``, so nothing is summed wrongly.

``sum without (replica) (mini_vllm_tokens_total)`` adds them up in Prometheus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from mini_vllm.server.replicas.exchange import ReplicaError
from mini_vllm.server.replicas.fleet import CHECK_TIMEOUT_S, Fleet, Replica
from mini_vllm.server.replicas.router_numbers import RouterError, numbers_of


async def merged_metrics(fleet: Fleet, replicas: Fleet, authorization: str | None) -> bytes:
    """Return the metrics of the front and of every replica that answers, in Prometheus' text format."""
    up = replicas.up()
    pages = await asyncio.gather(*(_page(replica, authorization) for replica in up))
    registry = CollectorRegistry()
    registry.register(_Collected([*_own(fleet, replicas), *merge(dict(zip([each.name for each in up], pages)))]))
    return generate_latest(registry)


async def _page(replica: Replica, authorization: str | None) -> str:
    """Return the metrics of one replica; nothing if it does not answer in time or does not know the caller."""
    headers = [] if authorization is None else [(b"authorization", authorization.encode("latin-1"))]

    async def read() -> str:
        async with replica.connections.ask("GET", b"/metrics", headers) as answer:
            body = await answer.body()
            return body.decode() if answer.status == 200 else ""

    try:
        return await asyncio.wait_for(read(), CHECK_TIMEOUT_S)
    except (ReplicaError, asyncio.TimeoutError):
        return ""


def merge(pages: dict[str, str]) -> list[Metric]:
    """Return one family for each metric, with the samples of all replicas."""
    families: dict[str, Metric] = {}
    for replica, page in pages.items():
        for found in text_string_to_metric_families(page):
            family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
            for sample in found.samples:
                family.samples.append(sample._replace(labels={**sample.labels, "replica": replica}))
    return list(families.values())


def _own(fleet: Fleet, replicas: Fleet) -> Iterator[Metric]:
    up = GaugeMetricFamily("mini_vllm_replica_up", "1 if the replica takes requests, else 0.", labels=["replica"])
    load = GaugeMetricFamily("mini_vllm_replica_requests_in_flight", "Requests in flight at the replica.",
                             labels=["replica"])
    routed = CounterMetricFamily("mini_vllm_replica_routed_requests", "Requests that were sent to the replica.",
                                 labels=["replica"])
    try:
        loads = numbers_of(fleet.router, "loads", [replica.name for replica in fleet.up()]) or {}
    except RouterError:
        loads = {}
    for name, replica in {**replicas.replicas, **fleet.replicas}.items():
        up.add_metric([name], float(replica.is_up))
    for name, replica in fleet.replicas.items():
        load.add_metric([name], loads.get(name, 0))
        routed.add_metric([name], replica.num_routed)
    yield from (up, load, routed)
    yield CounterMetricFamily("mini_vllm_moved_requests", "Requests that went to another replica because one failed.",
                              value=fleet.num_moved)


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families
