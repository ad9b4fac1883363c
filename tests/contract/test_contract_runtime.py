"""The runtime's side of the wire: a real one, spoken to by the golden messages."""

import asyncio
import json
import os
import re
import socket
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from contract.goldens import NAME, UID, body_of, read, read_json, with_field
from support.runtime_server import RuntimeServer, listen_unix, start_runtime

from sandgate_runtime.relay import CONNECTED, REFUSED, TIMED_OUT, PortRelay

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
EXPECTED = {"x-sandbox-expect-uid": UID, "x-sandbox-expect-name": NAME}
PATIENCE = 30


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeServer]:
    """The runtime of the golden sandbox; its client says whom it means."""
    identity = {"SANDGATE_SANDBOX_NAME": NAME, "SANDGATE_SANDBOX_UID": UID}
    with start_runtime(tmp_path_factory.mktemp("base"), env=identity) as server:
        server.client.headers.update(EXPECTED)
        yield server


def exchange(runtime: RuntimeServer, message: bytes) -> httpx.Response:
    """Send a message byte for byte; return the answer as a client reads it."""
    head, _, _ = message.partition(b"\r\n\r\n")
    # So that the end of the answer is the end of the connection.
    message = message.replace(head, head + b"\r\nConnection: close", 1)
    url = httpx.URL(runtime.url)
    with socket.create_connection((url.host, url.port or 0), timeout=PATIENCE) as connection:
        connection.sendall(message)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, content = received.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    fields = [(name, value.strip()) for name, _, value in (ln.partition(":") for ln in lines[1:])]
    headers = httpx.Headers(fields)
    if headers.get("transfer-encoding") == "chunked":
        content = b"".join(_chunks(content))
        del headers["transfer-encoding"]
    return httpx.Response(int(lines[0].split(" ")[1]), headers=headers, content=content)


def _chunks(content: bytes) -> Iterator[bytes]:
    while True:
        size, _, content = content.partition(b"\r\n")
        if int(size, 16) == 0:
            return
        yield content[: int(size, 16)]
        content = content[int(size, 16) + 2 :]


def with_examples(stream: bytes) -> bytes:
    """Put the example's values in place of the id, the pid and the duration."""
    stream = re.sub(rb'"id": "[0-9a-f]{16}"', b'"id": "d8070b90c841d992"', stream)
    stream = re.sub(rb'"pid": [0-9]+', b'"pid": 8', stream)
    return re.sub(rb'"duration": [0-9.e-]+', b'"duration": 0.021', stream)


def upload(runtime: RuntimeServer) -> httpx.Response:
    """Send the golden upload as the gateway passes it on."""
    added = b"".join(f"{name}: {value}\r\n".encode() for name, value in EXPECTED.items())
    message = read("upload-request.http").replace(b"\r\n", b"\r\n" + added, 1)
    return exchange(runtime, message)


def test_it_takes_the_golden_upload(runtime: RuntimeServer) -> None:
    answer = upload(runtime)
    assert (answer.status_code, answer.json()) == (200, read_json("upload-answer.json"))
    assert (runtime.base / "run.py").read_bytes() == b'print("hello")\n'


def test_it_answers_the_golden_request_with_the_golden_event_stream(
    runtime: RuntimeServer,
) -> None:
    upload(runtime)
    answer = exchange(runtime, read("run-request-inside.http"))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert with_examples(answer.content) == read("event-stream.txt")


def test_it_tells_a_missing_program_as_the_golden_stream_does(runtime: RuntimeServer) -> None:
    answer = runtime.client.post(
        "/v1/processes",
        json={"argv": ["no-such-program"]},
        headers={"accept": "text/event-stream"},
    )
    assert with_examples(answer.content) == read("event-stream-missing-program.txt")


def test_it_refuses_the_golden_request_for_another_sandbox(runtime: RuntimeServer) -> None:
    message = with_field(read("run-request-inside.http"), "x-sandbox-expect-uid", b"another")
    answer = exchange(runtime, message)
    assert (answer.status_code, answer.json()) == (421, read_json("runtime-refusal.json"))


