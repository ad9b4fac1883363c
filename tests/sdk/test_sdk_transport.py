"""Bytes on the socket, and what becomes of connections that fail."""

import io
import socket
import subprocess
import sys
from http.cookies import SimpleCookie
from typing import BinaryIO, cast

import httpx
import pytest
import respx
from support.scripted_server import (
    Close,
    Reset,
    ScriptedServer,
    Step,
    chunk,
    json_response,
    response,
    stream_head,
)

from sandgate import Gateway, GatewayUnreachable, Sandbox, Sandboxes
from sandgate._transport import Transport
from sandgate._wire.control import Control
from sandgate._wire.message import Call, Request, nothing
from sandgate.errors import SandboxFileNotFound, UnexpectedAnswer

BYTES = "application/octet-stream"
"""What a runtime says of each file; a directory is JSON."""

MISSING = {"code": "NOT_FOUND", "reason": "file_not_found", "message": "nothing is there"}

POOLS = json_response({"pools": []})


def test_a_request_has_these_fields_and_no_others(
    server: ScriptedServer, sandboxes: Sandboxes
) -> None:
    server.answer("GET", "/v1/pools", POOLS)
    sandboxes.pools()
    (request,) = server.requests
    assert request.fields == [
        ("host", f"127.0.0.1:{server.port}"),
        ("user-agent", "sandgate-python"),
        ("accept", "application/json"),
        ("accept-encoding", "identity"),
    ]


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a/../b", "/v1/files/a%2F..%2Fb"),
        (".", "/v1/files/%2E"),
        ("..", "/v1/files/%2E%2E"),
        ("", "/v1/files/"),
        ("%2F ü?#", "/v1/files/%252F%20%C3%BC%3F%23"),
        ("[]|^`{}\\", "/v1/files/%5B%5D%7C%5E%60%7B%7D%5C"),
    ],
)
def test_a_target_goes_out_byte_for_byte(
    server: ScriptedServer, sandbox: Sandbox, path: str, target: str
) -> None:
    server.answer("HEAD", target, response())
    assert sandbox.files.exists(path)


def test_cookies_are_forgotten_and_redirects_are_not_followed(
    server: ScriptedServer, sandboxes: Sandboxes
) -> None:
    cookie = SimpleCookie({"a": "1"}).output(header="").strip()
    server.answer("GET", "/v1/pools", json_response({"pools": []}, fields=[("set-cookie", cookie)]))
    server.answer("GET", "/v1/pools", response(302, fields=[("location", "/elsewhere")]))
    sandboxes.pools()
    with pytest.raises(UnexpectedAnswer):
        sandboxes.pools()
    assert [request.target for request in server.requests] == ["/v1/pools"] * 2
    assert server.requests[1].value("cookie") is None


def test_proxies_of_the_environment_are_not_used(
    server: ScriptedServer, dead_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, dead_url)
    server.answer("GET", "/v1/pools", POOLS)
    with Sandboxes(Gateway(server.url)) as sandboxes:
        assert sandboxes.pools() == []


