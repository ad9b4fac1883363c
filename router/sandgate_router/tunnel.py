"""An upgraded connection: bytes both ways until one side ends.

What it keeps true:

* Nothing is re-framed or checked: subprotocols, extensions, pings and close codes are end to
  end. Only a close frame of our own is placed, between two frames.
* Each side pauses the other; the end of one side is passed on, and the other has 30 s.
* A tunnel ends by silence, by age, with its claim and with the gateway, each time with 1001
  on both sides.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sandgate_router.errors import GatewayError, TooManyRequests, UpstreamClosed
from sandgate_router.frames import GOING_AWAY, FrameFollower, build_close
from sandgate_router.upstream import UpstreamConnection

HALF_CLOSED_SECONDS = 30.0
"""How long one side may go on after the other has ended its own."""


class TunnelClient(Protocol):
    """The client's side of a tunnel."""

    @property
    def full(self) -> bool:
        """Whether the client reads too slowly for more."""

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""

    def end(self) -> None:
        """Send the end of the sandbox's side, and take bytes on."""

    def pause_content(self) -> None:
        """Stop taking bytes of the client."""

    def resume_content(self) -> None:
        """Take bytes of the client again."""

    def hold(self, data: bytes) -> None:
        """Hand `data` over once more at the next turn of the loop, and read none before."""

    def close(self, *, status: int) -> None:
        """Close after what has been sent, and count the exchange."""

    def abort(self, error: GatewayError) -> None:
        """Close at once."""


@dataclass(slots=True)
class Tunnels:
    """What all tunnels share: their limits, and how many each client has."""

    clock: Callable[[], float]
    idle: float
    """Longest silence in seconds, in both directions together; 0 has no limit."""
    lifetime: float
    """Longest life in seconds; 0 has no limit."""
    per_client: int
    """Tunnels of one client address at once; 0 has no limit."""
    live: set["Tunnel"] = field(default_factory=set)
    counts: dict[bytes, int] = field(default_factory=dict)

    def reserve(self, client: bytes) -> None:
        """Count one more of a client; raise TooManyRequests above its limit."""
        count = self.counts.get(client, 0)
        if self.per_client and count >= self.per_client:
            raise TooManyRequests(
                f"Too many concurrent WebSocket connections (limit: {self.per_client}).",
                retry_after=1,
            )
        self.counts[client] = count + 1

    def free(self, client: bytes) -> None:
        """Count one less."""
        count = self.counts[client] - 1
        if count:
            self.counts[client] = count
        else:
            del self.counts[client]

    def sweep(self) -> None:
        """End the tunnels that are silent or old."""
        now = self.clock()
        for tunnel in list(self.live):
            if tunnel.deadline < now:
                tunnel.going_away("idle timeout exceeded")
            elif tunnel.end_of_life < now:
                tunnel.going_away("max lifetime exceeded")

    def close(self) -> None:
        """End all, since the gateway stops."""
        for tunnel in list(self.live):
            tunnel.going_away("the gateway is shutting down")


class Tunnel:
    """One client and one sandbox, joined."""

    __slots__ = (
        "_client",
        "_client_ended",
        "_connection",
        "_ended",
        "_from_client",
        "_from_sandbox",
        "_sandbox_ended",
        "_tunnels",
        "deadline",
        "end_of_life",
    )

    def __init__(
        self,
        tunnels: Tunnels,
        client: TunnelClient,
        connection: UpstreamConnection,
        *,
        ended: Callable[[], None],
    ) -> None:
        """Join the two; `ended` is called once, when the tunnel counts no more."""
        now = tunnels.clock()
        self._tunnels = tunnels
        self._client = client
        self._connection = connection
        self._from_client = FrameFollower()
        self._from_sandbox = FrameFollower()
        self._client_ended = False
        self._sandbox_ended = False
        self._ended = ended
        self.deadline = float("inf")
        self.end_of_life = now + tunnels.lifetime if tunnels.lifetime else float("inf")
        self._touch()
        tunnels.live.add(self)
        connection.handler = self
        if client.full:
            connection.pause_reading()

    def __repr__(self) -> str:
        return f"<Tunnel {self._connection!r}>"

    @property
    def answering(self) -> bool:
        """Whether the head of the response is out: it is."""
        return True

    # The client's side.

    def client_data(self, data: bytes) -> None:
        """Pass bytes of the client on."""
        self._touch()
        passing = self._from_client.feed(data)
        self._connection.write(data[:passing])
        if passing < len(data):
            self._client.hold(data[passing:])

    def client_ended(self) -> None:
        """Pass the end of the client's side on."""
        self._client_ended = True
        self._end_half(self._connection.end)

    def client_gone(self) -> None:
        """Drop the sandbox's side with its client."""
        self._leave()
        self._connection.abort()

    def client_full(self) -> None:
        """Stop reading from the sandbox until the client has caught up."""
        self._connection.pause_reading()

    def client_writable(self) -> None:
        """Read from the sandbox again."""
        self._connection.resume_reading()

    # The sandbox's side.

    def response_data(self, data: bytes) -> None:
        """Pass bytes of the sandbox on."""
        self._touch()
        passing = self._from_sandbox.feed(data)
        self._client.send(data[:passing])
        if passing < len(data):
            self._connection.hold(data[passing:])

    def upstream_half_closed(self) -> bool:
        """Pass the end of the sandbox's side on, and keep the other open."""
        self._sandbox_ended = True
        self._end_half(self._client.end)
        return True

    def upstream_ended(self, *, clean: bool) -> None:
        """Let the client go with its sandbox."""
        self._leave()
        if clean or self._client_ended or self._sandbox_ended or self._from_sandbox.closed:
            self._client.close(status=101)
        else:
            self._client.abort(UpstreamClosed(reached="yes"))

    def endpoint_gone(self) -> None:
        """Say goodbye to both sides, since the claim has ended."""
        self.going_away("the sandbox was released")

    def upstream_full(self) -> None:
        """Stop reading the client until the sandbox has caught up."""
        self._client.pause_content()

    def upstream_writable(self) -> None:
        """Read the client again."""
        self._client.resume_content()

    # Its own end.

    def going_away(self, reason: str) -> None:
        """Close both sides with 1001, each where no frame of the other is cut."""
        self._leave()
        if not self._sandbox_ended and self._from_sandbox.may_close:
            self._client.send(build_close(GOING_AWAY, reason, masked=False))
        if not self._client_ended and self._from_client.may_close:
            self._connection.write(build_close(GOING_AWAY, reason, masked=True))
        self._connection.close()
        self._client.close(status=101)

    def _end_half(self, pass_on: Callable[[], None]) -> None:
        if self._client_ended and self._sandbox_ended:
            self._leave()
            self._connection.close()
            self._client.close(status=101)
            return
        self.deadline = self._tunnels.clock() + HALF_CLOSED_SECONDS
        self._client.resume_content()
        pass_on()

    def _leave(self) -> None:
        if self in self._tunnels.live:
            self._tunnels.live.discard(self)
            self._ended()

    def _touch(self) -> None:
        if self._tunnels.idle and not (self._client_ended or self._sandbox_ended):
            self.deadline = self._tunnels.clock() + self._tunnels.idle
