"""The half of a registry that has no pools and no claims: it only knows where sandboxes are.

Claims and pools answer 501, lists of them are empty, and nothing ever happens to them.
"""

from collections.abc import Callable
from typing import ClassVar

from sandgate_router.errors import NotImplementedHere
from sandgate_router.names import Label
from sandgate_router.registry.base import (
    Claim,
    ClaimRequest,
    Endpoint,
    Event,
    PoolStatus,
    RegistryHealth,
    Traffic,
)


class RoutesOnly:
    """What registries share whose sandboxes belong to whoever started them."""

    kind: ClassVar[str]
    """The registry's name in the settings."""

    keeps_keys: ClassVar[bool] = False

    def __init__(self) -> None:
        self._subscribers: list[Callable[[Endpoint], None]] = []

    def subscribe(self, gone: Callable[[Endpoint], None]) -> None:
        """Have `gone` called for each endpoint that leaves the table."""
        self._subscribers.append(gone)

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Do nothing: there are no events."""

    def watch(self, traffic: Traffic) -> None:
        """Do nothing: there are no claims to be idle."""

    def health(self) -> RegistryHealth:
        """Say that all is well: what is not known is asked for as it is needed."""
        return RegistryHealth()

    async def claim(self, request: ClaimRequest) -> Claim:
        """Refuse: there are no pools."""
        del request
        raise self._refusal("pools")

    async def find_claim(self, namespace: Label, name: Label) -> Claim | None:
        """Find none: there are no claims."""

    async def renew(
        self, namespace: Label, name: Label, lease_seconds: float | None, *, uid: str | None = None
    ) -> Claim:
        """Refuse: there are no leases."""
        del namespace, name, lease_seconds, uid
        raise self._refusal("claims")

    async def release(self, namespace: Label, name: Label, *, uid: str | None = None) -> None:
        """Do nothing: what never was is released already."""

    def claims(self) -> list[Claim]:
        """Return no claims."""
        return []

    def pools(self) -> list[PoolStatus]:
        """Return no pools."""
        return []

    async def resize(
        self, namespace: Label, pool: str, *, warm: int | None, max_members: int | None
    ) -> PoolStatus:
        """Refuse: there are no pools."""
        del namespace, pool, warm, max_members
        raise self._refusal("pools")

    def _tell_gone(self, endpoint: Endpoint) -> None:
        for gone in self._subscribers:
            gone(endpoint)

    def _refusal(self, what: str) -> NotImplementedHere:
        return NotImplementedHere(f"The {self.kind} registry has no {what}; it only routes.")