def test_a_compressed_answer_is_passed_on_as_it_is(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    gzipped = b"\x1f\x8bnot really"
    server.answer(
        "GET",
        "/v1/files/a.gz",
        response(body=gzipped, fields=[("content-encoding", "gzip")], content_type=BYTES),
    )
    assert sandbox.files.read("a.gz") == gzipped


def test_text_and_bytes_are_uploaded_with_their_length(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    for name in ("a.txt", "b.bin"):
        server.answer("PUT", f"/v1/files/{name}", response(204))
    sandbox.files.write("a.txt", "é")
    sandbox.files.write("b.bin", b"\x00\xff")
    first, second = server.requests[-2:]
    assert (first.body, second.body) == ("é".encode(), b"\x00\xff")
    assert first.value("content-length") == "2"
    assert first.value("transfer-encoding") is None
    assert first.value("content-type") == BYTES


def test_a_file_object_is_uploaded_in_chunks_and_never_held_whole(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    source = _Endless(5 * 1024 * 1024)
    server.answer("PUT", "/v1/files/big", response(204))
    sandbox.files.write("big", cast(BinaryIO, source))
    (request,) = server.received("PUT", "/v1/files/big")
    assert request.value("transfer-encoding") == "chunked"
    assert len(request.body) == 5 * 1024 * 1024
    assert source.largest_read <= 1024 * 1024


def test_an_upload_that_is_refused_at_once_tells_why(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    body = {"code": "PERMISSION_DENIED", "reason": "permission_denied", "message": "not yours"}
    server.answer("PUT", "/v1/files/%2Fetc%2Fx", json_response(body, status=403))
    with pytest.raises(PermissionError, match="not yours"):
        sandbox.files.write("/etc/x", b"x")


def test_a_download_goes_into_a_file_object_piece_by_piece(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    pieces = [bytes([number]) * 70_000 for number in range(8)]
    server.answer(
        "GET",
        "/v1/files/big",
        stream_head("application/octet-stream"),
        *(chunk(piece) for piece in pieces),
        chunk(b""),
    )
    target = io.BytesIO()
    assert sandbox.files.download("big", to=target) == 560_000
    assert target.getvalue() == b"".join(pieces)


def test_text_is_read_as_utf_8_and_the_working_directory_is_listed_by_default(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    server.answer("GET", "/v1/files/a.txt", response(body="é".encode(), content_type=BYTES))
    server.answer("GET", "/v1/files/a.bin", response(body=b"\xff", content_type=BYTES))
    server.answer(
        "GET", "/v1/files/?recursive=false", json_response({"entries": [{"name": "a.txt"}]})
    )
    assert sandbox.files.read_text("a.txt") == "é"
    assert [entry.name for entry in sandbox.files.list()] == ["a.txt"]
    with pytest.raises(UnicodeDecodeError):
        sandbox.files.read_text("a.bin")


def test_a_refusal_without_end_is_read_only_to_its_limit(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    page = b"HTTP/1.1 502 Bad\r\ntransfer-encoding: chunked\r\n\r\n"
    server.answer("GET", "/v1/files/x", page, *[chunk(b"<p>" * 5000)] * 100)
    with pytest.raises(UnexpectedAnswer):
        sandbox.files.download("x", to=io.BytesIO())


def test_a_missing_file_writes_nothing(server: ScriptedServer, sandbox: Sandbox) -> None:
    server.answer("GET", "/v1/files/x", json_response(MISSING, status=404))
    target = io.BytesIO()
    with pytest.raises(SandboxFileNotFound):
        sandbox.files.download("x", to=target)
    assert target.getvalue() == b""


def test_a_download_cut_short_is_never_taken_for_the_whole(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    whole = response(body=b"x" * 100, content_type=BYTES)
    for _ in range(2):
        server.answer("GET", "/v1/files/x", whole[:-1], Close())
    with pytest.raises(GatewayUnreachable, match="lost the connection"):
        sandbox.files.read("x")
    with pytest.raises(GatewayUnreachable, match="lost the connection"):
        sandbox.files.download("x", to=io.BytesIO())


@pytest.mark.parametrize("steps", [[Close()], [Reset()], [b"HTTP/1.1", Close()], [b"\0\r\n\r\n"]])
def test_a_lost_answer_may_have_reached_the_gateway_and_a_read_may_be_repeated(
    server: ScriptedServer, sandboxes: Sandboxes, steps: list[Step]
) -> None:
    server.answer("GET", "/v1/pools", *steps)
    with pytest.raises(GatewayUnreachable) as caught:
        sandboxes.pools()
    error = caught.value
    assert isinstance(error, ConnectionError)
    assert isinstance(error.__cause__, httpx.TransportError)
    assert (error.reached, error.retry_safe, error.status) == ("unknown", True, None)
    assert error.code == "gateway_unreachable"
    assert server.url in str(error)
    assert len(server.requests) == 1


def test_a_gateway_that_is_not_there_was_not_reached(dead_url: str) -> None:
    with Sandboxes(Gateway(dead_url)) as sandboxes, pytest.raises(GatewayUnreachable) as caught:
        sandboxes.pools()
    assert (caught.value.reached, caught.value.retry_safe) == ("no", True)


def test_a_gateway_that_says_nothing_is_given_up_after_the_gap() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        transport = Transport(Gateway(f"http://127.0.0.1:{port}"))
        silence = Call(Request("GET", "/", [], gap=0.05), nothing)
        with pytest.raises(GatewayUnreachable, match="timed out"):
            transport.call(silence)
        transport.close()


@pytest.mark.parametrize(
    ("failure", "reached"),
    [
        (httpx.ConnectTimeout, "no"),
        (httpx.PoolTimeout, "no"),
        (httpx.ReadTimeout, "unknown"),
        (httpx.WriteTimeout, "unknown"),
        (httpx.WriteError, "unknown"),
    ],
)
@respx.mock
def test_each_failure_of_a_connection_says_whether_the_request_may_have_left(
    failure: type[httpx.TransportError], reached: str
) -> None:
    respx.post("http://gateway.test/v1/claims").mock(side_effect=failure("it failed"))
    transport = Transport(Gateway("http://gateway.test"))
    with pytest.raises(GatewayUnreachable, match="it failed") as caught:
        transport.call(Control().claim({"pool": "python"}, key="k"))
    assert caught.value.reached == reached
    assert caught.value.retry_safe is (reached == "no")
    transport.close()


def test_importing_the_handle_brings_no_http_client() -> None:
    code = (
        "import sys, sandgate; print(sorted({'httpx', 'click', 'rich', 'asyncio', 'tarfile', "
        "'email', 'ssl', 'websockets'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


class _Endless:
    """A source of `size` bytes that keeps none of them."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.largest_read = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        taken = self._left if size < 0 else min(size, self._left)
        self.largest_read = max(self.largest_read, taken)
        self._left -= taken
        return b"x" * taken
