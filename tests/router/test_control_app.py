"""The control API over real sockets, with a registry whose members are counted."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Any, get_args

import httpx
import pytest
import yaml
from support.asgi_server import serve
from support.fake_registry import FakeRegistry

from sandgate_router.control.app import build_control_app
from sandgate_router.control.new_claim import NewClaim, Renewal
from sandgate_router.control.openapi import load_openapi
from sandgate_router.control.pools import NewSize
from sandgate_router.errors import NotImplementedHere, RegistryUnavailable
from sandgate_router.names import DEFAULT_NAMESPACE, Label, Port
from sandgate_router.probes import Readiness
from sandgate_router.registry.base import ClaimRequest, EventKind

PROBES = ["/healthz", "/livez"]
JSON = {"content-type": "application/json"}
CLAIM_MEMBERS = {
    "claim": "build-7",
    "namespace": "default",
    "sandbox": "sb-build-7",
    "uid": "uid-build-7",
    "port": 8888,
    "ports": [3000, 8888],
    "pool": "python",
    "launch": "warm",
    "isolation": "none",
    "state": "ready",
    "reason": None,
    "labels": {"app": "web"},
    "created_at": "2026-11-30T12:00:00.000Z",
    "expires_at": "2026-11-30T12:01:00.000Z",
    "idle_seconds": 30.0,
    "timings": {"total": 1.5},
}
POOL = {
    "name": "python",
    "namespace": "default",
    "warm": 4,
    "max": 32,
    "ready": 1,
    "claimed": 0,
    "waiting": 0,
    "hit_rate": None,
    "isolation": "none",
    "last_error": None,
}
REFUSED_BODIES = [
    (b"", 400, "bad_request"),
    (b"{", 400, "bad_request"),
    (b'{"pool": "python", "pool": "python"}', 400, "bad_request"),
    (b'{"pool": "python", "lease_seconds": NaN}', 400, "bad_request"),
    (b"[" * 60_000, 400, "bad_request"),
    (b"[" * 100_000, 413, "content_too_large"),
    (b'"' + b"a" * 10_000_000 + b'"', 413, "content_too_large"),
    (b"[]", 422, "invalid_request"),
    (b"{}", 422, "invalid_request"),
    (b'{"pool": 1}', 422, "invalid_request"),
    (b'{"pool": "python", "image": "x"}', 422, "invalid_request"),
    (b'{"pool": "python", "name": "A\\n"}', 422, "invalid_request"),
    (b'{"pool": "python", "lease_seconds": 1e999}', 422, "invalid_request"),
    (b'{"pool": "python", "labels": {"kubernetes.io/a": "b"}}', 422, "invalid_request"),
    (b'{"pool": "python", "ports": [8888, 8888]}', 422, "invalid_request"),
    (b'{"pool": "python", "idle_seconds": 0}', 422, "invalid_request"),
]


@pytest.fixture
async def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture(autouse=True)
def nothing_escapes_to_the_server(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.name == "uvicorn.error"]


@pytest.fixture
def readiness() -> Readiness:
    readiness = Readiness()
    readiness.mark_ready()
    return readiness


@pytest.fixture
async def client(registry: FakeRegistry, readiness: Readiness) -> AsyncIterator[httpx.AsyncClient]:
    app = build_control_app(registry, readiness=readiness, loopback=True)
    async with (
        serve(app) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as client,
    ):
        yield client


@pytest.fixture
async def public(registry: FakeRegistry, readiness: Readiness) -> AsyncIterator[httpx.AsyncClient]:
    """Call an app that was told that its listener is no loopback address."""
    app = build_control_app(registry, readiness=readiness, loopback=False)
    async with (
        serve(app) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as client,
    ):
        yield client


def assert_refused(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-sandbox-error"] == code
    assert answer.headers["proxy-status"].startswith("sandgate; error=")
    body = answer.json()
    assert body.keys() == {"detail", "code", "reached", "retry_safe"}
    assert (body["code"], body["reached"], body["retry_safe"]) == (code, "no", True)


# Claims


async def test_a_claim_is_created_shown_listed_and_released(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    wanted = {
        "pool": "python",
        "name": "build-7",
        "lease_seconds": 60,
        "idle_seconds": 30,
        "labels": {"app": "web"},
        "ports": [8888, 3000],
    }
    created = await client.post("/v1/claims", json=wanted)
    assert created.status_code == 201
    assert created.json() == CLAIM_MEMBERS | {"token": None, "token_expires_at": None}
    assert registry.requests == [
        ClaimRequest(
            pool="python",
            namespace=DEFAULT_NAMESPACE,
            name=Label("build-7"),
            lease_seconds=60.0,
            idle_seconds=30.0,
            ports=(Port(3000), Port(8888)),
            labels={"app": "web"},
        )
    ]

    shown = await client.get("/v1/claims/default/build-7")
    assert (shown.status_code, shown.json()) == (200, CLAIM_MEMBERS)
    listed = await client.get("/v1/claims")
    assert (listed.status_code, listed.json()) == (200, {"claims": [CLAIM_MEMBERS]})

    for _ in range(2):
        released = await client.delete("/v1/claims/default/build-7")
        assert (released.status_code, released.content) == (204, b"")
    assert registry.claims() == []
    assert_refused(await client.get("/v1/claims/default/build-7"), 404, "claim_not_found")


async def test_times_are_rfc_3339_in_utc(client: httpx.AsyncClient) -> None:
    claim = (await client.post("/v1/claims", json={"pool": "python"})).json()
    for member in ("created_at", "expires_at"):
        assert claim[member].endswith("Z")
        assert datetime.fromisoformat(claim[member]).utcoffset() is not None


@pytest.mark.parametrize(("content", "status", "code"), REFUSED_BODIES)
async def test_a_body_that_is_refused_claims_nothing(
    client: httpx.AsyncClient, registry: FakeRegistry, content: bytes, status: int, code: str
) -> None:
    answer = await client.post("/v1/claims", content=content, headers=JSON)
    assert_refused(answer, status, code)
    assert registry.requests == []
    assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_a_body_that_is_not_declared_as_json_claims_nothing(
    client: httpx.AsyncClient, registry: FakeRegistry, media_type: str | None
) -> None:
    headers = {"content-type": media_type} if media_type else {}
    answer = await client.post("/v1/claims", content=b'{"pool": "python"}', headers=headers)
    assert_refused(answer, 415, "unsupported_media_type")
    assert registry.requests == []


async def test_a_message_starts_with_the_member_and_says_what_is_allowed(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/v1/claims", json={"pool": "Py"})
    assert answer.json()["detail"] == (
        "pool 'Py' is not a label (a-z, 0-9 and inner hyphens, at most 63)"
    )


async def test_an_unknown_pool_a_taken_name_and_an_empty_pool_are_told_apart(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    await client.post("/v1/claims", json={"pool": "python", "name": "a"})
    unknown = await client.post("/v1/claims", json={"pool": "ruby"})
    taken = await client.post("/v1/claims", json={"pool": "python", "name": "a"})
    empty = await client.post("/v1/claims", json={"pool": "python", "on_empty": "fail"})
    assert_refused(unknown, 404, "pool_not_found")
    assert_refused(taken, 409, "claim_exists")
    assert_refused(empty, 503, "pool_exhausted")
    assert empty.headers["retry-after"] == "7"
    assert len(registry.claims()) == 1


async def test_a_claim_waits_for_a_member(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    await client.post("/v1/claims", json={"pool": "python"})
    waiting = asyncio.create_task(client.post("/v1/claims", json={"pool": "python"}))
    await registry.waiting.wait()
    assert (await client.get("/v1/pools")).json()["pools"][0]["waiting"] == 1
    registry.add_member()
    assert (await waiting).status_code == 201
    assert len(registry.claims()) == 2


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_client_that_hangs_up_while_it_waits_leaves_no_claim_behind(
    client: httpx.AsyncClient, registry: FakeRegistry, *, stubborn: bool
) -> None:
    await client.post("/v1/claims", json={"pool": "python", "name": "kept"})
    registry.stubborn = stubborn
    url = client.base_url
    _, writer = await asyncio.open_connection(url.host, url.port)
    body = b'{"pool": "python"}'
    writer.write(
        b"POST /v1/claims HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    await registry.waiting.wait()
    writer.close()
    await writer.wait_closed()
    await registry.left.wait()
    if stubborn:
        await registry.released.wait()
    assert [claim.name for claim in registry.claims()] == ["kept"]
    assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize("path", ["default/unknown", "DEFAULT/a", "default/A", "default/a.b"])
async def test_a_claim_that_never_was_is_not_found_and_released_all_the_same(
    client: httpx.AsyncClient, path: str
) -> None:
    assert_refused(await client.get(f"/v1/claims/{path}"), 404, "claim_not_found")
    assert (await client.delete(f"/v1/claims/{path}")).status_code == 204


async def test_a_list_shows_what_its_filters_leave_oldest_first(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    for name in ("b", "a", "c"):
        registry.add_member()
        await client.post("/v1/claims", json={"pool": "python", "name": name})
        registry.now += timedelta(milliseconds=1)

    async def names(query: str) -> list[str]:
        answer = await client.get(f"/v1/claims?{query}")
        return [claim["claim"] for claim in answer.json()["claims"]]

    assert (await client.get("/v1/claims/default/c")).json()["claim"] == "c"
    assert await names("") == ["b", "a", "c"]
    assert await names("limit=2") == ["b", "a"]
    assert await names("namespace=default&pool=python&limit=1000") == ["b", "a", "c"]
    assert await names("namespace=team") == []
    assert await names("pool=ruby") == []


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("limit=0", "limit '0' is not a number from 1 to 1000"),
        ("limit=1001", "limit '1001' is not a number from 1 to 1000"),
        ("limit=-1", "limit '-1' is not a number from 1 to 1000"),
        ("limit=", "limit '' is not a number from 1 to 1000"),
        ("limit=1_0", "limit '1_0' is not a number from 1 to 1000"),
        ("limit=%D9%A3", "limit '٣' is not a number from 1 to 1000"),
        ("limit=1&limit=2", "limit may be given once"),
        (
            "labels=a%3Db",
            "'labels' is unknown; allowed are namespace, pool, label_selector, limit, cursor",
        ),
    ],
)
async def test_a_filter_that_would_be_overlooked_is_refused(
    client: httpx.AsyncClient, query: str, detail: str
) -> None:
    answer = await client.get(f"/v1/claims?{query}")
    assert_refused(answer, 422, "invalid_request")
    assert answer.json()["detail"] == detail


async def test_pools_are_shown_as_they_stand(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/pools")
    assert (answer.status_code, answer.json()) == (200, {"pools": [POOL]})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/claims", 200),
        ("GET", "/v1/pools", 200),
        ("DELETE", "/v1/claims/default/a", 204),
        ("GET", "/healthz", 200),
    ],
)
async def test_content_where_none_is_expected_does_no_harm(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    for _ in range(2):
        answer = await client.request(method, path, content=b"{" * 200_000, headers=JSON)
        assert answer.status_code == status


async def test_a_registry_without_claims_answers_not_implemented(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    registry.failure = NotImplementedHere()
    for answer in (
        await client.post("/v1/claims", json={"pool": "python"}),
        await client.get("/v1/claims"),
        await client.get("/v1/claims/default/a"),
        await client.delete("/v1/claims/default/a"),
        await client.post("/v1/claims/default/a/renew"),
        await client.get("/v1/pools"),
        await client.get("/v1/pools/default/python"),
        await client.patch("/v1/pools/default/python", json={"warm": 1}),
    ):
        assert_refused(answer, 501, "not_implemented")


async def test_a_registry_that_does_not_answer_is_told_with_a_time_to_come_back(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    registry.failure = RegistryUnavailable()
    answer = await client.post("/v1/claims", json={"pool": "python"})
    assert_refused(answer, 503, "registry_unavailable")
    assert answer.headers["retry-after"] == "1"


async def test_a_fault_of_ours_is_in_the_log_and_nothing_of_it_on_the_wire(
    client: httpx.AsyncClient, registry: FakeRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.failure = LookupError("the secret of the day")
    answer = await client.get("/v1/pools?password=hunter2")
    assert answer.status_code == 500
    assert answer.json() == {
        "detail": "An internal error occurred in the gateway.",
        "code": "internal_error",
        "reached": "unknown",
        "retry_safe": True,
    }
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (record.name, record.message) == ("sandgate.control", "control.failed")
    assert record.exc_info is not None
    assert record.exc_info[1] is registry.failure
    assert "hunter2" not in str(vars(record))


# Which paths and methods there are


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/v1", "/v1/", "/v2/claims", "/execute", "/docs", "/metrics"),
        *("/v1/claims/", "/v1/claims/default", "/v1/claims/a/b/c", "/v1/claims/a//b"),
        *("/v1/pools/", "/v1/pools/default", "/v1/events/"),
        *("/healthz/", "//healthz", "/HEALTHZ"),
    ],
)
async def test_a_path_that_is_not_ours_is_taken_for_a_sandbox_that_nobody_named(
    client: httpx.AsyncClient, path: str
) -> None:
    url = str(client.base_url).rstrip("/") + path
    for method in ("GET", "POST"):
        answer = await client.request(method, url)
        assert_refused(answer, 400, "sandbox_id_required")
        assert answer.json()["detail"] == "X-Sandbox-ID header is required."


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/claims", "GET, HEAD, POST"),
        ("/v1/claims/default/a", "DELETE, GET, HEAD"),
        ("/v1/claims/default/a/renew", "POST"),
        ("/v1/pools", "GET, HEAD"),
        ("/v1/pools/default/python", "GET, HEAD, PATCH"),
        ("/v1/events", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
        ("/readyz", "GET, HEAD"),
        ("/openapi.json", "GET, HEAD"),
    ],
)
async def test_another_method_is_told_which_ones_there_are(
    client: httpx.AsyncClient, path: str, allowed: str
) -> None:
    for method in ("PUT", "OPTIONS", "BREW"):
        answer = await client.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == allowed
        assert answer.headers["x-sandbox-error"] == "method_not_allowed"
        assert answer.json()["detail"] == "Method Not Allowed"


@pytest.mark.parametrize("path", ["/v1/claims", "/v1/pools", "/healthz", "/openapi.json"])
async def test_head_answers_as_get_without_the_body(client: httpx.AsyncClient, path: str) -> None:
    head, get = await client.head(path), await client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize("path", ["/unknown", "/v1/claims/default/a"])
async def test_an_error_of_head_has_no_body(client: httpx.AsyncClient, path: str) -> None:
    head, get = await client.head(path), await client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["x-sandbox-error"] == get.headers["x-sandbox-error"]
    assert (await client.get("/healthz")).status_code == 200


# Who may call


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "10.0.0.7:8080"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"host": "localhost:8080", "origin": "http://localhost:3000"},
    ],
)
async def test_a_web_page_can_neither_claim_nor_list_nor_release(
    client: httpx.AsyncClient, registry: FakeRegistry, headers: dict[str, str]
) -> None:
    await client.post("/v1/claims", json={"pool": "python", "name": "a"})
    registry.add_member()
    for answer in (
        await client.post("/v1/claims", json={"pool": "python"}, headers=headers),
        await client.get("/v1/claims", headers=headers),
        await client.delete("/v1/claims/default/a", headers=headers),
        await client.post("/v1/claims/default/a/renew", headers=headers),
        await client.get("/v1/pools", headers=headers),
        await client.patch("/v1/pools/default/python", json={"warm": 0}, headers=headers),
        await client.get("/v1/events", headers=headers),
    ):
        assert_refused(answer, 403, "not_allowed_here")
        assert "access-control-allow-origin" not in answer.headers
    assert [claim.name for claim in registry.claims()] == ["a"]


async def test_two_origins_are_foreign(client: httpx.AsyncClient) -> None:
    own = str(client.base_url).rstrip("/")
    headers = [("origin", own), ("origin", own)]
    assert_refused(await client.get("/v1/pools", headers=headers), 403, "not_allowed_here")


async def test_the_own_origin_may_call(client: httpx.AsyncClient) -> None:
    headers = {"origin": str(client.base_url).rstrip("/")}
    assert (await client.get("/v1/pools", headers=headers)).status_code == 200


async def test_a_listener_for_everyone_serves_no_claims(
    public: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    for answer in (
        await public.post("/v1/claims", json={"pool": "python"}),
        await public.get("/v1/claims"),
        await public.delete("/v1/claims/default/a"),
        await public.get("/v1/pools"),
        await public.get("/v1/%70ools"),
    ):
        assert_refused(answer, 403, "not_allowed_here")
        assert answer.json()["detail"].startswith("The control API needs SANDGATE_CALLERS here")
    assert (registry.requests, registry.releases) == ([], [])


@pytest.mark.parametrize("path", [*PROBES, "/readyz", "/openapi.json"])
async def test_probes_answer_under_any_host_on_any_listener(
    client: httpx.AsyncClient, public: httpx.AsyncClient, path: str
) -> None:
    for caller in (client, public):
        answer = await caller.get(path, headers={"host": "10.0.0.7:8080"})
        assert answer.status_code == 200


# Probes and the description


@pytest.mark.parametrize("path", PROBES)
async def test_the_gateway_is_alive_even_while_it_drains(
    client: httpx.AsyncClient, readiness: Readiness, path: str
) -> None:
    readiness.mark_draining()
    answer = await client.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_readiness_is_off_while_draining_and_claims_are_still_served(
    client: httpx.AsyncClient, readiness: Readiness
) -> None:
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ok"})
    readiness.mark_draining()
    draining = await client.get("/readyz")
    assert_refused(draining, 503, "draining")
    assert draining.headers["retry-after"] == "1"
    assert (await client.post("/v1/claims", json={"pool": "python"})).status_code == 201


async def test_a_gateway_that_starts_is_not_ready(registry: FakeRegistry) -> None:
    app = build_control_app(registry, readiness=Readiness(), loopback=True)
    async with serve(app) as address, httpx.AsyncClient() as client:
        answer = await client.get(f"http://{address}/readyz")
    assert_refused(answer, 503, "registry_unavailable")
    assert answer.json()["detail"] == "The gateway is starting."


async def test_the_description_is_served_as_json(client: httpx.AsyncClient) -> None:
    answer = await client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["openapi"] == "3.1.0"


def description() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(load_openapi())
    return loaded


def test_the_description_has_exactly_the_paths_and_methods_that_are_served() -> None:
    app = build_control_app(FakeRegistry(), readiness=Readiness(), loopback=True)
    served = {route.path: route.methods - {"HEAD"} for route in app.routes}  # type: ignore[attr-defined]
    described = {
        path: {method.upper() for method in item if method != "parameters"}
        for path, item in description()["paths"].items()
    }
    assert described == served


def test_the_description_has_exactly_the_members_that_are_sent_and_taken() -> None:
    schemas = description()["components"]["schemas"]
    assert set(schemas["Claim"]["properties"]) == set(schemas["Claim"]["required"])
    assert set(schemas["Claim"]["properties"]) == set(CLAIM_MEMBERS)
    assert set(schemas["Pool"]["properties"]) == set(schemas["Pool"]["required"]) == set(POOL)
    assert set(schemas["NewClaim"]["properties"]) == set(NewClaim.__struct_fields__)
    assert set(schemas["Renewal"]["properties"]) == set(Renewal.__struct_fields__)
    assert set(schemas["NewSize"]["properties"]) == set(NewSize.__struct_fields__)
    assert set(schemas["Event"]["properties"]) == set(schemas["Event"]["required"])
    assert set(schemas["Event"]["properties"]["kind"]["enum"]) == set(get_args(EventKind))


def test_every_reference_in_the_description_leads_somewhere() -> None:
    root = description()
    found = 0
    nodes: list[Any] = [root]
    while nodes:
        node = nodes.pop()
        nodes.extend(node.values() if isinstance(node, dict) else node)
        nodes = [node for node in nodes if isinstance(node, dict | list)]
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            place: Any = root
            for step in node["$ref"].removeprefix("#/").split("/"):
                place = place[step]
            found += 1
    assert found > 50


def test_the_description_is_that_of_the_installed_version() -> None:
    assert description()["info"]["version"] == version("sandgate")
