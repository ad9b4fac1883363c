"""Lines of the access log: which requests get one, what is in it, and what never is."""

import io
import json
from datetime import UTC, datetime

import pytest
from support.raw_client import connect, request
from support.relaying import relaying
from support.scripted_upstream import answer_ok

from sandgate_router.access_log import AccessLog
from sandgate_router.head import RequestHead, parse_request_head
from sandgate_router.line_writer import LineWriter

NOW = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
SECRET = "hidden-value"


def head(target: str = "/execute", more: str = "") -> RequestHead:
    return parse_request_head(
        f"POST {target} HTTP/1.1\r\nHost: a\r\nX-Sandbox-ID: sb-1\r\n{more}".encode()
    )


def write(log_head: RequestHead, status: int = 200) -> dict[str, object]:
    stream = io.BytesIO()
    writer = LineWriter(stream)
    log = AccessLog(1, writer=writer, now=lambda: NOW)
    log.record(log_head, client=b"127.0.0.1", namespace="ns", status=status, seconds=0.0123456)
    writer.close()
    [line] = stream.getvalue().decode().splitlines()
    decoded: dict[str, object] = json.loads(line)
    return decoded


def test_a_line_says_who_asked_what_of_which_sandbox_and_what_came_of_it() -> None:
    assert write(head(more="X-Sandbox-Port: 3000\r\n")) == {
        "event": "request",
        "time": "2026-11-30T12:00:00.123Z",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/execute",
        "namespace": "ns",
        "sandbox": "sb-1",
        "port": "3000",
        "status": 200,
        "seconds": 0.012346,
    }


@pytest.mark.parametrize(
    ("target", "more"),
    [
        (f"/download?token={SECRET}", ""),
        ("/x", f"Authorization: Bearer {SECRET}\r\n"),
        ("/x", f"X-Sandbox-Token: sg1.{SECRET}\r\n"),
        ("/x", f"Cookie: a={SECRET}\r\n"),
        ("/x", f"X-Custom: {SECRET}\r\n"),
    ],
)
def test_queries_and_fields_never_enter(target: str, more: str) -> None:
    assert SECRET not in json.dumps(write(head(target, more)))


def test_a_line_cannot_be_broken_by_what_a_client_sends() -> None:
    line = write(head("/" + "a" * 5000, more="X-Sandbox-Port: \xff\x85\r\n"))
    assert len(str(line["path"])) == 512
    assert line["port"] == "\xc3\xbf\xc2\x85"


@pytest.mark.parametrize(("every", "due"), [(0, 0), (1, 12), (3, 4), (12, 1), (13, 0)])
def test_one_of_n_requests_is_due(every: int, due: int) -> None:
    log = AccessLog(every)
    assert sum(log.is_due() for _ in range(12)) == due


async def test_every_request_of_a_running_gateway_gets_its_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with (
        relaying(answer_ok, SANDGATE_ACCESS_LOG="1/2") as (_upstream, gateway, client),
        connect(gateway.port) as other,
    ):
        for _ in range(4):
            await client.send(request())
            await client.read_answer()
        await other.send(b"GET /nowhere?a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await other.read_answer()
        await other.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await other.read_answer()
        gateway.gateway.access_log._writer.close()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"event"' in line]
    assert [(line["path"], line["sandbox"], line["status"]) for line in lines] == [
        ("/", "sb", 200),
        ("/", "sb", 200),
        ("/healthz", "-", 200),
    ]
