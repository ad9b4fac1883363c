"""The token for all sandboxes of a gateway, against a real one that asks for it."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.scripted_server import ScriptedServer, json_response, response
from support.system_gateway import SystemGateway, build_environment, sandgate_up

from sandgate import Gateway, Sandboxes
from sandgate.errors import Unauthenticated

SECRET = "hunter2-hunter2"


@pytest.fixture(scope="module")
def gateway() -> Iterator[SystemGateway]:
    with sandgate_up(isolation="none", environ={"ROUTER_AUTH_TOKEN": SECRET}) as gateway:
        yield gateway


def cli(
    gateway: SystemGateway, *arguments: str, **environ: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sandgate.cli", *arguments],
        env=build_environment(SANDGATE_URL=gateway.url, **environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_with_the_token_sandboxes_are_used_as_ever(gateway: SystemGateway) -> None:
    with (
        Sandboxes(Gateway(gateway.url, router_token=SECRET)) as sandboxes,
        sandboxes.claim("python") as sandbox,
    ):
        sandbox.files.write("a.txt", "hello")
        assert sandbox.commands.run("cat a.txt").stdout == "hello"
        # Where a claim is looked up by its name the token goes along, too.
        assert sandboxes.get(sandbox.claim).files.read_text("a.txt") == "hello"
        assert SECRET not in repr((sandbox, sandboxes, vars(sandbox), vars(sandboxes)))


@pytest.mark.parametrize("token", [None, "another"])
def test_without_it_claims_are_made_and_no_sandbox_is_reached(
    gateway: SystemGateway, token: str | None
) -> None:
    with (
        Sandboxes(Gateway(gateway.url, router_token=token)) as sandboxes,
        sandboxes.claim("python") as sandbox,
    ):
        for use in (lambda: sandbox.commands.run("true"), sandbox.files.list):
            with pytest.raises(Unauthenticated):
                use()


def test_the_token_of_a_caller_does_not_stand_in_for_it(gateway: SystemGateway) -> None:
    with (
        Sandboxes(Gateway(gateway.url, token=SECRET)) as sandboxes,
        sandboxes.claim("python") as sandbox,
        pytest.raises(Unauthenticated),
    ):
        sandbox.files.list()


def test_it_goes_to_sandboxes_and_never_to_the_control_api(
    server: ScriptedServer, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    server.answer("HEAD", "/v1/files/x", response())
    server.answer("DELETE", "/v1/claims/default/c-1?uid=u-1", response(204))
    with (
        Sandboxes(Gateway(server.url, token="caller", router_token=SECRET)) as sandboxes,
        sandboxes.claim("python") as sandbox,
    ):
        assert sandbox.files.exists("x")
    sent = [request.value("authorization") for request in server.requests]
    assert sent == ["Bearer caller", f"Bearer {SECRET}", "Bearer caller"]


def test_the_shell_takes_it_from_the_environment_or_an_option(gateway: SystemGateway) -> None:
    assert cli(gateway, "claim", "python", "--name", "box").returncode == 0
    by_variable = cli(gateway, "run", "box", "--", "echo", "hi", SANDGATE_ROUTER_TOKEN=SECRET)
    assert (by_variable.returncode, by_variable.stdout) == (0, "hi\n")
    by_option = cli(gateway, "ls", "box", "--router-token", SECRET)
    assert by_option.returncode == 0
    without = cli(gateway, "run", "box", "--", "echo", "hi")
    assert (without.returncode, without.stdout) == (125, "")
    assert "set SANDGATE_ROUTER_TOKEN or --router-token" in without.stderr
    unfit = cli(gateway, "ls", "box", "--router-token", "a b")
    assert unfit.returncode == 2
    assert "the router token is empty or holds a space" in unfit.stderr
    assert cli(gateway, "release", "box").returncode == 0
