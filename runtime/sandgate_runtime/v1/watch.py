"""`GET /v1/watch`: changes below a directory as server-sent events.

First `ready`, once everything is watched; then `created`, `modified` and `deleted {name}`, and
`overflow` where changes were lost and the reader has to list anew. The stream ends when the
directory is gone. Nothing is kept for a reader that was away, so events have no ids.
"""

import asyncio
import json
from typing import TYPE_CHECKING

from sandgate_runtime.exchange import until_gone
from sandgate_runtime.files.refusals import WatchLimit, refuse
from sandgate_runtime.files.watching import Change, TreeWatch
from sandgate_runtime.paths import PathRules
from sandgate_runtime.v1.parameters import read_parameters, read_switch

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

PING_SECONDS = 15.0
"""Half of the shortest idle limit in common use (30 s of cloud load balancers)."""

MAX_STREAMS = 16
"""At once. The kernel allows a user 128 of its queues, and commands want some too."""

GATHER_SECONDS = 0.05
"""Changes are told at most this much later, and each once in that time: a build makes thousands."""

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx on the way would collect events
]


class Watches:
    """The route, and how many streams of it there are."""

    def __init__(self, rules: PathRules, *, ping: float = PING_SECONDS) -> None:
        self._rules = rules
        self._ping = ping
        self._streams = 0

    async def watch(self, request: "Request") -> "WatchStream":
        """Watch the directory that `path` names, and with `recursive` all below it."""
        parameters = read_parameters(request, "path", "recursive")
        path = parameters.get("path", "")
        recursive = read_switch(parameters, "recursive")
        if self._streams >= MAX_STREAMS:
            raise WatchLimit(f"{MAX_STREAMS} watches are open: close one")
        self._streams += 1
        try:
            watch = await asyncio.to_thread(self._open, path, recursive=recursive)
        except OSError as error:
            self._streams -= 1
            raise refuse(error, path) from error
        except BaseException:
            self._streams -= 1
            raise
        return WatchStream(watch, self, ping=self._ping)

    def closed(self) -> None:
        """Count a stream that has ended."""
        self._streams -= 1

    def _open(self, path: str, *, recursive: bool) -> TreeWatch:
        return TreeWatch(self._rules.resolve(path), recursive=recursive)


class WatchStream:
    """An ASGI answer with the changes of one watch, which it closes."""

    def __init__(self, watch: TreeWatch, watches: Watches, *, ping: float) -> None:
        self._watch = watch
        self._watches = watches
        self._ping = ping
        self._readable = asyncio.Event()

    async def __call__(self, _scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Tell changes until the reader or the directory goes."""
        loop = asyncio.get_running_loop()
        gone = asyncio.create_task(until_gone(receive))
        gone.add_done_callback(lambda _: self._readable.set())
        loop.add_reader(self._watch.inotify, self._readable.set)
        try:
            await self._tell(send, gone)
        finally:
            loop.remove_reader(self._watch.inotify)
            gone.cancel()
            await asyncio.wait([gone])
            self._watch.close()
            self._watches.closed()

    async def _tell(self, send: "Send", gone: "asyncio.Task[None]") -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await _send(send, _event("ready", {}))
        while not self._watch.ended:
            if not await self._wait():
                await _send(send, b": ping\n\n")
                continue
            await asyncio.sleep(GATHER_SECONDS)
            if gone.done():
                return
            # Cleared before it is read: a change that comes meanwhile sets it again.
            self._readable.clear()
            changes = await asyncio.to_thread(self._watch.read)
            await _send(send, b"".join(map(_event_of, changes)))
        await send({"type": "http.response.body", "body": b""})

    async def _wait(self) -> bool:
        try:
            async with asyncio.timeout(self._ping):
                await self._readable.wait()
        except TimeoutError:
            return False
        return True


def _event_of(change: Change) -> bytes:
    members = {} if change.kind == "overflow" else {"name": "/".join(change.parts)}
    return _event(change.kind, members)


def _event(name: str, members: dict[str, str]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(members)}\n\n".encode()


async def _send(send: "Send", content: bytes) -> None:
    if content:
        await send({"type": "http.response.body", "body": content, "more_body": True})
