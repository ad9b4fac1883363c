"""Tells those who listen what happened: which endpoints are gone, and the events.

A listener that raises is logged and changes nothing else: the table must never stay half
changed because of someone who only wants to know.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from sandgate_router.registry.base import Claim, Endpoint, Event, EventKind, PoolStatus
from sandgate_router.registry.local.pool import Pool

POOL_EVENT_SECONDS = 0.1
"""A pool's changes within this time are one event: 300 claims a second are not 900 events."""

Said = TypeVar("Said", Endpoint, Event)

log = logging.getLogger(__name__)


class Announcer:
    """The listeners of one registry."""

    def __init__(self) -> None:
        self._gone: list[Callable[[Endpoint], None]] = []
        self._listeners: list[Callable[[Event], None]] = []
        self._changed: dict[Pool, asyncio.TimerHandle] = {}
        self._last: dict[Pool, PoolStatus] = {}

    def on_gone(self, listener: Callable[[Endpoint], None]) -> None:
        """Have `listener` called for each endpoint that leaves the table."""
        self._gone.append(listener)

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Have `listener` called for each event."""
        self._listeners.append(listener)

    def gone(self, endpoint: Endpoint) -> None:
        """Say that an endpoint has left the table."""
        _tell(self._gone, endpoint)

    def claim(self, kind: EventKind, claim: Claim, *, reason: str | None = None) -> None:
        """Say what happened to a claim."""
        # A copy: listeners keep events, and the claim goes on changing.
        now = datetime.now(UTC)
        _tell(
            self._listeners,
            Event(kind, now, claim.namespace, claim.pool, claim=replace(claim), reason=reason),
        )

    def pool_changed(self, pool: Pool) -> None:
        """Say soon how a pool stands, unless it then stands as it was last said to."""
        if self._listeners and not pool.removed and pool not in self._changed:
            self._changed[pool] = asyncio.get_running_loop().call_later(
                POOL_EVENT_SECONDS, self._emit_pool, pool
            )

    def forget(self, pool: Pool) -> None:
        """Say a last time how a pool stands that will be no more."""
        self._emit_pool(pool)
        self._last.pop(pool, None)

    def close(self) -> None:
        """Say nothing of pools any more."""
        for timer in self._changed.values():
            timer.cancel()
        self._changed.clear()

    def _emit_pool(self, pool: Pool) -> None:
        if (timer := self._changed.pop(pool, None)) is not None:
            timer.cancel()
        status = pool.status()
        if status != self._last.get(pool):
            self._last[pool] = status
            now = datetime.now(UTC)
            event = Event("pool.changed", now, status.namespace, status.name, status=status)
            _tell(self._listeners, event)


def _tell(listeners: list[Callable[[Said], None]], said: Said) -> None:
    for listener in listeners:
        try:
            listener(said)
        except Exception:
            log.exception("registry.listener_failed")
