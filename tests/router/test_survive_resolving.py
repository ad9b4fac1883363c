"""What may be thrown at the gateway, where names are resolved by DNS.

U02, U03, U32, R25 and R26, and users' case T02: a real DNS server on loopback that a test
scripts, raw clients and sandboxes. The row is in the name of the test or of the case.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import dns.rcode
import pytest
from support.dns_gateway import DnsGateway, dns_gateway
from support.raw_client import HANDSHAKE, Answer, RawClient, connect, request
from support.scripted_dns import Script
from support.scripted_upstream import SWITCHED, ScriptedUpstream, UpstreamSide, answering

NAME = "sb.default.svc.cluster.local."
THERE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nthere"


async def ask(here: DnsGateway, sandbox: str = "sb") -> Answer:
    async with connect(here.port) as client:
        await client.send(asking(here, sandbox))
        return await client.read_answer()


def asking(here: DnsGateway, sandbox: str = "sb", more: str = "") -> bytes:
    return request(sandbox=sandbox, more=f"X-Sandbox-Port: {here.sandbox.port}\r\n{more}")


def assert_refused(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code)
    assert (answer.json["reached"], answer.json["retry_safe"]) == ("no", True)
    assert "127." not in answer.json["detail"]


async def test_a_sandbox_is_reached_by_its_name(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path) as here:
        here.name("sb", "127.0.0.1")
        for _ in range(3):
            assert (await ask(here)).body == b"ok"
        assert here.dns.queries == [(NAME, "A", "udp")]
        assert len(here.sandbox.sides) == 1  # one endpoint, so one connection
        host = f"Host: {NAME.removesuffix('.')}:{here.sandbox.port}\r\n".encode()
        assert all(host in head for head in here.sandbox.heads)
        assert not any(b"X-Sandbox" in head for head in here.sandbox.heads)


async def test_other_namespaces_are_other_names(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path) as here, connect(here.port) as client:
        here.name("sb", "127.0.0.1", namespace="agents")
        await client.send(asking(here, more="X-Sandbox-Namespace: agents\r\n"))
        assert (await client.read_answer()).status == 200
        assert here.dns.queries == [("sb.agents.svc.cluster.local.", "A", "udp")]


NO_ADDRESS = {
    "U02 no such name": Script(rcode=dns.rcode.NXDOMAIN),
    "U02 no address": Script(),
    "U02 an alias of nothing": Script(alias="elsewhere.example."),
    "U03 SERVFAIL": Script(rcode=dns.rcode.SERVFAIL),
    "U03 REFUSED": Script(rcode=dns.rcode.REFUSED),
}


@pytest.mark.parametrize("script", NO_ADDRESS.values(), ids=NO_ADDRESS.keys())
async def test_a_name_without_an_address_is_502_and_believed_for_a_second(
    tmp_path: Path, script: Script
) -> None:
    async with dns_gateway(tmp_path) as here:
        here.dns.scripts[NAME] = script
        assert_refused(await ask(here), 502, "dns_error")
        queries = len(here.dns.queries)
        assert_refused(await ask(here), 502, "dns_error")
        assert len(here.dns.queries) == queries
        assert here.gateway.dials == 0
        here.gateway.skip(1.1)
        here.name("sb", "127.0.0.1")
        assert (await ask(here)).status == 200


NO_ANSWER = {
    "U03 silence": Script(silent=True),
    "U03 no DNS message": Script(garbage=True),
}


@pytest.mark.parametrize("script", NO_ANSWER.values(), ids=NO_ANSWER.keys())
async def test_a_name_without_an_answer_is_504(tmp_path: Path, script: Script) -> None:
    async with dns_gateway(tmp_path) as here:
        here.dns.scripts[NAME] = script
        answer = await ask(here)
        assert_refused(answer, 504, "connection_timeout")
        assert answer.json["detail"] == "Timed out resolving the sandbox's name"
        assert "error=dns_timeout" in (answer.one("Proxy-Status") or "")
        assert here.gateway.dials == 0


async def test_u03_a_truncated_answer_is_asked_for_by_tcp(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path) as here:
        here.dns.scripts[NAME] = Script(a=("127.0.0.1",), cut_off=True)
        assert (await ask(here)).status == 200
        assert here.dns.queries == [(NAME, "A", "udp"), (NAME, "A", "tcp")]


async def test_u03_one_slow_name_delays_no_other(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path) as here, connect(here.port) as slow:
        here.name("sb", "127.0.0.1")
        here.dns.scripts["slow.default.svc.cluster.local."] = Script(silent=True)
        await slow.send(asking(here, "slow"))
        waiting = asyncio.create_task(slow.read_answer())
        async with asyncio.timeout(10):
            while not here.dns.held:
                await asyncio.sleep(0)
        first, _ = await asyncio.wait(
            [waiting, asyncio.create_task(ask(here))], return_when=asyncio.FIRST_COMPLETED
        )
        assert waiting not in first
        assert_refused(await waiting, 504, "connection_timeout")


async def test_t02_200_names_without_an_answer_do_not_touch_a_sandbox_in_use(
    tmp_path: Path,
) -> None:
    """Not even when its name has to be asked for again meanwhile."""
    async with dns_gateway(tmp_path) as here:
        here.name("sb", "127.0.0.1", ttl=1)
        assert (await ask(here)).status == 200
        for number in range(200):
            name = f"unknown-{number}.default.svc.cluster.local."
            here.dns.scripts[name] = Script(silent=True)
        unknown = [asyncio.create_task(ask(here, f"unknown-{n}")) for n in range(200)]
        async with asyncio.timeout(10):
            while len(here.dns.held) < 48:
                await asyncio.sleep(0)
        here.gateway.skip(1.1)
        queries = here.dns.asked(NAME)
        done = 0
        while not all(task.done() for task in unknown):
            assert (await ask(here)).status == 200
            done += 1
        assert done > 1
        assert here.dns.asked(NAME) > queries
        for answer in await asyncio.gather(*unknown):
            assert_refused(answer, 504, "connection_timeout")


@contextlib.asynccontextmanager
async def replaced(here: DnsGateway) -> AsyncIterator[None]:
    """Have another sandbox at the same name, while the context lasts."""
    listener = socket.create_server(("127.0.0.2", here.sandbox.port))
    async with ScriptedUpstream(answering(THERE)).running(listener):
        here.name("sb", "127.0.0.2")
        yield


async def test_u32_a_sandbox_that_is_replaced_under_its_name_is_found_within_5_seconds(
    tmp_path: Path,
) -> None:
    async with dns_gateway(tmp_path) as here:
        here.name("sb", "127.0.0.1", ttl=3600)
        assert (await ask(here)).body == b"ok"
        async with replaced(here):
            here.gateway.skip(5.1)
            assert (await ask(here)).body == b"there"
            await (await here.sandbox.side()).ended.wait()


async def test_u32_what_is_under_way_with_the_old_one_ends(tmp_path: Path) -> None:
    async def switch(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(SWITCHED)

    async with dns_gateway(tmp_path, switch) as here, connect(here.port) as client:
        here.name("sb", "127.0.0.1")
        await client.send(asking(here, more=HANDSHAKE))
        assert (await client.read_answer(head_only=True)).status == 101
        async with replaced(here):
            here.gateway.skip(5.1)
            assert (await ask(here)).body == b"there"
            assert (await client.read_rest())[:1] in (b"", b"\x88")  # at most a close frame
            await (await here.sandbox.side()).ended.wait()


async def test_u32_an_answer_in_use_is_refreshed_and_the_new_one_found_without_a_wait(
    tmp_path: Path,
) -> None:
    async with dns_gateway(tmp_path) as here, connect(here.port) as client:
        here.name("sb", "127.0.0.1")
        assert (await again(here, client)).body == b"ok"
        async with replaced(here):
            here.gateway.skip(4)
            async with asyncio.timeout(10):
                while (await again(here, client)).body != b"there":
                    await asyncio.sleep(0)


async def again(here: DnsGateway, client: RawClient) -> Answer:
    await client.send(asking(here))
    return await client.read_answer()


async def test_r25_an_answer_that_changes_before_the_dial_changes_nothing(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path) as here:
        here.name("sb", "127.0.0.1", ttl=0)
        assert (await ask(here)).status == 200
        assert here.dns.queries == [(NAME, "A", "udp")]  # asked once: what is checked is dialled
        here.name("sb", "127.9.0.1", ttl=0)
        assert (await ask(here)).status == 200
        here.gateway.skip(1.1)
        assert_refused(await ask(here), 502, "destination_prohibited")
        await (await here.sandbox.side()).ended.wait()  # what led there before is closed
        assert len(here.sandbox.sides) == 1


REBINDING = {
    "R25 outside the networks": ["127.9.0.1"],
    "R25 metadata": ["169.254.169.254"],
    "R25 public": ["192.0.2.1"],
    "R25 mixed, the bad one last": ["127.0.0.1", "169.254.169.254"],
    "R25 mixed, the bad one first": ["127.9.0.1", "127.0.0.1"],
    "R25 broadcast": ["255.255.255.255"],
}


@pytest.mark.parametrize("addresses", REBINDING.values(), ids=REBINDING.keys())
async def test_every_address_of_an_answer_is_checked_before_any_is_dialled(
    tmp_path: Path, addresses: list[str]
) -> None:
    async with dns_gateway(tmp_path) as here:
        here.name("sb", *addresses)
        for _ in range(2):
            answer = await ask(here)
            assert_refused(answer, 502, "destination_prohibited")
            assert "error=destination_ip_prohibited" in (answer.one("Proxy-Status") or "")
        assert here.dns.asked(NAME) == 1
        assert here.sandbox.sides == []
        assert here.gateway.dials == 0


async def test_r26_no_search_domain_is_tried(tmp_path: Path) -> None:
    async with dns_gateway(tmp_path, search="evil.example svc.cluster.local") as here:
        here.dns.scripts[f"{NAME}evil.example."] = Script(a=("127.0.0.1",))
        assert_refused(await ask(here), 502, "dns_error")
        assert here.dns.queries == [(NAME, "A", "udp")]
        assert here.sandbox.sides == []
