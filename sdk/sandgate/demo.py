"""`python -m sandgate.demo`: a gateway and one sandbox, from the start to nothing left.

The gateway is a child process in a session of its own; all else goes to it over HTTP, as any
client would. Each step is printed with its time. Whatever happens, the child is stopped before
this process ends.
"""

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sandgate import Gateway, Sandbox, Sandboxes, SandboxNotFound, SandgateError
from sandgate.testing import GatewayRefused, RunningGateway, TestGatewayError

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
    except (DemoFailed, TestGatewayError, SandgateError) as error:
        _say(f"demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    _say("done")
    return 0


def _end(*_signal: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def _start() -> RunningGateway:
    if shutil.which("bwrap") is None:
        _say(NO_BUBBLEWRAP)
        return RunningGateway(isolation="none")
    try:
        return RunningGateway(isolation=None)
    except GatewayRefused as error:
        _say(f"the gateway refuses to start with isolation:\n{error}\ngoing on without it")
        return RunningGateway(isolation="none")


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


if __name__ == "__main__":
    sys.exit(main())
