"""The upstream project's manifest of its router starts this gateway, with the same meaning."""

from deploy.dockerfile import read_stages
from deploy.room import Room

from sandgate_router.config import Config

UPSTREAM = {
    "PROXY_TIMEOUT_SECONDS": "180",
    "WEBSOCKET_IDLE_TIMEOUT_SECONDS": "3600",
    "WEBSOCKET_MAX_LIFETIME_SECONDS": "86400",
    "WEBSOCKET_MAX_MESSAGE_BYTES": "16777216",
    "WEBSOCKET_MAX_CONNECTIONS_PER_CLIENT": "0",
    "ALLOW_UNAUTHENTICATED_ROUTER": "false",
}
"""What the upstream project's own manifest of its router sets."""

QUICK = {"SANDGATE_DRAIN_DELAY": "0"}


def test_the_environment_of_the_upstream_router_means_the_same_here(router: Room) -> None:
    routing = {"X-Sandbox-ID": "box", "X-Sandbox-Namespace": "default"}
    bearer = {"Authorization": "Bearer its-token"}
    seen = router.start(
        read_stages()["router"],
        environ={**UPSTREAM, "ROUTER_AUTH_TOKEN": " its-token\n", **QUICK},
        requests=[
            {"port": 8080, "path": "/healthz"},
            {"port": 8080, "path": "/", "fields": routing},
            {"port": 8080, "path": "/", "fields": {**routing, "Authorization": "Bearer no"}},
            {"port": 8080, "path": "/", "fields": {**routing, **bearer}},
            {"port": 8080, "path": "/", "fields": bearer},
        ],
    )
    assert seen["exit"] == 0, seen["errors"]
    # The fourth one may: only its sandbox cannot be found, since there is no network here.
    assert [answer["status"] for answer in seen["answers"]] == [200, 401, 401, 502, 400]


def test_without_a_token_neither_router_starts(router: Room) -> None:
    seen = router.start(read_stages()["router"], environ=UPSTREAM)
    assert (seen["first"], seen["exit"]) == ("", 2)
    assert "ROUTER_AUTH_TOKEN" in seen["errors"]


def test_the_upstream_router_s_settings_have_their_values_here() -> None:
    config = Config.from_environ(
        {**UPSTREAM, "ROUTER_AUTH_TOKEN": "its-token", "MAX_KEEPALIVE_CONNECTIONS": "20"},
        command="router",
    )
    assert config.registry == "dns"
    assert config.effective_auth == "shared"
    assert config.effective_pod_ip == "trust"
    assert config.cluster_domain == "cluster.local"
    assert config.proxy_timeout == 180
    assert config.websocket_idle_timeout == 3600
    assert config.websocket_max_lifetime == 86400
    assert config.websocket_max_connections_per_client == 0
    assert config.listen.port == 8080
