"""Sandboxes by their DNS names: what is believed, for how long, and what is asked when."""

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sandgate_router.addresses import AddressPolicy
from sandgate_router.errors import (
    DestinationProhibited,
    DnsError,
    GatewayError,
    NotImplementedHere,
)
from sandgate_router.names import Label, Port
from sandgate_router.registry.base import ClaimRequest, Endpoint, Registry
from sandgate_router.registry.dns import (
    MAX_FAILURES,
    MAX_NAMES,
    MAX_NEW_QUESTIONS,
    MAX_PORTS,
    MAX_QUESTIONS,
    DnsRegistry,
)
from sandgate_router.registry.dns_lookup import Answer, DnsTimeout, NoSuchName
from sandgate_router.target import Target

POLICY = AddressPolicy((ipaddress.ip_network("10.0.0.0/8"),), is_ours=lambda _: False)


def target(sandbox: str, port: int = 8888) -> Target:
    return Target(Label(sandbox), Label("agents"), Port(port))


@dataclass
class ScriptedLookup:
    """Answers names as a test says, and keeps those that it holds waiting."""

    answers: dict[str, Answer | GatewayError | Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    held: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    """Names that get no answer until their future is done."""
    at_once: int = 0
    most_at_once: int = 0

    async def addresses(self, name: str) -> Answer:
        self.asked.append(name)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if name in self.held:
                await asyncio.shield(self.held[name])
            answer = self.answers.get(name, NoSuchName())
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.at_once -= 1

    def say(self, sandbox: str, *addresses: str, ttl: float = 4.0) -> None:
        self.answers[named(sandbox)] = Answer(
            tuple(ipaddress.ip_address(text) for text in addresses), ttl
        )

    def hold(self, sandbox: str) -> asyncio.Future[None]:
        return self.held.setdefault(named(sandbox), asyncio.get_running_loop().create_future())


def named(sandbox: str) -> str:
    return f"{sandbox}.agents.svc.cluster.local"


class Here:
    """A registry over a scripted lookup, with a clock of its own."""

    def __init__(self) -> None:
        self.lookup = ScriptedLookup()
        self.now = 1000.0
        self.gone: list[Endpoint] = []
        self.registry = DnsRegistry(
            self.lookup, POLICY, cluster_domain="cluster.local", clock=lambda: self.now
        )
        self.registry.subscribe(self.gone.append)

    async def found(self, sandbox: str, port: int = 8888) -> Endpoint:
        """Return the endpoint as a request gets it: from the table, else by asking."""
        endpoint = self.registry.endpoint(target(sandbox, port))
        if endpoint is None:
            endpoint = await self.registry.find(target(sandbox, port))
        assert endpoint is not None
        return endpoint

    async def settled(self) -> None:
        """Wait for the questions under way."""
        async with asyncio.timeout(10):
            while self.registry._under_way:
                await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)


@pytest.fixture
def here() -> Here:
    return Here()


async def test_a_name_is_asked_for_once_and_then_known(here: Here) -> None:
    here.lookup.say("sb", "10.0.0.7")
    assert here.registry.endpoint(target("sb")) is None
    endpoint = await here.registry.find(target("sb"))
    assert endpoint is not None
    assert (endpoint.host, endpoint.port, endpoint.uid) == ("10.0.0.7", 8888, None)
    assert endpoint.name == "agents/sb"
    assert here.registry.endpoint(target("sb")) is endpoint
    assert here.lookup.asked == ["sb.agents.svc.cluster.local"]


async def test_every_port_has_an_endpoint_of_its_own_and_costs_no_question(here: Here) -> None:
    here.lookup.say("sb", "10.0.0.7")
    usual, other = await here.found("sb"), await here.found("sb", 3000)
    assert (usual.port, other.port) == (8888, 3000)
    assert await here.found("sb", 3000) is other
    assert len(here.lookup.asked) == 1


