"""A small HTTP server that says exactly the bytes it was told to, and remembers what it got.

Each route has a queue of answers; an answer is a list of steps: bytes to send, or something to
do. A request without an answer gets 599, so that a test sees what it forgot. Blocking sockets,
one thread per connection, loopback only.
"""

import base64
import contextlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

PATIENCE = 10.0
"""Seconds after which a step that waits gives up; only a failing test waits this long."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came."""

    head: bytes
    """Request line and fields, without the closing blank line."""
    body: bytes
    """Content, its chunks joined."""
    connection: int
    """Which connection brought it, counted from 0."""

    @property
    def method(self) -> str:
        """The method."""
        return self.head.split(b" ", 1)[0].decode()

    @property
    def target(self) -> str:
        """The request target, byte for byte."""
        return self.head.split(b" ", 2)[1].decode("latin-1")

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The fields in order, names in lower case."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines)
        return [(name.lower(), value.strip()) for name, _, value in pairs]

    def values(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for key, value in self.fields if key == name]

    def value(self, name: str) -> str | None:
        """Return the only value of a field, None when absent."""
        found = self.values(name)
        assert len(found) <= 1, f"{name} came {len(found)} times"
        return found[0] if found else None

    def json(self) -> object:
        """Return the content as JSON."""
        value: object = json.loads(self.body)
        return value


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on when the event is set."""

    event: threading.Event


@dataclass(frozen=True, slots=True)
class Tell:
    """Set the event."""

    event: threading.Event


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection cleanly."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Close the connection by RST."""


@dataclass(frozen=True, slots=True)
class AwaitDisconnect:
    """Wait until the client closes the connection, then set the event."""

    seen: threading.Event


Step = bytes | Wait | Tell | Close | Reset | AwaitDisconnect


def response(
    status: int = 200,
    *,
    body: bytes = b"",
    fields: Sequence[tuple[str, str]] = (),
    content_type: str = "application/json",
) -> bytes:
    """Return a whole response with Content-Length."""
    lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(body)}"]
    if body:
        lines.append(f"content-type: {content_type}")
    lines += [f"{name}: {value}" for name, value in fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def json_response(
    value: object, *, status: int = 200, fields: Sequence[tuple[str, str]] = ()
) -> bytes:
    """Return a response with a JSON body."""
    return response(status, body=json.dumps(value).encode(), fields=fields)


def gateway_error(
    status: int,
    code: str,
    *,
    detail: str = "It went wrong.",
    reached: str = "no",
    retry_safe: bool = True,
    fields: Sequence[tuple[str, str]] = (),
) -> bytes:
    """Return an error as the gateway answers it."""
    body = {"detail": detail, "code": code, "reached": reached, "retry_safe": retry_safe}
    return json_response(body, status=status, fields=[("x-sandbox-error", code), *fields])


def stream_head(content_type: str = "text/event-stream") -> bytes:
    """Return the head of a chunked response."""
    return (
        f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
    ).encode()


def chunk(data: bytes) -> bytes:
    """Return one chunk; an empty one ends the body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(type_: str, members: Mapping[str, object]) -> bytes:
    """Return one server-sent event."""
    return f"event: {type_}\ndata: {json.dumps(members)}\n\n".encode()


def output_event(stream: str, data: bytes) -> bytes:
    """Return an event that carries a command's output."""
    return event(stream, {"data": base64.b64encode(data).decode()})


def exit_event(exit_code: int = 0, **members: object) -> bytes:
    """Return a command's last event."""
    defaults = {"signal": None, "reason": "exited", "duration": 0.25}
    truncated = {"stdout": 0, "stderr": 0}
    return event("exit", {"exit_code": exit_code, **defaults, "truncated": truncated, **members})


@dataclass(slots=True)
class ScriptedServer:
    """The server; a context manager that ends with every thread and socket closed."""

    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    _answers: dict[tuple[str, str], deque[Sequence[Step]]] = field(default_factory=dict)
    _listener: socket.socket = field(default_factory=socket.socket)
    _sockets: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            open_sockets = [self._listener, *self._sockets]
        for open_socket in open_sockets:
            _shut(open_socket)
        for thread in self._threads:
            thread.join(PATIENCE)
        for open_socket in open_sockets:
            open_socket.close()

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Where the server is, without a closing slash."""
        return f"http://127.0.0.1:{self.port}"

    def answer(self, method: str, target: str, *steps: Step) -> None:
        """Queue an answer for the next request of this method and target."""
        with self._lock:
            self._answers.setdefault((method, target), deque()).append(steps)

    def received(self, method: str, target: str) -> list[Received]:
        """Return the requests of this method and target so far."""
        with self._lock:
            return [r for r in self.requests if (r.method, r.target) == (method, target)]

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                number = self.connections
                self.connections += 1
                self._sockets.append(connection)
            self._start(self._serve, connection, number)

    def _serve(self, connection: socket.socket, number: int) -> None:
        reader = _Reader(connection)
        with connection:
            try:
                while (head := reader.read_head()) is not None:
                    self._reply(connection, Received(head, reader.read_body(head), number))
            except (OSError, _ConnectionDone):
                pass  # the client left, the script says so, or the test ended

    def _reply(self, connection: socket.socket, request: Received) -> None:
        with self._lock:
            self.requests.append(request)
            queue = self._answers.get((request.method, request.target))
            steps = queue.popleft() if queue else [response(599, body=b'"no answer scripted"')]
        for step in steps:
            _perform(step, connection)


class _ConnectionDone(Exception):
    """The connection serves no further request."""


class _Reader:
    """Reads requests, strictly: what does not parse ends the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def read_head(self) -> bytes | None:
        """Return the next head, None at a clean end."""
        if not self._buffer and not self._fill():
            return None
        return self._until(b"\r\n\r\n")

    def read_body(self, head: bytes) -> bytes:
        """Return the content that belongs to a head."""
        fields = dict(Received(head, b"", 0).fields)
        if fields.get("expect") == "100-continue":
            self._connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._until(b"\r\n"), 16):
                body += self._exactly(size)
                self._exactly(2)
            self._exactly(2)
            return body
        return self._exactly(int(fields.get("content-length", "0")))

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            if not self._fill():
                raise _ConnectionDone
        before, _, self._buffer = self._buffer.partition(end)
        return before

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not self._fill():
                raise _ConnectionDone
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _fill(self) -> bool:
        data = self._connection.recv(1 << 20)
        self._buffer += data
        return bool(data)


def _perform(step: Step, connection: socket.socket) -> None:
    match step:
        case bytes():
            connection.sendall(step)
        case Wait(event):
            event.wait(PATIENCE)
        case Tell(event):
            event.set()
        case Close():
            raise _ConnectionDone
        case Reset():
            # Linger on with no time: close() then sends RST in place of FIN.
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            raise _ConnectionDone
        case AwaitDisconnect(seen):
            connection.settimeout(PATIENCE)
            try:
                while connection.recv(65536):
                    pass
            except ConnectionError:
                pass  # by RST: the client left, too
            seen.set()
            raise _ConnectionDone


def _shut(open_socket: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        open_socket.shutdown(socket.SHUT_RDWR)
