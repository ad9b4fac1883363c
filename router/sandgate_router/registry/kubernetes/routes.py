"""Which endpoint a request for a sandbox of the cluster goes to, and why it goes nowhere.

`endpoint` answers from memory; `find` asks the API once for what memory does not know, or
knows not to be ready.
"""

import time
from collections.abc import Callable, Container

from sandgate_router.errors import (
    DestinationProhibited,
    GatewayError,
    NotAllowedHere,
    RegistryUnavailable,
    SandboxNotReady,
)
from sandgate_router.kube.errors import KubeError
from sandgate_router.names import Label
from sandgate_router.registry.base import Endpoint
from sandgate_router.registry.kubernetes.claim_table import ClaimTable
from sandgate_router.registry.kubernetes.look_up import LookUp
from sandgate_router.registry.kubernetes.outcome import shown_reason
from sandgate_router.registry.kubernetes.plan import ports_of
from sandgate_router.registry.kubernetes.table import Entry, SandboxTable
from sandgate_router.target import Target

REFUSED_SECONDS = 1.0
"""How long `it is not ready` is believed of a sandbox that requests keep coming for."""

MAX_REFUSED = 10_000


class Routes:
    """Finds the endpoints of sandboxes."""

    def __init__(
        self,
        sandboxes: SandboxTable,
        claims: ClaimTable,
        look_up: LookUp,
        *,
        namespaces: Container[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look in the tables, and ask by `look_up` in these namespaces alone."""
        self._sandboxes = sandboxes
        self._claims = claims
        self._look_up = look_up
        self._namespaces = namespaces
        self._clock = clock
        self._refused: dict[Target, tuple[float, GatewayError]] = {}

    def endpoint(self, target: Target) -> Endpoint | None:
        """Return the endpoint of a sandbox that is ready, from memory.

        Raises:
            NotAllowedHere: the claim that holds it does not have the port.
        """
        key = (target.namespace, target.sandbox)
        found = self._sandboxes.endpoint(key, target.port)
        if found is not None:
            return found
        entry = self._sandboxes.get(key)
        if entry is None or entry.standing != "ready":
            return None
        if entry.claim:
            claim = self._claims.get((target.namespace, Label(entry.claim_name)))
            if claim is None or claim.uid != entry.claim:
                return None  # what its claim allows is not known yet
            ports = ports_of(claim)
            if ports is not None and target.port not in ports:
                listed = ", ".join(map(str, ports)) or "none"
                raise NotAllowedHere(
                    f"Port {target.port} is not one that the claim may reach ({listed})."
                )
        return self._sandboxes.open(entry, target.port)

    async def find(self, target: Target) -> Endpoint | None:
        """Ask the API for a sandbox that the watch has not told of, or that was not ready.

        Raises:
            SandboxNotReady, DestinationProhibited, RegistryUnavailable, NotAllowedHere.
        """
        if target.namespace not in self._namespaces:
            return None
        until, refusal = self._refused.get(target, (0.0, None))
        if refusal is not None and until > self._clock():
            raise type(refusal)(refusal.message)
        try:
            entry = await self._look_up.sandbox_once((target.namespace, target.sandbox))
            if entry is not None and entry.claim and entry.standing == "ready":
                await self._know_claim(entry)
        except KubeError as error:
            raise RegistryUnavailable("The Kubernetes API does not answer.") from error
        if entry is None:
            return None
        found = self.endpoint(target)
        if found is None:
            self._refuse(target, entry)
        return found

    async def _know_claim(self, entry: Entry) -> None:
        key = (entry.key[0], Label(entry.claim_name))
        known = self._claims.get(key)
        if known is None or known.uid != entry.claim:
            await self._look_up.claim(key)

    def _refuse(self, target: Target, entry: Entry) -> None:
        """Raise why a sandbox that exists is not reached; return where it is as if there were none.

        A suspended one would be woken here.
        """
        refusal: GatewayError
        if entry.standing == "suspended":
            refusal = SandboxNotReady("The sandbox is suspended (SandboxSuspended).")
        elif entry.standing == "prohibited":
            refusal = DestinationProhibited()
        elif entry.standing == "starting":
            reason = shown_reason(entry.reason)
            refusal = SandboxNotReady(f"The sandbox is not ready yet ({reason}).")
        else:
            return
        if len(self._refused) >= MAX_REFUSED:
            self._refused.clear()
        self._refused[target] = (self._clock() + REFUSED_SECONDS, refusal)
        raise refusal
