"""A process as server-sent events, from an event of its log to its one `exit`.

Events: `started {id, pid}`, `stdout` and `stderr {data}` (base64, since output is bytes), and at
the end `exit {exit_code, signal, reason, truncated, duration}`, with ids that count from 1. A
stream without `exit` has told nothing about how the command ended. A quiet stream carries a
comment now and then, which keeps time limits on the way from striking.
"""

import asyncio
import base64
import json
from typing import TYPE_CHECKING

from sandgate_runtime.exchange import until_gone
from sandgate_runtime.processes.event_log import Event, Watcher
from sandgate_runtime.processes.runs import Run

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PING_SECONDS = 15.0
"""Half of the shortest idle limit in common use (30 s of cloud load balancers)."""

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx on the way would collect events
]


class EventStream:
    """An ASGI answer that tells a run live; while it is sent, the run is watched."""

    def __init__(self, run: Run, *, after: int = 0, ping: float = PING_SECONDS) -> None:
        self._run = run
        self._after = after
        self._ping = ping

    async def __call__(self, _scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer until the run has ended or the reader has gone; raise OutOfWindow."""
        with self._run.watch(after=self._after) as watcher:
            telling = asyncio.create_task(tell(watcher, send, ping=self._ping))
            gone = asyncio.create_task(until_gone(receive))
            try:
                await asyncio.wait({telling, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                telling.cancel()
                await asyncio.wait({telling, gone})
            if not telling.cancelled():
                telling.result()


async def tell(watcher: Watcher, send: "Send", *, ping: float) -> None:
    """Send the events of a watcher as they come, and comments between them."""
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    while True:
        try:
            async with asyncio.timeout(ping):
                event = await watcher.get()
        except TimeoutError:
            await _send(send, b": ping\n\n")
            continue
        if event is None:
            break
        await _send(send, spell_event(event))
    await send({"type": "http.response.body", "body": b""})


def spell_event(event: Event) -> bytes:
    """Return an event as the wire has it."""
    if event.members is None:
        data = b'{"data": "%b"}' % base64.b64encode(event.content)
    else:
        data = json.dumps(event.members).encode()
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.id, event.name.encode(), data)


async def _send(send: "Send", content: bytes) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": True})
