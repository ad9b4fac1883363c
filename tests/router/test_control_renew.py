"""Renewals over HTTP, and the tokens that answers to POST tell."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import httpx
import pytest
from support.asgi_server import serve
from support.control import KnownTokens, bearer, build_tokens, caller, running_control
from support.fake_registry import CREATED_AT, FakeRegistry
from support.local_sandbox import pool, running_registry

from sandgate_router.capability import MAX_LIFE_SECONDS
from sandgate_router.control.app import build_control_app
from sandgate_router.names import DEFAULT_NAMESPACE, Label
from sandgate_router.probes import Readiness

NOW = CREATED_AT.timestamp()
PATH = "/v1/claims/default/box/renew"
JSON = {"content-type": "application/json"}


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry(ready=10)


@pytest.fixture
async def client(registry: FakeRegistry) -> AsyncIterator[httpx.AsyncClient]:
    async with running_control(registry, tokens=build_tokens(NOW)) as control:
        yield control.client


async def make(client: httpx.AsyncClient, **members: Any) -> dict[str, Any]:
    answer = await client.post("/v1/claims", json={"pool": "python", "name": "box"} | members)
    created: dict[str, Any] = answer.json()
    return created


async def test_a_renewal_moves_the_end_and_gives_a_new_token(client: httpx.AsyncClient) -> None:
    created = await make(client, lease_seconds=60)
    answer = await client.post(PATH, json={"lease_seconds": 120})
    renewed = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert created["expires_at"] == created["token_expires_at"] == "2026-11-30T12:01:00.000Z"
    assert renewed["expires_at"] == renewed["token_expires_at"] == "2026-11-30T12:02:00.000Z"
    moved = {"expires_at", "token", "token_expires_at"}
    assert {name for name in created if created[name] != renewed[name]} == moved
    shown = (await client.get("/v1/claims/default/box")).json()
    assert shown == {name: renewed[name] for name in shown}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"lease_seconds": null}'])
async def test_a_renewal_need_not_say_for_how_long(
    client: httpx.AsyncClient, content: bytes
) -> None:
    await make(client, lease_seconds=60)
    fields = JSON if content else {}
    answer = await client.post(PATH, content=content, headers=fields)
    assert answer.json()["expires_at"] == "2026-11-30T13:00:00.000Z"


@pytest.mark.parametrize(
    ("content", "fields", "status"),
    [
        (b"", JSON, 400),
        (b"{", JSON, 400),
        (b"[]", JSON, 422),
        (b'{"lease_seconds": 0}', JSON, 422),
        (b'{"lease_seconds": 604801}', JSON, 422),
        (b'{"idle_seconds": 1}', JSON, 422),
        (b"{}", {}, 415),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{" * 70_000, JSON, 413),
    ],
)
async def test_a_renewal_that_is_refused_changes_nothing(
    client: httpx.AsyncClient,
    registry: FakeRegistry,
    content: bytes,
    fields: dict[str, str],
    status: int,
) -> None:
    await make(client)
    before = registry.claims()
    answer = await client.post(PATH, content=content, headers=fields)
    assert answer.status_code == status
    assert registry.claims() == before


async def test_content_of_unknown_length_is_no_missing_content(client: httpx.AsyncClient) -> None:
    await make(client)

    async def content() -> AsyncIterator[bytes]:
        yield b"{}"

    answer = await client.post(PATH, content=content())
    assert answer.status_code == 415
    answer = await client.post(PATH, content=content(), headers=JSON)
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["default/unknown", "team/box", "DEFAULT/box", "default/a.b"])
async def test_what_is_no_claim_cannot_be_renewed(client: httpx.AsyncClient, path: str) -> None:
    await make(client)
    answer = await client.post(f"/v1/claims/{path}/renew")
    assert (answer.status_code, answer.json()["code"]) == (404, "claim_not_found")


async def test_a_claim_that_has_ended_cannot_be_renewed(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    await make(client)
    registry.expire(DEFAULT_NAMESPACE, Label("box"))
    assert (await client.post(PATH)).status_code == 404


async def test_a_token_lives_as_long_as_its_lease_and_at_most_an_hour(
    client: httpx.AsyncClient,
) -> None:
    for lease, life in ((60, 60), (3600, 3600), (7200, MAX_LIFE_SECONDS)):
        created = await make(client, name=f"box-{lease}", lease_seconds=lease)
        assert datetime.fromisoformat(created["token_expires_at"]).timestamp() == NOW + life


async def test_a_token_says_the_claims_ports(client: httpx.AsyncClient) -> None:
    created = await make(client, ports=[9000, 3000])
    capability = build_tokens(NOW).verify(created["token"].encode())
    assert (capability.claim, capability.uid, capability.ports) == ("box", "uid-box", (3000, 9000))


@pytest.mark.parametrize(
    ("ports", "narrowed"),
    [
        (None, {"ports": (8888,)}),
        (None, {"ports": ()}),
        (None, {"scopes": ()}),
        (None, {"scopes": ("http",)}),
        (None, {"scopes": ("ws",)}),
        ([3000, 9000], {"ports": (3000,)}),
        ([3000, 9000], {"ports": ()}),
        ([3000, 9000], {"ports": (8888, 9000)}),
        ([3000, 9000], {"ports": None, "scopes": ("http",)}),
    ],
)
async def test_a_token_for_a_part_of_a_claim_does_not_renew_itself_into_one_for_all(
    registry: FakeRegistry, ports: list[int] | None, narrowed: dict[str, Any]
) -> None:
    tokens, known = build_tokens(NOW), KnownTokens(caller("ci", "claim"))
    body = {"pool": "python", "name": "box", "ports": ports, "lease_seconds": 60}
    async with running_control(registry, tokens=tokens, callers=known) as control:
        made = await control.client.post("/v1/claims", json=body, headers=bearer("ci"))
        whole = tokens.verify(made.json()["token"].encode())
        part = {"x-sandbox-token": tokens.sign(whole._replace(**narrowed))}
        before = registry.claims()
        answer = await control.client.post(PATH, headers=part)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "token" not in answer.json()
        assert registry.claims() == before, "nor does it lengthen the lease"
        shown = await control.client.get("/v1/claims/default/box", headers=part)
        assert shown.status_code == 200


@pytest.mark.parametrize("wider", [{}, {"ports": None}, {"ports": (3000, 8888, 9000)}])
async def test_a_token_for_all_of_a_claim_renews_it_for_just_that(
    registry: FakeRegistry, wider: dict[str, Any]
) -> None:
    tokens, known = build_tokens(NOW), KnownTokens(caller("ci", "claim"))
    body = {"pool": "python", "name": "box", "ports": [3000, 9000], "lease_seconds": 7200}
    async with running_control(registry, tokens=tokens, callers=known) as control:
        made = await control.client.post("/v1/claims", json=body, headers=bearer("ci"))
        whole = tokens.verify(made.json()["token"].encode())
        held = {"x-sandbox-token": tokens.sign(whole._replace(**wider))}
        renewed = await control.client.post(PATH, headers=held)
        capability = tokens.verify(renewed.json()["token"].encode())
    assert capability.ports == (3000, 9000)
    assert capability.expires_at == NOW + MAX_LIFE_SECONDS


async def test_no_answer_but_to_a_post_tells_a_token(client: httpx.AsyncClient) -> None:
    token = (await make(client))["token"]
    renewed = (await client.post(PATH)).json()["token"]
    for path in ("/v1/claims", "/v1/claims/default/box", "/v1/pools"):
        answer = await client.get(path)
        assert "token" not in answer.text
        assert token not in answer.text
        assert renewed not in answer.text


async def test_without_keys_there_is_no_token(registry: FakeRegistry) -> None:
    async with running_control(registry) as control:
        created = await make(control.client)
        renewed = (await control.client.post(PATH)).json()
    for answer in (created, renewed):
        assert (answer["token"], answer["token_expires_at"]) == (None, None)


async def test_a_repeated_claim_gets_the_token_that_it_got(client: httpx.AsyncClient) -> None:
    fields = {"idempotency-key": "k"}
    body = {"pool": "python"}
    first = await client.post("/v1/claims", json=body, headers=fields)
    await client.post(f"/v1/claims/default/{first.json()['claim']}/renew")
    second = await client.post("/v1/claims", json=body, headers=fields)
    assert first.content == second.content


async def test_a_namespace_above_its_quota_gets_429_and_when_to_come_back(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    registry.quota = 1
    await make(client)
    answer = await client.post("/v1/claims", json={"pool": "python"})
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    assert answer.headers["retry-after"] == "1"
    assert len(registry.claims()) == 1


async def test_a_renewal_and_a_release_at_once_have_one_winner_each() -> None:
    registry = FakeRegistry(ready=100)
    known = KnownTokens(caller("ci", "claim"))
    async with running_control(registry, callers=known) as control:
        client = control.client
        for number in range(20):
            body = {"pool": "python", "name": f"c{number}"}
            await client.post("/v1/claims", json=body, headers=bearer("ci"))
            path = f"/v1/claims/default/c{number}"
            renewed, released = await asyncio.gather(
                client.post(f"{path}/renew", headers=bearer("ci")),
                client.delete(path, headers=bearer("ci")),
            )
            assert renewed.status_code in {200, 404}
            assert released.status_code == 204
            assert registry.claims() == []


async def test_a_real_claim_is_renewed_and_released() -> None:
    async with running_registry(pool(warm=1), isolation="none") as registry:
        app = build_control_app(registry, readiness=Readiness(), loopback=True)
        async with (
            serve(app) as address,
            httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as client,
        ):
            body = {"pool": "py", "name": "box", "lease_seconds": 60, "ports": [8888]}
            created = (await client.post("/v1/claims", json=body)).json()
            renewed = (await client.post(PATH, json={"lease_seconds": 600})).json()
            assert renewed["expires_at"] > created["expires_at"]
            assert (renewed["uid"], renewed["ports"]) == (created["uid"], [8888])
            assert (await client.delete("/v1/claims/default/box")).status_code == 204
            assert (await client.post(PATH)).status_code == 404


async def test_who_names_a_generation_renews_and_releases_no_other_of_that_name(
    client: httpx.AsyncClient,
) -> None:
    old, new = {"uid": "uid-of-before"}, {"uid": (await make(client))["uid"]}
    answer = await client.post(PATH, params=old)
    assert (answer.status_code, answer.json()["code"]) == (404, "claim_not_found")
    assert (await client.delete("/v1/claims/default/box", params=old)).status_code == 204
    assert (await client.get("/v1/claims/default/box")).json()["uid"] == new["uid"]
    assert (await client.post(PATH, params=new)).status_code == 200
    assert (await client.delete("/v1/claims/default/box", params=new)).status_code == 204
    assert (await client.get("/v1/claims/default/box")).status_code == 404


async def test_a_failed_claim_whose_sandbox_nobody_knows_is_released_by_any_generation(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    uid = {"uid": (await make(client))["uid"]}
    claim = await registry.find_claim(DEFAULT_NAMESPACE, Label("box"))
    assert claim is not None
    for state, found in (("ready", 200), ("failed", 404)):
        registry._live[claim.namespace, claim.name] = replace(claim, state=state, uid="")  # type: ignore[arg-type]
        await client.delete("/v1/claims/default/box", params=uid)
        assert (await client.get("/v1/claims/default/box")).status_code == found
