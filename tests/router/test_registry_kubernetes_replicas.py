"""Gateways over one cluster: any of them routes and answers for what another has claimed.

Every sandbox is the same listener, at an address of its own; it answers with the address at
which it was reached, so a request that is led to a wrong one is seen.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from support.fake_kube import FakeKube
from support.fake_kube.kinds import SANDBOXES
from support.kube_gateway import cluster, every_sandbox, kube_gateway
from support.scripted_upstream import UpstreamSide


async def say_where(side: UpstreamSide) -> None:
    """Answer every request with the address that it came to, and whom it was meant for."""
    where = side.local_address
    while head := (await side.read_request())[0]:
        meant = head.lower().partition(b"x-sandbox-expect-uid: ")[2].split(b"\r\n")[0]
        content = json.dumps({"address": where, "uid": meant.decode()}).encode()
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))


@pytest.fixture
async def sandbox_port() -> AsyncIterator[int]:
    async with every_sandbox(say_where) as sandbox:
        yield sandbox.port


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with cluster(replicas=20) as kube:
        yield kube


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def check_route(kube: FakeKube, claim: dict[str, Any], answer: httpx.Response) -> None:
    assert answer.status_code == 200, answer.text
    sandbox = kube.store.get(SANDBOXES, claim["namespace"], claim["sandbox"])
    assert answer.json() == {"address": sandbox["status"]["podIPs"][0], "uid": claim["uid"]}


async def each(number: int, work: Callable[[int], Any], *, at_once: int = 25) -> None:
    turns = asyncio.Semaphore(at_once)

    async def one(index: int) -> None:
        async with turns:
            await work(index)

    async with asyncio.TaskGroup() as tasks:
        for index in range(number):
            tasks.create_task(one(index))


@pytest.mark.timeout(300)
async def test_the_first_request_of_each_claim_goes_through_another_replica(
    kube: FakeKube, sandbox_port: int
) -> None:
    async with kube_gateway(kube) as one, kube_gateway(kube) as two:

        async def work(index: int) -> None:
            claim = await one.claim()
            check_route(kube, claim, await two.get(claim, sandbox_port))
            if index % 2:  # else the fake has thousands of objects to look through
                await one.client.delete(f"/v1/claims/default/{claim['claim']}")

        await each(1000 if os.environ.get("SANDGATE_SOAK") else 500, work, at_once=50)


async def test_right_after_a_claim_every_replica_serves_it_at_once(
    kube: FakeKube, sandbox_port: int
) -> None:
    async with kube_gateway(kube) as one, kube_gateway(kube) as two:

        async def work(index: int) -> None:
            claim = await (one, two)[index % 2].claim()
            answers = await asyncio.gather(*(g.get(claim, sandbox_port) for g in (one, two)))
            for answer in answers:
                check_route(kube, claim, answer)
            await two.client.delete(f"/v1/claims/default/{claim['claim']}")

        await each(200, work)


async def test_a_replica_answers_for_claims_that_another_has_made(
    kube: FakeKube, sandbox_port: int
) -> None:
    async with kube_gateway(kube) as one, kube_gateway(kube) as two:
        claim = await one.claim(labels={"a": "b"})
        path = f"/v1/claims/default/{claim['claim']}"
        read = (await two.client.get(path)).json()
        assert (read["sandbox"], read["uid"], read["state"]) == (
            claim["sandbox"],
            claim["uid"],
            "ready",
        )
        assert (await two.client.post(f"{path}/renew")).status_code == 200
        assert (await two.client.delete(path)).status_code == 204
        await until(lambda: one.registry.claims() == [])
        assert (await one.get(claim, sandbox_port)).json()["code"] == "sandbox_not_found"
        assert (await one.client.get(path)).status_code == 404


async def test_a_key_that_comes_to_another_replica_finds_its_claim(kube: FakeKube) -> None:
    async with kube_gateway(kube) as one, kube_gateway(kube) as two:
        claims = [await gateway.claim(key="build-7") for gateway in (one, two, one)]
        assert len({claim["uid"] for claim in claims}) == 1


async def test_members_that_nobody_claimed_are_not_reached_by_their_names(
    kube: FakeKube, sandbox_port: int
) -> None:
    async with kube_gateway(kube) as one:
        for member in kube.store.items(SANDBOXES):
            named = {"sandbox": member["metadata"]["name"], "namespace": "default"}
            answer = await one.get(named, sandbox_port)
            assert (answer.status_code, answer.json()["code"]) == (404, "sandbox_not_found")


async def test_the_ports_of_a_claim_hold_on_every_replica(
    kube: FakeKube, sandbox_port: int
) -> None:
    async with kube_gateway(kube) as one, kube_gateway(kube) as two:
        claim = await one.claim(ports=[sandbox_port])
        for gateway in (two, one):
            check_route(kube, claim, await gateway.get(claim, sandbox_port))
            answer = await gateway.get(claim, 9999)
            assert answer.json()["code"] == "not_allowed_here"


async def test_a_suspended_sandbox_is_told_from_none_and_comes_back_at_its_new_address(
    kube: FakeKube, sandbox_port: int
) -> None:
    async with kube_gateway(kube) as one:
        claim = await one.claim()
        check_route(kube, claim, await one.get(claim, sandbox_port))
        _set_mode(kube, claim, "Suspended")
        await until(lambda: one.registry.claims()[0].state == "suspended")
        answer = await one.get(claim, sandbox_port)
        assert (answer.status_code, answer.json()["code"]) == (503, "sandbox_not_ready")
        assert "SandboxSuspended" in answer.json()["detail"]
        assert answer.headers["retry-after"]
        _set_mode(kube, claim, "Running")
        await until(lambda: one.registry.claims()[0].state == "ready")
        check_route(kube, claim, await one.get(claim, sandbox_port))


async def test_while_the_api_is_away_known_routes_work_and_control_calls_say_so(
    kube: FakeKube, sandbox_port: int
) -> None:
    async with kube_gateway(kube) as one:
        claims = [await one.claim() for _ in range(5)]
        for claim in claims:
            check_route(kube, claim, await one.get(claim, sandbox_port))
        await kube.down()
        await until(lambda: one.registry.health().fault is not None)

        async def work(index: int) -> None:
            claim = claims[index % 5]
            check_route(kube, claim, await one.get(claim, sandbox_port))

        await each(200, work)
        refused = await one.client.get(f"/v1/claims/default/{claims[0]['claim']}")
        assert (refused.status_code, refused.json()["code"]) == (503, "registry_unavailable")
        assert refused.headers["retry-after"]
        unknown = await one.get({"sandbox": "other", "namespace": "default"}, sandbox_port)
        assert unknown.json()["code"] == "registry_unavailable"
        ready = await one.client.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["fault"] == "the Kubernetes API does not answer"
        await kube.up()
        await until(lambda: one.registry.health().fault is None)
        assert (await one.client.get("/readyz")).json() == {"status": "ok"}
        await one.claim()


async def test_no_request_is_led_astray_while_watches_break_and_sandboxes_come_and_go(
    kube: FakeKube, sandbox_port: int
) -> None:
    """Addresses are few and used again, events come twice and in disorder, versions expire."""
    addresses = [f"127.2.0.{number}" for number in range(1, 121)]
    kube.controller.next_address = lambda: _free_address(kube, addresses)
    kube.faults.duplicate_events = kube.faults.reorder_events = True

    async def disturb() -> None:
        while True:
            await asyncio.sleep(0.05)
            kube.cut_watches(abruptly=random.random() < 0.5)
            if random.random() < 0.3:
                kube.store.forget_history()

    async with kube_gateway(kube) as one, kube_gateway(kube) as two:
        disturbing = asyncio.create_task(disturb())

        async def work(index: int) -> None:
            claim = await (one, two)[index % 2].claim()
            for gateway in random.choices((one, two), k=6):
                check_route(kube, claim, await gateway.get(claim, sandbox_port))
            await one.client.delete(f"/v1/claims/default/{claim['claim']}")

        try:
            await each(200, work, at_once=10)
        finally:
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)


def _free_address(kube: FakeKube, addresses: list[str]) -> str:
    taken = {
        address
        for item in kube.store.items(SANDBOXES)
        for address in (item.get("status") or {}).get("podIPs") or ()
    }
    return random.choice([address for address in addresses if address not in taken])


def _set_mode(kube: FakeKube, claim: dict[str, Any], mode: str) -> None:
    item = kube.store.get(SANDBOXES, claim["namespace"], claim["sandbox"])
    changed = item | {"spec": item["spec"] | {"operatingMode": mode}}
    kube.store.replace(SANDBOXES, claim["namespace"], claim["sandbox"], changed)
