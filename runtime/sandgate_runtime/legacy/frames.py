"""`POST /execute` with `Accept: application/x-ndjson`: the same command, told as it runs.

One JSON object a line: `{"t": "out"|"err", "b": base64}` as output comes, and one at the end,
either `{"t": "exit", "code", "truncated": {"out", "err"}}` or `{"t": "timeout", "seconds"}`. A
quiet stream carries `{"t": "ping"}`. Without its last line a stream tells nothing of how the
command ended. A reader that is slow makes the command wait, so nothing is dropped; one that goes
takes the command along.
"""

import asyncio
import base64
import json
from typing import TYPE_CHECKING

from sandgate_runtime.exchange import until_gone
from sandgate_runtime.processes.command import Command
from sandgate_runtime.processes.ending import (
    Exit,
    describe_failed_start,
    judge_failed_start,
)
from sandgate_runtime.processes.engine import Engine
from sandgate_runtime.processes.outbox import Outbox
from sandgate_runtime.processes.process import Process

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

NDJSON = "application/x-ndjson"

PING_SECONDS = 15.0
"""Half of the shortest idle limit in common use (30 s of cloud load balancers)."""

_NAMES = {"stdout": "out", "stderr": "err"}


class FrameStream:
    """An ASGI answer that tells a command live."""

    def __init__(
        self,
        command: Command,
        process: Process | None,
        outbox: Outbox,
        *,
        failed: OSError | None = None,
        ping: float = PING_SECONDS,
    ) -> None:
        self._command = command
        self._process = process
        self._outbox = outbox
        self._failed = failed
        self._ping = ping

    @classmethod
    def start(cls, engine: Engine, command: Command) -> "FrameStream":
        """Spawn the command; a program that cannot be run is told in the stream."""
        outbox = Outbox()
        try:
            process = engine.spawn(command, outbox.put)
        except OSError as error:
            if error.filename == command.cwd:
                raise
            return cls(command, None, outbox, failed=error)
        outbox.attach(process)
        return cls(command, process, outbox)

    async def __call__(self, _scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer until the command has ended."""
        fields = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        if self._process is not None:
            await self._tell(self._process, receive, send)
        elif self._failed is not None:
            await _send(send, {"t": "err", "b": _encode(describe_failed_start(self._failed))})
            await self._tell_end(send, judge_failed_start(self._failed, self._command.argv))
        await send({"type": "http.response.body", "body": b""})

    async def _tell(self, process: Process, receive: "Receive", send: "Send") -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                gone = tasks.create_task(until_gone(receive))
                gone.add_done_callback(lambda task: None if task.cancelled() else process.kill())
                watching = tasks.create_task(process.watch())
                watching.add_done_callback(lambda _: self._outbox.finish())
                await self._tell_output(send)
                await self._tell_end(send, await watching)
                gone.cancel()
        finally:
            process.kill()

    async def _tell_output(self, send: "Send") -> None:
        while True:
            try:
                async with asyncio.timeout(self._ping):
                    piece = await self._outbox.get()
            except TimeoutError:
                await _send(send, {"t": "ping"})
                continue
            if piece is None:
                return
            stream, content = piece
            await _send(send, {"t": _NAMES[stream], "b": _encode(content)})

    async def _tell_end(self, send: "Send", ended: Exit) -> None:
        if ended.reason == "timeout":
            await _send(send, {"t": "timeout", "seconds": self._command.timeout})
        else:
            none_dropped = {"out": 0, "err": 0}
            await _send(send, {"t": "exit", "code": ended.code, "truncated": none_dropped})


def accepts_frames(values: list[str]) -> bool:
    """Say whether the Accept fields name the frames."""
    ranges = [part.partition(";")[0].strip().lower() for part in ",".join(values).split(",")]
    return NDJSON in ranges


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def _send(send: "Send", members: dict[str, object]) -> None:
    line = json.dumps(members).encode() + b"\n"
    await send({"type": "http.response.body", "body": line, "more_body": True})
