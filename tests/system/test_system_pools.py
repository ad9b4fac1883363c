"""Pools, leases and quotas of a real gateway: what its clients see of them."""

import json
import threading
import time
from pathlib import Path

import httpx
import pytest
from support.system_gateway import SystemGateway, sandgate_up, wait_until


def claim(client: httpx.Client, **members: object) -> httpx.Response:
    return client.post("/v1/claims", json={"pool": "python", **members})


def pool(client: httpx.Client) -> dict[str, object]:
    found: dict[str, object] = client.get("/v1/pools/default/python").json()
    return found


def names(client: httpx.Client) -> list[str]:
    return [claim["claim"] for claim in client.get("/v1/claims").json()["claims"]]


def fields(claim: dict[str, str]) -> dict[str, str]:
    return {"X-Sandbox-ID": claim["sandbox"], "X-Sandbox-Token": claim["token"]}


def pools_file(gateway: SystemGateway) -> Path:
    arguments = gateway.process.args
    assert isinstance(arguments, list)
    return Path(arguments[arguments.index("--pools") + 1])


def test_a_third_claim_on_a_pool_of_two_in_each_mode(best_isolation: str) -> None:
    with (
        sandgate_up(isolation=best_isolation, pool={"warm": 0, "max": 2}) as gateway,
        gateway.client() as client,
    ):
        cold = claim(client, on_empty="cold", name="one")
        assert (cold.status_code, cold.json()["launch"]) == (201, "cold")
        assert claim(client, name="two").status_code == 201
        refused = claim(client, on_empty="fail")
        assert (refused.status_code, refused.json()["code"]) == (503, "pool_exhausted")
        assert int(refused.headers["Retry-After"]) >= 1
        begun = time.monotonic()
        releasing = threading.Timer(
            1.0, lambda: httpx.delete(f"{gateway.url}/v1/claims/default/one")
        )
        releasing.start()
        waited = claim(client, wait_seconds=30, name="three")
        assert waited.status_code == 201
        assert time.monotonic() - begun >= 1.0
        releasing.join()
        assert sorted(names(client)) == ["three", "two"]


def test_a_client_that_was_killed_holds_nothing_beyond_its_lease(best_isolation: str) -> None:
    with (
        sandgate_up(isolation=best_isolation, pool={"warm": 0, "max": 1}) as gateway,
        gateway.client() as client,
    ):
        assert claim(client, name="left", lease_seconds=2).status_code == 201
        impatient = httpx.Client(base_url=gateway.url, timeout=0.2, trust_env=False)
        with impatient, pytest.raises(httpx.TimeoutException):
            claim(impatient, name="waiter")
        wait_until(lambda: pool(client)["waiting"] == 0)
        assert claim(client, name="next", wait_seconds=30).status_code == 201
        assert names(client) == ["next"]
        for _ in range(2):
            for name in ("next", "never"):
                assert client.delete(f"/v1/claims/default/{name}").status_code == 204


def test_a_claim_lives_while_it_is_used_and_ends_once_it_is_idle(best_isolation: str) -> None:
    with sandgate_up(isolation=best_isolation) as gateway, gateway.client() as client:
        kept, _, used = (
            claim(client, name=name, **members).json()
            for name, members in (
                ("kept", {"idle_seconds": 600}),
                ("unused", {"idle_seconds": 3}),
                ("used", {"idle_seconds": 3}),
            )
        )
        # A command that takes longer than the idle time, and nothing else happens.
        command = {"command": "sleep 6"}
        answer = client.post("/execute", json=command, headers=fields(used))
        assert answer.json()["exit_code"] == 0
        assert names(client) == ["kept", "used"]
        wait_until(lambda: names(client) == ["kept"])
        assert client.get("/", headers=fields(used)).status_code == 404
        assert client.get("/", headers=fields(kept)).status_code == 200


def test_the_pools_follow_their_file_and_a_broken_one_changes_nothing(best_isolation: str) -> None:
    with sandgate_up(isolation=best_isolation) as gateway, gateway.client() as client:
        kept = claim(client, name="kept").json()
        file = pools_file(gateway)
        new = {
            "pools": [
                {"name": "python", "warm": 1, "max": 8, "env": {"MARK": "new"}},
                {"name": "other", "warm": 1, "max": 2},
            ],
            "quotas": {"default": 2},
        }
        file.write_text(json.dumps(new))
        wait_until(lambda: client.get("/v1/pools/default/other").status_code == 200)
        made = claim(client, name="made").json()
        for held, mark in ((kept, "\n"), (made, "new\n")):
            command = {"command": "sh -c 'echo $MARK'"}
            answer = client.post("/execute", json=command, headers=fields(held))
            assert answer.json()["stdout"] == mark
        over = claim(client, name="over", pool="other")
        assert (over.status_code, over.json()["code"]) == (429, "quota_exceeded")
        file.write_text("pools: [")
        wait_until(lambda: "pools.kept" in gateway.errors())
        assert client.get("/v1/pools/default/other").status_code == 200
