"""The handle's side of the wire: the requests it sends, the answers it understands."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from contract.goldens import UID, body_of, field_of, read, read_json, with_field
from support.scripted_server import ScriptedServer, chunk, response, stream_head

from sandgate import CommandResult, Gateway, Output, Sandbox, Sandboxes, Started, errors
from sandgate._wire.claims import Grant
from sandgate._wire.control import Control
from sandgate._wire.file_errors import parse_file_refusal
from sandgate._wire.files import parse_listing
from sandgate._wire.following import Following
from sandgate._wire.lease import Access, Lease
from sandgate._wire.message import Reply
from sandgate._wire.processes import parse_spec
from sandgate._wire.refusals import parse_refusal
from sandgate.types import Claim, Exit, FileInfo

GONE_HEAD, _, GONE_BODY = read("error.http").partition(b"\r\n\r\n")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        server.answer("POST", "/v1/claims", response(201, body=read("claim-answer.json")))
        yield server


@pytest.fixture
def sandbox(server: ScriptedServer) -> Iterator[Sandbox]:
    """The sandbox of the golden claim."""
    with Sandboxes(Gateway(server.url)) as sandboxes:
        yield sandboxes.claim("python", name="tour", lease_seconds=600, labels={"app": "demo"})


def sent(server: ScriptedServer) -> bytes:
    """Return the request that came last, byte for byte but for the port of the test."""
    request = server.requests[-1]
    message = request.head + b"\r\n\r\n" + request.body
    return with_field(message, "host", b"127.0.0.1:8080")


def with_key(message: bytes, name: str) -> bytes:
    """Put the golden message's idempotency key, which is random, into `message`."""
    return with_field(message, "idempotency-key", field_of(name, "idempotency-key"))


def follow() -> Following:
    """Return what reads the event stream of a command."""
    claim = Claim("tour", "default", "python-3lrgi36moicmsgeo", 8888, "none")
    lease = Lease(Access(Control()), Grant(claim, None), clock=time.monotonic)
    return Following(lease, clock=time.monotonic, spec=parse_spec("x", env={}), key="k")


def test_it_sends_the_golden_claim_request(server: ScriptedServer, sandbox: Sandbox) -> None:
    del sandbox
    assert with_key(sent(server), "claim-request.http") == read("claim-request.http")


def test_it_understands_the_golden_claim(sandbox: Sandbox) -> None:
    claim = sandbox.record
    assert (claim.name, claim.namespace, claim.port) == ("tour", "default", 8888)
    assert (claim.sandbox, claim.uid) == ("python-3lrgi36moicmsgeo", UID)
    assert (claim.isolation, claim.launch, claim.state) == ("bubblewrap", "warm", "ready")
    assert claim.expires_at == datetime(2026, 11, 30, 12, 10, tzinfo=UTC)
    assert claim.token is None


def test_it_sends_the_golden_release_request(server: ScriptedServer, sandbox: Sandbox) -> None:
    server.answer("DELETE", f"/v1/claims/default/tour?uid={UID}", response(204))
    sandbox.release()
    assert sent(server) == read("release-request.http")


def test_it_understands_the_golden_pools(server: ScriptedServer) -> None:
    server.answer("GET", "/v1/pools", response(body=read("pools-answer.json")))
    with Sandboxes(Gateway(server.url)) as sandboxes:
        (pool,) = sandboxes.pools()
    assert (pool.name, pool.namespace, pool.isolation) == ("python", "default", "bubblewrap")
    assert (pool.warm, pool.max, pool.ready, pool.claimed, pool.waiting) == (4, 32, 3, 1, 0)
    assert (pool.hit_rate, pool.last_error) == (1.0, None)


def test_it_sends_the_golden_write_request(server: ScriptedServer, sandbox: Sandbox) -> None:
    server.answer("PUT", "/v1/files/run.py", response(204))
    sandbox.files.write("run.py", 'print("hello")\n')
    assert sent(server) == read("write-request.http")


def test_it_sends_the_golden_read_request(server: ScriptedServer, sandbox: Sandbox) -> None:
    content = response(body=b"x", content_type="application/octet-stream")
    server.answer("GET", "/v1/files/src%2Frun.py", content)
    assert sandbox.files.read("src/run.py") == b"x"
    assert sent(server) == read("read-request.http")


def test_it_sends_the_golden_run_request_and_understands_the_golden_event_stream(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    stream = read("event-stream.txt")
    server.answer("POST", "/v1/processes", stream_head() + chunk(stream) + chunk(b""))
    result = sandbox.commands.run("python3 run.py", timeout=60)
    assert with_key(sent(server), "run-request.http") == read("run-request.http")
    assert result == CommandResult(
        stdout="hello\n",
        stderr="",
        exit_code=0,
        reason="exited",
        duration=0.021,
        stdout_bytes=b"hello\n",
    )


def test_the_golden_event_stream_may_be_cut_anywhere() -> None:
    following = follow()
    pieces = [bytes([byte]) for byte in read("event-stream.txt")]
    events = [event for piece in pieces for event in following.receive(piece)]
    following.end()
    assert events == [
        Started("d8070b90c841d992", 8),
        Output("stdout", b"hello\n"),
        Exit(exit_code=0, signal=None, reason="exited", duration=0.021, truncated=False),
    ]


def test_it_understands_that_a_program_is_missing() -> None:
    started, output, exit_ = follow().receive(read("event-stream-missing-program.txt"))
    assert started == Started(None, None)
    assert isinstance(output, Output)
    assert output.data.startswith(b"Failed to execute command: ")
    assert isinstance(exit_, Exit)
    assert exit_.exit_code == 127


def test_it_understands_the_golden_listing() -> None:
    page = parse_listing(Reply(200, [], read("directory-answer.json")))
    noon = datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert page.found == [
        FileInfo("run.py", False, 15, noon, "0644"),
        FileInfo("src", True, 4096, noon, "0755"),
    ]
    assert page.cursor is None


def test_it_understands_the_golden_error() -> None:
    lines = GONE_HEAD.decode().split("\r\n")
    fields = [(name, value.strip()) for name, _, value in (ln.partition(":") for ln in lines[1:])]
    error = parse_refusal(Reply(404, fields, GONE_BODY), method="POST")
    assert type(error) is errors.SandboxNotFound
    assert (error.code, error.status) == ("sandbox_not_found", 404)
    assert (error.reached, error.retry_safe) == ("no", True)


def test_it_understands_the_golden_refusals_of_the_runtime() -> None:
    missing = parse_file_refusal(
        Reply(404, [], read("missing-file.json")), method="GET", path="missing.py"
    )
    assert isinstance(missing, FileNotFoundError)
    replaced = parse_refusal(Reply(421, [], read("runtime-refusal.json")), method="POST")
    assert type(replaced) is errors.SandboxReplaced
    assert replaced.reached == "yes"


def test_the_body_of_the_golden_claim_request_is_json() -> None:
    assert (
        json.loads(body_of("claim-request.http"))["pool"] == read_json("claim-answer.json")["pool"]
    )
