"""One sandbox of a fake gateway: scripted commands, and files in memory."""

import base64
import itertools
import json
import posixpath
import shlex
from collections.abc import Callable, Mapping
from urllib.parse import unquote

import httpx

from sandgate.types import CommandResult

HOME = "/home/user"


class FakeSandbox:
    """Answers the requests of the handle as a runtime would."""

    def __init__(
        self, id_: str, claim: Mapping[str, object], run: Callable[[str], CommandResult]
    ) -> None:
        self.id = id_
        self.claim = claim
        self.files: dict[str, bytes] = {}
        """Content by absolute path."""
        self._run = run
        self._events: dict[str, bytes] = {}
        self._numbers = itertools.count(1)

    def answer(self, request: httpx.Request, target: str, content: bytes) -> httpx.Response:
        """Answer a request."""
        path, _, query = target.partition("?")
        if path == "/v1/processes" and request.method == "POST":
            return self._start(request, json.loads(content))
        if path.startswith("/v1/processes/"):
            return self._process(request, path.split("/")[3:])
        if path.startswith("/v1/files/") and "glob=" not in query and "grep=" not in query:
            return self._file(request, unquote(path.removeprefix("/v1/files/")), content)
        return refuse(501, "not_implemented", f"A fake sandbox has no {request.method} {target}.")

    def _start(self, request: httpx.Request, wanted: Mapping[str, object]) -> httpx.Response:
        argv = wanted.get("argv")
        line = shlex.join(argv) if isinstance(argv, list) else str(wanted["shell"])
        id_ = f"p-{next(self._numbers)}"
        self._events[id_] = _build_events(id_, self._run(line))
        if request.headers.get("accept") == "text/event-stream":
            return self._stream(id_)
        return answer(201, {"id": id_, "pid": 1, "state": "exited", "argv": [line]})

    def _process(self, request: httpx.Request, parts: list[str]) -> httpx.Response:
        id_ = parts[0]
        if id_ not in self._events:
            return deny(404, "process_not_found", "no process has this id")
        match (request.method, parts[1:]):
            case ("GET", ["events"]):
                return self._stream(id_)
            case ("GET", []):
                return answer(200, {"id": id_, "pid": 1, "state": "exited", "argv": []})
            case ("DELETE", []):
                del self._events[id_]
                return answer(204)
        return deny(409, "process_ended", "a scripted process has ended when it starts")

    def _stream(self, id_: str) -> httpx.Response:
        return httpx.Response(
            200, headers={"content-type": "text/event-stream"}, content=self._events[id_]
        )

    def _file(self, request: httpx.Request, path: str, content: bytes) -> httpx.Response:
        place = posixpath.normpath(posixpath.join(HOME, path))
        if request.method == "PUT":
            self.files[place] = content
            return answer(204)
        below = {name: data for name, data in self.files.items() if name.startswith(f"{place}/")}
        if place not in self.files and not below and place != HOME:
            return deny(404, "file_not_found", f"{path!r}: nothing is there")
        if request.method == "DELETE":
            for name in [place, *below]:
                self.files.pop(name, None)
            return answer(204)
        if request.method not in {"GET", "HEAD"}:
            return refuse(501, "not_implemented", "A fake sandbox cannot move or make directories.")
        if place in self.files:
            return httpx.Response(200, content=self.files[place])
        return answer(200, {"entries": _list(place, below)})


def answer(status: int, value: object = None) -> httpx.Response:
    """Return an answer, with a JSON value if one is given."""
    if value is None:
        return httpx.Response(status)
    return httpx.Response(status, json=value)


def refuse(status: int, code: str, detail: str) -> httpx.Response:
    """Return a refusal of the gateway."""
    body = {"detail": detail, "code": code, "reached": "no", "retry_safe": True}
    return httpx.Response(status, json=body, headers={"x-sandbox-error": code})


def deny(status: int, reason: str, message: str) -> httpx.Response:
    """Return a refusal of the runtime."""
    return answer(status, {"code": "FAILED_PRECONDITION", "reason": reason, "message": message})


def _list(place: str, below: Mapping[str, bytes]) -> list[dict[str, object]]:
    entries: dict[str, dict[str, object]] = {}
    for path, data in below.items():
        name, slash, _ = path.removeprefix(f"{place}/").partition("/")
        kind, size = ("directory", 0) if slash else ("file", len(data))
        entries[name] = {"name": name, "type": kind, "size": size, "mode": "0644"}
    return [entries[name] for name in sorted(entries)]


def _build_events(id_: str, result: CommandResult) -> bytes:
    stdout = result.stdout_bytes or result.stdout.encode()
    stderr = result.stderr_bytes or result.stderr.encode()
    exit_ = {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason,
        "truncated": {"stdout": int(result.truncated), "stderr": 0},
        "duration": result.duration,
    }
    events: list[tuple[str, object]] = [("started", {"id": id_, "pid": 1})]
    for stream, data in (("stdout", stdout), ("stderr", stderr)):
        if data:
            events.append((stream, {"data": base64.b64encode(data).decode()}))
    events.append(("exit", exit_))
    return "".join(
        f"id: {number}\nevent: {name}\ndata: {json.dumps(members)}\n\n"
        for number, (name, members) in enumerate(events, 1)
    ).encode()
