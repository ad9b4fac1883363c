"""The Kubernetes project's own client, as PyPI has it, works through the gateway.

In its direct mode, with the gateway's URL; what it would ask of a cluster is answered by a few
lines here. Its blocking and its asyncio handle do the same. One of the gateways asks for the
claim's token, which this client can send in `Authorization` alone; the other asks nobody.
"""

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import httpx
import pytest
from k8s_agent_sandbox.async_sandbox import AsyncSandbox
from k8s_agent_sandbox.exceptions import SandboxRequestError
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig
from k8s_agent_sandbox.sandbox import Sandbox
from support.system_gateway import SystemGateway, sandgate_up

T = TypeVar("T")

isolated_only = pytest.mark.parametrize("isolation", ["bubblewrap"], indirect=True)

NAMES = [
    "plain.txt",
    "with two  spaces.txt",
    "folder/deeper/file.txt",
    "folder with space/Größe – naïve.txt",
    "日本語/ファイル.txt",
    "100%.txt",
    "50%2Fhalf.txt",
    "a+b&c=d?e#f;g.txt",
    "'quoted'.txt",
]

RECORDER = """\
import http.server, sys

class Recorder(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        content = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass

http.server.HTTPServer(("127.0.0.1", 3000), Recorder).serve_forever()
"""

RUN_PY = """\
import sys
print("working")
print("a warning", file=sys.stderr)
with open("/home/user/result.txt", "w") as file:
    file.write("6 * 7 = %d" % (6 * 7))
"""


