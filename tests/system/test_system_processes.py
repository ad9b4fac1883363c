"""Processes and terminals through the gateway: cut off, found again, and run once."""

import json
from collections.abc import Iterator

import httpx
import pytest
from support.system_gateway import SystemGateway, routing_fields
from websockets.sync.client import ClientConnection, connect

from sandgate import Sandbox

COUNT = "for n in $(seq 20); do echo $n; sleep 0.05; done"


def read_ids(answer: httpx.Response) -> Iterator[int]:
    for line in answer.iter_lines():
        if line.startswith("id: "):
            yield int(line[4:])


def read_until(terminal: ClientConnection, word: bytes) -> bytes:
    shown = b""
    while word not in shown:
        frame = terminal.recv(timeout=20)
        shown += frame if isinstance(frame, bytes) else b""
    return shown


@pytest.fixture
def fields(sandbox: Sandbox) -> dict[str, str]:
    return routing_fields(sandbox)


def test_a_stream_that_was_cut_goes_on_and_a_repeated_request_runs_nothing(
    gateway: SystemGateway, fields: dict[str, str]
) -> None:
    body = {"shell": f"echo x >> ran; {COUNT}; wc -l < ran", "linger_seconds": 30}
    headers = {**fields, "Idempotency-Key": "one", "Accept": "text/event-stream"}
    with gateway.client() as client:
        seen = []
        with client.stream("POST", "/v1/processes", json=body, headers=headers) as answer:
            ids = read_ids(answer)
            seen = [next(ids) for _ in range(8)]
        process = client.get("/v1/processes", headers=fields).json()["processes"][0]["id"]
        more = {**fields, "Last-Event-ID": str(seen[-1])}
        with client.stream("GET", f"/v1/processes/{process}/events", headers=more) as answer:
            seen += read_ids(answer)
        assert seen == list(range(1, seen[-1] + 1))
        again = client.post("/v1/processes", json=body, headers=headers)
        assert json.loads(again.text.split("data: ")[1].split("\n")[0])["id"] == process
        assert again.text.count("event: exit") == 1


def test_a_terminal_outlives_a_lost_connection(
    gateway: SystemGateway, fields: dict[str, str]
) -> None:
    body = {"argv": ["sh"], "pty": {"cols": 80, "rows": 24}, "linger_seconds": 30}
    with gateway.client() as client:
        made = client.post("/v1/processes", json=body, headers=fields).json()
        url = str(client.base_url).replace("http:", "ws:").rstrip("/")
    url += f"/v1/processes/{made['id']}/attach"
    with connect(url, additional_headers=fields) as terminal:
        assert json.loads(terminal.recv(timeout=20))["offset"] == 0
        terminal.send(b"left=here\n")
        terminal.send(b"stty size\n")
        read_until(terminal, b"24 80\r\n")
        terminal.send(json.dumps({"type": "resize", "cols": 100, "rows": 30}))
        terminal.socket.close()
    with connect(url, additional_headers=fields) as terminal:
        assert b"24 80\r\n" in read_until(terminal, b"24 80\r\n")
        terminal.send(b"echo $left; stty size; exit 4\n")
        read_until(terminal, b"here\r\n30 100\r\n")
        while isinstance(frame := terminal.recv(timeout=20), bytes):
            pass
        assert json.loads(frame)["exit_code"] == 4
