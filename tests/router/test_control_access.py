"""Who may do what on the control API: callers with rights, and holders of capabilities."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from support.control import (
    KEYS,
    Control,
    KnownTokens,
    bearer,
    build_tokens,
    caller,
    running_control,
)
from support.fake_registry import CREATED_AT, FakeRegistry

from sandgate_router.capability import Capabilities, KeySet
from sandgate_router.capability_text import Capability
from sandgate_router.names import DEFAULT_NAMESPACE, Label
from sandgate_router.registry.base import Claim

TEAM = Label("team")
NOW = CREATED_AT.timestamp()
CALLERS = (
    caller("ours", "claim"),
    caller("theirs", "claim"),
    caller("both", "claim", "read"),
    caller("reader", "read"),
    caller("admin", "admin"),
    caller("elsewhere", "admin", namespaces=["team"]),
    caller("root", "admin", namespaces=["*"]),
)
UNAUTHENTICATED = {
    "detail": "Missing or invalid credentials.",
    "code": "unauthenticated",
    "reached": "no",
    "retry_safe": True,
}
FORBIDDEN = {
    "detail": "Forbidden.",
    "code": "forbidden",
    "reached": "no",
    "retry_safe": True,
}
NO_CLAIM = {
    "detail": "No such claim.",
    "code": "claim_not_found",
    "reached": "no",
    "retry_safe": True,
}

CALLS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "CLAIM": ("POST", "/v1/claims", {"pool": "python", "name": "fresh"}),
    "CLAIM_IN_TEAM": (
        "POST",
        "/v1/claims",
        {"pool": "python", "namespace": "team", "name": "fresh"},
    ),
    "LIST": ("GET", "/v1/claims", None),
    "LIST_TEAM": ("GET", "/v1/claims?namespace=team", None),
    "READ": ("GET", "/v1/claims/default/box", None),
    "READ_UNKNOWN": ("GET", "/v1/claims/default/unknown", None),
    "READ_IN_TEAM": ("GET", "/v1/claims/team/box", None),
    "READ_NO_LABEL": ("GET", "/v1/claims/DEFAULT/box", None),
    "RENEW": ("POST", "/v1/claims/default/box/renew", None),
    "RENEW_UNKNOWN": ("POST", "/v1/claims/default/unknown/renew", None),
    "RENEW_IN_TEAM": ("POST", "/v1/claims/team/box/renew", None),
    "RELEASE": ("DELETE", "/v1/claims/default/box", None),
    "RELEASE_UNKNOWN": ("DELETE", "/v1/claims/default/unknown", None),
    "RELEASE_IN_TEAM": ("DELETE", "/v1/claims/team/box", None),
    "POOLS": ("GET", "/v1/pools", None),
    "POOL": ("GET", "/v1/pools/default/python", None),
    "POOL_OF_TEAM": ("GET", "/v1/pools/team/python", None),
    "RESIZE": ("PATCH", "/v1/pools/default/python", {"warm": 1}),
    "RESIZE_TEAM": ("PATCH", "/v1/pools/team/python", {"warm": 1}),
    "EVENTS": ("HEAD", "/v1/events", None),
}
OUTCOMES = {
    # The claim `box` is that of `ours`.
    "ours": {
        "CLAIM": 201,
        "LIST": 200,
        "READ": 200,
        "READ_UNKNOWN": 404,
        "RENEW": 200,
        "RENEW_UNKNOWN": 404,
        "RELEASE": 204,
        "RELEASE_UNKNOWN": 204,
    },
    "theirs": {
        "CLAIM": 201,
        "LIST": 200,
        "READ": 404,
        "READ_UNKNOWN": 404,
        "RENEW": 404,
        "RENEW_UNKNOWN": 404,
        "RELEASE": 204,
        "RELEASE_UNKNOWN": 204,
    },
    "both": {
        "CLAIM": 201,
        "LIST": 200,
        "READ": 200,
        "READ_UNKNOWN": 404,
        "RENEW": 404,
        "RENEW_UNKNOWN": 404,
        "RELEASE": 204,
        "RELEASE_UNKNOWN": 204,
        "POOLS": 200,
        "POOL": 200,
        "EVENTS": 200,
    },
    "reader": {
        "LIST": 200,
        "READ": 200,
        "READ_UNKNOWN": 404,
        "POOLS": 200,
        "POOL": 200,
        "EVENTS": 200,
    },
    "admin": {
        "CLAIM": 201,
        "LIST": 200,
        "READ": 200,
        "READ_UNKNOWN": 404,
        "RENEW": 200,
        "RENEW_UNKNOWN": 404,
        "RELEASE": 204,
        "RELEASE_UNKNOWN": 204,
        "POOLS": 200,
        "POOL": 200,
        "RESIZE": 200,
        "EVENTS": 200,
    },
    "elsewhere": {
        "CLAIM_IN_TEAM": 201,
        "LIST": 200,
        "LIST_TEAM": 200,
        "READ_IN_TEAM": 404,
        "RENEW_IN_TEAM": 404,
        "RELEASE_IN_TEAM": 204,
        "POOLS": 200,
        "POOL_OF_TEAM": 200,
        "RESIZE_TEAM": 200,
        "EVENTS": 200,
    },
}
"""What each caller may do; everything else is 403."""


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry(ready=10, namespaces=(DEFAULT_NAMESPACE, TEAM))


@pytest.fixture
async def control(registry: FakeRegistry) -> AsyncIterator[Control]:
    known = KnownTokens(*CALLERS)
    async with running_control(registry, callers=known, tokens=build_tokens(NOW)) as control:
        yield control


async def make(control: Control, by: str, name: str, **members: Any) -> dict[str, Any]:
    body = {"pool": "python", "name": name} | members
    answer = await control.client.post("/v1/claims", json=body, headers=bearer(by))
    assert answer.status_code == 201
    created: dict[str, Any] = answer.json()
    return created


async def send(control: Control, name: str, fields: Any) -> httpx.Response:
    method, path, body = CALLS[name]
    return await control.client.request(method, path, headers=fields, json=body)


def live(registry: FakeRegistry) -> list[str]:
    return [claim.name for claim in registry.claims()]


# Callers


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.parametrize("by", OUTCOMES)
async def test_a_caller_may_do_what_its_rights_say(
    control: Control, registry: FakeRegistry, by: str, name: str
) -> None:
    await make(control, "ours", "box")
    answer = await send(control, name, bearer(by))
    assert answer.status_code == OUTCOMES[by].get(name, 403)
    if answer.status_code == 403 and name != "EVENTS":
        assert answer.json() == FORBIDDEN
    if answer.status_code == 404:
        assert answer.json() == NO_CLAIM
    released = name == "RELEASE" and by in {"ours", "admin"}
    assert ("box" not in live(registry)) == released
    assert ("fresh" in live(registry)) == (answer.status_code == 201)


async def test_a_claim_is_made_under_its_callers_name(
    control: Control, registry: FakeRegistry
) -> None:
    await make(control, "ours", "box")
    assert [request.caller for request in registry.requests] == ["ours"]


async def test_a_body_cannot_say_who_claims(control: Control, registry: FakeRegistry) -> None:
    body = {"pool": "python", "caller": "theirs"}
    answer = await control.client.post("/v1/claims", json=body, headers=bearer("ours"))
    assert answer.status_code == 422
    assert registry.requests == []


async def test_a_list_shows_the_claims_that_may_be_read(control: Control) -> None:
    await make(control, "ours", "a")
    await make(control, "theirs", "b")
    await make(control, "root", "c", namespace="team")
    seen = {}
    for by in ("ours", "theirs", "both", "reader", "admin", "elsewhere", "root"):
        answer = await control.client.get("/v1/claims", headers=bearer(by))
        seen[by] = [claim["claim"] for claim in answer.json()["claims"]]
    assert seen == {
        "ours": ["a"],
        "theirs": ["b"],
        "both": ["a", "b"],
        "reader": ["a", "b"],
        "admin": ["a", "b"],
        "elsewhere": ["c"],
        "root": ["a", "b", "c"],
    }


async def test_pools_of_other_namespaces_are_not_shown(control: Control) -> None:
    for by, namespaces in (("reader", ["default"]), ("root", ["default", "team"])):
        answer = await control.client.get("/v1/pools", headers=bearer(by))
        assert [pool["namespace"] for pool in answer.json()["pools"]] == namespaces


async def test_two_callers_with_the_same_key_have_two_claims(control: Control) -> None:
    made = set()
    for by in ("ours", "theirs", "ours"):
        fields = bearer(by) | {"idempotency-key": "k"}
        answer = await control.client.post("/v1/claims", json={"pool": "python"}, headers=fields)
        made.add(answer.json()["claim"])
    assert len(made) == 2


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [("authorization", "Bearer wrong-token")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ours-toke")],
        [("authorization", "ours-token")],
        [("authorization", "Basic ours-token")],
        [("authorization", "Bearer ours-token x")],
        [("authorization", "Bearer OURS-TOKEN")],
        [("authorization", "Bearer ours-token"), ("authorization", "Bearer ours-token")],
        [("authorization", "Bearer ours-token"), ("x-sandbox-token", "ours-token")],
        [("authorization", "Bearer ours-token"), ("x-sandbox-token", "")],
        [("x-sandbox-token", "ours-token")],
        [("authorization", "Bearer sg1.k1.e30.AAAA")],
        [("authorization", "Bearer v1.e30.AAAA")],
        [("cookie", "token=ours-token")],
    ],
)
async def test_without_a_valid_token_nothing_is_told(
    control: Control, registry: FakeRegistry, fields: list[tuple[str, str]]
) -> None:
    await make(control, "ours", "box")
    for name in CALLS:
        answer = await send(control, name, fields)
        assert answer.status_code == 401
        if name != "EVENTS":
            assert answer.json() == UNAUTHENTICATED
    assert (len(registry.requests), registry.releases, live(registry)) == (1, [], ["box"])


async def test_the_token_is_asked_for_before_the_body_is_looked_at(control: Control) -> None:
    answer = await control.client.post("/v1/claims", content=b"{")
    assert answer.status_code == 401
    answer = await control.client.post("/v1/claims", content=b"{", headers=bearer("reader"))
    assert answer.status_code == 403


async def test_with_callers_a_foreign_host_may_call_with_a_token(control: Control) -> None:
    fields = bearer("reader") | {"host": "sandgate.example", "origin": "https://ui.example"}
    assert (await control.client.get("/v1/pools", headers=fields)).status_code == 200


async def test_a_caller_that_is_taken_off_the_list_may_call_no_more(
    registry: FakeRegistry,
) -> None:
    known = KnownTokens(*CALLERS)
    async with running_control(registry, callers=known) as control:
        assert (await control.client.get("/v1/pools", headers=bearer("reader"))).status_code == 200
        known.callers.clear()
        assert (await control.client.get("/v1/pools", headers=bearer("reader"))).status_code == 401


async def test_without_callers_a_listener_that_would_ask_serves_holders_alone(
    registry: FakeRegistry,
) -> None:
    tokens = build_tokens(NOW)
    async with running_control(registry, tokens=tokens, loopback=False) as control:
        refused = await control.client.get("/v1/claims", headers=bearer("ours"))
        assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed_here")
        assert "needs SANDGATE_CALLERS" in refused.json()["detail"]
        forged = {"x-sandbox-token": "sg1.k1.e30.AAAA"}
        answer = await control.client.get("/v1/claims/default/box", headers=forged)
        assert answer.status_code == 401


# Holders of a capability


async def test_the_token_of_a_claim_reads_renews_and_releases_it(
    control: Control, registry: FakeRegistry
) -> None:
    token = (await make(control, "ours", "box"))["token"]
    for fields in (
        {"x-sandbox-token": token},
        {"authorization": f"Bearer {token}"},
        {"x-sandbox-token": token, "authorization": "Bearer wrong"},
    ):
        shown = await control.client.get("/v1/claims/default/box", headers=fields)
        assert (shown.status_code, shown.json()["claim"]) == (200, "box")
        renewed = await control.client.post("/v1/claims/default/box/renew", headers=fields)
        assert (renewed.status_code, renewed.json()["claim"]) == (200, "box")
    released = await control.client.delete("/v1/claims/default/box", headers=fields)
    assert released.status_code == 204
    assert live(registry) == []
    gone = await control.client.get("/v1/claims/default/box", headers=fields)
    assert (gone.status_code, gone.json()) == (404, NO_CLAIM)


@pytest.mark.parametrize("name", sorted(CALLS))
async def test_the_token_of_a_claim_opens_nothing_else(
    control: Control, registry: FakeRegistry, name: str
) -> None:
    await make(control, "ours", "box")
    token = (await make(control, "ours", "other"))["token"]
    answer = await send(control, name, {"x-sandbox-token": token})
    alike = {"READ", "READ_UNKNOWN", "RENEW", "RENEW_UNKNOWN"}
    expected = 404 if name in alike else 204 if name in {"RELEASE", "RELEASE_UNKNOWN"} else 403
    assert answer.status_code == expected
    assert live(registry) == ["box", "other"]


async def test_twenty_tokens_open_twenty_claims_and_only_the_diagonal() -> None:
    registry = FakeRegistry(ready=20)
    async with running_control(
        registry, callers=KnownTokens(*CALLERS), tokens=build_tokens(NOW)
    ) as control:
        names = [f"c{number}" for number in range(20)]
        tokens = [(await make(control, "ours", name))["token"] for name in names]

        async def reads(token: str, name: str) -> bool:
            fields = {"x-sandbox-token": token}
            answer = await control.client.get(f"/v1/claims/default/{name}", headers=fields)
            return answer.status_code == 200

        opened = await asyncio.gather(*(reads(token, name) for token in tokens for name in names))
    assert opened == [row == column for row in range(20) for column in range(20)]


async def test_a_claim_of_the_same_name_is_another_to_an_old_token() -> None:
    class Again(FakeRegistry):
        def _build_claim(self, name: Label, request: Any) -> Claim:
            return replace(super()._build_claim(name, request), uid=f"uid-{len(self.requests)}")

    again = Again(ready=5)
    async with running_control(
        again, callers=KnownTokens(*CALLERS), tokens=build_tokens(NOW)
    ) as control:
        old = {"x-sandbox-token": (await make(control, "ours", "box"))["token"]}
        await control.client.delete("/v1/claims/default/box", headers=old)
        await make(control, "ours", "box")
        assert (await control.client.get("/v1/claims/default/box", headers=old)).status_code == 404
        renewed = await control.client.post("/v1/claims/default/box/renew", headers=old)
        assert renewed.status_code == 404
        released = await control.client.delete("/v1/claims/default/box", headers=old)
        assert (released.status_code, live(again)) == (204, ["box"])


@pytest.mark.parametrize(
    ("keys", "audience", "uid", "expires_at", "status"),
    [
        (KEYS, "sandgate", "uid-box", NOW + 60, 200),
        (KEYS, "sandgate", None, NOW + 60, 404),
        (KEYS, "sandgate", "uid-other", NOW + 60, 404),
        (KEYS, "sandgate", "uid-box", NOW, 401),
        (KEYS, "elsewhere", "uid-box", NOW + 60, 401),
        (KeySet({"k1": bytes(32)}, "k1"), "sandgate", "uid-box", NOW + 60, 401),
        (KeySet({"k2": bytes(range(32))}, "k2"), "sandgate", "uid-box", NOW + 60, 401),
    ],
)
async def test_a_token_counts_for_its_generation_time_audience_and_key(
    control: Control, keys: KeySet, audience: str, uid: str | None, expires_at: float, status: int
) -> None:
    await make(control, "ours", "box")
    token = Capabilities(keys, audience=audience, now=lambda: NOW).sign(
        Capability(
            audience=audience,
            namespace=DEFAULT_NAMESPACE,
            claim=Label("box"),
            sandbox=Label("sb-box"),
            uid=uid,
            ports=None,
            scopes=("http", "ws"),
            not_before=int(NOW),
            expires_at=int(expires_at),
        )
    )
    fields = {"x-sandbox-token": token}
    assert (
        await control.client.get("/v1/claims/default/box", headers=fields)
    ).status_code == status


async def test_two_capabilities_are_none(control: Control) -> None:
    token = (await make(control, "ours", "box"))["token"]
    fields = [("x-sandbox-token", token), ("x-sandbox-token", token)]
    answer = await control.client.get("/v1/claims/default/box", headers=fields)
    assert answer.status_code == 401
