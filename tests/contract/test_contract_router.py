"""The gateway's side of the wire: what it takes, what it answers, what it sends on."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from contract.goldens import NAME, UID, body_of, read, read_json, with_field
from support.control import build_tokens, running_control
from support.fake_registry import FakeRegistry
from support.raw_client import connect
from support.running_gateway import running_gateway

from sandgate_router.control.app import build_control_app
from sandgate_router.control.events import EventRing
from sandgate_router.errors import ConnectionRefused, ConnectionTimeout
from sandgate_router.names import Label
from sandgate_router.probes import Readiness
from sandgate_router.registry.base import Claim, ClaimRequest, Endpoint, PoolStatus
from sandgate_router.upstream import UpstreamPool

SANDBOX = NAME.partition("/")[2]
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


class GoldenRegistry(FakeRegistry):
    """Has the sandbox and the pool of the golden messages."""

    def _status(self, namespace: Label) -> PoolStatus:
        return PoolStatus(
            name="python",
            namespace=namespace,
            warm=4,
            max=32,
            ready=3,
            claimed=1,
            waiting=0,
            hit_rate=1.0,
            isolation="bubblewrap",
            last_error=None,
        )

    def _build_claim(self, name: Label, request: ClaimRequest) -> Claim:
        return Claim(
            name=name,
            namespace=request.namespace,
            pool=request.pool,
            sandbox=Label(SANDBOX),
            uid=UID,
            launch="warm",
            isolation="bubblewrap",
            state="ready",
            created_at=NOON,
            expires_at=NOON + timedelta(seconds=request.lease_seconds or 3600),
            labels=request.labels,
            ports=request.ports,
            idle_seconds=request.idle_seconds or 600.0,
            timings={"wait": 0.04},
        )


@pytest.fixture
async def control() -> AsyncIterator[httpx.AsyncClient]:
    readiness = Readiness()
    readiness.mark_ready()
    app = build_control_app(GoldenRegistry(), readiness=readiness, loopback=True)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        yield client


async def test_it_answers_the_golden_claim_request_with_the_golden_claim(
    control: httpx.AsyncClient,
) -> None:
    answer = await control.post(
        "/v1/claims",
        content=body_of("claim-request.http"),
        headers={"content-type": "application/json", "idempotency-key": "k"},
    )
    assert answer.status_code == 201
    assert answer.json() == read_json("claim-answer.json")


async def test_it_shows_the_golden_claim_without_its_token(control: httpx.AsyncClient) -> None:
    await control.post("/v1/claims", json=json.loads(body_of("claim-request.http")))
    shown = (await control.get("/v1/claims/default/tour")).json()
    created = read_json("claim-answer.json")
    assert shown == {k: v for k, v in created.items() if not k.startswith("token")}


async def test_it_answers_a_renewal_with_the_golden_claim_and_its_token() -> None:
    async with running_control(GoldenRegistry(), tokens=build_tokens(NOON.timestamp())) as control:
        body = json.loads(body_of("claim-request.http")) | {"ports": [8888, 3000]}
        await control.client.post("/v1/claims", json=body)
        answer = await control.client.post(
            "/v1/claims/default/tour/renew", json={"lease_seconds": 1200}
        )
    assert answer.status_code == 200
    assert answer.json() == read_json("renew-answer.json")


async def test_it_tells_the_golden_events() -> None:
    golden = read("claim-events.txt")
    events = EventRing(now=lambda: 1_796_040_000)
    async with (
        running_control(GoldenRegistry(), events=events) as control,
        control.client.stream("GET", "/v1/events") as stream,
    ):
        parts = stream.aiter_raw()
        received = bytearray(await anext(parts))
        await control.client.post("/v1/claims", json=json.loads(body_of("claim-request.http")))
        await control.client.patch("/v1/pools/default/python", json={"max": 32})
        while len(received) < len(golden):
            received += await anext(parts)
    assert bytes(received) == golden


async def test_it_lists_the_golden_pools(control: httpx.AsyncClient) -> None:
    assert (await control.get("/v1/pools")).json() == read_json("pools-answer.json")


async def test_it_takes_the_golden_release_request() -> None:
    async with running_gateway() as gateway, connect(gateway.port) as client:
        gateway.registry.release = _release  # type: ignore[method-assign]
        await client.send(read("release-request.http"))
        assert (await client.read_answer()).status == 204


async def _release(namespace: Label, name: Label, *, uid: str | None = None) -> None:
    assert (namespace, name, uid) == ("default", "tour", UID)


async def test_it_sends_the_golden_request_on_to_the_sandbox_and_the_golden_stream_back() -> None:
    stream = read("event-stream.txt")
    async with sandbox_that_answers(stream) as (port, received), running_gateway() as gateway:
        gateway.registry.add(SANDBOX, port, uid=UID)
        async with connect(gateway.port) as client:
            await client.send(read("run-request.http"))
            answer = await client.read_answer()
    assert bytes(received) == read("run-request-inside.http")
    assert (answer.status, answer.body) == (200, stream)
    assert answer.one("content-type") == "text/event-stream"
    assert answer.one("x-sandbox-error") is None


async def test_it_refuses_an_unknown_sandbox_with_the_golden_error() -> None:
    async with running_gateway() as gateway, connect(gateway.port) as client:
        await client.send(read("run-request.http"))
        answer = await client.read_answer()
    message = answer.raw_head + answer.body
    assert with_field(message, "date", b"Mon, 30 Nov 2026 12:00:00 GMT") == read("error.http")


@pytest.mark.parametrize(
    ("answer", "error"),
    [("connected", None), ("refused", ConnectionRefused), ("timed_out", ConnectionTimeout)],
)
async def test_it_asks_the_port_relay_as_the_golden_bytes_say(
    tmp_path: Path, answer: str, error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandgate_router.upstream.DIAL_DELAYS", ())
    golden = read_json("port-relay.json")
    asked = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readexactly(2)).hex())
        writer.write(bytes.fromhex(golden["answers"][answer]))
        await reader.read()
        writer.close()

    path = str(tmp_path / "ports.sock")
    endpoint = Endpoint(uid=UID, name=NAME, path=path, relay_port=golden["port"])
    pool = UpstreamPool(clock=asyncio.get_running_loop().time)
    async with await asyncio.start_unix_server(relay, path):
        with pytest.raises(error) if error else contextlib.nullcontext():
            await pool.dial(endpoint, again=lambda: False)
        pool.close()
    assert asked == [golden["asked"]]


@contextlib.asynccontextmanager
async def sandbox_that_answers(stream: bytes) -> AsyncIterator[tuple[int, bytearray]]:
    """Serve one event stream, and keep the request that asked for it."""
    received = bytearray()
    length = len(body_of("run-request.http"))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.readuntil(b"\r\n\r\n"))
        received.extend(await reader.readexactly(length))
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(stream), stream)
        )
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], received
