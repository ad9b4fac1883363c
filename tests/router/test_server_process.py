"""`sandgate up` as a process: when it listens, what Ctrl-C does, what its sandboxes inherit."""

import asyncio
import os
import resource
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.fake_registry import FakeRegistry
from support.system_gateway import need, sandgate_up, wait_until

from sandgate import CommandResult, OutcomeUnknown, Sandbox
from sandgate._wire import following
from sandgate_router.config import Config, ListenAddress
from sandgate_router.credentials import build_credentials
from sandgate_router.registry.local import IsolationUnavailable
from sandgate_router.server import CannotListen, _bind, _serve

BOTH = pytest.mark.parametrize("isolation", ["bubblewrap", "none"])

# Ctrl-C: a terminal sends SIGINT to the gateway's whole process group.


@BOTH
def test_ctrl_c_lets_a_command_end_by_itself_and_the_gateway_in_order(isolation: str) -> None:
    need(isolation)
    begun = threading.Event()

    def run(sandbox: Sandbox) -> CommandResult:
        script = "trap 'echo interrupted' INT; echo begun; sleep 1; echo done"
        return sandbox.commands.run(script, on_stdout=lambda _: begun.set())

    with (
        sandgate_up(isolation=isolation, start_new_session=True) as gateway,
        gateway.sandboxes() as sandboxes,
        ThreadPoolExecutor(1) as threads,
    ):
        running = threads.submit(run, sandboxes.claim("python"))
        assert begun.wait(30)
        os.killpg(gateway.pid, signal.SIGINT)
        result = running.result(30)
        assert (result.stdout, result.exit_code) == ("begun\ndone\n", 0)
        assert gateway.wait() == 0, gateway.errors()
        assert not list(gateway.temporary.iterdir())


@BOTH
def test_a_command_that_runs_on_after_ctrl_c_is_ended_by_the_drain(
    isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LINGER_SECONDS", 1.0)  # the gateway does not come back
    need(isolation)
    begun = threading.Event()

    def run(sandbox: Sandbox) -> CommandResult:
        return sandbox.commands.run("echo begun; sleep 1000", on_stdout=lambda _: begun.set())

    with (
        sandgate_up(
            isolation=isolation, start_new_session=True, environ={"SANDGATE_DRAIN_TIMEOUT": "1"}
        ) as gateway,
        gateway.sandboxes() as sandboxes,
        ThreadPoolExecutor(1) as threads,
    ):
        running = threads.submit(run, sandboxes.claim("python"))
        assert begun.wait(30)
        os.killpg(gateway.pid, signal.SIGINT)
        with pytest.raises(TimeoutError):
            running.exception(0.7)  # the signal itself has ended nothing
        assert isinstance(running.exception(30), OutcomeUnknown)
        assert gateway.wait() == 0, gateway.errors()


@BOTH
def test_no_process_of_a_sandbox_is_in_the_gateways_group_or_session(isolation: str) -> None:
    need(isolation)
    with sandgate_up(isolation=isolation, start_new_session=True) as gateway:
        wait_until(gateway.runtimes)
        for pid in gateway.runtimes():
            assert os.getpgid(pid) != gateway.pid
            assert os.getsid(pid) != gateway.pid


# When it listens


class SlowRegistry(FakeRegistry):
    """Takes its time to find out whether it can work, and then cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.starting, self.go = asyncio.Event(), asyncio.Event()
        self.fault: Exception | None = None
        self.closed = False

    async def start(self) -> None:
        self.starting.set()
        await self.go.wait()
        if self.fault is not None:
            raise self.fault

    async def close(self) -> None:
        self.closed = True


def bound() -> tuple[socket.socket, int]:
    listener = _bind(ListenAddress("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


async def test_nothing_is_accepted_before_the_isolation_is_known_to_work() -> None:
    registry = SlowRegistry()
    registry.fault = IsolationUnavailable("no")
    config = Config.from_environ({}, command="up")
    (listener, port), (metrics, metrics_port) = bound(), bound()
    with listener, metrics:
        serving = asyncio.create_task(
            _serve("up", config, build_credentials(config), registry, listener, metrics)
        )
        await registry.starting.wait()
        for number in (port, metrics_port):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", number)
        registry.go.set()
        with pytest.raises(IsolationUnavailable):
            await serving


async def test_an_address_that_was_lost_meanwhile_is_told_and_nothing_is_left() -> None:
    registry = SlowRegistry()
    config = Config.from_environ({}, command="up")
    listener, port = bound()
    with listener, socket.socket() as other:
        serving = asyncio.create_task(
            _serve("up", config, build_credentials(config), registry, listener, None)
        )
        await registry.starting.wait()
        # As another gateway would: two may bind an address, and one of them gets to listen.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        registry.go.set()
        with pytest.raises(CannotListen) as caught:
            await serving
    assert str(caught.value) == (
        f"cannot listen: 127.0.0.1:{port}: Address already in use;"
        " stop what listens there, or choose another port (0 takes any)"
    )
    assert registry.closed


def test_an_address_in_use_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ListenAddress("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(CannotListen, match="Address already in use"):
            _bind(address)


# What sandboxes inherit


@BOTH
def test_sandboxes_have_the_descriptor_limit_that_the_gateway_was_started_with(
    isolation: str,
) -> None:
    need(isolation)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))  # children inherit it
    try:
        with (
            sandgate_up(isolation=isolation) as gateway,
            gateway.sandboxes() as sandboxes,
            sandboxes.claim("python") as sandbox,
        ):
            assert sandbox.commands.run("ulimit -Sn; ulimit -Hn").stdout == f"300\n{hard}\n"
            limits = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
            assert limits == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
