"""Leases and tokens that are renewed: when, by whose right, and once after a 401."""

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.scripted_server import (
    ScriptedServer,
    chunk,
    exit_event,
    gateway_error,
    json_response,
    response,
    stream_head,
)
from support.system_gateway import SystemGateway, sandgate_up, wait_until

from sandgate import AsyncSandboxes, Gateway, Sandboxes
from sandgate._wire.claims import Grant, parse_grant
from sandgate._wire.control import Control
from sandgate._wire.lease import Access, Lease, find_due
from sandgate._wire.message import Reply
from sandgate.errors import (
    ClaimNotFound,
    Forbidden,
    GatewayUnreachable,
    SandgateError,
    Unauthenticated,
)
from sandgate.types import Claim

REFUSED = gateway_error(401, "unauthenticated")
RENEW = ("POST", "/v1/claims/default/c-1/renew?uid=u-1")
DATE = "Mon, 30 Nov 2026 12:00:00 GMT"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _lease(
    clock: Clock, *, life: float | None, token: str | None = "old", caller: str | None = None
) -> Lease:
    claim = Claim("c-1", "default", "sb-1", 8888, "none", token=token)
    return Lease(Access(Control(token=caller)), Grant(claim, life), clock=clock)


def _renewed(life: float, token: str = "new") -> Grant:
    return Grant(Claim("c-1", "default", "sb-1", 8888, "none", token=token), life)


def _grant(**members: object) -> Grant:
    claim = {"claim": "c", "namespace": "n", "sandbox": "s", **members}
    return parse_grant(Reply(201, [("date", DATE)], json.dumps(claim).encode()))


def test_the_life_is_that_of_the_shorter_of_lease_and_token_by_the_gateways_clock_alone() -> None:
    hour, minute = "2026-11-30T13:00:00Z", "2026-11-30T12:01:00Z"
    assert _grant(expires_at=hour, token_expires_at=hour).life == 3599
    assert _grant(expires_at=hour, token_expires_at=minute).life == 59
    assert _grant(expires_at=minute).life == 59
    # Date leaves fractions of a second away; a short lease must be renewed nevertheless.
    assert _grant(expires_at="2026-11-30T12:00:01.5Z").life == 0.5
    assert _grant(expires_at="2026-11-30T11:00:00Z").life == 0
    assert _grant().life is None


def test_a_lease_is_due_after_two_thirds_of_its_life() -> None:
    clock = Clock()
    leases = [_lease(clock, life=600), _lease(clock, life=60), _lease(clock, life=None)]
    assert leases[0].renew_at == 500
    assert find_due(leases, now=100) == (None, 40)
    assert find_due(leases, now=140) == (leases[1], 0)
    assert find_due([leases[2]], now=1e9) == (None, None)


def test_a_renewal_that_fails_is_tried_again_until_the_life_is_over() -> None:
    clock = Clock()
    lease = _lease(clock, life=60)
    clock.now = 140.0
    flow = lease.background_renewal()
    next(flow)
    with pytest.raises(StopIteration):
        flow.throw(GatewayUnreachable("gone"))
    assert lease.renew_at == 145.0
    clock.now = 158.0
    flow = lease.background_renewal()
    next(flow)
    with pytest.raises(StopIteration):
        flow.throw(GatewayUnreachable("gone"))
    assert lease.renew_at == 158.5


def test_a_renewal_that_fails_after_the_end_is_not_tried_again() -> None:
    clock = Clock()
    lease = _lease(clock, life=60)
    clock.now = 161.0
    flow = lease.background_renewal()
    next(flow)
    with pytest.raises(StopIteration):
        flow.throw(GatewayUnreachable("gone"))
    assert lease.renew_at is None
    assert isinstance(lease.lost, GatewayUnreachable)


def test_a_claim_that_is_gone_is_not_asked_for_again() -> None:
    lease = _lease(Clock(), life=60)
    flow = lease.background_renewal()
    next(flow)
    with pytest.raises(StopIteration):
        flow.throw(ClaimNotFound("gone"))
    assert lease.renew_at is None


