"""A real gateway with sandboxes on this machine, as a child process that ends with its block."""

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Literal

from sandgate.connections import Gateway

if TYPE_CHECKING:
    from sandgate import AsyncSandboxes, Sandboxes

Isolation = Literal["bubblewrap", "none"]

START_SECONDS = 60.0
"""How long the gateway may take until it listens, on a slow machine with a cold cache."""

STOP_SECONDS = 30.0
"""How long it may take to end its sandboxes and itself after SIGINT."""

COMMAND = (sys.executable, "-m", "sandgate.cli", "up", "--listen", "127.0.0.1:0")

READY_LINE = "listening on "

_OURS = ("SANDGATE_", "SANDBOX_", "ROUTER_AUTH_", "WEBSOCKET_")


class TestGatewayError(Exception):
    """The gateway did not do what a test needs; the message says what."""

    __test__ = False


class GatewayRefused(TestGatewayError):
    """The gateway ended before it listened; the message is what it printed."""


class RunningGateway:
    """`sandgate up` on a free port."""

    def __init__(
        self,
        *arguments: str,
        isolation: Isolation | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start it and wait until it listens; None leaves the isolation to the gateway.

        The settings of this process's environment are left out; `environ` adds some.
        """
        chosen = [] if isolation is None else ["--isolation", isolation]
        # To a file: what it prints is shown if it refuses to start, and a pipe could fill up.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [*COMMAND, *chosen, *arguments],
            env={**_plain_environment(), **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.url: str = self._await_url()
        except BaseException:
            with suppress(TestGatewayError):  # why it did not start matters more
                self.stop()
            raise

    @property
    def pid(self) -> int:
        """The gateway's process."""
        return self._process.pid

    def sandboxes(self) -> "Sandboxes":
        """Return a handle on it."""
        from sandgate import Sandboxes

        return Sandboxes(Gateway(self.url))

    def async_sandboxes(self) -> "AsyncSandboxes":
        """Return a handle on it for asyncio."""
        from sandgate import AsyncSandboxes

        return AsyncSandboxes(Gateway(self.url))

    def stop(self) -> None:
        """End the gateway and its sandboxes; raise TestGatewayError where it has to be killed."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            # Its sandboxes are bound to its life, and end with it.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            raise TestGatewayError(f"the gateway did not stop within {STOP_SECONDS:g} s") from error
        finally:
            self._reader.join(STOP_SECONDS)
            self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.decode(errors="replace").rstrip())
        self._lines.put(None)

    def _await_url(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise GatewayRefused(f"it does not listen after {START_SECONDS:g} s") from None
            if line is None:
                self._process.wait()
                self._errors.seek(0)
                raise GatewayRefused(self._errors.read().decode(errors="replace").strip())
            if line.startswith(READY_LINE):
                return line.removeprefix(READY_LINE).split()[0]


@contextmanager
def running_gateway(
    *arguments: str,
    isolation: Isolation | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[RunningGateway]:
    """Run `sandgate up` on a free port for a block, with more of its arguments if given.

    Without `isolation` its sandboxes are isolated where bubblewrap works, and else are not: a
    test that runs code it does not trust asks for "bubblewrap", and fails where it is missing.
    Needs the extra `gateway`.
    """
    gateway = _start(*arguments, isolation=isolation, environ=environ)
    try:
        yield gateway
    finally:
        gateway.stop()


def _start(
    *arguments: str, isolation: Isolation | None, environ: Mapping[str, str] | None
) -> RunningGateway:
    if isolation is None and shutil.which("bwrap") is None:
        isolation = "none"
    try:
        return RunningGateway(*arguments, isolation=isolation, environ=environ)
    except GatewayRefused:
        if isolation is not None:
            raise
    return RunningGateway(*arguments, isolation="none", environ=environ)


def _plain_environment() -> dict[str, str]:
    """Return the environment without settings of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
