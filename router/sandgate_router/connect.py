"""A live connection to what a request asks for: found, dialled, told whom it belongs to.

Only here anything is tried again, since no byte of a request has left yet. A sandbox that is
released meanwhile is not found: nobody is sent to a dying or recycled address.
"""

from dataclasses import dataclass

from sandgate_router.errors import GatewayError, SandboxNotFound
from sandgate_router.metrics import RequestMetrics
from sandgate_router.registry.base import Endpoint
from sandgate_router.resolve import Resolver
from sandgate_router.target import Routing, Target
from sandgate_router.upstream import UpstreamConnection, UpstreamPool


@dataclass(frozen=True, slots=True)
class Connector:
    """Opens connections to sandboxes."""

    resolver: Resolver
    pool: UpstreamPool
    metrics: RequestMetrics
    cluster_domain: bytes

    def pooled(
        self, routing: Routing, uid: str | None
    ) -> tuple[Endpoint | None, UpstreamConnection | None]:
        """Return the endpoint, if the table has it, and an idle connection to it, if there is one.

        Args:
            uid: the only generation that the caller may reach; None is any.

        Raises:
            SandboxReplaced, NotAllowedHere: the request may not have it.
        """
        endpoint = self.resolver.endpoint(routing, uid)
        return endpoint, None if endpoint is None else self.pool.acquire(endpoint)

    async def open(
        self, routing: Routing, endpoint: Endpoint | None, *, uid: str | None
    ) -> UpstreamConnection:
        """Return a fresh connection, asking the registry first when `endpoint` is None.

        An endpoint that leaves the table meanwhile is looked up once more: where a sandbox was
        replaced, its successor is there by then.

        Raises:
            SandboxNotFound, SandboxReplaced, ConnectionRefused, ConnectionTimeout.
        """
        if endpoint is None:
            endpoint = await self.resolver.find(routing, uid)
        connection = await self._dial(routing.target, endpoint)
        if connection is None:
            endpoint = self.resolver.endpoint(routing, uid)
            if endpoint is None:
                endpoint = await self.resolver.find(routing, uid)
            connection = await self._dial(routing.target, endpoint)
        if connection is None:
            raise SandboxNotFound
        return connection

    async def _dial(self, target: Target, endpoint: Endpoint) -> UpstreamConnection | None:
        """Return a fresh connection; None when the endpoint has left the table."""

        def again() -> bool:
            self.metrics.count_upstream_retry(target.namespace)
            return not self.resolver.is_gone(endpoint)

        try:
            connection = await self.pool.dial(endpoint, again=again)
        except GatewayError:
            if self.resolver.is_gone(endpoint):
                return None
            raise
        if self.resolver.is_gone(endpoint):
            connection.abort()
            return None
        connection.host = _build_host(target, self.cluster_domain)
        connection.expectations = _build_expectations(endpoint)
        return connection

    def forget(self, endpoint: Endpoint) -> None:
        """End all traffic with an endpoint that left the registry's table."""
        self.resolver.forget(endpoint)
        self.pool.close_endpoint(endpoint)

    async def close(self) -> None:
        """End every look-up and connection."""
        await self.resolver.close()
        self.pool.close()


def _build_host(target: Target, cluster_domain: bytes) -> bytes:
    """Return the name under which the sandbox is asked, whatever address is dialled."""
    name = f"{target.sandbox}.{target.namespace}.svc.".encode()
    return b"%b%b:%d" % (name, cluster_domain, target.port)


def _build_expectations(endpoint: Endpoint) -> bytes:
    """Return the lines that tell the runtime whom we believe it to be; it answers 421 if not."""
    if endpoint.uid is None:
        return b""
    return b"X-Sandbox-Expect-UID: %b\r\nX-Sandbox-Expect-Name: %b\r\n" % (
        endpoint.uid.encode(),
        endpoint.name.encode(),
    )
