"""A scripted gateway without processes and sockets, for unit tests of programs that use one.

It stands where the network would: the handle on it is the real one, with its errors, and sends
and reads what it always does. Commands answer what their script says; files are kept in memory.
What it cannot do it refuses with `NotSupported`, and never pretends.
"""

import itertools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import httpx

from sandgate.connections import Gateway
from sandgate.testing.fake_sandbox import FakeSandbox, answer, refuse
from sandgate.types import CommandResult

if TYPE_CHECKING:
    from sandgate import AsyncSandboxes, Sandboxes

Script = str | bytes | CommandResult | Callable[[str], "str | bytes | CommandResult"]
"""What a command answers: its standard output, a whole result, or what a function returns that
gets the command line."""

URL = "http://fake.invalid"


class FakeGateway:
    """A gateway whose sandboxes know some commands.

    >>> fake = FakeGateway({"make test": CommandResult("", "no rule", 2, "exited", 0.1)})
    >>> with fake.sandboxes() as sandboxes, sandboxes.claim("python") as sandbox:
    ...     sandbox.files.write("Makefile", "")
    ...     sandbox.commands.run("make test").exit_code
    2
    >>> fake.commands
    ['make test']
    """

    def __init__(self, commands: Mapping[str, Script] | None = None) -> None:
        """`commands` maps command lines to answers; a list of words is looked up quoted.

        A command that is not scripted ends with 127, as a missing program does.
        """
        self.script: dict[str, Script] = dict(commands or {})
        self.commands: list[str] = []
        """The command lines that were run, in order."""
        self.live: dict[str, FakeSandbox] = {}
        """The sandboxes of live claims, by claim."""
        self._numbers = itertools.count(1)

    def sandboxes(self) -> "Sandboxes":
        """Return a handle on it."""
        from sandgate import Sandboxes
        from sandgate._transport import Transport

        transport = Transport(Gateway(URL), http=_FakeTransport(self))
        handle = Sandboxes.__new__(Sandboxes)
        handle._open(Gateway(URL), transport)  # noqa: SLF001 - the network alone is replaced
        return handle

    def async_sandboxes(self) -> "AsyncSandboxes":
        """Return a handle on it for asyncio."""
        from sandgate import AsyncSandboxes
        from sandgate._async_transport import AsyncTransport

        transport = AsyncTransport(Gateway(URL), http=_AsyncFakeTransport(self))
        handle = AsyncSandboxes.__new__(AsyncSandboxes)
        handle._open(Gateway(URL), transport)  # noqa: SLF001 - the network alone is replaced
        return handle

    def answer(self, request: httpx.Request, content: bytes) -> httpx.Response:
        """Answer a request as a gateway and its sandboxes would."""
        target = request.extensions.get("target", request.url.raw_path).decode()
        sandbox = request.headers.get("x-sandbox-id")
        if sandbox is None:
            return self._control(request, target, content)
        for one in self.live.values():
            if one.id == sandbox:
                return one.answer(request, target, content)
        return refuse(404, "sandbox_not_found", "No such sandbox.")

    def run(self, line: str) -> CommandResult:
        """Return what a command line answers."""
        self.commands.append(line)
        script: Script = self.script.get(
            line, CommandResult("", f"{line}: not scripted\n", 127, "exited", 0.0)
        )
        result = script(line) if callable(script) else script
        if isinstance(result, CommandResult):
            return result
        text = result if isinstance(result, str) else result.decode(errors="replace")
        raw = result.encode() if isinstance(result, str) else result
        return CommandResult(text, "", 0, "exited", 0.0, stdout_bytes=raw)

    def _control(self, request: httpx.Request, target: str, content: bytes) -> httpx.Response:
        path, _, query = target.partition("?")
        method, parts = request.method, path.strip("/").split("/")
        match (method, parts):
            case ("POST", ["v1", "claims"]):
                return self._claim(content)
            case ("GET", ["v1", "claims"]):
                return answer(200, {"claims": [one.claim for one in self.live.values()]})
            case ("GET", ["v1", "pools"]):
                return answer(200, {"pools": []})
            case ("DELETE", ["v1", "claims", _, name]):
                if self._is_meant(name, query):
                    del self.live[name]
                return answer(204)
            case ("GET", ["v1", "claims", _, name]) | ("POST", ["v1", "claims", _, name, "renew"]):
                if self._is_meant(name, query):
                    return answer(200, self.live[name].claim)
                return refuse(404, "claim_not_found", "No such claim.")
        return refuse(501, "not_implemented", f"A fake gateway has no {method} {target}.")

    def _is_meant(self, name: str, query: str) -> bool:
        uid = httpx.QueryParams(query).get("uid")
        return name in self.live and uid in {None, self.live[name].claim["uid"]}

    def _claim(self, content: bytes) -> httpx.Response:
        wanted = json.loads(content)
        number = next(self._numbers)
        name = wanted.get("name") or f"claim-{number}"
        if name in self.live:
            return refuse(409, "claim_exists", "A live claim has that name.")
        claim = {
            "claim": name,
            "namespace": wanted.get("namespace", "default"),
            "sandbox": f"fake-{number}",
            "uid": f"uid-{number}",
            "pool": wanted["pool"],
            "isolation": "none",
            "labels": wanted.get("labels", {}),
            "launch": "warm",
        }
        self.live[name] = FakeSandbox(f"fake-{number}", claim, self.run)
        return answer(201, claim)


class _FakeTransport(httpx.BaseTransport):
    def __init__(self, fake: FakeGateway) -> None:
        self._fake = fake

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return _unread(self._fake.answer(request, request.read()))


class _AsyncFakeTransport(httpx.AsyncBaseTransport):
    def __init__(self, fake: FakeGateway) -> None:
        self._fake = fake

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return _unread(self._fake.answer(request, await request.aread()))


def _unread(response: httpx.Response) -> httpx.Response:
    """Return an answer as it comes from a network, its content still to be read."""
    stream = httpx.ByteStream(response.content)
    return httpx.Response(response.status_code, headers=response.headers, stream=stream)
