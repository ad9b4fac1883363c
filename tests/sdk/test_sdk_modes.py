"""One program through every way to a sandbox, and what each way sends."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runtime_server import start_runtime
from support.scripted_server import (
    ScriptedServer,
    chunk,
    exit_event,
    json_response,
    response,
    stream_head,
)
from support.stand_in_kubectl import StandInKubectl
from support.system_gateway import SystemGateway, sandgate_up

from sandgate import (
    AsyncSandboxes,
    Connection,
    Direct,
    Gateway,
    InCluster,
    Sandboxes,
    Tunnel,
)
from sandgate._origin import build_access
from sandgate._settings import default_connection
from sandgate.types import Claim


@pytest.fixture(scope="module")
def gateway() -> Iterator[SystemGateway]:
    with sandgate_up(isolation="none") as gateway:
        yield gateway


@pytest.fixture(params=["gateway", "tunnel", "direct", "settings"])
def connection(
    request: pytest.FixtureRequest,
    gateway: SystemGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Connection | None]:
    """Give each way; those to a cluster's names need its DNS."""
    match request.param:
        case "gateway":
            yield Gateway(gateway.url)
        case "settings":
            monkeypatch.setenv("SANDGATE_URL", gateway.url)
            yield None
        case "tunnel":
            kubectl = StandInKubectl(tmp_path, port=int(gateway.url.rpartition(":")[2]))
            yield Tunnel(kubectl=str(kubectl.program))
        case _:
            with start_runtime(tmp_path) as runtime:
                yield Direct(runtime.url)


def program(connection: Connection | None) -> tuple[str, int, list[str], bool]:
    """Do what users do, whatever the way."""
    with Sandboxes(connection) as sandboxes, sandboxes.claim("python", env={"N": "3"}) as sandbox:
        sandbox.files.write("d/in.txt", "words")
        result = sandbox.commands.run("cat d/in.txt; exit $N", timeout=60)
        names = [entry.name for entry in sandbox.files.list("d")]
        return result.stdout, result.exit_code, names, sandbox.files.exists("missing")


async def async_program(connection: Connection | None) -> tuple[str, int, list[str], bool]:
    async with (
        AsyncSandboxes(connection) as sandboxes,
        await sandboxes.claim("python", env={"N": "3"}) as sandbox,
    ):
        await sandbox.files.write("d/in.txt", "words")
        result = await sandbox.commands.run("cat d/in.txt; exit $N", timeout=60)
        names = [entry.name for entry in await sandbox.files.list("d")]
        return result.stdout, result.exit_code, names, await sandbox.files.exists("missing")


def test_one_program_runs_through_every_way(connection: Connection | None) -> None:
    assert program(connection) == ("words", 3, ["in.txt"], False)
    assert asyncio.run(async_program(connection)) == ("words", 3, ["in.txt"], False)


def test_a_service_has_its_name_in_the_cluster() -> None:
    assert (
        InCluster().url == "http://sandbox-router-svc.agent-sandbox-system.svc.cluster.local:8080"
    )
    assert (
        InCluster("gw", "edge", 80, cluster_domain="k.test").url == "http://edge.gw.svc.k.test:80"
    )


def test_in_a_cluster_a_pod_may_be_dialled_itself_without_the_gateways_fields() -> None:
    access = build_access(InCluster(direct=True, router_token="r"))
    assert access.origin is not None
    claim = Claim("c-1", "team", "sb-1", 8888, "unknown", uid="u", token="t")
    assert access.origin(claim, 3000) == "http://sb-1.team.svc.cluster.local:3000"
    assert build_access(InCluster()).origin is None


def test_a_runtime_that_knows_itself_gets_the_expectation_and_nothing_of_a_gateways(
    server: ScriptedServer,
) -> None:
    server.answer("HEAD", "/v1/files/x", response())
    server.answer("POST", "/v1/processes", stream_head(), chunk(exit_event(0)), chunk(b""))
    direct = Direct(server.url, sandbox="sb-1", namespace="team", uid="u-1")
    with Sandboxes(direct) as sandboxes, sandboxes.claim("any") as sandbox:
        assert sandbox.files.exists("x")
        sandbox.commands.run("x")
    for request in server.requests:
        sent = {name: value for name, value in request.fields if name.startswith("x-")}
        assert sent == {"x-sandbox-expect-uid": "u-1", "x-sandbox-expect-name": "team/sb-1"}
    assert len(server.requests) == 2  # neither a claim nor a release


@pytest.mark.parametrize(
    "build",
    [
        lambda: InCluster(namespace="A"),
        lambda: InCluster(cluster_domain="a/b"),
        lambda: InCluster(port=70000),
        lambda: Direct("http://x", sandbox="-x"),
        lambda: Direct("http://x", uid="a b"),
        lambda: Gateway("http://x", ca="ca.pem"),
        lambda: Tunnel(token=""),
    ],
)
def test_what_names_nothing_is_refused_where_it_is_written(build: object) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match=r"is no|is not|holds|has no TLS|is empty"):
        build()


def test_settings_come_from_the_file_and_a_variable_wins(tmp_path: Path) -> None:
    file = tmp_path / "sandgate" / "config.toml"
    file.parent.mkdir()
    file.write_text('url = "https://gw.test"\ntoken = "from-file"\nca = "ca.pem"\n')
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    found = default_connection(environ)
    assert (found.url, found.token, found.ca) == ("https://gw.test", "from-file", "ca.pem")
    found = default_connection({**environ, "SANDGATE_TOKEN": "from-env", "SANDGATE_URL": ""})
    assert (found.url, found.token) == ("https://gw.test", "from-env")
    assert default_connection({"HOME": "/nowhere"}) == Gateway("http://127.0.0.1:8080")


@pytest.mark.parametrize(
    ("content", "why"),
    [("url = ", "is no TOML"), ('uri = "x"', "'uri' is none of"), ("token = 7", "with a text")],
)
def test_a_file_that_is_wrong_is_refused_and_no_secret_is_told(
    tmp_path: Path, content: str, why: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(content)
    with pytest.raises(ValueError, match=why):
        default_connection({"SANDGATE_CONFIG": str(file)})


def test_a_file_that_is_named_must_be_there() -> None:
    with pytest.raises(ValueError, match="No such file"):
        default_connection({"SANDGATE_CONFIG": "/nowhere/config.toml"})


def test_connections_are_shared_by_the_sandboxes_of_a_handle(
    server: ScriptedServer, claim: dict[str, object]
) -> None:
    with Sandboxes(Gateway(server.url)) as sandboxes:
        for number in range(3):
            server.answer("POST", "/v1/claims", json_response({**claim, "sandbox": f"s-{number}"}))
            server.answer("HEAD", "/v1/files/x", response())
            sandboxes.claim("python").files.exists("x")
    assert server.connections == 1
