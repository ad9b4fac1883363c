"""What is counted, under which labels, and that strangers cannot make the labels grow."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sandgate_router import metrics as metrics_module
from sandgate_router.metrics import BUCKETS, MAX_NAMESPACES, RequestMetrics


@pytest.fixture
def metrics() -> RequestMetrics:
    return RequestMetrics()


def sample(metrics: RequestMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"sandbox_router_{name}", labels)


def requests(metrics: RequestMetrics, method: str, code: str, namespace: str) -> float | None:
    labels = {"method": method, "code": code, "sandbox_namespace": namespace}
    return sample(metrics, "requests_total", **labels)


def test_a_request_is_counted_by_method_code_and_namespace(metrics: RequestMetrics) -> None:
    for _ in range(3):
        metrics.observe(b"POST", 200, "default", 0.01)
    metrics.observe(b"POST", 502, "default", 0.01)
    metrics.observe(b"GET", 200, "-", 0.01)
    assert requests(metrics, "POST", "200", "default") == 3
    assert requests(metrics, "POST", "502", "default") == 1
    assert requests(metrics, "GET", "200", "-") == 1


def test_a_duration_falls_into_every_bucket_whose_bound_it_does_not_pass(
    metrics: RequestMetrics,
) -> None:
    for seconds in (0.0, 0.005, 0.0051, 0.3, 180.0, 181.0):
        metrics.observe(b"POST", 200, "default", seconds)
    labels = {"method": "POST", "code": "200", "sandbox_namespace": "default"}
    name = "request_duration_seconds"
    bounds = [*(str(bound) for bound in BUCKETS), "+Inf"]
    counts = [sample(metrics, f"{name}_bucket", le=bound, **labels) for bound in bounds]
    assert counts == [2, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 5, 6]
    assert sample(metrics, f"{name}_count", **labels) == 6
    assert sample(metrics, f"{name}_sum", **labels) == pytest.approx(361.3101)


def test_methods_and_codes_that_nobody_registered_are_counted_as_other(
    metrics: RequestMetrics,
) -> None:
    for method in (b"BREW", b"get", b"\xff", b"-"):
        metrics.observe(method, 200, "default", 0.01)
    metrics.observe(b"GET", 799, "default", 0.01)
    assert requests(metrics, "other", "200", "default") == 4
    assert requests(metrics, "GET", "other", "default") == 1


def test_namespaces_beyond_the_limit_are_counted_as_other(metrics: RequestMetrics) -> None:
    for number in range(MAX_NAMESPACES + 10):
        metrics.observe(b"GET", 200, f"ns-{number}", 0.01)
        metrics.count_upstream_error(f"ns-{number}", "dial")
        metrics.count_upstream_retry(f"ns-{number}")
    metrics.observe(b"GET", 200, "-", 0.01)
    assert requests(metrics, "GET", "200", f"ns-{MAX_NAMESPACES - 1}") == 1
    assert requests(metrics, "GET", "200", f"ns-{MAX_NAMESPACES}") is None
    assert requests(metrics, "GET", "200", "other") == 10
    assert requests(metrics, "GET", "200", "-") == 1
    other = {"sandbox_namespace": "other"}
    assert sample(metrics, "upstream_errors_total", reason="dial", **other) == 10
    assert sample(metrics, "upstream_retries_total", **other) == 10


def test_label_sets_beyond_the_limit_are_counted_under_the_namespace_other(
    metrics: RequestMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "MAX_SERIES", 2)
    for code in (200, 201, 202, 202):
        metrics.observe(b"GET", code, "default", 0.01)
    assert requests(metrics, "GET", "201", "default") == 1
    assert requests(metrics, "GET", "202", "default") is None
    assert requests(metrics, "GET", "202", "other") == 2


def test_failures_and_further_tries_are_counted_by_namespace(metrics: RequestMetrics) -> None:
    metrics.count_upstream_error("default", "dial")
    metrics.count_upstream_error("default", "dial")
    metrics.count_upstream_error("default", "eof")
    metrics.count_upstream_retry("default")
    labels = {"sandbox_namespace": "default"}
    assert sample(metrics, "upstream_errors_total", reason="dial", **labels) == 2
    assert sample(metrics, "upstream_errors_total", reason="eof", **labels) == 1
    assert sample(metrics, "upstream_retries_total", **labels) == 1


def test_the_gauges_show_requests_under_way_and_what_runs(metrics: RequestMetrics) -> None:
    metrics.inflight += 3
    metrics.inflight -= 1
    assert sample(metrics, "inflight_requests") == 2
    assert b'sandbox_router_build_info{python_version="3.' in generate_latest(metrics.registry)


def test_two_gateways_in_one_process_count_apart(metrics: RequestMetrics) -> None:
    metrics.observe(b"GET", 200, "default", 0.01)
    assert requests(RequestMetrics(), "GET", "200", "default") is None
    assert isinstance(metrics.registry, CollectorRegistry)


def test_the_text_is_what_an_openmetrics_parser_reads(metrics: RequestMetrics) -> None:
    metrics.observe(b"GET", 200, "default", 0.01)
    metrics.count_upstream_error("default", "dial")
    text = generate_openmetrics(metrics.registry).decode()  # type: ignore[no-untyped-call]
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    assert [family.name for family in families] == [
        "sandbox_router_requests",
        "sandbox_router_request_duration_seconds",
        "sandbox_router_inflight_requests",
        "sandbox_router_upstream_errors",
        "sandbox_router_upstream_retries",
        "sandbox_router_build_info",
    ]
