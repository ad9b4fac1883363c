"""Commands over real sockets: live output, lost connections, and nothing sent twice."""

import threading

import pytest
from support.scripted_server import (
    PATIENCE,
    AwaitDisconnect,
    Close,
    Reset,
    ScriptedServer,
    Step,
    Wait,
    chunk,
    event,
    exit_event,
    gateway_error,
    json_response,
    output_event,
    response,
    stream_head,
)

from sandgate import (
    AsyncSandboxes,
    CommandTimeout,
    Exit,
    Gateway,
    GatewayUnreachable,
    OutcomeUnknown,
    Output,
    Sandbox,
    Sandboxes,
    Started,
)
from sandgate.errors import InvalidRequest, SandboxRefused, UpstreamClosed

PROCESSES = ("POST", "/v1/processes")
STARTED = event("started", {"id": "p-1", "pid": 7})


def _stream(*events: bytes) -> list[Step]:
    return [stream_head(), *(chunk(data) for data in events), chunk(b"")]


def test_a_command_gives_its_output_and_exit_code(server: ScriptedServer, sandbox: Sandbox) -> None:
    server.answer(
        *PROCESSES,
        *_stream(
            STARTED,
            b": ping\n\n",
            output_event("stdout", b"out"),
            output_event("stderr", b"err"),
            exit_event(3),
        ),
    )
    result = sandbox.commands.run("x")
    assert (result.stdout, result.stderr, result.exit_code) == ("out", "err", 3)
    assert (result.reason, result.duration) == ("exited", 0.25)
    (request,) = server.received(*PROCESSES)
    assert request.value("accept") == "text/event-stream"
    assert request.value("x-sandbox-id") == "sb-1"
    assert request.value("x-sandbox-namespace") == "default"
    assert request.value("x-sandbox-port") == "8888"
    assert request.value("x-sandbox-token") == "sg1.secret"


