"""Whether a proxy does the job at all: one that answers wrongly is not timed."""

import socket

from loadtest.configs import ROUTING_FIELDS
from loadtest.measure import Serve
from loadtest.messages import ask, build_fields, build_request
from loadtest.stubs import ANSWER, address

TARGET = b"/whoami?q=a%20b&empty="
UPLOAD_BYTES = 300_001


def check_proxy(serve: Serve, *, sandboxes: int, routes: bool) -> str | None:
    """Return what a proxy does wrongly, in words, or None."""
    try:
        with serve(sandboxes) as (_, port), socket.create_connection(("127.0.0.1", port)) as client:
            faults = _check_routing(client, sandboxes) if routes else []
            faults += _check_content(client)
    except (SystemExit, RuntimeError, OSError) as error:
        return str(error)
    return "; ".join(faults) or None


def _check_routing(client: socket.socket, sandboxes: int) -> list[str]:
    """Ask a few sandboxes, on one connection, who they are and what came to them."""
    faults = []
    for sandbox in (0, sandboxes // 3, sandboxes - 1):
        request = b"GET %b HTTP/1.1\r\n%bX-Kept: 1\r\n\r\n" % (TARGET, build_fields(sandbox))
        _, _, content = ask(client, request).partition(b"\r\n\r\n")
        own, _, head = content.decode().partition("\n")
        line, *fields = head.split("\r\n")
        names = {field.partition(":")[0].lower() for field in fields}
        if own != address(sandbox):
            faults.append(f"sb-{sandbox} led to {own}, not {address(sandbox)}")
        if line.split(" ")[1].encode() != TARGET:
            faults.append(f"the target became {line!r}")
        if "x-kept" not in names:
            faults.append("a field was lost")
        faults += [f"{name} went on" for name in ROUTING_FIELDS if name.lower() in names]
    return faults


def _check_content(client: socket.socket) -> list[str]:
    """Send an upload and a small request on one connection."""
    head = b"PUT /x HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n"
    upload = head % (build_fields(0), UPLOAD_BYTES) + bytes(UPLOAD_BYTES)
    _, _, wanted = ANSWER.partition(b"\r\n\r\n")
    answers = (ask(client, upload), ask(client, build_request(0)))
    return ["the content of an answer changed" for one in answers if not one.endswith(wanted)]
