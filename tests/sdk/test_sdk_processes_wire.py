"""A command as a request, and its event stream as a result: bytes alone."""

import json

import pytest
from support.scripted_server import event, exit_event, output_event

from sandgate._wire.claims import Grant
from sandgate._wire.control import Control
from sandgate._wire.following import Following
from sandgate._wire.lease import Access, Lease
from sandgate._wire.output import CollectedOutput
from sandgate._wire.processes import Command, Processes, parse_spec
from sandgate._wire.route import Route
from sandgate.errors import CommandTimeout, OutcomeUnknown
from sandgate.types import Claim, CommandResult, Exit, Output, Started

ROUTE = Route("sb-1", "team", 8888, "sg1.secret")

FIELDS = [
    ("user-agent", "sandgate-python"),
    ("accept", "text/event-stream"),
    ("accept-encoding", "identity"),
    ("content-type", "application/json"),
    ("idempotency-key", "k"),
    ("x-sandbox-id", "sb-1"),
    ("x-sandbox-namespace", "team"),
    ("x-sandbox-port", "8888"),
    ("x-sandbox-token", "sg1.secret"),
]


def _body(command: Command, **options: object) -> object:
    spec = parse_spec(command, **{"env": {}, **options})  # type: ignore[arg-type]
    call = Processes(ROUTE).run(spec, key="k")
    assert isinstance(call.request.body, bytes)
    members = json.loads(call.request.body)
    assert members.pop("linger_seconds") == 30
    return members


def _following() -> Following:
    claim = Claim("c-1", "team", "sb-1", 8888, "none")
    lease = Lease(Access(Control()), Grant(claim, None), clock=lambda: 0.0)
    return Following(lease, clock=lambda: 0.0, spec=parse_spec("x", env={}), key="k")


def test_a_command_is_one_post_with_the_routing_fields_and_no_time_limit_of_the_relay() -> None:
    request = Processes(ROUTE).run(parse_spec("ls", timeout=5, env={}), key="k").request
    assert (request.method, request.target) == ("POST", "/v1/processes")
    assert request.fields == FIELDS
    assert request.body == b'{"shell": "ls", "timeout": 5, "linger_seconds": 30.0}'
    assert not request.idempotent


@pytest.mark.parametrize(
    ("command", "body"),
    [
        ("echo $HOME", {"shell": "echo $HOME"}),
        (["echo", "$HOME"], {"argv": ["echo", "$HOME"]}),
        (("true",), {"argv": ["true"]}),
        ("", {"shell": ""}),
    ],
)
def test_a_string_goes_to_the_shell_and_a_sequence_does_not(command: Command, body: object) -> None:
    assert _body(command) == body


def test_only_what_was_given_is_sent() -> None:
    assert _body("x", timeout=1.5, cwd="/tmp", env={"A": "1"}) == {
        "shell": "x",
        "timeout": 1.5,
        "cwd": "/tmp",
        "env": {"A": "1"},
    }


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_timeout_that_is_no_time_is_refused_at_once(timeout: float) -> None:
    with pytest.raises(ValueError, match="not a finite number of seconds above 0"):
        _body("x", timeout=timeout)


def test_an_empty_argument_vector_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no program"):
        _body([])


def test_bytes_and_numbers_are_no_command() -> None:
    with pytest.raises(TypeError, match="neither a string nor"):
        _body(b"ls")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="neither a string nor"):
        _body(["sleep", 1])  # type: ignore[list-item]


def test_a_stream_tells_start_output_and_exit_and_skips_what_it_does_not_know() -> None:
    data = (
        event("started", {"id": "p-1", "pid": 7})
        + b": ping\n\n"
        + output_event("stdout", b"\xff\x00")
        + event("resized", {"rows": 1})
        + output_event("stderr", b"oops")
        + exit_event(3)
    )
    stream = _following()
    assert stream.receive(data) == [
        Started("p-1", 7),
        Output("stdout", b"\xff\x00"),
        Output("stderr", b"oops"),
        Exit(exit_code=3, signal=None, reason="exited", duration=0.25, truncated=False),
    ]
    assert stream.finished
    stream.end()


