"""One claimed sandbox: its names, its commands, its files, and its end."""

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandgate._sandbox.commands import Commands
from sandgate._sandbox.files import Files
from sandgate._wire.control import Control
from sandgate._wire.route import Route
from sandgate.errors import SandgateError

if TYPE_CHECKING:
    from sandgate._transport import Transport
    from sandgate.types import Claim


class Sandbox:
    """A sandbox in your hand; leaving its `with` block releases it, also on an exception."""

    def __init__(
        self,
        transport: "Transport",
        *,
        control: Control,
        claim: "Claim",
        env: Mapping[str, str] | None = None,
        router_token: str | None = None,
    ) -> None:
        route = Route(claim.sandbox, claim.namespace, claim.port, claim.token, router_token)
        self._transport = transport
        self._control = control
        self._record = claim
        self._released = False
        self.commands = Commands(transport, route=route, env=env)
        self.files = Files(transport, route=route)

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._record.sandbox

    @property
    def namespace(self) -> str:
        """The namespace of the sandbox and of its claim."""
        return self._record.namespace

    @property
    def port(self) -> int:
        """The port on which the server inside the sandbox listens."""
        return self._record.port

    @property
    def claim(self) -> str:
        """The name of the claim, unique in its namespace."""
        return self._record.name

    @property
    def isolation(self) -> str:
        """What stands between the sandbox and its host: `bubblewrap`, `none` or `unknown`."""
        return self._record.isolation

    @property
    def record(self) -> "Claim":
        """The claim as the gateway described it when it was made or read."""
        return self._record

    def release(self) -> None:
        """End the claim and destroy the sandbox; doing so again, or after its end, is no error."""
        if not self._released:
            self._transport.call(self._control.release(self.claim, namespace=self.namespace))
            self._released = True

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
        state = "released" if self._released else self._record.state
        return (
            f"<Sandbox {self.namespace}/{self.id} {state}, "
            f"claim {self.claim}, isolation {self.isolation}>"
        )
