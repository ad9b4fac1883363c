"""Large content through a proxy: one connection, read or written as fast as it goes.

Run as a program it prints one JSON line with the bytes and the seconds.
"""

import argparse
import json
import socket
import time

from loadtest.messages import build_fields

PIECE = bytes(256 * 1024)


def download(connection: socket.socket, size: int) -> None:
    """Read `size` bytes of content; end the program when they do not come."""
    connection.sendall(b"GET /bytes/%d HTTP/1.1\r\n%b\r\n" % (size, build_fields(0)))
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
    head = b"PUT /x HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (build_fields(0), size)
    connection.sendall(head)
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
