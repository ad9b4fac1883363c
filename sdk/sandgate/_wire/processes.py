"""Commands: what is to be run, and the requests of `/v1/processes`."""

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

from sandgate._wire.message import CALL_GAP, Call, Reply, Request, base_fields, nothing
from sandgate._wire.process_answers import parse_process, parse_processes, parse_written
from sandgate._wire.refusals import parse_refusal
from sandgate._wire.route import Route
from sandgate.types import ProcessInfo, TerminalSize, Written

T = TypeVar("T")

EVENT_GAP = 40.0
"""Seconds without a byte after which an event stream is lost: a quiet one carries a comment
every 15, so two in a row are missing."""

LINGER_SECONDS = 30.0
"""How long a command outlives a lost connection, and so how long it can be found again."""

WRITE_GAP = 24 * 3600.0
"""Seconds that a process may take to read its input: it reads when it likes."""

KILL_GAP = 15.0
"""Seconds that the end of a process may take: 2 of grace, and a busy machine."""

Command = str | Sequence[str]
"""A line for the shell, or the words of an argument vector."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What is to be run; made by `parse_spec`, which checks it."""

    members: Mapping[str, object]
    timeout: float | None = None
    linger: float | None = LINGER_SECONDS
    """None: it runs on with nobody watching."""


def parse_spec(
    command: Command,
    *,
    timeout: float | None = None,
    cwd: str | None = None,
    env: Mapping[str, str],
    stdin: str | bytes | None = None,
    open_stdin: bool = False,
    terminal: TerminalSize | None = None,
    detach: bool = False,
) -> Spec:
    """Return what is to be run; raise ValueError or TypeError for what is no command."""
    members = _parse_command(command)
    if timeout is not None:
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout {timeout!r} is not a finite number of seconds above 0")
        members["timeout"] = timeout
    if cwd is not None:
        members["cwd"] = cwd
    if env:
        members["env"] = dict(env)
    if stdin is not None or open_stdin:
        members["stdin"] = _build_stdin(stdin, is_open=open_stdin)
    if terminal is not None:
        members["pty"] = {"cols": terminal.cols, "rows": terminal.rows}
    if detach:
        members["detach"] = True
        return Spec(members, timeout, None)
    members["linger_seconds"] = LINGER_SECONDS
    return Spec(members, timeout)


@dataclass(frozen=True, slots=True)
class Processes:
    """Builds the calls about one sandbox's processes for one route."""

    route: Route

    def run(self, spec: Spec, *, key: str) -> Call[None]:
        """Start a command and watch it.

        The answer is a stream: `decode` is for one that is no success, and raises.
        """
        # No X-Sandbox-Timeout: the comments on the stream keep it alive for as long as it takes.
        return self._call(
            "POST",
            "",
            nothing,
            accept="text/event-stream",
            fields=[("content-type", "application/json"), ("idempotency-key", key)],
            body=json.dumps(spec.members).encode(),
            gap=EVENT_GAP,
        )

    def start(self, spec: Spec, *, key: str) -> Call[ProcessInfo]:
        """Start a command and have its id at once."""
        return self._json("POST", "", parse_process, spec.members, key=key)

    def follow(self, id_: str, *, after: int) -> Call[None]:
        """Watch a process from behind an event; the answer is a stream."""
        return self._call(
            "GET",
            f"{_one(id_)}/events",
            nothing,
            accept="text/event-stream",
            fields=[("last-event-id", str(after))] if after else [],
            gap=EVENT_GAP,
        )

    def list_all(self) -> Call[list[ProcessInfo]]:
        """List the processes."""
        return self._call("GET", "", parse_processes)

    def read(self, id_: str) -> Call[ProcessInfo]:
        """Read what is known of a process."""
        return self._call("GET", _one(id_), parse_process)

    def write(self, id_: str, data: bytes, *, eof: bool) -> Call[Written]:
        """Write to a process; answered when it has taken everything."""
        return self._call(
            "POST",
            f"{_one(id_)}/stdin{'?eof=1' if eof else ''}",
            parse_written,
            fields=[("content-type", "application/octet-stream")],
            body=data,
            gap=WRITE_GAP,
        )

    def signal(self, id_: str, signal: str | int) -> Call[None]:
        """Send a signal."""
        return self._json("POST", f"{_one(id_)}/signal", nothing, {"signal": signal})

    def resize(self, id_: str, size: TerminalSize) -> Call[None]:
        """Set the size of a terminal."""
        members = {"cols": size.cols, "rows": size.rows}
        return self._json("POST", f"{_one(id_)}/resize", nothing, members)

    def kill(self, id_: str) -> Call[None]:
        """End a process with all that it started."""
        return self._call("DELETE", _one(id_), nothing, gap=KILL_GAP)

    def _json(
        self,
        method: str,
        target: str,
        parse: Callable[[Reply], T],
        members: Mapping[str, object],
        *,
        key: str | None = None,
    ) -> Call[T]:
        fields = [("content-type", "application/json")]
        if key is not None:
            fields.append(("idempotency-key", key))
        return self._call(method, target, parse, fields=fields, body=json.dumps(members).encode())

    def _call(
        self,
        method: str,
        target: str,
        parse: Callable[[Reply], T],
        *,
        accept: str = "application/json",
        fields: list[tuple[str, str]] | None = None,
        body: bytes = b"",
        gap: float = CALL_GAP,
    ) -> Call[T]:
        def decode(reply: Reply) -> T:
            if not 200 <= reply.status < 300:
                raise parse_refusal(reply, method=method)
            return parse(reply)

        all_fields = [*base_fields(accept=accept), *(fields or []), *self.route.fields()]
        request = Request(
            method, f"/v1/processes{target}", all_fields, body, gap, self.route.origin
        )
        return Call(request, decode)


def _one(id_: str) -> str:
    return f"/{quote(id_, safe='')}"


def _parse_command(command: Command) -> dict[str, object]:
    if isinstance(command, str):
        return {"shell": command}
    argv = list(command)
    if not argv:
        raise ValueError("command is empty: it has no program to run")
    # Bytes are a sequence of integers, and would else arrive as such.
    if not all(isinstance(word, str) for word in argv):
        raise TypeError(f"command {command!r:.60} is neither a string nor a sequence of strings")
    return {"argv": argv}


def _build_stdin(stdin: str | bytes | None, *, is_open: bool) -> object:
    content = stdin.encode() if isinstance(stdin, str) else stdin or b""
    members: dict[str, object] = {"base64": base64.b64encode(content).decode()}
    return {**members, "open": True} if is_open else members
