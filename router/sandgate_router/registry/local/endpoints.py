"""The endpoints of one sandbox: one object per port, made when the port is first asked for."""

from collections.abc import Iterator

from sandgate_router.errors import NotAllowedHere
from sandgate_router.names import DEFAULT_PORT, Port
from sandgate_router.registry.base import Endpoint

MAX_PORTS = 256
"""Ports of one sandbox that are remembered. A client that tries all 65,535 costs no more."""


class SandboxEndpoints:
    """Where the ports of one sandbox are dialled."""

    def __init__(self, *, name: str, uid: str, http: str, relay: str | None) -> None:
        self.http = Endpoint(uid=uid, name=name, path=http)
        self._relay = relay
        self._ports: dict[Port, Endpoint] = {}

    def get(self, port: Port) -> tuple[Endpoint, Endpoint | None]:
        """Return the endpoint of `port`, and one that had to make room for it.

        Raises:
            NotAllowedHere: the sandbox is not isolated, and its ports are the machine's.
        """
        if port == DEFAULT_PORT:
            return self.http, None
        known = self._ports.get(port)
        if known is not None:
            return known, None
        if self._relay is None:
            raise NotAllowedHere(
                f"Port {port} is not served: un-isolated sandboxes serve port {DEFAULT_PORT} only,"
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
