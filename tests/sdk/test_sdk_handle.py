"""Claims, releases and pools, over real sockets to a scripted gateway."""

import asyncio
import threading
from datetime import UTC, datetime

import pytest
from support.scripted_server import (
    PATIENCE,
    AwaitDisconnect,
    Close,
    ScriptedServer,
    Wait,
    gateway_error,
    json_response,
    response,
)

from sandgate import (
    AsyncSandboxes,
    ClaimExists,
    ClaimNotFound,
    Gateway,
    GatewayUnreachable,
    PoolExhausted,
    PoolNotFound,
    PoolStatus,
    Sandbox,
    Sandboxes,
    SandgateError,
)
from sandgate.errors import UnexpectedAnswer


def test_a_claim_sends_only_what_was_given_and_an_idempotency_key(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    sandboxes.claim("python", labels={"job": "7"}, wait_seconds=0, on_empty="fail")
    (request,) = server.requests
    assert request.json() == {
        "pool": "python",
        "namespace": "default",
        "labels": {"job": "7"},
        "wait_seconds": 0,
        "on_empty": "fail",
    }
    assert request.value("content-type") == "application/json"
    assert len(request.value("idempotency-key") or "") == 32
    assert request.value("authorization") is None
    assert not [name for name, _ in request.fields if name.startswith("x-sandbox")]


def test_two_claims_have_two_keys(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]
) -> None:
    for _ in range(2):
        server.answer("POST", "/v1/claims", json_response(claim, status=201))
        sandboxes.claim("python")
    first, second = (request.value("idempotency-key") for request in server.requests)
    assert first != second


def test_a_sandbox_has_its_names_in_public_and_its_token_in_private(sandbox: Sandbox) -> None:
    assert (sandbox.id, sandbox.namespace, sandbox.port) == ("sb-1", "default", 8888)
    assert (sandbox.claim, sandbox.isolation) == ("c-1", "bubblewrap")
    assert repr(sandbox) == "<Sandbox default/sb-1 ready, claim c-1, isolation bubblewrap>"
    assert "secret" not in repr(vars(sandbox))
    assert sandbox.record.expires_at == datetime(2026, 11, 30, 11, tzinfo=UTC)


