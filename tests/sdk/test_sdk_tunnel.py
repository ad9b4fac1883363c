"""`kubectl port-forward` under the handle: a stand-in that forwards and is killed at times."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runtime_server import is_alive
from support.stand_in_kubectl import StandInKubectl
from support.system_gateway import SystemGateway, nothing_left_running, sandgate_up, wait_until

from sandgate import Sandboxes, Tunnel
from sandgate._tunnel import build_command
from sandgate.errors import TunnelFailed


@pytest.fixture(scope="module")
def gateway() -> Iterator[SystemGateway]:
    with sandgate_up(isolation="none") as gateway:
        yield gateway


@pytest.fixture
def kubectl(
    gateway: SystemGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandInKubectl]:
    stand_in = StandInKubectl(tmp_path, port=int(gateway.url.rpartition(":")[2]))
    monkeypatch.setenv("PATH", stand_in.path)
    with nothing_left_running():
        yield stand_in


def test_a_sandbox_is_used_through_the_tunnel_which_ends_with_the_handle(
    kubectl: StandInKubectl,
) -> None:
    with Sandboxes(Tunnel()) as sandboxes:
        with sandboxes.claim("python") as sandbox:
            assert sandbox.commands.run("echo through").stdout == "through\n"
        (call,) = kubectl.calls()
        assert call["argv"] == [
            *("port-forward", "--namespace", "agent-sandbox-system", "--address", "127.0.0.1"),
            *("--", "svc/sandbox-router-svc", ":8080"),
        ]
        (pid,) = kubectl.pids
        assert is_alive(pid)
    assert not is_alive(pid)


def test_a_tunnel_that_is_killed_in_the_middle_of_a_command_is_dug_again(
    kubectl: StandInKubectl,
) -> None:
    with Sandboxes(Tunnel()) as sandboxes, sandboxes.claim("python") as sandbox:
        script = "echo x >> runs; echo one; until test -e go; do sleep 0.01; done; echo two; exit 4"

        def kill(text: str) -> None:
            if text == "one\n":
                os.kill(kubectl.pids[-1], signal.SIGKILL)
                threading.Thread(target=go_on).start()

        def go_on() -> None:
            wait_until(lambda: len(kubectl.pids) == 2)
            sandbox.files.write("go", "")

        result = sandbox.commands.run(script, on_stdout=kill)
        assert (result.stdout, result.exit_code) == ("one\ntwo\n", 4)
        assert sandbox.files.read_text("runs") == "x\n"
        assert len(kubectl.pids) == 2


def test_calls_wait_for_a_tunnel_that_is_away_for_a_while(kubectl: StandInKubectl) -> None:
    with Sandboxes(Tunnel()) as sandboxes, sandboxes.claim("python") as sandbox:
        kubectl.refuse(refuses=True)
        os.kill(kubectl.pids[-1], signal.SIGKILL)
        wait_until(lambda: sandboxes._transport.origin.ready_url is None)
        timer = threading.Timer(0.5, kubectl.refuse, kwargs={"refuses": False})
        timer.start()
        assert sandbox.commands.run("echo back").stdout == "back\n"
        timer.join()


def test_a_tunnel_that_never_stands_says_why(kubectl: StandInKubectl) -> None:
    kubectl.refuse(refuses=True)
    with (
        Sandboxes(Tunnel(ready_timeout=0.5)) as sandboxes,
        pytest.raises(TunnelFailed, match="pod is not running") as caught,
    ):
        sandboxes.pools()
    assert (caught.value.reached, caught.value.retry_safe) == ("no", True)


def test_a_missing_kubectl_is_told(tmp_path: Path) -> None:
    tunnel = Tunnel(kubectl=str(tmp_path / "kubectl"), ready_timeout=0.5)
    with Sandboxes(tunnel) as sandboxes, pytest.raises(TunnelFailed, match="kubectl"):
        sandboxes.pools()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_program_however_that_ends(
    kubectl: StandInKubectl, number: signal.Signals
) -> None:
    code = (
        "from sandgate import Sandboxes, Tunnel; s = Sandboxes(Tunnel()); s.pools(); print('up', "
        "flush=True); import time; time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
    wait_until(lambda: not any(map(is_alive, kubectl.pids)))


async def test_a_task_waits_for_the_tunnel_too(kubectl: StandInKubectl) -> None:
    from sandgate import AsyncSandboxes

    async with (
        AsyncSandboxes(Tunnel()) as sandboxes,
        await sandboxes.claim("python") as sandbox,
    ):
        assert (await sandbox.commands.run("echo through")).stdout == "through\n"
    assert not any(map(is_alive, kubectl.pids))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Tunnel(service="--kubeconfig=x"),
        lambda: Tunnel(namespace="a b"),
        lambda: Tunnel(port=0),
        lambda: Tunnel(context="--as=admin"),
    ],
)
def test_a_name_that_kubectl_could_take_for_an_option_is_refused(build: object) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match="is no"):
        build()


def test_names_follow_the_double_dash() -> None:
    words = build_command(Tunnel(service="gw", namespace="ns", port=81, context="c"))
    assert words[words.index("kubectl") :] == [
        *("kubectl", "port-forward", "--namespace", "ns", "--address", "127.0.0.1"),
        *("--context", "c", "--", "svc/gw", ":81"),
    ]
