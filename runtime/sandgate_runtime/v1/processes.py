"""`/v1/processes`: start commands, find them again, follow them, steer them, end them."""

import asyncio
import signal
from typing import TYPE_CHECKING

from starlette.responses import Response

from sandgate_runtime.config import Config
from sandgate_runtime.errors import InvalidRequest, OutcomeUnknown, ProcessNotFound
from sandgate_runtime.exchange import (
    json_answer,
    media_type_of,
    parse_json,
    read_body,
    read_json,
    unless_gone,
    until_gone,
)
from sandgate_runtime.paths import PathRules
from sandgate_runtime.processes.keys import Keys, digest_bytes
from sandgate_runtime.processes.members import parse_members, read_content, read_size, read_switch
from sandgate_runtime.processes.runs import Run, Runs, Wanted, describe_exit
from sandgate_runtime.processes.stdin import CommandInput
from sandgate_runtime.v1.request import parse_wanted
from sandgate_runtime.v1.stream import PING_SECONDS, EventStream

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

EVENT_STREAM = "text/event-stream"
RAW = "application/octet-stream"

MAX_KEY_CHARACTERS = 255
"""Longest Idempotency-Key; a UUID has 36."""

_CHUNKS_AHEAD = 16
"""Of a body that is written to a process; the server hands out 64 to 320 KB at once."""

_SHOWN_WORDS, _SHOWN_CHARACTERS = 64, 256
"""A process is shown with the beginning of its arguments: whole files may ride in them."""


class Processes:
    """The routes."""

    def __init__(
        self,
        runs: Runs,
        keys: Keys,
        rules: PathRules,
        *,
        config: Config,
        ping: float = PING_SECONDS,
    ) -> None:
        self._runs = runs
        self._keys = keys
        self._rules = rules
        self._config = config
        self._ping = ping

    async def create(self, request: "Request") -> "ASGIApp":
        """Start a process; answer with its events, or with 201 and what is known of it."""
        body = await read_body(request, maximum=self._config.max_json_bytes)
        wanted = parse_wanted(
            parse_json(body), self._rules, output_limit=self._config.output_limit_bytes
        )
        streamed = accepts_event_stream(request.headers.getlist("accept"))
        if not streamed and not wanted.detach and not wanted.linger:
            raise InvalidRequest(
                f"without Accept: {EVENT_STREAM} nobody watches the process from its start, "
                "so it needs 'linger_seconds' above 0 or 'detach'"
            )
        key = read_key(request.headers.getlist("idempotency-key"))
        run = await self._start(wanted, key, digest_bytes(body))
        if streamed:
            return EventStream(run, ping=self._ping)
        run.leave()
        answer = json_answer(describe_run(run), status=201)
        answer.headers["location"] = f"/v1/processes/{run.id}"
        return answer

    async def list(self, _request: "Request") -> Response:
        """Tell of all processes that are known, the oldest first."""
        return json_answer({"processes": [describe_run(run) for run in self._runs.list()]})

    async def get(self, request: "Request") -> Response:
        """Tell of one process."""
        return json_answer(describe_run(self._find(request)))

    async def events(self, request: "Request") -> "ASGIApp":
        """Follow a process from its start, or from behind Last-Event-ID."""
        run = self._find(request)
        after = read_last_event_id(request.headers.getlist("last-event-id"))
        return EventStream(run, after=after, ping=self._ping)

    async def stdin(self, request: "Request") -> Response:
        """Write to a process's input; answer when it has taken everything, or takes no more."""
        stdin = self._find(request).open_stdin()
        ahead: asyncio.Queue[bytes] = asyncio.Queue(_CHUNKS_AHEAD)
        if media_type_of(request) == RAW:
            end = _read_flag(request.query_params.getlist("eof"), "eof")
            gone = _read_ahead(request, ahead)
        else:
            body = await read_json(request, maximum=self._config.max_json_bytes)
            members = parse_members(body, frozenset({"text", "base64", "eof"}))
            content, end = read_content(members), read_switch(members.get("eof"), "eof")
            for chunk in (content, b"") if content else (b"",):
                ahead.put_nowait(chunk)
            gone = until_gone(request.receive)
        # The program may never read it: nobody waits for that whose client has left.
        written = await unless_gone(_write(stdin, ahead, end=end), gone)
        return json_answer({"written": written, "open": stdin.open and not end})

    async def signal(self, request: "Request") -> Response:
        """Send a signal to a process's group."""
        run = self._find(request)
        body = await read_json(request, maximum=self._config.max_json_bytes)
        number = read_signal(parse_members(body, frozenset({"signal"})).get("signal"))
        run.running_process().send_signal(number)
        return Response(status_code=204)

    async def resize(self, request: "Request") -> Response:
        """Set the size of a process's terminal."""
        run = self._find(request)
        size = read_size(await read_json(request, maximum=self._config.max_json_bytes), "body")
        run.running_process().resize(size)
        return Response(status_code=204)

    async def remove(self, request: "Request") -> Response:
        """End a process with all that it started, and forget it; answer when it has ended."""
        await self._runs.remove(request.path_params["id"])
        return Response(status_code=204)

    def _find(self, request: "Request") -> Run:
        return self._runs.get(request.path_params["id"])

    async def _start(self, wanted: Wanted, key: str | None, request: str) -> Run:
        """Start what is wanted, or find what the same request has started before."""
        if key is None:
            return self._runs.start(wanted)
        async with self._keys.turn(key) as digest:
            if (known := self._keys.find(digest, request)) is not None:
                return self._find_started(known)
            await self._keys.reserve(digest, request)
            try:
                run = self._runs.start(wanted)
            except BaseException:
                await self._keys.give_back(digest)
                raise
            self._keys.started(digest, run.id)
            return run

    def _find_started(self, run_id: str) -> Run:
        try:
            return self._runs.get(run_id)
        except ProcessNotFound as error:
            raise OutcomeUnknown(
                "this request came before; its process was forgotten, so how it ended is not known"
            ) from error