async def test_the_other_domain_of_a_cluster_is_asked_for(here: Here) -> None:
    registry = DnsRegistry(here.lookup, POLICY, cluster_domain="corp.example")
    with pytest.raises(DnsError):
        await registry.find(target("sb"))
    assert here.lookup.asked == ["sb.agents.svc.corp.example"]


async def test_who_asks_for_one_name_at_once_asks_together(here: Here) -> None:
    here.lookup.say("sb", "10.0.0.7")
    gate = here.lookup.hold("sb")
    asking = [asyncio.create_task(here.registry.find(target("sb", port))) for port in (1, 2, 1)]
    await here.until(lambda: bool(here.lookup.asked))
    gate.set_result(None)
    first, other, again = await asyncio.gather(*asking)
    assert first is again
    assert first is not other
    assert len(here.lookup.asked) == 1


async def test_who_leaves_takes_nobodys_question_along(here: Here) -> None:
    here.lookup.say("sb", "10.0.0.7")
    gate = here.lookup.hold("sb")
    leaves, stays = (asyncio.create_task(here.registry.find(target("sb"))) for _ in range(2))
    await here.until(lambda: bool(here.lookup.asked))
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    gate.set_result(None)
    assert await stays is not None


async def test_who_is_cut_off_when_the_answer_is_overdue_learns_that_dns_was_slow(
    here: Here,
) -> None:
    here.lookup.hold("sb")
    waiting = asyncio.create_task(here.registry.find(target("sb")))
    await here.until(lambda: bool(here.lookup.asked))
    here.now += 1
    waiting.cancel()
    with pytest.raises(DnsTimeout):
        await waiting


# What is believed, and for how long.


@pytest.mark.parametrize(("ttl", "life"), [(4.0, 4), (0, 1), (0.5, 1), (5, 5), (30, 5), (2**31, 5)])
async def test_an_answer_is_believed_for_its_ttl_within_bounds(
    here: Here, ttl: float, life: float
) -> None:
    here.lookup.say("sb", "10.0.0.7", ttl=ttl)
    endpoint = await here.found("sb")
    here.now += life * 0.74
    assert here.registry.endpoint(target("sb")) is endpoint
    assert not here.registry._under_way
    here.now += life * 0.27
    assert here.registry.endpoint(target("sb")) is None


async def test_an_answer_that_is_in_use_is_asked_for_again_before_its_end(here: Here) -> None:
    here.lookup.say("sb", "10.0.0.7")
    endpoint = await here.found("sb")
    for _ in range(10):
        here.now += 3.5
        for _ in range(5):
            assert here.registry.endpoint(target("sb")) is endpoint
        await here.settled()
    assert len(here.lookup.asked) == 11
    assert here.gone == []


async def test_an_expired_answer_that_is_the_same_again_keeps_its_endpoint(here: Here) -> None:
    here.lookup.say("sb", "10.0.0.7")
    endpoint = await here.found("sb")
    here.now += 600
    assert await here.found("sb") is endpoint
    assert here.gone == []


async def test_the_address_stays_as_long_as_it_is_among_the_answers(here: Here) -> None:
    here.lookup.say("sb", "10.0.0.7")
    endpoint = await here.found("sb")
    here.now += 600
    here.lookup.say("sb", "10.0.0.8", "10.0.0.7")
    assert await here.found("sb") is endpoint


@pytest.mark.parametrize("waited", [3.5, 600], ids=["before the end", "after it"])
async def test_another_address_takes_the_endpoints_of_before_out_of_the_table(
    here: Here, waited: float
) -> None:
    here.lookup.say("sb", "10.0.0.7")
    before = [await here.found("sb"), await here.found("sb", 3000)]
    here.lookup.say("sb", "10.0.0.8")
    here.now += waited
    here.registry.endpoint(target("sb"))
    if waited == 600:
        await here.found("sb")
    await here.settled()
    assert here.gone == before
    assert (await here.found("sb")).host == "10.0.0.8"


