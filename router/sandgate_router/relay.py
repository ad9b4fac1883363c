"""What all exchanges with sandboxes share: connections, limits, and one sweep over deadlines."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandgate_router.addresses import IpNetwork
from sandgate_router.connect import Connector
from sandgate_router.limits import InFlight, Sandbox
from sandgate_router.tunnel import Tunnels

if TYPE_CHECKING:
    from sandgate_router.forward import Exchange


@dataclass(slots=True)
class Relay:
    """What all exchanges share."""

    connector: Connector
    clock: Callable[[], float]
    date: Callable[[], bytes]
    timeout: float
    """Longest wait for a response head and for every later gap, in seconds."""
    tunnels: Tunnels
    in_flight: InFlight
    max_content: int = 0
    """Largest content of a request, in bytes; 0 has no limit."""
    trusted_proxies: tuple[IpNetwork, ...] = ()
    """Networks whose word about earlier hops is believed."""
    keep_origin: bool = False
    """Whether Origin passes on a WebSocket handshake."""
    exchanges: set["Exchange"] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def sweep(self) -> None:
        """End what has waited too long."""
        now = self.clock()
        for exchange in list(self.exchanges):
            if exchange.deadline < now:
                exchange.expire()
        self.tunnels.sweep()
        self.connector.pool.sweep()

    def tunnel_ended(self, sandbox: Sandbox, client: bytes) -> None:
        """Count one tunnel less, of its sandbox and of its client."""
        self.in_flight.leave(sandbox)
        self.tunnels.free(client)

    async def close(self) -> None:
        """End every exchange and connection."""
        for exchange in list(self.exchanges):
            exchange.drop()
        self.tunnels.close()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connector.close()
