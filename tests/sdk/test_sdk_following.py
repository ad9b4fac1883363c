"""What a command's event stream makes of losses, without a socket: bytes, errors and a clock."""

import pytest
from support.scripted_server import event, exit_event, output_event

from sandgate._wire.claims import Grant
from sandgate._wire.control import Control
from sandgate._wire.feed import EventFeed
from sandgate._wire.flow import Pause
from sandgate._wire.following import LATE_SECONDS, Following
from sandgate._wire.lease import Access, Lease
from sandgate._wire.message import Call, Request, nothing
from sandgate._wire.processes import LINGER_SECONDS, parse_spec
from sandgate.errors import (
    EventsGone,
    Forbidden,
    GatewayUnreachable,
    OutcomeUnknown,
    ProcessNotFound,
    SandboxNotFound,
    SandboxRefused,
    SandgateError,
    Unauthenticated,
    Unavailable,
    UnexpectedAnswer,
    UpstreamClosed,
)
from sandgate.types import Claim, CommandEvent, Exit, Output

LOST = GatewayUnreachable("gone", reached="unknown")
STARTED = b"id: 1\n" + event("started", {"id": "p-1", "pid": 7})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def following(clock: Clock) -> Following:
    claim = Claim("c-1", "default", "sb-1", 8888, "none", token="t")
    lease = Lease(Access(Control()), Grant(claim, None), clock=clock)
    return Following(lease, clock=clock, spec=parse_spec("x", timeout=5, env={}), key="k")


def opened(following: Following) -> tuple[str, str, str | None]:
    """Return method, target and Last-Event-ID of the request that opens the stream now."""
    request = following.open().request
    fields = dict(request.fields)
    return request.method, request.target, fields.get("last-event-id")


def recover(following: Following, error: SandgateError) -> float:
    """Return the pause before the next try; raise what the loss means."""
    (step,) = following.recover(error)
    assert isinstance(step, Pause)
    return step.seconds


def output(number: int, data: bytes) -> bytes:
    return f"id: {number}\n".encode() + output_event("stdout", data)


def test_it_is_sent_once_and_then_only_its_events_are_asked_for(following: Following) -> None:
    assert opened(following) == ("POST", "/v1/processes", None)
    following.receive(STARTED + output(2, b"a"))
    recover(following, LOST)
    assert opened(following) == ("GET", "/v1/processes/p-1/events", "2")
    # What comes twice is told once.
    told = following.receive(output(2, b"a") + output(3, b"b"))
    assert told == [Output("stdout", b"b")]
    recover(following, LOST)
    assert opened(following) == ("GET", "/v1/processes/p-1/events", "3")


def test_an_event_that_was_cut_off_is_read_anew(following: Following) -> None:
    following.open()
    following.receive(STARTED + output(2, b"whole")[:-3])
    recover(following, LOST)
    assert opened(following)[2] == "1"
    assert following.receive(output(2, b"whole")) == [Output("stdout", b"whole")]


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        GatewayUnreachable("refused", reached="no"),
        Unavailable("draining", reached="no"),
        UpstreamClosed("gone", reached="unknown"),
        UnexpectedAnswer("a balancer's page", status=502),
    ],
)
def test_what_may_be_over_soon_is_waited_for_as_long_as_the_command_lingers(
    following: Following, clock: Clock, error: SandgateError
) -> None:
    following.open()
    following.receive(STARTED)
    assert [recover(following, error) for _ in range(6)] == [0.05, 0.1, 0.2, 0.5, 1.0, 1.0]
    clock.now = LINGER_SECONDS + 0.1
    with pytest.raises(OutcomeUnknown, match="may have run") as caught:
        recover(following, error)
    assert caught.value.__cause__ is error
    assert (caught.value.reached, caught.value.retry_safe) == ("yes", False)


def test_each_byte_begins_the_patience_anew(following: Following, clock: Clock) -> None:
    following.open()
    following.receive(STARTED)
    clock.now = LINGER_SECONDS - 1
    following.open()
    following.receive(b": ping\n\n")
    clock.now = 2 * LINGER_SECONDS - 2
    assert recover(following, LOST) == 0.05


@pytest.mark.parametrize(
    "error",
    [
        ProcessNotFound("forgotten"),
        SandboxNotFound("released"),
        Forbidden("not yours any more"),
        UnexpectedAnswer("a stranger", status=404),
    ],
)
def test_what_will_not_come_back_is_an_unknown_outcome_at_once(
    following: Following, error: SandgateError
) -> None:
    following.open()
    following.receive(STARTED)
    with pytest.raises(OutcomeUnknown) as caught:
        recover(following, error)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("reached", ["unknown", "yes"])