def test_the_callers_token_renews_and_without_one_the_claims_own_while_it_is_valid() -> None:
    clock = Clock()
    by_caller = next(_lease(clock, life=60, caller="me").renewal())
    assert ("authorization", "Bearer me") in by_caller.request.fields  # type: ignore[union-attr]
    lease = _lease(clock, life=60)
    flow = lease.renewal()
    first = next(flow)
    assert ("x-sandbox-token", "old") in first.request.fields  # type: ignore[union-attr]
    second = flow.throw(Unauthenticated("no"))
    names = {name for name, _ in second.request.fields}  # type: ignore[union-attr]
    assert not names & {"x-sandbox-token", "authorization"}
    with pytest.raises(StopIteration):
        flow.send(_renewed(60))
    assert lease.claim.token == "new"
    clock.now = 161.0
    late = next(lease.renewal())
    assert "x-sandbox-token" not in {name for name, _ in late.request.fields}  # type: ignore[union-attr]


def test_nobody_who_may_renew_is_told_why() -> None:
    flow = _lease(Clock(), life=60, caller="me").renewal()
    next(flow)
    with pytest.raises(Forbidden):
        flow.throw(Forbidden("not yours"))


@pytest.fixture
def renewable(server: ScriptedServer, claim: dict[str, object]) -> None:
    """Script a claim and one renewal, which brings another token."""
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    server.answer(*RENEW, json_response({**claim, "token": "sg1.second"}))


@pytest.mark.usefixtures("renewable")
def test_a_call_that_is_401_is_made_once_more_with_a_new_token(
    server: ScriptedServer, sandboxes: Sandboxes
) -> None:
    server.answer(
        "HEAD", "/v1/files/x", response(401, fields=[("x-sandbox-error", "unauthenticated")])
    )
    server.answer("HEAD", "/v1/files/x", response())
    assert sandboxes.claim("python").files.exists("x")
    tokens = [one.value("x-sandbox-token") for one in server.received("HEAD", "/v1/files/x")]
    assert tokens == ["sg1.secret", "sg1.second"]


@pytest.mark.usefixtures("renewable")
def test_a_second_401_is_the_answer(server: ScriptedServer, sandboxes: Sandboxes) -> None:
    for _ in range(3):
        server.answer("GET", "/v1/files/x", REFUSED)
    with pytest.raises(Unauthenticated):
        sandboxes.claim("python").files.read("x")
    assert len(server.received("GET", "/v1/files/x")) == 2
    assert len(server.received(*RENEW)) == 1


@pytest.mark.usefixtures("renewable")
def test_a_command_that_is_401_is_sent_once_more_since_no_sandbox_has_seen_it(
    server: ScriptedServer, sandboxes: Sandboxes
) -> None:
    server.answer("POST", "/v1/processes", REFUSED)
    server.answer("POST", "/v1/processes", stream_head(), chunk(exit_event(5)), chunk(b""))
    assert sandboxes.claim("python").commands.run("x").exit_code == 5
    first, second = server.received("POST", "/v1/processes")
    assert first.value("idempotency-key") == second.value("idempotency-key")
    assert second.value("x-sandbox-token") == "sg1.second"


@pytest.mark.usefixtures("renewable")
def test_a_command_that_is_401_again_is_refused(
    server: ScriptedServer, sandboxes: Sandboxes
) -> None:
    for _ in range(3):
        server.answer("POST", "/v1/processes", REFUSED)
    with pytest.raises(Unauthenticated):
        sandboxes.claim("python").commands.run("x")
    assert len(server.received("POST", "/v1/processes")) == 2


@pytest.fixture(scope="module")
def gateway() -> Iterator[SystemGateway]:
    with sandgate_up(isolation="none", pool={"warm": 2, "max": 8}) as gateway:
        yield gateway


def test_a_lease_is_renewed_as_long_as_its_sandbox_is_held_and_then_ends_it(
    gateway: SystemGateway,
) -> None:
    with gateway.sandboxes() as sandboxes:
        sandbox = sandboxes.claim("python", lease_seconds=2)
        name, first = sandbox.claim, sandbox.record.expires_at
        assert first is not None
        wait_until(lambda: datetime.now(UTC) > first + timedelta(seconds=1))
        assert sandbox.record.expires_at > first  # type: ignore[operator]
        assert sandbox.commands.run("echo alive").stdout == "alive\n"
        del sandbox  # forgotten, while the handle on the gateway is open
        gc.collect()
        wait_until(lambda: name not in [claim.name for claim in sandboxes.list()], seconds=30)


async def test_a_task_renews_too(gateway: SystemGateway) -> None:
    async with (
        AsyncSandboxes(Gateway(gateway.url)) as sandboxes,
        await sandboxes.claim("python", lease_seconds=2) as sandbox,
    ):
        first = sandbox.record.expires_at
        assert first is not None
        while datetime.now(UTC) < first + timedelta(seconds=1):
            await asyncio.sleep(0.1)
        assert (await sandbox.commands.run("echo alive")).stdout == "alive\n"


