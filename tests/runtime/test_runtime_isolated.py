"""An isolated sandbox as its users see it, with the upstream project's own client too.

The runtime is told that it is isolated; the file system is that of the test, so the workspace
stands in for `/home/user`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig
from k8s_agent_sandbox.sandbox import Sandbox
from support.runtime_server import RuntimeServer, start_runtime


class NoCluster:
    """What the client asks its cluster for, and does not get here."""

    injected_api_client = None

    def get_sandbox(self, name: str, namespace: str) -> dict[str, object]:
        return {"metadata": {"name": name, "namespace": namespace}}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    directory = tmp_path / "home" / "user"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def isolated(home: Path) -> Iterator[RuntimeServer]:
    with start_runtime(home, env={"SANDGATE_ISOLATED": "1"}) as server:
        yield server


@pytest.fixture
def sandbox(isolated: RuntimeServer) -> Any:
    return Sandbox(
        "claim",
        "sb-1",
        "default",
        connection_config=SandboxDirectConnectionConfig(api_url=isolated.url, server_port=8888),
        k8s_helper=cast(Any, NoCluster()),
    )


def test_an_absolute_path_is_the_same_file_to_an_upload_and_to_a_command(
    isolated: RuntimeServer, home: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere" / "x.sh"
    for path in (home / "run.sh", elsewhere):
        assert isolated.upload(str(path), b"echo ran").status_code == 200
        assert isolated.run(f"sh {path}")["stdout"] == "ran\n"
    assert isolated.client.get(f"/download/{str(elsewhere).replace('/', '%2F')}").text == "echo ran"
    assert isolated.client.get("/exists/%2Fetc%2Fpasswd").json()["exists"] is True


def test_a_working_directory_may_be_any_directory(isolated: RuntimeServer, tmp_path: Path) -> None:
    body = {"argv": ["pwd"], "cwd": str(tmp_path)}
    answer = isolated.client.post(
        "/v1/processes", json=body, headers={"Accept": "text/event-stream"}
    )
    assert '"exit_code": 0' in answer.text


def test_the_usual_workflow_of_the_upstream_client_works_as_written(
    sandbox: Any, home: Path
) -> None:
    sandbox.files.write(f"{home}/run.py", "open('out.txt', 'w').write('done')\nprint('hi')\n")
    result = sandbox.commands.run(f"python3 {home}/run.py")
    assert (result.stdout, result.exit_code) == ("hi\n", 0)
    assert sandbox.files.read(f"{home}/out.txt") == b"done"
    assert sandbox.files.read("out.txt") == b"done"
    assert sandbox.files.exists(f"{home}/out.txt")
    assert [entry.name for entry in sandbox.files.list(str(home))] == ["out.txt", "run.py"]


@pytest.mark.parametrize("name", ["a b/c d.bin", "ä/ö.bin", "deep/er/x", "lib/x.py"])
def test_the_upstream_client_gets_back_what_it_wrote(sandbox: Any, name: str) -> None:
    content = bytes(range(256)) * 40_000
    sandbox.files.write(name, content)
    assert sandbox.files.read(name) == content
    folder, _, leaf = name.rpartition("/")
    assert [(e.name, e.size, e.type) for e in sandbox.files.list(folder)] == [
        (leaf, len(content), "file")
    ]


def test_the_upstream_client_learns_of_a_timeout(sandbox: Any) -> None:
    result = sandbox.commands.run("sh -c 'echo part; sleep 60'", command_timeout=0.5)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, "part\n")