@pytest.mark.parametrize("waited", [3.5, 600], ids=["before the end", "after it"])
async def test_a_name_that_ends_takes_its_endpoints_along(here: Here, waited: float) -> None:
    here.lookup.say("sb", "10.0.0.7")
    before = await here.found("sb")
    here.lookup.answers.clear()
    here.now += waited
    if here.registry.endpoint(target("sb")) is None:
        with pytest.raises(DnsError):
            await here.registry.find(target("sb"))
    await here.settled()
    assert here.gone == [before]
    assert here.registry.endpoint(target("sb")) is None


@pytest.mark.parametrize("failure", [DnsError(), DnsTimeout()], ids=["SERVFAIL", "time-out"])
async def test_not_to_know_is_no_reason_to_doubt_what_is_still_believed(
    here: Here, failure: GatewayError
) -> None:
    here.lookup.say("sb", "10.0.0.7")
    endpoint = await here.found("sb")
    here.lookup.answers[named("sb")] = failure
    here.now += 3.1
    for _ in range(100):
        assert here.registry.endpoint(target("sb")) is endpoint
        await here.settled()
    assert len(here.lookup.asked) == 2  # not once for each request
    here.now += 0.91
    assert here.registry.endpoint(target("sb")) is None
    with pytest.raises(type(failure)):
        await here.registry.find(target("sb"))
    here.now += 1
    here.lookup.say("sb", "10.0.0.7")
    assert await here.found("sb") is endpoint
    assert here.gone == []


# Failures.


@pytest.mark.parametrize("failure", [NoSuchName(), DnsError(), DnsTimeout()])
async def test_a_failure_is_believed_for_a_second(here: Here, failure: GatewayError) -> None:
    here.lookup.answers[named("sb")] = failure
    for _ in range(3):
        with pytest.raises(type(failure)):
            await here.registry.find(target("sb"))
        here.now += 0.3
    assert len(here.lookup.asked) == 1
    here.now += 0.11
    here.lookup.say("sb", "10.0.0.7")
    assert (await here.found("sb")).host == "10.0.0.7"


