"""Renews leases and tokens in the background: one thread for all sandboxes of a handle.

Leases are held weakly. So a sandbox that the program has forgotten is not kept alive, and its
lease ends it.
"""

import threading
import time
from typing import TYPE_CHECKING
from weakref import WeakSet

from sandgate._wire.lease import Lease, find_due

if TYPE_CHECKING:
    from sandgate._transport import Transport

STOP_SECONDS = 5.0
"""A gateway that does not answer must not keep a program from ending."""


class Renewing:
    """The thread, once there is something to renew."""

    def __init__(self, transport: "Transport") -> None:
        self._transport = transport
        self._leases: WeakSet[Lease] = WeakSet()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, lease: Lease) -> None:
        """Keep a lease alive from now on."""
        with self._changed:
            self._leases.add(lease)
            if lease.renew_at is None or self._closed:
                return
            if self._thread is None:
                # A daemon: a program that forgets to close must be able to end.
                self._thread = threading.Thread(target=self._run, name="sandgate", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Stop renewing; a renewal under way is waited for, but not for long."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                lease, wait = find_due(self._leases, now=time.monotonic())
                if lease is None:
                    self._changed.wait(wait)
                    continue
            self._transport.perform(lease.background_renewal())
            del lease  # else it would be held until the next one is due
