"""What pools hold and what becomes of claims, as a scraper reads it.

Pools are asked how they stand at each scrape. Claims are counted by the events that the registry
tells on the event loop; a scrape in a thread reads copies. Refused claims are no events: they are
among the requests of the control API, by their status code.

Names of pools and namespaces come from settings, or from a cluster's objects, never from who
claims: a claim is counted once a pool of that name was found.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sandgate_router.registry.base import Event, Registry

WAIT_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds. A warm member is had within the first; the last is the longest wait."""

MAX_POOLS = 1000
"""Pools with series of their own; later ones are counted as `other`."""

OTHER = ("other", "other")

_OUTCOMES = {
    "claim.created": "created",
    "claim.released": "released",
    "claim.expired": "expired",
    "claim.failed": "failed",
}
_POOL_LABELS = ("sandbox_namespace", "pool")
_BOUNDS = (*map(str, WAIT_BUCKETS), "+Inf")
_SUM = len(_BOUNDS)

_Key = tuple[str, str]


class ClaimMetrics(Collector):
    """Counts the claims of one registry, and tells how its pools stand."""

    def __init__(self, registry: Registry) -> None:
        """Listen to what happens from now on."""
        self._registry = registry
        self._claims: dict[tuple[str, str, str], int] = {}
        self._waits: dict[_Key, list[float]] = {}
        registry.on_event(self._count)

    def collect(self) -> Iterator[Metric]:
        """Yield every family as it stands; called by a scrape, in any thread."""
        yield from self._pools()
        claims = CounterMetricFamily(
            "sandgate_claims",
            "Claims that were created, and that were released, expired or failed since.",
            labels=(*_POOL_LABELS, "outcome"),
        )
        for key, count in list(self._claims.items()):
            claims.add_metric(key, count)
        yield claims
        waits = HistogramMetricFamily(
            "sandgate_claim_wait_seconds",
            "From the request of a claim to its sandbox.",
            labels=_POOL_LABELS,
        )
        for pool, series in list(self._waits.items()):
            counts = accumulate(series[:_SUM])
            buckets = list(zip(_BOUNDS, counts, strict=True))
            waits.add_metric(pool, buckets, sum_value=series[_SUM])
        yield waits

    def _pools(self) -> Iterator[Metric]:
        members = GaugeMetricFamily(
            "sandgate_pool_members",
            "Sandboxes of a pool that stand ready, start, or are claimed.",
            labels=(*_POOL_LABELS, "state"),
        )
        waiting = GaugeMetricFamily(
            "sandgate_pool_waiting", "Claims that wait for a sandbox.", labels=_POOL_LABELS
        )
        for pool in self._registry.pools()[:MAX_POOLS]:
            key = (pool.namespace, pool.name)
            members.add_metric((*key, "ready"), pool.ready)
            members.add_metric((*key, "starting"), pool.starting)
            members.add_metric((*key, "claimed"), pool.claimed)
            waiting.add_metric(key, pool.waiting)
        yield members
        yield waiting

    def _count(self, event: Event) -> None:
        outcome = _OUTCOMES.get(event.kind)
        if outcome is None:
            return
        pool: _Key = (event.namespace, event.pool)
        if outcome == "created":
            self._observe(pool, event)
        if pool not in self._waits:
            pool = OTHER
        key = (*pool, outcome)
        self._claims[key] = self._claims.get(key, 0) + 1

    def _observe(self, pool: _Key, event: Event) -> None:
        if pool not in self._waits and len(self._waits) >= MAX_POOLS:
            pool = OTHER
        series = self._waits.setdefault(pool, [0] * (_SUM + 1))
        milliseconds = 0.0 if event.claim is None else event.claim.timings.get("wait", 0.0)
        series[bisect_left(WAIT_BUCKETS, milliseconds / 1000)] += 1
        series[_SUM] += milliseconds / 1000