async def test_a_fault_of_the_lookup_is_told_and_refused_and_ends_nothing_else(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    here.lookup.answers[named("sb")] = RuntimeError("a bug")
    with pytest.raises(DnsError):
        await here.registry.find(target("sb"))
    assert "a bug" in caplog.text
    here.now += 1
    here.lookup.say("sb", "10.0.0.7")
    await here.found("sb")


PROHIBITED = {
    "outside": ["192.0.2.1"],
    "loopback": ["127.0.0.1"],
    "metadata": ["169.254.169.254"],
    "the second one": ["10.0.0.7", "169.254.169.254"],
    "the first one": ["8.8.8.8", "10.0.0.7"],
    "IPv4-mapped": ["::ffff:10.0.0.7"],
}


@pytest.mark.parametrize("addresses", PROHIBITED.values(), ids=PROHIBITED.keys())
async def test_one_address_that_is_not_to_be_dialled_spoils_the_answer(
    here: Here, addresses: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    here.lookup.say("sb", *addresses)
    for _ in range(2):
        with pytest.raises(DestinationProhibited) as refusal:
            await here.registry.find(target("sb"))
        assert not any(address in str(refusal.value) for address in addresses)
    assert len(here.lookup.asked) == 1
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "dns.unusable")


async def test_a_name_that_turns_to_such_an_address_loses_its_endpoints(here: Here) -> None:
    here.lookup.say("sb", "10.0.0.7")
    before = await here.found("sb")
    here.lookup.say("sb", "169.254.169.254")
    here.now += 3.5
    here.registry.endpoint(target("sb"))
    await here.settled()
    assert here.gone == [before]
    assert here.registry.endpoint(target("sb")) is None


async def test_what_fails_for_every_name_fills_no_log(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        here.lookup.answers[named(f"sb-{number}")] = DnsTimeout()
        with pytest.raises(DnsTimeout):
            await here.registry.find(target(f"sb-{number}"))
    assert len(caplog.records) == 1


# Many at once.


async def test_at_most_64_questions_are_under_way_48_of_them_for_new_names(here: Here) -> None:
    for number in range(100):
        here.lookup.say(f"known-{number}", "10.0.0.7")
        await here.found(f"known-{number}")
    names = [f"new-{n}" for n in range(100)] + [f"known-{n}" for n in range(100)]
    gates = [here.lookup.hold(name) for name in names]
    here.now += 600
    new = [asyncio.create_task(here.registry.find(target(f"new-{n}"))) for n in range(100)]
    await here.until(lambda: here.lookup.at_once == MAX_NEW_QUESTIONS)
    for _ in range(20):
        await asyncio.sleep(0)
    assert here.lookup.at_once == MAX_NEW_QUESTIONS
    known = [asyncio.create_task(here.registry.find(target(f"known-{n}"))) for n in range(100)]
    await here.until(lambda: here.lookup.at_once == MAX_QUESTIONS)
    for _ in range(20):
        await asyncio.sleep(0)
    for gate in gates:
        gate.set_result(None)
    outcomes = await asyncio.gather(*new, return_exceptions=True)
    assert all(isinstance(outcome, DnsError) for outcome in outcomes)
    assert all(await asyncio.gather(*known))
    assert here.lookup.most_at_once == MAX_QUESTIONS


async def test_names_without_an_answer_do_not_hold_up_one_that_is_in_use(here: Here) -> None:
    here.lookup.say("known", "10.0.0.7")
    endpoint = await here.found("known")
    for number in range(200):
        here.lookup.hold(f"new-{number}")
    stuck = [asyncio.create_task(here.registry.find(target(f"new-{n}"))) for n in range(200)]
    await here.until(lambda: here.lookup.at_once == MAX_NEW_QUESTIONS)
    here.now += 600
    assert await here.found("known") is endpoint
    assert here.lookup.at_once == MAX_NEW_QUESTIONS
    outcomes = await asyncio.gather(*stuck, return_exceptions=True)
    assert all(isinstance(outcome, DnsTimeout) for outcome in outcomes)
    assert here.lookup.at_once == 0


async def test_what_is_remembered_has_bounds(here: Here) -> None:
    for number in range(MAX_FAILURES + 10):
        with pytest.raises(DnsError):
            await here.registry.find(target(f"no-{number}"))
    assert len(here.registry._failures) <= MAX_FAILURES
    for number in range(MAX_NAMES + 10):
        here.lookup.say(f"sb-{number}", "10.0.0.7")
        await here.found(f"sb-{number}")
    assert repr(here.registry) == f"<DnsRegistry {MAX_NAMES} names, 0 under way>"
    assert here.registry.endpoint(target("sb-0")) is None
    assert here.registry.endpoint(target(f"sb-{MAX_NAMES}")) is not None
    assert here.gone == []  # they may well be alive


async def test_walking_the_ports_costs_no_more_than_a_bound_and_leaves_8888_alone(
    here: Here,
) -> None:
    here.lookup.say("sb", "10.0.0.7")
    usual = await here.found("sb")
    for port in range(1, 1001):
        await here.found("sb", port)
    assert await here.found("sb") is usual
    assert len(here.gone) == 1001 - MAX_PORTS
    assert usual not in here.gone


# What it shares with every registry.


async def test_it_only_routes(here: Here) -> None:
    registry: Registry = here.registry
    await registry.start()
    with pytest.raises(NotImplementedHere, match="The dns registry has no pools"):
        await registry.claim(ClaimRequest(pool="python", namespace=Label("agents")))
    await registry.release(Label("agents"), Label("a"))
    assert (registry.claims(), registry.pools()) == ([], [])
    await registry.close()


async def test_its_end_gives_up_what_is_under_way(here: Here) -> None:
    here.lookup.hold("sb")
    waiting = asyncio.create_task(here.registry.find(target("sb")))
    await here.until(lambda: bool(here.lookup.asked))
    await here.registry.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert repr(here.registry) == "<DnsRegistry 0 names, 0 under way>"