def test_a_handle_goes_through_json_and_is_renewed_by_whoever_has_it(
    gateway: SystemGateway,
) -> None:
    with gateway.sandboxes() as sandboxes:
        sandbox = sandboxes.claim("python", lease_seconds=60, env={"A": "1"})
        text = sandbox.to_json()
    with gateway.sandboxes() as others:
        again = others.from_json(text)
        assert (again.id, again.claim, again.isolation) == (sandbox.id, sandbox.claim, "none")
        assert again.commands.run("echo $A").stdout == "1\n"
        old = sandbox.record.expires_at
        assert old is not None
        wait_until(lambda: again.record.expires_at != old)
        again.release()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', '{"version": 2, "claim": {}}'])
def test_a_text_that_describes_no_sandbox_is_refused(sandboxes: Sandboxes, text: str) -> None:
    with pytest.raises(ValueError, match="does not describe a sandbox"):
        sandboxes.from_json(text)


def test_renewing_by_hand_sets_another_length(gateway: SystemGateway) -> None:
    with gateway.sandboxes() as sandboxes, sandboxes.claim("python", lease_seconds=60) as sandbox:
        record = sandbox.renew(lease_seconds=1000)
        assert record.expires_at is not None
        assert record.expires_at - datetime.now(UTC) > timedelta(seconds=900)


def test_closing_does_not_wait_for_the_next_renewal(gateway: SystemGateway) -> None:
    begin: Callable[[], float] = time.monotonic
    before = begin()
    with gateway.sandboxes() as sandboxes:
        sandboxes.claim("python", lease_seconds=3600).release()
    assert begin() - before < 60  # far below the 2,400 s until the next renewal


def _generation(sandbox: str, uid: str | None, **members: Any) -> Claim:
    return Claim("c-1", "default", sandbox, 8888, "none", uid=uid, **members)


def test_renewal_and_release_name_the_generation_that_is_held() -> None:
    lease = Lease(Access(Control()), Grant(_generation("sb-1", "u&1"), 60), clock=Clock())
    renewal, release = next(lease.renewal()), next(lease.release())
    assert renewal.request.target == "/v1/claims/default/c-1/renew?uid=u%261"  # type: ignore[union-attr]
    assert release.request.target == "/v1/claims/default/c-1?uid=u%261"  # type: ignore[union-attr]


@pytest.mark.parametrize(("sandbox", "uid"), [("sb-2", "u-1"), ("sb-1", "u-2"), ("sb-2", None)])
def test_what_another_claim_of_the_same_name_was_granted_is_not_adopted(
    sandbox: str, uid: str | None
) -> None:
    lease = Lease(Access(Control()), Grant(_generation("sb-1", "u-1"), 60), clock=Clock())
    flow = lease.renewal()
    next(flow)
    with pytest.raises(ClaimNotFound, match="another sandbox"):
        flow.send(Grant(_generation(sandbox, uid, token="theirs"), 60))
    assert (lease.claim.sandbox, lease.claim.uid, lease.claim.token) == ("sb-1", "u-1", None)
    assert isinstance(lease.lost, ClaimNotFound)
    assert lease.renew_at is None


def test_a_handle_of_a_claim_that_ended_leaves_the_next_one_of_its_name_alone(
    gateway: SystemGateway,
) -> None:
    with gateway.sandboxes() as sandboxes:
        first = sandboxes.claim("python", name="scope-1", lease_seconds=60)
        sandboxes.release("scope-1")
        with sandboxes.claim("python", name="scope-1", lease_seconds=60) as second:
            with pytest.raises(ClaimNotFound):
                first.renew()
            first.release()
            assert second.commands.run("echo alive").stdout == "alive\n"


def test_a_claim_that_was_released_is_not_renewed_any_more() -> None:
    lease = _lease(Clock(), life=60)
    lease.released = True  # between being found due and being renewed
    assert [*lease.background_renewal()] == []


@pytest.mark.parametrize("error", [GatewayUnreachable("gone"), None])
def test_a_renewal_that_ends_after_the_release_plans_no_other(error: SandgateError | None) -> None:
    lease = _lease(Clock(), life=60)
    flow = lease.background_renewal()
    next(flow)
    release = lease.release()
    next(release)
    with pytest.raises(StopIteration):
        release.send(None)
    with pytest.raises(StopIteration):
        flow.send(_renewed(60)) if error is None else flow.throw(error)
    assert (lease.renew_at, lease.claim.token) == (None, "old")
