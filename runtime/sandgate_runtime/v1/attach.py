"""`/v1/processes/{id}/attach`: a terminal over a WebSocket.

Binary frames are the terminal's bytes, both ways. Text frames are JSON objects with a `type`:

    to the runtime     resize {cols, rows}   signal {signal}
    to the client      attached {id, pid, offset}   exit {…}   error {message}

`attached` comes first; `offset` counts the bytes that the terminal had printed before the next
binary frame. Whoever comes back asks for `?offset=` what it has, and gets what followed; where
that is kept no more, the offset of `attached` is a later one. `exit` comes last, then close 1000.
A frame that means nothing is answered with `error`, and changes nothing: a terminal must not die of
a typing error in a client.

What is typed waits for the program to read it; text frames and a client's leaving overtake it. Of
a program that reads nothing at all, a bounded amount waits, and what goes beyond is refused.
"""

import asyncio
import contextlib
import json
from collections import deque
from typing import TYPE_CHECKING

from starlette.websockets import WebSocket, WebSocketDisconnect

from sandgate_runtime.errors import ContentTooLarge, InvalidRequest, NoTerminal, Refusal
from sandgate_runtime.exchange import json_answer
from sandgate_runtime.processes.event_log import Event, Watcher
from sandgate_runtime.processes.members import parse_members, read_size
from sandgate_runtime.processes.runs import Run, Runs
from sandgate_runtime.v1.processes import read_signal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

_AHEAD_BYTES = 1024 * 1024
"""What may be typed before the program reads it; one frame more is taken."""

_STALL_SECONDS = 1.0
"""How long the program may read nothing before it is given up on."""

_PIECE_BYTES = 4096
"""What is written at once: a terminal holds no more, so each piece shows that somebody reads."""

_ENDED = 1000
"""Close code: all that there was to tell was told (RFC 6455 section 7.4.1)."""


class Attach:
    """The route."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def serve(self, socket: WebSocket) -> None:
        """Connect a client to a terminal until either ends; refuse it before the upgrade."""
        try:
            run = self._runs.get(socket.path_params["id"])
            if run.wanted.command.terminal is None:
                raise NoTerminal(f"process {run.id} does not run in a terminal; follow its events")
            offset = _read_offset(socket.query_params.getlist("offset"))
        except Refusal as error:
            await socket.send_denial_response(json_answer(error.body(), status=error.status))
            return
        with run.watch_offset(offset) as watcher:
            await socket.accept()
            await _connect(socket, run, watcher, offset)


async def _connect(socket: WebSocket, run: Run, watcher: Watcher, offset: int) -> None:
    typed = _Typed()
    tasks = [
        asyncio.create_task(_show(socket, run, watcher, offset)),
        asyncio.create_task(_listen(socket, run, typed)),
        asyncio.create_task(_write(socket, run, typed)),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and not isinstance(task.exception(), WebSocketDisconnect):
            task.result()


async def _show(socket: WebSocket, run: Run, watcher: Watcher, offset: int) -> None:
    """Send what the terminal prints, and at last how its command ended."""
    kept = run.log.offset_after(watcher.last_id)
    begin = max(kept, min(offset, run.log.output_size))
    await _say(socket, "attached", {"id": run.id, "pid": run.pid, "offset": begin})
    while (event := await watcher.get()) is not None:
        if event.name == "exit":
            await _say(socket, "exit", event.members or {})
        elif content := _from(event, begin):
            await socket.send_bytes(content)
    await socket.close(_ENDED)


def _from(event: Event, begin: int) -> bytes:
    return event.content[max(0, begin - event.offset) :]


class _Typed:
    """What was typed and is not written yet."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._size = 0
        self._changed = asyncio.Condition()
        self._stuck = False

    async def add(self, content: bytes) -> None:
        """Take a frame, as soon as there is room; raise ContentTooLarge if none is made."""
        async with self._changed:
            while self._size >= _AHEAD_BYTES:
                await self._wait_for_progress()
            self._frames.append(content)
            self._size += len(content)
            self._changed.notify_all()

    async def settle(self) -> None:
        """Wait until all is written, or nothing of it for a while."""
        async with self._changed:
            with contextlib.suppress(ContentTooLarge):
                while self._size:
                    await self._wait_for_progress()

    async def pieces(self) -> "AsyncIterator[bytes]":
        """Yield what is to be written; each piece is taken for written when the next is asked."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._frames)
                frame = self._frames.popleft()
            for begin in range(0, len(frame), _PIECE_BYTES):
                piece = frame[begin : begin + _PIECE_BYTES]
                yield piece
                async with self._changed:
                    self._size -= len(piece)
                    self._stuck = False
                    self._changed.notify_all()

    async def _wait_for_progress(self) -> None:
        try:
            async with asyncio.timeout(0 if self._stuck else _STALL_SECONDS):
                await self._changed.wait()
        except TimeoutError as error:
            self._stuck = True
            raise ContentTooLarge(
                "the program does not read: what was typed now is lost; signal it or wait"
            ) from error


async def _listen(socket: WebSocket, run: Run, typed: _Typed) -> None:
    """Take what the client types, and obey what it says of its window, until it leaves."""
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        try:
            if (content := message.get("bytes")) is not None:
                run.open_stdin()
                await typed.add(content)
            else:
                _obey(run, _parse(message.get("text") or ""))
        except Refusal as error:
            await _complain(socket, run, error)
    await typed.settle()


async def _write(socket: WebSocket, run: Run, typed: _Typed) -> None:
    """Write what was typed, as fast as the program reads."""
    async for piece in typed.pieces():
        try:
            await run.open_stdin().write(piece)
        except Refusal as error:
            await _complain(socket, run, error)


async def _complain(socket: WebSocket, run: Run, error: Refusal) -> None:
    if run.exit is None:
        await _say(socket, "error", error.body())


def _obey(run: Run, members: "Mapping[str, object]") -> None:
    match members.get("type"):
        case "resize":
            size = {name: value for name, value in members.items() if name != "type"}
            run.running_process().resize(read_size(size, "resize"))
        case "signal":
            asked = parse_members(members, frozenset({"type", "signal"}))
            run.running_process().send_signal(read_signal(asked.get("signal")))
        case other:
            raise InvalidRequest(f"'type' {other!r:.40} is neither 'resize' nor 'signal'")


def _parse(text: str) -> "Mapping[str, object]":
    try:
        members = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the text frame is not JSON: {error}") from error
    if not isinstance(members, dict):
        raise InvalidRequest("the text frame is not a JSON object")
    return members


def _read_offset(values: list[str]) -> int:
    text = values[-1] if values else "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise InvalidRequest(f"the query's 'offset' {text[:40]!r} is not a number of bytes")
    return int(text)


async def _say(socket: WebSocket, kind: str, members: "Mapping[str, object]") -> None:
    await socket.send_text(json.dumps({"type": kind, **members}))
