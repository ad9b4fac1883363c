"""`POST /execute`: one command, its whole output, its exit code.

As the upstream project has it: the command line is split into words, no shell; the answer is
200 whatever the command did; -n after a death by signal n; 1 with a text when it could not be
started. Beyond that:

- A timeout answers 124 with `timed_out: true`, what was printed until then, and the known text
  at the end of stderr; the whole tree is killed. `timeout_seconds` may ask for less time than
  the setting gives, and is cut to it where it asks for more.
- Output that is not UTF-8 is decoded with U+FFFD, and above 16 MiB per stream the middle is
  dropped (`truncated: true`). Both members stand in the answer only when they are true.
- A child in the background neither holds the answer nor is killed with it.
- A client that goes away takes its command along.

Members that we do not know are ignored, as they always were; but those that would change what
is run (`shell`, `cwd`, `env`, `stdin_b64`) are refused: to run something else is worse.
"""

import asyncio
import math
from typing import TYPE_CHECKING

from starlette.responses import Response

from sandgate_runtime.errors import ArgumentTooLong, MalformedJson, ProcessLimit
from sandgate_runtime.exchange import json_answer, read_json, until_gone
from sandgate_runtime.legacy.result import build_result
from sandgate_runtime.processes.command import Command
from sandgate_runtime.processes.engine import Engine, Exit, Process, Stream
from sandgate_runtime.processes.window import OutputWindow
from sandgate_runtime.words import split_words

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive

CHANGES_WHAT_IS_RUN = ("shell", "cwd", "env", "stdin_b64")

INLINE_CHARACTERS = 64 * 1024
"""Longer command lines are split in a thread: 2 MB of alternating quotes take a second."""

TIMEOUT_EXIT_CODE = 124
"""As timeout(1) has it."""

_SHOWN_CHARACTERS = 1000


class InvalidBody(Exception):
    """The body is refused with 422 in the form that the upstream runtime's framework gives it."""

    def __init__(self, kind: str, location: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.detail = [{"type": kind, "loc": ["body", *location], "msg": message}]


async def execute(request: "Request", engine: Engine, *, base: str, timeout: float) -> Response:
    """Answer `POST /execute`; `timeout` is the most that a command may take."""
    try:
        text, asked = _read_members(await read_json(request))
    except MalformedJson as error:
        return _refuse_body(InvalidBody("json_invalid", (0,), f"JSON decode error: {error}"))
    except InvalidBody as error:
        return _refuse_body(error)
    limit = timeout if asked is None else min(asked, timeout)
    try:
        argv = await _split(text)
        if not argv:
            return _tell_failure("list index out of range")  # the contract's text for no words
        windows: dict[Stream, OutputWindow] = {"stdout": OutputWindow(), "stderr": OutputWindow()}
        process = engine.spawn(
            Command(argv=tuple(argv), cwd=base, timeout=limit),
            lambda stream, content: windows[stream].add(content),
        )
    except ArgumentTooLong as error:
        return json_answer({**error.body(), "code": "RESOURCE_EXHAUSTED"}, status=413)
    except ProcessLimit as error:
        return _tell_failure(error.__cause__ or error)
    except (OSError, ValueError) as error:
        return _tell_failure(error)
    ended = await _watch(process, request.receive)
    status, stderr = ended.status, windows["stderr"]
    timed_out = ended.reason == "timeout"
    if timed_out:
        status = TIMEOUT_EXIT_CODE
        stderr.add(_timeout_text(stderr, argv, limit))
    return build_result(windows["stdout"], stderr, exit_code=status, timed_out=timed_out)


async def _watch(process: Process, receive: "Receive") -> Exit:
    """Follow the process to its end, or kill it when the client goes."""
    async with asyncio.TaskGroup() as tasks:
        gone = tasks.create_task(until_gone(receive))
        gone.add_done_callback(lambda task: None if task.cancelled() else process.kill())
        ended = await process.watch()
        gone.cancel()
    return ended


def _read_members(body: object) -> tuple[str, float | None]:
    if not isinstance(body, dict):
        raise InvalidBody("model_attributes_type", (), "Input should be a valid dictionary")
    if "command" not in body:
        raise InvalidBody("missing", ("command",), "Field required")
    command = body["command"]
    if not isinstance(command, str):
        raise InvalidBody("string_type", ("command",), "Input should be a valid string")
    for name in CHANGES_WHAT_IS_RUN:
        if body.get(name) is not None:
            raise InvalidBody("extra_forbidden", (name,), "This runtime cannot honour this member")
    seconds = body.get("timeout_seconds")
    if seconds is None:
        return command, None
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (number and 0 < seconds < math.inf):
        text = "Input should be a finite number of seconds above 0"
        raise InvalidBody("finite_number", ("timeout_seconds",), text)
    return command, float(min(seconds, 1e9))


def _tell_failure(error: BaseException | str) -> Response:
    text = f"Failed to execute command: {error}"
    return json_answer({"stdout": "", "stderr": text, "exit_code": 1})


def _refuse_body(error: InvalidBody) -> Response:
    return json_answer({"detail": error.detail}, status=422)


async def _split(text: str) -> list[str]:
    if len(text) <= INLINE_CHARACTERS:
        return split_words(text)
    return await asyncio.to_thread(split_words, text)


def _timeout_text(stderr: OutputWindow, argv: list[str], limit: float) -> bytes:
    shown = repr([word[:_SHOWN_CHARACTERS] for word in argv[:_SHOWN_CHARACTERS]])
    text = f"Failed to execute command: Command '{shown}' timed out after {limit} seconds"
    return (b"" if stderr.at_line_start else b"\n") + text.encode("utf-8", "replace")
