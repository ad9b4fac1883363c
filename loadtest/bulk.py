"""Large content through a proxy: one connection, read or written as fast as it goes.

Run as a program it prints one JSON line with the bytes and the seconds.
"""

import argparse
import json
import socket
import time

from loadtest.configs import TOKEN

PIECE = bytes(256 * 1024)
FIELDS = (
    f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Sandbox-ID: sb-0\r\n"
    "X-Sandbox-Namespace: default\r\nX-Sandbox-Port: 8888\r\n"
)


def download(connection: socket.socket, size: int) -> None:
    """Read `size` bytes of content; end the program when they do not come."""
    connection.sendall(f"GET /bytes/{size} HTTP/1.1\r\n{FIELDS}\r\n".encode())
    buffer = bytearray(1024 * 1024)
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(65536)
    if not head.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(repr(head[:200]))
    left = size - len(head.partition(b"\r\n\r\n")[2])
    while left > 0:
        received = connection.recv_into(buffer)
        if not received:
            raise SystemExit("the download broke off")
        left -= received


def upload(connection: socket.socket, size: int) -> None:
    """Write `size` bytes of content; end the program when they are refused."""
    connection.sendall(f"PUT /x HTTP/1.1\r\n{FIELDS}Content-Length: {size}\r\n\r\n".encode())
    left = size
    while left:
        connection.sendall(PIECE[:left])
        left -= min(left, len(PIECE))
    answer = b""
    while not answer.rstrip().endswith(b"}"):
        piece = connection.recv(65536)
        if not piece:
            break
        answer += piece
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(repr(answer[:200]))


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("direction", choices=["download", "upload"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    size = options.megabytes * 10**6
    transfer = download if options.direction == "download" else upload
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", options.port)) as connection:
        for _ in range(options.times):
            transfer(connection, size)
    seconds = time.perf_counter() - began
    print(json.dumps({"bytes": size * options.times, "seconds": seconds}))


if __name__ == "__main__":
    _main()
