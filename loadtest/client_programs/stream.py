"""An event stream through a proxy, each piece of it awaited before the next is sent.

The client tells the stub, on a second connection that bypasses the proxy, what has arrived. So
no two pieces can travel as one, and a proxy that holds a piece back is found out at once.
"""

import argparse
import json
import socket
import time

from loadtest.messages import ANSWER_SECONDS, build_fields
from loadtest.stubs import EVENT_END, PORT, address, build_events

LAST_CHUNK = b"0\r\n\r\n"


def follow(connection: socket.socket, arrived: socket.socket, count: int) -> bytes:
    """Read a stream to its end, piece after piece; return what came, head and framing too."""
    connection.sendall(
        b"GET /events/%d HTTP/1.1\r\n%bAccept: text/event-stream\r\n\r\n" % (count, build_fields(0))
    )
    received = bytearray()
    seen = 0
    while not received.endswith(LAST_CHUNK):
        try:
            piece = connection.recv(65536)
        except TimeoutError:
            raise SystemExit(f"piece {seen + 1} of {count} is held back") from None
        if not piece:
            raise SystemExit(f"the stream broke off at piece {seen} of {count}")
        received += piece
        new = piece.count(EVENT_END)
        if new:
            arrived.sendall(b"." * new)
            seen += new
    return bytes(received)


def decode_chunks(framed: bytes) -> bytes:
    """Return the content of chunks; end the program where they are none."""
    pieces = []
    while framed:
        size, _, framed = framed.partition(b"\r\n")
        length = int(size, 16)
        pieces.append(framed[:length])
        if framed[length : length + 2] != b"\r\n":
            raise SystemExit("the stream's chunks are broken")
        framed = framed[length + 2 :]
    return b"".join(pieces)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pieces", type=int, default=10_000)
    options = parser.parse_args()
    with (
        socket.create_connection((address(0), PORT)) as arrived,
        socket.create_connection(("127.0.0.1", options.port)) as connection,
    ):
        connection.settimeout(ANSWER_SECONDS)
        arrived.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        arrived.sendall(b"GET /arrived HTTP/1.1\r\n\r\n")
        began = time.perf_counter()
        received = follow(connection, arrived, options.pieces)
        seconds = time.perf_counter() - began
    head, _, framed = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 ") or decode_chunks(framed) != build_events(
        options.pieces
    ):
        raise SystemExit(f"not the stream that was sent, behind {head!r}")
    print(json.dumps({"pieces": options.pieces, "seconds": seconds}))


if __name__ == "__main__":
    _main()
