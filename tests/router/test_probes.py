"""Readiness, and the listener for metrics."""

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.asgi_server import serve

from sandgate_router.metrics import RequestMetrics
from sandgate_router.probes import Readiness, build_metrics_app


def test_readiness_goes_from_starting_to_ready_to_draining_and_never_back() -> None:
    readiness = Readiness()
    assert repr(readiness) == "<Readiness starting>"
    readiness.mark_ready()
    assert repr(readiness) == "<Readiness ready>"
    readiness.mark_draining()
    readiness.mark_ready()
    assert repr(readiness) == "<Readiness draining>"


def test_a_gateway_told_to_stop_while_it_starts_never_becomes_ready() -> None:
    readiness = Readiness()
    readiness.mark_draining()
    readiness.mark_ready()
    assert readiness.state == "draining"


async def test_a_scraper_reads_the_format_that_it_asks_for() -> None:
    metrics = RequestMetrics()
    metrics.observe(b"GET", 200, "default", 0.01)
    async with serve(build_metrics_app(metrics)) as address, httpx.AsyncClient() as client:
        plain = await client.get(f"http://{address}/metrics")
        openmetrics = await client.get(
            f"http://{address}/metrics", headers={"accept": "application/openmetrics-text"}
        )
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert {family.name for family in text_string_to_metric_families(plain.text)} >= {
        "sandbox_router_requests",
        "sandbox_router_request_duration_seconds",
    }
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")


async def test_the_metrics_listener_serves_its_own_health_and_nothing_else() -> None:
    async with serve(build_metrics_app(RequestMetrics())) as address, httpx.AsyncClient() as client:
        health = await client.get(f"http://{address}/healthz", headers={"host": "any.example"})
        claims = await client.get(f"http://{address}/v1/claims")
        head = await client.head(f"http://{address}/metrics")
        posted = await client.post(f"http://{address}/metrics")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert claims.status_code == 404
    assert (head.status_code, head.content) == (200, b"")
    assert posted.status_code == 405
