"""A command as server-sent events, from its start to its one `exit`.

Events: `started {id, pid}`, `stdout` and `stderr {data}` (base64, since output is bytes), and at
the end `exit {exit_code, signal, reason, truncated, duration}`, with ids that count from 1. A
stream without `exit` has told nothing about how the command ended. A quiet stream carries a
comment now and then, which keeps time limits on the way from striking.

A program that is missing (127) or cannot be run (126) is told as a shell would: `started` with
no pid, a line on stderr, `exit`. When the reader goes, the command and all that it started is
killed.
"""

import asyncio
import base64
import json
from typing import TYPE_CHECKING

from sandgate_runtime.errors import BadWorkingDirectory, InvalidRequest
from sandgate_runtime.exchange import until_gone
from sandgate_runtime.processes.command import Command
from sandgate_runtime.processes.engine import Engine, Exit, Process
from sandgate_runtime.v1.outbox import Outbox

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PING_SECONDS = 15.0
"""Half of the shortest idle limit in common use (30 s of cloud load balancers)."""

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx on the way would collect events
]

MISSING_PROGRAM, NOT_EXECUTABLE = 127, 126


class ProcessStream:
    """An ASGI answer that runs a command and tells it live."""

    def __init__(self, engine: Engine, command: Command, *, ping: float = PING_SECONDS) -> None:
        self._engine = engine
        self._command = command
        self._ping = ping
        self._last_id = 0

    async def __call__(self, _scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Spawn, then answer; a command that is refused is an ordinary error answer."""
        outbox = Outbox()
        try:
            process = self._engine.spawn(self._command, outbox.put)
        except ValueError as error:
            raise InvalidRequest(f"the command cannot be started: {error}") from error
        except OSError as error:
            if error.filename == self._command.cwd:
                raise BadWorkingDirectory(f"the working directory: {error}") from error
            await self._tell_failure(send, error)
            return
        outbox.attach(process)
        try:
            await self._tell(process, outbox, receive, send)
        finally:
            process.kill()

    async def _tell(
        self, process: Process, outbox: Outbox, receive: "Receive", send: "Send"
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            gone = tasks.create_task(until_gone(receive))
            gone.add_done_callback(lambda task: None if task.cancelled() else process.kill())
            watching = tasks.create_task(process.watch())
            watching.add_done_callback(lambda _: outbox.finish())
            await _start(send)
            await self._event(send, "started", {"id": process.id, "pid": process.pid})
            await self._tell_output(outbox, send)
            await self._tell_exit(send, await watching)
            gone.cancel()

    async def _tell_output(self, outbox: Outbox, send: "Send") -> None:
        while True:
            try:
                async with asyncio.timeout(self._ping):
                    piece = await outbox.get()
            except TimeoutError:
                await _send(send, b": ping\n\n")
                continue
            if piece is None:
                return
            stream, content = piece
            await self._event(send, stream, {"data": base64.b64encode(content).decode()})

    async def _tell_exit(self, send: "Send", ended: Exit) -> None:
        await self._event(
            send,
            "exit",
            {
                "exit_code": ended.code,
                "signal": ended.signal,
                "reason": ended.reason,
                "truncated": {"stdout": 0, "stderr": 0},
                "duration": round(ended.duration, 6),
            },
        )
        await send({"type": "http.response.body", "body": b""})

    async def _tell_failure(self, send: "Send", error: OSError) -> None:
        # An empty name is looked for in each directory of PATH and found to be a directory.
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        missing = missing or not self._command.argv[0]
        text = f"Failed to execute command: {error}\n".encode("utf-8", "replace")
        await _start(send)
        await self._event(send, "started", {"id": None, "pid": None})
        await self._event(send, "stderr", {"data": base64.b64encode(text).decode()})
        status = MISSING_PROGRAM if missing else NOT_EXECUTABLE
        await self._tell_exit(send, Exit(status=status, reason="exited", duration=0.0))

    async def _event(self, send: "Send", name: str, content: dict[str, object]) -> None:
        self._last_id += 1
        text = f"id: {self._last_id}\nevent: {name}\ndata: {json.dumps(content)}\n\n"
        await _send(send, text.encode())


async def _start(send: "Send") -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})


async def _send(send: "Send", content: bytes) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": True})
