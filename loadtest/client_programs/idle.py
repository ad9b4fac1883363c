"""Connections that were used once and wait.

It prints `idle` when all wait, and, once its standard input ends, asks again on each of them:
a proxy that has dropped some would seem to need little memory.
"""

import argparse
import contextlib
import json
import socket
import sys

from loadtest.messages import ask, build_request


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--sandboxes", type=int, default=100)
    options = parser.parse_args()
    requests = [build_request(sandbox) for sandbox in range(options.sandboxes)]
    with contextlib.ExitStack() as stack:
        connections = []
        for number in range(options.connections):
            connection = socket.create_connection(("127.0.0.1", options.port))
            connections.append(stack.enter_context(connection))
            ask(connection, requests[number % len(requests)])
        print("idle", flush=True)
        sys.stdin.read()
        for number, connection in enumerate(connections):
            ask(connection, requests[number % len(requests)])
    print(json.dumps({"connections": len(connections)}))


if __name__ == "__main__":
    _main()
