"""What stands around the gateway fits it: routes, load balancers, their policies, metrics."""

import ipaddress
import re
from typing import Any

import pytest
from deploy.manifests import Manifest, container, environment, kustomize, of_kind, selects

from sandgate_router.config import Config


@pytest.mark.parametrize("overlay", ["kind", "gke"])
def test_a_load_balancer_never_ends_what_the_gateway_would_still_serve(overlay: str) -> None:
    manifests = kustomize(f"overlays/{overlay}")
    config = Config.from_environ(environment(container(manifests)), command="router")
    route = of_kind(manifests, "HTTPRoute")["spec"]
    (rule,) = route["rules"]
    assert route["parentRefs"] == [{"name": of_kind(manifests, "Gateway")["metadata"]["name"]}]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]
    assert rule["backendRefs"] == [{"name": "sandbox-router-svc", "port": 8080}]
    if overlay == "gke":
        assert "timeouts" not in rule
        policy = of_kind(manifests, "GCPBackendPolicy")["spec"]
        _is_for_the_service(policy)
        longest = policy["default"]["timeoutSec"]
        draining = policy["default"]["connectionDraining"]["drainingTimeoutSec"]
        assert draining >= config.drain_timeout
    else:
        assert len(set(rule["timeouts"].values())) == 1
        longest = _seconds(rule["timeouts"]["request"])
    assert longest >= config.websocket_max_lifetime


def _seconds(duration: str) -> int:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+)(h|m|s)", duration))


def _is_for_the_service(spec: Manifest) -> None:
    assert spec["targetRef"] == {"group": "", "kind": "Service", "name": "sandbox-router-svc"}


def test_google_s_load_balancer_notices_a_drain_in_time() -> None:
    manifests = kustomize("overlays/gke")
    config = Config.from_environ(environment(container(manifests)), command="router")
    policy = of_kind(manifests, "HealthCheckPolicy")["spec"]
    _is_for_the_service(policy)
    check = policy["default"]
    assert check["checkIntervalSec"] * check["unhealthyThreshold"] <= config.drain_delay
    probe: Any = check["config"]["httpHealthCheck"]
    assert (probe["port"], probe["requestPath"]) == (config.listen.port, "/readyz")
    # From where it and its probes come (Google's documented ranges).
    assert {str(network) for network in config.trusted_proxies} == {
        "35.191.0.0/16",
        "130.211.0.0/22",
    }
    listeners = of_kind(manifests, "Gateway")["spec"]["listeners"]
    assert {listener["protocol"] for listener in listeners} == {"HTTPS"}


def test_kind_dials_its_pods_and_nothing_else() -> None:
    config = Config.from_environ(
        environment(container(kustomize("overlays/kind"))), command="router"
    )
    assert config.upstream_networks == (ipaddress.ip_network("10.244.0.0/16"),)


def test_the_metrics_are_found_where_the_gateway_serves_them() -> None:
    manifests = kustomize("base", "monitoring")
    monitor = of_kind(manifests, "ServiceMonitor")["spec"]
    service = of_kind(manifests, "Service", "sandbox-router-metrics")
    assert selects(monitor["selector"]["matchLabels"], service["metadata"]["labels"])
    # And not by the other Service too: each replica would count twice.
    entry = of_kind(manifests, "Service", "sandbox-router-svc")
    assert not selects(monitor["selector"]["matchLabels"], entry["metadata"]["labels"])
    (endpoint,) = monitor["endpoints"]
    assert endpoint["path"] == "/metrics"
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