def describe_run(run: Run) -> dict[str, object]:
    """Return what a client may know of a run."""
    command = run.wanted.command
    log = run.log
    size = command.terminal
    return {
        "id": run.id,
        "pid": run.pid,
        "state": "running" if run.exit is None else "exited",
        "argv": [word[:_SHOWN_CHARACTERS] for word in command.argv[:_SHOWN_WORDS]],
        "cwd": command.cwd,
        "pty": None if size is None else {"cols": size.cols, "rows": size.rows},
        "detach": run.wanted.detach,
        "linger_seconds": run.wanted.linger,
        "watchers": run.watchers,
        "started_at": run.started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "first_event_id": log.first_id,
        "last_event_id": log.last_id,
        "exit": None if run.exit is None else describe_exit(run.exit, log),
    }


def accepts_event_stream(values: "list[str]") -> bool:
    """Say whether the Accept fields name the event stream itself; `*/*` does not ask for one."""
    ranges = [part.partition(";")[0].strip().lower() for part in ",".join(values).split(",")]
    return EVENT_STREAM in ranges


def read_key(values: "list[str]") -> str | None:
    """Return the Idempotency-Key; raise InvalidRequest for one that is none, or came twice."""
    if not values:
        return None
    key = values[0].strip()
    printable = key.isascii() and key.isprintable()
    if len(values) > 1 or not key or not printable or len(key) > MAX_KEY_CHARACTERS:
        raise InvalidRequest(
            f"Idempotency-Key is not one field of 1 to {MAX_KEY_CHARACTERS} printable characters"
        )
    return key


def read_last_event_id(values: "list[str]") -> int:
    """Return the number of the last event that a client has; 0 for none."""
    text = values[-1].strip() if values else ""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise InvalidRequest(f"Last-Event-ID {text[:40]!r} is not the id of an event")
    return int(text)


def read_signal(value: object) -> signal.Signals:
    """Return a signal from its name, with or without SIG, or its number."""
    try:
        if isinstance(value, str):
            name = value.upper()
            return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
        if isinstance(value, int) and not isinstance(value, bool):
            return signal.Signals(value)
    except (KeyError, ValueError):
        pass
    raise InvalidRequest(f"'signal' {value!r:.40} is no signal; say SIGTERM or 15, for example")


async def _read_ahead(request: "Request", ahead: "asyncio.Queue[bytes]") -> None:
    """Put a body into a queue, an empty chunk last, and return when its client has gone."""
    async for chunk in request.stream():
        if chunk:
            await ahead.put(chunk)
    await ahead.put(b"")
    await until_gone(request.receive)


async def _write(stdin: CommandInput, ahead: "asyncio.Queue[bytes]", *, end: bool) -> int:
    """Write what is in a queue up to an empty chunk; return how much was taken."""
    written = 0
    while chunk := await ahead.get():
        written += await stdin.write(chunk)
    if end:
        await stdin.end()
    return written


def _read_flag(values: "list[str]", name: str) -> bool:
    if values not in ([], ["0"], ["1"], ["true"], ["false"]):
        raise InvalidRequest(f"the query's '{name}' is neither true nor false")
    return values in (["1"], ["true"])
