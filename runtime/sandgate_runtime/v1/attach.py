"""`/v1/processes/{id}/attach`: a terminal over a WebSocket.

Binary frames are the terminal's bytes, both ways. Text frames are JSON objects with a `type`:

    to the runtime     resize {cols, rows}   signal {signal}
    to the client      attached {id, pid, offset}   exit {…}   error {message}

`attached` comes first; `offset` counts the bytes that the terminal had printed before the next
binary frame. Whoever comes back asks for `?offset=` what it has, and gets what followed; where
that is kept no more, the offset of `attached` is a later one. `exit` comes last, then close 1000.
A frame that means nothing is answered with `error`, and changes nothing: a terminal must not die of
a typing error in a client.
"""

import asyncio
import json
from typing import TYPE_CHECKING

from starlette.websockets import WebSocket, WebSocketDisconnect

from sandgate_runtime.errors import InvalidRequest, NoTerminal, Refusal
from sandgate_runtime.exchange import json_answer
from sandgate_runtime.processes.event_log import Event, Watcher
from sandgate_runtime.processes.members import parse_members, read_size
from sandgate_runtime.processes.runs import Run, Runs
from sandgate_runtime.v1.processes import read_signal

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    showing = asyncio.create_task(_show(socket, run, watcher, offset))
    typing = asyncio.create_task(_type(socket, run))
    try:
        await asyncio.wait({showing, typing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        showing.cancel()
        typing.cancel()
        await asyncio.wait({showing, typing})
    for task in (showing, typing):
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


async def _type(socket: WebSocket, run: Run) -> None:
    """Take what the client types, and what it says of its window."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            if (content := message.get("bytes")) is not None:
                await run.open_stdin().write(content)
            else:
                _obey(run, _parse(message.get("text") or ""))
        except Refusal as error:
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
