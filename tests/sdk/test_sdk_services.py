"""Servers inside a sandbox: by HTTP, by WebSocket, and from a port of this machine."""

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from support.scripted_server import ScriptedServer, gateway_error, json_response, response
from support.system_gateway import SystemGateway, bubblewrap_fault, build_environment, sandgate_up

from sandgate import AsyncSandboxes, Gateway, Sandbox, Sandboxes
from sandgate._forward import RefusedHead, rewrite_head
from sandgate.errors import ConnectionRefused, SandboxNotFound

SERVER = """\
import asyncio, base64, hashlib

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

async def serve(reader, writer):
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    line, *lines = head.decode().split("\\r\\n")
    fields = {name.lower(): value.strip() for name, _, value in (l.partition(":") for l in lines)}
    if "sec-websocket-key" not in fields:
        body = f"{line.split()[1]} {fields['host']}\\n".encode()
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
        writer.close()
        return
    digest = hashlib.sha1(fields["sec-websocket-key"].encode() + MAGIC).digest()
    writer.write(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n"
                 b"Connection: Upgrade\\r\\nSec-WebSocket-Accept: " + base64.b64encode(digest)
                 + b"\\r\\n\\r\\n")
    while True:
        first, second = await reader.readexactly(2)
        size = second & 127
        extra = {126: 2, 127: 8}.get(size, 0)
        length = await reader.readexactly(extra)
        if extra:
            size = int.from_bytes(length, "big")
        mask = int.from_bytes(await reader.readexactly(4), "little")
        data = await reader.readexactly(size)
        key = (mask.to_bytes(4, "little") * (size // 4 + 1))[:size]
        plain = (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
        writer.write(bytes([first, second & 127]) + length + plain)
        await writer.drain()

async def main():
    await asyncio.start_server(serve, "127.0.0.1", 3000, limit=2**24)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
"""Answers HTTP with the target and the host, and echoes the frames of a WebSocket."""

pytestmark = pytest.mark.skipif(
    bubblewrap_fault() is not None, reason="other ports need an isolated sandbox"
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[SystemGateway]:
    with sandgate_up(isolation="bubblewrap") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def sandbox(gateway: SystemGateway) -> Iterator[Sandbox]:
    """Yield a sandbox with a server on port 3000, which answers HTTP and echoes messages."""
    with gateway.sandboxes() as sandboxes, sandboxes.claim("python", name="box") as sandbox:
        sandbox.files.write("serve.py", SERVER)
        process = sandbox.commands.start("exec python3 serve.py 2>&1")
        events = process.events()
        next(events)
        assert b"ready" in next(events).data  # type: ignore[union-attr]
        events.close()
        yield sandbox


def test_a_client_is_bound_to_the_port(sandbox: Sandbox) -> None:
    with sandbox.http(3000) as client:
        answer = client.get("/a/../b?c=%20d")
        assert answer.status_code == 200
        assert answer.text.split()[0] == "/b?c=%20d"
        assert answer.text.split()[1].startswith(sandbox.id)
        with pytest.raises(httpx.UnsupportedProtocol, match="is not in the sandbox"):
            client.get("http://127.0.0.1:1/")
    # The handle's own connections stay.
    assert sandbox.commands.run("echo on").stdout == "on\n"


async def test_an_async_client_too(gateway: SystemGateway, sandbox: Sandbox) -> None:
    async with AsyncSandboxes(Gateway(gateway.url)) as sandboxes:
        held = sandboxes.from_json(sandbox.to_json())
        async with held.http(3000) as client:
            assert (await client.get("/x")).text.startswith("/x ")
        socket = await held.websocket("/", 3000)
        async with socket:
            await socket.send("é")
            assert await socket.recv() == "é"


def test_messages_go_both_ways(sandbox: Sandbox) -> None:
    with sandbox.websocket("/", 3000) as socket:
        for message in ("text", b"\x00\xff", "x" * 2_000_000):
            socket.send(message)
            assert socket.recv() == message


def test_a_port_where_nobody_listens_is_told(sandbox: Sandbox) -> None:
    with pytest.raises(ConnectionRefused):
        sandbox.websocket("/", 3999)
    with sandbox.http(3999) as client:
        assert client.get("/").headers["x-sandbox-error"] == "connection_refused"


def test_a_refused_handshake_raises_what_a_request_would(gateway: SystemGateway) -> None:
    with gateway.sandboxes() as sandboxes:
        sandbox = sandboxes.claim("python")
        sandbox.release()
        with pytest.raises(SandboxNotFound):
            sandbox.websocket("/", 3000)


@pytest.mark.parametrize("path", ["x", "/a b", "/é", ""])
def test_a_path_that_is_none_is_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(ValueError, match="does not start with / or"):
        sandbox.websocket(path, 3000)


def test_a_401_of_the_gateway_is_followed_by_a_renewal_and_one_of_the_application_is_not(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    renewed = json_response({**claim, "token": "sg1.second"})
    server.answer("POST", "/v1/claims/default/c-1/renew?uid=u-1", renewed)
    server.answer("POST", "/login", gateway_error(401, "unauthenticated"))
    server.answer("POST", "/login", response(401, fields=[("set-cookie", "a=1")]))
    server.answer("GET", "/", response(302, fields=[("location", "/login")]))
    with sandboxes.claim("python").http(3000) as client:
        assert client.post("/login", json={"user": 1}).status_code == 401
        assert client.get("/").status_code == 302
    first, second = server.received("POST", "/login")
    assert (first.body, second.body) == (b'{"user":1}', b'{"user":1}')
    assert second.value("x-sandbox-token") == "sg1.second"
    assert second.value("x-sandbox-port") == "3000"
    assert server.requests[-1].value("cookie") is None
    assert len(server.requests) == 5


def test_a_port_of_this_machine_leads_into_the_sandbox(
    gateway: SystemGateway, sandbox: Sandbox
) -> None:
    from websockets.sync.client import connect

    with subprocess.Popen(
        [sys.executable, "-m", "sandgate.cli", "port-forward", sandbox.claim, "0:3000"],
        env=build_environment(SANDGATE_URL=gateway.url, PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        with httpx.Client(base_url=url, trust_env=False) as client:
            for number in range(3):
                assert client.get(f"/{number}").text.startswith(f"/{number} {sandbox.id}")
            foreign = client.get("/", headers={"Host": "evil.test"})
            assert foreign.status_code == 403
            foreign = client.post("/", headers={"Origin": "http://evil.test"})
            assert foreign.status_code == 403
        with connect(url.replace("http", "ws"), proxy=None) as socket:
            socket.send("through")
            assert socket.recv() == "through"
        process.terminate()
        assert process.wait(30) == 143


def test_a_head_gets_the_fields_and_loses_what_a_client_says_of_them() -> None:
    head = (
        b"GET /x HTTP/1.1\r\nHost: localhost:9\r\nX-Sandbox-Id: other\r\nX-Sandbox-Port: 1\r\n"
        b"Cookie: a=1\r\nConnection: keep-alive\r\n\r\n"
    )
    assert rewrite_head(head, "gw:8080", [("x-sandbox-id", "sb-1")]) == (
        b"GET /x HTTP/1.1\r\nHost: gw:8080\r\nCookie: a=1\r\nx-sandbox-id: sb-1\r\n"
        b"Connection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    "fields",
    [b"Host: evil.test", b"", b"Host: 127.0.0.1:1\r\nOrigin: http://127.0.0.1:2", b"Host: a@[::1"],
)
def test_a_page_of_anywhere_else_is_not_passed_on(fields: bytes) -> None:
    with pytest.raises((RefusedHead, ValueError)):
        rewrite_head(b"GET / HTTP/1.1\r\n" + fields + b"\r\n\r\n", "gw", [])
