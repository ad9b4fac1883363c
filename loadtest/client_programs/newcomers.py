"""Newcomers: bursts of connections that all come at once, each with one request.

Plain sockets and one selector, since what the client itself takes would count as the proxy's
time: connecting 200 times and reading their answers takes some 10 ms in all.
"""

import argparse
import contextlib
import json
import selectors
import socket
import time

from loadtest.messages import build_request, is_whole

GAP_SECONDS = 0.3
"""Between bursts: the proxy closes the connections of the last one meanwhile."""

BURST_SECONDS = 60.0


def burst(port: int, requests: list[bytes]) -> list[float]:
    """Connect once for each request; return the seconds from connecting to each whole answer."""
    took = []
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:
        for request in requests:
            began = time.perf_counter()
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(request)
            waiting.register(connection, selectors.EVENT_READ, (connection, began, bytearray()))
        while waiting.get_map():
            ready = waiting.select(BURST_SECONDS)
            if not ready:
                raise SystemExit(f"{len(waiting.get_map())} newcomers got no answer")
            for key, _ in ready:
                connection, began, answer = key.data
                piece = connection.recv(65536)
                answer += piece
                if not piece or not answer.startswith(b"HTTP/1.1 200 "[: len(answer)]):
                    raise SystemExit(f"a wrong answer: {bytes(answer)!r}")
                if is_whole(bytes(answer)):
                    took.append(time.perf_counter() - began)
                    waiting.unregister(connection)
    return took


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--newcomers", type=int, default=200)
    parser.add_argument("--sandboxes", type=int, default=100)
    parser.add_argument("--bursts", type=int, default=5)
    options = parser.parse_args()
    requests = [build_request(one % options.sandboxes) for one in range(options.newcomers)]
    took: list[float] = []
    for _ in range(options.bursts):
        time.sleep(GAP_SECONDS)
        took += burst(options.port, requests)
    took.sort()
    result = {
        "p50_ms": 1000 * took[len(took) // 2],
        "p99_ms": 1000 * took[len(took) * 99 // 100],
        "longest_ms": 1000 * took[-1],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    _main()