def test_the_callers_token_goes_to_the_control_api_and_never_to_a_sandbox(
    server: ScriptedServer, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    server.answer("HEAD", "/v1/files/x", response())
    with Sandboxes(Gateway(server.url, token="caller")) as sandboxes:
        assert sandboxes.claim("python").files.exists("x")
        assert "caller" not in repr(sandboxes)
    control, data = server.requests
    assert control.value("authorization") == "Bearer caller"
    assert data.value("authorization") is None
    assert data.value("x-sandbox-token") == "sg1.secret"


def test_a_claim_without_a_token_sends_none(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response({**claim, "token": None}, status=201))
    server.answer("HEAD", "/v1/files/x", response(404))
    assert not sandboxes.claim("python").files.exists("x")
    assert server.requests[1].value("x-sandbox-token") is None


def test_leaving_the_block_releases_once(server: ScriptedServer, sandbox: Sandbox) -> None:
    with sandbox:
        pass
    sandbox.release()
    assert len(server.received("DELETE", "/v1/claims/default/c-1?uid=u-1")) == 1
    assert repr(sandbox).startswith("<Sandbox default/sb-1 released")


def test_an_exception_in_the_block_releases_too(server: ScriptedServer, sandbox: Sandbox) -> None:
    with pytest.raises(KeyError), sandbox:
        raise KeyError("mine")
    assert len(server.received("DELETE", "/v1/claims/default/c-1?uid=u-1")) == 1


def test_a_failing_release_does_not_hide_the_exception_of_the_block(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    server.answer("DELETE", "/v1/claims/default/c-1?uid=u-1", gateway_error(503, "draining"))
    with pytest.raises(KeyError) as caught, sandboxes.claim("python"):
        raise KeyError("mine")
    assert "could not be released" in caught.value.__notes__[0]


def test_a_failing_release_is_told_where_nothing_else_went_wrong_and_can_be_tried_again(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    server.answer("DELETE", "/v1/claims/default/c-1?uid=u-1", gateway_error(503, "draining"))
    server.answer("DELETE", "/v1/claims/default/c-1?uid=u-1", response(204))
    sandbox = sandboxes.claim("python")
    with pytest.raises(SandgateError, match="It went wrong"):
        sandbox.release()
    sandbox.release()


def test_a_claim_whose_answer_is_lost_is_asked_again_with_the_same_key(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", Close())
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    assert sandboxes.claim("python").claim == "c-1"
    first, second = (request.value("idempotency-key") for request in server.requests)
    assert first == second


def test_a_claim_is_not_asked_a_third_time(server: ScriptedServer, sandboxes: Sandboxes) -> None:
    for _ in range(3):
        server.answer("POST", "/v1/claims", Close())
    with pytest.raises(GatewayUnreachable) as caught:
        sandboxes.claim("python")
    assert len(server.requests) == 2
    assert caught.value.reached == "unknown"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "pool_not_found", PoolNotFound),
        (503, "pool_exhausted", PoolExhausted),
        (409, "claim_exists", ClaimExists),
    ],
)
def test_a_refused_claim_is_a_typed_error_and_is_not_asked_again(
    server: ScriptedServer,
    sandboxes: Sandboxes,
    status: int,
    code: str,
    kind: type[SandgateError],
) -> None:
    server.answer("POST", "/v1/claims", gateway_error(status, code, fields=[("retry-after", "2")]))
    with pytest.raises(kind) as caught:
        sandboxes.claim("python")
    assert (caught.value.status, caught.value.retry_after) == (status, 2.0)
    assert len(server.requests) == 1


def test_a_claim_can_be_found_again_and_released_by_its_name(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]
) -> None:
    server.answer("GET", "/v1/claims/team/c-1", json_response({**claim, "namespace": "team"}))
    server.answer("POST", "/v1/claims/team/c-1/renew?uid=u-1", json_response(claim))
    server.answer("DELETE", "/v1/claims/team/c-1", response(204))
    assert sandboxes.get("c-1", namespace="team").id == "sb-1"
    sandboxes.release("c-1", namespace="team")
    server.answer("GET", "/v1/claims/default/c-2", gateway_error(404, "claim_not_found"))
    with pytest.raises(ClaimNotFound):
        sandboxes.get("c-2")


def test_a_claim_that_is_found_again_is_used_with_the_token_of_its_renewal(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]
) -> None:
    shown = {name: value for name, value in claim.items() if "token" not in name}
    renewed = {**claim, "token": "sg1.renewed", "expires_at": "2026-11-30T12:30:00Z"}
    server.answer("GET", "/v1/claims/default/c-1", json_response(shown))
    server.answer("POST", "/v1/claims/default/c-1/renew?uid=u-1", json_response(renewed))
    server.answer("HEAD", "/v1/files/x", response())
    sandbox = sandboxes.get("c-1")
    assert sandbox.files.exists("x")
    (renewal,) = server.received("POST", "/v1/claims/default/c-1/renew?uid=u-1")
    assert (renewal.value("content-type"), renewal.body) == ("application/json", b"{}")
    (used,) = server.received("HEAD", "/v1/files/x")
    assert used.value("x-sandbox-token") == "sg1.renewed"
    assert sandbox.record.expires_at == datetime(2026, 11, 30, 12, 30, tzinfo=UTC)
    assert "sg1.renewed" not in repr((sandbox, sandbox.record, vars(sandbox)))


