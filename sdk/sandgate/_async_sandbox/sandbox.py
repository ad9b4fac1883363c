"""One claimed sandbox: its names, its commands, its files, and its end."""

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandgate._async_sandbox.commands import LOGIN_SHELL, AsyncCommands
from sandgate._async_sandbox.files import AsyncFiles
from sandgate.errors import SandgateError
from sandgate.types import TerminalSize

if TYPE_CHECKING:
    import httpx
    from websockets.asyncio.client import ClientConnection

    from sandgate._async_sandbox.process import AsyncProcess
    from sandgate._async_transport import AsyncTransport
    from sandgate._wire.lease import Lease
    from sandgate._wire.processes import Command
    from sandgate.types import Claim


class AsyncSandbox:
    """A sandbox in your hand.

    Leaving its `async with` block releases it, also on an exception or a cancellation.
    """

    def __init__(
        self, transport: "AsyncTransport", *, lease: "Lease", env: Mapping[str, str] | None = None
    ) -> None:
        self._transport = transport
        self._lease = lease
        self._env = dict(env or {})
        self.commands: AsyncCommands = AsyncCommands(transport, lease=lease, env=self._env)
        self.files: AsyncFiles = AsyncFiles(transport, lease=lease)

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._lease.claim.sandbox

    @property
    def namespace(self) -> str:
        """The namespace of the sandbox and of its claim."""
        return self._lease.claim.namespace

    @property
    def port(self) -> int:
        """The port on which the server inside the sandbox listens."""
        return self._lease.claim.port

    @property
    def claim(self) -> str:
        """The name of the claim, unique in its namespace; empty where nobody claimed it."""
        return self._lease.claim.name

    @property
    def isolation(self) -> str:
        """What stands between the sandbox and its host: `bubblewrap`, `none` or `unknown`."""
        return self._lease.claim.isolation

    @property
    def record(self) -> "Claim":
        """The claim as the gateway described it when it was made, read or renewed."""
        return self._lease.claim

    async def terminal(
        self,
        command: "Command" = LOGIN_SHELL,
        *,
        cols: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "AsyncProcess":
        """Start a command in a terminal of this size, by default a shell.

        Its output is read by iterating, its keys are pressed by `write_stdin`.
        """
        size = TerminalSize(cols, rows)
        return await self.commands.open_terminal(command, size=size, cwd=cwd, env=env)

    def http(self, port: int | None = None) -> "httpx.AsyncClient":
        """Return an HTTP client for a server inside the sandbox; close it after use.

        Its requests go to paths (`client.get("/health")`) and carry what opens the way. It keeps
        no cookies, follows no redirects and asks no proxies; its errors are those of httpx.
        """
        from sandgate._http import build_async_client

        return build_async_client(self._transport, self._lease, port)

    async def websocket(self, path: str = "/", port: int | None = None) -> "ClientConnection":
        """Open a WebSocket to a server inside the sandbox; needs the extra `websocket`."""
        from sandgate._websocket import connect_async

        return await connect_async(self._transport, self._lease, path, port)

    async def renew(self, *, lease_seconds: float | None = None) -> "Claim":
        """Begin the lease anew, with another length if given; return the claim as it is then."""
        await self._transport.perform(self._lease.renewal(lease_seconds))
        return self.record

    async def release(self) -> None:
        """End the claim and destroy the sandbox; doing so again, or after its end, is no error."""
        await self._transport.perform(self._lease.release())

    def to_json(self) -> str:
        """Return all that `AsyncSandboxes.from_json` needs to go on with it, elsewhere too.

        It holds the sandbox's token and the `env` of the claim: keep it as a secret.
        """
        return self._lease.describe(self._env)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from sandgate._async_transport import finish

        try:
            await finish(self.release())
        except SandgateError as failure:
            if error is None:
                raise
            # What went wrong in the block matters more, and must not be replaced by this.
            error.add_note(f"{self!r} could not be released: {failure}")

    def __repr__(self) -> str:
        state = "released" if self._lease.released else self.record.state
        return (
            f"<AsyncSandbox {self.namespace}/{self.id} {state}, "
            f"claim {self.claim or 'none'}, isolation {self.isolation}>"
        )