def test_a_program_that_cannot_be_started_is_a_result_too() -> None:
    data = event("started", {"id": None, "pid": None}) + exit_event(127)
    started, exit_ = _following().receive(data)
    assert started == Started(None, None)
    assert isinstance(exit_, Exit)
    assert exit_.exit_code == 127


@pytest.mark.parametrize(
    ("members", "truncated"),
    [
        ({"truncated": {"stdout": 0, "stderr": 5}}, True),
        ({"truncated": {"stdout": 0, "stderr": 0}}, False),
        ({"truncated": True}, True),
        ({"truncated": None}, False),
    ],
)
def test_bytes_that_were_dropped_make_the_output_truncated(
    members: dict[str, object], truncated: bool
) -> None:
    (exit_,) = _following().receive(exit_event(0, **members))
    assert isinstance(exit_, Exit)
    assert exit_.truncated is truncated


def test_a_signal_without_an_exit_code_counts_as_shells_count_it() -> None:
    (exit_,) = _following().receive(event("exit", {"signal": 9, "reason": "killed"}))
    assert exit_ == Exit(137, signal=9, reason="killed", duration=0.0, truncated=False)


def test_what_follows_the_exit_is_not_part_of_the_command() -> None:
    stream = _following()
    assert len(stream.receive(exit_event(0) + output_event("stdout", b"x") + exit_event(1))) == 1


@pytest.mark.parametrize(
    "events",
    [
        b"event: exit\ndata: {\n\n",
        b"event: exit\ndata: []\n\n",
        event("exit", {}),
        event("exit", {"exit_code": "0"}),
        event("exit", {"exit_code": True}),
        event("exit", {"exit_code": 0, "reason": "bored"}),
        event("stdout", {"data": "%%%"}),
        event("stdout", {}),
        event("started", {"id": 1}),
    ],
)
def test_an_event_that_cannot_be_read_is_an_unknown_outcome_and_no_exit_code(
    events: bytes,
) -> None:
    with pytest.raises(OutcomeUnknown, match="cannot be read"):
        _following().receive(events)


def test_a_character_cut_between_two_events_arrives_whole() -> None:
    output = CollectedOutput()
    pieces = [output.add(Output("stdout", bytes([byte]))) for byte in "a€".encode()]
    assert pieces == ["a", "", "", "€"]
    assert output.rest("stdout") == ""


def test_the_two_streams_do_not_mix_inside_a_character() -> None:
    output = CollectedOutput()
    euro = "€".encode()
    output.add(Output("stdout", euro[:2]))
    assert output.add(Output("stderr", b"x")) == "x"
    assert output.add(Output("stdout", euro[2:])) == "€"


def test_a_character_that_is_never_finished_is_shown_as_a_replacement() -> None:
    output = CollectedOutput()
    assert output.add(Output("stderr", b"\xe2\x82")) == ""
    assert output.rest("stderr") == "\ufffd"


def test_a_result_has_text_and_the_exact_bytes() -> None:
    output = CollectedOutput()
    output.add(Output("stdout", b"\xff\xfeok"))
    result = output.result(Exit(0, None, "exited", 0.5, truncated=False))
    assert result == CommandResult(
        stdout="\ufffd\ufffdok",
        stderr="",
        exit_code=0,
        reason="exited",
        duration=0.5,
        stdout_bytes=b"\xff\xfeok",
    )


def test_a_timeout_is_an_error_that_carries_what_was_printed() -> None:
    output = CollectedOutput()
    output.add(Output("stdout", b"half"))
    output.add(Output("stderr", b"\xff"))
    with pytest.raises(TimeoutError, match=r"killed by its timeout after 2\.0 s") as caught:
        output.result(Exit(143, 15, "timeout", 2.0, truncated=False))
    error = caught.value
    assert isinstance(error, CommandTimeout)
    assert (error.stdout, error.stdout_bytes) == ("half", b"half")
    assert (error.stderr, error.stderr_bytes) == ("\ufffd", b"\xff")
    assert error.duration == 2.0
    assert error.reached == "yes"


def test_a_route_never_shows_its_token() -> None:
    assert "secret" not in repr(ROUTE)
