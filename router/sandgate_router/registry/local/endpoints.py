"""The endpoints of one sandbox: one object per port, made when the port is first asked for."""

from collections.abc import Iterator

from sandgate_router.errors import NotAllowedHere
from sandgate_router.names import DEFAULT_PORT, Port
from sandgate_router.registry.base import Endpoint

MAX_PORTS = 256
"""Ports of one sandbox that are remembered. A client that tries all 65,535 costs no more."""


class SandboxEndpoints:
    """Where the ports of one sandbox are dialled."""

    def __init__(
        self,
        *,
        name: str,
        uid: str,
        http: str,
        relay: str | None,
        kind: str = "un-isolated sandboxes",
    ) -> None:
        """Take where it is dialled; without a `relay`, `kind` says of whom that is true."""
        self.http = Endpoint(uid=uid, name=name, path=http)
        self._relay = relay
        self._kind = kind
        self._ports: dict[Port, Endpoint] = {}

    @property
    def has_relay(self) -> bool:
        """Whether ports other than the runtime's are served."""
        return self._relay is not None

    def get(self, port: Port) -> tuple[Endpoint, Endpoint | None]:
        """Return the endpoint of `port`, and one that had to make room for it.

        Raises:
            NotAllowedHere: the sandbox's ports are the machine's.
        """
        if port == DEFAULT_PORT:
            return self.http, None
        known = self._ports.get(port)
        if known is not None:
            return known, None
        if self._relay is None:
            raise NotAllowedHere(
                f"Port {port} is not served: {self._kind} serve port {DEFAULT_PORT} only,"
                " because any other port would be one of the gateway's own machine."
            )
        made_room = None
        if len(self._ports) >= MAX_PORTS:
            made_room = self._ports.pop(next(iter(self._ports)))
        endpoint = Endpoint(
            uid=self.http.uid, name=self.http.name, path=self._relay, relay_port=port
        )
        self._ports[port] = endpoint
        return endpoint, made_room

    def __iter__(self) -> Iterator[Endpoint]:
        yield self.http
        yield from self._ports.values()
