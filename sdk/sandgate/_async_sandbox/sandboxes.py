"""The way in: claim sandboxes from the pools of one gateway."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from sandgate._async_sandbox.renewing import AsyncRenewing
from sandgate._async_sandbox.sandbox import AsyncSandbox
from sandgate._origin import build_access, direct_claim
from sandgate._settings import default_connection
from sandgate._wire.claiming import claim_once, find_claim, list_claims
from sandgate._wire.claims import DEFAULT_PORT, Grant
from sandgate._wire.control import build_claim
from sandgate._wire.feeds import gateway_events
from sandgate._wire.lease import Lease, parse_description
from sandgate.errors import SandgateError
from sandgate.types import Claim

if TYPE_CHECKING:
    import builtins

    from sandgate._async_transport import AsyncTransport
    from sandgate._wire.message import Call
    from sandgate.connections import Connection
    from sandgate.types import GatewayEvent, PoolStatus

OnEmpty = Literal["wait", "fail", "cold"]
"""What a claim does where no member is ready: wait for one, fail, or start one."""

GRANT_SECONDS = 5.0
"""How long a cancelled task waits for the claim that it has asked for, to release it."""


class AsyncSandboxes:
    """The sandboxes of one gateway; leaving its `async with` block closes the connections.

    Without a connection it is the gateway that the settings name: SANDGATE_URL and
    SANDGATE_TOKEN, else the config file, else the one on this machine. While it is open, the
    leases and tokens of its sandboxes are renewed in the background. Claims outlive it, until
    they are released or their lease ends.

    Made and used in one event loop.

    >>> import asyncio
    >>> from sandgate.testing import FakeGateway
    >>> async def main():
    ...     async with FakeGateway({"true": ""}).async_sandboxes() as sandboxes:
    ...         async with await sandboxes.claim("python") as sandbox:
    ...             return (await sandbox.commands.run("true")).exit_code
    >>> asyncio.run(main())
    0
    """

    def __init__(self, connection: "Connection | None" = None) -> None:
        # Only here: httpx costs about 100 ms where click and rich are installed, and a program
        # that imports this package may never open a connection.
        from sandgate._async_transport import AsyncTransport

        connection = default_connection() if connection is None else connection
        self._open(connection, AsyncTransport(connection))

    def _open(self, connection: "Connection", transport: "AsyncTransport") -> None:
        self._transport = transport
        self._access = build_access(connection)
        self._direct = direct_claim(connection)
        self._renewing = AsyncRenewing(transport)

    async def claim(
        self,
        pool: str,
        *,
        namespace: str = "default",
        name: str | None = None,
        lease_seconds: float | None = None,
        idle_seconds: float | None = None,
        labels: Mapping[str, str] | None = None,
        ports: Sequence[int] | None = None,
        wait_seconds: float | None = None,
        on_empty: OnEmpty | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncSandbox:
        """Claim a sandbox from a pool; None leaves a choice to the pool.

        `env` stays here and goes with each command. Raises PoolNotFound, PoolExhausted,
        ClaimExists and others of `sandgate.errors`.
        """
        if self._direct is not None:
            return self._hold(Grant(self._direct, None), env)
        body = build_claim(
            pool,
            namespace=namespace,
            name=name,
            lease_seconds=lease_seconds,
            idle_seconds=idle_seconds,
            labels=labels,
            ports=None if ports is None else [*ports],
            wait_seconds=wait_seconds,
            on_empty=on_empty,
        )
        call = self._access.control.claim(body, key=os.urandom(16).hex())
        return self._hold(await self._ask(call), env)

    async def get(
        self, claim: str, *, namespace: str = "default", env: Mapping[str, str] | None = None
    ) -> AsyncSandbox:
        """Return the sandbox of a live claim, as its maker named it, its lease begun anew.

        Raises:
            ClaimNotFound: there is no such claim.
            SandboxFailed: its sandbox died; the claim is still to be released.
        """
        flow = find_claim(self._access.control, claim, namespace=namespace)
        return self._hold(await self._transport.perform(flow), env)

    def attach(
        self,
        sandbox_id: str,
        *,
        namespace: str = "default",
        port: int = DEFAULT_PORT,
        token: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncSandbox:
        """Return a sandbox that nobody claims, such as one of a static file, by its id.

        A release leaves it as it is. Nothing is asked here: whether it is there shows in use.
        """
        claim = Claim("", namespace, sandbox_id, port, "unknown", token=token)
        return self._hold(Grant(claim, None), env)

    def from_json(self, text: str) -> AsyncSandbox:
        """Return the sandbox that `AsyncSandbox.to_json` described; its lease is renewed soon.

        Raises:
            ValueError: the text is no such description.
        """
        claim, env = parse_description(text)
        return self._hold(Grant(claim, None), env, soon=True)

    async def list(
        self,
        *,
        namespace: str | None = None,
        pool: str | None = None,
        label_selector: str | None = None,
    ) -> "builtins.list[Claim]":
        """Return the live claims, oldest first; a selector is as in Kubernetes: `app=web,!old`."""
        flow = list_claims(
            self._access.control, namespace=namespace, pool=pool, label_selector=label_selector
        )
        return await self._transport.perform(flow)

    async def release(self, claim: str, *, namespace: str = "default") -> None:
        """End a claim by its name; one that is gone already is no error."""
        await self._transport.call(self._access.control.release(claim, namespace=namespace))

    async def pools(self) -> "builtins.list[PoolStatus]":
        """Return the pools as they stand."""
        return await self._transport.call(self._access.control.pools())

    def events(self) -> "AsyncGenerator[GatewayEvent, None]":
        """Yield what happens to claims and pools from now on, until the iterator is closed.

        A lost connection is made again; where events were lost, `stream.reset` says so.
        """
        return self._transport.follow(gateway_events(self._access.control))

    async def close(self) -> None:
        """Stop renewing and close the connections; commands that still run lose their watcher."""
        await self._renewing.stop()
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from sandgate._async_transport import finish

        await finish(self.close())

    def __repr__(self) -> str:
        return f"<AsyncSandboxes at {self._transport.origin.label}>"

    async def _ask(self, call: "Call[Grant]") -> Grant:
        """Claim; where the task is cancelled, give back what nobody would ever release."""
        from sandgate._async_transport import finish

        asked = asyncio.ensure_future(self._transport.perform(claim_once(call)))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            await finish(self._give_back(asked))
            raise

    async def _give_back(self, asked: "asyncio.Future[Grant]") -> None:
        await asyncio.wait([asked], timeout=GRANT_SECONDS)
        asked.cancel()
        await asyncio.wait([asked])
        with suppress(SandgateError, asyncio.CancelledError):  # the cancellation matters more
            lease = Lease(self._access, asked.result(), clock=time.monotonic)
            await self._transport.perform(lease.release())

    def _hold(
        self, grant: Grant, env: Mapping[str, str] | None, *, soon: bool = False
    ) -> AsyncSandbox:
        lease = Lease(self._access, grant, clock=time.monotonic, soon=soon)
        self._renewing.add(lease)
        return AsyncSandbox(self._transport, lease=lease, env=env)