@pytest.mark.parametrize(("status", "code"), [(404, "claim_not_found"), (403, "forbidden")])
def test_who_may_not_renew_a_claim_goes_on_without_a_token(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object], status: int, code: str
) -> None:
    del claim["token"]
    server.answer("GET", "/v1/claims/default/c-1", json_response(claim))
    server.answer("POST", "/v1/claims/default/c-1/renew?uid=u-1", gateway_error(status, code))
    server.answer("HEAD", "/v1/files/x", response())
    assert sandboxes.get("c-1").files.exists("x")
    (used,) = server.received("HEAD", "/v1/files/x")
    assert used.value("x-sandbox-token") is None


def test_an_odd_claim_name_stays_one_segment_of_the_path(
    server: ScriptedServer, sandboxes: Sandboxes
) -> None:
    server.answer("DELETE", "/v1/claims/..%2Fx/a%20b", response(204))
    sandboxes.release("a b", namespace="../x")


def test_pools_are_read_with_what_a_newer_gateway_adds(
    server: ScriptedServer, sandboxes: Sandboxes
) -> None:
    pool = {
        "name": "python",
        "namespace": "default",
        "warm": 4,
        "max": 32,
        "ready": 3,
        "claimed": 2,
        "waiting": 0,
        "hit_rate": 0.5,
        "isolation": "bubblewrap",
        "last_error": None,
        "something": "new",
    }
    server.answer("GET", "/v1/pools", json_response({"pools": [pool]}))
    assert sandboxes.pools() == [
        PoolStatus("python", "default", 4, 32, 3, 2, 0, 0.5, "bubblewrap", None)
    ]


@pytest.mark.parametrize(
    "answer",
    [
        b'{"pools": {}}',
        b"[]",
        b"hello",
        b'{"pools": [{"name": 1, "namespace": "x"}]}',
        b'{"pools": [{"name": "x", "namespace": "x", "warm": "many"}]}',
    ],
)
def test_an_answer_of_another_shape_is_unexpected(
    server: ScriptedServer, sandboxes: Sandboxes, answer: bytes
) -> None:
    server.answer("GET", "/v1/pools", response(body=answer))
    with pytest.raises(UnexpectedAnswer):
        sandboxes.pools()


CLAIMS = ("POST", "/v1/claims")
RELEASE = ("DELETE", "/v1/claims/default/c-1?uid=u-1")


async def _claim_and_cancel(server: ScriptedServer, then: threading.Event) -> None:
    async with AsyncSandboxes(Gateway(server.url)) as sandboxes:
        task = asyncio.create_task(sandboxes.claim("python"))
        while not server.received(*CLAIMS):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0)
        then.set()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancelled_claim_is_released_once_it_is_granted(
    server: ScriptedServer, claim: dict[str, object]
) -> None:
    cancelled = threading.Event()
    server.answer(*CLAIMS, Wait(cancelled), json_response(claim, status=201))
    server.answer(*RELEASE, response(204))
    await _claim_and_cancel(server, cancelled)
    assert len(server.received(*RELEASE)) == 1


async def test_a_cancelled_claim_that_is_refused_or_cannot_be_released_is_cancelled(
    server: ScriptedServer, claim: dict[str, object]
) -> None:
    refused = threading.Event()
    server.answer(*CLAIMS, Wait(refused), gateway_error(503, "pool_exhausted"))
    await _claim_and_cancel(server, refused)
    server.requests.clear()
    granted = threading.Event()
    server.answer(*CLAIMS, Wait(granted), json_response(claim, status=201))
    server.answer(*RELEASE, gateway_error(503, "draining"))
    await _claim_and_cancel(server, granted)
    assert len(server.received(*RELEASE)) == 1


async def test_a_cancelled_claim_that_is_not_granted_soon_is_given_up(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandgate._async_sandbox.sandboxes.GRANT_SECONDS", 0.05)
    given_up = threading.Event()
    server.answer(*CLAIMS, AwaitDisconnect(given_up))
    await _claim_and_cancel(server, threading.Event())
    assert await asyncio.to_thread(given_up.wait, PATIENCE)
    assert len(server.requests) == 1
