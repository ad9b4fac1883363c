"""`GET /v1/events`: what happens to claims and pools, as server-sent events.

A stream begins behind `Last-Event-ID`, or now. Where what came in between is not known any
more, it says so by a first event, `stream.reset`: whoever follows claims lists them anew, and
goes on. It ends cleanly when the gateway stops, and when its caller loses the right to read.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from sandgate_router.control.answers import build_event
from sandgate_router.control.events import EventRing, Numbered
from sandgate_router.control.gate import Gate
from sandgate_router.control.rights import Rights
from sandgate_router.errors import GatewayError, VersionNotSupported

PING_SECONDS = 15.0
"""How often a quiet stream says that it lives. Load balancers end silence after 30 to 60 s."""

BATCH = 64
"""Events that are written at once, so that one stream never holds the loop for long."""

_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would else keep events until it has 4 KiB
}
_NEEDS_CHUNKS = (
    "The stream of events is chunked, which HTTP/1.0 does not have; ask for it by HTTP/1.1"
    " (for nginx: proxy_http_version 1.1)."
)
_ID = re.compile(r"[0-9]{1,19}")


class EventEndpoint:
    """What `/v1/events` does."""

    def __init__(self, ring: EventRing, gate: Gate, *, ping_seconds: float) -> None:
        self._ring = ring
        self._gate = gate
        self._ping_seconds = ping_seconds

    async def stream(self, request: Request, rights: Rights) -> Response:
        """Tell events as they come, until the client leaves."""
        rights.check("read")
        if request.method == "HEAD":  # its answer would never end
            return Response(headers=_HEADERS)
        if request.scope["http_version"] == "1.0":
            raise VersionNotSupported(_NEEDS_CHUNKS)
        return StreamingResponse(self._tell(request), headers=_HEADERS)

    async def _tell(self, request: Request) -> AsyncIterator[bytes]:
        position = self._ring.last
        since = request.headers.getlist("last-event-id")
        if since not in ([], [""]):
            position = int(since[0]) if len(since) == 1 and _ID.fullmatch(since[0]) else -1
        elif not self._ring.closed:
            yield b": from now on\nid: %d\n\n" % position
        while not self._ring.closed:
            changed = self._ring.changed
            if not self._ring.reaches(position):
                position = self._ring.last
                yield _reset(position)
                continue
            events = self._ring.after(position, limit=BATCH)
            silent = not events and not await _happens(changed, within=self._ping_seconds)
            rights = self._still_admitted(request)
            if rights is None:
                return
            if silent:
                yield b": ping\nid: %d\n\n" % position
            elif events:
                position = events[-1].number
                yield b"".join(_encode(event) for event in events if _is_for(event, rights))

    def _still_admitted(self, request: Request) -> Rights | None:
        """Return the rights of the request as they are now; None once they are gone."""
        try:
            rights = self._gate.admit(request)
            rights.check("read")
        except GatewayError:
            return None
        return rights


async def _happens(changed: asyncio.Event, *, within: float) -> bool:
    try:
        async with asyncio.timeout(within):
            await changed.wait()
    except TimeoutError:
        return False
    return True


def _is_for(numbered: Numbered, rights: Rights) -> bool:
    return rights.covers(numbered.event.namespace)


def _encode(numbered: Numbered) -> bytes:
    return _message(numbered.number, numbered.event.kind, build_event(numbered.event))


def _reset(position: int) -> bytes:
    detail = "What came behind Last-Event-ID is not all known any more; list claims and pools anew."
    return _message(position, "stream.reset", {"kind": "stream.reset", "detail": detail})


def _message(number: int, kind: str, members: dict[str, Any]) -> bytes:
    # JSON in ASCII holds no line end, so nothing in it can begin another field.
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(members)}\n\n".encode("ascii")
