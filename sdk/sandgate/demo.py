"""`python -m sandgate.demo`: a gateway and one sandbox, from the start to nothing left.

The gateway is a child process in a session of its own; all else goes to it over HTTP, as any
client would. Each step is printed with its time. Whatever happens, the child is stopped before
this process ends.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from sandgate import Gateway, Sandbox, Sandboxes, SandboxNotFound, SandgateError

START_SECONDS = 60.0
"""How long the gateway may take until it listens, on a slow machine with a cold cache."""

STOP_SECONDS = 30.0
"""How long it may take to end its sandboxes and itself after SIGINT."""

READY_LINE = "listening on "

NO_BUBBLEWRAP = (
    "bubblewrap is not installed, so the sandbox is not isolated from this machine; "
    "to isolate it, run: sudo apt-get install bubblewrap"
)

NOT_ISOLATED = "isolation none: nothing keeps the code in this sandbox from this machine"

PROGRAM = """\
import json, platform, time

for number in range(1, 5):
    print(f"line {number} of 4", flush=True)
    time.sleep(0.25)
with open("result.json", "w") as file:
    json.dump({"sum": sum(range(101)), "python": platform.python_version()}, file)
"""


class DemoFailed(Exception):
    """A step did not do what it shows; the message is for the reader of the demo."""


class GatewayRefused(DemoFailed):
    """The gateway ended before it listened; the message is what it printed."""


def main() -> int:
    """Run the demo and return its exit code."""
    # SystemExit, so that a demo that is told to end stops its gateway, too.
    signal.signal(signal.SIGTERM, _end)
    try:
        with _step("started the gateway"):
            gateway = _start()
        try:
            _use(gateway.url)
        finally:
            with _step("stopped the gateway and what it had started"):
                gateway.stop()
    except (DemoFailed, SandgateError) as error:
        _say(f"demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    _say("done")
    return 0


def _end(*_signal: object) -> None:
    sys.exit(128 + signal.SIGTERM)


class GatewayProcess:
    """`sandgate up` on a free port, as a child process."""

    def __init__(self, *, isolation: str | None) -> None:
        chosen = [] if isolation is None else ["--isolation", isolation]
        # To a file: what it prints is shown if it refuses to start, and a pipe could fill up.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sandgate.cli", "up", "--listen", "127.0.0.1:0", *chosen],
            env=_plain_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.url = self._await_url()
        except BaseException:
            with suppress(DemoFailed):  # why it did not start matters more
                self.stop()
            raise

    def stop(self) -> None:
        """End the gateway; raise DemoFailed where it has to be killed."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            # Its sandboxes are bound to its life, and end with it.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            raise DemoFailed(f"the gateway did not stop within {STOP_SECONDS:g} s") from error
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


def _start() -> GatewayProcess:
    if shutil.which("bwrap") is None:
        _say(NO_BUBBLEWRAP)
        return GatewayProcess(isolation="none")
    try:
        return GatewayProcess(isolation=None)
    except GatewayRefused as error:
        _say(f"the gateway refuses to start with isolation:\n{error}\ngoing on without it")
        return GatewayProcess(isolation="none")


def _use(url: str) -> None:
    with Sandboxes(Gateway(url)) as sandboxes:
        with _step("claimed a sandbox"):
            sandbox = sandboxes.claim("python")
        _say(f"           {sandbox!r}")
        if sandbox.isolation == "none":
            _say(f"           {NOT_ISOLATED}")
        with sandbox:
            _work(sandbox)
            with _step("released the sandbox"):
                sandbox.release()
        with _step("asked the released sandbox again: 404, it is gone"):
            _expect_gone(sandbox)


def _work(sandbox: Sandbox) -> None:
    with _step("wrote run.py"):
        sandbox.files.write("run.py", PROGRAM)
    with _step("ran it, its output live"):
        result = sandbox.commands.run("python3 run.py", timeout=60, on_stdout=_indent)
    if result.exit_code != 0:
        raise DemoFailed(f"run.py exited with {result.exit_code}: {result.stderr}")
    with _step("read result.json back"):
        content = sandbox.files.read("result.json")
    _say(f"           {json.loads(content)}")
    with _step("listed the folder"):
        names = [entry.name for entry in sandbox.files.list()]
    _say(f"           {', '.join(names)}")


def _expect_gone(sandbox: Sandbox) -> None:
    try:
        sandbox.files.exists("run.py")
    except SandboxNotFound as error:
        if error.status == 404:
            return
        raise
    raise DemoFailed("the released sandbox still answers")


def _indent(text: str) -> None:
    for line in text.splitlines():
        _say(f"         | {line}")


@contextmanager
def _step(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    _say(f"{(time.perf_counter() - start) * 1000:6.0f} ms  {what}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _plain_environment() -> dict[str, str]:
    """Return the environment without settings: the demo shows what a plain start does."""
    ours: Sequence[str] = ("SANDGATE_", "SANDBOX_", "ROUTER_AUTH_", "WEBSOCKET_")
    return {name: value for name, value in os.environ.items() if not name.startswith(tuple(ours))}


if __name__ == "__main__":
    sys.exit(main())
