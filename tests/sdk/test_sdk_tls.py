"""A gateway behind TLS: whose certificate counts, and what the handle shows of its own."""

import asyncio
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from sandgate import AsyncSandboxes, Gateway, GatewayUnreachable, Sandboxes
from sandgate._forward import Forwarder
from sandgate.errors import UnexpectedAnswer

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the keys")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"pools": []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Make a certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=test", "-out", files[0], "-keyout", files[1]),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return files


@pytest.fixture
def url(certificate: tuple[str, str]) -> Iterator[str]:
    """Yield the URL of a server that asks clients for a certificate, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.load_verify_locations(certificate[0])
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # a missing certificate fails the handshake
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_with_its_authority_and_a_certificate_of_ours_it_is_used(
    url: str, certificate: tuple[str, str]
) -> None:
    gateway = Gateway(url, ca=certificate[0], client_cert=certificate)
    with Sandboxes(gateway) as sandboxes:
        assert sandboxes.pools() == []

    async def pools() -> list[object]:
        async with AsyncSandboxes(gateway) as sandboxes:
            return [*await sandboxes.pools()]

    assert asyncio.run(pools()) == []


def test_one_file_may_hold_certificate_and_key(
    url: str, certificate: tuple[str, str], tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_text("".join(Path(name).read_text() for name in certificate))
    with Sandboxes(Gateway(url, ca=certificate[0], client_cert=str(both))) as sandboxes:
        assert sandboxes.pools() == []


def test_a_stranger_is_not_trusted_and_gets_nothing(url: str, certificate: tuple[str, str]) -> None:
    with (
        Sandboxes(Gateway(url, client_cert=certificate)) as sandboxes,
        pytest.raises(GatewayUnreachable, match="certificate") as caught,
    ):
        sandboxes.pools()
    assert caught.value.reached == "no"


def test_without_a_certificate_of_ours_the_gateway_refuses(
    url: str, certificate: tuple[str, str]
) -> None:
    with (
        Sandboxes(Gateway(url, ca=certificate[0])) as sandboxes,
        pytest.raises(GatewayUnreachable),
    ):
        sandboxes.pools()


def test_a_websocket_and_a_port_of_this_machine_show_and_trust_the_same(
    url: str, certificate: tuple[str, str]
) -> None:
    # The server knows no WebSocket: that it answers at all is the point.
    gateway = Gateway(url, ca=certificate[0], client_cert=certificate)
    with Sandboxes(gateway) as sandboxes, pytest.raises(UnexpectedAnswer) as caught:
        sandboxes.attach("sb-1").websocket("/")
    assert caught.value.status == 200

    async def through() -> tuple[int | None, int]:
        async with AsyncSandboxes(gateway) as sandboxes:
            sandbox = sandboxes.attach("sb-1")
            with pytest.raises(UnexpectedAnswer) as caught:
                await sandbox.websocket("/")
            forwarder = Forwarder(sandbox, 3000)
            local = await forwarder.listen(0)
            async with httpx.AsyncClient(trust_env=False) as client:
                answer = await client.get(local)
            await forwarder.close()
            return caught.value.status, answer.status_code

    assert asyncio.run(through()) == (200, 200)


def test_a_file_that_is_missing_is_told_at_once(url: str) -> None:
    with pytest.raises(FileNotFoundError):
        Sandboxes(Gateway(url, ca="/nowhere/ca.pem"))