def test_output_is_passed_on_while_the_command_still_runs(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    seen = threading.Event()
    pieces: list[str] = []

    def watch(text: str) -> None:
        pieces.append(text)
        seen.set()

    server.answer(
        *PROCESSES,
        stream_head(),
        chunk(output_event("stdout", "€".encode()[:1])),
        chunk(output_event("stdout", "€".encode()[1:])),
        Wait(seen),
        chunk(output_event("stderr", b"\xe2") + exit_event(0)),
        chunk(b""),
    )
    errors: list[str] = []
    result = sandbox.commands.run("x", on_stdout=watch, on_stderr=errors.append)
    assert pieces == ["€"]
    assert errors == ["\ufffd"]
    assert result.stdout == "€"


def test_every_cut_of_the_stream_into_two_pieces_gives_the_same_result(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    data = STARTED + output_event("stdout", b"hi") + exit_event(0)
    cuts = [0, 1, 5, len(STARTED) - 1, len(STARTED), len(data) - 2, len(data) - 1, len(data)]
    for cut in cuts:
        pieces = [piece for piece in (data[:cut], data[cut:]) if piece]
        server.answer(*PROCESSES, *_stream(*pieces))
        assert sandbox.commands.run("x").stdout == "hi"


def test_commands_share_a_connection(server: ScriptedServer, sandbox: Sandbox) -> None:
    for _ in range(3):
        server.answer(*PROCESSES, *_stream(exit_event(0)))
        sandbox.commands.run("x")
    assert server.connections == 1


def test_the_environment_of_the_claim_goes_with_each_command_and_the_calls_own_wins(
    server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    server.answer(*PROCESSES, *_stream(exit_event(0)))
    sandbox = sandboxes.claim("python", env={"A": "claim", "B": "claim"})
    sandbox.commands.run(["env"], env={"B": "call"}, cwd="sub", timeout=9)
    assert "env" not in str(server.requests[0].body)
    assert server.requests[1].json() == {
        "argv": ["env"],
        "timeout": 9,
        "cwd": "sub",
        "env": {"A": "claim", "B": "call"},
        "linger_seconds": 30,
    }


def test_a_timeout_is_a_timeout_error_with_the_output_so_far(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    end = exit_event(143, signal=15, reason="timeout", duration=1.0)
    server.answer(*PROCESSES, *_stream(output_event("stdout", b"half"), end))
    with pytest.raises(TimeoutError) as caught:
        sandbox.commands.run("sleep 9", timeout=1)
    assert isinstance(caught.value, CommandTimeout)
    assert caught.value.stdout == "half"


@pytest.mark.parametrize(
    "steps",
    [
        _stream(STARTED),
        [stream_head(), chunk(STARTED), Close()],
        [stream_head(), chunk(STARTED), Reset()],
        [stream_head(), chunk(STARTED)[:-3], Close()],
        [stream_head(), b"garbage\r\n", Close()],
        [stream_head(), chunk(b"event: exit\ndata: nothing\n\n"), chunk(b"")],
        [Close()],
        [Reset()],
        [b"HTTP/1.1 2", Close()],
        [b"garbage\r\n\r\n", Close()],
        [response(201, body=b'{"id":"p-1"}')],
    ],
)
def test_a_stream_that_ends_without_its_exit_is_unknown_and_never_sent_again(
    server: ScriptedServer, sandbox: Sandbox, steps: list[Step]
) -> None:
    server.answer(*PROCESSES, *steps)
    server.answer(*PROCESSES, *_stream(exit_event(0)))
    with pytest.raises(OutcomeUnknown) as caught:
        sandbox.commands.run("x")
    assert not caught.value.retry_safe
    assert len(server.received(*PROCESSES)) == 1


def test_a_connection_that_breaks_after_the_exit_does_not_matter(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    server.answer(*PROCESSES, stream_head(), chunk(exit_event(5)), Close())
    assert sandbox.commands.run("x").exit_code == 5


def test_a_refusal_of_the_gateway_is_typed_and_never_sent_again(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    server.answer(
        *PROCESSES, gateway_error(502, "upstream_closed", reached="unknown", retry_safe=False)
    )
    with pytest.raises(UpstreamClosed) as caught:
        sandbox.commands.run("x")
    assert isinstance(caught.value, OutcomeUnknown)
    assert len(server.received(*PROCESSES)) == 1


def test_a_refusal_of_the_runtime_is_not_taken_for_the_gateways(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    body = {"code": "INVALID_ARGUMENT", "reason": "invalid_cwd", "message": "no such folder"}
    server.answer(*PROCESSES, json_response(body, status=422))
    with pytest.raises(InvalidRequest, match="no such folder"):
        sandbox.commands.run("x", cwd="nowhere")
    server.answer(*PROCESSES, json_response({"message": "Not Found"}, status=404))
    with pytest.raises(SandboxRefused):
        sandbox.commands.run("x")


def test_a_watcher_that_raises_ends_the_command(server: ScriptedServer, sandbox: Sandbox) -> None:
    left = threading.Event()
    server.answer(
        *PROCESSES, stream_head(), chunk(output_event("stdout", b"x")), AwaitDisconnect(left)
    )

    def watch(text: str) -> None:
        raise RuntimeError(text)

    with pytest.raises(RuntimeError, match="x"):
        sandbox.commands.run("x", on_stdout=watch)
    assert left.wait(PATIENCE)


def test_closing_a_stream_early_ends_the_command(server: ScriptedServer, sandbox: Sandbox) -> None:
    left = threading.Event()
    server.answer(*PROCESSES, stream_head(), chunk(STARTED), AwaitDisconnect(left))
    events = sandbox.commands.stream("x")
    assert next(events) == Started("p-1", 7)
    events.close()
    assert left.wait(PATIENCE)


def test_a_stream_tells_a_timeout_by_its_exit(server: ScriptedServer, sandbox: Sandbox) -> None:
    server.answer(*PROCESSES, *_stream(exit_event(143, signal=15, reason="timeout")))
    assert list(sandbox.commands.stream("x")) == [Exit(143, 15, "timeout", 0.25, truncated=False)]


def test_commands_of_many_threads_run_at_once(server: ScriptedServer, sandbox: Sandbox) -> None:
    # No command ends before all have started: one after another, they would never end.
    all_run = threading.Event()
    barrier = threading.Barrier(12, action=all_run.set)
    results: list[int] = []

    def work() -> None:
        for step in sandbox.commands.stream(["work"]):
            if isinstance(step, Started):
                barrier.wait(PATIENCE)
            elif isinstance(step, Exit):
                results.append(step.exit_code)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        server.answer(
            *PROCESSES,
            stream_head(),
            chunk(STARTED),
            Wait(all_run),
            chunk(exit_event(0)),
            chunk(b""),
        )
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert results == [0] * 12


def test_a_gateway_that_is_not_there_is_no_unknown_outcome(dead_url: str) -> None:
    with (
        Sandboxes(Gateway(dead_url)) as sandboxes,
        pytest.raises(GatewayUnreachable, match="cannot reach the gateway") as caught,
    ):
        sandboxes.attach("sb-1").commands.run("x")
    assert caught.value.reached == "no"
    assert caught.value.retry_safe


PROCESS = {"id": "p-1", "pid": 7, "state": "running", "command": "x"}
FOUND = ("GET", "/v1/processes/p-1")
EVENTS = ("GET", "/v1/processes/p-1/events")


@pytest.fixture
def watched(server: ScriptedServer) -> None:
    """Script a process whose events come in one piece, and those behind its first output."""
    server.answer(*FOUND, json_response(PROCESS))
    rest = b"id: 3\n" + output_event("stdout", b"b") + b"id: 4\n" + exit_event(7)
    first = b"id: 1\n" + STARTED + b"id: 2\n" + output_event("stdout", b"a")
    server.answer(*EVENTS, *_stream(first + rest))
    server.answer(*EVENTS, *_stream(rest))


@pytest.mark.usefixtures("watched")
def test_who_stops_within_a_piece_of_events_goes_on_behind_the_one_that_was_yielded(
    server: ScriptedServer, sandbox: Sandbox
) -> None:
    process = sandbox.commands.attach("p-1")
    for told in process.events():
        if isinstance(told, Output):
            break
    result = process.wait()
    assert (result.stdout, result.exit_code) == ("b", 7)
    assert [one.value("last-event-id") for one in server.received(*EVENTS)] == [None, "2"]


@pytest.mark.usefixtures("watched")
async def test_a_task_that_stops_within_a_piece_of_events_goes_on_behind_that_one_too(
    server: ScriptedServer, claim: dict[str, object]
) -> None:
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    async with AsyncSandboxes(Gateway(server.url)) as sandboxes:
        process = await (await sandboxes.claim("python")).commands.attach("p-1")
        async for told in process.events():
            if isinstance(told, Output):
                break
        result = await process.wait()
    assert (result.stdout, result.exit_code) == ("b", 7)
    assert [one.value("last-event-id") for one in server.received(*EVENTS)] == [None, "2"]
