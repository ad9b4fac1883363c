"""The audit: a line for each claim, renewal, release and refusal, and never a token."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.control import Control, KnownTokens, bearer, build_tokens, caller, running_control
from support.fake_registry import CREATED_AT, FakeRegistry

from sandgate_router.event_log import EventFormatter

ROUTE = "/v1/claims/{namespace}/{claim}"


@pytest.fixture
async def control(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Control]:
    caplog.set_level(logging.INFO, "sandgate.audit")
    known = KnownTokens(caller("ci", "claim"), caller("other", "claim"), caller("ops", "admin"))
    tokens = build_tokens(CREATED_AT.timestamp())
    async with running_control(
        FakeRegistry(ready=2), callers=known, tokens=tokens, loopback=False
    ) as control:
        yield control


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.name == "sandgate.audit"]
    return [EventFormatter().format(record) for record in records]


async def make(control: Control, **fields: str) -> dict[str, Any]:
    body = {"pool": "python", "name": "box"}
    answer = await control.client.post("/v1/claims", json=body, headers=bearer("ci") | fields)
    created: dict[str, Any] = answer.json()
    return created


async def test_what_is_done_to_a_claim_is_noted_with_who_did_it(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    token = (await make(control))["token"]
    path = "/v1/claims/default/box"
    await control.client.post(f"{path}/renew", headers={"x-sandbox-token": token})
    await control.client.delete(path, headers=bearer("other"))
    await control.client.delete(path, headers=bearer("ops"))
    await control.client.delete(path, headers=bearer("ci"))
    await control.client.patch("/v1/pools/default/python", json={"warm": 1}, headers=bearer("ops"))
    audit = "INFO sandgate.audit"
    place = 'namespace="default" claim="box"'
    assert lines(caplog) == [
        f'{audit} claim.created caller="ci" {place} pool="python"',
        f'{audit} claim.renewed caller=null by="capability" {place} reason=null',
        f'{audit} release.ignored caller="other" by="token" {place} reason="not_own"',
        f'{audit} claim.released caller="ops" by="token" {place} reason=null',
        f'{audit} release.ignored caller="ci" by="token" {place} reason="claim_not_found"',
        f'{audit} pool.resized caller="ops" by="token" namespace="default" pool="python"',
    ]


async def test_a_refusal_is_noted_with_its_reason_and_where_it_came_from(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    client, path = control.client, "/v1/claims/default/box"
    await client.get(path)
    await client.get(path, headers=bearer("ci"))
    await client.delete("/v1/claims/team/box", headers=bearer("ci"))
    await client.post("/v1/claims", json={"pool": "ruby"}, headers=bearer("ci"))
    start, peer = "INFO sandgate.audit request.refused", 'peer="127.0.0.1"'
    ours = 'caller="ci" by="token"'
    assert lines(caplog) == [
        (
            f'{start} caller=null by=null namespace="default" claim="box" method="GET"'
            f' route="{ROUTE}" {peer} reason="unauthenticated" count=1'
        ),
        (
            f'{start} {ours} namespace="default" claim="box" method="GET" route="{ROUTE}" {peer}'
            ' reason="claim_not_found" count=1'
        ),
        (
            f'{start} {ours} namespace="team" claim="box" method="DELETE" route="{ROUTE}" {peer}'
            ' reason="forbidden" count=1'
        ),
        f'{start} {ours} method="POST" route="/v1/claims" {peer} reason="pool_not_found" count=1',
    ]


async def test_a_flood_of_refusals_is_counted_and_hides_no_other(
    control: Control, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandgate_router.control.audit.REFUSAL_SECONDS", 0.3)
    client, sent = control.client, 300
    begun = time.monotonic()
    for number in range(sent):
        await client.get(f"/v1/claims/default/c{number}")
    await client.get("/v1/claims/default/x", headers=bearer("ci"))
    await client.get("/v1/claims/default/x", headers=bearer("other"))
    windows = (time.monotonic() - begun) / 0.3 + 1

    def counts(reason: str) -> list[int]:
        noted = [vars(r) for r in caplog.records if vars(r).get("reason") == reason]
        return [fields["count"] for fields in noted]

    async with asyncio.timeout(20):
        while sum(counts("unauthenticated")) < sent:
            await asyncio.sleep(0.01)
    assert sum(counts("unauthenticated")) == sent
    assert counts("unauthenticated")[0] == 1
    assert len(counts("unauthenticated")) <= windows + 1
    assert counts("claim_not_found") == [1, 1]
    last = [line for line in lines(caplog) if "unauthenticated" in line][-1]
    assert f'claim="c{sent - 1}"' in last


async def test_a_repeated_claim_is_noted_once(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await make(control, **{"idempotency-key": "k"})
    assert len(lines(caplog)) == 1


async def test_no_token_query_or_body_is_ever_noted(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = (await make(control))["token"]
    client, secret = control.client, "hunter2"
    await client.get(f"/v1/claims?cursor={secret}", headers=bearer("ci"))
    await client.get(f"/v1/claims?cursor={secret}", headers={"authorization": f"Bearer {secret}"})
    await client.get("/v1/pools", headers={"x-sandbox-token": token})
    await client.post("/v1/claims", json={"pool": secret}, headers=bearer("ci"))
    await client.post("/v1/claims", json={"pool": secret}, headers={"cookie": secret})
    noted = [str(vars(r)) for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
    assert len(noted) >= 5
    for line in noted:
        assert secret not in line
        assert token not in line
        assert "ci-token" not in line


async def test_a_long_name_or_a_line_end_in_a_path_makes_no_long_line_and_no_second_one(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    await control.client.get(f"/v1/claims/default/{'a' * 7000}")
    await control.client.get("/v1/claims/default/%E2%80%A8x%1b%5b31m", headers=bearer("ci"))
    assert len(lines(caplog)) == 2
    for line in lines(caplog):
        assert len(line) < 400
        assert line.isascii()
        assert line.isprintable()
