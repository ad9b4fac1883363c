"""The answer to `/execute`, written piece by piece where it is long.

Escaped as JSON, 32 MiB of control characters are 192 MiB; so a long answer is escaped and sent
64 KiB at a time, and memory stays at what the command's output takes.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from starlette.responses import Response

from sandgate_runtime.exchange import json_answer
from sandgate_runtime.processes.window import OutputWindow

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

ONE_PIECE_BYTES = 256 * 1024
"""Up to here the answer is sent at once, with its length."""


def build_result(
    stdout: OutputWindow, stderr: OutputWindow, *, exit_code: int, timed_out: bool
) -> Response:
    """Build the answer; `timed_out` and `truncated` stand in it only when they are true."""
    members: dict[str, object] = {"exit_code": exit_code}
    if timed_out:
        members["timed_out"] = True
    if stdout.truncated or stderr.truncated:
        members["truncated"] = True
    if stdout.size + stderr.size > ONE_PIECE_BYTES:
        return _LongResult(_write(stdout, stderr, members))
    return json_answer(
        {"stdout": "".join(stdout.text()), "stderr": "".join(stderr.text()), **members}
    )


class _LongResult(Response):
    """An answer in chunks."""

    def __init__(self, pieces: Iterator[str]) -> None:
        super().__init__(media_type="application/json")
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, _scope: "Scope", _receive: "Receive", send: "Send") -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _write(stdout: OutputWindow, stderr: OutputWindow, members: dict[str, object]) -> Iterator[str]:
    yield '{"stdout": "'
    yield from (json.dumps(text)[1:-1] for text in stdout.text())
    yield '", "stderr": "'
    yield from (json.dumps(text)[1:-1] for text in stderr.text())
    yield '", ' + json.dumps(members)[1:]
