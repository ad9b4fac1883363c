"""`kubectl port-forward`, run and watched for as long as a handle is open.

kubectl chooses the local port itself (`:8080`), so none can be taken in between. When it dies,
as it does with every pod that goes, it is started again on another port; calls wait for that.
It ends with this program, however that ends: its parent is a thread of this process, and the
kernel ends it with that.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from sandgate.errors import TunnelFailed

if TYPE_CHECKING:
    from sandgate.connections import Tunnel

FIRST_PAUSE = 0.1
LAST_PAUSE = 5.0
"""Seconds between two starts; doubled while kubectl dies before it forwards."""

STOP_SECONDS = 3.0
"""How long kubectl may take to end before it is killed."""

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:([0-9]{1,5}) ->")

_BOUND_TO_PARENT = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Asks the kernel for SIGTERM at the end of the parent, and becomes kubectl. As a program of its
own, since code between fork and exec can deadlock in a process of many threads."""


class RunningTunnel:
    """The tunnel; `close` ends it."""

    def __init__(self, tunnel: "Tunnel") -> None:
        self.label = f"the tunnel to svc/{tunnel.service} in {tunnel.namespace}"
        self._tunnel = tunnel
        self._changed = threading.Condition()
        self._url: str | None = None
        self._closed = False
        self._process: subprocess.Popen[str] | None = None
        self._words: deque[str] = deque(maxlen=5)
        self._thread = threading.Thread(target=self._keep, name="sandgate-tunnel", daemon=True)
        self._thread.start()

    @property
    def ready_url(self) -> str | None:
        """The URL, if the tunnel stands."""
        return self._url

    def wait_url(self) -> str:
        """Return the URL, once the tunnel stands."""
        deadline = time.monotonic() + self._tunnel.ready_timeout
        with self._changed:
            while self._url is None and not self._closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if self._url is not None:
                return self._url
        why = "it is closed" if self._closed else " / ".join(self._words) or "it says nothing"
        raise TunnelFailed(
            f"{self.label} does not stand: {why}", reached="no", retry_safe=not self._closed
        )

    def close(self) -> None:
        """End kubectl and wait for it; doing so again is no error."""
        with self._changed:
            self._closed = True
            self._url = None
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
            self._changed.notify_all()
        if self._thread is threading.current_thread():
            return
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive() and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._thread.join()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._url or "not standing"
        return f"<{self.label} {state}>"

    def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._changed:
                if self._closed:
                    return
                process = self._start()
            if process is not None:
                pause = FIRST_PAUSE if self._forward(process) else pause
            with self._changed:
                self._url = None
                self._changed.wait_for(lambda: self._closed, pause)
            pause = min(2 * pause, LAST_PAUSE)

    def _start(self) -> "subprocess.Popen[str] | None":
        if shutil.which(self._tunnel.kubectl) is None:
            self._words.append(f"there is no program {self._tunnel.kubectl!r}")
            return None
        self._process = subprocess.Popen(
            build_command(self._tunnel),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return self._process

    def _forward(self, process: "subprocess.Popen[str]") -> bool:
        """Read what kubectl says until it ends; return whether it ever forwarded."""
        stood = False
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._words.append(line.strip())
                match = _FORWARDING.search(line)
                if match is not None:
                    stood = True
                    self._stand(f"http://127.0.0.1:{match[1]}")
        process.wait()
        return stood

    def _stand(self, url: str) -> None:
        with self._changed:
            if not self._closed:
                self._url = url
                self._changed.notify_all()


def build_command(tunnel: "Tunnel") -> list[str]:
    """Return the words that run kubectl; every name was checked when it was written down."""
    options = ["--namespace", tunnel.namespace, "--address", "127.0.0.1"]
    if tunnel.context is not None:
        options += ["--context", tunnel.context]
    positional = ["--", f"svc/{tunnel.service}", f":{tunnel.port}"]
    shim = [sys.executable, "-I", "-S", "-c", _BOUND_TO_PARENT, str(os.getpid())]
    return [*shim, tunnel.kubectl, "port-forward", *options, *positional]
