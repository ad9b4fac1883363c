"""Renews leases and tokens in the background: one task for all sandboxes of a handle.

Leases are held weakly. So a sandbox that the program has forgotten is not kept alive, and its
lease ends it.
"""

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from sandgate._wire.lease import Lease, find_due

if TYPE_CHECKING:
    from sandgate._async_transport import AsyncTransport


class AsyncRenewing:
    """The task, once there is something to renew."""

    def __init__(self, transport: "AsyncTransport") -> None:
        self._transport = transport
        self._leases: WeakSet[Lease] = WeakSet()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, lease: Lease) -> None:
        """Keep a lease alive from now on."""
        self._leases.add(lease)
        if lease.renew_at is None or self._closed:
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._changed.set()

    async def stop(self) -> None:
        """Stop renewing."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            lease, wait = find_due(self._leases, now=time.monotonic())
            if lease is not None:
                await self._transport.perform(lease.background_renewal())
                del lease  # else it would be held until the next one is due
                continue
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()
