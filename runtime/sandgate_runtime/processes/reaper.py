"""Collect the exit status of every child: of commands for their watchers, of orphans for nobody.

The runtime is the parent of all processes here that lost theirs, so it must wait for any child.
Whoever waits for any child takes the status of all of them; hence this is the only place in the
runtime that waits. A process id stays taken until its status is collected, so the id of a
command whose end was not yet told here can be signalled without fear of hitting another process.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType


class Reaper:
    """Waits for children whenever the kernel says that one has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._expected: dict[int, Callable[[int], None]] = {}

    def start(self) -> None:
        """Listen to SIGCHLD; from here on nothing else may wait for children.

        Not by `loop.add_signal_handler`, which uvloop keeps to itself for this signal.
        """
        signal.signal(signal.SIGCHLD, self._on_signal)
        self.reap()

    def expect(self, pid: int, on_exit: Callable[[int], None]) -> None:
        """Have `on_exit` called with 0..255, or with -n after a death by signal n.

        Must be called before control goes back to the event loop after the spawn.
        """
        self._expected[pid] = on_exit

    def reap(self) -> None:
        """Collect every status that is ready."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            on_exit = self._expected.pop(pid, None)
            if on_exit is not None:
                on_exit(os.waitstatus_to_exitcode(status))

    def stop(self) -> None:
        """Listen no more."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        # A signal handler may run between any two instructions: only leave a note for the loop.
        self._loop.call_soon_threadsafe(self.reap)