@pytest.mark.parametrize(
    ("body", "golden"),
    [
        ({"command": "echo 'two words'"}, "execute-answer.json"),
        (
            {"command": "sh -c 'echo begun; sleep 60'", "timeout_seconds": 0.5},
            "execute-timeout-answer.json",
        ),
    ],
)
def test_execute_gives_the_golden_answers(
    runtime: RuntimeServer, body: dict[str, Any], golden: str
) -> None:
    answer = runtime.client.post("/execute", json=body)
    assert (answer.status_code, answer.json()) == (200, read_json(golden))


def test_files_give_the_golden_answers(runtime: RuntimeServer) -> None:
    upload(runtime)
    (runtime.base / "src").mkdir(exist_ok=True)
    for name in ("run.py", "src"):
        os.utime(runtime.base / name, (NOON, NOON))
    listing = runtime.client.get("/list/").json()
    assert [_with_usual_size(entry, runtime.base) for entry in listing] == read_json(
        "list-answer.json"
    )
    assert runtime.client.get("/exists/run.py").json() == read_json("exists-answer.json")
    missing = runtime.client.get("/download/missing.py")
    assert (missing.status_code, missing.json()) == (404, read_json("file-refusal.json"))


def test_it_takes_the_golden_write_and_gives_the_golden_directory_and_refusal(
    runtime: RuntimeServer,
) -> None:
    added = b"".join(f"{name}: {value}\r\n".encode() for name, value in EXPECTED.items())
    message = read("write-request.http").replace(b"\r\n", b"\r\n" + added, 1)
    assert exchange(runtime, message).status_code == 204
    assert (runtime.base / "run.py").read_bytes() == b'print("hello")\n'
    (runtime.base / "src").mkdir(exist_ok=True)
    for name, mode in (("run.py", 0o644), ("src", 0o755)):
        (runtime.base / name).chmod(mode)
        os.utime(runtime.base / name, (NOON, NOON))
    listing = runtime.client.get("/v1/files/?recursive=false").json()
    golden = read_json("directory-answer.json")
    shown = [_with_usual_size(entry, runtime.base) for entry in listing["entries"]]
    assert shown == golden["entries"]
    missing = runtime.client.get("/v1/files/missing.py")
    assert (missing.status_code, missing.json()) == (404, read_json("missing-file.json"))


def _with_usual_size(entry: dict[str, Any], base: Path) -> dict[str, Any]:
    """Give a directory the size of the example: it is the file system's to choose."""
    is_directory = stat.S_ISDIR((base / entry["name"]).stat().st_mode)
    return {**entry, "size": 4096} if is_directory else entry


def test_health_has_the_golden_members(runtime: RuntimeServer) -> None:
    health = runtime.client.get("/v1/health").json()
    assert {**health, "uptime_seconds": 3} == read_json("health-answer.json")


async def test_the_port_relay_speaks_the_golden_bytes(tmp_path: Path) -> None:
    golden = read_json("port-relay.json")
    assert golden["answers"] == {
        "connected": CONNECTED.hex(),
        "refused": REFUSED.hex(),
        "timed_out": TIMED_OUT.hex(),
    }
    assert int(golden["asked"], 16).to_bytes(2, "big") == golden["port"].to_bytes(2, "big")
    relay = PortRelay()
    await relay.start(listen_unix(tmp_path / "ports.sock"))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        answers = [await ask(tmp_path, port), await ask(tmp_path, 0)]
    await relay.close()
    assert answers == [golden["answers"]["connected"], golden["answers"]["refused"]]


async def ask(folder: Path, port: int) -> str:
    reader, writer = await asyncio.open_unix_connection(str(folder / "ports.sock"))
    writer.write(port.to_bytes(2, "big"))
    answer = await reader.readexactly(1)
    writer.close()
    await writer.wait_closed()
    return answer.hex()


def test_the_golden_run_request_asks_for_what_the_stream_shows() -> None:
    assert json.loads(body_of("run-request-inside.http"))["shell"] == "python3 run.py"
