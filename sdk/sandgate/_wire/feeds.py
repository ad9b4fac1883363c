"""The event streams that are no commands: changes of files, and what happens at the gateway."""

import time
from collections.abc import Callable

from sandgate._wire.claims import parse_gateway_event
from sandgate._wire.control import Control
from sandgate._wire.event_stream import Event
from sandgate._wire.feed import EventFeed
from sandgate._wire.files import FileCalls, parse_change
from sandgate._wire.flow import Flow
from sandgate._wire.lease import Lease
from sandgate._wire.message import Call
from sandgate.errors import SandgateError
from sandgate.types import FileChange, GatewayEvent

PATIENCE_SECONDS = 60.0
"""How long a stream is tried to be opened again: a gateway is started again in less."""


def gateway_events(
    control: Control, *, after: str | None = None, clock: Callable[[], float] = time.monotonic
) -> EventFeed[GatewayEvent]:
    """Follow claims and pools; a gateway that is started again is waited for."""
    return EventFeed(
        lambda last: control.events(after=last or after),
        parse_gateway_event,
        patience=PATIENCE_SECONDS,
        clock=clock,
    )


def file_changes(
    lease: Lease, path: str, *, recursive: bool, clock: Callable[[], float] = time.monotonic
) -> EventFeed[FileChange]:
    """Follow a directory until it is gone; what a lost connection missed is an overflow."""
    watch = _Watch(lease, path, recursive=recursive)
    return EventFeed(
        watch.open,
        watch.parse,
        patience=PATIENCE_SECONDS,
        clock=clock,
        finite=True,
        after_401=watch.after_401,
    )


class _Watch:
    def __init__(self, lease: Lease, path: str, *, recursive: bool) -> None:
        self._lease = lease
        self._path = path
        self._recursive = recursive
        self._token: str | None = None
        self._was_ready = False

    def open(self, _last: str | None) -> Call[None]:
        route = self._lease.route()
        self._token = route.token
        return FileCalls(route).watch(self._path, recursive=self._recursive)

    def parse(self, event: Event) -> FileChange | None:
        if event.type != "ready":
            return parse_change(event)
        missed, self._was_ready = self._was_ready, True
        return FileChange("overflow", "") if missed else None

    def after_401(self, error: SandgateError) -> Flow[None]:
        yield from self._lease.after_401(error, self._token)
