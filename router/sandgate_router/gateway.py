"""What all client connections of a gateway share: who may call, what is counted, who must go."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandgate_router.access_log import AccessLog
from sandgate_router.authorize import Authorizer
from sandgate_router.errors import (
    BadUpstreamResponse,
    ConnectionLimit,
    ConnectionRefused,
    ConnectionTimeout,
    DnsError,
    GatewayError,
    UpstreamClosed,
    UpstreamTimeout,
)
from sandgate_router.limits import IdleQueue
from sandgate_router.metrics import Reason, RequestMetrics
from sandgate_router.relay import Relay

if TYPE_CHECKING:
    from sandgate_router.client import ClientConnection

_REASONS: dict[type[GatewayError], Reason] = {
    BadUpstreamResponse: "other",
    ConnectionRefused: "dial",
    ConnectionTimeout: "timeout",
    DnsError: "dial",
    UpstreamClosed: "eof",
    UpstreamTimeout: "timeout",
}


@dataclass(slots=True)
class Gateway:
    """What all client connections share."""

    relay: Relay
    authorizer: Authorizer
    loopback_only: bool
    """Whether the relay asks no credential and serves this machine alone."""
    metrics: RequestMetrics
    access_log: AccessLog
    clock: Callable[[], float]
    max_connections: int
    """Client connections above which idle ones go, and newcomers where none is idle."""
    draining: bool = False
    connections: set["ClientConnection"] = field(default_factory=set)
    idle: IdleQueue["ClientConnection"] = field(default_factory=IdleQueue)

    def sweep(self) -> None:
        """End connections and exchanges that have waited too long."""
        now = self.clock()
        for connection in list(self.connections):
            if connection.deadline < now:
                connection.expire()
        self.relay.sweep()

    def make_room(self) -> None:
        """Take leave of the longest idle connection; raise ConnectionLimit when all are busy."""
        oldest = self.idle.take_oldest()
        if oldest is None:
            raise ConnectionLimit
        oldest.evict()

    def count_error(self, namespace: str, error: GatewayError) -> None:
        """Count a failure on the sandbox's side; refusals of the client's request are none."""
        for kind in type(error).__mro__:
            if kind in _REASONS:
                self.metrics.count_upstream_error(namespace, _REASONS[kind])
                return
