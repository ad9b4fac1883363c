"""Two networks with a cable between them, for what must not be tried on the machine's own.

Each is a network namespace, held by a thread that has moved into it. A socket made by that
thread belongs to its network for ever, so the test's event loop serves and connects in both.
"""

import contextlib
import ctypes
import functools
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

_CLONE_NEWNET = 0x40000000


class Network:
    """One of the two."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.id = self.run(_move_into_a_network_of_our_own)
        """The thread by which the kernel knows it."""

    def run(self, work: Callable[[], Result]) -> Result:
        """Do something inside it."""
        return self._thread.submit(work).result(timeout=30)

    def ip(self, words: str) -> None:
        """Run `ip` inside it."""
        command = ["ip", *words.split()]
        self.run(functools.partial(subprocess.run, command, check=True, capture_output=True))

    def listen(self, host: str, port: int) -> socket.socket:
        return self.run(lambda: socket.create_server((host, port)))

    def bind_udp(self, host: str, port: int) -> socket.socket:
        def bind() -> socket.socket:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((host, port))
            return sock

        return self.run(bind)

    def connect(self, host: str, port: int) -> socket.socket:
        return self.run(lambda: socket.create_connection((host, port), timeout=10))

    def start(self, command: Sequence[str], **more: object) -> "subprocess.Popen[bytes]":
        """Start a program inside it."""
        return self.run(lambda: subprocess.Popen(command, **more))  # type: ignore[call-overload]

    def close(self) -> None:
        """Let it go; the kernel removes it with the last of its sockets and programs."""
        self._thread.shutdown()


def _move_into_a_network_of_our_own() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return threading.get_native_id()


@contextlib.contextmanager
def two_networks() -> Iterator[tuple[Network, Network]]:
    """Yield a network with 10.77.0.1 and 10.77.0.9, and one with 10.77.0.2 and 10.77.0.3."""
    with contextlib.ExitStack() as stack:
        near, far = (stack.enter_context(contextlib.closing(Network())) for _ in range(2))
        near.ip(f"link add cable type veth peer name cable netns {far.id}")
        for network, addresses in ((near, "19"), (far, "23")):
            network.ip("link set lo up")
            for last in addresses:
                network.ip(f"address add 10.77.0.{last}/24 dev cable")
            network.ip("link set cable up")
        yield near, far


@functools.cache
def networks_fault() -> str | None:
    """Return why there can be no such networks here; None where there can."""
    try:
        with two_networks():
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces for this user: {error}"
