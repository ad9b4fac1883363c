"""What whoever sent a request to the control API may do.

Pure. A caller has rights in namespaces, the holder of a capability has its one claim, and where
nobody is asked everything is allowed. Another's claim and an unknown one are alike to callers:
`may_read` and `may_change` say no, and the endpoint answers as if there were none.
"""

from dataclasses import dataclass

from sandgate_router.callers import Caller, Right
from sandgate_router.capability_text import SCOPES, Capability
from sandgate_router.errors import Forbidden
from sandgate_router.registry.base import Claim

_NARROWED = (
    "The token opens a part of its claim alone, and a renewal gives a token for all of it;"
    " renew with the claim's own token, or with a caller's."
)


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights behind one request."""

    caller: str | None
    """The caller's name; None for a capability, and where nobody is asked."""
    namespaces: frozenset[str] | None
    """None is every namespace."""
    granted: frozenset[Right]
    capability: Capability | None = None

    def check(self, right: Right, namespace: str | None = None) -> None:
        """Raise Forbidden without this right, or outside one's namespaces."""
        if self.granted.isdisjoint({right, "admin"}):
            raise Forbidden
        if namespace is not None:
            self.check_namespace(namespace)

    def check_namespace(self, namespace: str) -> None:
        """Raise Forbidden outside one's namespaces, whatever there is."""
        if not self.covers(namespace):
            raise Forbidden

    def check_claims(self) -> None:
        """Raise Forbidden where lists of claims are not allowed at all."""
        if self.capability is not None:
            raise Forbidden

    def check_change(self) -> None:
        """Raise Forbidden where no claim at all may be renewed or released."""
        if self.capability is None:
            self.check("claim")

    def covers(self, namespace: str) -> bool:
        """Tell whether a namespace is one's own."""
        return self.namespaces is None or namespace in self.namespaces

    def may_read(self, claim: Claim) -> bool:
        """Tell whether the claim may be seen."""
        return self._is_over(claim, "read") or self._owns(claim)

    def may_change(self, claim: Claim) -> bool:
        """Tell whether the claim may be renewed and released."""
        return self._is_over(claim, "admin") or self._owns(claim)

    def check_renewal(self, claim: Claim) -> None:
        """Raise Forbidden where the new token would open more than the one that was sent.

        Refused, and not narrowed alike: whoever hands out a part of a claim decides how long
        it lasts, and a token that renews itself lasts as long as its holder likes.
        """
        held = self.capability
        if held is not None and not (_opens_all_ports(held, claim) and held.scopes == SCOPES):
            raise Forbidden(_NARROWED)

    @property
    def sees_all(self) -> bool:
        """Whether nothing has to be looked at to know that everything may be done."""
        return "admin" in self.granted

    def _is_over(self, claim: Claim, right: Right) -> bool:
        return not self.granted.isdisjoint({right, "admin"}) and self.covers(claim.namespace)

    def _owns(self, claim: Claim) -> bool:
        held = self.capability
        if held is not None:
            # One without a uid is good for the relay alone: here it could outlive its claim.
            return (held.namespace, held.claim, held.uid) == (
                claim.namespace,
                claim.name,
                claim.uid,
            )
        own = self.caller is not None and claim.caller == self.caller
        return own and self.covers(claim.namespace)


def _opens_all_ports(held: Capability, claim: Claim) -> bool:
    return held.ports is None or (claim.ports is not None and set(claim.ports) <= set(held.ports))


EVERYTHING = Rights(caller=None, namespaces=None, granted=frozenset({"claim", "read", "admin"}))
"""Where nobody is asked."""


def rights_of_caller(caller: Caller) -> Rights:
    """Return what a caller of the file may do."""
    return Rights(caller=caller.name, namespaces=caller.namespaces, granted=caller.rights)


def rights_of_holder(capability: Capability) -> Rights:
    """Return what the holder of a claim's capability may do."""
    return Rights(
        caller=None,
        namespaces=frozenset({capability.namespace}),
        granted=frozenset(),
        capability=capability,
    )
