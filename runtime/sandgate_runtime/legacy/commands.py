"""`POST /execute`: one command, its whole output, its exit code.

As the upstream project has it: the answer is 200 whatever the command did; -n after a death by
signal n; 1 with a text when it could not be started. Beyond that:

- A timeout answers 124 with `timed_out: true`, what was printed until then, and the known text
  at the end of stderr; the whole tree is killed. `timeout_seconds` may ask for less time than
  the setting gives, and is cut to it where it asks for more.
- Output that is not UTF-8 is decoded with U+FFFD, and above 16 MiB per stream the middle is
  dropped (`truncated: true`). Both members stand in the answer only when they are true.
- A child in the background neither holds the answer nor is killed with it.
- A client that goes away takes its command along.
- Whoever asks for more than the upstream project knows (`shell`, `cwd`, `env`, `stdin_b64`, or
  frames) gets exit codes as a shell tells them: 128+n, 127, 126.
"""

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from sandgate_runtime.config import Config
from sandgate_runtime.errors import ArgumentTooLong, MalformedJson, ProcessLimit
from sandgate_runtime.exchange import json_answer, read_json, until_gone
from sandgate_runtime.legacy.frames import FrameStream, accepts_frames
from sandgate_runtime.legacy.request import Asked, InvalidBody, build_command, parse_asked
from sandgate_runtime.legacy.result import build_result
from sandgate_runtime.paths import PathRules
from sandgate_runtime.processes.command import Command
from sandgate_runtime.processes.ending import Exit, Stream, judge_failed_start
from sandgate_runtime.processes.engine import Engine
from sandgate_runtime.processes.process import Process
from sandgate_runtime.processes.window import OutputWindow

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive

TIMEOUT_EXIT_CODE = 124
"""As timeout(1) has it."""

FAILED_EXIT_CODE = 1
"""For a command that could not be started, as the upstream project tells it."""

_SHOWN_CHARACTERS = 1000


async def execute(
    request: "Request", engine: Engine, rules: PathRules, *, config: Config
) -> "ASGIApp":
    """Answer `POST /execute`."""
    try:
        body = await read_json(request, maximum=config.max_json_bytes)
        asked = parse_asked(body, rules, timeout=config.command_timeout)
    except MalformedJson as error:
        return _refuse_body(InvalidBody("json_invalid", (0,), f"JSON decode error: {error}"))
    except InvalidBody as error:
        return _refuse_body(error)
    frames = accepts_frames(request.headers.getlist("accept"))
    try:
        command = await build_command(asked)
        if command is None:
            return _tell_failure("list index out of range")  # the contract's text for no words
        if frames:
            return FrameStream.start(engine, command)
        return await _run(engine, command, request.receive, modern=asked.more)
    except ArgumentTooLong as error:
        return json_answer({**error.body(), "code": "RESOURCE_EXHAUSTED"}, status=413)
    except ProcessLimit as error:
        return _tell_failure(error.__cause__ or error)
    except OSError as error:
        return _tell_failure(error, exit_code=_judge(error, asked, command))
    except ValueError as error:
        return _tell_failure(error)


async def _run(engine: Engine, command: Command, receive: "Receive", *, modern: bool) -> Response:
    windows: dict[Stream, OutputWindow] = {"stdout": OutputWindow(), "stderr": OutputWindow()}
    process = engine.spawn(command, lambda stream, content: windows[stream].add(content))
    ended = await _watch(process, receive)
    status, stderr = ended.code if modern else ended.status, windows["stderr"]
    timed_out = ended.reason == "timeout"
    if timed_out:
        status = TIMEOUT_EXIT_CODE
        stderr.add(_timeout_text(stderr, command))
    return build_result(windows["stdout"], stderr, exit_code=status, timed_out=timed_out)


async def _watch(process: Process, receive: "Receive") -> Exit:
    """Follow the process to its end, or kill it when the client goes."""
    async with asyncio.TaskGroup() as tasks:
        gone = tasks.create_task(until_gone(receive))
        gone.add_done_callback(lambda task: None if task.cancelled() else process.kill())
        ended = await process.watch()
        gone.cancel()
    return ended


def _judge(error: OSError, asked: Asked, command: Command | None) -> int:
    if command is None or not asked.more:
        return FAILED_EXIT_CODE
    return judge_failed_start(error, command.argv).code


def _tell_failure(error: BaseException | str, *, exit_code: int = FAILED_EXIT_CODE) -> Response:
    text = f"Failed to execute command: {error}"
    return json_answer({"stdout": "", "stderr": text, "exit_code": exit_code})


def _refuse_body(error: InvalidBody) -> Response:
    return json_answer({"detail": error.detail}, status=422)


def _timeout_text(stderr: OutputWindow, command: Command) -> bytes:
    argv = [word[:_SHOWN_CHARACTERS] for word in command.argv[:_SHOWN_CHARACTERS]]
    text = (
        f"Failed to execute command: Command '{argv!r}' timed out after {command.timeout} seconds"
    )
    return (b"" if stderr.at_line_start else b"\n") + text.encode("utf-8", "replace")
