"""Questions to a DNS server: what is asked, and what comes of each answer."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import dns.rcode
import pytest
from support.scripted_dns import Script, ScriptedDns, scripted_dns

from sandgate_router.errors import DnsError
from sandgate_router.registry.dns_lookup import BadResolvConf, DnsTimeout, NoSuchName, StubResolver

NAME = "sb.default.svc.cluster.local"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedDns]:
    async with scripted_dns() as server:
        yield server


@pytest.fixture
def resolver(server: ScriptedDns, tmp_path: Path) -> StubResolver:
    return StubResolver(server.resolv_conf(tmp_path), port=server.port)


ANSWERS = {
    "A": (Script(a=("10.0.0.7",)), ["10.0.0.7"]),
    "several": (Script(a=("10.0.0.7", "10.0.0.8")), ["10.0.0.7", "10.0.0.8"]),
    "AAAA": (Script(aaaa=("fd00::7",)), ["fd00::7"]),
    "both": (Script(a=("10.0.0.7",), aaaa=("fd00::7",)), ["10.0.0.7"]),
    "an alias": (Script(alias="pod.example.", a=("10.0.0.7",)), ["10.0.0.7"]),
    "by TCP": (Script(a=("10.0.0.7",), cut_off=True), ["10.0.0.7"]),
    "the first query lost": (Script(a=("10.0.0.7",), lost=1), ["10.0.0.7"]),
    "a forged one before": (Script(a=("10.0.0.7",), forged="10.6.6.6"), ["10.0.0.7"]),
}


@pytest.mark.parametrize(("script", "addresses"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_the_addresses_of_a_name_are_found(
    server: ScriptedDns, resolver: StubResolver, script: Script, addresses: list[str]
) -> None:
    server.scripts[f"{NAME}."] = script
    answer = await resolver.addresses(NAME)
    assert sorted(map(str, answer.addresses)) == addresses


async def test_an_answer_of_hundreds_of_addresses_is_cut(
    server: ScriptedDns, resolver: StubResolver
) -> None:
    server.scripts[f"{NAME}."] = Script(
        a=tuple(f"10.0.{n // 250}.{n % 250}" for n in range(500)), cut_off=True
    )
    assert len((await resolver.addresses(NAME)).addresses) == 64


async def test_the_ttl_is_that_of_the_answer(server: ScriptedDns, resolver: StubResolver) -> None:
    server.scripts[f"{NAME}."] = Script(a=("10.0.0.7",), ttl=7)
    assert (await resolver.addresses(NAME)).ttl == 7


async def test_the_ttl_of_an_alias_counts_where_it_is_shorter(
    server: ScriptedDns, resolver: StubResolver
) -> None:
    server.scripts[f"{NAME}."] = Script(alias="pod.example.", a=("10.0.0.7",), ttl=900)
    assert (await resolver.addresses(NAME)).ttl == 300


FAILURES: dict[str, tuple[Script, type[DnsError | DnsTimeout]]] = {
    "no such name": (Script(rcode=dns.rcode.NXDOMAIN), NoSuchName),
    "no address": (Script(), NoSuchName),
    "an alias without an address": (Script(alias="pod.example."), NoSuchName),
    "SERVFAIL": (Script(rcode=dns.rcode.SERVFAIL), DnsError),
    "REFUSED": (Script(rcode=dns.rcode.REFUSED), DnsError),
    "NOTIMP": (Script(rcode=dns.rcode.NOTIMP), DnsError),
    "nothing": (Script(silent=True), DnsTimeout),
    "no DNS message": (Script(garbage=True), DnsTimeout),
    "forged ones alone": (Script(forged="10.6.6.6", rcode=dns.rcode.NXDOMAIN), NoSuchName),
}


@pytest.mark.parametrize(("script", "failure"), FAILURES.values(), ids=FAILURES.keys())
async def test_an_answer_without_an_address_is_a_failure_of_its_kind(
    server: ScriptedDns,
    resolver: StubResolver,
    script: Script,
    failure: type[DnsError | DnsTimeout],
) -> None:
    server.scripts[f"{NAME}."] = script
    with pytest.raises(failure) as failed:
        await resolver.addresses(NAME)
    assert type(failed.value) is failure


def test_clients_learn_of_each_by_its_status_and_code() -> None:
    known = {(kind.status, kind.code) for kind in (NoSuchName, DnsError)}
    assert known == {(502, "dns_error")}
    assert (DnsTimeout.status, DnsTimeout.code) == (504, "connection_timeout")


async def test_the_name_is_absolute_and_no_search_domain_is_tried(
    server: ScriptedDns, tmp_path: Path
) -> None:
    conf = server.resolv_conf(tmp_path, "search evil.example a.example", "options ndots:5")
    resolver = StubResolver(conf, port=server.port)
    with pytest.raises(NoSuchName):
        await resolver.addresses(NAME)
    assert server.queries == [(f"{NAME}.", "A", "udp")]


async def test_a_name_made_of_digits_is_asked_for_like_any_other(
    server: ScriptedDns, resolver: StubResolver
) -> None:
    server.scripts["2130706433.default.svc.cluster.local."] = Script(a=("10.0.0.7",))
    answer = await resolver.addresses("2130706433.default.svc.cluster.local")
    assert [str(address) for address in answer.addresses] == ["10.0.0.7"]


async def test_ipv6_is_asked_for_only_where_the_name_has_no_other_address(
    server: ScriptedDns, resolver: StubResolver
) -> None:
    server.scripts[f"{NAME}."] = Script(a=("10.0.0.7",), aaaa=("fd00::7",))
    await resolver.addresses(NAME)
    assert [kind for _, kind, _ in server.queries] == ["A"]


async def test_a_resolver_that_is_down_is_known_at_once(tmp_path: Path) -> None:
    async with scripted_dns() as server:
        resolver = StubResolver(server.resolv_conf(tmp_path), port=server.port)
    with pytest.raises(DnsError) as failed:
        await resolver.addresses(NAME)
    assert type(failed.value) is DnsError


async def test_a_dead_resolver_is_passed_over_for_the_next(
    server: ScriptedDns, tmp_path: Path
) -> None:
    server.scripts[f"{NAME}."] = Script(a=("10.0.0.7",))
    conf = tmp_path / "resolv.conf"
    conf.write_text("nameserver 127.0.0.99\nnameserver 127.0.0.1\n")
    answer = await StubResolver(conf, port=server.port).addresses(NAME)
    assert [str(address) for address in answer.addresses] == ["10.0.0.7"]


async def test_time_limits_of_resolv_conf_cannot_make_a_request_wait(
    server: ScriptedDns, tmp_path: Path
) -> None:
    server.scripts[f"{NAME}."] = Script(a=("10.0.0.7",), lost=1)
    conf = server.resolv_conf(tmp_path, "options timeout:30 attempts:9")
    await StubResolver(conf, port=server.port).addresses(NAME)
    assert server.asked(f"{NAME}.") == 2


async def test_nothing_stays_open(server: ScriptedDns, resolver: StubResolver) -> None:
    server.scripts |= {"quiet.": Script(silent=True), "cut.": Script(cut_off=True, a=("10.0.0.7",))}
    before = len(os.listdir("/proc/self/fd"))
    await asyncio.gather(
        *(resolver.addresses(name) for name in ["cut", "quiet", "none"] * 20),
        return_exceptions=True,
    )
    given_up = asyncio.create_task(resolver.addresses("quiet"))
    await asyncio.sleep(0.01)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    async with asyncio.timeout(10):
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "nameserver\n", "nameserver dns.example\n", "nameserver 10.0.0\n"]
)
def test_a_resolv_conf_without_a_resolver_is_refused_and_named(tmp_path: Path, text: str) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text(text)
    with pytest.raises(BadResolvConf, match=f"{conf}: no usable nameserver"):
        StubResolver(conf)


def test_a_resolv_conf_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadResolvConf, match="no usable nameserver: cannot open"):
        StubResolver(tmp_path / "resolv.conf")


def test_its_words_for_itself_name_the_resolvers(tmp_path: Path) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text("nameserver 10.96.0.10\nnameserver fd00::a\n")
    assert repr(StubResolver(conf)) == "<StubResolver 10.96.0.10, fd00::a>"