class NoCluster:
    """What the client asks of Kubernetes: little to say, and the claim's end at the gateway."""

    injected_api_client = None

    def __init__(self, url: str) -> None:
        self._url = url

    def get_sandbox(self, name: str, namespace: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": namespace}}

    def delete_sandbox_claim(self, name: str, namespace: str) -> None:
        answer = httpx.delete(f"{self._url}/v1/claims/{namespace}/{name}", timeout=60)
        assert answer.status_code == 204


class AsyncNoCluster:
    """The same for the asyncio client."""

    injected_api_client = None

    def __init__(self, url: str) -> None:
        self._cluster = NoCluster(url)

    async def get_sandbox(self, name: str, namespace: str) -> dict[str, Any]:
        return self._cluster.get_sandbox(name, namespace)

    async def delete_sandbox_claim(self, name: str, namespace: str) -> None:
        self._cluster.delete_sandbox_claim(name, namespace)

    async def close(self) -> None:
        pass


async def call(function: Callable[..., T | Awaitable[T]], *args: object, **members: object) -> T:
    """Call a method of either handle; the blocking one blocks the test's own loop, no more."""
    result = function(*args, **members)
    if inspect.isawaitable(result):
        return await result
    return result


Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def gateway(isolation: str) -> Iterator[SystemGateway]:
    """Yield a gateway as `up` has it; the one without isolation asks for no token, either."""
    flags = () if isolation == "bubblewrap" else ("--auth", "none")
    with sandgate_up(*flags, isolation=isolation) as gateway:
        yield gateway


@pytest.fixture(params=["blocking", "asyncio"])
async def connect(request: pytest.FixtureRequest, gateway: SystemGateway) -> AsyncIterator[Connect]:
    """Yield a function that claims a sandbox and returns the client's handle on it."""
    handles: list[Any] = []

    def connect(*, port: int = 8888, beside: Any = None) -> Any:
        if beside is None:
            answer = httpx.post(f"{gateway.url}/v1/claims", json={"pool": "python"}, timeout=60)
            assert answer.status_code == 201, answer.text
            claim, sandbox = answer.json()["claim"], answer.json()["sandbox"]
            token = answer.json()["token"]
            bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
        else:
            claim, sandbox = beside.claim_name, beside.sandbox_id
            bearer = beside.connection_config.extra_headers
        config = SandboxDirectConnectionConfig(
            api_url=gateway.url, server_port=port, extra_headers=bearer
        )
        handle_type: Any = Sandbox if request.param == "blocking" else AsyncSandbox
        cluster = (NoCluster if handle_type is Sandbox else AsyncNoCluster)(gateway.url)
        handles.append(handle_type(claim, sandbox, "default", config, k8s_helper=cluster))
        return handles[-1]

    yield connect
    for handle in handles:
        await call(handle.terminate)


@pytest.mark.parametrize(
    ("command", "code", "stdout", "stderr"),
    [
        ("echo hello", 0, "hello\n", ""),
        ("false", 1, "", ""),
        ("sh -c 'echo out; echo err >&2; exit 7'", 7, "out\n", "err\n"),
        ("sh -c 'printf \"größer\\n\"'", 0, "größer\n", ""),
        ("echo $HOME | cat", 0, "$HOME | cat\n", ""),
        ("sh -c 'kill -9 $$'", -9, "", ""),
    ],
)
async def test_a_command_gives_its_exit_code_and_both_outputs(
    connect: Connect, command: str, code: int, stdout: str, stderr: str
) -> None:
    result = await call(connect().commands.run, command)
    assert (result.exit_code, result.stdout, result.stderr) == (code, stdout, stderr)
    assert not result.timed_out


async def test_a_command_over_its_time_is_ended_with_124_and_keeps_what_it_printed(
    connect: Connect,
) -> None:
    command = "sh -c 'echo begun; sleep 600 & wait'"
    result = await call(connect().commands.run, command, command_timeout=1.5)
    assert result.exit_code == 124
    assert result.timed_out
    assert result.stdout == "begun\n"
    assert "timed out after 1.5 seconds" in result.stderr


async def test_text_is_written_found_listed_and_read(connect: Connect) -> None:
    files = connect().files
    assert not await call(files.exists, "notes.txt")
    await call(files.write, "notes.txt", "first\nsecond: ü\n")
    await call(files.write, "folder/inner.txt", "x")
    assert await call(files.exists, "notes.txt")
    assert await call(files.read, "notes.txt") == "first\nsecond: ü\n".encode()
    entries = {entry.name: entry for entry in await call(files.list, "")}
    assert entries.keys() >= {"notes.txt", "folder"}
    assert (entries["notes.txt"].size, entries["notes.txt"].type) == (17, "file")
    assert entries["folder"].type == "directory"
    assert [entry.name for entry in await call(files.list, "folder")] == ["inner.txt"]


async def test_ten_mebibytes_of_random_bytes_come_back_as_they_were(connect: Connect) -> None:
    content = os.urandom(10 * 1024**2)
    files = connect().files
    await call(files.write, "random.bin", content)
    assert await call(files.read, "random.bin") == content


async def test_names_are_kept_letter_by_letter(connect: Connect) -> None:
    sandbox = connect()
    for name in NAMES:
        await call(sandbox.files.write, name, f"content of {name}")
    for name in NAMES:
        assert await call(sandbox.files.exists, name), name
        assert (await call(sandbox.files.read, name)).decode() == f"content of {name}"
    found = await call(sandbox.commands.run, "find . -type f -name '*.txt'")
    assert sorted(found.stdout.splitlines()) == sorted(f"./{name}" for name in NAMES)


async def test_a_file_that_is_missing_is_told_by_its_status(connect: Connect) -> None:
    with pytest.raises(SandboxRequestError) as caught:
        await call(connect().files.read, "missing.txt")
    assert caught.value.status_code == 404


@isolated_only
async def test_an_encoded_slash_arrives_as_it_was_sent(connect: Connect) -> None:
    sandbox = connect()
    await call(sandbox.files.write, "recorder.py", RECORDER)
    await call(sandbox.commands.run, "sh -c 'exec python3 recorder.py >/dev/null 2>&1 &'")
    probe = "import socket; socket.create_connection(('127.0.0.1', 3000)).close()"
    while (await call(sandbox.commands.run, f'python3 -c "{probe}"')).exit_code != 0:
        pass  # each try takes long enough not to be busy
    other = connect(port=3000, beside=sandbox)
    assert await call(other.files.read, "a/b c/ü") == b"/download/a%2Fb%20c%2F%C3%BC"
    assert await call(other.files.read, "50%2Fhalf") == b"/download/50%252Fhalf"


@isolated_only
async def test_the_usual_workflow_runs_as_people_write_it(
    connect: Connect, gateway: SystemGateway
) -> None:
    sandbox = connect()
    await call(sandbox.files.write, "/home/user/run.py", RUN_PY)
    result = await call(sandbox.commands.run, "python3 /home/user/run.py")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "working\n", "a warning\n")
    assert await call(sandbox.files.read, "/home/user/result.txt") == b"6 * 7 = 42"
    assert await call(sandbox.files.exists, "/home/user/result.txt")
    names = [entry.name for entry in await call(sandbox.files.list, "/home/user")]
    assert {"run.py", "result.txt"} <= set(names)
    await call(sandbox.terminate)
    with gateway.client() as control:
        claims = control.get("/v1/claims").json()["claims"]
    assert sandbox.sandbox_id not in [claim["sandbox"] for claim in claims]


async def test_a_terminated_sandbox_is_not_found(connect: Connect, gateway: SystemGateway) -> None:
    sandbox = connect()
    late = connect(beside=sandbox)
    await call(sandbox.terminate)
    with pytest.raises(SandboxRequestError) as caught:
        await call(late.commands.run, "true")
    assert caught.value.status_code == 404
    assert gateway.process.poll() is None
