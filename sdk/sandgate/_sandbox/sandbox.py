"""One claimed sandbox: its names, its commands, its files, and its end."""

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandgate._sandbox.commands import LOGIN_SHELL, Commands
from sandgate._sandbox.files import Files
from sandgate.errors import SandgateError
from sandgate.types import TerminalSize

if TYPE_CHECKING:
    import httpx
    from websockets.sync.client import ClientConnection

    from sandgate._sandbox.process import Process
    from sandgate._transport import Transport
    from sandgate._wire.lease import Lease
    from sandgate._wire.processes import Command
    from sandgate.types import Claim


class Sandbox:
    """A sandbox in your hand; leaving its `with` block releases it, also on an exception."""

    def __init__(
        self, transport: "Transport", *, lease: "Lease", env: Mapping[str, str] | None = None
    ) -> None:
        self._transport = transport
        self._lease = lease
        self._env = dict(env or {})
        self.commands: Commands = Commands(transport, lease=lease, env=self._env)
        self.files: Files = Files(transport, lease=lease)

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

    def terminal(
        self,
        command: "Command" = LOGIN_SHELL,
        *,
        cols: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "Process":
        """Start a command in a terminal of this size, by default a shell.

        Its output is read by iterating, its keys are pressed by `write_stdin`.
        """
        size = TerminalSize(cols, rows)
        return self.commands.open_terminal(command, size=size, cwd=cwd, env=env)

    def http(self, port: int | None = None) -> "httpx.Client":
        """Return an HTTP client for a server inside the sandbox; close it after use.

        Its requests go to paths (`client.get("/health")`) and carry what opens the way. It keeps
        no cookies, follows no redirects and asks no proxies; its errors are those of httpx.
        """
        from sandgate._http import build_client

        return build_client(self._transport, self._lease, port)

    def websocket(self, path: str = "/", port: int | None = None) -> "ClientConnection":
        """Open a WebSocket to a server inside the sandbox; needs the extra `websocket`."""
        from sandgate._websocket import connect

        return connect(self._transport, self._lease, path, port)

    def renew(self, *, lease_seconds: float | None = None) -> "Claim":
        """Begin the lease anew, with another length if given; return the claim as it is then."""
        self._transport.perform(self._lease.renewal(lease_seconds))
        return self.record

    def release(self) -> None:
        """End the claim and destroy the sandbox; doing so again, or after its end, is no error."""
        self._transport.perform(self._lease.release())

    def to_json(self) -> str:
        """Return all that `Sandboxes.from_json` needs to go on with it, elsewhere too.

        It holds the sandbox's token and the `env` of the claim: keep it as a secret.
        """
        return self._lease.describe(self._env)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except SandgateError as failure:
            if error is None:
                raise
            # What went wrong in the block matters more, and must not be replaced by this.
            error.add_note(f"{self!r} could not be released: {failure}")

    def __repr__(self) -> str:
        state = "released" if self._lease.released else self.record.state
        return (
            f"<Sandbox {self.namespace}/{self.id} {state}, "
            f"claim {self.claim or 'none'}, isolation {self.isolation}>"
        )