def test_a_loss_before_the_first_event_is_an_unknown_outcome(
    following: Following, reached: str
) -> None:
    following.open()
    with pytest.raises(OutcomeUnknown):
        recover(following, GatewayUnreachable("gone", reached=reached))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        GatewayUnreachable("refused", reached="no"),
        SandboxRefused("no such folder", reached="yes"),
        UpstreamClosed("gone", reached="unknown"),
        Unavailable("draining", reached="no"),
    ],
)
def test_a_refusal_of_the_command_is_told_as_it_is_and_never_sent_again(
    following: Following, error: SandgateError
) -> None:
    following.open()
    with pytest.raises(type(error)) as caught:
        recover(following, error)
    assert caught.value is error


def test_a_stream_without_ids_cannot_go_on_and_is_unknown(following: Following) -> None:
    following.open()
    following.receive(event("started", {"id": "p-1", "pid": 7}))
    with pytest.raises(OutcomeUnknown):
        recover(following, LOST)


def test_a_stream_that_ends_before_the_exit_is_a_loss(following: Following) -> None:
    following.open()
    following.receive(STARTED)
    with pytest.raises(GatewayUnreachable) as caught:
        following.end()
    assert recover(following, caught.value) == 0.05


def test_whatever_happens_after_the_exit_does_not_matter(following: Following) -> None:
    following.open()
    following.receive(STARTED + b"id: 2\n" + exit_event(3))
    following.end()
    assert list(following.recover(LOST)) == []
    assert list(following.abandon()) == []
    assert following.finished


def test_events_that_were_dropped_make_the_output_truncated(following: Following) -> None:
    following.open()
    following.receive(STARTED)
    gone = EventsGone("gone")
    gone.first_id = 40
    assert list(following.recover(gone)) == []
    assert opened(following)[2] == "39"
    told: list[CommandEvent] = following.receive(b"id: 40\n" + exit_event(0))
    assert told == [Exit(0, None, "exited", 0.25, truncated=True)]


def test_a_sandbox_that_says_gone_without_end_is_not_asked_without_end(
    following: Following,
) -> None:
    following.open()
    following.receive(STARTED)
    with pytest.raises(OutcomeUnknown):
        recover(following, EventsGone("gone"))


def test_one_401_is_answered_by_a_renewal_and_a_second_one_is_final(following: Following) -> None:
    following.open()
    (step,) = _until_grant(following)
    assert isinstance(step, Call)
    assert step.request.target == "/v1/claims/default/c-1/renew"
    with pytest.raises(Unauthenticated):
        recover(following, Unauthenticated("again"))


def test_a_command_that_does_not_end_after_its_timeout_is_unknown_and_killed(
    following: Following, clock: Clock
) -> None:
    following.open()
    following.receive(STARTED)
    clock.now = 5 + LATE_SECONDS + 1
    with pytest.raises(OutcomeUnknown, match="did not end in time") as caught:
        following.receive(b": ping\n\n")
    with pytest.raises(OutcomeUnknown) as final:
        recover(following, caught.value)
    assert final.value is caught.value
    (kill,) = following.abandon()
    assert isinstance(kill, Call)
    assert (kill.request.method, kill.request.target) == ("DELETE", "/v1/processes/p-1")


def test_events_of_the_gateway_go_on_behind_the_last_id(clock: Clock) -> None:
    opened_behind: list[str | None] = []

    def open_behind(last: str | None) -> Call[None]:
        opened_behind.append(last)
        return Call(Request("GET", "/", []), nothing)

    feed: EventFeed[str] = EventFeed(
        open_behind, lambda event: event.data, patience=10, clock=clock
    )
    feed.open()
    assert feed.receive(b": from now on\nid: 7\n\n") == []
    feed.open()
    assert feed.receive(b"id: 8\ndata: x\n\n") == ["x"]
    feed.open()
    assert opened_behind == [None, "7", "8"]
    with pytest.raises(GatewayUnreachable) as caught:
        feed.end()
    assert [*feed.recover(caught.value)] == [Pause(0.05)]
    clock.now = 11
    with pytest.raises(GatewayUnreachable):
        list(feed.recover(caught.value))


def _until_grant(following: Following) -> list[object]:
    flow = following.recover(Unauthenticated("old"))
    step = next(flow)
    claim = Claim("c-1", "default", "sb-1", 8888, "none", token="new")
    with pytest.raises(StopIteration):
        flow.send(Grant(claim, None))
    return [step]


def test_a_stream_that_was_silent_for_as_long_as_one_may_be_is_opened_again(
    following: Following, clock: Clock
) -> None:
    gap = following.open().request.gap
    assert LINGER_SECONDS < gap <= 40
    following.receive(STARTED)
    clock.now = 1000.0  # quiet, and then lost
    assert recover(following, LOST) == 0.05
    clock.now += LINGER_SECONDS
    assert recover(following, LOST) == 0.1
    clock.now += 0.1
    with pytest.raises(OutcomeUnknown):
        recover(following, LOST)
