"""The requests that all clients of the measurements send, and how an answer is read.

They carry what the handle sends: the routing fields, a credential, and a request id and a trace
context that are new each time, so that no cache of whole heads is flattered.
"""

import os
import socket

from loadtest.credentials import build_field

CONTENT = b'{"command":"true"}'
RUN = os.urandom(6).hex().encode()

ANSWER_SECONDS = 10.0
"""A proxy that takes longer over one small answer holds it back."""


def build_fields(sandbox: int) -> bytes:
    """Return the field lines that lead to a sandbox."""
    return (
        b"Host: localhost:8080\r\nUser-Agent: sandgate/0.1\r\nX-Sandbox-ID: sb-%d\r\n"
        b"X-Sandbox-Namespace: default\r\nX-Sandbox-Port: 8888\r\n%b"
        % (sandbox, build_field(sandbox))
    )


def build_template(sandbox: int) -> bytes:
    """Return a small request with places for the run and for a number, thrice."""
    return (
        b"POST /execute HTTP/1.1\r\n%bAccept: application/json\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n"
        b"X-Request-ID: %%b-%%x\r\ntraceparent: 00-%%032x-%%016x-01\r\n\r\n%b"
        % (build_fields(sandbox), len(CONTENT), CONTENT)
    )


def build_request(sandbox: int, number: int = 1) -> bytes:
    """Return a small request."""
    return build_template(sandbox) % (RUN, number, number, number)


def is_whole(answer: bytes) -> bool:
    """Say whether an answer with a declared length has come to its end."""
    head, found, content = answer.partition(b"\r\n\r\n")
    _, _, rest = head.lower().partition(b"content-length: ")
    return bool(found) and len(content) >= int(rest.split(b"\r\n", 1)[0] or 0)


def ask(connection: socket.socket, request: bytes) -> bytes:
    """Send a request and return its answer; end the program when it is a wrong one."""
    connection.settimeout(ANSWER_SECONDS)
    connection.sendall(request)
    answer = b""
    while not is_whole(answer):
        piece = connection.recv(65536)
        if not piece:
            raise SystemExit(f"the answer broke off: {answer[:200]!r}")
        answer += piece
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"a wrong answer: {answer[:200]!r}")
    return answer
