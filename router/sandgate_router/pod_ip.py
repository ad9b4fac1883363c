"""What X-Sandbox-Pod-IP does: nothing, be compared with what is known, or be dialled.

Clients that can ask the Kubernetes API send the address of the pod they mean. It is the
client's word, so even where it is trusted it must lie in the networks of the sandboxes, and
never be an address that no sandbox has. Checked after authorization: a stranger learns
nothing about addresses.
"""

import ipaddress
from collections import OrderedDict
from typing import Literal, Protocol

from sandgate_router.addresses import IpAddress, Verdict, parse_address
from sandgate_router.errors import InvalidPodIp, NotAllowedHere
from sandgate_router.registry.base import Endpoint
from sandgate_router.target import Routing, Target

PodIpMode = Literal["ignore", "verify", "trust"]

MAX_ENDPOINTS = 16_384
"""Addresses that clients named and that are remembered, so that connections are kept and used
again. Above it the one that was used longest ago goes, and its idle connections age out."""


class Judge(Protocol):
    """Says which addresses may be dialled."""

    def judge(self, address: IpAddress) -> Verdict:
        """Tell whether `address` may be dialled."""


class PodIp:
    """Applies the setting to one request after the other."""

    def __init__(self, mode: PodIpMode, policy: Judge) -> None:
        self._mode = mode
        self._policy = policy
        self._endpoints: OrderedDict[tuple[Target, str], Endpoint] = OrderedDict()
        """By target and by the text of the address, which has been judged."""

    def __repr__(self) -> str:
        return f"<PodIp {self._mode} {len(self._endpoints)} endpoints>"

    def endpoint_for(self, routing: Routing) -> Endpoint | None:
        """Return what the field says to dial, or None where the registry is to be asked.

        Raises:
            InvalidPodIp: it is no address, or of a class that is never dialled.
            NotAllowedHere: it lies outside the networks.
        """
        if routing.pod_ip is None or self._mode == "ignore":
            return None
        key = (routing.target, routing.pod_ip)
        known = self._endpoints.get(key)
        if known is not None:
            self._endpoints.move_to_end(key)
            return known
        address = self._parse(routing.pod_ip)
        if self._mode == "verify":
            return None
        if len(self._endpoints) >= MAX_ENDPOINTS:
            self._endpoints.popitem(last=False)
        target = routing.target
        endpoint = Endpoint(
            uid=None,  # an address says nothing about who has it now
            name=f"{target.namespace}/{target.sandbox}",
            host=str(address),
            port=target.port,
        )
        self._endpoints[key] = endpoint
        return endpoint

    def verify(self, routing: Routing, endpoint: Endpoint) -> None:
        """Raise NotAllowedHere when the field names another address than the registry's."""
        if self._mode != "verify" or routing.pod_ip is None:
            return
        # A sandbox behind a unix socket has no address, and so none that could be the same.
        known = ipaddress.ip_address(endpoint.host) if endpoint.host else None
        if self._parse(routing.pod_ip) != known:
            raise NotAllowedHere("X-Sandbox-Pod-IP is not the address of this sandbox.")

    def _parse(self, text: str) -> IpAddress:
        try:
            address = parse_address(text)
        except ValueError as error:
            raise InvalidPodIp from error
        verdict = self._policy.judge(address)
        if verdict == "never":
            raise InvalidPodIp
        if verdict == "outside":
            raise NotAllowedHere(
                "X-Sandbox-Pod-IP is outside the networks that this gateway may dial"
                " (SANDGATE_UPSTREAM_NETWORKS)."
            )
        return address
