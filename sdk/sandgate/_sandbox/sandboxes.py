"""The way in: claim sandboxes from the pools of one gateway."""

import os
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from sandgate._sandbox.sandbox import Sandbox
from sandgate._wire.control import Control, build_claim
from sandgate.errors import ClaimNotFound, Forbidden, GatewayUnreachable, SandboxFailed

if TYPE_CHECKING:
    from sandgate._wire.message import Call
    from sandgate.connections import Gateway
    from sandgate.types import Claim, PoolStatus

OnEmpty = Literal["wait", "fail", "cold"]
"""What a claim does where no member is ready: wait for one, fail, or start one."""


class Sandboxes:
    """The sandboxes of one gateway; leaving its `with` block closes the connections.

    Claims outlive it, until they are released or their lease ends.
    """

    def __init__(self, connection: "Gateway") -> None:
        # Only here: httpx costs about 100 ms where click and rich are installed, and a program
        # that imports this package may never open a connection.
        from sandgate._transport import Transport

        self._gateway = connection
        self._transport = Transport(connection)
        self._control = Control(token=connection.token)

    def claim(
        self,
        pool: str,
        *,
        namespace: str = "default",
        name: str | None = None,
        lease_seconds: float | None = None,
        labels: Mapping[str, str] | None = None,
        wait_seconds: float | None = None,
        on_empty: OnEmpty | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Sandbox:
        """Claim a sandbox from a pool; None leaves a choice to the pool.

        `env` stays here and goes with each command. Raises PoolNotFound, PoolExhausted,
        ClaimExists and others of `sandgate.errors`.
        """
        body = build_claim(
            pool,
            namespace=namespace,
            name=name,
            lease_seconds=lease_seconds,
            labels=labels,
            wait_seconds=wait_seconds,
            on_empty=on_empty,
        )
        claim = self._claim(self._control.claim(body, key=os.urandom(16).hex()))
        return self._open(claim, env)

    def get(
        self, claim: str, *, namespace: str = "default", env: Mapping[str, str] | None = None
    ) -> Sandbox:
        """Return the sandbox of a live claim, as its maker named it, its lease begun anew.

        Raises:
            ClaimNotFound: there is no such claim.
            SandboxFailed: its sandbox died; the claim is still to be released.
        """
        record = self._transport.call(self._control.read(claim, namespace=namespace))
        if record.state == "failed":
            reason = record.reason or "no reason is known"
            raise SandboxFailed(f"the sandbox of {namespace}/{claim} failed: {reason}")
        return self._open(self._renew(record), env)

    def release(self, claim: str, *, namespace: str = "default") -> None:
        """End a claim by its name; one that is gone already is no error."""
        self._transport.call(self._control.release(claim, namespace=namespace))

    def pools(self) -> "list[PoolStatus]":
        """Return the pools as they stand."""
        return self._transport.call(self._control.pools())

    def close(self) -> None:
        """Close the connections; commands that still run are killed."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Sandboxes at {self._gateway.url}>"

    def _open(self, claim: "Claim", env: Mapping[str, str] | None) -> Sandbox:
        return Sandbox(
            self._transport,
            control=self._control,
            claim=claim,
            env=env,
            router_token=self._gateway.router_token,
        )

    def _renew(self, record: "Claim") -> "Claim":
        """Return the claim with a token, which only a renewal tells of a claim that exists."""
        call = self._control.renew(record.name, namespace=record.namespace)
        try:
            renewal = self._transport.call(call)
        except (ClaimNotFound, Forbidden):
            # Who may read it and no more gets no token; there are gateways that ask for none.
            return record
        return replace(record, token=renewal.token, expires_at=renewal.expires_at)

    def _claim(self, call: "Call[Claim]") -> "Claim":
        try:
            return self._transport.call(call)
        except GatewayUnreachable as error:
            if error.reached == "no":
                raise
            # The answer was lost, perhaps with a claim in it that nobody would ever release.
            # Its idempotency key makes the second try give that same claim.
            return self._transport.call(call)
