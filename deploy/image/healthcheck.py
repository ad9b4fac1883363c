#!/usr/bin/env python3
"""Ask the server in this container whether it is well: exit status 0 if it answers 200.

    python healthcheck.py PATH PORT [VARIABLE]

VARIABLE may hold HOST:PORT that the server was told to listen on. The standard library alone,
and no proxy that the environment may name.
"""

import os
import sys
from http.client import HTTPConnection, HTTPException

TIMEOUT_SECONDS = 3.0
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - where to ask


def find_address(listen: str, *, port: int) -> tuple[str, int]:
    """Return where to ask a server that listens on HOST:PORT, or on `port` if that is empty."""
    if not listen:
        return "127.0.0.1", port
    host, _, text = listen.rpartition(":")
    host = host.strip("[]")
    return EVERYWHERE.get(host, host), int(text)


def is_well(path: str, address: tuple[str, int]) -> bool:
    """Tell whether a GET is answered by 200 in time."""
    connection = HTTPConnection(*address, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def main(path: str, port: str, variable: str = "") -> int:
    """Return the exit status of a HEALTHCHECK: 0 or 1."""
    listen = os.environ.get(variable, "") if variable else ""
    return int(not is_well(path, find_address(listen, port=int(port))))


if __name__ == "__main__":
    if len(sys.argv) not in {3, 4}:
        sys.exit("usage: healthcheck.py PATH PORT [VARIABLE]")
    sys.exit(main(*sys.argv[1:]))
