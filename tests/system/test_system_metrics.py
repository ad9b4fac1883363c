"""What a scraper and a load balancer see of a running gateway, to its end."""

import signal

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.system_gateway import routing_fields, sandgate_up, wait_until


def count(url: str, **labels: str) -> float:
    """Return how many requests with these labels the gateway has counted."""
    content = httpx.get(f"{url}/metrics", timeout=30).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(content)
        for sample in family.samples
        if sample.name == "sandbox_router_requests_total"
        and labels.items() <= sample.labels.items()
    )


def test_metrics_count_requests_and_readiness_goes_before_the_end(best_isolation: str) -> None:
    environ = {"SANDGATE_DRAIN_DELAY": "600"}
    flags = ("--metrics-listen", "127.0.0.1:0")
    with (
        sandgate_up(*flags, isolation=best_isolation, environ=environ) as gateway,
        gateway.sandboxes() as sandboxes,
        gateway.client() as client,
    ):
        metrics = gateway.read_line("metrics on ")
        assert metrics != gateway.url
        sandbox = sandboxes.claim("python")
        fields = routing_fields(sandbox)
        counted = {"method": "POST", "code": "200", "sandbox_namespace": "default"}
        assert count(metrics, **counted) == 0
        for number in range(1, 4):
            answer = client.post("/execute", headers=fields, json={"command": "true"})
            assert answer.json()["exit_code"] == 0
            assert count(metrics, **counted) == number
        missing = client.get("/download/missing", headers=fields)
        assert missing.status_code == 404
        assert count(metrics, method="GET", code="404", sandbox_namespace="default") == 1

        assert client.get("/readyz").status_code == 200
        gateway.signal(signal.SIGTERM)
        wait_until(lambda: client.get("/readyz").status_code == 503)
        refused = client.get("/readyz")
        assert refused.json()["code"] == "draining"
        assert refused.headers["x-sandbox-error"] == "draining"
        assert "retry-after" in refused.headers
        assert client.get("/livez").status_code == 200
        assert sandbox.commands.run("echo served").stdout == "served\n"
        with gateway.client() as newcomer:
            answer = newcomer.post("/execute", headers=fields, json={"command": "echo served"})
            assert answer.json()["stdout"] == "served\n"
        sandboxes.claim("python").release()
        assert count(metrics, **counted) >= 5

        gateway.signal(signal.SIGTERM)  # a second one ends it at once
        assert gateway.wait() == 0, gateway.errors()
        assert not list(gateway.temporary.iterdir())


def test_metrics_are_off_until_asked_for(best_isolation: str) -> None:
    with sandgate_up(isolation=best_isolation) as gateway, gateway.client() as client:
        assert client.get("/metrics").status_code == 400  # a path of some sandbox, then
        gateway.signal(signal.SIGINT)
        assert gateway.wait() == 0
        assert "metrics on" not in gateway.read_rest()
