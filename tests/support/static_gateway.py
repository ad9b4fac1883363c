"""A gateway over the static registry, which can be killed and started again on its port, and a
TCP relay in front of it that cuts connections. Their sandboxes outlive both."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from support.runtime_server import RuntimeServer, start_runtime

START_SECONDS = 60.0


class StaticGateway:
    """`sandgate router --registry static:FILE`; asks for no token."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, on the port that it had."""
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "sandgate.cli", "router"),
                *("--listen", f"127.0.0.1:{self.port}", "--metrics-listen", ""),
                *("--registry", f"static:{self._file}"),
            ],
            env={
                "PATH": os.environ["PATH"],
                "ALLOW_UNAUTHENTICATED_ROUTER": "1",
                "SANDGATE_DRAIN_DELAY": "0",
                "SANDGATE_DRAIN_TIMEOUT": "0.5",
            },
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(START_SECONDS), "the gateway did not start in time"
        line = self._process.stdout.readline().decode()
        assert line.startswith("listening on http://"), line
        self.port = int(line.split()[2].rpartition(":")[2])

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it by a signal."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(number)
        self._process.wait(60)
        self._process.stdout.close()
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.stop()


@contextlib.contextmanager
def static_gateway(folder: Path) -> Iterator[tuple[StaticGateway, RuntimeServer]]:
    """Run a gateway with one sandbox, `sb-1`: a runtime that is its own process."""
    base = folder / "base"
    base.mkdir()
    with start_runtime(base) as runtime:
        port = runtime.url.rpartition(":")[2]
        file = folder / "sandboxes.yaml"
        # Its one port of the world outside is that of the runtime, whatever it is.
        file.write_text(f"sandboxes: [{{id: sb-1, host: 127.0.0.1, ports: [{port}]}}]\n")
        gateway = StaticGateway(file)
        try:
            yield gateway, runtime
        finally:
            gateway.close()


class CuttingRelay:
    """Passes bytes between clients and a port, and cuts connections.

    `allow` gets the number of a connection and the bytes that it has brought to its client, and
    says how many more may pass; with fewer than there are, the connection is cut behind them.
    """

    def __init__(self, port: int, allow: Callable[[int, int], int]) -> None:
        self._port = port
        self._allow = allow
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            _shut(one)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            for source, target, counted in ((client, server, False), (server, client, True)):
                number = self.connections if counted else None
                thread = threading.Thread(target=self._pass, args=(source, target, number))
                self._threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, number: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                allowed = len(data) if number is None else self._allow(number, passed)
                target.sendall(data[:allowed])
                passed += len(data)
                if allowed < len(data):
                    break
        _shut(source)
        _shut(target)
        if number is None:
            source.close()
            target.close()


@contextlib.contextmanager
def cutting_relay(port: int, allow: Callable[[int, int], int]) -> Iterator[CuttingRelay]:
    """Run a relay for a block."""
    relay = CuttingRelay(port, allow)
    try:
        yield relay
    finally:
        relay.close()


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
