"""Connections that are lost in the middle of a command, with a real gateway and real processes.

The sandbox is one of the static registry, so it outlives the gateway. Each test has both shells.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.runtime_server import RuntimeServer, is_alive, read_pid, wait_until
from support.scripted_server import ScriptedServer, Wait, chunk, event, response, stream_head
from support.static_gateway import StaticGateway, cutting_relay, static_gateway

from sandgate import (
    AsyncSandboxes,
    CommandResult,
    CommandTimeout,
    Gateway,
    OutcomeUnknown,
    Sandboxes,
)

Run = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def parts(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[StaticGateway, RuntimeServer]]:
    with static_gateway(tmp_path_factory.mktemp("static")) as parts:
        yield parts


@pytest.fixture
def gateway(parts: tuple[StaticGateway, RuntimeServer]) -> StaticGateway:
    return parts[0]


@pytest.fixture
def port(parts: tuple[StaticGateway, RuntimeServer]) -> int:
    """The port of the runtime, which is not the usual one here."""
    return int(parts[1].url.rpartition(":")[2])


@pytest.fixture
def folder(parts: tuple[StaticGateway, RuntimeServer], tmp_path: Path) -> Path:
    """A folder of the sandbox that only this test uses."""
    folder = parts[1].base / tmp_path.name
    folder.mkdir()
    return folder


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, port: int) -> Run:
    """Run a command in the sandbox, through a gateway at a URL."""

    def run_sync(url: str, command: str, **options: object) -> CommandResult:
        with Sandboxes(Gateway(url)) as sandboxes:
            commands = sandboxes.attach("sb-1", port=port).commands
            return commands.run(command, **options)  # type: ignore[arg-type]

    async def run_async(url: str, command: str, **options: object) -> CommandResult:
        async with AsyncSandboxes(Gateway(url)) as sandboxes:
            commands = sandboxes.attach("sb-1", port=port).commands
            return await commands.run(command, **options)  # type: ignore[arg-type]

    if request.param == "sync":
        return run_sync
    return lambda *arguments, **options: asyncio.run(run_async(*arguments, **options))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_goes_on_through_a_restart_of_the_gateway_and_runs_once(
    gateway: StaticGateway, folder: Path, run: Run, number: signal.Signals
) -> None:
    seen: list[str] = []

    def watch(text: str) -> None:
        seen.append(text)
        if text == "before\n":
            # While nobody listens the command goes on printing.
            threading.Thread(target=restart).start()

    def restart() -> None:
        gateway.stop(number)
        (folder / "go").touch()
        gateway.start()

    script = (
        "echo x >> runs; echo before; until test -e go; do sleep 0.01; done; echo after; exit 7"
    )
    result = run(gateway.url, script, cwd=folder.name, on_stdout=watch)
    assert (result.stdout, result.exit_code, result.truncated) == ("before\nafter\n", 7, False)
    assert "".join(seen) == result.stdout
    assert (folder / "runs").read_text() == "x\n"


def test_output_over_many_cut_connections_is_whole_in_order_and_printed_once(
    gateway: StaticGateway, folder: Path, run: Run
) -> None:
    def allow(number: int, passed: int) -> int:
        # Each connection is cut a bit later than the one before, anywhere in a line or an event.
        return max(0, 3000 + 7919 * number - passed)

    script = "echo x >> runs; seq 1 60000; seq 1 2000 >&2; exit 3"
    with cutting_relay(gateway.port, allow) as relay:
        result = run(relay.url, script, cwd=folder.name)
        assert relay.connections > 5
    assert result.stdout.split() == [str(number) for number in range(1, 60001)]
    assert result.stderr.split() == [str(number) for number in range(1, 2001)]
    assert (result.exit_code, result.truncated) == (3, False)
    assert (folder / "runs").read_text() == "x\n"


def test_a_connection_lost_before_the_first_event_is_unknown_and_nothing_is_sent_again(
    gateway: StaticGateway, folder: Path, run: Run
) -> None:
    with cutting_relay(gateway.port, lambda *_: 0) as relay:
        with pytest.raises(OutcomeUnknown) as caught:
            run(relay.url, "echo x >> runs", cwd=folder.name)
        assert relay.connections == 1
    assert not caught.value.retry_safe
    wait_until((folder / "runs").exists)
    assert (folder / "runs").read_text() == "x\n"


def test_a_command_that_was_forgotten_meanwhile_is_unknown(
    parts: tuple[StaticGateway, RuntimeServer], folder: Path, run: Run
) -> None:
    gateway, runtime = parts
    is_cut = threading.Event()

    def allow(number: int, _: int) -> int:
        return 0 if number == 1 and is_cut.is_set() else 4096

    def forget(_: str) -> None:
        for process in runtime.client.get("/v1/processes").json()["processes"]:
            if process["state"] == "running":
                is_cut.set()  # so its exit is not heard of
                runtime.client.delete(f"/v1/processes/{process['id']}")

    with cutting_relay(gateway.port, allow) as relay, pytest.raises(OutcomeUnknown) as caught:
        run(relay.url, "echo begun; exec sleep 1000", cwd=folder.name, on_stdout=forget)
    assert caught.value.reached == "yes"


def test_a_timeout_reaches_the_process_and_brings_the_output_so_far(
    gateway: StaticGateway, folder: Path, run: Run
) -> None:
    script = "echo $$ > pid; echo begun; exec sleep 1000"
    with pytest.raises(CommandTimeout) as caught:
        run(gateway.url, script, cwd=folder.name, timeout=0.5)
    assert caught.value.stdout == "begun\n"
    assert not is_alive(read_pid(folder / "pid"))


def test_a_watcher_that_raises_has_the_command_killed_before_the_call_is_over(
    gateway: StaticGateway, folder: Path, run: Run
) -> None:
    def refuse(text: str) -> None:
        raise RuntimeError(text)

    script = "echo $$ > pid; echo begun; exec sleep 1000"
    with pytest.raises(RuntimeError, match="begun"):
        run(gateway.url, script, cwd=folder.name, on_stdout=refuse)
    # Not after 30 s, as for a connection that is only lost.
    assert not is_alive(read_pid(folder / "pid"))


def test_closing_a_stream_early_kills_its_command(
    gateway: StaticGateway, folder: Path, port: int
) -> None:
    with Sandboxes(Gateway(gateway.url)) as sandboxes:
        commands = sandboxes.attach("sb-1", port=port).commands
        events = commands.stream("echo $$ > pid; exec sleep 1000", cwd=folder.name)
        next(events)
        pid = read_pid(folder / "pid")
        events.close()
        assert not is_alive(pid)


async def test_a_cancelled_task_has_its_command_killed_before_it_ends(
    gateway: StaticGateway, folder: Path, port: int
) -> None:
    async with AsyncSandboxes(Gateway(gateway.url)) as sandboxes:
        commands = sandboxes.attach("sb-1", port=port).commands
        task = asyncio.create_task(commands.run("echo $$ > pid; exec sleep 1000", cwd=folder.name))
        pid = await asyncio.to_thread(read_pid, folder / "pid")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(pid)


async def test_a_time_limit_of_asyncio_kills_the_command_too(
    gateway: StaticGateway, folder: Path, port: int
) -> None:
    async with AsyncSandboxes(Gateway(gateway.url)) as sandboxes:
        commands = sandboxes.attach("sb-1", port=port).commands
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                await commands.run("echo $$ > pid; exec sleep 1000", cwd=folder.name)
        assert not is_alive(read_pid(folder / "pid"))


async def test_a_task_that_is_cancelled_before_the_first_event_waits_for_the_id_to_kill_by(
    server: ScriptedServer,
) -> None:
    cancelled = threading.Event()
    started = b"id: 1\n" + event("started", {"id": "p-1", "pid": 7})
    server.answer("POST", "/v1/processes", Wait(cancelled), stream_head(), chunk(started))
    server.answer("DELETE", "/v1/processes/p-1", response(204))
    async with AsyncSandboxes(Gateway(server.url)) as sandboxes:
        task = asyncio.create_task(sandboxes.attach("sb-1").commands.run("x"))
        while not server.received("POST", "/v1/processes"):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0)
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(server.received("DELETE", "/v1/processes/p-1")) == 1
    assert len(server.received("POST", "/v1/processes")) == 1
